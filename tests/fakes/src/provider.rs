//! The provider that a test talks to.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::history::check_history;
use crate::reply::Reply;
use crate::request::Request;
use crate::script::{Answer, Service, bad_request, listen, serve};
use crate::wait::{fail, runtime, within};

/// The largest number of replies that may wait, and of requests that are kept. A test that needs more uses
/// [`Provider::set_default`] or a provider of its own.
const KEPT: usize = 10_000;

/// The paths that models are asked on, whatever stands before them: OpenAI's two, Anthropic's, Gemini's.
const MODEL_PATHS: [&str; 4] = ["/chat/completions", "/responses", "/messages", ":streamGenerateContent"];

/// How a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All of it was sent.
    Complete,
    /// The script cut or reset the connection.
    Cut,
    /// The client went away first.
    ClientLeft,
}

type Responder = Arc<dyn Fn(&Value) -> Reply + Send + Sync>;
type Once = Box<dyn FnOnce(&Value) -> Reply + Send>;

enum Queued {
    Reply(Reply),
    Computed(Once),
}

struct Record {
    request: Arc<Request>,
    ending: watch::Sender<Option<Ending>>,
}

struct State {
    queue: VecDeque<Queued>,
    default: Option<Responder>,
    models: Reply,
    records: Vec<Record>,
    lists: Vec<Arc<Request>>,
    faults: Vec<String>,
}

struct Shared {
    state: Mutex<State>,
    asked: watch::Sender<usize>,
    listed: watch::Sender<usize>,
}

/// A fake model provider on a free port of the loopback address.
///
/// It answers `GET …/models`, and `POST` on the paths of OpenAI (`…/chat/completions`, `…/responses`),
/// Anthropic (`…/messages`) and Gemini (`…:streamGenerateContent`). Each `POST` takes the next queued reply,
/// else asks the default responder. A request without either, one on an unknown path, and a chat completion
/// whose history [`check_history`] refuses, get an HTTP error and are *faults*: the test fails when the
/// provider is dropped, unless it has called [`take_faults`](Self::take_faults).
///
/// Dropping the provider stops it and closes its connections.
pub struct Provider {
    shared: Arc<Shared>,
    address: SocketAddr,
    server: JoinHandle<()>,
}

impl Provider {
    /// Starts a provider with nothing queued.
    ///
    /// # Panics
    /// If no port can be had.
    pub async fn start() -> Self {
        // Binding does not wait for anything; async leaves room for a fake that does.
        Self::start_blocking()
    }

