//! Inputs that wait: for the running turn's end, or for its next reply.
//!
//! A queued input leaves the queue with the start of its own turn, which the driver brings about when nothing runs.
//!
//! Neighbours: command, input, machine, state.

use raddle_protocol::Event;
use raddle_protocol::event::{EventBody, InputQueued, InputsUnqueued, UnqueuedReason};
use raddle_protocol::limits::{INLINE_BYTES_MAX, QUEUED_BYTES_MAX, QUEUED_INPUTS_MAX};
use raddle_protocol::methods::ServerNotification;
use raddle_protocol::payload::{Payload, Text};
use raddle_protocol::turn::{Queue, QueuedInput, TurnQueueUpdatedNotification};

use super::command::{Append, Command, Outcome, Refusal, Reply, Token};
use super::machine::{Machine, refuse};
use super::state::Out;

/// An input that waits for a turn of its own.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) input: InputQueued,
    shown: Text,
}

impl From<InputQueued> for Waiting {
    fn from(input: InputQueued) -> Self {
        let shown = shown_text(&input.input.text);
        Self { input, shown }
    }
}

/// A text as the queue shows it, which it does again with every change: a long one by its reference, made once. It has the name
/// under which the store keeps the text.
pub(super) fn shown_text(text: &Text) -> Text {
    match text.whole() {
        Some(whole) if whole.len() > INLINE_BYTES_MAX => Text::referenced(Payload::text(whole).reference()),
        _ => text.clone(),
    }
}

impl Machine {
    /// The input whose turn comes next, once nothing runs.
    pub fn next_queued(&self) -> Option<&InputQueued> {
        self.queue.front().map(|waiting| &waiting.input)
    }

    /// What waits.
    pub fn queue(&self) -> Queue {
        let steers = self.run.iter().flat_map(|run| &run.steers);
        Queue {
            steering: steers.map(|steer| steer.shown.clone()).collect(),
            follow_up: self.queue.iter().map(shown).collect(),
        }
    }

    pub(super) fn queue_updated(&self) -> Command {
        Command::Notify(ServerNotification::TurnQueueUpdated(TurnQueueUpdatedNotification {
            thread_id: self.thread_id.clone(),
            queue: self.queue(),
        }))
    }

    pub(super) fn enqueue(&mut self, out: &mut Out<'_>, token: Token, queued: InputQueued) {
        if self.queue.len() >= QUEUED_INPUTS_MAX {
            return refuse(out, token, Refusal::QueueFull(QUEUED_INPUTS_MAX));
        }
        let waiting: usize = self.queue.iter().map(|waiting| waiting.input.input.bytes()).sum();
        if waiting + queued.input.bytes() > QUEUED_BYTES_MAX {
            return refuse(out, token, Refusal::TooMuchWaits(QUEUED_BYTES_MAX));
        }
        let reply = Reply { token, outcome: Outcome::Queued(queued.id.clone()) };
        append(out, EventBody::InputQueued(queued.clone()), Some(reply));
        self.queue.push_back(queued.into());
        out.push(self.queue_updated());
    }

    pub(super) fn unqueue(&mut self, out: &mut Out<'_>, token: Token, queue_id: &str) {
        let removed = self.take_queued(queue_id);
        let reply = Reply { token, outcome: Outcome::Unqueued(removed) };
        if removed {
            append(out, unqueued(vec![queue_id.to_owned()], UnqueuedReason::Removed), Some(reply));
            out.push(self.queue_updated());
        } else {
            out.push(Command::Answer(reply));
        }
    }

    pub(super) fn drop_queued(&mut self, out: &mut Out<'_>, queue_id: &str) {
        if self.take_queued(queue_id) {
            append(out, unqueued(vec![queue_id.to_owned()], UnqueuedReason::Failed), None);
            out.push(self.queue_updated());
        }
    }

    /// Drops all that waits for a turn of its own. Their owners have the texts from `turn/queue/updated`.
    pub(super) fn clear_queue(&mut self, out: &mut Out<'_>, reply: Reply) {
        let ids = self.queue.drain(..).map(|waiting| waiting.input.id).collect();
        append(out, unqueued(ids, UnqueuedReason::Interrupted), Some(reply));
        out.push(self.queue_updated());
    }

    fn take_queued(&mut self, queue_id: &str) -> bool {
        let before = self.queue.len();
        self.queue.retain(|waiting| waiting.input.id != queue_id);
        self.queue.len() < before
    }
}

fn shown(waiting: &Waiting) -> QueuedInput {
    QueuedInput { id: waiting.input.id.clone(), text: waiting.shown.clone() }
}

fn unqueued(ids: Vec<String>, reason: UnqueuedReason) -> EventBody {
    EventBody::InputsUnqueued(InputsUnqueued { ids, reason })
}

/// Appends what concerns the thread and no turn of it.
fn append(out: &mut Out<'_>, body: EventBody, reply: Option<Reply>) {
    let event = Event { turn_id: None, at: out.at, body };
    out.push(Command::Append(Append { event, reply }));
}
