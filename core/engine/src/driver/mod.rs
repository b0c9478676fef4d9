//! The driver: one task a loaded thread, one inbox.
//!
//! It feeds the turn machine with all that happens and does what the machine wants, in the pipeline's order: commit,
//! then answer and fan out, then act. It decides nothing about a turn itself.
//!
//! Neighbours: clock, error, prompt, shared, subscriber, thread, turn.

mod admission;
mod approvals;
mod commit;
mod context;
mod mending;
mod model;
mod replies;
mod requests;
mod sends;
mod tools;

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use raddle_protocol::event::{InputQueued, LoggedItem, ThreadArchived};
use raddle_protocol::methods::ServerNotification;
use raddle_protocol::server::ErrorNotification;
use raddle_protocol::thread::{ThreadSettings, ThreadStatus, ThreadStatusNotification};
use raddle_protocol::turn::Queue;
use raddle_protocol::{EventBody, Recorded, ThreadId, TokenUsage, Turn, TurnId};
use raddle_store::{Lease, Sent};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::error::Error;
use crate::shared::Shared;
use crate::subscriber::{Answer, Subscriber};
use crate::thread::{Glance, INBOX_MESSAGES_MAX, Message, ThreadHandle};
use crate::turn::{Command, Input, Machine, Pipeline, Step, Token, recover};

use admission::{Admission, Waiting};
use approvals::Approvals;
use commit::CommitFuture;
use context::{KEPT_HISTORY_BYTES_MAX, TurnContext};
use model::ModelCall;
use replies::Pending;
use tools::ToolRunner;

/// Events of a model that are taken at once when they are ready at once, before anything is committed.
const MODEL_EVENTS_AT_ONCE: usize = 512;

/// A branch as its thread was loaded.
pub(crate) struct Loaded {
    pub(crate) lease: Lease,
    pub(crate) settings: ThreadSettings,
    pub(crate) head: Option<TurnId>,
    pub(crate) depth: u32,
    pub(crate) usage: TokenUsage,
    /// Inputs that wait for a turn of their own.
    pub(crate) queue: Vec<InputQueued>,
    /// The newest sends with a key.
    pub(crate) sends: Vec<Sent>,
}

impl Loaded {
    /// A thread that was just created.
    pub(crate) fn empty(lease: Lease, settings: ThreadSettings) -> Self {
        let usage = TokenUsage::default();
        Self { lease, settings, head: None, depth: 0, usage, queue: Vec::new(), sends: Vec::new() }
    }
}

/// Owns the thread, closes what a crash left open in it, and says where it stands.
pub(crate) async fn load(shared: &Shared, id: &ThreadId) -> Result<Loaded, Error> {
    let lease = shared.store.acquire(id).await?;
    let loaded = load_owned(shared, id, lease.clone()).await;
    if loaded.is_err()
        && let Err(error) = shared.store.release(&lease).await
    {
        // Others would find the thread in use for as long as this process lives.
        tracing::warn!(thread = %id, %error, "the ownership of a thread that cannot be loaded was not given back");
    }
    loaded
}

async fn load_owned(shared: &Shared, id: &ThreadId, lease: Lease) -> Result<Loaded, Error> {
    let row = shared.store.thread(id).await?;
    if row.archived {
        return Err(Error::Archived(id.clone()));
    }
    let head = shared.store.head_turn(id).await?;
    let mut usage = TokenUsage::default();
    if let Some(turn) = &head {
        usage = totals(shared, id, &turn.events).await?;
        let closing = recover(&turn.events, usage);
        if !closing.is_empty() {
            tracing::info!(thread = %id, turn = %turn.id, "closing a turn that was cut off");
            shared.store.append(&lease, closing).await?;
        }
    }
    let depth = head.as_ref().map_or(0, |turn| turn.depth);
    let queue = shared.store.queue(id).await?;
    let sends = shared.store.sends(id).await?;
    let head = head.map(|turn| turn.id);
    Ok(Loaded { lease, settings: row.settings, head, depth, usage, queue, sends })
}

