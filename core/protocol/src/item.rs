//! Items: what a turn is made of.
//!
//! Neighbours: ids, time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::ItemId;
use crate::time::UnixMillis;

/// One piece of a turn: a message, a stretch of reasoning, a tool call.
///
/// `{"id":"1.0","type":"userMessage","status":"completed","index":0,"text":"hi","completedAt":1767225600000}`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Item {
    /// Unique on the branch.
    pub id: ItemId,
    /// What the item is, with what belongs to that.
    #[serde(flatten)]
    pub kind: ItemKind,
    /// How far it is.
    pub status: ItemStatus,
    /// The top-level position in the turn; absent for nested items. The latest value counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// The item that this one is nested in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_item_id: Option<ItemId>,
    /// When it began; provisional until the item is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<UnixMillis>,
    /// When it ended; absent while it goes on, and when its end was never seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<UnixMillis>,
}

/// The kinds of items, by their `type`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ItemKind {
    /// What the user said, or steered with.
    UserMessage {
        /// The text.
        text: String,
        /// The client's own token, echoed while the turn is live; never stored.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client_message_id: Option<String>,
    },
    /// What the model answered.
    AgentMessage {
        /// The text so far, or the whole of it.
        text: String,
    },
    /// What the model thought aloud.
    Reasoning {
        /// The text so far, or the whole of it.
        text: String,
    },
    /// A tool that the model called.
    ToolCall {
        /// The tool's name as the model wrote it.
        tool_name: String,
        /// The arguments; a string where the model wrote no valid JSON.
        input: Value,
        /// What the tool printed so far, or what the model was told at the end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<String>,
        /// Whether the output tells of a failure.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
    },
}

impl ItemKind {
    /// The word in `type`.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::UserMessage { .. } => "userMessage",
            Self::AgentMessage { .. } => "agentMessage",
            Self::Reasoning { .. } => "reasoning",
            Self::ToolCall { .. } => "toolCall",
        }
    }
}

/// Bytes of a JSON value: its strings, and a flat amount for each node.
pub fn value_bytes(value: &Value) -> usize {
    const NODE: usize = 16;
    NODE + match value {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(value_bytes).sum(),
        Value::Object(fields) => fields.iter().map(|(key, value)| key.len() + value_bytes(value)).sum(),
        _ => 0,
    }
}

impl Item {
    /// Bytes of its texts: roughly what it takes in a message.
    pub fn text_bytes(&self) -> usize {
        match &self.kind {
            ItemKind::UserMessage { text, .. }
            | ItemKind::AgentMessage { text }
            | ItemKind::Reasoning { text } => text.len(),
            ItemKind::ToolCall { input, output, .. } => {
                value_bytes(input) + output.as_ref().map_or(0, String::len)
            }
        }
    }

    /// A copy without the client's token, if there is one: it is echoed while a turn is live, never stored.
    pub fn without_client_token(&self) -> Option<Self> {
        let ItemKind::UserMessage { text, client_message_id: Some(_) } = &self.kind else { return None };
        let kind = ItemKind::UserMessage { text: text.clone(), client_message_id: None };
        Some(Self { kind, ..self.clone() })
    }
}

/// How far an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ItemStatus {
    /// Still going on.
    InProgress,
    /// Ended as it should.
    Completed,
    /// Ended with an error, or cut short by one.
    Failed,
    /// A tool call that was refused.
    Declined,
    /// Stopped by the user, a shutdown or a crash.
    Interrupted,
}
