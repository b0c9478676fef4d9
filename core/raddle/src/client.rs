//! The typed client: of an engine in the same process, or of a server over bytes.
//!
//! Neighbours: error, link, notifications, process, pump.

use std::process::ExitStatus;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use raddle_protocol::methods::{
    ClientNotification, Method, ServerAnswer, ServerNotification, ServerRequest, method,
};
use raddle_protocol::rpc::ClientMessage;
use raddle_protocol::server::{
    ClientCapabilities, ClientInfo, InitializeParams, InitializeResult, InitializedParams,
};
use raddle_protocol::{RequestId, RpcError};
use raddle_server::{Answered, Server};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::process::Command;
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinHandle};

use crate::error::ClientError;
use crate::link::{Inbox, Link};
use crate::notifications::Notifications;
use crate::process::{ServerProcess, SpawnOptions};
use crate::pump::{Asked, Inner, pump};

/// How long [`Client::shutdown`] waits for the far end of bytes to end: a second more than a server may take.
pub const FAR_END_AFTER: Duration = Duration::from_secs(11);

/// A client of the protocol: of an engine in the same process, where typed messages move over channels and nothing is
/// serialised; or of a server at the other end of a reader and a writer, where they move as lines of JSON.
///
/// Dropping it closes its connection: its subscriptions end, running turns go on. Over bytes, what was not yet written is
/// lost then, and a server's process that it started is killed; [`shutdown`](Self::shutdown) first.
pub struct Client {
    pub(crate) inner: Arc<Inner>,
    initialized: InitializeResult,
    pump: Mutex<Option<JoinHandle<()>>>,
    pumping: AbortHandle,
    process: Mutex<Option<ServerProcess>>,
    exit_status: Mutex<Option<ExitStatus>>,
    far_end_after: Duration,
}

/// Keeps a callback registered; dropping it ends that.
#[must_use = "dropping a registration ends it at once"]
pub struct Registration {
    client: Weak<Inner>,
    number: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(inner) = self.client.upgrade() {
            inner.callbacks.write().retain(|(number, _)| *number != self.number);
        }
    }
}

impl Client {
    /// Connects to an engine in this process and completes the handshake.
    pub(crate) async fn connect(
        server: &Server,
        runtime: &Handle,
        client_info: ClientInfo,
        capabilities: ClientCapabilities,
    ) -> Result<Self, ClientError> {
        let link = Link::memory(server.connect());
        Self::over_link(link, runtime, client_info, capabilities).await
    }

    /// Connects to a server at the far end of a reader and a writer of bytes, such as a pipe or a socket, and completes
    /// the handshake. Must be called within a tokio runtime, on which the connection then lives.
    ///
    /// # Errors
    /// What the server answers to `initialize`; [`ClientError::Closed`] when it ends first.
    pub async fn over(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        client_info: ClientInfo,
        capabilities: ClientCapabilities,
    ) -> Result<Self, ClientError> {
        let runtime = Handle::current();
        let link = Link::bytes(reader, writer, &runtime);
        Self::over_link(link, &runtime, client_info, capabilities).await
    }

    /// Starts a server as a child process, such as `raddle app-server`, connects to its standard streams and completes
    /// the handshake. The client owns the process: [`shutdown`](Self::shutdown) ends it, dropping the client kills it.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), raddle::ClientError> {
    /// use raddle::protocol::server::{ClientCapabilities, ClientInfo};
    /// use raddle::{Client, SpawnOptions};
    ///
    /// let mut command = tokio::process::Command::new("raddle");
    /// command.arg("app-server");
    /// let info = ClientInfo { name: "my-app".into(), version: "1.0".into() };
    /// let client = Client::spawn(command, SpawnOptions::default(), info, ClientCapabilities::default()).await?;
    /// client.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ClientError::Spawn`] when there is no such program; otherwise as [`over`](Self::over).
    pub async fn spawn(
        command: impl Into<Command>,
        options: SpawnOptions,
        client_info: ClientInfo,
        capabilities: ClientCapabilities,
    ) -> Result<Self, ClientError> {
        let (process, reader, writer) = ServerProcess::start(command.into(), options.stderr)?;
        let mut client = Self::over(reader, writer, client_info, capabilities).await?;
        client.process = Mutex::new(Some(process));
        client.far_end_after = options.ends_after;
        Ok(client)
    }

    async fn over_link(
        (link, inbox): (Link, Inbox),
        runtime: &Handle,
        client_info: ClientInfo,
        capabilities: ClientCapabilities,
    ) -> Result<Self, ClientError> {
        let inner = Inner::new(link);
        let pump = runtime.spawn(pump(inner.clone(), inbox));
        let pumping = pump.abort_handle();
        let mut handshake = Handshake { inner: inner.clone(), pumping: pumping.clone(), done: false };
        let params = InitializeParams { client_info, capabilities };
        let initialized = inner.request::<method::Initialize>(params).await?;
        let ready = ClientNotification::Initialized(InitializedParams {});
        inner.link.send(ClientMessage::Notification(ready)).await;
        handshake.done = true;
        Ok(Self {
            inner,
            initialized,
            pump: Mutex::new(Some(pump)),
            pumping,
            process: Mutex::new(None),
            exit_status: Mutex::new(None),
            far_end_after: FAR_END_AFTER,
        })
    }

