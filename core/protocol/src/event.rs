//! What the log keeps: one vocabulary for the store, the engine and the wire.
//!
//! An event that clients see bears the name of its notification, and [`Event::notification`] is the
//! only place where one becomes the other.
//!
//! Neighbours: approval, ids, item, methods, thread, time, turn, usage.

use serde::{Deserialize, Serialize};

use crate::approval::Decision;
use crate::ids::{ItemId, ThreadId, TurnId};
use crate::item::{Item, ItemKind, ItemStatus};
use crate::methods::ServerNotification;
use crate::model::ModelRef;
use crate::thread::ThreadSettings;
use crate::time::UnixMillis;
use crate::turn::{
    DeltaNotification, ItemNotification, ItemRemovedNotification, TurnError, TurnNotification,
    TurnRetryingNotification, TurnSummary, UserInput,
};
use crate::usage::{TokenUsage, TokenUsageUpdatedNotification};

/// One row of a thread's log.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The turn that it belongs to; none for what concerns the thread.
    pub turn_id: Option<TurnId>,
    /// When it was made.
    pub at: UnixMillis,
    /// What happened.
    pub body: EventBody,
}

/// An event with its place in the log: numbered from 1 in each thread, without gaps at the time of writing.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// The place.
    pub seq: u64,
    /// The event.
    pub event: Event,
}

/// What a commit must survive before anybody sees it (P1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// The death of the process.
    Tail,
    /// A power cut as well.
    Barrier,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum EventBody {
    /// The thread exists. Always its first event.
    ThreadStarted(ThreadStarted),
    /// Settings for the turns to come.
    SettingsUpdated(ThreadSettings),
    /// The thread has another name, or none.
    NameUpdated(ThreadNamed),
    /// The thread was put away, or taken out again.
    Archived(ThreadArchived),
    /// Later turns left the branch.
    Rewound(ThreadRewound),
    /// An input waits to start a turn of its own. It leaves the queue with that turn's start, or by
    /// [`Self::InputsUnqueued`].
    InputQueued(InputQueued),
    /// Inputs left the queue without a turn.
    InputsUnqueued(InputsUnqueued),
    /// A turn was accepted.
    TurnStarted(TurnStarted),
    /// An item began; for a tool call, before anything of it runs (P3).
    ItemStarted(LoggedItem),
    /// Text of an agent message.
    AgentMessageDelta(Delta),
    /// Text of a reasoning item.
    ReasoningDelta(Delta),
    /// Output of a running tool.
    ToolOutputDelta(Delta),
    /// An item as it finally is; replaces all earlier events of that item.
    ItemCompleted(LoggedItem),
    /// An item is withdrawn, with all its earlier events.
    ItemRemoved(ItemId),
    /// A person, or the lack of one, decided on a tool call.
    ApprovalDecided(ApprovalDecided),
    /// A steer was accepted; it becomes a user message when the model gets it.
    SteerAccepted(SteerAccepted),
    /// The provider failed and is asked again.
    TurnRetrying(TurnRetrying),
    /// A reply was finished and counted.
    TokenUsageUpdated(TokenUsage),
    /// The turn ended.
    TurnCompleted(TurnEnded),
}

/// Body of [`EventBody::ThreadStarted`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ThreadStarted {
    /// The project directory: absolute, canonical.
    pub cwd: String,
    /// A name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The thread that it was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from_id: Option<ThreadId>,
    /// The last turn of the source that the fork has; none for a fork without turns, and for a thread that is no fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_at: Option<TurnId>,
    /// Its first settings.
    pub settings: ThreadSettings,
}

/// Body of [`EventBody::NameUpdated`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ThreadNamed {
    /// The name; none takes it away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Body of [`EventBody::Archived`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ThreadArchived {
    /// Whether it is put away now.
    pub archived: bool,
}

/// Body of [`EventBody::Rewound`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ThreadRewound {
    /// The last turn now: one of the branch that has its end in the log.
    pub turn_id: TurnId,
}

/// Body of [`EventBody::InputQueued`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InputQueued {
    /// Its id in the queue, unique in the thread.
    pub id: String,
    /// What was said.
    #[serde(flatten)]
    pub input: UserInput,
    /// The client's token for the turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The client's token for the message; never stored.
    #[serde(skip)]
    pub client_message_id: Option<String>,
    /// The key of the send that queued it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// Body of [`EventBody::InputsUnqueued`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InputsUnqueued {
    /// Their ids.
    pub ids: Vec<String>,
    /// Why.
    pub reason: UnqueuedReason,
}

/// Why an input left the queue without a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum UnqueuedReason {
    /// A client took it back.
    Removed,
    /// An interrupt dropped it.
    Interrupted,
    /// Its turn could not start.
    Failed,
}

