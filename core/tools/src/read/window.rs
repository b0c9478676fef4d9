//! Taking a range of lines out of a stream of any length, in bounded memory.
//!
//! Neighbours: output.

use std::io::{self, Read};

use crate::output::{OUTPUT_BYTES_MAX, floor_boundary};

use super::READ_LINE_BYTES_MAX;

/// How many bytes are read at a time, and so how often the run looks whether it was cancelled.
const CHUNK_BYTES: usize = 64 * 1024;

/// How many bytes past the shown lines are read to count the lines of the whole file. In a larger file the
/// answer says "more" instead of a number.
const COUNT_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The lines that were asked for, and what is known of the others.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Window {
    /// The lines, with their line ends as they are in the file.
    pub(super) text: String,
    /// How many lines `text` holds.
    pub(super) lines: u64,
    /// How many lines the file has, if its end was seen.
    pub(super) lines_total: Option<u64>,
    /// A line after the shown ones exists.
    pub(super) has_more: bool,
    /// The scan limit was met before the asked lines were.
    pub(super) gave_up: bool,
}

/// Why there is no window.
#[derive(Debug)]
pub(super) enum Trouble {
    Cancelled,
    Io(io::Error),
    /// A byte of a line to show is not UTF-8.
    NotUtf8 {
        line: u64,
        byte: u8,
    },
}

/// Reads `limit` lines from the line `first` on (the first is 1). Stops early, between lines, where the text
/// would grow over [`OUTPUT_BYTES_MAX`], and gives up when `scan_bytes_max` did not suffice.
pub(super) fn take(
    source: &mut impl Read,
    first: u64,
    limit: u64,
    scan_bytes_max: u64,
    is_cancelled: impl Fn() -> bool,
) -> Result<Window, Trouble> {
    let mut state = State {
        window: Window::default(),
        first,
        limit,
        line: 1,
        kept: Vec::new(),
        line_bytes: 0,
        is_full: false,
    };
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut scanned = 0;
    let mut counted = 0;
    loop {
        if is_cancelled() {
            return Err(Trouble::Cancelled);
        }
        let read = match source.read(&mut chunk) {
            Ok(0) => return state.end_of_file(),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Trouble::Io(error)),
        };
        state.bytes(&chunk[..read])?;
        scanned += read as u64;
        if state.is_full {
            let shown = first - 1 + state.window.lines;
            state.window.has_more |= state.line > shown + 1 || state.line_bytes > 0;
            counted += read as u64;
            if counted >= COUNT_BYTES_MAX && state.window.has_more {
                return Ok(state.window);
            }
        } else if scanned >= scan_bytes_max {
            return state.give_up();
        }
    }
}

struct State {
    window: Window,
    first: u64,
    limit: u64,
    /// The number of the line that the next byte belongs to.
    line: u64,
    /// The beginning of that line, if it is to be shown: a little more than is shown of a long one.
    kept: Vec<u8>,
    /// How many bytes of that line were seen, its line end excluded.
    line_bytes: u64,
    /// No further line is to be shown; the rest is only counted.
    is_full: bool,
}

impl State {
    fn bytes(&mut self, mut bytes: &[u8]) -> Result<(), Trouble> {
        while !bytes.is_empty() {
            if self.is_full || self.line < self.first {
                bytes = self.skip(bytes);
                continue;
            }
            let end = bytes.iter().position(|&byte| byte == b'\n');
            let (part, rest) = match end {
                Some(at) => (&bytes[..at], &bytes[at + 1..]),
                None => (bytes, &[][..]),
            };
            let room = (READ_LINE_BYTES_MAX + 4).saturating_sub(self.kept.len());
            self.kept.extend_from_slice(&part[..part.len().min(room)]);
            self.line_bytes += part.len() as u64;
            bytes = rest;
            if end.is_some() {
                self.show_line("\n", "for")?;
                self.next_line();
            }
        }
        Ok(())
    }

