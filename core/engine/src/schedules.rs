//! The turn machine under random schedules, with a crash and a recovery after any commit.
//!
//! A small world stands in for the driver: it holds a log as the store keeps it, a pipeline, and whatever the machine
//! wanted done. Each number of a schedule picks one of the things that may happen next. Holds: P1, P2, P3, P4, P5.

mod disk;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use proptest::prelude::*;
use raddle_models::{AssistantPart, FinishReason, Message, ModelEvent, ToolCall};
use raddle_protocol::approval::Decision;
use raddle_protocol::event::{EventBody, InputQueued};
use raddle_protocol::fold::Change;
use raddle_protocol::thread::ApprovalMode;
use raddle_protocol::{
    Event, Item, ItemId, ItemKind, ItemStatus, ModelRef, ThreadId, TokenCounts, TokenUsage, Turn, TurnError,
    TurnErrorKind, TurnId, TurnStatus, UnixMillis,
};
use raddle_tools::Effect;

use crate::prompt;
use crate::turn::{
    Append, Command, Input, Machine, ModelFailure, Outcome, Pipeline, Purpose, Reply, RetryPolicy,
    RunSettings, Said, StartTurn, Step, Token, ToolOutcome, recover,
};

use disk::Disk;

const POLICY: RetryPolicy = RetryPolicy { attempts_max: 3, delay_first_ms: 1, delay_max_ms: 10 };

fn said(text: &str) -> Said {
    Said { input: text.into(), client_message_id: Some("mine".into()), idempotency_key: None }
}

/// Picks from a schedule; all zeros once it has run out.
struct Schedule {
    numbers: std::vec::IntoIter<u16>,
}

impl Schedule {
    fn pick(&mut self, among: usize) -> usize {
        usize::from(self.numbers.next().unwrap_or(0)) % among.max(1)
    }

    fn is_over(&self) -> bool {
        self.numbers.len() == 0
    }
}

/// One life of the process.
struct World {
    disk: Disk,
    epoch: u32,
    machine: Machine,
    pipeline: Pipeline,
    in_flight: Option<Vec<Event>>,
    clock: i64,
    tokens: u64,
    asked: BTreeSet<Token>,
    model: Option<u64>,
    said_calls: u32,
    tools: BTreeSet<ItemId>,
    cancelled: BTreeSet<ItemId>,
    asks: BTreeSet<ItemId>,
    timer: Option<u64>,
    /// What a subscriber from the beginning has folded, by turn.
    watched: BTreeMap<TurnId, Turn>,
    /// What one that came in the middle has folded of the turn that ran then.
    late: Option<Turn>,
    mode: ApprovalMode,
    /// Inputs that clients took back, or that an interrupt dropped.
    unqueued: BTreeMap<Token, Vec<String>>,
    /// Whether it has learnt that another owner took over.
    lost: bool,
}

impl World {
    fn boot(mut disk: Disk, mode: ApprovalMode) -> Self {
        disk.epoch += 1;
        let mut usage = TokenUsage::default();
        let mut watched = BTreeMap::new();
        for id in disk.turn_ids() {
            let events = disk.events_of(&id);
            let before = Turn::saved(&events).expect("a turn begins with its start");
            let closing = recover(&events, usage);
            disk.commit(&closing);
            let after = Turn::saved(&disk.events_of(&id)).expect("still there");
            assert_eq!(before, after, "P5: reading before recovery and after it give the same");
            assert!(recover(&disk.events_of(&id), usage).is_empty(), "recovery is done once");
            for row in disk.events_of(&id) {
                if let EventBody::TurnCompleted(ended) = &row.event.body {
                    usage = ended.thread_usage;
                }
            }
            watched.insert(id, after);
        }
        Self {
            machine: Machine::new(ThreadId::new("t"), POLICY, usage, disk.queue.clone()),
            epoch: disk.epoch,
            disk,
            pipeline: Pipeline::default(),
            in_flight: None,
            clock: 0,
            tokens: 0,
            asked: BTreeSet::new(),
            model: None,
            said_calls: 0,
            tools: BTreeSet::new(),
            cancelled: BTreeSet::new(),
            asks: BTreeSet::new(),
            timer: None,
            watched,
            late: None,
            mode,
            unqueued: BTreeMap::new(),
            lost: false,
        }
    }

    fn token(&mut self) -> Token {
        self.tokens += 1;
        self.asked.insert(Token(self.tokens));
        Token(self.tokens)
    }

