//! The server: an engine and the connections to it.
//!
//! Neighbours: connection, payload.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use raddle_engine::{ConnectionId, Engine};
use raddle_protocol::limits::OUTBOX_BYTES_MAX;
use raddle_protocol::thread::Warning;
use tokio::time::{timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection::Connection;
use crate::payload::{Clock, PAYLOAD_MEMORY_BYTES_MAX, Payloads};

/// How long a shutdown gives requests that still run when the engine has stopped: there is not much left for them to do.
const ANSWERS_AFTER_ENGINE: Duration = Duration::from_millis(500);

/// [`ShutdownTimes::accepted_first`] by default. Ours.
pub const SHUTDOWN_ACCEPTED_FIRST: Duration = Duration::from_secs(1);

/// [`ShutdownTimes::answers_after`] by default. Source: the app-server documentation.
pub const SHUTDOWN_ANSWERS_AFTER: Duration = Duration::from_secs(9);

/// [`ShutdownTimes::ends_after`] by default. Source: the app-server documentation.
pub const SHUTDOWN_ENDS_AFTER: Duration = Duration::from_secs(10);

/// The last number given to a connection: one count for the process, since several servers may share an engine, and
/// threads tell their subscribers apart by it.
static LAST_CONNECTION: AtomicU64 = AtomicU64::new(0);

/// When a shutdown loses patience; all is counted from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownTimes {
    /// At the end of a process's input: how long the requests that were accepted before have, before threads are told to
    /// end and everything unfinished is refused.
    pub accepted_first: Duration,
    /// Until requests that still run are answered with `shuttingDown`, and output only drains.
    pub answers_after: Duration,
    /// Until nothing is waited for any more.
    pub ends_after: Duration,
}

impl Default for ShutdownTimes {
    fn default() -> Self {
        Self {
            accepted_first: SHUTDOWN_ACCEPTED_FIRST,
            answers_after: SHUTDOWN_ANSWERS_AFTER,
            ends_after: SHUTDOWN_ENDS_AFTER,
        }
    }
}

/// How a server is to run. The defaults are those of the protocol.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Bytes that may wait unread in a connection's outbox; at more the connection ends.
    pub outbox_bytes_max: usize,
    /// When a shutdown loses patience.
    pub shutdown: ShutdownTimes,
    /// What is wrong with this process and so with each of its threads; the responses that open a thread carry it.
    pub standing_warnings: Vec<Warning>,
    /// Bytes of large values that may be in memory; at more, those unused for longest go.
    pub payload_memory_bytes_max: usize,
    /// Tells when references to large values expire.
    pub clock: Clock,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            outbox_bytes_max: OUTBOX_BYTES_MAX,
            shutdown: ShutdownTimes::default(),
            standing_warnings: Vec::new(),
            payload_memory_bytes_max: PAYLOAD_MEMORY_BYTES_MAX,
            clock: Clock::default(),
        }
    }
}

/// Connections and the engine behind them. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Server {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) requests: TaskTracker,
    /// A connection may be dropped on a thread that is not the runtime's; what follows still runs on it.
    pub(crate) runtime: tokio::runtime::Handle,
    /// Set when the shutdown begins.
    pub(crate) ending: CancellationToken,
    /// Set when new requests are refused.
    pub(crate) stopping: CancellationToken,
    /// Set when requests that still run are given up.
    pub(crate) stopped: CancellationToken,
    pub(crate) opened_at: Instant,
    pub(crate) dropped_connections: AtomicU64,
    pub(crate) outbox_bytes_max: usize,
    pub(crate) shutdown: ShutdownTimes,
    pub(crate) standing_warnings: Vec<Warning>,
    pub(crate) payloads: Payloads,
    connections: Mutex<Vec<std::sync::Weak<Connection>>>,
}

impl Server {
    /// A server without connections. Must be called within a tokio runtime, as must all that follows.
    pub fn new(engine: Engine) -> Self {
        Self::with_options(engine, ServerOptions::default())
    }

