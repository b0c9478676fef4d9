//! A request becomes the body of `POST {endpoint}/chat/completions`.
//!
//! Neighbours: config, error, request.

use std::borrow::Cow;

use raddle_protocol::TurnErrorKind;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::config::{MaxTokensField, ReasoningReplay};
use crate::error::ModelError;
use crate::request::{AssistantPart, ImagePart, Message, ModelRequest, ToolDef};

/// What a model reads for a call whose result was lost.
const INTERRUPTED: &str = "interrupted: this call did not finish, and what it did is unknown";

/// How one model of one provider wants things said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dialect {
    pub(crate) max_tokens_field: MaxTokensField,
    pub(crate) reasoning_replay: ReasoningReplay,
}

/// What is known of providers that differ from the rest, by the host of their address.
const KNOWN_HOSTS: &[(&str, Dialect)] = &[(
    "api.openai.com",
    // It does not stream its thinking over this API, and refuses fields that it does not know.
    Dialect {
        max_tokens_field: MaxTokensField::MaxCompletionTokens,
        reasoning_replay: ReasoningReplay::Never,
    },
)];

impl Dialect {
    /// What is known of the provider at that host.
    pub(crate) fn of_host(host: &str) -> Self {
        KNOWN_HOSTS
            .iter()
            .find(|(known, _)| *known == host)
            .map_or_else(Self::default, |(_, dialect)| *dialect)
    }
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: Vec<WireMessage<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<WireTool<'a>>,
    stream: bool,
    stream_options: StreamOptions,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<&'a str>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
enum WireMessage<'a> {
    System {
        content: &'a str,
    },
    User {
        content: UserContent<'a>,
    },
    Assistant {
        content: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning_content: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<WireCall<'a>>,
    },
    Tool {
        tool_call_id: &'a str,
        content: &'a str,
    },
}

/// Parts only where there is an image: many compatible servers know nothing but a string.
#[derive(Serialize)]
#[serde(untagged)]
enum UserContent<'a> {
    Text(&'a str),
    Parts(Vec<WirePart<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum WirePart<'a> {
    Text { text: &'a str },
    ImageUrl { image_url: ImageUrl<'a> },
}

#[derive(Serialize)]
struct ImageUrl<'a> {
    #[serde(serialize_with = "data_url")]
    url: &'a ImagePart,
}

/// Written straight into the body: an image may have megabytes.
fn data_url<S: Serializer>(image: &ImagePart, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("data:{};base64,{}", image.mime_type, image.data))
}

#[derive(Serialize)]
struct WireCall<'a> {
    id: &'a str,
    r#type: &'static str,
    function: WireFunction<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extra_content: Option<ExtraContent<'a>>,
}

#[derive(Serialize)]
struct WireFunction<'a> {
    name: &'a str,
    arguments: &'a str,
}

#[derive(Serialize)]
struct ExtraContent<'a> {
    google: GooglePart<'a>,
}

#[derive(Serialize)]
struct GooglePart<'a> {
    thought_signature: &'a str,
}

#[derive(Serialize)]
struct WireTool<'a> {
    r#type: &'static str,
    function: WireToolFunction<'a>,
}

#[derive(Serialize)]
struct WireToolFunction<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    description: &'a str,
    #[serde(skip_serializing_if = "serde_json::Value::is_null")]
    parameters: &'a serde_json::Value,
}

/// The body, as JSON.
pub(crate) fn encode(request: &ModelRequest, dialect: Dialect) -> Result<Vec<u8>, ModelError> {
    let limit = |field| request.max_output_tokens.filter(|_| dialect.max_tokens_field == field);
    let body = Body {
        model: &request.model,
        messages: messages(request, dialect.reasoning_replay),
        tools: request.tools.iter().map(tool).collect(),
        stream: true,
        stream_options: StreamOptions { include_usage: true },
        max_tokens: limit(MaxTokensField::MaxTokens),
        max_completion_tokens: limit(MaxTokensField::MaxCompletionTokens),
        reasoning_effort: request.thinking.as_deref().filter(|level| *level != "off"),
    };
    serde_json::to_vec(&body).map_err(|error| ModelError::Request {
        kind: TurnErrorKind::Other,
        message: "the request cannot be written as JSON".to_owned(),
        source: Some(error.into()),
    })
}

fn tool(tool: &ToolDef) -> WireTool<'_> {
    WireTool {
        r#type: "function",
        function: WireToolFunction {
            name: &tool.name,
            description: &tool.description,
            parameters: &tool.input_schema,
        },
    }
}