    /// What the server said of itself.
    pub fn initialized(&self) -> &InitializeResult {
        &self.initialized
    }

    /// Sends a request and waits for its answer.
    ///
    /// The method is a type of [`raddle_protocol::methods::method`]; its params and result follow from it.
    ///
    /// # Errors
    /// [`ClientError::Server`] with the server's code, message and data as they came; [`ClientError::Closed`] when the
    /// connection ended first; [`ClientError::UnreadableResult`] for a result of a server of another version.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the answer, not the request: what it asked for may still happen.
    pub async fn request<M: Method>(&self, params: M::Params) -> Result<M::Result, ClientError> {
        self.inner.request::<M>(params).await
    }

    /// Calls back on every notification, in order, until the registration is dropped. The callback runs on the client's
    /// own task: a slow one makes deltas merge; one that panics costs that one call.
    pub fn on_notification(
        &self,
        callback: impl Fn(&ServerNotification) + Send + Sync + 'static,
    ) -> Registration {
        let number = self.inner.last_registration.fetch_add(1, Ordering::Relaxed);
        self.inner.callbacks.write().push((number, Arc::new(callback)));
        Registration { client: Arc::downgrade(&self.inner), number }
    }

    /// All notifications from now on, as a stream with a bounded buffer of its own in which deltas merge.
    pub fn notifications(&self) -> Notifications {
        let (notifications, queue) = Notifications::new();
        let mut streams = self.inner.streams.write();
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(&queue));
        notifications
    }

    /// Answers requests of the server, such as approvals. Without a handler, or with one that fails, what they ask about
    /// is blocked. A newer handler replaces an older one, and one of [`on_open_request`](Self::on_open_request).
    pub fn on_request<F>(&self, handler: impl Fn(ServerRequest) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Result<ServerAnswer, RpcError>> + Send + 'static,
    {
        *self.inner.asked.write() = Asked::Handler(Arc::new(move |request| Box::pin(handler(request))));
    }

    /// Takes requests of the server with their ids, to answer them later with [`respond`](Self::respond). The callback
    /// runs on the client's own task, in order with those of notifications, and must not wait; one that panics refuses
    /// that request. When the server needs an answer no more, it sends `serverRequest/cancelled` with the id. Replaces
    /// what [`on_request`](Self::on_request) has set, and the other way round.
    pub fn on_open_request(&self, callback: impl Fn(RequestId, ServerRequest) + Send + Sync + 'static) {
        *self.inner.asked.write() = Asked::Taker(Arc::new(callback));
    }

    /// Answers a request of the server by its id.
    ///
    /// An answer to a request that is not open any more decides nothing, and is told as [`Answered::Late`]. In process
    /// that is certain; over bytes the server may have withdrawn the request while the answer was on its way, and then
    /// ignores it.
    pub async fn respond(&self, id: &RequestId, answer: Result<ServerAnswer, RpcError>) -> Answered {
        self.inner.link.answer(id, answer).await
    }

    /// Closes the connection and waits until its last notification was handed on. Threads and turns go on, but for those
    /// of a server whose only client this is: a process ends with its input, and running turns as interrupted.
    ///
    /// The far end of bytes is waited for until [`FAR_END_AFTER`], or for a child process as long as its
    /// [`SpawnOptions`] say; a process that still runs then is killed.
    pub async fn shutdown(&self) {
        self.inner.link.close();
        let ends_at = tokio::time::Instant::now() + self.far_end_after;
        let pump = self.pump.lock().take();
        if let Some(mut pump) = pump {
            if !self.inner.link.is_remote() {
                let _ = pump.await;
            } else if tokio::time::timeout_at(ends_at, &mut pump).await.is_err() {
                tracing::warn!("the far end of a connection did not end in time");
                self.inner.link.abandon();
                pump.abort();
                let _ = pump.await;
            }
        }
        let process = self.process.lock().take();
        if let Some(process) = process {
            let status = process.end(ends_at).await;
            *self.exit_status.lock() = status;
        }
    }

    /// The id of the server's process, if this client has started one and not ended it.
    pub fn process_id(&self) -> Option<u32> {
        self.process.lock().as_ref().and_then(ServerProcess::id)
    }

    /// How the server's process has ended, after [`shutdown`](Self::shutdown) of a client that started one.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        *self.exit_status.lock()
    }

    /// Whether the connection is at its end.
    pub fn is_closed(&self) -> bool {
        self.pumping.is_finished()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        end(&self.inner, &self.pumping);
    }
}

/// Closes the connection, and so ends its pump, should the handshake fail or its future be dropped.
struct Handshake {
    inner: Arc<Inner>,
    pumping: AbortHandle,
    done: bool,
}

impl Drop for Handshake {
    fn drop(&mut self) {
        if !self.done {
            end(&self.inner, &self.pumping);
        }
    }
}

/// Ends a connection without waiting. In process its pump ends by itself, once it has handed on what waits; a far end may
/// have more to say for ever.
fn end(inner: &Inner, pumping: &AbortHandle) {
    inner.link.abandon();
    if inner.link.is_remote() {
        pumping.abort();
    }
}
