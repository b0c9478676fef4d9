//! A client's inside: requests that wait for answers, and the task that hands on what the server sends.
//!
//! Neighbours: error, link.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use futures_util::FutureExt as _;
use parking_lot::{Mutex, RwLock};
use raddle_protocol::methods::{ClientResponse, Method, ServerAnswer, ServerNotification, ServerRequest};
use raddle_protocol::rpc::{ClientMessage, ServerMessage};
use raddle_protocol::{ErrorCode, RequestId, RpcError};
use raddle_server::transport::envelope::FromServer;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::error::ClientError;
use crate::link::{Inbox, Link};

/// Requests of the server that may wait for one client's handler at the same time; further ones are answered with an
/// error at once, which blocks what they ask about.
pub const HANDLERS_RUNNING_MAX: usize = 64;

type HandlerFuture = Pin<Box<dyn Future<Output = Result<ServerAnswer, RpcError>> + Send>>;

/// Answers requests of the server by itself.
pub(crate) type Handler = Arc<dyn Fn(ServerRequest) -> HandlerFuture + Send + Sync>;

/// Takes requests of the server, to answer them some time.
pub(crate) type Taker = Arc<dyn Fn(RequestId, ServerRequest) + Send + Sync>;

/// Hears notifications.
pub(crate) type Callback = Arc<dyn Fn(&ServerNotification) + Send + Sync>;

/// What becomes of requests of the server.
#[derive(Clone, Default)]
pub(crate) enum Asked {
    /// They are refused.
    #[default]
    Nobody,
    Handler(Handler),
    Taker(Taker),
}

pub(crate) struct Inner {
    pub(crate) link: Link,
    responses: Responses,
    last_id: AtomicI64,
    pub(crate) callbacks: RwLock<Vec<(u64, Callback)>>,
    pub(crate) streams: RwLock<Vec<Weak<raddle_server::Outbox>>>,
    pub(crate) last_registration: AtomicU64,
    pub(crate) asked: RwLock<Asked>,
    /// Set when nothing more will be handed on.
    over: AtomicBool,
}

type Responses = Mutex<HashMap<i64, Waiting>>;

/// A request that waits for its answer.
struct Waiting {
    /// How to read the answer.
    method: &'static str,
    answer: oneshot::Sender<Result<ClientResponse, ClientError>>,
}

impl Inner {
    pub(crate) fn new(link: Link) -> Arc<Self> {
        Arc::new(Self {
            link,
            responses: Mutex::default(),
            last_id: AtomicI64::new(0),
            callbacks: RwLock::default(),
            streams: RwLock::default(),
            last_registration: AtomicU64::new(0),
            asked: RwLock::default(),
            over: AtomicBool::new(false),
        })
    }