    /// Passes over lines that are not shown, up to the first one that is.
    fn skip<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let ends = bytes.iter().filter(|&&byte| byte == b'\n').count() as u64;
        let missing = self.first.saturating_sub(self.line);
        if self.is_full || ends < missing {
            self.line += ends;
            let tail = bytes.iter().rev().position(|&byte| byte == b'\n');
            self.line_bytes = match tail {
                Some(tail) => tail as u64,
                None => self.line_bytes + bytes.len() as u64,
            };
            return &[];
        }
        self.line = self.first;
        self.line_bytes = 0;
        let at = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(missing as usize - 1);
        at.map_or(&[], |(at, _)| &bytes[at + 1..])
    }

    fn next_line(&mut self) {
        self.kept.clear();
        self.line += 1;
        self.line_bytes = 0;
    }

    /// Adds the current line to the window, or marks the window as full if there is no room for it. `how_long`
    /// says how well the length of the line is known.
    fn show_line(&mut self, line_end: &str, how_long: &str) -> Result<(), Trouble> {
        let shown = self.shown()?;
        let long = self.line_bytes - shown.len() as u64;
        let note = if long > 0 {
            format!("[this line goes on {how_long} {long} more bytes]")
        } else {
            String::new()
        };
        if self.window.text.len() + shown.len() + note.len() + line_end.len() > OUTPUT_BYTES_MAX {
            self.is_full = true;
            self.window.has_more = true;
            return Ok(());
        }
        let shown = shown.to_owned();
        self.window.text += &shown;
        self.window.text += &note;
        self.window.text += line_end;
        self.window.lines += 1;
        self.is_full = self.window.lines == self.limit;
        Ok(())
    }

    /// What is shown of the current line: all of it, or its beginning up to a character's border.
    fn shown(&self) -> Result<&str, Trouble> {
        let is_cut = self.line_bytes > READ_LINE_BYTES_MAX as u64;
        let text = match str::from_utf8(&self.kept) {
            Ok(text) => text,
            // The cut went through a character; the part before it is whole.
            Err(error) if is_cut && error.valid_up_to() + 4 > READ_LINE_BYTES_MAX => {
                str::from_utf8(&self.kept[..error.valid_up_to()]).unwrap_or_default()
            }
            Err(error) => {
                return Err(Trouble::NotUtf8 { line: self.line, byte: self.kept[error.valid_up_to()] });
            }
        };
        Ok(&text[..floor_boundary(text, READ_LINE_BYTES_MAX)])
    }

    fn end_of_file(mut self) -> Result<Window, Trouble> {
        // What follows the last line end is a line only if it has bytes.
        let has_open_line = self.line_bytes > 0;
        if has_open_line && !self.is_full && self.line >= self.first {
            self.show_line("", "for")?;
        }
        let total = if has_open_line { self.line } else { self.line - 1 };
        self.window.lines_total = Some(total);
        self.window.has_more = self.window.lines > 0 && self.first - 1 + self.window.lines < total;
        Ok(self.window)
    }

    fn give_up(mut self) -> Result<Window, Trouble> {
        if self.line_bytes > 0 && self.line >= self.first {
            self.show_line("\n", "for at least")?;
        }
        self.window.gave_up = true;
        self.window.has_more = true;
        Ok(self.window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCAN_BYTES_MAX: u64 = 4 * 1024 * 1024;

    fn window(text: &str, first: u64, limit: u64) -> Window {
        take(&mut text.as_bytes(), first, limit, SCAN_BYTES_MAX, || false).expect("a window")
    }

    /// Reads a byte at a time, so that every cut between chunks is met.
    struct Trickle<'a>(&'a [u8]);

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let size = self.0.len().min(1);
            buffer[..size].copy_from_slice(&self.0[..size]);
            self.0 = &self.0[size..];
            Ok(size)
        }
    }

    #[test]
    fn every_range_of_a_small_text_is_right_and_independent_of_the_chunks() {
        for text in ["a\nbb\n\nccc\n", "a\nbb\n\nccc", "é\r\n\n\n", "\n", "x"] {
            let lines: Vec<&str> = text.split_inclusive('\n').collect();
            for first in 1..=lines.len() {
                for limit in 1..=lines.len() + 1 {
                    let end = (first - 1 + limit).min(lines.len());
                    let expected = Window {
                        text: lines[first - 1..end].concat(),
                        lines: (end + 1 - first) as u64,
                        lines_total: Some(lines.len() as u64),
                        has_more: end < lines.len(),
                        gave_up: false,
                    };
                    let (first, limit) = (first as u64, limit as u64);
                    assert_eq!(window(text, first, limit), expected, "{text:?} {first} {limit}");
                    let trickled =
                        take(&mut Trickle(text.as_bytes()), first, limit, SCAN_BYTES_MAX, || false);
                    assert_eq!(trickled.expect("a window"), expected);
                }
            }
        }
    }

    #[test]
    fn past_the_end_is_an_empty_window_with_the_total() {
        let past = window("a\nb\n", 3, 5);
        assert_eq!((past.lines, past.lines_total, past.has_more), (0, Some(2), false));
    }

    #[test]
    fn a_long_line_is_cut_between_characters_and_counted() {
        for shift in 0..4 {
            let line = "x".repeat(shift) + &"😀".repeat(1_000);
            let shown = window(&format!("{line}\nnext\n"), 1, 9).text;
            let kept = READ_LINE_BYTES_MAX - (READ_LINE_BYTES_MAX - shift) % 4;
            let note = format!("[this line goes on for {} more bytes]\nnext\n", line.len() - kept);
            assert_eq!(shown, format!("{}{note}", &line[..kept]));
        }
        let whole = "y".repeat(READ_LINE_BYTES_MAX);
        assert_eq!(window(&whole, 1, 1).text, whole);
    }

    #[test]
    fn a_wrong_byte_counts_only_where_it_would_be_shown() {
        let bytes = b"good\nba\xe9d\nend\n";
        let first = take(&mut &bytes[..], 1, 1, SCAN_BYTES_MAX, || false).expect("the first line");
        assert_eq!((first.text.as_str(), first.lines_total), ("good\n", Some(3)));
        let second = take(&mut &bytes[..], 1, 2, SCAN_BYTES_MAX, || false);
        assert!(matches!(second, Err(Trouble::NotUtf8 { line: 2, byte: 0xe9 })));
        let mut long = b"x".repeat(1_000);
        long.push(0xff);
        long.extend(b"y".repeat(100_000));
        assert!(matches!(
            take(&mut &long[..], 1, 1, SCAN_BYTES_MAX, || false),
            Err(Trouble::NotUtf8 { line: 1, .. })
        ));
    }

    #[test]
    fn the_byte_cap_stops_between_lines() {
        let text = format!("{}\n", "z".repeat(1_000)).repeat(100);
        let shown = window(&text, 1, 100);
        assert_eq!(shown.lines, (OUTPUT_BYTES_MAX / 1_001) as u64);
        assert_eq!(shown.text.len() as u64, shown.lines * 1_001);
        assert!(shown.has_more);
        assert_eq!(shown.lines_total, Some(100));
    }

    #[test]
    fn r37_an_endless_line_ends_at_the_scan_limit_in_bounded_memory() {
        let shown = take(&mut io::repeat(b'a'), 1, 5, SCAN_BYTES_MAX, || false).expect("a window");
        assert!(shown.gave_up && shown.has_more);
        assert!(shown.text.len() < READ_LINE_BYTES_MAX + 100);
        let unmet = take(&mut io::repeat(b'a'), 2, 5, SCAN_BYTES_MAX, || false).expect("a window");
        assert!(unmet.gave_up && unmet.text.is_empty());
    }

    #[test]
    fn endless_lines_are_counted_only_so_far() {
        let shown = take(&mut io::repeat(b'\n'), 10, 3, SCAN_BYTES_MAX, || false).expect("a window");
        assert_eq!((shown.text.as_str(), shown.lines_total, shown.has_more), ("\n\n\n", None, true));
    }

    #[test]
    fn cancelling_is_seen_between_chunks() {
        let looks = std::cell::Cell::new(0);
        let outcome =
            take(&mut io::repeat(b'a'), 1, 5, SCAN_BYTES_MAX, || looks.replace(looks.get() + 1) == 3);
        assert!(matches!(outcome, Err(Trouble::Cancelled)));
    }
}
