//! Approvals: the one server request of this version, and its answer.
//!
//! Neighbours: ids.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::{ItemId, RequestId, ThreadId, TurnId};

/// Params of the server request `item/toolCall/requestApproval`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RequestApprovalParams {
    /// The thread.
    pub thread_id: ThreadId,
    /// The turn.
    pub turn_id: TurnId,
    /// The tool call.
    pub item_id: ItemId,
    /// The tool.
    pub tool_name: String,
    /// Its arguments, or a [`PayloadReference`](crate::PayloadReference) to them.
    pub input: Value,
    /// What may be answered; anything else counts as `decline`.
    pub decisions: Vec<Decision>,
    /// Why the gate asks, if there is more to it than the mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The words of a command that `acceptPrefixForSession` would grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<Vec<String>>,
}

/// A person's word on a tool call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Decision {
    /// Run it, this once.
    Accept,
    /// Run it, and this tool from now on.
    AcceptForSession,
    /// Run it, and commands with this prefix from now on.
    AcceptPrefixForSession,
    /// Do not run it; the model is told and goes on.
    Decline,
    /// Do not run it; the turn ends.
    Cancel,
}

/// The answer: `{"decision":"decline","message":"Use the project-local file instead"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RequestApprovalResult {
    /// The word.
    #[serde(deserialize_with = "decision_or_decline")]
    pub decision: Decision,
    /// For the model, with a `decline`; cut at 4,000 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A word that nobody knows never grants anything (P6).
fn decision_or_decline<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Decision, D::Error> {
    let word = Value::deserialize(d)?;
    Ok(serde_json::from_value(word).unwrap_or(Decision::Decline))
}

impl RequestApprovalResult {
    /// An answer without a message.
    pub fn new(decision: Decision) -> Self {
        Self { decision, message: None }
    }
}

/// `serverRequest/cancelled`: the request needs no answer any more; a late one is ignored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerRequestCancelledNotification {
    /// The request's id.
    pub id: RequestId,
    /// Why.
    pub reason: String,
}
