//! Server-sent events out of bytes that may be cut anywhere.
//!
//! Ours rather than a crate's for four reasons that `docs/decisions/0003-openai-adapter.md` spells out: it shows
//! comments (they prove that a server lives), it bounds an event, it leaves invalid UTF-8 to its caller, and it hands
//! out an event that lies whole in one network read without copying it.
//!
//! Source: the HTML standard, "Server-sent events", with two additions that real servers need: a line
//! `error: {…}` counts as data of an event named `error` (older llama.cpp), and so does a bare line that starts with
//! `{` (proxies that forget the `data:`), whose event keeps its name.
//!
//! Neighbours: none.

use memchr::memchr2;

/// Bytes that one event may have, its unfinished line included. At more the stream fails.
pub(crate) const SSE_EVENT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Bytes that an idle buffer may keep for the next event; a larger one is given back.
const KEPT_BUFFER_BYTES_MAX: usize = 64 * 1024;

const BOM: &[u8] = b"\xEF\xBB\xBF";

/// What the decoder found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SseItem<'a> {
    /// An event with data.
    Event {
        /// Its `event:` field; empty when it has none.
        name: &'a [u8],
        /// Its data lines, joined by line feeds.
        data: &'a [u8],
    },
    /// A comment, an event without data, or a blank line on its own.
    Idle,
}

/// An event was larger than [`SSE_EVENT_BYTES_MAX`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SseEventTooLarge;

/// The incremental decoder.
#[derive(Default)]
pub(crate) struct SseDecoder {
    /// The line that the last read ended in.
    line: Vec<u8>,
    /// The data of the open event, as far as it does not lie in the read at hand.
    data: Vec<u8>,
    name: Vec<u8>,
    /// The open event has a data line in `data`.
    has_data: bool,
    /// Something was said since the last blank line.
    block_open: bool,
    /// A comment was already reported for this block.
    block_reported: bool,
    /// The last read ended in a carriage return; a line feed that follows belongs to it.
    skip_line_feed: bool,
    past_first_line: bool,
}

impl SseDecoder {
    /// Takes the next bytes and passes on what they complete, in order. The items are the same for every way of
    /// cutting the bytes. After an error the decoder must not be used again.
    pub(crate) fn push<E: From<SseEventTooLarge>>(
        &mut self,
        bytes: &[u8],
        sink: &mut impl FnMut(SseItem<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = bytes;
        if self.skip_line_feed && !rest.is_empty() {
            self.skip_line_feed = false;
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        // The one data line of the open event, while it still lies in `bytes`.
        let mut held = None;
        while let Some(end) = memchr2(b'\n', b'\r', rest) {
            let line = &rest[..end];
            let carriage_return = rest[end] == b'\r';
            rest = &rest[end + 1..];
            if carriage_return {
                match rest.first() {
                    Some(b'\n') => rest = &rest[1..],
                    Some(_) => {}
                    None => self.skip_line_feed = true,
                }
            }
            if self.line.is_empty() {
                self.take_line(line, &mut held, sink)?;
            } else {
                self.line.extend_from_slice(line);
                let mut whole = std::mem::take(&mut self.line);
                let mut held_in_whole = None;
                self.take_line(&whole, &mut held_in_whole, sink)?;
                self.keep(held_in_whole);
                whole.clear();
                if whole.capacity() <= KEPT_BUFFER_BYTES_MAX {
                    self.line = whole;
                }
            }
        }
        self.keep(held);
        self.line.extend_from_slice(rest);
        self.check(self.line.len())
    }

    /// The stream has ended. An event that its last bytes complete in all but the blank line is passed on: its
    /// consumer can tell a whole JSON text from a cut one, and servers do forget the last line end.
    pub(crate) fn end<E: From<SseEventTooLarge>>(
        &mut self,
        sink: &mut impl FnMut(SseItem<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let line = std::mem::take(&mut self.line);
        let mut held = None;
        if !line.is_empty() {
            self.take_line(&line, &mut held, sink)?;
        }
        if held.is_some() || self.has_data {
            self.take_line(b"", &mut held, sink)?;
        }
        Ok(())
    }

    /// Takes a whole line; `held` is the open event's data line that is not in `self.data`.
    fn take_line<'a, E: From<SseEventTooLarge>>(
        &mut self,
        mut line: &'a [u8],
        held: &mut Option<&'a [u8]>,
        sink: &mut impl FnMut(SseItem<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if !self.past_first_line {
            self.past_first_line = true;
            line = line.strip_prefix(BOM).unwrap_or(line);
        }
        self.check(line.len() + held.map_or(0, <[u8]>::len))?;
        if let Some(value) = line.strip_prefix(b"data:") {
            self.block_open = true;
            self.add_data(value.strip_prefix(b" ").unwrap_or(value), held);
            return Ok(());
        }
        match line.first() {
            None => return self.end_block(held, sink),
            Some(b':') => {
                self.block_open = true;
                self.block_reported = true;
                return sink(SseItem::Idle);
            }
            Some(_) => self.block_open = true,
        }
        if line[0] == b'{' {
            self.add_data(line, held);
            return Ok(());
        }
        let (field, value) = match memchr::memchr(b':', line) {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &b""[..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => self.add_data(value, held),
            b"event" => value.clone_into(&mut self.name),
            b"error" => {
                b"error".as_slice().clone_into(&mut self.name);
                self.add_data(value, held);
            }
            // `id` and `retry` are for reconnecting, which a model's reply cannot do; the rest is not in the standard.
            _ => {}
        }
        Ok(())
    }

    fn add_data<'a>(&mut self, value: &'a [u8], held: &mut Option<&'a [u8]>) {
        if self.has_data || held.is_some() {
            self.keep(held.take());
            self.keep(Some(value));
        } else {
            *held = Some(value);
        }
    }

    /// Moves a data line into the decoder's own buffer.
    fn keep(&mut self, held: Option<&[u8]>) {
        if let Some(value) = held {
            if self.has_data {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(value);
            self.has_data = true;
        }
    }

    /// A blank line: the event is complete.
    fn end_block<E>(
        &mut self,
        held: &mut Option<&[u8]>,
        sink: &mut impl FnMut(SseItem<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let data = if self.has_data {
            self.keep(held.take());
            Some(self.data.as_slice())
        } else {
            held.take()
        };
        let outcome = match data {
            Some(data) if !data.is_empty() => sink(SseItem::Event { name: &self.name, data }),
            // The blank line after a comment says nothing that the comment did not say.
            _ if self.block_open && self.block_reported => Ok(()),
            _ => sink(SseItem::Idle),
        };
        self.name.clear();
        self.data.clear();
        if self.data.capacity() > KEPT_BUFFER_BYTES_MAX {
            self.data = Vec::new();
        }
        self.has_data = false;
        self.block_open = false;
        self.block_reported = false;
        outcome
    }

    fn check<E: From<SseEventTooLarge>>(&self, more: usize) -> Result<(), E> {
        if self.data.len() + more > SSE_EVENT_BYTES_MAX { Err(SseEventTooLarge.into()) } else { Ok(()) }
    }
}

#[cfg(test)]
#[path = "sse/tests.rs"]
mod tests;
