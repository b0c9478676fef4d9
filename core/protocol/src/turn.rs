//! Turns: one run of the agent between a start and an end, and the requests about it.
//!
//! Neighbours: ids, item, payload, time, usage.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{ItemId, ThreadId, TurnId};
use crate::item::{Image, Item};
use crate::payload::{Items, Text};
use crate::time::UnixMillis;
use crate::usage::TokenUsage;

/// A turn without its items, as `turn/started` and `turn/completed` carry it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnSummary {
    /// Its id.
    pub id: TurnId,
    /// The thread that ran it. In a fork this can be the source.
    pub thread_id: ThreadId,
    /// How far it is.
    pub status: TurnStatus,
    /// When it was accepted.
    pub started_at: UnixMillis,
    /// When it ended; absent while it runs, and when a crash hid its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<UnixMillis>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TurnError>,
    /// What this turn alone used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<TokenUsage>,
}

/// A turn with its items, in their order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Turn {
    /// All but the items.
    #[serde(flatten)]
    pub summary: TurnSummary,
    /// By `index`, nested ones after their parent.
    pub items: Items,
}

/// How far a turn is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum TurnStatus {
    /// It runs.
    InProgress,
    /// The model said all it had to say.
    Completed,
    /// It could not go on; see `error`.
    Failed,
    /// Stopped by the user, a shutdown or a crash. A saved turn without an end reads as this.
    Interrupted,
}

/// Why a turn failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnError {
    /// For people; at most [`TURN_ERROR_CHARS_MAX`](crate::limits::TURN_ERROR_CHARS_MAX) characters.
    pub message: String,
    /// The class, for programs.
    pub kind: TurnErrorKind,
}

/// The class of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum TurnErrorKind {
    /// The provider does not know the caller, or not this one.
    Auth,
    /// Too much, too fast, or a quota is used up.
    RateLimit,
    /// The conversation is longer than the model takes.
    ContextOverflow,
    /// The provider could not be reached, went silent, or cut its answer.
    Network,
    /// The provider failed.
    Provider,
    /// Anything else.
    Other,
}

/// Params of `turn/start`: `{"threadId":"…","text":"Explain this repository"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnStartParams {
    /// The thread; loaded if it is not.
    pub thread_id: ThreadId,
    /// What the user says. May be empty beside images.
    #[serde(default)]
    pub text: String,
    /// Pictures beside it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<ImageInput>,
    /// The client's token, echoed in the response and in `turn/started`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The client's token for the user message, 1–128 characters, echoed while the turn is live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_message_id: Option<String>,
}

impl TurnStartParams {
    /// A text for a thread, without client tokens.
    pub fn new(thread_id: ThreadId, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { thread_id, text, images: Vec::new(), request_id: None, client_message_id: None }
    }
}

/// A picture as a client gives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, rename_all_fields = "camelCase")]
pub enum ImageInput {
    /// In the message itself.
    Inline {
        /// `image/png`, `image/jpeg`, `image/gif` or `image/webp`; must be what the bytes are.
        mime_type: String,
        /// The bytes in base64.
        data: String,
    },
    /// A file that the server reads: absolute, regular, of one of the same formats.
    Path {
        /// Where it lies.
        path: String,
    },
}

/// What a user says, as it is kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UserInput {
    /// The text.
    pub text: Text,
    /// Pictures beside it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<Image>,
}

impl UserInput {
    /// Bytes of its text and of its pictures in base64.
    pub fn bytes(&self) -> usize {
        self.text.len() + self.images.iter().map(|image| image.data.len()).sum::<usize>()
    }
}

impl From<&str> for UserInput {
    fn from(text: &str) -> Self {
        Self { text: text.into(), images: Vec::new() }
    }
}

/// What became of an accepted input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum StartStatus {
    /// A turn runs.
    Started,
    /// An extension took the input.
    Handled,
    /// Cancelled before it was accepted.
    Cancelled,
}

/// Result of `turn/start`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnStartResult {
    /// What became of the input.
    pub status: StartStatus,
    /// The thread that the turn runs in.
    pub thread_id: ThreadId,
    /// The turn, when one was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// The client's token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// Params of `turn/steer`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnSteerParams {
    /// The thread.
    pub thread_id: ThreadId,
    /// The turn that runs, as far as the client knows; another one is `turnMismatch`.
    pub expected_turn_id: TurnId,
    /// What the user adds.
    pub text: String,
    /// Pictures beside it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<ImageInput>,
    /// The client's token for the user message, 1–128 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_message_id: Option<String>,
}

impl TurnSteerParams {
    /// A text for a running turn, without a client token.
    pub fn new(thread_id: ThreadId, expected_turn_id: TurnId, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { thread_id, expected_turn_id, text, images: Vec::new(), client_message_id: None }
    }
}

/// Result of `turn/steer`: the input is durable and cannot be taken back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnSteerResult {
    /// The turn that took it.
    pub turn_id: TurnId,
}

/// Params of `turn/interrupt`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnInterruptParams {
    /// The thread.
    pub thread_id: ThreadId,
    /// The turn to stop; one that does not run is `turnMismatch`. Absent: whichever runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
}

