//! What a model is asked: neutral between providers.
//!
//! Neighbours: none.

/// One call of a model: the whole conversation so far, and what it may use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelRequest {
    /// The model's id at its provider. [`ResolvedModel::stream`](crate::ResolvedModel::stream) fills it in.
    pub model: String,
    /// The system prompt.
    pub system: Option<String>,
    /// The conversation, oldest first.
    pub messages: Vec<Message>,
    /// The tools that the model may call; none means that it is not told about tools at all.
    pub tools: Vec<ToolDef>,
    /// Tokens that the answer may take; absent leaves it to the provider.
    pub max_output_tokens: Option<u64>,
    /// A thinking level, one of the model's `thinkingLevels`; absent and `off` ask for none.
    pub thinking: Option<String>,
    /// Which try of this reply this is, counted from 1; 0 counts as 1. Only `builtin/script` looks at it.
    pub attempt: u32,
}

/// A tool as the model is told about it.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDef {
    /// What the model calls it by.
    pub name: String,
    /// What it does, in words for the model.
    pub description: String,
    /// JSON Schema of its input.
    pub input_schema: serde_json::Value,
}

/// One message of the conversation.
///
/// A result follows its call: the adapters make up an "interrupted" result for a call without one and leave out
/// a result without a call, since a provider refuses the whole request for either (case R16).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Message {
    /// What the user said.
    User {
        /// The text.
        text: String,
    },
    /// One earlier reply of the model.
    Assistant {
        /// What it consisted of, in order. An empty reply is never sent.
        parts: Vec<AssistantPart>,
    },
    /// What a tool gave back.
    ToolResult {
        /// The id of the call that it answers.
        call_id: String,
        /// The tool.
        tool_name: String,
        /// What the model reads.
        text: String,
        /// Whether the tool failed.
        is_error: bool,
    },
}

impl Message {
    /// A user message.
    pub fn user(text: impl Into<String>) -> Self {
        Self::User { text: text.into() }
    }
}

/// A piece of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssistantPart {
    /// Text for the user.
    Text(String),
    /// The model's thinking.
    Reasoning {
        /// The thinking itself; may be empty where a provider hides it.
        text: String,
        /// What its provider signed it with.
        signature: Option<String>,
    },
    /// A tool call.
    ToolCall {
        /// The id that its result names.
        id: String,
        /// The tool.
        name: String,
        /// The input, as the model wrote it. What is not a JSON object is sent back as `{}`.
        arguments: String,
        /// What its provider signed the call with; it goes back with the call.
        signature: Option<String>,
    },
}