    fn answer(&mut self, reply: &Reply) {
        match &reply.outcome {
            Outcome::Started(turn) => {
                let said = Turn::live(&self.disk.events_of(turn)).map_or(0, |turn| turn.items.len());
                assert!(said > 0, "P1: {turn} was answered before it and its text were on disk");
            }
            Outcome::Steered(turn) => {
                let accepted = self.disk.events_of(turn);
                let steers =
                    accepted.iter().filter(|row| matches!(row.event.body, EventBody::SteerAccepted(_)));
                assert!(steers.count() > 0, "P1: a steer of {turn} was answered before it was on disk");
            }
            Outcome::Queued(id) => {
                assert!(self.disk.queued.contains(id), "P1: {id} was answered before it was on disk");
            }
            Outcome::Unqueued(true) | Outcome::Interrupted => {
                let taken = self.unqueued.remove(&reply.token).unwrap_or_default();
                let waits = |queued: &InputQueued| taken.contains(&queued.id);
                assert!(!self.disk.queue.iter().any(waits), "P1: what was taken back still waits on disk");
            }
            _ => {}
        }
        assert!(self.asked.remove(&reply.token), "P4: {:?} was answered twice", reply.token);
    }

    fn step(&mut self, input: Input) {
        self.clock += 1;
        let mut commands = Vec::new();
        self.machine.step(UnixMillis(self.clock), input, &mut commands);
        self.pipeline.extend(commands);
        for item_id in self.pipeline.take_never_ran() {
            let outcome = ToolOutcome {
                text: "never ran".into(),
                is_error: true,
                interrupted: true,
                file_changes: Vec::new(),
            };
            self.step(Input::ToolFinished { item_id, outcome });
        }
    }

    /// Does what may be done now; a commit is only begun.
    fn pump(&mut self) {
        loop {
            match self.pipeline.next_step() {
                Step::Wait => return,
                Step::Commit(events) => {
                    assert!(self.in_flight.is_none());
                    self.in_flight = Some(events);
                }
                Step::Act(command) => self.act(*command),
            }
        }
    }

    fn act(&mut self, command: Command) {
        match command {
            Command::Append(_) => unreachable!("the pipeline commits these"),
            Command::Answer(reply) => self.answer(&reply),
            Command::Notify(_) | Command::Status(_) => {}
            Command::CallModel { call, .. } => {
                self.model = Some(call);
                self.said_calls = 0;
                self.check_context();
            }
            Command::DropModel => self.model = None,
            Command::RunTool { item_id, .. } => {
                let turn = self.machine.running_turn().cloned().expect("tools run in turns");
                let events = self.disk.events_of(&turn);
                let begun = events.iter().any(|row| {
                    matches!(&row.event.body, EventBody::ItemStarted(logged) if logged.item.id == item_id)
                });
                assert!(begun, "P3: {item_id} runs before its call is durable");
                let runs = self.disk.runs.entry((turn, item_id.clone())).or_default();
                *runs += 1;
                assert_eq!(*runs, 1, "P3: {item_id} runs twice");
                self.tools.insert(item_id);
            }
            Command::CancelTool(item_id) => {
                self.cancelled.insert(item_id);
            }
            Command::Ask { item_id, .. } => {
                self.asks.insert(item_id);
            }
            Command::Withdraw(item_id) => {
                self.asks.remove(&item_id);
            }
            Command::SetTimer { timer, .. } => self.timer = Some(timer),
        }
    }

    fn finish_commit(&mut self) {
        let Some(events) = self.in_flight.take() else { return };
        if self.epoch != self.disk.epoch {
            // Refused: the driver breaks down, and whoever waits is told.
            self.lost = true;
            for reply in self.pipeline.abandon() {
                self.asked.remove(&reply.token);
            }
            return;
        }
        self.disk.commit(&events);
        for Append { event, reply } in self.pipeline.committed(events) {
            if let Some(reply) = reply {
                self.answer(&reply);
            }
            self.fan_out(&event);
        }
        self.check_watchers();
    }

