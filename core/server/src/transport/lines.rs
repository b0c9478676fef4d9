//! Bytes into lines. Pure: the lines are the same for every way of cutting the bytes, and nothing is scanned twice.
//!
//! Neighbours: none.

/// Room that is kept for the next lines once the lines before them were read; a longer line's room is given back.
const ROOM_KEPT_MAX: usize = 1024 * 1024;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Splits a stream of bytes at its line feeds, and at nothing else.
///
/// A carriage return before a line feed belongs to the line's end, and a byte order mark before the first line to
/// nothing. What follows the last line feed is a line, too, once [`finish`](Self::finish) says that no more comes. A
/// line of more than `bytes_max` bytes is dropped as it comes and told once; at most that much, and the piece that was
/// pushed last, is held.
///
/// ```
/// use raddle_server::transport::lines::{Line, LineSplitter};
///
/// let mut splitter = LineSplitter::new(8);
/// splitter.push(b"one\r\ntw");
/// assert_eq!(splitter.next_line(), Some(Line::Text(b"one")));
/// assert_eq!(splitter.next_line(), None);
/// splitter.push(b"o\nmuch too long\n");
/// assert_eq!(splitter.next_line(), Some(Line::Text(b"two")));
/// assert_eq!(splitter.next_line(), Some(Line::TooLong));
/// ```
#[derive(Debug)]
pub struct LineSplitter {
    buffer: Vec<u8>,
    /// Where the next line begins.
    start: usize,
    /// Up to here there is no line feed that was not seen.
    scanned: usize,
    bytes_max: usize,
    is_first: bool,
    /// Within a line that is too long.
    skips: bool,
    finished: bool,
}

/// A line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// Its bytes, without its end.
    Text(&'a [u8]),
    /// It had too many bytes, and is gone.
    TooLong,
}

impl LineSplitter {
    /// A splitter at the start of a stream, for lines of at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            buffer: Vec::new(),
            start: 0,
            scanned: 0,
            bytes_max,
            is_first: true,
            skips: false,
            finished: false,
        }
    }

    /// Takes the stream's next bytes. Ask for lines until there are none before the next push: only then the bound holds.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start == self.buffer.len() {
            self.clear();
        } else if self.start > 0 {
            self.buffer.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// No more bytes come.
    pub fn finish(&mut self) {
        self.finished = true;
    }

    /// The next line; `None` when more bytes are needed.
    pub fn next_line(&mut self) -> Option<Line<'_>> {
        if self.skips {
            let Some(at) = memchr::memchr(b'\n', &self.buffer[self.start..]) else {
                self.clear();
                return None;
            };
            self.skips = false;
            self.start += at + 1;
            self.scanned = self.start;
        }
        let found = memchr::memchr(b'\n', &self.buffer[self.scanned..]);
        let (begin, end) = match found {
            Some(at) => {
                let line = (self.start, self.scanned + at);
                self.start = line.1 + 1;
                line
            }
            None => {
                self.scanned = self.buffer.len();
                // What is no part of the line, at most: a carriage return, and the mark.
                let around = 1 + if self.is_first { BYTE_ORDER_MARK.len() } else { 0 };
                if self.buffer.len() - self.start > self.bytes_max.saturating_add(around) {
                    self.is_first = false;
                    self.skips = true;
                    self.clear();
                    return Some(Line::TooLong);
                }
                if !self.finished || self.start == self.buffer.len() {
                    return None;
                }
                let line = (self.start, self.buffer.len());
                self.start = line.1;
                line
            }
        };
        self.scanned = self.start;
        let is_first = std::mem::replace(&mut self.is_first, false);
        let mut text = &self.buffer[begin..end];
        if is_first {
            text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
        }
        text = text.strip_suffix(b"\r").unwrap_or(text);
        Some(if text.len() > self.bytes_max { Line::TooLong } else { Line::Text(text) })
    }

    fn clear(&mut self) {
        if self.buffer.capacity() > ROOM_KEPT_MAX {
            self.buffer = Vec::new();
        } else {
            self.buffer.clear();
        }
        self.start = 0;
        self.scanned = 0;
    }
}

#[cfg(test)]
mod tests;
