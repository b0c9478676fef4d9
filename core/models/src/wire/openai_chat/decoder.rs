//! The bytes of a reply become model events.
//!
//! Neighbours: error, event, wire.

use std::borrow::Cow;
use std::collections::VecDeque;

use raddle_protocol::{TokenCounts, TurnErrorKind};
use serde_json::value::RawValue;

use super::calls::{Calls, EmptyArguments, TooManyCalls};
use super::chunk::{Choice, Chunk, Delta, replace_lone_surrogates};
use crate::error::ModelError;
use crate::event::{FinishReason, ModelEvent};
use crate::wire::fault;
use crate::wire::sse::{SSE_EVENT_BYTES_MAX, SseDecoder, SseEventTooLarge, SseItem};

/// Bytes of a reply that came as one JSON document although a stream was asked for. At more the reply fails.
const JSON_REPLY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Decodes one reply from its bytes, cut anywhere.
#[derive(Default)]
pub(crate) struct ReplyDecoder {
    body: Body,
    reply: Reply,
}

/// What the body turned out to be. Its first byte decides, not its content type, which gateways get wrong.
#[derive(Default)]
enum Body {
    #[default]
    Unknown,
    Stream(SseDecoder),
    /// A server that ignores `stream: true` answers with one document.
    Json(Vec<u8>),
}

impl ReplyDecoder {
    /// Takes the next bytes of the body and appends what they say to `out`. What was appended before an error is
    /// part of the reply. After an error the decoder must not be used again.
    pub(crate) fn push(&mut self, bytes: &[u8], out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let mut rest = bytes;
        if matches!(self.body, Body::Unknown) {
            // Blank lines before the reply are keep-alives, in either format.
            let blank = |byte: &u8| byte.is_ascii_whitespace() || b"\xEF\xBB\xBF".contains(byte);
            let start = rest.iter().position(|byte| !blank(byte)).unwrap_or(rest.len());
            let lines = rest[..start].iter().filter(|byte| **byte == b'\n').count();
            out.extend(std::iter::repeat_n(ModelEvent::Ping, lines));
            rest = &rest[start..];
            match rest.first() {
                None => return Ok(()),
                Some(b'{' | b'[') => self.body = Body::Json(Vec::new()),
                Some(b'<') => return Err(not_an_api()),
                Some(_) => self.body = Body::Stream(SseDecoder::default()),
            }
        }
        let result = match &mut self.body {
            Body::Unknown => Ok(()),
            Body::Stream(sse) => sse.push(rest, &mut |item| self.reply.take(item, out)),
            Body::Json(document) if document.len() + rest.len() > JSON_REPLY_BYTES_MAX => {
                Err(ModelError::Malformed {
                    message: format!(
                        "the reply is one JSON document of more than {JSON_REPLY_BYTES_MAX} bytes"
                    ),
                    retryable: false,
                    source: None,
                })
            }
            Body::Json(document) => {
                document.extend_from_slice(rest);
                Ok(())
            }
        };
        result.or_else(|error| self.reply.fail(error, out))
    }

    /// The body has ended. Completes the reply, or fails it when it was not finished.
    pub(crate) fn end(&mut self, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let result = match &mut self.body {
            Body::Unknown => Ok(()),
            Body::Stream(sse) => sse.end(&mut |item| self.reply.take(item, out)),
            Body::Json(document) => {
                let document = std::mem::take(document);
                let text = String::from_utf8_lossy(&document);
                // The reply is whole once the document is: it has no `[DONE]`.
                self.reply.chunk(&text, out).map(|()| self.reply.ended = self.reply.unread.is_none())
            }
        };
        result.and_then(|()| self.reply.end(out)).or_else(|error| self.reply.fail(error, out))
    }

    /// Whether the provider has said all it has to say, so that what follows can be ignored.
    pub(crate) fn is_finished(&self) -> bool {
        self.reply.finished
    }
}

impl From<SseEventTooLarge> for ModelError {
    fn from(_: SseEventTooLarge) -> Self {
        Self::Malformed {
            message: format!("the provider sent an event of more than {SSE_EVENT_BYTES_MAX} bytes"),
            retryable: false,
            source: None,
        }
    }
}

fn not_an_api() -> ModelError {
    ModelError::Malformed {
        message: "the provider answered with a web page instead of a reply; check `apiEndpoint`".to_owned(),
        retryable: false,
        source: None,
    }
}

