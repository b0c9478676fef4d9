//! What the machine remembers.
//!
//! Neighbours: command, input.

use std::collections::{HashMap, HashSet, VecDeque};

use raddle_protocol::event::{EventBody, LoggedItem, Origin, SteerAccepted};
use raddle_protocol::{
    Event, Item, ItemId, ItemKind, ItemStatus, Text, TokenCounts, TokenUsage, TurnSummary, UnixMillis,
};
use serde_json::Value;

use super::ARGUMENTS_DEPTH_MAX;
use super::command::{Append, Command, Reply};
use super::input::{RunSettings, Said};

/// When and how often a failed model is asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Tries of one reply in all; 1 means never again.
    pub attempts_max: u32,
    /// Milliseconds before the first retry; doubled for each further one.
    pub delay_first_ms: u64,
    /// The longest pause in milliseconds, a provider's own wish included; a longer wish fails the turn.
    pub delay_max_ms: u64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { attempts_max: 4, delay_first_ms: 500, delay_max_ms: 60_000 }
    }
}

/// A running turn.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) turn: TurnSummary,
    pub(super) depth: u32,
    pub(super) request_id: Option<String>,
    pub(super) settings: RunSettings,
    pub(super) stage: Stage,
    /// The next ordinal of an item in this turn.
    pub(super) next_item: u32,
    /// The next position among the turn's items.
    pub(super) next_index: u32,
    /// Replies of the model so far, the one in the making included.
    pub(super) reply: u32,
    /// Steers that the model has not seen.
    pub(super) steers: VecDeque<Steer>,
    /// Ids of calls on the branch, so that a model that repeats one gets two items all the same.
    pub(super) call_ids: HashSet<ItemId>,
    pub(super) usage: TokenUsage,
    /// The item of a turn that sums up the conversation, as it began.
    pub(super) compaction: Option<LoggedItem>,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// The model is asked, or about to be.
    Replying(Box<Replying>),
    /// The model failed and is left alone for a while.
    BackingOff { timer: u64, attempt: u32 },
    /// Its calls are being decided on and run.
    Calling(Calling),
    /// The turn is to end; what runs is being stopped.
    Settling { timer: u64, calls: Calling },
}

#[derive(Debug)]
pub(super) struct Replying {
    pub(super) call: u64,
    pub(super) attempt: u32,
    pub(super) open: Option<LoggedItem>,
    /// Items that this attempt has begun, to be withdrawn if it fails.
    pub(super) begun: Vec<ItemId>,
    pub(super) calls: Vec<raddle_models::ToolCall>,
    pub(super) counts: TokenCounts,
}

/// The calls of one reply.
#[derive(Debug, Default)]
pub(super) struct Calling {
    /// In the model's order.
    pub(super) order: Vec<ItemId>,
    pub(super) calls: HashMap<ItemId, Call>,
    /// Whether they may run side by side.
    pub(super) parallel: bool,
}

#[derive(Debug)]
pub(super) struct Call {
    pub(super) logged: LoggedItem,
    pub(super) progress: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It waits for its turn.
    Waiting,
    /// A person is asked.
    Asking,
    /// It runs.
    Running,
    /// It has its result.
    Done,
}

#[derive(Debug)]
pub(super) struct Steer {
    pub(super) item_id: ItemId,
    pub(super) said: Said,
    /// Its text as the queue shows it.
    pub(super) shown: Text,
}

/// Where the commands of one step go, with the time of the step.
pub(super) struct Out<'a> {
    pub(super) at: UnixMillis,
    pub(super) commands: &'a mut Vec<Command>,
}

impl Out<'_> {
    pub(super) fn push(&mut self, command: Command) {
        self.commands.push(command);
    }
}

impl Run {
    pub(super) fn append(&self, out: &mut Out<'_>, body: EventBody) {
        self.append_and_reply(out, body, None);
    }

