//! Messages as lines of JSON, read and written at both ends. Pure, and generic over the table of methods.
//!
//! A request is `{id, method, params?}`, a notification `{method, params?}`, an answer `{id, result}` or `{id, error}`.
//! There is no `jsonrpc` member; one that comes is ignored, as is every other that is not ours. What is written has no
//! line separator of Unicode in it (U+2028, U+2029, U+0085), so readers that split at those see whole lines, too.
//!
//! Neighbours: none.

use std::io;
use std::sync::Arc;

use raddle_protocol::limits::{REQUEST_ID_BYTES_MAX, cut_chars};
use raddle_protocol::methods::{
    ClientNotification, ClientRequest, ClientResponse, ServerNotification, ServerRequest,
};
use raddle_protocol::rpc::{ClientMessage, ServerMessage};
use raddle_protocol::{ErrorCode, RequestId, RpcError};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Incoming;

/// Characters of a method name, or of an error's text, that are repeated to whoever sent them; the rest is cut.
const REPEATED_CHARS_MAX: usize = 1_000;

/// Reads a line of a client. `None`: nothing is to be done about it, since it is blank, or a notification that is not
/// ours.
///
/// Nesting of more than 128 levels is a `parseError`, so no line can exhaust the stack.
pub fn read_client_line(line: &[u8]) -> Option<Incoming> {
    if is_blank(line) {
        return None;
    }
    let malformed = |id, error| Some(Incoming::Malformed { id, error });
    let mut message = match serde_json::from_slice(line) {
        Ok(Value::Object(message)) => message,
        Ok(_) => return malformed(None, invalid("a message is an object")),
        Err(error) => {
            let text = format!("the line is not JSON: {error}");
            return malformed(None, RpcError::new(ErrorCode::ParseError, text));
        }
    };
    let id = take_id(&mut message);
    match (message.remove("method"), id) {
        (Some(Value::String(method)), None) => client_notification(&method, params(&mut message)),
        (Some(Value::String(method)), Some(Ok(id))) => Some(client_request(id, method, params(&mut message))),
        (None, Some(Ok(id))) => match take_answer(&mut message) {
            Some(result) => Some(Incoming::Answer { id, result }),
            None => malformed(Some(id), invalid("a message has a `method`, a `result` or an `error`")),
        },
        (Some(_), Some(Ok(id))) => malformed(Some(id), invalid("`method` must be a string")),
        (_, Some(Err(error))) => malformed(None, error),
        (_, None) => malformed(None, invalid("a message has a `method` that is a string, or an `id`")),
    }
}

/// What to tell of a line of a client that was too long to be read.
pub fn line_too_long(bytes_max: usize) -> Incoming {
    let text = format!("a line of more than {bytes_max} bytes was dropped");
    Incoming::Dropped { error: invalid(text).with_reason("lineTooLong") }
}

fn client_notification(method: &str, params: Params) -> Option<Incoming> {
    let method = cut_chars(method, REPEATED_CHARS_MAX);
    let read = params.and_then(|params| ClientNotification::decode(method, params));
    match read {
        Ok(notification) => Some(Incoming::Message(ClientMessage::Notification(notification))),
        Err(error) => {
            tracing::info!(method, "a notification was ignored: {error}");
            None
        }
    }
}

fn client_request(id: RequestId, method: String, params: Params) -> Incoming {
    let known = cut_chars(&method, REPEATED_CHARS_MAX);
    // Without params a method is looked up all the same: that it is not ours comes before what is wrong with the rest.
    let (params, wrong) = match params {
        Ok(params) => (params, None),
        Err(error) => (Value::Null, Some(error)),
    };
    let error = match (ClientRequest::decode(known, params), wrong) {
        (Ok(request), None) => return Incoming::Message(ClientMessage::Request { id, request }),
        (Err(error), None) => error,
        (Err(error), Some(_)) if error.code == ErrorCode::MethodNotFound => error,
        (_, Some(wrong)) => wrong,
    };
    Incoming::BadRequest { id, method, error: shortened(error) }
}

/// What a client has read.
#[derive(Clone, Debug, PartialEq)]
pub enum FromServer {
    /// A message.
    Message(ServerMessage),
    /// The answer to a request, with a result that this side cannot read.
    UnreadableResult {
        /// The client's id.
        id: RequestId,
        /// What does not fit.
        error: RpcError,
    },
    /// A request that this side does not know; the server should be told.
    UnknownRequest {
        /// The server's id.
        id: RequestId,
        /// What to answer.
        error: RpcError,
    },
}