    /// Notifications reach the folds as a client would get them.
    fn fan_out(&mut self, event: &Event) {
        let thread_id = ThreadId::new("t");
        if let EventBody::ToolOutputDelta(piece) = &event.body {
            let own = piece.delta.split_whitespace().all(|word| word == piece.item_id.as_str());
            assert!(own, "output of another call was merged into {piece:?}");
        }
        for notification in event.opening(&thread_id).into_iter().chain(event.notification(&thread_id)) {
            let Some((_, turn_id, change)) = Change::of_notification(&notification) else { continue };
            if let Change::Summary(summary) = change {
                self.watched.entry(turn_id.clone()).or_insert_with(|| Turn::new(summary.clone()));
            }
            let turn = self.watched.get_mut(turn_id).expect("a turn starts before anything in it");
            turn.apply(change).expect("P5: a delta for an item that was never begun");
            if let Some(late) = self.late.as_mut().filter(|late| &late.summary.id == turn_id) {
                late.apply(change).expect("P5: a snapshot misses an item");
            }
        }
    }

    fn check_watchers(&self) {
        let Some(head) = &self.disk.head else { return };
        let read = Turn::live(&self.disk.events_of(head)).expect("the head has a start");
        assert_eq!(self.watched.get(head), Some(&read), "P5: watching differs from reading");
        if let Some(late) = self.late.as_ref().filter(|late| &late.summary.id == head) {
            assert_eq!(late, &read, "P5: a snapshot and what follows it differ from reading");
        }
    }

    /// What a provider would refuse: a call without its result directly behind it, or the reverse.
    fn check_context(&self) {
        let model = ModelRef::new("p", "m");
        let mut messages = Vec::new();
        for id in self.disk.turn_ids() {
            messages.extend(prompt::messages(&prompt::final_items(&self.disk.events_of(&id)), &model));
        }
        if self.machine.is_compacting() {
            messages.push(prompt::summary_request(None));
        }
        assert!(matches!(messages.last(), Some(Message::User { .. } | Message::ToolResult { .. })));
        let mut open: Vec<String> = Vec::new();
        for message in &messages {
            match message {
                Message::ToolResult { call_id, .. } => {
                    let at = open.iter().position(|id| id == call_id).expect("P3: a result without its call");
                    open.remove(at);
                }
                _ => assert!(open.is_empty(), "P3: calls without results: {open:?}"),
            }
            if let Message::Assistant { parts } = message {
                for part in parts {
                    if let AssistantPart::ToolCall { id, .. } = part {
                        open.push(id.clone());
                    }
                }
            }
        }
        assert!(open.is_empty(), "P3: calls without results: {open:?}");
    }

    /// As the driver does: a turn starts once all of the one before is committed, so that the head is known.
    fn start(&mut self, purpose: Purpose) {
        if !self.machine.is_running() && !self.pipeline.is_empty() {
            return;
        }
        let token = self.token();
        self.begin(Some(token), purpose, None);
    }

    /// As the driver does: the oldest input of the queue starts when nothing runs.
    fn start_queued(&mut self) {
        if self.machine.is_running() || !self.pipeline.is_empty() {
            return;
        }
        if let Some(queued) = self.machine.next_queued().cloned() {
            let said = Said { input: queued.input, ..Said::default() };
            self.begin(None, Purpose::Answer(said), Some(queued.id));
        }
    }

    fn begin(&mut self, token: Option<Token>, purpose: Purpose, queue_id: Option<String>) {
        let tools =
            BTreeMap::from([("look".to_owned(), Effect::ReadOnly), ("change".to_owned(), Effect::Mutating)]);
        let depth = self.disk.turns + 1;
        self.step(Input::Start(Box::new(StartTurn {
            token,
            turn_id: TurnId::new(format!("turn{}-{}", depth, self.disk.next_seq)),
            parent: self.disk.head.clone(),
            depth,
            purpose,
            request_id: None,
            queue_id,
            used_call_ids: self.disk.call_ids(),
            settings: RunSettings {
                model: ModelRef::new("p", "m"),
                context_window: 1_000,
                cost: None,
                approval_mode: self.mode,
                tools: Arc::new(tools),
            },
        })));
    }

    fn model_event(&mut self, call: u64, schedule: &mut Schedule) {
        let event = match schedule.pick(12) {
            0..=2 => ModelEvent::Text("word ".into()),
            3 | 4 => ModelEvent::Reasoning("thought ".into()),
            5 => ModelEvent::ReasoningSignature("sig".into()),
            6 => ModelEvent::Usage(TokenCounts { input: 3, output: 2, ..TokenCounts::default() }),
            7 => return self.fail_model(call, true),
            8 => return self.fail_model(call, false),
            9 => {
                self.model = None;
                ModelEvent::Finish(FinishReason::Stop)
            }
            _ => {
                self.said_calls += 1;
                let name = ["look", "look", "change", "ghost"][schedule.pick(4)].to_owned();
                let id = [None, Some("same".to_owned()), Some(format!("c{}", self.clock))][schedule.pick(3)]
                    .clone();
                let arguments = ["{}", "{\"a\":1}", "not json"][schedule.pick(3)].to_owned();
                ModelEvent::ToolCall(ToolCall { id, name, arguments, signature: None })
            }
        };
        self.step(Input::Model { call, event });
    }

