//! The step function: which part of the machine an input goes to, and how turns begin and end.
//!
//! Neighbours: calls, command, input, queue, reply, state.

use std::collections::VecDeque;

use raddle_protocol::event::{EventBody, InputQueued, TurnEnded, TurnStarted};
use raddle_protocol::limits::QUEUED_BYTES_MAX;
use raddle_protocol::thread::ThreadStatus;
use raddle_protocol::{
    ItemId, ItemKind, ItemStatus, ThreadId, TokenUsage, TurnError, TurnId, TurnStatus, TurnSummary,
    UnixMillis,
};

use super::STEERS_WAITING_MAX;
use super::command::{Command, Outcome, Refusal, Reply, Token};
use super::input::{Input, Purpose, Said, StartTurn};
use super::queue::{Waiting, shown_text};
use super::state::{Calling, Out, RetryPolicy, Run, Stage, Steer, closed};

/// One thread's turns, one at a time.
#[derive(Debug)]
pub struct Machine {
    pub(super) thread_id: ThreadId,
    pub(super) policy: RetryPolicy,
    /// The branch's totals.
    pub(super) usage: TokenUsage,
    pub(super) run: Option<Run>,
    /// Inputs that wait for the thread to be idle, oldest first.
    pub(super) queue: VecDeque<Waiting>,
    /// The last number given to a model call.
    pub(super) calls: u64,
    /// The last number given to a timer.
    pub(super) timers: u64,
}

impl Machine {
    /// An idle machine for a branch whose totals so far are `usage`, and for whose end the inputs of `queue` wait.
    pub fn new(
        thread_id: ThreadId,
        policy: RetryPolicy,
        usage: TokenUsage,
        queue: impl IntoIterator<Item = InputQueued>,
    ) -> Self {
        let queue = queue.into_iter().map(Waiting::from).collect();
        Self { thread_id, policy, usage, run: None, queue, calls: 0, timers: 0 }
    }

    /// Whether a turn runs.
    pub fn is_running(&self) -> bool {
        self.run.is_some()
    }

    /// Whether the running turn is being stopped, so that a start may wait for its end.
    pub fn is_settling(&self) -> bool {
        matches!(&self.run, Some(Run { stage: Stage::Settling { .. }, .. }))
    }

    /// The turn that runs.
    pub fn running_turn(&self) -> Option<&TurnId> {
        self.run.as_ref().map(|run| &run.turn.id)
    }

