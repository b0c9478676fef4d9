//! The server: an engine and the connections to it.
//!
//! Neighbours: connection, transport.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use raddle_engine::{ConnectionId, Engine};
use raddle_protocol::limits::OUTBOX_BYTES_MAX;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection::Connection;
use crate::transport::{Incoming, MessageSink, MessageSource};

/// How long [`Server::shut_down`] gives answers that are still open after the engine has stopped.
const ANSWERS_AFTER: Duration = Duration::from_millis(500);

/// The last number given to a connection: one count for the process, since several servers may share an engine, and
/// threads tell their subscribers apart by it.
static LAST_CONNECTION: AtomicU64 = AtomicU64::new(0);

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
    /// Set when new requests are refused.
    pub(crate) stopping: CancellationToken,
    /// Set when requests that still run are given up.
    pub(crate) stopped: CancellationToken,
    pub(crate) opened_at: Instant,
    pub(crate) dropped_connections: AtomicU64,
    pub(crate) outbox_bytes_max: usize,
    connections: Mutex<Vec<std::sync::Weak<Connection>>>,
}

impl Server {
    /// A server without connections. Must be called within a tokio runtime, as must all that follows.
    pub fn new(engine: Engine) -> Self {
        Self::with_outbox_bound(engine, OUTBOX_BYTES_MAX)
    }

    /// A server whose connections may have `bytes_max` bytes waiting instead of the usual
    /// [`OUTBOX_BYTES_MAX`].
    pub fn with_outbox_bound(engine: Engine, bytes_max: usize) -> Self {
        Self {
            shared: Arc::new(Shared {
                engine,
                requests: TaskTracker::new(),
                runtime: tokio::runtime::Handle::current(),
                stopping: CancellationToken::new(),
                stopped: CancellationToken::new(),
                opened_at: Instant::now(),
                dropped_connections: AtomicU64::new(0),
                outbox_bytes_max: bytes_max,
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

    /// Serves one connection over a transport until either end closes it. What was accepted is answered, and what waits
    /// is sent, before it returns.
    pub async fn serve(&self, mut source: impl MessageSource, mut sink: impl MessageSink) {
        let connection = self.connect();
        let incoming = async {
            while let Some(incoming) = source.receive().await {
                match incoming {
                    Incoming::Message(message) => connection.receive(message).await,
                    Incoming::Malformed { id, error } => connection.refuse(id, error),
                }
            }
            connection.drained().await;
            connection.close();
        };
        let outgoing = async {
            while let Some(message) = connection.next().await {
                if let Err(error) = sink.send(message).await {
                    tracing::warn!(%error, "a connection could not be written to");
                    break;
                }
            }
            connection.close();
            sink.close().await;
        };
        tokio::pin!(incoming, outgoing);
        tokio::select! {
            () = &mut incoming => outgoing.await,
            () = &mut outgoing => {}
        }
    }

    /// Begins to stop, without waiting: for a host that drops everything. Running turns end as interrupted.
    pub fn abandon(&self) {
        self.shared.stopping.cancel();
        self.shared.engine.abandon();
        self.shared.requests.close();
        self.close_connections();
    }

    fn close_connections(&self) {
        let connections = std::mem::take(&mut *self.shared.connections.lock());
        for connection in connections.iter().filter_map(std::sync::Weak::upgrade) {
            connection.close();
        }
    }

    /// Stops: new requests get `shuttingDown`, running turns end as interrupted, every accepted request is answered
    /// (P4), and every connection closes once what waits has been read.
    pub async fn shut_down(&self) {
        self.shared.stopping.cancel();
        self.shared.engine.shut_down().await;
        self.shared.requests.close();
        if tokio::time::timeout(ANSWERS_AFTER, self.shared.requests.wait()).await.is_err() {
            self.shared.stopped.cancel();
            self.shared.requests.wait().await;
        }
        self.close_connections();
    }
}