/// Body of [`EventBody::TurnStarted`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnStarted {
    /// The turn as it begins.
    pub turn: TurnSummary,
    /// The turn before it on the branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<TurnId>,
    /// Turns on the branch up to and including this one.
    pub depth: u32,
    /// The client's token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The queued input that it takes out of the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_id: Option<String>,
    /// The key of the send that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// Body of [`EventBody::TurnCompleted`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnEnded {
    /// The turn as it ended.
    pub turn: TurnSummary,
    /// The branch's totals at its end, so that a load need not sum up the branch.
    pub thread_usage: TokenUsage,
    /// The client's token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// An item with what only the log knows of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoggedItem {
    /// The item.
    pub item: Item,
    /// Where a model's item came from; needed to send it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

/// What a model needs to recognise its own words, byte for byte. Clients never see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// Which reply of the turn it was part of, from 1.
    pub reply: u32,
    /// The model that wrote it.
    pub model: ModelRef,
    /// An opaque signature of the reasoning or the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// A call's arguments as the model wrote them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
}

/// A piece of an unfinished item.
#[derive(Clone, Debug, PartialEq)]
pub struct Delta {
    /// The item.
    pub item_id: ItemId,
    /// What is added at the end.
    pub delta: String,
}

/// Body of [`EventBody::ApprovalDecided`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalDecided {
    /// The call.
    pub item_id: ItemId,
    /// The word; none when nobody could answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
    /// For the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Body of [`EventBody::SteerAccepted`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SteerAccepted {
    /// The user message that it will become.
    pub item_id: ItemId,
    /// What was said.
    #[serde(flatten)]
    pub input: UserInput,
    /// The key of the send that steered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// Body of [`EventBody::TurnRetrying`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnRetrying {
    /// Which attempt comes next.
    pub attempt: u32,
    /// After this many the turn fails.
    pub max_attempts: u32,
    /// How long the pause is.
    pub delay_ms: u64,
    /// What went wrong.
    pub error: TurnError,
}

/// The number of each kind in the database. Never reuse one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EventKind {
    /// [`EventBody::ThreadStarted`]
    ThreadStarted = 1,
    /// [`EventBody::SettingsUpdated`]
    SettingsUpdated = 2,
    /// [`EventBody::TurnStarted`]
    TurnStarted = 3,
    /// [`EventBody::ItemStarted`]
    ItemStarted = 4,
    /// [`EventBody::AgentMessageDelta`]
    AgentMessageDelta = 5,
    /// [`EventBody::ReasoningDelta`]
    ReasoningDelta = 6,
    /// [`EventBody::ToolOutputDelta`]
    ToolOutputDelta = 7,
    /// [`EventBody::ItemCompleted`]
    ItemCompleted = 8,
    /// [`EventBody::ItemRemoved`]
    ItemRemoved = 9,
    /// [`EventBody::ApprovalDecided`]
    ApprovalDecided = 10,
    /// [`EventBody::SteerAccepted`]
    SteerAccepted = 11,
    /// [`EventBody::TurnRetrying`]
    TurnRetrying = 12,
    /// [`EventBody::TokenUsageUpdated`]
    TokenUsageUpdated = 13,
    /// [`EventBody::TurnCompleted`]
    TurnCompleted = 14,
    /// [`EventBody::NameUpdated`]
    NameUpdated = 15,
    /// [`EventBody::Archived`]
    Archived = 16,
    /// [`EventBody::Rewound`]
    Rewound = 17,
    /// [`EventBody::InputQueued`]
    InputQueued = 18,
    /// [`EventBody::InputsUnqueued`]
    InputsUnqueued = 19,
}

/// A row that cannot be read back.
#[derive(Debug, thiserror::Error)]
pub enum EventDecodeError {
    /// A kind that this version does not know.
    #[error("event kind {0} is unknown: a newer version may have written it")]
    UnknownKind(u8),
    /// The body does not fit its kind.
    #[error("the body of an event of kind {kind} cannot be read")]
    Json {
        /// The kind's number.
        kind: u8,
        /// What the parser said.
        #[source]
        source: serde_json::Error,
    },
    /// A delta or a removal without its item, or text that is no UTF-8.
    #[error("an event of kind {0} is malformed")]
    Malformed(u8),
}

