//! Replies: what the provider does with one request, as a script of steps.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::gate::Gate;
use crate::sse;

/// How a client learns where the body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// HTTP chunks. Each step is a chunk of its own, and a decoder hands chunks on one by one, so the cuts
    /// that a script makes reach the client however TCP groups the bytes.
    Chunked,
    /// A `Content-Length`; the connection stays open for the next request.
    Length,
    /// The end of the connection, as HTTP/1.0 servers and some gateways do. A cut is then no HTTP error.
    Close,
}

/// One thing that the server does while it sends the body.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// One piece of the body, flushed.
    Send(Bytes),
    /// Each byte as a piece of its own.
    Drip(Bytes),
    /// Stop until the test opens the gate.
    Wait(Gate),
    /// Close the connection without ending the body.
    Cut,
    /// Send nothing more until the client leaves.
    Hang,
    /// Close the connection with a TCP reset.
    Reset,
}

/// What the provider answers to one request.
///
/// Built step by step; the body ends after the last step unless that was a cut, a hang or a reset.
#[derive(Clone, Debug)]
pub struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) framing: Framing,
    pub(crate) steps: Vec<Step>,
}

impl Reply {
    /// A `200` with an empty `text/event-stream` body, to be filled by the steps that follow.
    #[must_use]
    pub fn stream() -> Self {
        Self {
            status: 200,
            headers: vec![
                ("content-type".to_owned(), "text/event-stream; charset=utf-8".to_owned()),
                ("cache-control".to_owned(), "no-cache".to_owned()),
            ],
            framing: Framing::Chunked,
            steps: Vec::new(),
        }
    }

    /// A whole JSON answer with its length.
    #[must_use]
    pub fn json(status: u16, body: &Value) -> Self {
        Self::body(status, "application/json", body.to_string())
    }

    /// A whole answer of any content type with its length.
    #[must_use]
    pub fn body(status: u16, content_type: &str, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            headers: vec![("content-type".to_owned(), content_type.to_owned())],
            framing: Framing::Length,
            steps: vec![Step::Send(body.into())],
        }
    }

    /// An error as providers send it: a status, and `body` as it is.
    #[must_use]
    pub fn json_error(status: u16, body: &Value) -> Self {
        Self::json(status, body)
    }

    /// An error in OpenAI's shape.
    #[must_use]
    pub fn error(status: u16, code: &str, message: &str) -> Self {
        Self::json(status, &json!({ "error": { "message": message, "type": code, "code": code } }))
    }

    /// A list of models, as `GET /v1/models` answers it.
    #[must_use]
    pub fn models(ids: &[&str]) -> Self {
        let data: Vec<Value> =
            ids.iter().map(|id| json!({ "id": id, "object": "model", "owned_by": "fake" })).collect();
        Self::json(200, &json!({ "object": "list", "data": data }))
    }

    /// A whole reply that says `text` in one delta and then stops.
    #[must_use]
    pub fn says(text: &str) -> Self {
        Self::stream().text(text).stop()
    }

    /// A whole reply of `count` text deltas, `w0 w1 w2 …`.
    #[must_use]
    pub fn text_deltas(count: usize) -> Self {
        (0..count).fold(Self::stream(), |reply, index| reply.text(&format!("w{index} "))).stop()
    }

    /// A whole reply that makes tool calls, each an id, a tool's name and its arguments.
    #[must_use]
    pub fn calls(calls: &[(&str, &str, Value)]) -> Self {
        calls
            .iter()
            .enumerate()
            .fold(Self::stream(), |reply, (index, (id, name, arguments))| {
                reply.tool_call(index, id, name, &arguments.to_string())
            })
            .finish("tool_calls")
            .usage(10, 5)
            .done()
    }

    /// `body` as an event stream, each byte in an HTTP chunk of its own: the worst cut there is.
    #[must_use]
    pub fn one_byte_at_a_time(body: impl Into<Bytes>) -> Self {
        Self::stream().step(Step::Drip(body.into()))
    }

    /// `pieces` as an event stream, each in an HTTP chunk of its own.
    #[must_use]
    pub fn pieces<B: Into<Bytes>>(pieces: impl IntoIterator<Item = B>) -> Self {
        pieces.into_iter().fold(Self::stream(), Self::send)
    }

    /// Another status for this reply.
    #[must_use]
    pub fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// One more header, as `Retry-After`. Replaces one of the same name.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Ends the body by closing the connection instead of by a last chunk, so that a cut is a plain end of
    /// file to the client. TCP may then join or split the pieces.
    #[must_use]
    pub fn until_close(mut self) -> Self {
        self.framing = Framing::Close;
        self
    }

    /// Sends these bytes as one piece and flushes them.
    #[must_use]
    pub fn send(self, bytes: impl Into<Bytes>) -> Self {
        self.step(Step::Send(bytes.into()))
    }

    /// Sends a text delta.
    #[must_use]
    pub fn text(self, piece: &str) -> Self {
        self.send(sse::text(piece))
    }

    /// Sends a reasoning delta.
    #[must_use]
    pub fn reasoning(self, piece: &str) -> Self {
        self.send(sse::reasoning(piece))
    }

    /// Sends a whole tool call.
    #[must_use]
    pub fn tool_call(self, index: usize, id: &str, name: &str, arguments: &str) -> Self {
        self.send(sse::tool_call(index, id, name, arguments))
    }

    /// Sends the token counts.
    #[must_use]
    pub fn usage(self, prompt: u64, completion: u64) -> Self {
        self.send(sse::usage(prompt, completion))
    }

    /// Sends the finish reason.
    #[must_use]
    pub fn finish(self, reason: &str) -> Self {
        self.send(sse::finish(reason))
    }

    /// Sends `[DONE]`.
    #[must_use]
    pub fn done(self) -> Self {
        self.send(sse::done())
    }

    /// Ends an answer the usual way: `stop`, token counts, `[DONE]`.
    #[must_use]
    pub fn stop(self) -> Self {
        self.finish("stop").usage(10, 5).done()
    }

    /// Stops at `gate` until the test opens it. The head and all earlier steps are sent by then.
    #[must_use]
    pub fn wait(self, gate: &Gate) -> Self {
        self.step(Step::Wait(gate.clone()))
    }

    /// Closes the connection in the middle of the body. Steps after this one are not run.
    #[must_use]
    pub fn cut(self) -> Self {
        self.step(Step::Cut)
    }

    /// Sends nothing more until the client leaves. Steps after this one are not run.
    #[must_use]
    pub fn hang(self) -> Self {
        self.step(Step::Hang)
    }

    /// Closes the connection with a TCP reset. What the client has not read by then may be lost to it, so put
    /// a [`wait`](Self::wait) before it where that matters. Steps after this one are not run.
    #[must_use]
    pub fn reset(self) -> Self {
        self.step(Step::Reset)
    }

    fn step(mut self, step: Step) -> Self {
        // A body of known length whose script goes on past the first piece no longer has that length.
        if self.framing == Framing::Length {
            self.framing = Framing::Chunked;
        }
        self.steps.push(step);
        self
    }
}
