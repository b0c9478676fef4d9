//! One end of one client: its handshake, its running requests, what it was asked, and its outbox.
//!
//! Neighbours: dispatch, lanes, outbox, payload, responder, server, size, transport.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use raddle_engine::{AskId, AskSink, ConnectionId, Subscriber};
use raddle_protocol::approval::ServerRequestCancelledNotification;
use raddle_protocol::limits::OPT_OUT_NOTIFICATIONS_MAX;
use raddle_protocol::methods::{
    ClientNotification, ClientRequest, ClientResponse, Method as _, ServerAnswer, ServerNotification,
    ServerRequest, method,
};
use raddle_protocol::rpc::{ClientMessage, ServerMessage};
use raddle_protocol::server::{ErrorNotification, InitializeParams, InitializeResult, Platform, ServerInfo};
use raddle_protocol::thread::Warning;
use raddle_protocol::{ErrorCode, RequestId, RpcError, ThreadId};
use tokio::sync::Semaphore;

use crate::dispatch::dispatch;
use crate::lanes::Lanes;
use crate::outbox::{Outbox, Pushed};
use crate::responder::Responder;
use crate::server::Shared;
use crate::size::message_bytes;
use crate::transport::Incoming;

/// Requests of one connection that may run at the same time; at more, the connection is not read until one is answered.
pub const REQUESTS_RUNNING_MAX: usize = 256;

/// A connection. Its client end is [`receive`](Self::receive) and [`next`](Self::next).
pub struct Connection {
    id: ConnectionId,
    pub(crate) server: Arc<Shared>,
    outbox: Outbox,
    /// Set by `initialize`; read on every notification, so without a lock.
    opted_out: OnceLock<HashSet<String>>,
    permits: Arc<Semaphore>,
    pub(crate) lanes: Lanes,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    handshake: Handshake,
    running: HashSet<RequestId>,
    /// What the client was asked and has not answered.
    asked: HashMap<AskId, Asked>,
    last_ask: u64,
    /// Threads that this connection may be subscribed to.
    subscriptions: HashSet<ThreadId>,
    closed: bool,
}

/// A request of the server that waits for its answer.
struct Asked {
    method: &'static str,
    sink: AskSink,
}

/// What became of an answer to a request of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// It was handed to whoever asked.
    Taken,
    /// The request is not open: it was answered or withdrawn before, or never made. Nothing happens.
    Late,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Handshake {
    #[default]
    New,
    /// `initialize` was answered, `initialized` has not come.
    Answered,
    Ready,
}

impl Connection {
    pub(crate) fn new(id: ConnectionId, server: Arc<Shared>) -> Arc<Self> {
        let outbox = Outbox::new(server.outbox_bytes_max);
        Arc::new(Self {
            id,
            server,
            outbox,
            opted_out: OnceLock::new(),
            permits: Arc::new(Semaphore::new(REQUESTS_RUNNING_MAX)),
            lanes: Lanes::default(),
            state: Mutex::new(State::default()),
        })
    }

    /// Takes a message of the client. Requests run on their own; this waits only when too many of them do, or when the
    /// connection is closed, in which case the message is dropped.
    pub async fn receive(self: &Arc<Self>, message: ClientMessage) {
        match message {
            ClientMessage::Request { id, request } => self.request(id, request).await,
            ClientMessage::Notification(ClientNotification::Initialized(_)) => self.initialized(),
            ClientMessage::Answer { id, answer } => {
                self.answer(&id, answer);
            }
        }
    }

    /// Takes what a transport has read. See [`receive`](Self::receive).
    pub async fn take(self: &Arc<Self>, incoming: Incoming) {
        match incoming {
            Incoming::Message(message) => self.receive(message).await,
            Incoming::Answer { id, result } => {
                self.answer_with(&id, |method| {
                    let read = result.and_then(|result| ServerAnswer::decode(method, result));
                    read.inspect_err(|error| tracing::info!(method, "a request had no answer: {error}"))
                });
            }
            Incoming::BadRequest { id, method, error } => self.refuse_request(id, &method, error),
            Incoming::Malformed { id, error } => self.refuse(id, error),
            Incoming::Dropped { error } => {
                let RpcError { code, message, data } = error;
                let told = ErrorNotification { thread_id: None, code, message, data };
                self.notify(&Arc::new(ServerNotification::Error(told)));
            }
        }
    }

    /// Answers a request of the server.
    pub fn answer(&self, id: &RequestId, answer: Result<ServerAnswer, RpcError>) -> Answered {
        self.answer_with(id, |_| answer)
    }

    /// Waits for the next message to the client; `None` when the connection is at its end. One reader at a time.
    ///
    /// # Cancel safety
    /// Dropping the future loses no message.
    pub async fn next(&self) -> Option<ServerMessage> {
        self.outbox.next().await
    }

    /// Takes the next message to the client if there is one.
    pub fn try_next(&self) -> Option<ServerMessage> {
        self.outbox.try_next()
    }

