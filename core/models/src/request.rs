//! What a model is asked: neutral between providers.
//!
//! Neighbours: none.

use std::fmt;
use std::sync::Arc;

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

impl ModelRequest {
    /// The same request for a model that takes no images: a note in brackets, behind the text of its message, stands
    /// for those that the message had. Messages without images stay as they are.
    ///
    /// [`ResolvedModel::stream`](crate::ResolvedModel::stream) asks every model without
    /// [`ModelInfo::images`](raddle_protocol::ModelInfo) in this way, so no caller has to think of it.
    #[must_use]
    pub fn without_images(mut self) -> Self {
        for message in &mut self.messages {
            let Message::User { text, images } = message else { continue };
            let note = match std::mem::take(images).len() {
                0 => continue,
                1 => "[1 picture was left out here: this model takes no pictures]".to_owned(),
                count => format!("[{count} pictures were left out here: this model takes no pictures]"),
            };
            // In the text and not beside it: such a model's server may not know messages of several parts at all.
            if !text.is_empty() {
                text.push_str("\n\n");
            }
            text.push_str(&note);
        }
        self
    }

    /// Whether a message has an image.
    pub(crate) fn has_images(&self) -> bool {
        let mut messages = self.messages.iter();
        messages.any(|message| matches!(message, Message::User { images, .. } if !images.is_empty()))
    }
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
        /// The text; may be empty beside images.
        text: String,
        /// Pictures, which the model sees behind the text, in this order.
        images: Vec<ImagePart>,
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
    /// A user message without images.
    pub fn user(text: impl Into<String>) -> Self {
        Self::User { text: text.into(), images: Vec::new() }
    }
}

/// A picture in a user message. A clone shares its data.
///
/// It is sent as it is: that the data are an image of this type, and no larger than
/// [`IMAGE_BYTES_MAX`](raddle_protocol::limits::IMAGE_BYTES_MAX), is for the caller to see to.
#[derive(Clone, PartialEq, Eq)]
pub struct ImagePart {
    /// What the data are: `image/png`, `image/jpeg`, `image/gif` or `image/webp`.
    pub mime_type: String,
    /// The file's bytes in base64, with padding and without line ends.
    pub data: Arc<str>,
}

/// Names the size in place of the data, which may have megabytes and belong in no log.
impl fmt::Debug for ImagePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImagePart")
            .field("mime_type", &self.mime_type)
            .field("data", &format_args!("{} bytes of base64", self.data.len()))
            .finish()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn image(data: &str) -> ImagePart {
        ImagePart { mime_type: "image/png".to_owned(), data: data.into() }
    }

    fn with_images(text: &str, count: usize) -> Message {
        Message::User { text: text.to_owned(), images: vec![image("AAAA"); count] }
    }

    #[test]
    fn a_note_stands_for_the_images_of_each_message() {
        let reply = Message::Assistant { parts: vec![AssistantPart::Text("A cat.".to_owned())] };
        let messages = vec![with_images("Look", 1), reply.clone(), Message::user("And?"), with_images("", 2)];
        let request = ModelRequest { messages, attempt: 3, ..ModelRequest::default() };
        let expected = vec![
            Message::user("Look\n\n[1 picture was left out here: this model takes no pictures]"),
            reply,
            Message::user("And?"),
            Message::user("[2 pictures were left out here: this model takes no pictures]"),
        ];
        let without = request.without_images();
        assert_eq!(without, ModelRequest { messages: expected, attempt: 3, ..ModelRequest::default() });
        assert_eq!(without.clone().without_images(), without);
    }

    #[test]
    fn images_stay_out_of_logs() {
        let message = Message::User { text: "Look".to_owned(), images: vec![image("c2VjcmV0")] };
        let shown = format!("{message:?}");
        assert!(
            shown.contains("image/png") && shown.contains("8 bytes") && !shown.contains("c2VjcmV0"),
            "{shown}"
        );
    }
}