    /// The same for a test that is not async.
    ///
    /// # Panics
    /// If no port can be had.
    #[must_use]
    pub fn start_blocking() -> Self {
        let bound = {
            let _inside = runtime().enter();
            listen(0)
        };
        let (listener, address) = match bound {
            Ok(bound) => bound,
            Err(error) => fail(&format!("cannot listen on a port of the loopback address: {error}")),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                queue: VecDeque::new(),
                default: None,
                models: Reply::models(&["fake-model"]),
                records: Vec::new(),
                lists: Vec::new(),
                faults: Vec::new(),
            }),
            asked: watch::Sender::new(0),
            listed: watch::Sender::new(0),
        });
        let server = runtime().spawn(serve(listener, Arc::clone(&shared)));
        Self { shared, address, server }
    }

    /// Stops the provider and waits until its port is closed, for a test of a provider that is gone.
    pub async fn stop(mut self) {
        self.server.abort();
        // The only outcome is that it was aborted.
        let _ = (&mut self.server).await;
    }

    /// The base URL of the OpenAI-compatible API, `http://127.0.0.1:PORT/v1`.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("{}/v1", self.origin())
    }

    /// The address without a path, for providers whose base URL has another one.
    #[must_use]
    pub fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Queues the reply to a coming request. Replies are taken in the order queued, in the order in which
    /// requests arrive whole.
    pub fn push(&self, reply: Reply) {
        self.enqueue(Queued::Reply(reply));
    }

    /// Queues a reply that depends on the body of the request that takes it.
    pub fn push_with(&self, responder: impl FnOnce(&Value) -> Reply + Send + 'static) {
        self.enqueue(Queued::Computed(Box::new(responder)));
    }

    fn enqueue(&self, queued: Queued) {
        let mut state = self.shared.state.lock();
        if state.queue.len() == KEPT {
            drop(state);
            fail(&format!("{KEPT} replies are queued already; use set_default for so many"));
        }
        state.queue.push_back(queued);
    }

    /// Answers every request for which nothing is queued.
    pub fn set_default(&self, responder: impl Fn(&Value) -> Reply + Send + Sync + 'static) {
        self.shared.state.lock().default = Some(Arc::new(responder));
    }

    /// Answers `GET …/models` from now on; before, the list holds `fake-model`.
    pub fn set_models(&self, reply: Reply) {
        self.shared.state.lock().models = reply;
    }

    /// How many queued replies no request has taken yet.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.shared.state.lock().queue.len()
    }

    /// All `POST` requests so far, in the order of their arrival, refused ones too.
    #[must_use]
    pub fn requests(&self) -> Vec<Arc<Request>> {
        self.shared.state.lock().records.iter().map(|record| Arc::clone(&record.request)).collect()
    }

    /// Waits for the request of that number, counted from 0.
    ///
    /// # Panics
    /// If it does not come within half a minute.
    pub async fn request(&self, number: usize) -> Arc<Request> {
        self.arrival(number).await;
        Arc::clone(&self.shared.state.lock().records[number].request)
    }

    /// Waits for the `GET …/models` request of that number, counted from 0 apart from the others.
    ///
    /// # Panics
    /// If it does not come within half a minute.
    pub async fn list_request(&self, number: usize) -> Arc<Request> {
        let mut listed = self.shared.listed.subscribe();
        within(format!("models request {number} to arrive"), async move {
            let _ = listed.wait_for(|count| *count > number).await;
        })
        .await;
        Arc::clone(&self.shared.state.lock().lists[number])
    }

    /// Waits until the reply to the request of that number has ended, and says how.
    ///
    /// # Panics
    /// If that does not happen within half a minute.
    pub async fn ended(&self, number: usize) -> Ending {
        self.arrival(number).await;
        let mut ending = self.shared.state.lock().records[number].ending.subscribe();
        let ended = within(format!("the reply to request {number} to end"), async move {
            ending.wait_for(Option::is_some).await.ok().and_then(|ending| *ending)
        })
        .await;
        ended.unwrap_or_else(|| fail(&format!("request {number} was dropped before its reply ended")))
    }

    /// Waits until the client of the request of that number has gone away before the end of the reply.
    ///
    /// # Panics
    /// If the reply ends in another way, or not at all within half a minute.
    pub async fn disconnected(&self, number: usize) {
        let ending = self.ended(number).await;
        if ending != Ending::ClientLeft {
            fail(&format!(
                "the client of request {number} should have left, but the reply ended: {ending:?}"
            ));
        }
    }

    async fn arrival(&self, number: usize) {
        let mut asked = self.shared.asked.subscribe();
        let came = *asked.borrow();
        within(format!("request {number} to arrive ({came} had come)"), async move {
            let _ = asked.wait_for(|count| *count > number).await;
        })
        .await;
    }

    /// Takes the faults found so far, so that dropping the provider does not fail the test for them.
    #[must_use]
    pub fn take_faults(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.state.lock().faults)
    }

    /// Fails the test if any request was at fault. Dropping the provider does the same.
    ///
    /// # Panics
    /// With the list of faults, if there are any.
    #[track_caller]
    pub fn assert_well_formed(&self) {
        let faults = self.take_faults();
        if !faults.is_empty() {
            fail(&format!("{} bad request(s):\n  {}", faults.len(), faults.join("\n  ")));
        }
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.server.abort();
        // A second panic while the first unwinds would abort the whole test run.
        if !std::thread::panicking() {
            self.assert_well_formed();
        }
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Service for Shared {
    type Ticket = Option<usize>;

    fn answer(&self, request: Request) -> (Option<usize>, Answer) {
        let path = request.path.split('?').next().unwrap_or_default();
        if request.method == "GET" && path.ends_with("/models") {
            return (None, Answer::Reply(self.list_models(request)));
        }
        if request.method != "POST" || !MODEL_PATHS.iter().any(|known| path.ends_with(known)) {
            let problem = format!("{} {} is nothing that this provider serves", request.method, request.path);
            let reply = Reply::error(404, "not_found", &problem);
            self.fault(problem);
            return (None, Answer::Reply(reply));
        }
        let (number, request, next) = self.record(request);
        let reply = next.and_then(|next| respond(next, &request.body)).unwrap_or_else(|problem| {
            let problem = format!("request {number}: {problem}");
            let reply = bad_request(&problem);
            self.fault(problem);
            reply
        });
        (Some(number), Answer::Reply(reply))
    }

    fn ended(&self, ticket: Option<usize>, ending: Ending) {
        if let Some(number) = ticket {
            self.state.lock().records[number].ending.send_replace(Some(ending));
        }
    }

    fn fault(&self, fault: String) {
        self.state.lock().faults.push(fault);
    }
}

enum Next {
    Reply(Reply),
    Computed(Once),
    Default(Responder),
}

/// Runs outside the provider's lock, since a responder may look at the provider; and a failed assertion in one
/// must fail the test, not just cut the connection.
fn respond(next: Next, body: &Value) -> Result<Reply, String> {
    let reply = catch_unwind(AssertUnwindSafe(|| match next {
        Next::Reply(reply) => reply,
        Next::Computed(once) => once(body),
        Next::Default(default) => default(body),
    }));
    reply.map_err(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
        format!("the responder panicked: {}", message.unwrap_or("no message"))
    })
}

