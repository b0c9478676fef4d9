//! Replies as servers really send them, each decoded whole, cut at every byte, and byte by byte.

mod replies;
mod requests;
mod tool_calls;

use std::collections::VecDeque;

use raddle_protocol::TurnErrorKind;

use super::ReplyDecoder;
use crate::error::ModelError;
use crate::event::{FinishReason, ModelEvent};

/// How a reply came out: its events, and the error that ended it.
#[derive(Debug, PartialEq)]
struct Outcome {
    events: Vec<ModelEvent>,
    failure: Option<(TurnErrorKind, bool, String)>,
}

impl Outcome {
    fn text(&self) -> String {
        self.collect(|event| match event {
            ModelEvent::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    fn reasoning(&self) -> String {
        self.collect(|event| match event {
            ModelEvent::Reasoning(text) => Some(text.as_str()),
            _ => None,
        })
    }

    fn collect<'a>(&'a self, text: impl Fn(&'a ModelEvent) -> Option<&'a str>) -> String {
        self.events.iter().filter_map(text).collect()
    }

    /// Each call as `id name arguments`.
    fn calls(&self) -> Vec<String> {
        let call = |event: &ModelEvent| match event {
            ModelEvent::ToolCall(call) => {
                Some(format!("{} {} {}", call.id.as_deref().unwrap_or("-"), call.name, call.arguments))
            }
            _ => None,
        };
        self.events.iter().filter_map(call).collect()
    }

    /// Why the reply ended; it must have ended well.
    fn finish(&self) -> FinishReason {
        assert_eq!(self.failure, None);
        match self.events.last() {
            Some(ModelEvent::Finish(reason)) => *reason,
            other => panic!("the reply ended with {other:?}"),
        }
    }

    /// The error's class, whether it may be retried, and its message; the reply must have failed.
    fn failure(&self) -> (TurnErrorKind, bool, &str) {
        assert!(
            !self.events.iter().any(|event| matches!(event, ModelEvent::Finish(_) | ModelEvent::ToolCall(_)))
        );
        let (kind, retryable, message) = self.failure.as_ref().expect("the reply did not fail");
        (*kind, *retryable, message)
    }
}

fn decode_pieces<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
    let mut decoder = ReplyDecoder::default();
    let mut out = VecDeque::new();
    let result = pieces
        .into_iter()
        .try_for_each(|piece| decoder.push(piece, &mut out))
        .and_then(|()| decoder.end(&mut out));
    let failure = result.err().map(|error: ModelError| (error.kind(), error.retryable(), error.message()));
    Outcome { events: out.into(), failure }
}

/// Decodes a body in every way of cutting it in two, and byte by byte; all must agree.
fn decode(body: impl AsRef<[u8]>) -> Outcome {
    let body = body.as_ref();
    let whole = decode_pieces([body]);
    for at in 0..body.len() {
        let (head, tail) = body.split_at(at);
        assert_eq!(decode_pieces([head, tail]), whole, "cut at byte {at}");
    }
    assert_eq!(decode_pieces(body.chunks(1)), whole, "byte by byte");
    whole
}

/// A body of events with these data, in order.
fn body(data: &[&str]) -> String {
    data.iter().map(|data| format!("data: {data}\n\n")).collect()
}

/// A chunk with one delta.
fn delta(delta: &str) -> String {
    format!(r#"{{"id":"c1","choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}"#)
}

/// A chunk that gives the reason.
fn reason(reason: &str) -> String {
    format!(r#"{{"id":"c1","choices":[{{"index":0,"delta":{{}},"finish_reason":"{reason}"}}]}}"#)
}
