//! The typed client of a connection in the same process.
//!
//! Neighbours: error, notifications.

use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use futures_util::FutureExt;
use parking_lot::{Mutex, RwLock};
use raddle_protocol::methods::{
    ClientNotification, ClientResponse, Method, ServerAnswer, ServerNotification, ServerRequest, method,
};
use raddle_protocol::rpc::{ClientMessage, ServerMessage};
use raddle_protocol::server::{
    ClientCapabilities, ClientInfo, InitializeParams, InitializeResult, InitializedParams,
};
use raddle_protocol::{ErrorCode, RequestId, RpcError};
use raddle_server::{Connection, Server};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use crate::error::ClientError;
use crate::notifications::Notifications;

/// Requests of the server that may wait for one client's handler at the same time; further ones are answered with an
/// error at once, which blocks what they ask about.
pub const HANDLERS_RUNNING_MAX: usize = 64;

type HandlerFuture = Pin<Box<dyn Future<Output = Result<ServerAnswer, RpcError>> + Send>>;
type Handler = Arc<dyn Fn(ServerRequest) -> HandlerFuture + Send + Sync>;
type Callback = Arc<dyn Fn(&ServerNotification) + Send + Sync>;
type Responses = Mutex<HashMap<i64, oneshot::Sender<Result<ClientResponse, RpcError>>>>;

/// A client of an engine in the same process. Typed messages move over channels; nothing is serialised.
///
/// Dropping it closes its connection: its subscriptions end, running turns go on.
pub struct Client {
    inner: Arc<Inner>,
    initialized: InitializeResult,
    pump: Mutex<Option<JoinHandle<()>>>,
}

struct Inner {
    connection: Arc<Connection>,
    responses: Responses,
    last_id: AtomicI64,
    callbacks: RwLock<Vec<(u64, Callback)>>,
    streams: RwLock<Vec<Weak<raddle_server::Outbox>>>,
    last_registration: AtomicU64,
    handler: RwLock<Option<Handler>>,
    /// Set when nothing more will be handed on.
    over: AtomicBool,
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
    /// Connects and completes the handshake.
    pub(crate) async fn connect(
        server: &Server,
        runtime: &Handle,
        client_info: ClientInfo,
        capabilities: ClientCapabilities,
    ) -> Result<Self, ClientError> {
        let connection = server.connect();
        let inner = Arc::new(Inner {
            connection: connection.clone(),
            responses: Mutex::new(HashMap::new()),
            last_id: AtomicI64::new(0),
            callbacks: RwLock::new(Vec::new()),
            streams: RwLock::new(Vec::new()),
            last_registration: AtomicU64::new(0),
            handler: RwLock::new(None),
            over: AtomicBool::new(false),
        });
        let pump = runtime.spawn(pump(inner.clone()));
        let mut handshake = Handshake { connection: &connection, done: false };
        let params = InitializeParams { client_info, capabilities };
        let initialized = inner.request::<method::Initialize>(params).await?;
        let ready = ClientNotification::Initialized(InitializedParams {});
        connection.receive(ClientMessage::Notification(ready)).await;
        handshake.done = true;
        Ok(Self { inner, initialized, pump: Mutex::new(Some(pump)) })
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
    /// connection ended first.
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
    /// is blocked. A newer handler replaces an older one.
    pub fn on_request<F>(&self, handler: impl Fn(ServerRequest) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Result<ServerAnswer, RpcError>> + Send + 'static,
    {
        *self.inner.handler.write() = Some(Arc::new(move |request| Box::pin(handler(request))));
    }

    /// Closes the connection and waits until its last notification was handed on. Threads and turns go on.
    pub async fn shutdown(&self) {
        self.inner.connection.close();
        let pump = self.pump.lock().take();
        if let Some(pump) = pump {
            let _ = pump.await;
        }
    }

    /// Whether the connection is at its end.
    pub fn is_closed(&self) -> bool {
        self.pump.lock().as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The pump ends by itself once it has handed on what waits.
        self.inner.connection.close();
    }
}

impl Inner {
    async fn request<M: Method>(&self, params: M::Params) -> Result<M::Result, ClientError> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, answer) = oneshot::channel();
        self.responses.lock().insert(id, sender);
        let _forget = Forget { responses: &self.responses, id };
        // In this order: the pump sets the flag before it forgets who waits, so no request can slip in between.
        if self.over.load(Ordering::Acquire) {
            return Err(ClientError::Closed);
        }
        let request = M::request(params);
        self.connection.receive(ClientMessage::Request { id: RequestId::Number(id), request }).await;
        let response = answer.await.map_err(|_| ClientError::Closed)??;
        M::result(response).ok_or(ClientError::UnexpectedResult { method: M::NAME })
    }

    fn hand_on(&self, notification: Arc<ServerNotification>) {
        let callbacks = self.callbacks.read().clone();
        for (_, callback) in callbacks {
            if std::panic::catch_unwind(AssertUnwindSafe(|| callback(&notification))).is_err() {
                tracing::error!(method = notification.method(), "a notification callback panicked");
            }
        }
        let streams = self.streams.read();
        for stream in streams.iter().filter_map(Weak::upgrade) {
            stream.push(ServerMessage::Notification(notification.clone()));
        }
    }

    fn answer(self: &Arc<Self>, id: RequestId, request: ServerRequest, handlers: &mut JoinSet<()>) {
        let handler = self.handler.read().clone();
        let inner = self.clone();
        let busy = handlers.len() >= HANDLERS_RUNNING_MAX;
        handlers.spawn(async move {
            let answer = match handler {
                None => Err(RpcError::new(ErrorCode::MethodNotFound, "this client answers no requests")),
                Some(_) if busy => Err(RpcError::new(ErrorCode::Internal, "this client is too busy")),
                Some(handler) => {
                    match AssertUnwindSafe(async { handler(request).await }).catch_unwind().await {
                        Ok(answer) => answer,
                        Err(_) => {
                            tracing::error!("a request handler panicked");
                            Err(RpcError::new(ErrorCode::Internal, "the client's handler failed"))
                        }
                    }
                }
            };
            inner.connection.receive(ClientMessage::Answer { id, answer }).await;
        });
    }
}

/// Closes the connection, and so ends its pump, should the handshake fail or its future be dropped.
struct Handshake<'a> {
    connection: &'a Connection,
    done: bool,
}

impl Drop for Handshake<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.connection.close();
        }
    }
}

/// Forgets a request whose future was dropped.
struct Forget<'a> {
    responses: &'a Responses,
    id: i64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.responses.lock().remove(&self.id);
    }
}

/// Hands on what the connection sends, in order, until it is at its end.
async fn pump(inner: Arc<Inner>) {
    let mut handlers = JoinSet::new();
    while let Some(message) = inner.connection.next().await {
        while handlers.try_join_next().is_some() {}
        match message {
            ServerMessage::Response { id: Some(RequestId::Number(id)), result } => {
                let waiting = inner.responses.lock().remove(&id);
                if let Some(waiting) = waiting {
                    let _ = waiting.send(result);
                }
            }
            // Our ids are numbers.
            ServerMessage::Response { .. } => {}
            ServerMessage::Notification(notification) => inner.hand_on(notification),
            ServerMessage::Request { id, request } => inner.answer(id, request, &mut handlers),
        }
    }
    inner.connection.close();
    inner.over.store(true, Ordering::Release);
    inner.responses.lock().clear();
    for stream in inner.streams.read().iter().filter_map(Weak::upgrade) {
        stream.close();
    }
    // Handlers of a connection that is gone have nobody to answer.
    handlers.shutdown().await;
}
