//! A connection that writes everything down.
//!
//! Neighbours: resolve, view, wait.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;
use raddle::protocol::approval::{Decision, RequestApprovalParams, RequestApprovalResult};
use raddle::protocol::limits::RESPONSE_BYTES_MAX;
use raddle::protocol::methods::{
    ClientNotification, ClientRequest, ClientResponse, Method, ServerAnswer, ServerNotification,
    ServerRequest, method,
};
use raddle::protocol::payload::json_len;
use raddle::protocol::rpc::{ClientMessage, ServerMessage};
use raddle::protocol::server::{ClientCapabilities, ClientInfo, InitializeParams, InitializedParams};
use raddle::protocol::thread::{ThreadReadParams, ThreadReadResult, ThreadResumeResult, ThreadStatus};
use raddle::protocol::turn::{TurnInterruptParams, TurnStartParams, TurnSteerParams};
use raddle::protocol::{ErrorCode, RequestId, RpcError, ThreadId, Turn, TurnId, TurnStatus};
use raddle::server::Connection;
use tokio::sync::watch;

use crate::resolve::Payloads;
use crate::view::View;
use crate::wait::within;

/// A client at the level of typed messages. It records all that the server sends, in order, and folds it.
///
/// Cloning gives a second handle on the same client. Dropping a handle does nothing; [`close`](Self::close) ends the
/// connection.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    connection: Arc<Connection>,
    payloads: Payloads,
    log: Mutex<Log>,
    changed: watch::Sender<u64>,
    reading: watch::Sender<bool>,
    last_id: AtomicI64,
}

#[derive(Default)]
struct Log {
    messages: Vec<ServerMessage>,
    view: View,
    sent: HashMap<RequestId, Sent>,
    asks: Vec<Ask>,
    answering: Option<Answering>,
    /// The pump has read the last message.
    ended: bool,
    /// This side closed the connection, so answers may be missing.
    closed: bool,
    /// It has opted out of notifications, so its fold is not whole.
    partial: bool,
}

type Answering = Arc<dyn Fn(&RequestApprovalParams) -> Result<RequestApprovalResult, RpcError> + Send + Sync>;

struct Sent {
    method: &'static str,
    newest_page: bool,
    /// The thread whose subscription it ends.
    leaves: Option<ThreadId>,
    /// How many answers must come: as many as requests were sent with this id.
    wanted: usize,
    answers: Vec<Result<ClientResponse, RpcError>>,
}

/// A question of the server to this client.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The server's id.
    pub id: RequestId,
    /// What it asks.
    pub params: RequestApprovalParams,
}