    /// A server whose connections may have `bytes_max` bytes waiting instead of the usual
    /// [`OUTBOX_BYTES_MAX`].
    pub fn with_outbox_bound(engine: Engine, bytes_max: usize) -> Self {
        Self::with_options(engine, ServerOptions { outbox_bytes_max: bytes_max, ..ServerOptions::default() })
    }

    /// [`new`](Self::new) with other options than the usual ones.
    pub fn with_options(engine: Engine, options: ServerOptions) -> Self {
        Self {
            shared: Arc::new(Shared {
                engine,
                requests: TaskTracker::new(),
                runtime: tokio::runtime::Handle::current(),
                ending: CancellationToken::new(),
                stopping: CancellationToken::new(),
                stopped: CancellationToken::new(),
                opened_at: Instant::now(),
                dropped_connections: AtomicU64::new(0),
                outbox_bytes_max: options.outbox_bytes_max,
                shutdown: options.shutdown,
                standing_warnings: options.standing_warnings,
                payloads: Payloads::new(options.clock, options.payload_memory_bytes_max),
                connections: Mutex::new(Vec::new()),
            }),
        }
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// Opens a connection. In process its two ends are [`Connection::receive`] and [`Connection::next`]: typed messages,
    /// nothing serialised. Over a transport of bytes use [`serve`](Self::serve).
    pub fn connect(&self) -> Arc<Connection> {
        let id = ConnectionId(LAST_CONNECTION.fetch_add(1, Ordering::Relaxed) + 1);
        let connection = Connection::new(id, self.shared.clone());
        let mut connections = self.shared.connections.lock();
        connections.retain(|known| known.strong_count() > 0);
        connections.push(Arc::downgrade(&connection));
        connection
    }

    /// Begins to stop, without waiting: for a host that drops everything. Running turns end as interrupted.
    pub fn abandon(&self) {
        self.shared.ending.cancel();
        self.shared.stopping.cancel();
        self.shared.engine.abandon();
        self.shared.requests.close();
        self.close_connections();
    }

    /// Waits until a shutdown has begun: [`ShutdownTimes`] count from then on.
    pub async fn stopping(&self) {
        self.shared.ending.cancelled().await;
    }

    /// Stops: new requests get `shuttingDown`, running turns end as interrupted, every accepted request is answered
    /// (P4), and every connection closes once what waits has been read.
    ///
    /// Threads that do not end are not waited for longer than [`ShutdownTimes`] say, ten seconds at most: a second
    /// before that, requests that still run get `shuttingDown`, results that come later are dropped, and connections
    /// close. What is left of the engine then goes on to close in the background.
    pub async fn shut_down(&self) {
        self.shut_down_since(tokio::time::Instant::now()).await;
    }

    pub(crate) async fn shut_down_since(&self, begun: tokio::time::Instant) {
        let shared = &self.shared;
        shared.ending.cancel();
        shared.stopping.cancel();
        let engine = shared.engine.clone();
        let closing = shared.runtime.spawn(async move { engine.shut_down().await });
        let finished = async {
            if closing.await.is_err() {
                tracing::error!("the engine's close failed");
            }
            shared.requests.close();
            if timeout(ANSWERS_AFTER_ENGINE, shared.requests.wait()).await.is_err() {
                tracing::info!("requests that still run are given up");
            }
        };
        tokio::pin!(finished);
        let is_finished = timeout_at(begun + shared.shutdown.answers_after, &mut finished).await.is_ok();
        // Handlers that still run; what they handed to the engine does not end with them.
        shared.stopped.cancel();
        for connection in self.connections() {
            connection.give_up();
        }
        self.close_connections();
        if !is_finished && timeout_at(begun + shared.shutdown.ends_after, finished).await.is_err() {
            tracing::warn!("the engine did not close in time");
        }
    }

    fn close_connections(&self) {
        for connection in self.connections() {
            connection.close();
        }
    }

    fn connections(&self) -> Vec<Arc<Connection>> {
        let connections = self.shared.connections.lock();
        connections.iter().filter_map(std::sync::Weak::upgrade).collect()
    }
}