/// Result of `turn/interrupt`. It does not wait for the turn's end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TurnInterruptResult {}

/// `turn/started`, `turn/completed` and `thread/turn/completed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnNotification {
    /// The thread.
    pub thread_id: ThreadId,
    /// The turn, without items.
    pub turn: TurnSummary,
    /// The token of the `turn/start` that began it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// `turn/retrying`: the provider failed and is asked again after a pause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnRetryingNotification {
    /// The thread.
    pub thread_id: ThreadId,
    /// The turn.
    pub turn_id: TurnId,
    /// Which attempt comes next; the first retry is 2.
    pub attempt: u32,
    /// After this many the turn fails.
    pub max_attempts: u32,
    /// How long the pause is.
    pub delay_ms: u64,
    /// What went wrong.
    pub error: TurnError,
}

/// `turn/queue/updated`: what waits in a thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnQueueUpdatedNotification {
    /// The thread.
    pub thread_id: ThreadId,
    /// What waits.
    #[serde(flatten)]
    pub queue: Queue,
}

/// Inputs that wait: steers that the model has not seen, and inputs that will start turns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Queue {
    /// Texts of accepted steers, oldest first.
    pub steering: Vec<Text>,
    /// Inputs that each start a turn of their own, oldest first.
    pub follow_up: Vec<QueuedInput>,
}

/// An input that will start a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueuedInput {
    /// For `turn/queue/remove`.
    pub id: String,
    /// Its text.
    pub text: Text,
}

/// Params of `turn/queue/add`: an input that starts a turn of its own once the thread is idle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnQueueAddParams {
    /// The thread; loaded if it is not.
    pub thread_id: ThreadId,
    /// What the user says. May be empty beside images.
    #[serde(default)]
    pub text: String,
    /// Pictures beside it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<ImageInput>,
    /// The client's token, echoed in `turn/started` of the turn that it starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The client's token for the user message, 1–128 characters. It is not stored: a turn that starts after a restart
    /// does not echo it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_message_id: Option<String>,
}

impl TurnQueueAddParams {
    /// A text for a thread, without client tokens.
    pub fn new(thread_id: ThreadId, text: impl Into<String>) -> Self {
        Self { thread_id, text: text.into(), images: Vec::new(), request_id: None, client_message_id: None }
    }
}

/// Result of `turn/queue/add`. The input is durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnQueueAddResult {
    /// For `turn/queue/remove`.
    pub queue_id: String,
}

/// Params of `turn/queue/remove`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnQueueRemoveParams {
    /// The thread.
    pub thread_id: ThreadId,
    /// From `turn/queue/add` or `turn/queue/updated`.
    pub queue_id: String,
}

/// Result of `turn/queue/remove`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TurnQueueRemoveResult {
    /// The input will not start. False: it was unknown, had started, or was removed before.
    pub removed: bool,
}

/// Params of `turn/send`: one atomic step that starts, steers or queues, whichever fits the thread's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnSendParams {
    /// As for `turn/start`.
    #[serde(flatten)]
    pub start: TurnStartParams,
    /// What to do when a turn runs.
    #[serde(default)]
    pub mode: SendMode,
    /// The same key in the same thread is the same send: it does nothing more, and gets the first one's result. 1–128
    /// characters; a thread remembers its newest [`SEND_KEYS_MAX`](crate::limits::SEND_KEYS_MAX).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// What a send does when a turn runs. On an idle thread each starts a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum SendMode {
    /// Steer the running turn; queue where it takes no steers.
    #[default]
    Auto,
    /// Steer the running turn, whichever it is.
    Steer,
    /// Wait for it.
    Queue,
}

/// What a send did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum SendStatus {
    /// A turn runs.
    Started,
    /// The running turn has it.
    Steered,
    /// It waits.
    Queued,
    /// An extension took it.
    Handled,
    /// Cancelled before it was accepted.
    Cancelled,
}

/// Result of `turn/send`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnSendResult {
    /// What it did.
    pub status: SendStatus,
    /// The thread.
    pub thread_id: ThreadId,
    /// The turn that was started or steered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// For `turn/queue/remove`, when it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_id: Option<String>,
    /// The client's token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// `item/started` and `item/completed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ItemNotification {
    /// The thread.
    pub thread_id: ThreadId,
    /// The turn.
    pub turn_id: TurnId,
    /// The whole item; it replaces what was known of it.
    pub item: Item,
}

/// `item/removed`: the item is withdrawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ItemRemovedNotification {
    /// The thread.
    pub thread_id: ThreadId,
    /// The turn.
    pub turn_id: TurnId,
    /// The item.
    pub item_id: ItemId,
}

/// `item/agentMessage/delta`, `item/reasoning/delta` and `item/toolCall/outputDelta`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeltaNotification {
    /// The thread.
    pub thread_id: ThreadId,
    /// The turn.
    pub turn_id: TurnId,
    /// The item.
    pub item_id: ItemId,
    /// What is added at the end.
    pub delta: String,
}
