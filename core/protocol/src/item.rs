//! Items: what a turn is made of.
//!
//! Neighbours: ids, payload, time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::ItemId;
use crate::payload::Text;
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
        text: Text,
        /// Pictures beside it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        images: Vec<Image>,
        /// The client's own token, echoed while the turn is live; never stored.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client_message_id: Option<String>,
    },
    /// What the model answered.
    AgentMessage {
        /// The text so far, or the whole of it.
        text: Text,
    },
    /// What the model thought aloud.
    Reasoning {
        /// The text so far, or the whole of it.
        text: Text,
    },
    /// A tool that the model called.
    ToolCall {
        /// The tool's name as the model wrote it.
        tool_name: String,
        /// The arguments; a string where the model wrote no valid JSON.
        input: Value,
        /// What the tool printed so far, or what the model was told at the end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<Text>,
        /// Whether the output tells of a failure.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
        /// What a completed call changed in files; a failed one reports nothing.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        file_changes: Vec<FileChange>,
    },
    /// From here on the model knows what came before in short only. The history stays as it is.
    Compaction {
        /// What the model is told in place of what came before; empty until it is complete.
        text: Text,
    },
    /// Something that an extension put into the turn.
    Extension {
        /// Which extension.
        name: String,
        /// Whatever it says.
        data: Value,
    },
}

/// A picture in a user message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    /// `image/png`, `image/jpeg`, `image/gif` or `image/webp`.
    pub mime_type: String,
    /// Its bytes in base64. A reference in its place stands for the bytes themselves.
    pub data: Text,
    /// Where it was read from, if it was given by its path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// What a tool call did to one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileChange {
    /// The file.
    pub path: String,
    /// What happened to it.
    pub kind: FileChangeKind,
    /// The change as a unified diff.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<Text>,
}

/// What happened to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum FileChangeKind {
    /// It is new.
    Add,
    /// It was changed.
    Modify,
    /// It is gone.
    Delete,
}

impl ItemKind {
    /// The word in `type`.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::UserMessage { .. } => "userMessage",
            Self::AgentMessage { .. } => "agentMessage",
            Self::Reasoning { .. } => "reasoning",
            Self::ToolCall { .. } => "toolCall",
            Self::Compaction { .. } => "compaction",
            Self::Extension { .. } => "extension",
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
            ItemKind::UserMessage { text, images, .. } => {
                text.len() + images.iter().map(|image| image.data.len()).sum::<usize>()
            }
            ItemKind::AgentMessage { text }
            | ItemKind::Reasoning { text }
            | ItemKind::Compaction { text } => text.len(),
            ItemKind::ToolCall { tool_name, input, output, file_changes, .. } => {
                let diff =
                    |change: &FileChange| change.path.len() + change.diff.as_ref().map_or(0, Text::len);
                let changes: usize = file_changes.iter().map(diff).sum();
                tool_name.len() + value_bytes(input) + output.as_ref().map_or(0, Text::len) + changes
            }
            ItemKind::Extension { name, data } => name.len() + value_bytes(data),
        }
    }

    /// A copy without the client's token, if there is one: it is echoed while a turn is live, never stored.
    pub fn without_client_token(&self) -> Option<Self> {
        let ItemKind::UserMessage { client_message_id: Some(_), .. } = &self.kind else { return None };
        let mut item = self.clone();
        if let ItemKind::UserMessage { client_message_id, .. } = &mut item.kind {
            *client_message_id = None;
        }
        Some(item)
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