impl EventBody {
    /// Its kind.
    pub fn kind(&self) -> EventKind {
        match self {
            Self::ThreadStarted(_) => EventKind::ThreadStarted,
            Self::SettingsUpdated(_) => EventKind::SettingsUpdated,
            Self::TurnStarted(_) => EventKind::TurnStarted,
            Self::ItemStarted(_) => EventKind::ItemStarted,
            Self::AgentMessageDelta(_) => EventKind::AgentMessageDelta,
            Self::ReasoningDelta(_) => EventKind::ReasoningDelta,
            Self::ToolOutputDelta(_) => EventKind::ToolOutputDelta,
            Self::ItemCompleted(_) => EventKind::ItemCompleted,
            Self::ItemRemoved(_) => EventKind::ItemRemoved,
            Self::ApprovalDecided(_) => EventKind::ApprovalDecided,
            Self::SteerAccepted(_) => EventKind::SteerAccepted,
            Self::TurnRetrying(_) => EventKind::TurnRetrying,
            Self::TokenUsageUpdated(_) => EventKind::TokenUsageUpdated,
            Self::TurnCompleted(_) => EventKind::TurnCompleted,
            Self::NameUpdated(_) => EventKind::NameUpdated,
            Self::Archived(_) => EventKind::Archived,
            Self::Rewound(_) => EventKind::Rewound,
            Self::InputQueued(_) => EventKind::InputQueued,
            Self::InputsUnqueued(_) => EventKind::InputsUnqueued,
        }
    }

    /// The item that it concerns.
    pub fn item_id(&self) -> Option<&ItemId> {
        match self {
            Self::ItemStarted(logged) | Self::ItemCompleted(logged) => Some(&logged.item.id),
            Self::AgentMessageDelta(d) | Self::ReasoningDelta(d) | Self::ToolOutputDelta(d) => {
                Some(&d.item_id)
            }
            Self::ItemRemoved(id) => Some(id),
            Self::ApprovalDecided(decided) => Some(&decided.item_id),
            Self::SteerAccepted(steer) => Some(&steer.item_id),
            _ => None,
        }
    }

    /// What must be on disk before it is shown. Holds: P1.
    ///
    /// Deltas survive the process, as do the notes between boundaries that nobody acts on (the start of a
    /// message that has no text yet, the counts of a reply, a retry); everything else survives a power cut.
    pub fn durability(&self) -> Durability {
        match self {
            Self::AgentMessageDelta(_)
            | Self::ReasoningDelta(_)
            | Self::ToolOutputDelta(_)
            | Self::TurnRetrying(_)
            | Self::TokenUsageUpdated(_) => Durability::Tail,
            Self::ItemStarted(logged) => match logged.item.kind {
                ItemKind::AgentMessage { .. } | ItemKind::Reasoning { .. } => Durability::Tail,
                _ => Durability::Barrier,
            },
            _ => Durability::Barrier,
        }
    }

    /// The body as the database keeps it: plain text for deltas, JSON for the rest.
    pub fn encode(&self) -> Vec<u8> {
        fn json(value: &impl Serialize) -> Vec<u8> {
            // Our own types have string keys and no failing serializers, so this cannot fail; an empty body
            // would be refused by `decode`, never mistaken for something else.
            serde_json::to_vec(value).unwrap_or_default()
        }
        match self {
            Self::AgentMessageDelta(d) | Self::ReasoningDelta(d) | Self::ToolOutputDelta(d) => {
                d.delta.as_bytes().to_vec()
            }
            Self::ItemRemoved(_) => Vec::new(),
            Self::ThreadStarted(v) => json(v),
            Self::SettingsUpdated(v) => json(v),
            Self::TurnStarted(v) => json(v),
            Self::ItemStarted(v) | Self::ItemCompleted(v) => match v.item.without_client_token() {
                Some(item) => json(&LoggedItem { item, origin: v.origin.clone() }),
                None => json(v),
            },
            Self::ApprovalDecided(v) => json(v),
            Self::SteerAccepted(v) => json(v),
            Self::TurnRetrying(v) => json(v),
            Self::TokenUsageUpdated(v) => json(v),
            Self::TurnCompleted(v) => json(v),
            Self::NameUpdated(v) => json(v),
            Self::Archived(v) => json(v),
            Self::Rewound(v) => json(v),
            Self::InputQueued(v) => json(v),
            Self::InputsUnqueued(v) => json(v),
        }
    }