impl Shared {
    fn list_models(&self, request: Request) -> Reply {
        let mut state = self.state.lock();
        let reply = state.models.clone();
        if state.lists.len() < KEPT {
            state.lists.push(Arc::new(request));
        }
        self.listed.send_replace(state.lists.len());
        reply
    }

    /// Records a request, and takes what answers it in the same step, so that numbers and replies agree.
    fn record(&self, request: Request) -> (usize, Arc<Request>, Result<Next, String>) {
        let request = Arc::new(request);
        let mut state = self.state.lock();
        let number = state.records.len();
        if number == KEPT {
            drop(state);
            fail(&format!("{KEPT} requests came; a test of so many needs several providers or a LoadServer"));
        }
        let history =
            if request.path.contains("/chat/completions") { check_chat(&request.body) } else { Ok(()) };
        // A refused request takes no reply: the test wrote that reply for a request that makes sense.
        let next = history.and_then(|()| match state.queue.pop_front() {
            Some(Queued::Reply(reply)) => Ok(Next::Reply(reply)),
            Some(Queued::Computed(once)) => Ok(Next::Computed(once)),
            None => match &state.default {
                Some(default) => Ok(Next::Default(Arc::clone(default))),
                None => Err("no reply is queued, and there is no default".to_owned()),
            },
        });
        state.records.push(Record { request: Arc::clone(&request), ending: watch::Sender::new(None) });
        self.asked.send_replace(number + 1);
        (number, request, next)
    }
}

/// Checks a chat completion request as far as a provider would before it thinks.
pub(crate) fn check_chat(body: &Value) -> Result<(), String> {
    if body["model"].as_str().is_none_or(str::is_empty) {
        return Err("the request names no model".to_owned());
    }
    match body["messages"].as_array() {
        Some(messages) if !messages.is_empty() => check_history(messages),
        _ => Err("the request has no messages".to_owned()),
    }
}