    pub(crate) async fn request<M: Method>(&self, params: M::Params) -> Result<M::Result, ClientError> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let (answer, answered) = oneshot::channel();
        self.responses.lock().insert(id, Waiting { method: M::NAME, answer });
        let _forget = Forget { responses: &self.responses, id };
        // In this order: the pump sets the flag before it forgets who waits, so no request can slip in between.
        if self.over.load(Ordering::Acquire) {
            return Err(ClientError::Closed);
        }
        let message = ClientMessage::Request { id: RequestId::Number(id), request: M::request(params) };
        if !self.link.send(message).await {
            return Err(ClientError::Closed);
        }
        let response = answered.await.map_err(|_| ClientError::Closed)??;
        M::result(response).ok_or(ClientError::UnexpectedResult { method: M::NAME })
    }

    fn answered(
        &self,
        id: &RequestId,
        answer: impl FnOnce(&'static str) -> Result<ClientResponse, ClientError>,
    ) {
        // Our ids are numbers.
        let RequestId::Number(id) = id else { return };
        let waiting = self.responses.lock().remove(id);
        if let Some(waiting) = waiting {
            let _ = waiting.answer.send(answer(waiting.method));
        }
    }

    fn method_of(&self, id: &RequestId) -> Option<&'static str> {
        match id {
            RequestId::Number(id) => self.responses.lock().get(id).map(|waiting| waiting.method),
            RequestId::String(_) => None,
        }
    }

    fn hand_on(&self, notification: Arc<ServerNotification>) {
        let callbacks = self.callbacks.read().clone();
        for (_, callback) in callbacks {
            if catch_unwind(AssertUnwindSafe(|| callback(&notification))).is_err() {
                tracing::error!(method = notification.method(), "a notification callback panicked");
            }
        }
        let streams = self.streams.read();
        for stream in streams.iter().filter_map(Weak::upgrade) {
            stream.push(ServerMessage::Notification(notification.clone()));
        }
    }

    /// Brings a request of the server to whoever answers. Answers are sent by tasks of `handlers`, since sending may wait.
    fn ask(self: &Arc<Self>, id: RequestId, request: ServerRequest, handlers: &mut JoinSet<()>) {
        let asked = self.asked.read().clone();
        match asked {
            Asked::Nobody => {
                let refusal = RpcError::new(ErrorCode::MethodNotFound, "this client answers no requests");
                self.refuse(id, refusal, handlers);
            }
            Asked::Handler(_) if handlers.len() >= HANDLERS_RUNNING_MAX => self.refuse(id, busy(), handlers),
            Asked::Handler(handler) => {
                let inner = self.clone();
                handlers.spawn(async move {
                    let answer = AssertUnwindSafe(async { handler(request).await }).catch_unwind().await;
                    inner.link.answer(&id, answer.unwrap_or_else(|_| Err(panicked()))).await;
                });
            }
            Asked::Taker(taker) => {
                let taken = id.clone();
                if catch_unwind(AssertUnwindSafe(|| taker(taken, request))).is_err() {
                    self.refuse(id, panicked(), handlers);
                }
            }
        }
    }

    fn refuse(self: &Arc<Self>, id: RequestId, error: RpcError, handlers: &mut JoinSet<()>) {
        let inner = self.clone();
        handlers.spawn(async move {
            inner.link.answer(&id, Err(error)).await;
        });
    }
}

fn busy() -> RpcError {
    RpcError::new(ErrorCode::Internal, "this client is too busy")
}

fn panicked() -> RpcError {
    tracing::error!("a request handler panicked");
    RpcError::new(ErrorCode::Internal, "the client's handler failed")
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

/// The end of a pump, however it comes.
struct Over(Arc<Inner>);

impl Drop for Over {
    fn drop(&mut self) {
        let inner = &self.0;
        inner.link.close();
        inner.over.store(true, Ordering::Release);
        inner.responses.lock().clear();
        for stream in inner.streams.read().iter().filter_map(Weak::upgrade) {
            stream.close();
        }
    }
}

/// Hands on what the server sends, in order, until the connection is at its end.
pub(crate) async fn pump(inner: Arc<Inner>, mut inbox: Inbox) {
    let over = Over(inner.clone());
    let mut handlers = JoinSet::new();
    while let Some(received) = inbox.next(|id| inner.method_of(id)).await {
        while handlers.try_join_next().is_some() {}
        let message = match received {
            FromServer::Message(message) => message,
            FromServer::UnreadableResult { id, error } => {
                let message = error.message;
                inner.answered(&id, |method| Err(ClientError::UnreadableResult { method, message }));
                continue;
            }
            FromServer::UnknownRequest { id, error } => {
                tracing::info!(%id, "a request of the server was refused: {error}");
                inner.link.opens(&id);
                inner.refuse(id, error, &mut handlers);
                continue;
            }
        };
        let has_room = match &message {
            ServerMessage::Request { id, .. } => inner.link.opens(id),
            ServerMessage::Notification(notification) => {
                if let ServerNotification::ServerRequestCancelled(cancelled) = &**notification {
                    inner.link.withdraws(&cancelled.id);
                }
                true
            }
            ServerMessage::Response { .. } => true,
        };
        match message {
            ServerMessage::Response { id: Some(id), result } => {
                inner.answered(&id, |_| result.map_err(ClientError::from));
            }
            ServerMessage::Response { id: None, result } => {
                if let Err(error) = result {
                    tracing::warn!("the server could not read a message of this client: {error}");
                }
            }
            ServerMessage::Notification(notification) => inner.hand_on(notification),
            ServerMessage::Request { id, .. } if !has_room => inner.refuse(id, busy(), &mut handlers),
            ServerMessage::Request { id, request } => inner.ask(id, request, &mut handlers),
        }
    }
    drop(over);
    // Handlers of a connection that is gone have nobody to answer.
    handlers.shutdown().await;
}