    /// The reverse of [`encode`](Self::encode).
    ///
    /// # Errors
    /// When the kind is unknown or the body does not fit it.
    pub fn decode(kind: u8, item_id: Option<ItemId>, body: &[u8]) -> Result<Self, EventDecodeError> {
        fn json<T: serde::de::DeserializeOwned>(kind: u8, body: &[u8]) -> Result<T, EventDecodeError> {
            serde_json::from_slice(body).map_err(|source| EventDecodeError::Json { kind, source })
        }
        let delta = |item_id: Option<ItemId>| -> Result<Delta, EventDecodeError> {
            match (item_id, std::str::from_utf8(body)) {
                (Some(item_id), Ok(text)) => Ok(Delta { item_id, delta: text.to_owned() }),
                _ => Err(EventDecodeError::Malformed(kind)),
            }
        };
        Ok(match kind {
            1 => Self::ThreadStarted(json(kind, body)?),
            2 => Self::SettingsUpdated(json(kind, body)?),
            3 => Self::TurnStarted(json(kind, body)?),
            4 => Self::ItemStarted(json(kind, body)?),
            5 => Self::AgentMessageDelta(delta(item_id)?),
            6 => Self::ReasoningDelta(delta(item_id)?),
            7 => Self::ToolOutputDelta(delta(item_id)?),
            8 => Self::ItemCompleted(json(kind, body)?),
            9 => Self::ItemRemoved(item_id.ok_or(EventDecodeError::Malformed(kind))?),
            10 => Self::ApprovalDecided(json(kind, body)?),
            11 => Self::SteerAccepted(json(kind, body)?),
            12 => Self::TurnRetrying(json(kind, body)?),
            13 => Self::TokenUsageUpdated(json(kind, body)?),
            14 => Self::TurnCompleted(json(kind, body)?),
            15 => Self::NameUpdated(json(kind, body)?),
            16 => Self::Archived(json(kind, body)?),
            17 => Self::Rewound(json(kind, body)?),
            18 => Self::InputQueued(json(kind, body)?),
            19 => Self::InputsUnqueued(json(kind, body)?),
            _ => return Err(EventDecodeError::UnknownKind(kind)),
        })
    }
}

impl Event {
    /// The `item/started` that goes before [`notification`](Self::notification), for an item that begins and
    /// ends with one event: a user message. (Two rows for one fact would cost each turn twice its text.)
    pub fn opening(&self, thread_id: &ThreadId) -> Option<ServerNotification> {
        let EventBody::ItemCompleted(LoggedItem { item, .. }) = &self.body else { return None };
        if !matches!(item.kind, ItemKind::UserMessage { .. }) {
            return None;
        }
        let item = Item { status: ItemStatus::InProgress, completed_at: None, ..item.clone() };
        Some(ServerNotification::ItemStarted(ItemNotification {
            thread_id: thread_id.clone(),
            turn_id: self.turn_id.clone()?,
            item,
        }))
    }

    /// What subscribers of `thread_id` are told, if anything.
    pub fn notification(&self, thread_id: &ThreadId) -> Option<ServerNotification> {
        let thread_id = thread_id.clone();
        let turn_id = self.turn_id.clone()?;
        let delta = |thread_id, turn_id, d: &Delta| DeltaNotification {
            thread_id,
            turn_id,
            item_id: d.item_id.clone(),
            delta: d.delta.clone(),
        };
        Some(match &self.body {
            EventBody::TurnStarted(started) => ServerNotification::TurnStarted(TurnNotification {
                thread_id,
                turn: started.turn.clone(),
                request_id: started.request_id.clone(),
            }),
            EventBody::ItemStarted(logged) => ServerNotification::ItemStarted(ItemNotification {
                thread_id,
                turn_id,
                item: logged.item.clone(),
            }),
            EventBody::ItemCompleted(logged) => ServerNotification::ItemCompleted(ItemNotification {
                thread_id,
                turn_id,
                item: logged.item.clone(),
            }),
            EventBody::AgentMessageDelta(d) => {
                ServerNotification::ItemAgentMessageDelta(delta(thread_id, turn_id, d))
            }
            EventBody::ReasoningDelta(d) => {
                ServerNotification::ItemReasoningDelta(delta(thread_id, turn_id, d))
            }
            EventBody::ToolOutputDelta(d) => {
                ServerNotification::ItemToolCallOutputDelta(delta(thread_id, turn_id, d))
            }
            EventBody::ItemRemoved(item_id) => ServerNotification::ItemRemoved(ItemRemovedNotification {
                thread_id,
                turn_id,
                item_id: item_id.clone(),
            }),
            EventBody::TurnRetrying(retry) => ServerNotification::TurnRetrying(TurnRetryingNotification {
                thread_id,
                turn_id,
                attempt: retry.attempt,
                max_attempts: retry.max_attempts,
                delay_ms: retry.delay_ms,
                error: retry.error.clone(),
            }),
            EventBody::TokenUsageUpdated(usage) => {
                ServerNotification::ThreadTokenUsageUpdated(TokenUsageUpdatedNotification {
                    thread_id,
                    turn_id,
                    usage: *usage,
                })
            }
            EventBody::TurnCompleted(ended) => ServerNotification::TurnCompleted(TurnNotification {
                thread_id,
                turn: ended.turn.clone(),
                request_id: ended.request_id.clone(),
            }),
            // Those of the thread go to everybody, or with more than the log has of them.
            EventBody::ThreadStarted(_)
            | EventBody::SettingsUpdated(_)
            | EventBody::NameUpdated(_)
            | EventBody::Archived(_)
            | EventBody::Rewound(_)
            | EventBody::InputQueued(_)
            | EventBody::InputsUnqueued(_)
            | EventBody::ApprovalDecided(_)
            | EventBody::SteerAccepted(_) => return None,
        })
    }
}