/// Reads a line of a server. `asked` tells the method of an open request of this client. `None`: nothing is to be done
/// about it, since it is blank, no message, an answer that nobody waits for, or a notification of a newer server.
pub fn read_server_line(
    line: &[u8],
    asked: impl FnOnce(&RequestId) -> Option<&'static str>,
) -> Option<FromServer> {
    if is_blank(line) {
        return None;
    }
    let mut message: Map<String, Value> = match serde_json::from_slice(line) {
        Ok(message) => message,
        Err(error) => return unreadable_answer(line, &error, asked),
    };
    let id = take_id(&mut message);
    match (message.remove("method"), id) {
        (Some(Value::String(method)), None) => {
            let read = params(&mut message).and_then(|params| ServerNotification::decode(&method, params));
            match read {
                Ok(notification) => {
                    Some(FromServer::Message(ServerMessage::Notification(Arc::new(notification))))
                }
                Err(error) => {
                    tracing::info!(method, "a notification of the server was skipped: {error}");
                    None
                }
            }
        }
        (Some(Value::String(method)), Some(Ok(id))) => {
            let read = params(&mut message).and_then(|params| ServerRequest::decode(&method, params));
            Some(match read {
                Ok(request) => FromServer::Message(ServerMessage::Request { id, request }),
                Err(error) => FromServer::UnknownRequest { id, error: shortened(error) },
            })
        }
        (None, Some(Ok(id))) => match (take_answer(&mut message)?, asked(&id)) {
            (Err(error), _) => {
                Some(FromServer::Message(ServerMessage::Response { id: Some(id), result: Err(error) }))
            }
            (Ok(result), Some(method)) => Some(match ClientResponse::decode(method, result) {
                Ok(response) => {
                    FromServer::Message(ServerMessage::Response { id: Some(id), result: Ok(response) })
                }
                Err(error) => FromServer::UnreadableResult { id, error: shortened(error) },
            }),
            (Ok(_), None) => {
                tracing::debug!(%id, "an answer that nobody waits for was skipped");
                None
            }
        },
        // `id: null`: the server could not read something of ours.
        (None, Some(Err(_)) | None) => match take_answer(&mut message)? {
            Err(error) => Some(FromServer::Message(ServerMessage::Response { id: None, result: Err(error) })),
            Ok(_) => None,
        },
        _ => {
            tracing::warn!("a line of the server that is no message was skipped");
            None
        }
    }
}

/// What to make of a line of a server that cannot be read, such as one that is nested too deeply: if it answers a request,
/// that request fails, since nothing else will ever answer it.
fn unreadable_answer(
    line: &[u8],
    error: &serde_json::Error,
    asked: impl FnOnce(&RequestId) -> Option<&'static str>,
) -> Option<FromServer> {
    /// Reading it passes over all the rest, however deep.
    #[derive(Deserialize)]
    struct Answer {
        id: RequestId,
        method: Option<IgnoredAny>,
    }
    match serde_json::from_slice(line) {
        Ok(Answer { id, method: None }) if asked(&id).is_some() => {
            let text = format!("the answer cannot be read: {error}");
            Some(FromServer::UnreadableResult { id, error: RpcError::new(ErrorCode::Internal, text) })
        }
        _ => {
            tracing::warn!("a line of the server was skipped: {error}");
            None
        }
    }
}

/// Writes a message of a server, with the line's end. On an error nothing is written.
///
/// # Errors
/// When a value has no JSON form; ours all have one.
pub fn write_server_message(message: &ServerMessage, out: &mut Vec<u8>) -> serde_json::Result<()> {
    match message {
        ServerMessage::Response { id, result: Ok(response) } => {
            write(out, &[("id", &id), ("result", &response.result()?)])
        }
        ServerMessage::Response { id, result: Err(error) } => write(out, &[("id", &id), ("error", error)]),
        ServerMessage::Notification(notification) => {
            write(out, &[("method", &notification.method()), ("params", &notification.params()?)])
        }
        ServerMessage::Request { id, request } => {
            write(out, &[("id", id), ("method", &request.method()), ("params", &request.params()?)])
        }
    }
}

/// Writes a message of a client, with the line's end. On an error nothing is written.
///
/// # Errors
/// When a value has no JSON form; ours all have one.
pub fn write_client_message(message: &ClientMessage, out: &mut Vec<u8>) -> serde_json::Result<()> {
    match message {
        ClientMessage::Request { id, request } => {
            write(out, &[("id", id), ("method", &request.method()), ("params", &request.params()?)])
        }
        ClientMessage::Notification(notification) => {
            write(out, &[("method", &notification.method()), ("params", &notification.params()?)])
        }
        ClientMessage::Answer { id, answer: Ok(answer) } => {
            write(out, &[("id", id), ("result", &answer.result()?)])
        }
        ClientMessage::Answer { id, answer: Err(error) } => write(out, &[("id", id), ("error", error)]),
    }
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(u8::is_ascii_whitespace)
}