/// A reply as far as it is known.
#[derive(Default)]
struct Reply {
    calls: Calls,
    usage: Option<TokenCounts>,
    /// The provider's reason, once it gave one.
    reason: Option<FinishReason>,
    /// `[DONE]` was seen, or the one document was read.
    ended: bool,
    /// `Finish` was given.
    finished: bool,
    /// Some text, thinking or call came.
    spoke: bool,
    /// A chunk that could not be read. It fails the reply unless an error comes next that says why (case R06).
    unread: Option<Unread>,
    chunks: u64,
}

/// A chunk that is not JSON.
struct Unread {
    error: ModelError,
    /// It only lacks its end, as the last chunk of a cut stream does.
    is_half: bool,
}

impl Reply {
    fn take(&mut self, item: SseItem<'_>, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        if self.finished {
            return Ok(());
        }
        let (name, data) = match item {
            SseItem::Idle => {
                out.push_back(ModelEvent::Ping);
                return Ok(());
            }
            SseItem::Event { name, data } => (name, data),
        };
        // Invalid bytes become the replacement character; valid ones, nearly always all, are not copied.
        let text = String::from_utf8_lossy(data);
        if name == b"error" {
            return Err(fault::from_reply(&text));
        }
        if text.trim() == "[DONE]" {
            self.ended = true;
            return self.end(out);
        }
        self.chunk(&text, out)
    }

    fn chunk(&mut self, text: &str, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        self.chunks += 1;
        let error = match serde_json::from_str::<Option<Chunk<'_>>>(text) {
            Ok(Some(chunk)) => return self.read(chunk, text, out),
            Ok(None) => {
                out.push_back(ModelEvent::Ping);
                return Ok(());
            }
            Err(error) => error,
        };
        let repaired = replace_lone_surrogates(text);
        match serde_json::from_str::<Chunk<'_>>(&repaired) {
            Ok(chunk) => self.read(chunk, &repaired, out),
            Err(_) => self.unreadable(text, error),
        }
    }

    fn read(
        &mut self,
        chunk: Chunk<'_>,
        text: &str,
        out: &mut VecDeque<ModelEvent>,
    ) -> Result<(), ModelError> {
        let before = out.len();
        if let Some(raw) = error_in(&chunk) {
            return Err(fault::from_reply(raw.get()));
        }
        self.fail_for_unread()?;
        if chunk.choices.is_none()
            && chunk.usage.is_none()
            && (chunk.message.is_some() || chunk.detail.is_some())
        {
            return Err(fault::from_reply(text));
        }
        let outer_usage = chunk.usage.or(chunk.x_groq.and_then(|part| part.usage));
        let mut usage = outer_usage.and_then(|usage| usage.counts());
        for choice in chunk.choices.into_iter().flatten() {
            // One answer was asked for; a second is not ours.
            if choice.index.0.unwrap_or(0) == 0 {
                usage = usage.or(choice.usage.and_then(|usage| usage.counts()));
                self.choice(choice, out)?;
            }
        }
        // Servers that count in every chunk count up, so the last one is right.
        self.usage = usage.or(self.usage);
        if out.len() == before {
            out.push_back(ModelEvent::Ping);
        }
        Ok(())
    }

    fn choice(&mut self, choice: Choice<'_>, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let delta = match choice.delta {
            Some(delta) => Some(delta),
            // A whole message at the end of a stream repeats what its deltas said.
            None if self.spoke => None,
            None => choice.message,
        };
        if let Some(delta) = delta {
            self.delta(delta, out)?;
        }
        let reason = choice.finish_reason.0;
        if !reason.is_empty() {
            self.reason = Some(finish_reason(&reason).ok_or_else(|| ModelError::Provider {
                kind: TurnErrorKind::Provider,
                message: format!("the provider gave the reply up (code {reason})"),
                code: Some(reason.into_owned()),
                status: None,
                retryable: true,
                retry_after: None,
            })?);
        }
        Ok(())
    }

    fn delta(&mut self, delta: Delta<'_>, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        // Some servers give the thinking under both names; it is the same text (case R11).
        let thinking =
            if delta.reasoning_content.0.is_empty() { delta.reasoning.0 } else { delta.reasoning_content.0 };
        for thinking in [thinking, Cow::Owned(delta.content.thinking)] {
            if !thinking.is_empty() {
                self.spoke = true;
                out.push_back(ModelEvent::Reasoning(thinking.into_owned()));
            }
        }
        for text in [delta.content.text, delta.refusal.0] {
            if !text.is_empty() {
                self.spoke = true;
                out.push_back(ModelEvent::Text(text.into_owned()));
            }
        }
        if let Some(pieces) = delta.tool_calls {
            self.spoke |= !pieces.is_empty();
            self.calls.add(pieces, self.chunks).map_err(|TooManyCalls| ModelError::Malformed {
                message: "the model made more or larger tool calls than one reply may hold".to_owned(),
                retryable: false,
                source: None,
            })?;
        }
        Ok(())
    }

    /// A chunk that is no JSON: a server fault, often followed by the error that caused it.
    fn unreadable(&mut self, text: &str, error: serde_json::Error) -> Result<(), ModelError> {
        // The error may stand right behind the half-written chunk, in the same event, or be wrapped in a list.
        let behind = text.rfind("{\"error\"").and_then(|at| {
            serde_json::Deserializer::from_str(&text[at..]).into_iter::<&RawValue>().next()?.ok()
        });
        if let Some(raw) = behind {
            return Err(fault::from_reply(raw.get()));
        }
        self.fail_for_unread()?;
        self.unread = Some(Unread {
            is_half: error.is_eof(),
            error: ModelError::Malformed {
                message: format!("the provider sent a chunk that is not JSON: {error}"),
                retryable: true,
                source: Some(error.into()),
            },
        });
        Ok(())
    }

    /// Fails for an unreadable chunk once it is clear that no error explains it. A reply whose reason is known was
    /// finished before it and does not need it.
    fn fail_for_unread(&mut self) -> Result<(), ModelError> {
        match self.unread.take() {
            Some(unread) if self.reason.is_none() => Err(unread.error),
            _ => Ok(()),
        }
    }

    /// The stream is over, by its own word or because the bytes are.
    fn end(&mut self, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        if self.finished {
            return Ok(());
        }
        if self.reason.is_none() {
            if !self.ended && self.unread.as_ref().is_none_or(|unread| unread.is_half) {
                return Err(ModelError::Cut);
            }
            self.fail_for_unread()?;
            if !self.spoke {
                // An end without a word before it is how a gateway hides that its upstream failed (case R06).
                return Err(ModelError::Malformed {
                    message: "the provider ended the reply without saying anything".to_owned(),
                    retryable: true,
                    source: None,
                });
            }
        }
        let reason = self.reason.unwrap_or(FinishReason::Unknown);
        let empty = match reason {
            FinishReason::Stop | FinishReason::ToolCalls => EmptyArguments::AreAnObject,
            FinishReason::Length | FinishReason::ContentFilter | FinishReason::Unknown => {
                EmptyArguments::StayEmpty
            }
        };
        let calls = std::mem::take(&mut self.calls).finish(empty).map_err(|_| ModelError::Malformed {
            message: "the model made a tool call without a name".to_owned(),
            retryable: true,
            source: None,
        })?;
        let reason = match (reason, calls.is_empty()) {
            (FinishReason::Stop | FinishReason::Unknown, false) => FinishReason::ToolCalls,
            (FinishReason::ToolCalls, true) => FinishReason::Unknown,
            (reason, _) => reason,
        };
        out.extend(calls.into_iter().map(ModelEvent::ToolCall));
        out.extend(self.usage.take().map(ModelEvent::Usage));
        out.push_back(ModelEvent::Finish(reason));
        self.finished = true;
        Ok(())
    }

    /// What was used is known, and was paid for, even when the reply failed.
    fn fail(&mut self, error: ModelError, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        out.extend(self.usage.take().map(ModelEvent::Usage));
        Err(error)
    }
}

/// The error that a chunk carries, if it carries one.
fn error_in<'a>(chunk: &Chunk<'a>) -> Option<&'a RawValue> {
    let in_choice = || chunk.choices.iter().flatten().find_map(|choice| choice.error);
    chunk.error.or_else(in_choice).filter(|raw| !matches!(raw.get(), "{}" | "\"\"" | "false" | "[]"))
}

/// The reason in the words of OpenAI and of those who translate from others; nothing when the provider gave up.
fn finish_reason(word: &str) -> Option<FinishReason> {
    Some(match word.to_ascii_lowercase().as_str() {
        "stop" | "eos" | "end_turn" | "stop_sequence" => FinishReason::Stop,
        "tool_calls" | "tool_use" | "function_call" => FinishReason::ToolCalls,
        "length" | "max_tokens" | "model_length" => FinishReason::Length,
        "content_filter" | "safety" | "refusal" | "sensitive" => FinishReason::ContentFilter,
        "error" | "abort" | "network_error" | "insufficient_system_resource" => return None,
        _ => FinishReason::Unknown,
    })
}