    /// Ends the connection: subscriptions end, what it was asked goes to others, running requests go on and their
    /// answers are dropped. What waits can still be read.
    pub fn close(&self) {
        let (asked, subscriptions) = {
            let mut state = self.state.lock();
            if std::mem::replace(&mut state.closed, true) {
                return;
            }
            (std::mem::take(&mut state.asked), std::mem::take(&mut state.subscriptions))
        };
        self.outbox.close();
        self.server.engine.hub().leave(self.id);
        for (_, Asked { sink, .. }) in asked {
            sink(Err(RpcError::new(ErrorCode::ShuttingDown, "the client is gone")));
        }
        let (engine, id) = (self.server.engine.clone(), self.id);
        let detach = async move {
            for thread_id in subscriptions {
                engine.detach(&thread_id, id).await;
            }
        };
        self.server.requests.spawn_on(detach, &self.server.runtime);
    }

    /// Waits until every request that was accepted so far has its answer in the outbox.
    pub(crate) async fn drained(&self) {
        // Each running request holds a permit until it is answered.
        let _ = self.permits.acquire_many(REQUESTS_RUNNING_MAX as u32).await;
    }

    /// Answers every request that still runs with `shuttingDown`; what comes of them later answers nothing. For the time
    /// when no new ones are taken any more.
    pub(crate) fn give_up(&self) {
        let running = std::mem::take(&mut self.state.lock().running);
        for id in running {
            self.refuse(Some(id), shutting_down());
        }
    }

    /// Waits until it is closed because its client read too slowly.
    pub(crate) async fn overflowed(&self) {
        self.outbox.overflowed().await;
    }

    /// Whether it was closed because its client read too slowly.
    pub fn has_overflowed(&self) -> bool {
        self.outbox.has_overflowed()
    }

    /// Answers a message that is not accepted.
    fn refuse(&self, id: Option<RequestId>, error: RpcError) {
        self.push(ServerMessage::Response { id, result: Err(error) });
    }

    /// What the responses that open a thread have to warn of, whichever thread it is.
    pub(crate) fn standing_warnings(&self) -> Vec<Warning> {
        self.server.standing_warnings.clone()
    }

    /// Remembers a thread from which the connection must be detached when it closes.
    pub(crate) fn will_subscribe(&self, thread_id: &ThreadId) {
        self.state.lock().subscriptions.insert(thread_id.clone());
    }

    async fn request(self: &Arc<Self>, id: RequestId, request: ClientRequest) {
        if let Err(error) = self.admit(&id, &request) {
            return self.refuse(Some(id), error);
        }
        if let ClientRequest::Initialize(params) = request {
            let result = self.initialize(params).map(ClientResponse::from);
            return self.respond(&id, result);
        }
        let Ok(permit) = self.permits.clone().acquire_owned().await else { return };
        let method = request.method();
        let responder = Responder::new(self.clone(), id, method, permit);
        dispatch(self, request, responder);
    }

    /// Answers a request that could not be read. What holds for every request comes before what is wrong with this one.
    fn refuse_request(&self, id: RequestId, method: &str, error: RpcError) {
        let initializes = method == method::Initialize::NAME;
        let checked = self.check(&self.state.lock(), &id, initializes);
        self.refuse(Some(id), checked.err().unwrap_or(error));
    }

    /// Checks what holds for every request, and marks it as running.
    fn admit(&self, id: &RequestId, request: &ClientRequest) -> Result<(), RpcError> {
        let mut state = self.state.lock();
        self.check(&state, id, matches!(request, ClientRequest::Initialize(_)))?;
        state.running.insert(id.clone());
        Ok(())
    }

    fn check(&self, state: &State, id: &RequestId, initializes: bool) -> Result<(), RpcError> {
        if state.closed {
            return Err(RpcError::new(ErrorCode::InvalidRequest, "the connection is closed"));
        }
        if state.running.contains(id) {
            let message = format!("a request with the id {id} is still running");
            return Err(RpcError::new(ErrorCode::InvalidRequest, message));
        }
        match (state.handshake, initializes) {
            (Handshake::New, true) | (Handshake::Ready, false) => {}
            (_, true) => {
                return Err(RpcError::new(
                    ErrorCode::InvalidRequest,
                    "the connection is initialized already",
                ));
            }
            (Handshake::New, false) => {
                return Err(RpcError::new(ErrorCode::NotInitialized, "send `initialize` first"));
            }
            (Handshake::Answered, false) => {
                let message = "send the notification `initialized` first";
                return Err(RpcError::new(ErrorCode::NotInitialized, message));
            }
        }
        if self.server.stopping.is_cancelled() {
            return Err(shutting_down());
        }
        Ok(())
    }