/// The branch's totals as the events of its newest turn tell them, or those of the turn before where that one was cut
/// off before it counted anything.
async fn totals(shared: &Shared, id: &ThreadId, newest: &[Recorded]) -> Result<TokenUsage, Error> {
    let told = |events: &[Recorded]| {
        events.iter().rev().find_map(|recorded| match &recorded.event.body {
            EventBody::TurnCompleted(ended) => Some(ended.thread_usage),
            EventBody::TokenUsageUpdated(usage) => Some(*usage),
            _ => None,
        })
    };
    let parent = |events: &[Recorded]| match events.first().map(|recorded| &recorded.event.body) {
        Some(EventBody::TurnStarted(started)) => started.parent.clone(),
        _ => None,
    };
    let (mut usage, mut before) = (told(newest), parent(newest));
    while let (None, Some(turn_id)) = (usage, before.take()) {
        if let Some(turn) = shared.store.turn(id, &turn_id).await? {
            (usage, before) = (told(&turn.events), parent(&turn.events));
        }
    }
    Ok(usage.unwrap_or_default())
}

/// Where a thread's task lives.
struct Place {
    id: ThreadId,
    cwd: std::path::PathBuf,
    glance: Arc<Mutex<Glance>>,
    inbox: mpsc::Receiver<Message>,
    own_inbox: mpsc::WeakSender<Message>,
}

/// A turn that runs, as far as it is committed.
struct Running {
    turn: Turn,
    /// Its finished items, for the next request to the model.
    items: Vec<LoggedItem>,
}

/// How long inputs that were queued before a load wait for the request that loaded the thread to be answered.
const QUEUE_HELD_FOR: Duration = Duration::from_secs(1);

/// One loaded thread.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    id: ThreadId,
    cwd: std::path::PathBuf,
    glance: Arc<Mutex<Glance>>,
    inbox: mpsc::Receiver<Message>,
    /// For answers that come back from connections.
    own_inbox: mpsc::WeakSender<Message>,

    lease: Lease,
    settings: ThreadSettings,
    head: Option<TurnId>,
    /// The last turn of the branch that has ended.
    ended_head: Option<TurnId>,
    depth: u32,

    machine: Machine,
    pipeline: Pipeline,
    commands: Vec<Command>,
    commit: Option<CommitFuture>,
    running: Option<Running>,
    context: Option<TurnContext>,

    model: Option<ModelCall>,
    tools: ToolRunner,
    timer: Option<(u64, std::pin::Pin<Box<Sleep>>)>,
    approvals: Approvals,

    /// Most recent initiator first.
    subscribers: Vec<Arc<dyn Subscriber>>,
    pending: HashMap<Token, Pending>,
    last_token: u64,
    admission: Option<Admission>,
    waiting: Option<Waiting>,
    /// What waits, as far as it is committed: what a subscriber gets as a snapshot.
    shown_queue: Queue,
    /// Until then the queue waits for whoever loaded the thread to be answered.
    queue_held_until: Option<Instant>,
    sends: sends::Sends,
    /// The archive is on its way to the disk: nothing more is taken in, and what comes is for whoever has the thread next.
    archiving: bool,
    /// Who archived the thread, to be answered when it is unloaded.
    parting: Option<Answer<()>>,
    /// Where the branch is to end once that is committed.
    rewinding: Option<requests::Rewinding>,
    /// What the running turn's model is told besides what the engine tells it.
    instructions: Option<String>,

    /// The branch's totals, as far as they are committed.
    usage: TokenUsage,
    /// Why the thread cannot go on until it has been loaded again.
    broken: bool,
    /// The turn that ran when the thread broke down, as its watchers know it.
    broken_turn: Option<Turn>,
    stopping: bool,
    /// When the thread was last busy or watched.
    quiet_since: Instant,
}

