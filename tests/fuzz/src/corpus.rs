//! What the targets are fed with at first: real messages, and the nasty ones that people met.
//!
//! Neighbours: none.

use raddle_protocol::methods::METHODS;

/// One message a line, in both directions.
const MESSAGES: &str = include_str!("../corpus/messages.jsonl");

/// Params with every field that any method has: each takes what it knows.
const PARAMS: &str = include_str!("../corpus/params.json");

/// What is put in the place of values.
pub(crate) const TOKENS: &[&str] = &[
    "null",
    "true",
    "-1",
    "0",
    "1e999",
    "-0.0",
    "1.5",
    "18446744073709551616",
    "9007199254740993",
    "\"\"",
    "\"\\ud800\"",
    "\"\\u0000\"",
    "\"a\\u2028b\\u2029c\\u0085d\"",
    "[]",
    "{}",
    "[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]",
    "\"accept\"",
    "\"fromTheFuture\"",
    "\"inProgress\"",
    "\"../../etc/passwd\"",
    "\"threadId\"",
    "\"id\"",
    "\"method\"",
    "\"params\"",
    "\"thread/read\"",
    "\"turn/send\"",
    "{\"type\":\"payloadReference\",\"id\":\"x\",\"bytes\":1,\"mimeType\":\"y\"}",
    "{\"type\":\"userMessage\"}",
    "{\"path\":\"/\"}",
    "{\"mimeType\":\"image/png\",\"data\":\"AAAA\"}",
    "\r",
    "\n",
    "\u{feff}",
];

/// Streams of lines, the first byte of which says how they are cut.
pub(crate) fn lines() -> Vec<Vec<u8>> {
    let mut corpus: Vec<Vec<u8>> =
        MESSAGES.lines().map(|line| [b"\x03", line.as_bytes(), b"\n"].concat()).collect();
    corpus.push([b"\x01", MESSAGES.as_bytes()].concat());
    let nested = "[".repeat(3_000);
    for nasty in [
        &b"\xef\xbb\xbf{\"id\":1,\"method\":\"model/list\"}\r\n\r\n\n{\"id\":2,\"method\":\"model/list\"}"[..],
        b"\xff\xfe\n{}\n[]\n\"\"\n1\n",
        b"{\"id\":1,\"id\":2,\"method\":\"model/list\",\"method\":\"thread/list\"}\n",
        b"{\"id\":1.5,\"method\":\"model/list\"}\n{\"id\":null,\"method\":\"model/list\"}\n{\"id\":{},\"result\":{}}\n",
        nested.as_bytes(),
    ] {
        corpus.push([b"\x02", nasty].concat());
    }
    corpus
}

/// Params for each row of the table, the first byte of which says which row.
pub(crate) fn params() -> Vec<Vec<u8>> {
    let one = |row: usize| [&[row as u8], PARAMS.trim_end().as_bytes()].concat();
    let results = MESSAGES.lines().enumerate().map(|(at, line)| [&[at as u8], line.as_bytes()].concat());
    (0..METHODS.len()).map(one).chain(results).collect()
}