    fn initialize(&self, params: InitializeParams) -> Result<InitializeResult, RpcError> {
        let opted_out = params.capabilities.opt_out_notifications;
        if opted_out.len() > OPT_OUT_NOTIFICATIONS_MAX {
            return Err(RpcError::invalid_params(format!(
                "`optOutNotifications` names {} methods; at most {OPT_OUT_NOTIFICATIONS_MAX} are taken",
                opted_out.len()
            )));
        }
        let _ = self.opted_out.set(opted_out.into_iter().collect());
        self.state.lock().handshake = Handshake::Answered;
        tracing::info!(
            connection = self.id.0, client = %params.client_info.name, version = %params.client_info.version,
            "a client connected"
        );
        Ok(InitializeResult {
            server_info: ServerInfo {
                name: "raddle".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
            },
            platform: platform(),
        })
    }

    fn initialized(self: &Arc<Self>) {
        {
            let mut state = self.state.lock();
            if state.handshake != Handshake::Answered || state.closed {
                return;
            }
            state.handshake = Handshake::Ready;
        }
        self.server.engine.hub().join(self.clone());
    }

    /// Answers a request of the server with what `read` makes of its method.
    fn answer_with(
        &self,
        id: &RequestId,
        read: impl FnOnce(&'static str) -> Result<ServerAnswer, RpcError>,
    ) -> Answered {
        let asked = match id {
            RequestId::Number(number) => {
                u64::try_from(*number).ok().and_then(|id| self.state.lock().asked.remove(&AskId(id)))
            }
            RequestId::String(_) => None,
        };
        match asked {
            Some(Asked { method, sink }) => {
                sink(read(method));
                Answered::Taken
            }
            None => {
                tracing::info!(connection = self.id.0, %id, "an answer to no open request was ignored");
                Answered::Late
            }
        }
    }

    /// Answers a running request. One that was given up has its answer.
    pub(crate) fn respond(&self, id: &RequestId, result: Result<ClientResponse, RpcError>) {
        // Not under the same lock as the push: an id may be used again as soon as its answer is read.
        let is_running = self.state.lock().running.remove(id);
        if !is_running {
            tracing::debug!(connection = self.id.0, %id, "a late result was dropped");
            return;
        }
        let response = ServerMessage::Response { id: Some(id.clone()), result };
        self.push(if message_bytes(&response) > self.server.outbox_bytes_max {
            too_large(id)
        } else {
            response
        });
    }

    fn push(&self, message: ServerMessage) {
        if self.outbox.push(message) == Pushed::Overflowed {
            self.server.dropped_connections.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(connection = self.id.0, "a client read too slowly and was disconnected");
        }
    }
}

impl Subscriber for Connection {
    fn id(&self) -> ConnectionId {
        self.id
    }

    fn is_open(&self) -> bool {
        !self.outbox.is_closed()
    }

    fn notify(&self, notification: &Arc<ServerNotification>) {
        if self.opted_out.get().is_some_and(|out| !out.is_empty() && out.contains(notification.method())) {
            return;
        }
        self.push(ServerMessage::Notification(self.server.payloads.shown(notification)));
    }

    fn ask(&self, request: ServerRequest, sink: AskSink) -> AskId {
        let ask = {
            let mut state = self.state.lock();
            state.last_ask += 1;
            let ask = AskId(state.last_ask);
            if state.closed {
                drop(state);
                sink(Err(RpcError::new(ErrorCode::ShuttingDown, "the client is gone")));
                return ask;
            }
            state.asked.insert(ask, Asked { method: request.method(), sink });
            ask
        };
        let ServerRequest::ItemToolCallRequestApproval(params) = &request;
        self.server.payloads.asked(params);
        self.push(ServerMessage::Request { id: ask_id(ask), request });
        ask
    }

    fn follow(&self, thread_id: &ThreadId) {
        self.will_subscribe(thread_id);
    }

    fn withdraw(&self, ask: AskId, reason: &str) {
        if self.state.lock().asked.remove(&ask).is_none() {
            return;
        }
        let cancelled = ServerRequestCancelledNotification { id: ask_id(ask), reason: reason.to_owned() };
        self.notify(&Arc::new(ServerNotification::ServerRequestCancelled(cancelled)));
    }
}

/// What is answered instead of a result that would alone be more than may wait: an error costs the client this one request,
/// the result would cost it the connection.
fn too_large(id: &RequestId) -> ServerMessage {
    let error = RpcError::new(ErrorCode::Internal, "the result is too large; ask for less with `limit`");
    ServerMessage::Response { id: Some(id.clone()), result: Err(error.with_reason("tooLarge")) }
}

fn shutting_down() -> RpcError {
    RpcError::new(ErrorCode::ShuttingDown, "the server is shutting down")
}

fn ask_id(ask: AskId) -> RequestId {
    RequestId::Number(i64::try_from(ask.0).unwrap_or(i64::MAX))
}

fn platform() -> Platform {
    let os = match std::env::consts::OS {
        "macos" => "darwin",
        "windows" => "win32",
        other => other,
    };
    let arch = match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => other,
    };
    let home_dir = std::env::home_dir().map(|home| home.display().to_string()).unwrap_or_default();
    Platform { os: os.to_owned(), arch: arch.to_owned(), home_dir }
}