    fn fail_model(&mut self, call: u64, retryable: bool) {
        let error = TurnError { message: "broken".into(), kind: TurnErrorKind::Provider };
        let failure = ModelFailure { error, retryable, retry_after_ms: None };
        self.step(Input::ModelFailed { call, failure, jitter_permille: 500 });
    }

    fn finish_tool(&mut self, item_id: ItemId, is_error: bool) {
        self.tools.remove(&item_id);
        let interrupted = self.cancelled.remove(&item_id);
        let outcome = ToolOutcome { text: "result".into(), is_error, interrupted, file_changes: Vec::new() };
        self.step(Input::ToolFinished { item_id, outcome });
    }

    fn client(&mut self, schedule: &mut Schedule) {
        let running = self.machine.running_turn().cloned();
        match schedule.pick(13) {
            0..=2 => self.start(Purpose::Answer(said("do it"))),
            8 => self.start(Purpose::Compact),
            9 | 10 => {
                let token = self.token();
                let id = format!("q{}", token.0 + 1_000 * u64::from(self.epoch));
                let input = "later".into();
                let queued = InputQueued {
                    id,
                    input,
                    request_id: None,
                    client_message_id: None,
                    idempotency_key: None,
                };
                self.step(Input::Queue { token, queued: Box::new(queued) });
            }
            11 => {
                let token = self.token();
                let queue_id =
                    self.machine.next_queued().map_or("none", |queued| queued.id.as_str()).to_owned();
                self.unqueued.insert(token, vec![queue_id.clone()]);
                self.step(Input::Unqueue { token, queue_id });
            }
            12 => self.start_queued(),
            3 | 4 => {
                let token = self.token();
                let expected = running.unwrap_or_else(|| TurnId::new("nothing"));
                self.step(Input::Steer { token, expected, said: Box::new(said("also")) });
            }
            5 => {
                let token = self.token();
                let said = Box::new(said("stale"));
                self.step(Input::Steer { token, expected: "old".into(), said });
            }
            6 => {
                let token = self.token();
                let dropped = self.machine.queue().follow_up.into_iter().map(|queued| queued.id).collect();
                self.unqueued.insert(token, dropped);
                self.step(Input::Interrupt { token, turn_id: running });
            }
            _ => {
                let token = self.token();
                self.step(Input::Interrupt { token, turn_id: Some("old".into()) });
            }
        }
    }

    /// One thing that may happen now.
    fn happen(&mut self, schedule: &mut Schedule) {
        match schedule.pick(10) {
            0 | 1 => self.finish_commit(),
            2 => self.client(schedule),
            3 => {
                if let Some(item_id) = nth(&self.tools, schedule) {
                    let text = format!("{item_id} ");
                    self.step(Input::ToolOutput { item_id, text });
                }
            }
            4 => {
                if let Some(item_id) = nth(&self.tools, schedule) {
                    let is_error = schedule.pick(2) == 0;
                    self.finish_tool(item_id, is_error);
                }
            }
            5 => {
                if let Some(item_id) = nth(&self.asks, schedule) {
                    self.asks.remove(&item_id);
                    let words = [
                        Some(Decision::Accept),
                        Some(Decision::Accept),
                        Some(Decision::Decline),
                        Some(Decision::Cancel),
                        Some(Decision::AcceptForSession),
                        None,
                    ];
                    let decision = words[schedule.pick(words.len())];
                    self.step(Input::Decided { item_id, decision, message: Some("because".into()) });
                }
            }
            6 => {
                if let Some(timer) = self.timer.take() {
                    self.step(Input::Timer { timer });
                }
            }
            7 => self.late = self.disk.head.as_ref().and_then(|id| Turn::live(&self.disk.events_of(id))),
            _ => {
                if let Some(call) = self.model {
                    self.model_event(call, schedule);
                }
            }
        }
        self.pump();
    }