fn invalid(text: impl Into<String>) -> RpcError {
    RpcError::new(ErrorCode::InvalidRequest, text)
}

/// What does not fit is repeated in errors, and may be as long as a line.
fn shortened(mut error: RpcError) -> RpcError {
    let cut = cut_chars(&error.message, REPEATED_CHARS_MAX).len();
    error.message.truncate(cut);
    error
}

/// `None` without an id; the error when there is one that cannot be used.
fn take_id(message: &mut Map<String, Value>) -> Option<Result<RequestId, RpcError>> {
    Some(match message.remove("id")? {
        Value::String(id) if id.len() <= REQUEST_ID_BYTES_MAX => Ok(RequestId::String(id)),
        Value::String(_) => {
            Err(invalid(format!("an `id` that is a string has at most {REQUEST_ID_BYTES_MAX} bytes")))
        }
        Value::Number(id) => match id.as_i64() {
            Some(id) => Ok(RequestId::Number(id)),
            None => Err(invalid("an `id` that is a number is a whole one of 64 bits")),
        },
        _ => Err(invalid("an `id` is a string or a whole number")),
    })
}

type Params = Result<Value, RpcError>;

fn params(message: &mut Map<String, Value>) -> Params {
    match message.remove("params") {
        None => Ok(Value::Null),
        Some(params @ (Value::Null | Value::Object(_))) => Ok(params),
        // Serde would read a list as the fields in their order, which nobody means.
        Some(_) => Err(RpcError::invalid_params("`params` must be an object")),
    }
}

/// `None` when it is no answer. An answer of which nothing can be made is an error answer: it never grants anything.
fn take_answer(message: &mut Map<String, Value>) -> Option<Result<Value, RpcError>> {
    let error = message.remove("error").filter(|error| !error.is_null());
    match (message.remove("result"), error) {
        (None, None) => None,
        (Some(result), None) => Some(Ok(result)),
        (_, Some(error)) => Some(Err(serde_json::from_value(error).map(shortened).unwrap_or_else(|_| {
            RpcError::new(ErrorCode::Internal, "an error of another shape than `{code, message, data?}`")
        }))),
    }
}

fn write(out: &mut Vec<u8>, members: &[(&str, &dyn Encode)]) -> serde_json::Result<()> {
    let before = out.len();
    let mut brace = b'{';
    for (name, value) in members {
        out.push(brace);
        brace = b',';
        // The names are ours and need no escapes.
        out.push(b'"');
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":");
        if let Err(error) = value.encode(out) {
            out.truncate(before);
            return Err(error);
        }
    }
    out.extend_from_slice(b"}\n");
    Ok(())
}

/// [`Serialize`], such that values of several types fit into one list.
trait Encode {
    fn encode(&self, out: &mut Vec<u8>) -> serde_json::Result<()>;
}

impl<T: Serialize> Encode for T {
    fn encode(&self, out: &mut Vec<u8>) -> serde_json::Result<()> {
        self.serialize(&mut serde_json::Serializer::with_formatter(out, OneLine))
    }
}

/// Bytes of a value as it is written.
pub(crate) fn written_len(value: &(impl Serialize + ?Sized)) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Our own types have string keys and no failing serializers, so this cannot fail.
    let _ = value.serialize(&mut serde_json::Serializer::with_formatter(&mut count, OneLine));
    count.0
}

/// Compact JSON without anything in it that a reader may take for the end of a line.
struct OneLine;

impl serde_json::ser::Formatter for OneLine {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let bytes = fragment.as_bytes();
        let mut written = 0;
        for at in memchr::memchr2_iter(0xC2, 0xE2, bytes) {
            let (escape, length): (&[u8], _) = match &bytes[at..] {
                [0xC2, 0x85, ..] => (br"\u0085", 2),
                [0xE2, 0x80, 0xA8, ..] => (br"\u2028", 3),
                [0xE2, 0x80, 0xA9, ..] => (br"\u2029", 3),
                _ => continue,
            };
            writer.write_all(&bytes[written..at])?;
            writer.write_all(escape)?;
            written = at + length;
        }
        writer.write_all(&bytes[written..])
    }
}

#[cfg(test)]
mod tests;