/// What the loop was woken by.
enum Wake {
    Message(Option<Message>),
    Committed(Result<raddle_store::Appended, raddle_store::Error>),
    Model(model::ModelWake),
    Tool(tools::ToolEvent),
    Timer(u64),
    Admitted(Box<admission::Admitted>),
    WaitedTooLong,
    QueueReleased,
    Quiet,
}

impl Driver {
    fn new(shared: Arc<Shared>, place: Place, loaded: Loaded, subscribers: Vec<Arc<dyn Subscriber>>) -> Self {
        let Place { id, cwd, glance, inbox, own_inbox } = place;
        let held = (!loaded.queue.is_empty()).then(|| Instant::now() + QUEUE_HELD_FOR);
        let machine = Machine::new(id.clone(), shared.options.retry, loaded.usage, loaded.queue);
        let approvals = Approvals::new(id.clone());
        Self {
            tools: ToolRunner::new(shared.toolbox.clone(), cwd.clone(), shared.options.hidden_env.clone()),
            shared,
            id,
            cwd,
            glance,
            inbox,
            own_inbox,
            lease: loaded.lease,
            settings: loaded.settings,
            ended_head: loaded.head.clone(),
            head: loaded.head,
            depth: loaded.depth,
            shown_queue: machine.queue(),
            machine,
            pipeline: Pipeline::default(),
            commands: Vec::new(),
            commit: None,
            running: None,
            context: None,
            model: None,
            timer: None,
            approvals,
            subscribers,
            pending: HashMap::new(),
            last_token: 0,
            admission: None,
            waiting: None,
            queue_held_until: held,
            sends: sends::Sends::new(loaded.sends),
            archiving: false,
            parting: None,
            rewinding: None,
            instructions: None,
            usage: loaded.usage,
            broken: false,
            broken_turn: None,
            stopping: false,
            quiet_since: Instant::now(),
        }
    }

    /// Runs until the thread is unloaded.
    async fn run(mut self) {
        loop {
            self.pump();
            if self.stopping && self.is_at_rest() {
                break;
            }
            let wake = self.wait().await;
            match wake {
                // Somebody has found the thread and is about to say something to it.
                Wake::Quiet if self.is_awaited() => self.quiet_since = Instant::now(),
                Wake::Quiet => break,
                Wake::Message(Some(Message::AttachReading(attach))) => self.attach_reading(attach).await,
                wake => self.take(wake),
            }
        }
        self.unload().await;
    }

    /// Whether nothing is under way.
    fn is_at_rest(&self) -> bool {
        !self.machine.is_running() && self.pipeline.is_empty() && self.admission.is_none()
    }

    /// Whether it may be unloaded when nobody watches. What waits in the queue of a thread that cannot go on waits for the
    /// next load.
    fn is_idle(&self) -> bool {
        self.is_at_rest() && (self.broken || self.machine.next_queued().is_none())
    }

    /// Whether somebody besides the manager holds a handle of the thread.
    fn is_awaited(&self) -> bool {
        /// This task's own, its fallback's, and the manager's.
        const USUAL: usize = 3;
        Arc::strong_count(&self.glance) > USUAL
    }

    async fn wait(&mut self) -> Wake {
        let listening = self.pipeline.has_room();
        if self.is_at_rest() {
            self.subscribers.retain(|subscriber| subscriber.is_open());
        }
        let held_until = self.queue_held_until;
        let quiet_at = (self.is_idle() && self.subscribers.is_empty())
            .then(|| self.quiet_since + self.shared.options.unload_after);
        tokio::select! {
            biased;
            done = commit::done(&mut self.commit) => Wake::Committed(done),
            message = self.inbox.recv(), if !self.stopping && !self.archiving => Wake::Message(message),
            admitted = admission::done(&mut self.admission) => Wake::Admitted(Box::new(admitted)),
            event = self.tools.next(), if listening => Wake::Tool(event),
            timer = fired(&mut self.timer) => Wake::Timer(timer),
            () = admission::too_long(&mut self.waiting) => Wake::WaitedTooLong,
            () = at(held_until) => Wake::QueueReleased,
            wake = model::next(&mut self.model), if listening => Wake::Model(wake),
            () = at(quiet_at) => Wake::Quiet,
        }
    }

