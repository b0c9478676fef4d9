//! The steps of a reply become its events.
//!
//! Neighbours: echo, error, event, request.

use std::future::pending;
use std::vec::IntoIter;

use futures_util::stream;
use raddle_protocol::TokenCounts;
use tokio::time::{Instant, sleep, sleep_until};

use super::parse::{CutHow, Fault, Repeat, Step};
use crate::echo::{count_words, last_user_text, next_word};
use crate::error::ModelError;
use crate::event::{FinishReason, ModelEvent, ModelStream, ToolCall};
use crate::request::{Message, ModelRequest};

/// Runs the steps while the stream is polled.
pub(super) fn stream(steps: Vec<Step>, request: &ModelRequest) -> ModelStream {
    let run = Run {
        steps: steps.into_iter(),
        now: Now::Next,
        attempt: request.attempt.max(1),
        result: last_result(request).to_owned(),
        calls: Vec::new(),
        usage: TokenCounts { input: count_words(last_user_text(request)), ..TokenCounts::default() },
        counted: true,
    };
    Box::pin(stream::unfold(run, |mut run| async move {
        let item = run.next().await?;
        Some((item, run))
    }))
}

/// What the last tool call gave; empty when none was made.
fn last_result(request: &ModelRequest) -> &str {
    let mut texts = request.messages.iter().rev().filter_map(|message| match message {
        Message::ToolResult { text, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.next().unwrap_or_default()
}

struct Run {
    steps: IntoIter<Step>,
    now: Now,
    attempt: u32,
    result: String,
    /// The calls of the reply; they are given when it is finished, as adapters do.
    calls: Vec<ToolCall>,
    usage: TokenCounts,
    /// The usage is counted from the words; false once the script gave it.
    counted: bool,
}

/// What is being done.
enum Now {
    /// The next step is taken.
    Next,
    /// A text goes out word by word.
    Words {
        text: String,
        at: usize,
    },
    /// Deltas are generated. `due` is when the next one goes out.
    Repeat {
        repeat: Repeat,
        sent: u64,
        due: Instant,
    },
    /// The reply is whole; what is left of its end goes out.
    Ending {
        calls: IntoIter<ToolCall>,
        usage: Option<TokenCounts>,
        reason: FinishReason,
    },
    Over,
}

impl Run {
    async fn next(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        loop {
            match &mut self.now {
                Now::Over => return None,
                Now::Words { text, at } => match next_word(&text[*at..]).map(str::to_owned) {
                    Some(word) => {
                        *at += word.len();
                        return self.say(word);
                    }
                    None => self.now = Now::Next,
                },
                Now::Repeat { repeat, sent, due } => {
                    if *sent == repeat.count {
                        self.now = Now::Next;
                        continue;
                    }
                    if !repeat.every.is_zero() {
                        // The times are fixed in advance, so a slow reader does not slow the pace down for good.
                        sleep_until(*due).await;
                        *due += repeat.every;
                    }
                    *sent += 1;
                    let text = match &repeat.text {
                        Some(text) => text.clone(),
                        None => padded(format!("{sent} "), repeat.bytes),
                    };
                    return if repeat.reasoning { self.think(text) } else { self.say(text) };
                }
                Now::Ending { calls, usage, reason } => {
                    if let Some(call) = calls.next() {
                        return Some(Ok(ModelEvent::ToolCall(call)));
                    }
                    if let Some(usage) = usage.take() {
                        return Some(Ok(ModelEvent::Usage(usage)));
                    }
                    let reason = *reason;
                    self.now = Now::Over;
                    return Some(Ok(ModelEvent::Finish(reason)));
                }
                Now::Next => match self.steps.next() {
                    Some(step) => {
                        if let Some(item) = self.step(step).await {
                            return Some(item);
                        }
                    }
                    None => {
                        let calls = !self.calls.is_empty();
                        self.finish(if calls { FinishReason::ToolCalls } else { FinishReason::Stop });
                    }
                },
            }
        }
    }

    /// Does a step; gives what it says at once, if anything.
    async fn step(&mut self, step: Step) -> Option<Result<ModelEvent, ModelError>> {
        match step {
            Step::Text(text) if text.is_empty() => {}
            Step::Text(text) => return self.say(text),
            Step::Words(text) => self.now = Now::Words { text, at: 0 },
            Step::Reasoning(text) if text.is_empty() => {}
            Step::Reasoning(text) => return self.think(text),
            Step::Signature(text) => return Some(Ok(ModelEvent::ReasoningSignature(text))),
            Step::Call(call) => self.calls.push(call),
            Step::Result => {
                let text = std::mem::take(&mut self.result);
                return self.say(if text.is_empty() { "(no result)".to_owned() } else { text });
            }
            Step::Usage(usage) => {
                self.usage = usage;
                self.counted = false;
            }
            Step::Repeat(repeat) => self.now = Now::Repeat { repeat, sent: 0, due: Instant::now() },
            Step::Wait(time) => sleep(time).await,
            Step::Ping => return Some(Ok(ModelEvent::Ping)),
            Step::Hang => pending().await,
            Step::Fail { attempts, fault } => {
                if attempts.is_none_or(|attempts| self.attempt <= attempts) {
                    return self.fail(fault);
                }
            }
            Step::Cut(how) => {
                self.now = Now::Over;
                return match how {
                    CutHow::AsError => Some(Err(ModelError::Cut)),
                    CutHow::Silently => None,
                };
            }
            Step::Finish(reason) => self.finish(reason),
        }
        None
    }

    fn say(&mut self, text: String) -> Option<Result<ModelEvent, ModelError>> {
        self.count(&text);
        Some(Ok(ModelEvent::Text(text)))
    }

    fn think(&mut self, text: String) -> Option<Result<ModelEvent, ModelError>> {
        self.count(&text);
        Some(Ok(ModelEvent::Reasoning(text)))
    }

    fn count(&mut self, text: &str) {
        if self.counted {
            self.usage.output += count_words(text);
        }
    }

    fn fail(&mut self, fault: Fault) -> Option<Result<ModelEvent, ModelError>> {
        self.now = Now::Over;
        let Fault { kind, retryable, retry_after, message } = fault;
        Some(Err(ModelError::Provider { kind, message, code: None, status: None, retryable, retry_after }))
    }

    fn finish(&mut self, reason: FinishReason) {
        let calls = std::mem::take(&mut self.calls).into_iter();
        self.now = Now::Ending { calls, usage: Some(self.usage), reason };
    }
}

/// A text filled up with spaces to so many bytes. (A format's width ends at 65,535.)
fn padded(mut text: String, bytes: usize) -> String {
    text.extend(std::iter::repeat_n(' ', bytes.saturating_sub(text.len())));
    text
}
