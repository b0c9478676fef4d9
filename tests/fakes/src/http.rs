//! The little of HTTP/1.1 that a fake needs, by hand, since a library would not let it choose the cuts.

use std::fmt::Write as _;
use std::io;

use bytes::{Buf, Bytes, BytesMut};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::reply::{Framing, Reply, Step};
use crate::request::Request;

/// The largest head of a request that is read.
const HEAD_LIMIT: usize = 64 * 1024;

/// The largest body of a request that is read: far over what any context window holds.
const BODY_LIMIT: usize = 64 * 1024 * 1024;

/// How a connection fails before a request is complete.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The client closed it or the network did, between requests: nothing to report.
    Closed,
    /// The client sent what this server does not understand.
    Malformed(String),
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Self::Closed
    }
}

/// One client's connection.
pub(crate) struct Connection {
    stream: TcpStream,
    unread: BytesMut,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, unread: BytesMut::new() }
    }

    /// Reads the next request whole.
    pub(crate) async fn read_request(&mut self) -> Result<Request, Broken> {
        let head = loop {
            if let Some(end) = find(&self.unread, b"\r\n\r\n") {
                let head = self.unread.split_to(end);
                self.unread.advance(4);
                break head;
            }
            if self.unread.len() > HEAD_LIMIT {
                return Err(Broken::Malformed(format!("the request's head exceeds {HEAD_LIMIT} bytes")));
            }
            if self.stream.read_buf(&mut self.unread).await? == 0 {
                return Err(Broken::Closed);
            }
        };
        let mut request = parse_head(&head)?;
        let body = self.read_body(&request).await?;
        if !body.is_empty() {
            request.body = serde_json::from_slice(&body)
                .map_err(|error| Broken::Malformed(format!("the request's body is not JSON: {error}")))?;
        }
        Ok(request)
    }

    async fn read_body(&mut self, request: &Request) -> Result<BytesMut, Broken> {
        if request.header("transfer-encoding").is_some() {
            return Err(Broken::Malformed("send the body with a Content-Length, not in chunks".to_owned()));
        }
        let length = match request.header("content-length") {
            None => 0,
            Some(text) => text
                .parse()
                .map_err(|_| Broken::Malformed(format!("Content-Length {text:?} is no number")))?,
        };
        if length > BODY_LIMIT {
            return Err(Broken::Malformed(format!("the request's body exceeds {BODY_LIMIT} bytes")));
        }
        self.unread.reserve(length.saturating_sub(self.unread.len()));
        while self.unread.len() < length {
            if self.stream.read_buf(&mut self.unread).await? == 0 {
                return Err(Broken::Closed);
            }
        }
        Ok(self.unread.split_to(length))
    }

    /// Waits until the client has closed its end. Whatever it sends meanwhile is kept for the next request.
    pub(crate) async fn client_left(&mut self) {
        while self.unread.len() <= HEAD_LIMIT {
            match self.stream.read_buf(&mut self.unread).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }

    /// Sends status and headers.
    pub(crate) async fn write_head(&mut self, reply: &Reply) -> io::Result<()> {
        let mut head = format!("HTTP/1.1 {} {}\r\n", reply.status, reason(reply.status));
        for (name, value) in &reply.headers {
            // Writing to a string does not fail.
            let _ = write!(head, "{name}: {value}\r\n");
        }
        match reply.framing {
            Framing::Chunked => head.push_str("transfer-encoding: chunked\r\n\r\n"),
            Framing::Close => head.push_str("connection: close\r\n\r\n"),
            Framing::Length => {
                let length: usize = reply.steps.iter().map(length).sum();
                let _ = write!(head, "content-length: {length}\r\n\r\n");
            }
        }
        self.stream.write_all(head.as_bytes()).await
    }

    /// Sends one piece of the body. Nothing buffers behind this, so it is flushed when it returns.
    pub(crate) async fn write_piece(&mut self, framing: Framing, piece: &[u8]) -> io::Result<()> {
        // A chunk of no bytes would end the body.
        if piece.is_empty() {
            return Ok(());
        }
        if framing != Framing::Chunked {
            return self.stream.write_all(piece).await;
        }
        let mut chunk = Vec::with_capacity(piece.len() + 16);
        push_chunk(&mut chunk, piece);
        self.stream.write_all(&chunk).await
    }

    /// Sends each byte as a piece of its own.
    pub(crate) async fn write_drip(&mut self, framing: Framing, bytes: &Bytes) -> io::Result<()> {
        if framing != Framing::Chunked {
            return self.stream.write_all(bytes).await;
        }
        let mut chunks = Vec::with_capacity(bytes.len() * 6);
        for byte in bytes.chunks(1) {
            push_chunk(&mut chunks, byte);
        }
        self.stream.write_all(&chunks).await
    }

    /// Ends the body. Says whether the connection can take another request.
    pub(crate) async fn write_end(&mut self, framing: Framing) -> io::Result<bool> {
        match framing {
            Framing::Chunked => self.stream.write_all(b"0\r\n\r\n").await.map(|()| true),
            Framing::Length => Ok(true),
            Framing::Close => Ok(false),
        }
    }

    /// Makes the close that follows a TCP reset.
    pub(crate) fn reset_on_close(&self) -> io::Result<()> {
        self.stream.set_zero_linger()
    }
}

fn length(step: &Step) -> usize {
    match step {
        Step::Send(bytes) | Step::Drip(bytes) => bytes.len(),
        _ => 0,
    }
}

/// Appends `piece` in HTTP's chunk framing.
pub(crate) fn push_chunk(out: &mut Vec<u8>, piece: &[u8]) {
    out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
    out.extend_from_slice(piece);
    out.extend_from_slice(b"\r\n");
}

fn parse_head(head: &[u8]) -> Result<Request, Broken> {
    let head = std::str::from_utf8(head)
        .map_err(|_| Broken::Malformed("the request's head is not UTF-8".to_owned()))?;
    let mut lines = head.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let mut words = first.split(' ');
    let (Some(method), Some(path), Some("HTTP/1.1")) = (words.next(), words.next(), words.next()) else {
        return Err(Broken::Malformed(format!("{first:?} is no HTTP/1.1 request line")));
    };
    let mut headers = Vec::new();
    for line in lines {
        let Some((name, value)) = line.split_once(':') else {
            return Err(Broken::Malformed(format!("{line:?} is no header")));
        };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    Ok(Request { method: method.to_owned(), path: path.to_owned(), headers, body: Value::Null })
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        404 => "Not Found",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "Status",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_becomes_a_request() {
        let request = parse_head(b"POST /v1/x HTTP/1.1\r\nHost: a:1\r\nX-Key:  v ").unwrap();
        assert_eq!(request.method(), "POST");
        assert_eq!(request.path(), "/v1/x");
        assert_eq!(request.header("host"), Some("a:1"));
        assert_eq!(request.header("x-key"), Some("v"));
    }

    #[test]
    fn a_head_of_another_protocol_is_refused() {
        assert!(matches!(parse_head(b"PRI * HTTP/2.0"), Err(Broken::Malformed(_))));
        assert!(matches!(parse_head(b"GET / HTTP/1.1\r\nnonsense"), Err(Broken::Malformed(_))));
    }

    #[test]
    fn a_chunk_has_its_length_in_hex() {
        let mut out = Vec::new();
        push_chunk(&mut out, b"0123456789abcdef");
        assert_eq!(out, b"10\r\n0123456789abcdef\r\n");
    }
}