    fn take(&mut self, wake: Wake) {
        match wake {
            Wake::Message(Some(message)) => self.message(message),
            // The manager is gone without a word: the process is ending.
            Wake::Message(None) => self.shut_down(),
            Wake::Committed(result) => self.committed(result),
            Wake::Model(wake) => self.model_woke(wake),
            Wake::Tool(event) => self.tool_event(event),
            Wake::Timer(timer) => {
                self.timer = None;
                self.step(Input::Timer { timer });
            }
            Wake::Admitted(admitted) => self.admitted(*admitted),
            Wake::WaitedTooLong => self.waited_too_long(),
            Wake::QueueReleased => self.queue_held_until = None,
            Wake::Quiet => {}
        }
        if !self.is_idle() || !self.subscribers.is_empty() {
            self.quiet_since = Instant::now();
        }
    }

    /// Gives the machine an input and queues what it wants.
    fn step(&mut self, input: Input) {
        self.machine.step(clock::now(), input, &mut self.commands);
        self.pipeline.extend(self.commands.drain(..));
        for item_id in self.pipeline.take_never_ran() {
            self.machine.step(clock::now(), tools::never_ran(item_id), &mut self.commands);
            self.pipeline.extend(self.commands.drain(..));
        }
    }

    /// Does whatever may be done now.
    fn pump(&mut self) {
        loop {
            match self.pipeline.next_step() {
                Step::Wait => break,
                Step::Commit(events) => {
                    self.commit = Some(commit::begin(&self.shared.store, &self.lease, events));
                }
                Step::Act(command) => self.act(*command),
            }
        }
        self.admit_waiting();
        self.admit_queued();
    }

    fn act(&mut self, command: Command) {
        match command {
            // The pipeline turns these into commits.
            Command::Append(_) => {}
            Command::Answer(reply) => self.answer(reply),
            Command::Notify(notification) => {
                if let ServerNotification::TurnQueueUpdated(updated) = &notification {
                    self.shown_queue = updated.queue.clone();
                }
                self.notify(notification);
            }
            Command::Status(status) => self.set_status(status),
            Command::CallModel { call, attempt } => self.call_model(call, attempt),
            Command::DropModel => self.model = None,
            Command::RunTool { item_id, tool_name, input } => {
                tracing::debug!(thread = %self.id, item = %item_id, tool = %tool_name, "running a tool");
                self.tools.run(item_id, &tool_name, input);
            }
            Command::CancelTool(item_id) => self.tools.cancel(&item_id),
            Command::Ask { item_id, tool_name, input, decisions } => {
                self.ask(item_id, tool_name, input, decisions);
            }
            Command::Withdraw(item_id) => self.approvals.withdraw(&item_id, "the turn was interrupted"),
            Command::SetTimer { timer, delay_ms } => {
                let sleep = tokio::time::sleep(Duration::from_millis(delay_ms));
                self.timer = Some((timer, Box::pin(sleep)));
            }
        }
    }

    fn notify(&self, notification: ServerNotification) {
        let notification = Arc::new(notification);
        for subscriber in &self.subscribers {
            subscriber.notify(&notification);
        }
    }

    fn set_status(&mut self, status: ThreadStatus) {
        {
            let mut glance = self.glance.lock();
            if glance.status == status {
                return;
            }
            glance.status = status.clone();
        }
        self.shared.hub.broadcast(ServerNotification::ThreadStatusChanged(ThreadStatusNotification {
            thread_id: self.id.clone(),
            status,
        }));
    }

