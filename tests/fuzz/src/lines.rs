//! The reader of lines: cutting changes nothing, each line is told one thing, and what is read can be written again.
//!
//! Neighbours: none.

use raddle_protocol::ErrorCode;
use raddle_server::transport::Incoming;
use raddle_server::transport::envelope::{
    FromServer, read_client_line, read_server_line, write_client_message, write_server_message,
};
use raddle_server::transport::lines::{Line, LineSplitter};
use serde_json::Value;

/// Small, so that lines that are too long are met.
const LINE_BYTES_MAX: usize = 1_500;

pub(crate) fn check(input: &[u8]) {
    let Some((cut, stream)) = input.split_first() else { return };
    let whole = split(stream, stream.len().max(1));
    let pieces = split(stream, usize::from(*cut) + 1);
    assert!(whole == pieces, "cutting changes the lines");
    for line in whole.into_iter().flatten() {
        client_line(&line);
        server_line(&line);
    }
}

/// The lines of a stream that comes in pieces; none for one that is too long.
fn split(stream: &[u8], piece: usize) -> Vec<Option<Vec<u8>>> {
    let mut splitter = LineSplitter::new(LINE_BYTES_MAX);
    let mut lines = Vec::new();
    let mut take = |splitter: &mut LineSplitter| {
        while let Some(line) = splitter.next_line() {
            lines.push(match line {
                Line::Text(text) => {
                    assert!(text.len() <= LINE_BYTES_MAX && !text.contains(&b'\n'));
                    Some(text.to_vec())
                }
                Line::TooLong => None,
            });
        }
    };
    for piece in stream.chunks(piece) {
        splitter.push(piece);
        take(&mut splitter);
    }
    splitter.finish();
    take(&mut splitter);
    lines
}

fn client_line(line: &[u8]) {
    let json = serde_json::from_slice::<Value>(line);
    let read = read_client_line(line);
    if line.iter().all(u8::is_ascii_whitespace) {
        return assert!(read.is_none(), "a blank line is told something");
    }
    match (&json, &read) {
        (Err(_), Some(Incoming::Malformed { id: None, error })) => {
            assert_eq!(error.code, ErrorCode::ParseError, "what is no JSON is a parse error");
        }
        (Err(error), other) => panic!("no JSON ({error}) was read as {other:?}"),
        (Ok(Value::Object(fields)), None) => {
            let notifies = fields.get("method").is_some_and(Value::is_string) && !fields.contains_key("id");
            assert!(notifies, "only a notification that is not ours is told nothing");
        }
        (Ok(json), None) => panic!("{json} was told nothing"),
        (Ok(_), Some(Incoming::Malformed { error, .. })) => {
            assert_eq!(
                error.code,
                ErrorCode::InvalidRequest,
                "JSON that is no message is an invalid request"
            );
        }
        (Ok(_), Some(Incoming::Message(message))) => {
            let mut out = Vec::new();
            write_client_message(message, &mut out).expect("what was read can be written");
            let again = read_client_line(one_line(&out));
            assert_eq!(again, Some(Incoming::Message(message.clone())), "written and read again");
        }
        (Ok(_), Some(_)) => {}
    }
}

fn server_line(line: &[u8]) {
    for method in ["thread/read", "turn/send", "payload/read"] {
        if let Some(FromServer::Message(message)) = read_server_line(line, |_| Some(method)) {
            let mut out = Vec::new();
            write_server_message(&message, &mut out).expect("what was read can be written");
            let again = read_server_line(one_line(&out), |_| Some(method));
            assert_eq!(again, Some(FromServer::Message(message)), "written and read again");
        }
    }
}

/// What was written is one line of UTF-8, and no naive reader finds two in it.
fn one_line(out: &[u8]) -> &[u8] {
    let text = std::str::from_utf8(out).expect("UTF-8");
    let line = text.strip_suffix('\n').expect("a line ends");
    assert!(!line.contains(['\n', '\r', '\u{2028}', '\u{2029}', '\u{85}']), "{line:?} is more than a line");
    line.as_bytes()
}