/// The connection ended before the answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl Client {
    /// A client on a connection that has had no handshake.
    pub(crate) fn raw(name: &str, connection: Arc<Connection>, payloads: Payloads) -> Self {
        let inner = Arc::new(Inner {
            name: name.to_owned(),
            connection,
            payloads,
            log: Mutex::new(Log::default()),
            changed: watch::Sender::new(0),
            reading: watch::Sender::new(true),
            last_id: AtomicI64::new(0),
        });
        tokio::spawn(pump(inner.clone()));
        Self { inner }
    }

    /// The params of an `initialize` of this client.
    pub fn greeting(&self, opt_out: &[&str]) -> InitializeParams {
        let opt_out_notifications = opt_out.iter().map(|name| (*name).to_owned()).collect();
        InitializeParams {
            client_info: ClientInfo { name: self.inner.name.clone(), version: "1.0".to_owned() },
            capabilities: ClientCapabilities { opt_out_notifications },
        }
    }

    /// Completes the handshake.
    pub async fn initialize(&self, opt_out: &[&str]) {
        self.inner.log.lock().partial = !opt_out.is_empty();
        self.request::<method::Initialize>(self.greeting(opt_out)).await.unwrap();
        self.initialized().await;
    }

    /// Sends the notification that ends the handshake.
    pub async fn initialized(&self) {
        let ready = ClientNotification::Initialized(InitializedParams {});
        self.inner.connection.receive(ClientMessage::Notification(ready)).await;
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// The server's.
    ///
    /// # Panics
    /// When the connection ends first.
    pub async fn request<M: Method>(&self, params: M::Params) -> Result<M::Result, RpcError> {
        let id = self.send(M::request(params)).await;
        self.answer_to::<M>(&id).await
    }

    /// [`request`](Self::request) for a connection that may end.
    ///
    /// # Errors
    /// When it ended first.
    pub async fn try_request<M: Method>(
        &self,
        params: M::Params,
    ) -> Result<Result<M::Result, RpcError>, Closed> {
        let id = self.send(M::request(params)).await;
        self.try_answer_to::<M>(&id).await
    }

    /// Sends a request under the next number and returns that. The server has accepted or refused it by then; its answer
    /// may still be on the way.
    pub async fn send(&self, request: ClientRequest) -> RequestId {
        let id = RequestId::Number(self.inner.last_id.fetch_add(1, Ordering::Relaxed) + 1);
        self.send_as(id.clone(), request).await;
        id
    }

    /// Sends a request under a given id.
    pub async fn send_as(&self, id: RequestId, request: ClientRequest) {
        let newest_page = match &request {
            ClientRequest::ThreadResume(params) => params.cursor.is_none(),
            _ => false,
        };
        let leaves = match &request {
            ClientRequest::ThreadUnsubscribe(params) => Some(params.thread_id.clone()),
            _ => None,
        };
        {
            let mut log = self.inner.log.lock();
            let ended = log.ended;
            let sent = log.sent.entry(id.clone()).or_insert(Sent {
                method: request.method(),
                newest_page,
                leaves,
                wanted: 0,
                answers: Vec::new(),
            });
            // What is said to a connection that has ended is not accepted, and gets no answer.
            sent.wanted += usize::from(!ended);
        }
        self.inner.connection.receive(ClientMessage::Request { id, request }).await;
    }

    /// Waits for the answer to a request of [`send`](Self::send).
    ///
    /// # Errors
    /// The server's.
    ///
    /// # Panics
    /// When the connection ends first.
    pub async fn answer_to<M: Method>(&self, id: &RequestId) -> Result<M::Result, RpcError> {
        match self.try_answer_to::<M>(id).await {
            Ok(answer) => answer,
            Err(Closed) => {
                panic!("{}: the connection ended before the answer to {}", self.inner.name, M::NAME)
            }
        }
    }

    /// [`answer_to`](Self::answer_to) for a connection that may end.
    ///
    /// # Errors
    /// When it ended first.
    pub async fn try_answer_to<M: Method>(
        &self,
        id: &RequestId,
    ) -> Result<Result<M::Result, RpcError>, Closed> {
        let answer = self
            .until(&format!("the answer to {}", M::NAME), |log| {
                let answer = log.sent.get(id).and_then(|sent| sent.answers.first().cloned());
                match answer {
                    Some(answer) => Some(Ok(answer)),
                    None => log.ended.then_some(Err(Closed)),
                }
            })
            .await?;
        Ok(answer.map(|response| M::result(response).expect("an answer of another method")))
    }

    /// All answers that came to the requests with this id.
    pub async fn answers(&self, id: &RequestId, count: usize) -> Vec<Result<ClientResponse, RpcError>> {
        self.until(&format!("{count} answers to request {id}"), |log| {
            log.sent.get(id).filter(|sent| sent.answers.len() >= count).map(|sent| sent.answers.clone())
        })
        .await
    }

    /// The number of messages so far; see [`seen_since`](Self::seen_since).
    pub fn mark(&self) -> usize {
        self.inner.log.lock().messages.len()
    }

    /// Waits for a notification, past ones included.
    pub async fn seen(
        &self,
        what: &str,
        is_it: impl Fn(&ServerNotification) -> bool,
    ) -> Arc<ServerNotification> {
        self.seen_since(0, what, is_it).await
    }

    /// Waits for a notification that came after a [`mark`](Self::mark).
    pub async fn seen_since(
        &self,
        mark: usize,
        what: &str,
        is_it: impl Fn(&ServerNotification) -> bool,
    ) -> Arc<ServerNotification> {
        self.until(what, |log| {
            log.messages[mark..].iter().find_map(|message| match message {
                ServerMessage::Notification(notification) if is_it(notification) => {
                    Some(notification.clone())
                }
                _ => None,
            })
        })
        .await
    }

    /// All notifications so far that are about one thing or another.
    pub fn notifications(&self, is_it: impl Fn(&ServerNotification) -> bool) -> Vec<Arc<ServerNotification>> {
        let log = self.inner.log.lock();
        let notifications = log.messages.iter().filter_map(|message| match message {
            ServerMessage::Notification(notification) if is_it(notification) => Some(notification.clone()),
            _ => None,
        });
        notifications.collect()
    }

    /// The wire names of all notifications so far, in order; deltas that follow one another are one.
    pub fn methods(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.notifications(|_| true).iter().map(|n| n.method()).collect();
        names.dedup_by(|next, last| next == last && next.to_lowercase().ends_with("delta"));
        names
    }

    /// All messages so far.
    pub fn messages(&self) -> Vec<ServerMessage> {
        self.inner.log.lock().messages.clone()
    }

    /// Looks at what has been folded so far.
    pub fn view<T>(&self, look: impl FnOnce(&View) -> T) -> T {
        look(&self.inner.log.lock().view)
    }

    /// Waits until what has been folded shows something.
    pub async fn view_until<T>(&self, what: &str, mut look: impl FnMut(&View) -> Option<T>) -> T {
        self.until(what, |log| look(&log.view)).await
    }

    /// Waits until a turn looks like this, and returns it as it is then.
    pub async fn turn_until(&self, id: &TurnId, what: &str, is_it: impl Fn(&Turn) -> bool) -> Turn {
        self.view_until(what, |view| view.turn(id).filter(|turn| is_it(turn)).cloned()).await
    }

    /// Waits until a turn has ended and everybody was told, and returns it.
    pub async fn end(&self, id: &TurnId) -> Turn {
        self.view_until(&format!("turn {id} to end"), |view| {
            view.told(id)?;
            view.turn(id).filter(|turn| turn.summary.status != TurnStatus::InProgress).cloned()
        })
        .await
    }

    /// Waits until the thread is idle, as everybody is told it.
    pub async fn idle(&self, thread: &ThreadId) {
        self.view_until("the thread to be idle", |view| {
            (view.status(thread) == Some(&ThreadStatus::Idle)).then_some(())
        })
        .await;
    }

    /// Starts a turn and returns its id.
    pub async fn start(&self, thread: &ThreadId, text: &str) -> TurnId {
        let params = TurnStartParams::new(thread.clone(), text);
        self.request::<method::TurnStart>(params).await.unwrap().turn_id.unwrap()
    }

    /// Starts a turn that is to be refused and returns why.
    pub async fn start_refused(&self, thread: &ThreadId, text: &str) -> RpcError {
        let params = TurnStartParams::new(thread.clone(), text);
        self.request::<method::TurnStart>(params).await.unwrap_err()
    }

    /// Starts a turn and waits for its end.
    pub async fn run(&self, thread: &ThreadId, text: &str) -> Turn {
        let id = self.start(thread, text).await;
        self.end(&id).await
    }

    /// Steers a turn.
    ///
    /// # Errors
    /// The server's.
    pub async fn steer(&self, thread: &ThreadId, turn: &TurnId, text: &str) -> Result<(), RpcError> {
        let params = TurnSteerParams {
            thread_id: thread.clone(),
            expected_turn_id: turn.clone(),
            text: text.to_owned(),
            images: Vec::new(),
            client_message_id: None,
        };
        self.request::<method::TurnSteer>(params).await.map(|steered| assert_eq!(&steered.turn_id, turn))
    }

    /// Interrupts whatever runs, or the named turn.
    ///
    /// # Errors
    /// The server's.
    pub async fn interrupt(&self, thread: &ThreadId, turn: Option<&TurnId>) -> Result<(), RpcError> {
        let params = TurnInterruptParams { thread_id: thread.clone(), turn_id: turn.cloned() };
        self.request::<method::TurnInterrupt>(params).await.map(|_| ())
    }

    /// Reads the newest page of a thread.
    pub async fn read(&self, thread: &ThreadId) -> ThreadReadResult {
        self.request::<method::ThreadRead>(ThreadReadParams::newest(thread.clone())).await.unwrap()
    }

    /// Reads all of a thread, in pages of at most `limit` turns, with all large values.
    pub async fn read_all(&self, thread: &ThreadId, limit: u32) -> Vec<Turn> {
        let mut turns = self.read_all_as_sent(thread, limit).await;
        for turn in &mut turns {
            *turn = self.resolve(turn.clone()).await;
        }
        turns
    }

    /// [`read_all`](Self::read_all) with references where the server has put them.
    pub async fn read_all_as_sent(&self, thread: &ThreadId, limit: u32) -> Vec<Turn> {
        let mut turns = Vec::new();
        let mut params = ThreadReadParams { thread_id: thread.clone(), cursor: None, limit: Some(limit) };
        loop {
            let mut page = self.request::<method::ThreadRead>(params.clone()).await.unwrap();
            assert!(page.turns.len() <= limit as usize, "a page of more turns than its limit");
            assert!(json_len(&page) <= RESPONSE_BYTES_MAX, "a page of {} bytes (P7)", json_len(&page));
            page.turns.append(&mut turns);
            turns = page.turns;
            match page.next_cursor {
                Some(cursor) => params.cursor = Some(cursor),
                None => return turns,
            }
        }
    }

    /// Resumes a thread with its newest page.
    pub async fn resume(&self, thread: &ThreadId) -> ThreadResumeResult {
        let params = ThreadReadParams::newest(thread.clone());
        let resumed = self.request::<method::ThreadResume>(params).await.unwrap();
        assert!(json_len(&resumed) <= RESPONSE_BYTES_MAX, "a resume of {} bytes (P7)", json_len(&resumed));
        resumed
    }

    /// Waits for the question of that number, counted from 0.
    pub async fn asked(&self, number: usize) -> Ask {
        self.until(&format!("question {number} of the server"), |log| log.asks.get(number).cloned()).await
    }

    /// The questions so far.
    pub fn asks(&self) -> Vec<Ask> {
        self.inner.log.lock().asks.clone()
    }

    /// Decides on a question.
    pub async fn decide(&self, ask: &Ask, decision: Decision) {
        self.respond(&ask.id, Ok(RequestApprovalResult::new(decision))).await;
    }

    /// Answers a question.
    pub async fn respond(&self, id: &RequestId, answer: Result<RequestApprovalResult, RpcError>) {
        let answer = answer.map(ServerAnswer::from);
        self.inner.connection.receive(ClientMessage::Answer { id: id.clone(), answer }).await;
    }

    /// Answers all questions from now on like this.
    pub fn answer_with(
        &self,
        answer: impl Fn(&RequestApprovalParams) -> Result<RequestApprovalResult, RpcError> + Send + Sync + 'static,
    ) {
        self.inner.log.lock().answering = Some(Arc::new(answer));
    }

    /// Answers all questions from now on as a client without a handler does.
    pub fn answer_nothing(&self) {
        self.answer_with(|_| {
            Err(RpcError::new(ErrorCode::MethodNotFound, "this client answers no requests"))
        });
    }

    /// Reads nothing more until [`read_on`](Self::read_on).
    pub fn stop_reading(&self) {
        self.inner.reading.send_replace(false);
    }

    /// Reads again.
    pub fn read_on(&self) {
        self.inner.reading.send_replace(true);
    }

    /// The connection itself.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.inner.connection
    }

    /// Ends the connection and waits until what was sent by then is read.
    pub async fn close(&self) {
        self.inner.log.lock().closed = true;
        self.inner.connection.close();
        self.inner.reading.send_replace(true);
        self.ended().await;
    }

    /// Waits until the connection is at its end, and everything was read.
    pub async fn ended(&self) {
        self.until("the connection to end", |log| log.ended.then_some(())).await;
    }

    /// Whether the connection is at its end.
    pub fn is_ended(&self) -> bool {
        self.inner.log.lock().ended
    }

    /// What was wrong with what this client was sent; checked by [`World::finish`](crate::World::finish).
    pub(crate) fn faults(&self) -> Vec<String> {
        let log = self.inner.log.lock();
        let mut faults = if log.partial { Vec::new() } else { log.view.faults().to_vec() };
        for (id, sent) in &log.sent {
            let came = sent.answers.len();
            // A connection that is gone takes no answers, so some may be missing then; none may ever be too many.
            if came > sent.wanted
                || came < sent.wanted && !log.closed && !self.inner.connection.has_overflowed()
            {
                faults.push(format!("{} requests {id} ({}) got {came} answers", sent.wanted, sent.method));
            }
        }
        faults
    }

    /// Threads and turns that this client has folded.
    pub(crate) fn folded(&self) -> Vec<(ThreadId, Vec<Turn>)> {
        let log = self.inner.log.lock();
        if log.partial {
            return Vec::new();
        }
        log.view.threads().map(|(id, turns)| (id.clone(), turns.to_vec())).collect()
    }

    /// Reads the items of snapshots that came as references, and applies what came after them.
    pub(crate) async fn settle(&self) {
        let referenced = self.inner.log.lock().view.referenced();
        for (turn_id, reference) in referenced {
            let items = self.referenced_items(&reference).await;
            self.inner.log.lock().view.settle(&turn_id, items);
        }
        self.inner.changed.send_modify(|count| *count += 1);
    }

    /// What the clients of the world have read of large values.
    pub(crate) fn payloads(&self) -> &Payloads {
        &self.inner.payloads
    }

    /// Its name, for messages.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The last hundred messages, a line each.
    pub fn transcript(&self) -> String {
        let log = self.inner.log.lock();
        let left_out = log.messages.len().saturating_sub(100);
        let lines = log.messages.iter().skip(left_out).map(|message| {
            let line = format!("{message:?}");
            line.chars().take(600).collect::<String>()
        });
        format!("what {} has seen:\n  {}", self.inner.name, lines.collect::<Vec<_>>().join("\n  "))
    }

    /// Waits until the log shows something.
    async fn until<T>(&self, what: &str, mut look: impl FnMut(&Log) -> Option<T>) -> T {
        let mut changed = self.inner.changed.subscribe();
        let wait = async {
            loop {
                changed.borrow_and_update();
                {
                    let log = self.inner.log.lock();
                    if let Some(found) = look(&log) {
                        return Some(found);
                    }
                    if log.ended {
                        return None;
                    }
                }
                let _ = changed.changed().await;
            }
        };
        match within(what, || self.transcript(), wait).await {
            Some(found) => found,
            None => panic!("waited for {what}, and the connection ended\n{}", self.transcript()),
        }
    }
}