    /// Whether the running turn sums up the conversation.
    pub fn is_compacting(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.compaction.is_some())
    }

    /// The turn that a steer would reach now.
    pub fn steerable_turn(&self) -> Option<&TurnId> {
        self.running_turn().filter(|_| !self.is_settling() && !self.is_compacting())
    }

    /// The branch's totals.
    pub fn usage(&self) -> TokenUsage {
        self.usage
    }

    /// The branch ends elsewhere now, where its totals were these.
    pub fn set_usage(&mut self, usage: TokenUsage) {
        self.usage = usage;
    }

    /// Takes one input and adds what is to be done to `commands`.
    pub fn step(&mut self, at: UnixMillis, input: Input, commands: &mut Vec<Command>) {
        let out = &mut Out { at, commands };
        match input {
            Input::Start(start) => self.start(out, *start),
            Input::Steer { token, expected, said } => self.steer(out, token, expected, *said),
            Input::Queue { token, queued } => self.enqueue(out, token, *queued),
            Input::Unqueue { token, queue_id } => self.unqueue(out, token, &queue_id),
            Input::DropQueued { queue_id } => self.drop_queued(out, &queue_id),
            Input::Interrupt { token, turn_id } => self.interrupt(out, token, turn_id),
            Input::Shutdown => self.stop(out),
            Input::Model { call, event } => self.model_event(out, call, event),
            Input::ModelFailed { call, failure, jitter_permille } => {
                self.model_failed(out, call, failure, jitter_permille);
            }
            Input::ToolOutput { item_id, text } => self.tool_output(out, &item_id, text),
            Input::ToolFinished { item_id, outcome } => self.tool_finished(out, &item_id, outcome),
            Input::Decided { item_id, decision, message } => self.decided(out, &item_id, decision, message),
            Input::Timer { timer } => self.timer(out, timer),
        }
    }

    fn start(&mut self, out: &mut Out<'_>, start: StartTurn) {
        if let Some(run) = &self.run {
            let refusal = Refusal::TurnInProgress(run.turn.id.clone());
            return start.token.map_or((), |token| refuse(out, token, refusal));
        }
        let turn = TurnSummary {
            id: start.turn_id,
            thread_id: self.thread_id.clone(),
            status: TurnStatus::InProgress,
            started_at: out.at,
            completed_at: None,
            error: None,
            usage: None,
        };
        let mut run = Run {
            turn: turn.clone(),
            depth: start.depth,
            request_id: start.request_id.clone(),
            settings: start.settings,
            stage: Stage::Calling(Calling::default()),
            next_item: 0,
            next_index: 0,
            reply: 0,
            steers: VecDeque::new(),
            call_ids: start.used_call_ids,
            usage: TokenUsage::default(),
            compaction: None,
        };
        let idempotency_key = match &start.purpose {
            Purpose::Answer(said) => said.idempotency_key.clone(),
            Purpose::Compact => None,
        };
        let started = TurnStarted {
            turn: turn.clone(),
            parent: start.parent,
            depth: start.depth,
            request_id: start.request_id,
            queue_id: start.queue_id.clone(),
            // A queued input's key was taken down when it was queued.
            idempotency_key: idempotency_key.filter(|_| start.queue_id.is_none()),
        };
        let reply = start.token.map(|token| Reply { token, outcome: Outcome::Started(turn.id) });
        // Nothing between the two, so that one commit holds both: what is answered as started has its text (P1).
        run.append_and_reply(out, EventBody::TurnStarted(started), reply);
        let item_id = run.fresh_id();
        match start.purpose {
            Purpose::Answer(said) => run.say(out, item_id, said),
            Purpose::Compact => {
                let begun = run.begin(out.at, item_id, ItemKind::Compaction { text: "".into() });
                run.append(out, EventBody::ItemStarted(begun.clone()));
                run.compaction = Some(begun);
            }
        }
        out.push(Command::Status(ThreadStatus::Active { waiting_on: Vec::new() }));
        self.run = Some(run);
        if let Some(queue_id) = start.queue_id {
            self.queue.retain(|waiting| waiting.input.id != queue_id);
            out.push(self.queue_updated());
        }
        self.ask_model(out);
    }

    fn steer(&mut self, out: &mut Out<'_>, token: Token, expected: TurnId, said: Said) {
        if self.is_compacting() && self.running_turn() == Some(&expected) {
            return refuse(out, token, Refusal::NotSteerable(expected));
        }
        let run = match &mut self.run {
            Some(run) if run.turn.id == expected && !matches!(run.stage, Stage::Settling { .. }) => run,
            other => {
                let running = other.as_ref().map(|run| run.turn.id.clone()).filter(|id| id != &expected);
                return refuse(out, token, Refusal::TurnMismatch { running });
            }
        };
        if run.steers.len() >= STEERS_WAITING_MAX {
            return refuse(out, token, Refusal::TooManySteers(STEERS_WAITING_MAX));
        }
        let waiting: usize = run.steers.iter().map(|steer| steer.said.input.bytes()).sum();
        if waiting + said.input.bytes() > QUEUED_BYTES_MAX {
            return refuse(out, token, Refusal::TooMuchWaits(QUEUED_BYTES_MAX));
        }
        let steer = Steer { item_id: run.fresh_id(), shown: shown_text(&said.input.text), said };
        run.accept_steer(out, steer, Reply { token, outcome: Outcome::Steered(expected) });
        out.push(self.queue_updated());
    }

    fn interrupt(&mut self, out: &mut Out<'_>, token: Token, turn_id: Option<TurnId>) {
        let running = self.running_turn().cloned();
        if turn_id.is_some() && turn_id != running {
            return refuse(out, token, Refusal::TurnMismatch { running });
        }
        let reply = Reply { token, outcome: Outcome::Interrupted };
        if self.queue.is_empty() {
            out.push(Command::Answer(reply));
        } else {
            self.clear_queue(out, reply);
        }
        self.stop(out);
    }

    /// Stops the running turn, wherever it is; ends it at once if nothing of it runs.
    pub(super) fn stop(&mut self, out: &mut Out<'_>) {
        let Some(run) = &mut self.run else { return };
        match std::mem::replace(&mut run.stage, Stage::Calling(Calling::default())) {
            Stage::Replying(mut replying) => {
                out.push(Command::DropModel);
                if let Some(open) = replying.open.take() {
                    run.append(out, closed(open, ItemStatus::Interrupted, out.at));
                }
                self.end(out, TurnStatus::Interrupted, None);
            }
            Stage::BackingOff { .. } => {
                if let Some(open) = run.compaction.take() {
                    run.append(out, closed(open, ItemStatus::Interrupted, out.at));
                }
                self.end(out, TurnStatus::Interrupted, None);
            }
            Stage::Calling(calls) => self.settle(out, calls),
            settling @ Stage::Settling { .. } => run.stage = settling,
        }
    }

    /// Ends the turn as interrupted once what still runs is gone.
    fn settle(&mut self, out: &mut Out<'_>, mut calls: Calling) {
        self.timers += 1;
        let timer = self.timers;
        let Some(run) = &mut self.run else { return };
        if calls.stop_all(run, out) {
            run.stage = Stage::Settling { timer, calls };
            out.push(Command::SetTimer { timer, delay_ms: super::SETTLE_MS });
        } else {
            self.end(out, TurnStatus::Interrupted, None);
        }
    }

    fn timer(&mut self, out: &mut Out<'_>, fired: u64) {
        match &mut self.run {
            Some(Run { stage: Stage::BackingOff { timer, .. }, .. }) if *timer == fired => self.retry(out),
            Some(run) => match &mut run.stage {
                Stage::Settling { timer, calls, .. } if *timer == fired => {
                    let mut calls = std::mem::take(calls);
                    calls.give_up(run, out);
                    self.end(out, TurnStatus::Interrupted, None);
                }
                _ => {}
            },
            None => {}
        }
    }

    /// Hands what waits to the model, as far as it came, and asks it.
    pub(super) fn go_on(&mut self, out: &mut Out<'_>) {
        let Some(run) = &mut self.run else { return };
        if !run.steers.is_empty() {
            while let Some(steer) = run.steers.pop_front() {
                run.say(out, steer.item_id, steer.said);
            }
            out.push(self.queue_updated());
        }
        self.ask_model(out);
    }

    /// Ends the turn. Everything of it has ended by now.
    pub(super) fn end(&mut self, out: &mut Out<'_>, status: TurnStatus, error: Option<TurnError>) {
        let Some(mut run) = self.run.take() else { return };
        let withdrawn = run.withdraw_steers(out);
        run.turn.status = status;
        run.turn.completed_at = Some(out.at);
        run.turn.error = error;
        run.turn.usage = Some(run.usage);
        let ended = TurnEnded {
            turn: run.turn.clone(),
            thread_usage: self.usage,
            request_id: run.request_id.clone(),
        };
        run.append(out, EventBody::TurnCompleted(ended));
        if withdrawn {
            out.push(self.queue_updated());
        }
        out.push(Command::Status(ThreadStatus::Idle));
    }
}

pub(super) fn refuse(out: &mut Out<'_>, token: Token, refusal: Refusal) {
    out.push(Command::Answer(Reply { token, outcome: Outcome::Refused(refusal) }));
}

/// An id for a call that is unique on the branch: the model's own, unless it has none or used it before.
pub(super) fn call_id(run: &mut Run, given: Option<String>) -> ItemId {
    if let Some(given) = given
        .filter(|id| !id.is_empty() && id.len() <= super::CALL_NAME_CHARS_MAX && !looks_like_an_ordinal(id))
    {
        let id = ItemId::new(given);
        if run.call_ids.insert(id.clone()) {
            return id;
        }
    }
    loop {
        let id = ItemId::new(format!("call_{}_{}", run.depth, run.next_item));
        run.next_item += 1;
        if run.call_ids.insert(id.clone()) {
            return id;
        }
    }
}

/// Whether an id has the form that [`Run::fresh_id`] gives: a call with such an id could be taken for a message.
fn looks_like_an_ordinal(id: &str) -> bool {
    id.split_once('.').is_some_and(|(depth, ordinal)| {
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        digits(depth) && digits(ordinal)
    })
}