    /// Ends everything in good order.
    fn shut_down(&mut self) {
        self.step(Input::Shutdown);
        self.pump();
        while !self.pipeline.is_empty() || self.machine.is_running() {
            self.finish_commit();
            self.pump();
            while let Some(item_id) = self.tools.first().cloned() {
                self.finish_tool(item_id, false);
                self.pump();
            }
        }
        assert!(self.asked.is_empty(), "P4: never answered: {:?}", self.asked);
        let mut ids = HashSet::new();
        for id in self.disk.turn_ids() {
            let turn = Turn::live(&self.disk.events_of(&id)).expect("begun");
            assert_ne!(turn.summary.status, TurnStatus::InProgress, "every turn has its end");
            assert!(turn.items.iter().all(|item| item.status != ItemStatus::InProgress), "and every item");
            assert!(
                turn.items.iter().all(|item| ids.insert(item.id.clone())),
                "ids are unique on the branch"
            );
            let places: Vec<_> = turn.items.iter().map(|item| item.index).collect();
            let expected: Vec<_> = (0..turn.items.len()).map(|place| Some(place as u32)).collect();
            assert_eq!(places, expected, "items are numbered without gaps");
        }
    }
}

fn nth(set: &BTreeSet<ItemId>, schedule: &mut Schedule) -> Option<ItemId> {
    let at = schedule.pick(set.len());
    set.iter().nth(at).cloned()
}

/// Another process takes the thread over while this one stands still. When it wakes up, it may go on until its next
/// append is refused; nothing of that reaches the log, and nothing is seen of it. Holds: P2, P3.
fn take_over(mut old: World, schedule: &mut Schedule, mode: ApprovalMode) -> World {
    let mut new = World::boot(old.disk.clone(), mode);
    old.disk.epoch = new.epoch;
    let (log, seen) = (old.disk.log.clone(), old.watched.clone());
    for _ in 0..10 {
        if old.lost {
            break;
        }
        old.happen(schedule);
    }
    assert!(old.disk.log == log, "P2: a process that lost the thread wrote to it");
    assert!(old.watched == seen, "P1: something was shown that no log holds");
    // A tool that was about to run when the process stood still ran in it, once; the new owner never runs it again.
    new.disk.runs = old.disk.runs;
    new
}

fn run(numbers: Vec<u16>, mode: ApprovalMode) {
    let mut schedule = Schedule { numbers: numbers.into_iter() };
    let mut world = World::boot(Disk::default(), mode);
    while !schedule.is_over() {
        let fate = schedule.pick(40);
        if fate == 38 {
            world = take_over(world, &mut schedule, mode);
        } else if fate == 39 {
            // The process dies; the commit under way may have reached the disk all the same.
            if let (Some(events), true) = (world.in_flight.take(), schedule.pick(2) == 0) {
                world.disk.commit(&events);
            }
            world = World::boot(world.disk, mode);
        } else {
            world.happen(&mut schedule);
        }
    }
    world.shut_down();
    let disk = World::boot(world.disk, mode).disk;
    let again = World::boot(disk, mode);
    again.check_watchers();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn p1_to_p5_hold_on_any_schedule(
        numbers in prop::collection::vec(any::<u16>(), 0..600),
        ask in any::<bool>(),
    ) {
        run(numbers, if ask { ApprovalMode::Ask } else { ApprovalMode::FullAccess });
    }
}

/// A commit that fails leaves no request without an answer.
#[test]
fn p4_a_failed_commit_gives_back_every_answer() {
    let mut world = World::boot(Disk::default(), ApprovalMode::Ask);
    world.start(Purpose::Answer(said("do it")));
    world.pump();
    let token = world.token();
    let expected = world.machine.running_turn().cloned().expect("it runs");
    world.step(Input::Steer { token, expected, said: Box::new(said("x")) });
    let token = world.token();
    world.step(Input::Interrupt { token, turn_id: None });
    let open: BTreeSet<Token> = world.pipeline.abandon().into_iter().map(|reply| reply.token).collect();
    assert_eq!(open, world.asked);
    assert!(world.pipeline.is_empty());
}

/// A process that dies right after it answered a start has not lost what the user said.
#[test]
fn p1_a_start_and_its_text_are_one_commit() {
    let mut world = World::boot(Disk::default(), ApprovalMode::Ask);
    world.start(Purpose::Answer(said("do it")));
    world.pump();
    world.finish_commit();
    assert!(world.asked.is_empty(), "the start is answered");
    let turn = world.disk.head.clone().expect("a turn began");
    let read = Turn::saved(&world.disk.events_of(&turn)).expect("it has its start");
    let says_it = |item: &Item| matches!(&item.kind, ItemKind::UserMessage { text, .. } if text == "do it");
    assert!(read.items.iter().any(says_it), "the text is not stored: {read:?}");
}