    fn shut_down(&mut self) {
        if self.stopping {
            return;
        }
        self.stopping = true;
        self.refuse_admission();
        self.step(Input::Shutdown);
    }

    async fn unload(mut self) {
        self.inbox.close();
        self.tools.join().await;
        let failed = match &self.glance.lock().status {
            ThreadStatus::SystemError { message } => Some(message.clone()),
            _ => None,
        };
        if let Err(error) = self.shared.store.release(&self.lease).await {
            tracing::warn!(thread = %self.id, %error, "the thread's ownership was not given back");
        }
        if failed.is_none() && !self.shared.is_stopping() {
            // Before the next load may begin, which would say that the thread is idle.
            self.set_status(ThreadStatus::NotLoaded);
        }
        self.shared.forget(&self.id, &self.glance, failed);
        if let Some(answer) = self.parting.take() {
            answer.send(Ok(()));
            self.shared.tell_everybody(&self.id, &EventBody::Archived(ThreadArchived { archived: true }));
        }
        // What came in between is for whoever loads the thread next; waited for, since a sender may be half-way.
        while let Some(message) = self.inbox.recv().await {
            self.shared.redeliver(self.id.clone(), message);
        }
    }
}

/// Waits for the timer to go off; for ever when there is none.
async fn fired(timer: &mut Option<(u64, std::pin::Pin<Box<Sleep>>)>) -> u64 {
    match timer {
        Some((number, sleep)) => {
            sleep.await;
            *number
        }
        None => std::future::pending().await,
    }
}

/// Waits until then; for ever when there is no then.
async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Starts the task of a loaded thread.
pub(crate) fn spawn(
    shared: &Arc<Shared>,
    id: ThreadId,
    cwd: std::path::PathBuf,
    loaded: Loaded,
    subscribers: Vec<Arc<dyn Subscriber>>,
) -> ThreadHandle {
    let (sender, inbox) = mpsc::channel(INBOX_MESSAGES_MAX);
    let glance = Arc::new(Mutex::new(Glance { status: ThreadStatus::Idle }));
    let own_inbox = sender.downgrade();
    let place = Place { id, cwd, glance: glance.clone(), inbox, own_inbox };
    let driver = Driver::new(shared.clone(), place, loaded, subscribers);
    let fallback = Fallback { shared: shared.clone(), id: driver.id.clone(), glance: glance.clone() };
    let gone = CancellationToken::new();
    let ends = gone.clone().drop_guard();
    shared.tasks.spawn(async move {
        let ended = AssertUnwindSafe(driver.run()).catch_unwind().await;
        if ended.is_err() {
            fallback.thread_panicked();
        }
        drop(ends);
    });
    ThreadHandle { inbox: sender, glance, gone }
}

/// What is left to do when a thread's task panics: a bug, but one that costs that thread alone.
struct Fallback {
    shared: Arc<Shared>,
    id: ThreadId,
    glance: Arc<Mutex<Glance>>,
}

impl Fallback {
    fn thread_panicked(self) {
        let message = "the thread's task ended unexpectedly; load the thread again".to_owned();
        tracing::error!(thread = %self.id, "a thread's task panicked");
        let status = ThreadStatus::SystemError { message: message.clone() };
        self.glance.lock().status = status.clone();
        // Who subscribed is lost with the task, so everybody is told.
        self.shared.hub.broadcast(ServerNotification::Error(ErrorNotification {
            thread_id: Some(self.id.clone()),
            code: raddle_protocol::ErrorCode::Internal,
            message: message.clone(),
            data: None,
        }));
        self.shared.forget(&self.id, &self.glance, Some(message));
        self.shared.hub.broadcast(ServerNotification::ThreadStatusChanged(ThreadStatusNotification {
            thread_id: self.id,
            status,
        }));
    }
}
