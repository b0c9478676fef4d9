//! Messages over a reader and a writer of bytes, one line each: the standard streams of a process, a socket, a pipe.
//!
//! Neighbours: none.

use std::io;

use raddle_protocol::RequestId;
use raddle_protocol::limits::{OUTBOX_BYTES_MAX, STDIN_LINE_BYTES_MAX};
use raddle_protocol::rpc::{ClientMessage, ServerMessage};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::envelope::{self, FromServer};
use super::lines::{Line, LineSplitter};
use super::{Incoming, MessageSink, MessageSource};

/// Bytes that are read at a time, at most.
const READ_BYTES: usize = 64 * 1024;

/// Encoded messages that wait for a flush are written out when there are this many bytes.
const WRITE_AT: usize = 64 * 1024;

/// Room that is kept for the next messages; a larger message's room is given back.
const ROOM_KEPT_MAX: usize = 1024 * 1024;

/// Bytes of a line that a server sends; a longer one is skipped. Ours: what may wait in an outbox, each byte of it
/// escaped, so our own server sends none.
pub const SERVER_LINE_BYTES_MAX: usize = 8 * OUTBOX_BYTES_MAX;

/// The server's reading half.
#[derive(Debug)]
pub struct ServerSource<R> {
    lines: Lines<R>,
}

impl<R: AsyncRead + Unpin + Send> ServerSource<R> {
    /// Reads a client's messages. A failure to read is the end of input.
    pub fn new(reader: R) -> Self {
        Self::with_line_bound(reader, STDIN_LINE_BYTES_MAX)
    }

    /// The same for lines of at most `bytes_max` bytes instead of the usual [`STDIN_LINE_BYTES_MAX`].
    pub fn with_line_bound(reader: R, bytes_max: usize) -> Self {
        Self { lines: Lines::new(reader, bytes_max) }
    }
}

impl<R: AsyncRead + Unpin + Send> MessageSource for ServerSource<R> {
    async fn receive(&mut self) -> Option<Incoming> {
        let bytes_max = self.lines.bytes_max;
        self.lines
            .next(|line| match line {
                Line::Text(text) => envelope::read_client_line(text),
                Line::TooLong => Some(envelope::line_too_long(bytes_max)),
            })
            .await
    }
}

/// The server's writing half.
#[derive(Debug)]
pub struct ServerSink<W> {
    lines: LineWriter<W>,
}

impl<W: AsyncWrite + Unpin + Send> ServerSink<W> {
    /// Writes a server's messages.
    pub fn new(writer: W) -> Self {
        Self { lines: LineWriter::new(writer) }
    }
}

impl<W: AsyncWrite + Unpin + Send> MessageSink for ServerSink<W> {
    async fn send(&mut self, message: ServerMessage) -> io::Result<()> {
        envelope::write_server_message(&message, &mut self.lines.buffer)?;
        // It may be large, and is not needed any more.
        drop(message);
        self.lines.write_if_many().await
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.lines.flush().await
    }

    async fn close(&mut self) {
        self.lines.close().await;
    }
}

/// The client's reading half.
#[derive(Debug)]
pub struct ClientSource<R> {
    lines: Lines<R>,
}

impl<R: AsyncRead + Unpin + Send> ClientSource<R> {
    /// Reads a server's messages. A failure to read is the end of input.
    pub fn new(reader: R) -> Self {
        Self { lines: Lines::new(reader, SERVER_LINE_BYTES_MAX) }
    }

    /// Waits for the next message; `None` at the end. `asked` tells the method of an open request.
    ///
    /// # Cancel safety
    /// Dropping the future loses no message.
    pub async fn receive(
        &mut self,
        mut asked: impl FnMut(&RequestId) -> Option<&'static str> + Send,
    ) -> Option<FromServer> {
        self.lines
            .next(|line| match line {
                Line::Text(text) => envelope::read_server_line(text, &mut asked),
                Line::TooLong => {
                    tracing::error!("a line of the server was too long and was skipped");
                    None
                }
            })
            .await
    }
}

/// The client's writing half.
#[derive(Debug)]
pub struct ClientSink<W> {
    lines: LineWriter<W>,
}

impl<W: AsyncWrite + Unpin + Send> ClientSink<W> {
    /// Writes a client's messages.
    pub fn new(writer: W) -> Self {
        Self { lines: LineWriter::new(writer) }
    }

    /// Writes one message, or holds it back until the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// When the writer fails.
    pub async fn send(&mut self, message: &ClientMessage) -> io::Result<()> {
        envelope::write_client_message(message, &mut self.lines.buffer)?;
        self.lines.write_if_many().await
    }

    /// Writes out what is held back.
    ///
    /// # Errors
    /// When the writer fails.
    pub async fn flush(&mut self) -> io::Result<()> {
        self.lines.flush().await
    }

    /// Writes out what is held back, and ends.
    pub async fn close(&mut self) {
        self.lines.close().await;
    }
}

/// The lines of a reader.
#[derive(Debug)]
struct Lines<R> {
    reader: R,
    splitter: LineSplitter,
    chunk: Box<[u8]>,
    bytes_max: usize,
    ended: bool,
}

impl<R: AsyncRead + Unpin + Send> Lines<R> {
    fn new(reader: R, bytes_max: usize) -> Self {
        let chunk = vec![0; READ_BYTES].into_boxed_slice();
        Self { reader, splitter: LineSplitter::new(bytes_max), chunk, bytes_max, ended: false }
    }

    /// The first thing that `read` makes of a line.
    async fn next<T>(&mut self, mut read: impl FnMut(Line<'_>) -> Option<T> + Send) -> Option<T> {
        loop {
            while let Some(line) = self.splitter.next_line() {
                if let Some(made) = read(line) {
                    return Some(made);
                }
            }
            if self.ended {
                return None;
            }
            match self.reader.read(&mut self.chunk).await {
                Ok(0) => self.end(),
                Ok(count) => self.splitter.push(&self.chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be read");
                    self.end();
                }
            }
        }
    }

    fn end(&mut self) {
        self.ended = true;
        self.splitter.finish();
    }
}

/// Encoded lines on their way into a writer: at most [`WRITE_AT`] bytes, and one message.
#[derive(Debug)]
struct LineWriter<W> {
    writer: W,
    buffer: Vec<u8>,
}

impl<W: AsyncWrite + Unpin + Send> LineWriter<W> {
    fn new(writer: W) -> Self {
        Self { writer, buffer: Vec::new() }
    }

    async fn write_if_many(&mut self) -> io::Result<()> {
        if self.buffer.len() >= WRITE_AT { self.write().await } else { Ok(()) }
    }

    async fn write(&mut self) -> io::Result<()> {
        self.writer.write_all(&self.buffer).await?;
        if self.buffer.capacity() > ROOM_KEPT_MAX {
            self.buffer = Vec::new();
        } else {
            self.buffer.clear();
        }
        Ok(())
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.write().await?;
        self.writer.flush().await
    }

    async fn close(&mut self) {
        if self.flush().await.is_ok() {
            let _ = self.writer.shutdown().await;
        }
    }
}

#[cfg(test)]
mod tests;