/// Reads what the connection sends and writes it down.
async fn pump(inner: Arc<Inner>) {
    let mut reading = inner.reading.subscribe();
    loop {
        // A closed channel cannot be: `inner` holds the sender.
        let _ = reading.wait_for(|reading| *reading).await;
        let message = tokio::select! {
            biased;
            _ = reading.wait_for(|reading| !*reading) => continue,
            message = inner.connection.next() => message,
        };
        let Some(message) = message else { break };
        if let Some(answer) = inner.write_down(message) {
            inner.connection.receive(answer).await;
        }
        inner.changed.send_modify(|count| *count += 1);
    }
    inner.connection.close();
    inner.log.lock().ended = true;
    inner.changed.send_modify(|count| *count += 1);
}

impl Inner {
    /// Records and folds a message; returns an answer to it if the test has said how to answer.
    fn write_down(&self, message: ServerMessage) -> Option<ClientMessage> {
        let mut log = self.log.lock();
        let mut answer = None;
        match &message {
            ServerMessage::Response { id, result } => {
                let id = id.clone().unwrap_or(RequestId::String("null".to_owned()));
                let sent = log.sent.entry(id).or_insert(Sent {
                    method: "nothing",
                    newest_page: false,
                    leaves: None,
                    wanted: 0,
                    answers: Vec::new(),
                });
                sent.answers.push(result.clone());
                let newest = sent.newest_page;
                if let (Ok(_), Some(thread)) = (result, sent.leaves.clone()) {
                    log.view.forget(&thread);
                }
                if let Ok(ClientResponse::ThreadResume(resumed)) = result {
                    log.view.install(resumed, newest);
                }
            }
            ServerMessage::Notification(notification) => log.view.take(notification),
            ServerMessage::Request { id, request: ServerRequest::ItemToolCallRequestApproval(params) } => {
                log.asks.push(Ask { id: id.clone(), params: params.clone() });
                if let Some(answering) = log.answering.clone() {
                    let result = answering(params).map(ServerAnswer::from);
                    answer = Some(ClientMessage::Answer { id: id.clone(), answer: result });
                }
            }
        }
        log.messages.push(message);
        answer
    }
}
