//! Threads, their settings and status, and the requests about them.
//!
//! Neighbours: ids, limits, model, time, turn, usage.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{ThreadId, TurnId};
use crate::model::ModelRef;
use crate::time::IsoTime;
use crate::turn::{Queue, Turn};
use crate::usage::TokenUsage;

/// A conversation, as lists and responses carry it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Thread {
    /// Its id.
    pub id: ThreadId,
    /// The project directory: absolute, canonical.
    pub cwd: String,
    /// A name that somebody gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The start of its first message; what to show without a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// When it was created.
    pub created_at: IsoTime,
    /// When something was last said in it.
    pub updated_at: IsoTime,
    /// The thread that it was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from_id: Option<ThreadId>,
    /// Whether it is put away.
    pub archived: bool,
    /// What it does now, in this process.
    pub status: ThreadStatus,
    /// Its settings.
    pub settings: ThreadSettings,
}

/// What a thread does now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ThreadStatus {
    /// It is on disk only.
    NotLoaded,
    /// It waits for input.
    Idle,
    /// A turn runs.
    Active {
        /// What the turn waits for, if it waits for a person.
        waiting_on: Vec<WaitingOn>,
    },
    /// It cannot go on; stays until the thread is loaded again.
    SystemError {
        /// Why.
        message: String,
    },
}

/// What a running turn waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum WaitingOn {
    /// A person's decision on a tool call.
    Approval,
    /// An answer to a question.
    Dialog,
}

/// What a thread remembers of how it is to run; stored on the branch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadSettings {
    /// The model for the next turn; absent: the process's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelRef>,
    /// Which tools ask first.
    #[serde(default, deserialize_with = "approval_mode_or_ask")]
    pub approval_mode: ApprovalMode,
    /// What the model is told besides what the engine tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
}

/// Stored state that cannot be read restores as `ask` (P6).
fn approval_mode_or_ask<'de, D: serde::Deserializer<'de>>(d: D) -> Result<ApprovalMode, D::Error> {
    let word = serde_json::Value::deserialize(d)?;
    Ok(serde_json::from_value(word).unwrap_or_default())
}

/// Which tool calls need a person's word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ApprovalMode {
    /// Whatever is not read-only.
    #[default]
    Ask,
    /// Whatever is neither read-only nor an edit inside the workspace.
    AutoEdit,
    /// Nothing.
    FullAccess,
}

/// Something that went wrong without stopping the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Warning {
    /// For people.
    pub message: String,
    /// Where it comes from.
    pub source: WarningSource,
    /// The file, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Its line, from one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Its column, from one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
}

/// Where a warning comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum WarningSource {
    /// The settings.
    Settings,
    /// An extension.
    Extension,
    /// Project trust.
    Trust,
    /// The server itself.
    Server,
}

/// Params of `thread/start`: `{"cwd":"/path/to/project","approvalMode":"ask"}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadStartParams {
    /// The project directory: absolute, existing.
    pub cwd: String,
    /// Which tools ask first; absent: `ask`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_mode: Option<ApprovalMode>,
    /// The model; absent: the process's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelRef>,
    /// A name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What the model is told besides what the engine tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// An id of the caller's own: 1–128 characters without control characters; one that is taken is `invalidParams` with
    /// `data.reason: "threadExists"`. Absent: the server makes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<ThreadId>,
}

/// Result of `thread/start`. The thread is durable and the connection subscribed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadStartResult {
    /// The new thread.
    pub thread: Thread,
    /// What went wrong on the way.
    pub warnings: Vec<Warning>,
}

/// Params of `thread/read` and `thread/resume`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadReadParams {
    /// The thread.
    pub thread_id: ThreadId,
    /// Where to go on; from `nextCursor` of an earlier page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Turns on the page, 1–50; absent: 50.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

impl ThreadReadParams {
    /// The newest page.
    pub fn newest(thread_id: ThreadId) -> Self {
        Self { thread_id, cursor: None, limit: None }
    }
}

/// Result of `thread/read`: one page of saved history, newest page first, turns in order within it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadReadResult {
    /// The thread.
    pub thread: Thread,
    /// The page's turns, oldest first.
    pub turns: Vec<Turn>,
    /// For the page before; absent on the oldest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Result of `thread/resume`: a page, and everything live as of the moment of sending.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadResumeResult {
    /// The thread.
    pub thread: Thread,
    /// The page's finished turns, oldest first. The running one is not among them.
    pub turns: Vec<Turn>,
    /// For the page before; absent on the oldest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// The turn that runs, as far as it is, whatever the cursor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_turn: Option<Turn>,
    /// What waits.
    pub queue: Queue,
    /// The thread's totals.
    pub usage: TokenUsage,
    /// What went wrong on the way.
    pub warnings: Vec<Warning>,
}