    pub(super) fn append_and_reply(&self, out: &mut Out<'_>, body: EventBody, reply: Option<Reply>) {
        let event = Event { turn_id: Some(self.turn.id.clone()), at: out.at, body };
        out.push(Command::Append(Append { event, reply }));
    }

    /// A fresh id: the turn's depth on the branch, and an ordinal in the turn.
    pub(super) fn fresh_id(&mut self) -> ItemId {
        let id = ItemId::new(format!("{}.{}", self.depth, self.next_item));
        self.next_item += 1;
        id
    }

    pub(super) fn fresh_index(&mut self) -> u32 {
        let index = self.next_index;
        self.next_index += 1;
        index
    }

    pub(super) fn origin(&self) -> Origin {
        Origin { reply: self.reply, model: self.settings.model.clone(), signature: None, arguments: None }
    }

    /// A new item of the model at the end of the turn.
    pub(super) fn begin(&mut self, at: UnixMillis, id: ItemId, kind: ItemKind) -> LoggedItem {
        let item = Item {
            id,
            kind,
            status: ItemStatus::InProgress,
            index: Some(self.fresh_index()),
            parent_item_id: None,
            started_at: Some(at),
            completed_at: None,
        };
        LoggedItem { item, origin: Some(self.origin()) }
    }

    /// Appends a whole user message: what a start or a steer said.
    pub(super) fn say(&mut self, out: &mut Out<'_>, item_id: ItemId, said: Said) {
        self.record(out, item_id, said, ItemStatus::Completed);
    }

    /// Appends the steers that the model will never see, as interrupted: they were accepted, so they are not lost, and
    /// they are not sent in a later turn. Returns whether there were any.
    pub(super) fn withdraw_steers(&mut self, out: &mut Out<'_>) -> bool {
        let waiting = std::mem::take(&mut self.steers);
        let any = !waiting.is_empty();
        for steer in waiting {
            self.record(out, steer.item_id, steer.said, ItemStatus::Interrupted);
        }
        any
    }

    fn record(&mut self, out: &mut Out<'_>, item_id: ItemId, said: Said, status: ItemStatus) {
        let item = Item {
            id: item_id,
            kind: ItemKind::UserMessage {
                text: said.input.text,
                images: said.input.images,
                client_message_id: said.client_message_id,
            },
            status,
            index: Some(self.fresh_index()),
            parent_item_id: None,
            started_at: Some(out.at),
            completed_at: Some(out.at),
        };
        self.append(out, EventBody::ItemCompleted(LoggedItem { item, origin: None }));
    }

    pub(super) fn accept_steer(&mut self, out: &mut Out<'_>, steer: Steer, reply: Reply) {
        let accepted = SteerAccepted {
            item_id: steer.item_id.clone(),
            input: steer.said.input.clone(),
            idempotency_key: steer.said.idempotency_key.clone(),
        };
        self.append_and_reply(out, EventBody::SteerAccepted(accepted), Some(reply));
        self.steers.push_back(steer);
    }
}

/// Ends an item: `item/completed` with its final state.
pub(super) fn closed(mut logged: LoggedItem, status: ItemStatus, at: UnixMillis) -> EventBody {
    logged.item.status = status;
    logged.item.completed_at = Some(at);
    EventBody::ItemCompleted(logged)
}

/// Levels of nesting; the parser has bounded them already.
fn depth_of(value: &Value) -> usize {
    match value {
        Value::Array(values) => 1 + values.iter().map(depth_of).max().unwrap_or_default(),
        Value::Object(fields) => 1 + fields.values().map(depth_of).max().unwrap_or_default(),
        _ => 0,
    }
}

/// The arguments of a call as JSON; a string when the model wrote none.
pub(super) fn parsed_arguments(arguments: &str) -> Result<Value, Value> {
    match serde_json::from_str::<Value>(arguments) {
        Ok(value) if depth_of(&value) > ARGUMENTS_DEPTH_MAX => Err(Value::String(arguments.to_owned())),
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(other) => Err(other),
        Err(_) => Err(Value::String(arguments.to_owned())),
    }
}
