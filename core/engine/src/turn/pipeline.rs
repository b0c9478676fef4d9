//! Commands in order: commit, then fan out, then act.
//!
//! At most one commit is under way. What the machine wants meanwhile waits behind it, and deltas of one item that
//! wait become one: so the batch is whatever arrived while the last commit ran, without a timer.
//!
//! Neighbours: command.

use std::collections::VecDeque;

use raddle_protocol::event::{Delta, EventBody};
use raddle_protocol::{Event, ItemId};

use super::command::{Append, Command, Reply};

/// Bytes of text in one merged delta; at more, the next delta stands for itself.
pub(super) const DELTA_BYTES_MAX: usize = 64 * 1024;

/// Bytes of text that may wait for a commit; at more, the model and the tools are not listened to.
pub(super) const WAITING_BYTES_MAX: usize = 1024 * 1024;

/// What may be done now.
#[derive(Debug)]
pub enum Step {
    /// Commit these events; report with [`Pipeline::committed`].
    Commit(Vec<Event>),
    /// Do this.
    Act(Box<Command>),
    /// Nothing, until a commit is done or something new comes.
    Wait,
}

/// The commands of one thread.
#[derive(Debug, Default)]
pub struct Pipeline {
    waiting: VecDeque<Command>,
    waiting_bytes: usize,
    /// The answers that the commit under way will give, one a place among its events.
    in_flight: Option<Vec<Option<Reply>>>,
    never_ran: Vec<ItemId>,
}

impl Pipeline {
    /// Adds commands at the end.
    pub fn extend(&mut self, commands: impl IntoIterator<Item = Command>) {
        for command in commands {
            self.push(command);
        }
    }

    fn push(&mut self, command: Command) {
        match command {
            Command::Append(append) => self.push_append(append),
            Command::CancelTool(item_id) => self.push_cancel(item_id),
            Command::DropModel => {
                self.waiting.retain(|waiting| !matches!(waiting, Command::CallModel { .. }));
                self.waiting.push_back(Command::DropModel);
            }
            other => self.waiting.push_back(other),
        }
    }

    fn push_append(&mut self, append: Append) {
        self.waiting_bytes += text_bytes(&append.event);
        if let Some(Command::Append(last)) = self.waiting.back_mut()
            && merge(&mut last.event, &append)
        {
            return;
        }
        self.waiting.push_back(Command::Append(append));
    }

    /// A tool that is cancelled before it began never begins.
    fn push_cancel(&mut self, item_id: ItemId) {
        let before = self.waiting.len();
        self.waiting.retain(
            |waiting| !matches!(waiting, Command::RunTool { item_id: queued, .. } if *queued == item_id),
        );
        if self.waiting.len() < before {
            self.never_ran.push(item_id);
        } else {
            self.waiting.push_back(Command::CancelTool(item_id));
        }
    }

    /// Tools that were cancelled before they began, to be reported to the machine as ended.
    pub fn take_never_ran(&mut self) -> Vec<ItemId> {
        std::mem::take(&mut self.never_ran)
    }

    /// What may be done now.
    pub fn next_step(&mut self) -> Step {
        if self.in_flight.is_some() {
            return Step::Wait;
        }
        if !matches!(self.waiting.front(), Some(Command::Append(_))) {
            return self.waiting.pop_front().map_or(Step::Wait, |command| Step::Act(Box::new(command)));
        }
        let (mut events, mut replies) = (Vec::new(), Vec::new());
        while let Some(Command::Append(_)) = self.waiting.front() {
            if let Some(Command::Append(append)) = self.waiting.pop_front() {
                self.waiting_bytes -= text_bytes(&append.event);
                events.push(append.event);
                replies.push(append.reply);
            }
        }
        self.in_flight = Some(replies);
        Step::Commit(events)
    }

    /// The commit is done. Given back the events that it held, says what is to be answered and fanned out.
    pub fn committed(&mut self, events: Vec<Event>) -> impl Iterator<Item = Append> + use<> {
        let replies = self.in_flight.take().unwrap_or_default();
        debug_assert_eq!(events.len(), replies.len());
        events.into_iter().zip(replies).map(|(event, reply)| Append { event, reply })
    }

    /// Whether nothing waits and nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.in_flight.is_none() && self.waiting.is_empty()
    }

    /// Whether there is room for more text (P7).
    pub fn has_room(&self) -> bool {
        self.waiting_bytes < WAITING_BYTES_MAX
    }

    /// Forgets everything; the commit under way has failed, or the thread is lost. Returns the answers that were
    /// still to be given.
    pub fn abandon(&mut self) -> Vec<Reply> {
        let in_flight = self.in_flight.take().unwrap_or_default();
        let waiting = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        self.never_ran.clear();
        let replies = in_flight.into_iter().flatten();
        replies
            .chain(waiting.into_iter().filter_map(|command| match command {
                Command::Append(append) => append.reply,
                Command::Answer(reply) => Some(reply),
                _ => None,
            }))
            .collect()
    }
}

fn text_bytes(event: &Event) -> usize {
    delta_of(&event.body).map_or(0, |delta| delta.delta.len())
}

fn delta_of(body: &EventBody) -> Option<&Delta> {
    match body {
        EventBody::AgentMessageDelta(d) | EventBody::ReasoningDelta(d) | EventBody::ToolOutputDelta(d) => {
            Some(d)
        }
        _ => None,
    }
}

/// Adds a delta to the one before it, if they are of the same item and there is room.
fn merge(last: &mut Event, next: &Append) -> bool {
    let (
        EventBody::AgentMessageDelta(last)
        | EventBody::ReasoningDelta(last)
        | EventBody::ToolOutputDelta(last),
        Some(next),
    ) = (&mut last.body, delta_of(&next.event.body))
    else {
        return false;
    };
    if last.item_id != next.item_id || last.delta.len() + next.delta.len() > DELTA_BYTES_MAX {
        return false;
    }
    last.delta.push_str(&next.delta);
    true
}