/// Params of `thread/list`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadListParams {
    /// Where to go on; from `nextCursor` of an earlier page with the same filters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Threads on the page, 1–200; absent: 50.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Only threads of this directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Only archived (`true`) or unarchived ones; absent: the unarchived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archived: Option<bool>,
    /// Only threads with this in their name or title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<String>,
}

/// Result of `thread/list`, newest activity first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadListResult {
    /// The page.
    pub threads: Vec<Thread>,
    /// For the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Params of `thread/settings/update`. What is absent stays as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadSettingsUpdateParams {
    /// The thread; loaded if it is not.
    pub thread_id: ThreadId,
    /// The model for the next turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelRef>,
    /// Which tools ask first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_mode: Option<ApprovalMode>,
    /// What the model is told besides what the engine tells it; empty: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
}

impl ThreadSettingsUpdateParams {
    /// A change of nothing, to be filled in.
    pub fn new(thread_id: ThreadId) -> Self {
        Self { thread_id, model: None, approval_mode: None, instructions: None }
    }
}

/// Result of `thread/settings/update`: the settings as they are now, durable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadSettingsUpdateResult {
    /// All settings.
    pub settings: ThreadSettings,
}

/// `thread/started`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadNotification {
    /// The thread.
    pub thread: Thread,
}

/// `thread/status/changed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadStatusNotification {
    /// The thread.
    pub thread_id: ThreadId,
    /// What it does now.
    pub status: ThreadStatus,
}

/// Params of methods that name a thread and nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadIdParams {
    /// The thread.
    pub thread_id: ThreadId,
}

impl From<ThreadId> for ThreadIdParams {
    fn from(thread_id: ThreadId) -> Self {
        Self { thread_id }
    }
}

/// Params of `thread/fork`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadForkParams {
    /// The source.
    pub thread_id: ThreadId,
    /// The last turn that the fork has; absent: the last one that has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
    /// An id of the caller's own for the fork, as for `thread/start`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_thread_id: Option<ThreadId>,
    /// Move everybody who subscribes to the source over to the fork, and tell them with `thread/replaced`. The source must
    /// be idle.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replace: bool,
}

/// Result of `thread/fork`: the fork is durable and the connection subscribed to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadForkResult {
    /// The fork.
    pub thread: Thread,
    /// What went wrong on the way.
    pub warnings: Vec<Warning>,
}

/// Params of `thread/name/set`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadNameSetParams {
    /// The thread.
    pub thread_id: ThreadId,
    /// The name, at most [`THREAD_NAME_CHARS_MAX`](crate::limits::THREAD_NAME_CHARS_MAX) characters; blank or null takes it
    /// away.
    #[serde(default)]
    pub name: Option<String>,
}

/// Result of `thread/name/set`: durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadNameSetResult {}

/// Result of `thread/archive`: durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadArchiveResult {}

/// Result of `thread/unarchive`: durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadUnarchiveResult {}

/// Result of `thread/delete`: durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadDeleteResult {}

/// Result of `thread/unsubscribe`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadUnsubscribeResult {
    /// What it did.
    pub status: UnsubscribeStatus,
}

/// What an unsubscribe did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum UnsubscribeStatus {
    /// The subscription ended.
    Unsubscribed,
    /// There was none.
    NotSubscribed,
}

/// Params of `thread/compact`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadCompactParams {
    /// The thread; loaded if it is not.
    pub thread_id: ThreadId,
    /// What the summary is to keep above all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
}

/// Result of `thread/compact`. It does not wait for the summary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadCompactResult {
    /// What it did.
    pub status: CompactStatus,
    /// The turn that holds the compaction, when one was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<TurnId>,
}

/// What a wish to compact led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CompactStatus {
    /// A turn runs that writes the summary.
    Started,
    /// Nothing was said since the last compaction, so there is nothing to shorten.
    NothingToCompact,
    /// Cancelled before it was accepted.
    Cancelled,
}

/// Params of `thread/rewind`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadRewindParams {
    /// The thread; loaded if it is not.
    pub thread_id: ThreadId,
    /// The turn that stays the last one; later ones leave the branch.
    pub turn_id: TurnId,
}

/// Result of `thread/rewind`: durable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadRewindResult {
    /// The branch's totals at its new end.
    pub usage: TokenUsage,
}

/// `thread/rewound`: turns after the named one left the branch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadRewoundNotification {
    /// The thread.
    pub thread_id: ThreadId,
    /// The last turn now.
    pub turn_id: TurnId,
    /// The branch's totals at its new end.
    pub usage: TokenUsage,
}

/// `thread/name/updated`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadNameNotification {
    /// The thread.
    pub thread_id: ThreadId,
    /// Its name now; absent: it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// `thread/archived`, `thread/unarchived` and `thread/deleted`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadIdNotification {
    /// The thread.
    pub thread_id: ThreadId,
}

/// `thread/replaced`: the subscription goes on in another thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThreadReplacedNotification {
    /// The thread that was subscribed.
    pub thread_id: ThreadId,
    /// The one that is subscribed now.
    pub thread: Thread,
}