/// The conversation, with every call followed at once by its results, each call having exactly one (case R16).
fn messages(request: &ModelRequest, replay: ReasoningReplay) -> Vec<WireMessage<'_>> {
    let mut out = Vec::with_capacity(request.messages.len() + 1);
    out.extend(
        request
            .system
            .as_deref()
            .filter(|text| !text.is_empty())
            .map(|content| WireMessage::System { content }),
    );
    let mut used = vec![false; request.messages.len()];
    for (at, message) in request.messages.iter().enumerate() {
        match message {
            Message::User { text, images } => out.push(WireMessage::User { content: user(text, images) }),
            Message::Assistant { parts } => {
                let Some(reply) = assistant(parts, replay) else { continue };
                out.push(reply);
                for part in parts {
                    if let AssistantPart::ToolCall { id, .. } = part {
                        out.push(result(id, &request.messages, at + 1, &mut used));
                    }
                }
            }
            Message::ToolResult { call_id, tool_name, .. } => {
                if !used[at] {
                    tracing::warn!(call_id, tool_name, "a tool result without its call was not sent");
                }
            }
        }
    }
    out
}

/// What the user said: the text, then the images. An empty text makes no part, since some providers refuse one.
fn user<'a>(text: &'a str, images: &'a [ImagePart]) -> UserContent<'a> {
    if images.is_empty() {
        return UserContent::Text(text);
    }
    let text = (!text.is_empty()).then_some(WirePart::Text { text });
    let images = images.iter().map(|url| WirePart::ImageUrl { image_url: ImageUrl { url } });
    UserContent::Parts(text.into_iter().chain(images).collect())
}

/// The result of a call: looked for up to the next reply, made up if it is not there.
fn result<'a>(id: &'a str, messages: &'a [Message], from: usize, used: &mut [bool]) -> WireMessage<'a> {
    let found = messages
        .iter()
        .enumerate()
        .skip(from)
        .take_while(|(_, message)| !matches!(message, Message::Assistant { .. }))
        .find_map(|(at, message)| match message {
            Message::ToolResult { call_id, text, .. } if call_id == id && !used[at] => Some((at, text)),
            _ => None,
        });
    let content = match found {
        Some((at, text)) => {
            used[at] = true;
            text
        }
        None => INTERRUPTED,
    };
    WireMessage::Tool { tool_call_id: id, content }
}

/// A reply of the model; nothing when it has nothing to say, since providers refuse an empty message.
fn assistant(parts: &[AssistantPart], replay: ReasoningReplay) -> Option<WireMessage<'_>> {
    let mut text = None;
    let mut reasoning = None;
    let mut tool_calls = Vec::new();
    for part in parts {
        match part {
            AssistantPart::Text(piece) => join(&mut text, piece),
            AssistantPart::Reasoning { text: piece, .. } => join(&mut reasoning, piece),
            AssistantPart::ToolCall { id, name, arguments, signature } => tool_calls.push(WireCall {
                id,
                r#type: "function",
                function: WireFunction {
                    name,
                    arguments: if is_object(arguments) { arguments } else { "{}" },
                },
                extra_content: signature
                    .as_deref()
                    .map(|thought_signature| ExtraContent { google: GooglePart { thought_signature } }),
            }),
        }
    }
    if text.is_none() && tool_calls.is_empty() {
        return None;
    }
    let replayed = match replay {
        ReasoningReplay::Never => false,
        ReasoningReplay::WithToolCalls => !tool_calls.is_empty(),
        ReasoningReplay::Always => true,
    };
    Some(WireMessage::Assistant {
        content: text,
        reasoning_content: reasoning.filter(|_| replayed),
        tool_calls,
    })
}

/// Adds a piece; pieces that lay apart in the reply stay apart by a blank line.
fn join<'a>(whole: &mut Option<Cow<'a, str>>, piece: &'a str) {
    if piece.is_empty() {
        return;
    }
    match whole {
        None => *whole = Some(Cow::Borrowed(piece)),
        Some(text) => {
            let text = text.to_mut();
            text.push_str("\n\n");
            text.push_str(piece);
        }
    }
}

/// Servers parse the arguments of earlier calls again, and refuse the request when they are not an object.
fn is_object(arguments: &str) -> bool {
    arguments.trim_start().starts_with('{') && serde_json::from_str::<&RawValue>(arguments).is_ok()
}
