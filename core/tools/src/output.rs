//! What a run gives back, and how much of it.
//!
//! Neighbours: none.

use raddle_protocol::item::FileChange;

/// How many bytes of text a result holds at most, notes aside. What is over it is left out, and the text says
/// how much that was.
pub const OUTPUT_BYTES_MAX: usize = 50 * 1024;

/// How many lines a result holds at most, notes aside. What is over it is left out, and the text says how
/// much that was.
pub const OUTPUT_LINES_MAX: usize = 2_000;

/// What a tool gives back to the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolOutput {
    /// The text for the model.
    pub text: String,
    /// The tool did what it was asked, and that failed: a command with a non-zero exit.
    pub is_error: bool,
    /// What the run changed in files, for people and hosts; the model reads `text` alone. Empty for a tool that changes
    /// none or does not know, as a command. Of a run that failed none are reported.
    pub file_changes: Vec<FileChange>,
}

impl ToolOutput {
    /// The output of a run that went well.
    pub fn ok(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_error: false, file_changes: Vec::new() }
    }

    /// The output of a run whose failure is the answer.
    pub fn error(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_error: true, file_changes: Vec::new() }
    }

    /// The same output with these changes in place of those that it named.
    #[must_use]
    pub fn with_file_changes(mut self, file_changes: Vec<FileChange>) -> Self {
        self.file_changes = file_changes;
        self
    }
}

/// The end of `text` that lies at or before `bytes_max` and between two characters.
pub(crate) fn floor_boundary(text: &str, bytes_max: usize) -> usize {
    let mut end = bytes_max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    end
}

#[cfg(unix)]
pub(crate) use excerpt::Excerpt;

#[cfg(unix)]
mod excerpt {
    use super::{OUTPUT_BYTES_MAX, OUTPUT_LINES_MAX, floor_boundary};

    /// The head's share of a result. The tail gets the larger part, for errors come last.
    const HEAD_BYTES_MAX: usize = OUTPUT_BYTES_MAX * 2 / 5;
    const HEAD_LINES_MAX: usize = OUTPUT_LINES_MAX * 2 / 5;
    const TAIL_BYTES_MAX: usize = OUTPUT_BYTES_MAX - HEAD_BYTES_MAX;
    const TAIL_LINES_MAX: usize = OUTPUT_LINES_MAX - HEAD_LINES_MAX;

    /// Keeps the head and the tail of a text of any length, in memory of about 80 KiB.
    ///
    /// A text within both caps comes out unchanged.
    #[derive(Debug, Default)]
    pub(crate) struct Excerpt {
        head: String,
        head_lines: usize,
        head_full: bool,
        tail: String,
        bytes: u64,
        newlines: u64,
    }

    impl Excerpt {
        pub(crate) fn push(&mut self, text: &str) {
            self.bytes += text.len() as u64;
            self.newlines += newlines(text);
            let rest = if self.head_full { text } else { self.fill_head(text) };
            if rest.len() > TAIL_BYTES_MAX {
                self.tail.clear();
                self.tail.push_str(last_bytes(rest, TAIL_BYTES_MAX + 1));
            } else {
                self.tail.push_str(rest);
                // Trimmed only now and then, so that each byte is moved about once.
                if self.tail.len() > 2 * TAIL_BYTES_MAX {
                    let dropped = self.tail.len() - last_bytes(&self.tail, TAIL_BYTES_MAX + 1).len();
                    self.tail.drain(..dropped);
                }
            }
        }

        /// The text, or its head and tail around a line that says what is left out.
        pub(crate) fn finish(self) -> String {
            let tail = last_lines(last_bytes(&self.tail, TAIL_BYTES_MAX), TAIL_LINES_MAX);
            let mut text = self.head;
            let bytes_out = self.bytes - (text.len() + tail.len()) as u64;
            if bytes_out > 0 {
                let lines_out = self.newlines - newlines(&text) - newlines(tail);
                if !text.ends_with('\n') {
                    text.push('\n');
                }
                text.push_str(&format!(
                    "[{bytes_out} bytes with {lines_out} line ends are left out here; to see them, write the \
                     output to a file and read parts of it]\n"
                ));
            }
            text.push_str(tail);
            text
        }

        /// Takes into the head what still fits, and returns the rest.
        fn fill_head<'a>(&mut self, text: &'a str) -> &'a str {
            let mut end = floor_boundary(text, HEAD_BYTES_MAX - self.head.len());
            if end < text.len() {
                self.head_full = true;
            }
            for (at, _) in text[..end].match_indices('\n') {
                self.head_lines += 1;
                if self.head_lines == HEAD_LINES_MAX {
                    self.head_full = true;
                    end = at + 1;
                    break;
                }
            }
            self.head.push_str(&text[..end]);
            &text[end..]
        }
    }

    fn newlines(text: &str) -> u64 {
        text.bytes().filter(|&byte| byte == b'\n').count() as u64
    }

    /// At most the last `bytes_max` bytes, from the start of a character on.
    fn last_bytes(text: &str, bytes_max: usize) -> &str {
        let mut start = text.len().saturating_sub(bytes_max);
        while !text.is_char_boundary(start) {
            start += 1;
        }
        &text[start..]
    }

    /// At most the last `lines_max` lines. The last one may or may not have its line end.
    fn last_lines(text: &str, lines_max: usize) -> &str {
        let body = text.strip_suffix('\n').unwrap_or(text);
        match body.rmatch_indices('\n').nth(lines_max - 1) {
            Some((at, _)) => &text[at + 1..],
            None => text,
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn excerpt(pieces: impl IntoIterator<Item = impl AsRef<str>>) -> String {
            let mut excerpt = Excerpt::default();
            for piece in pieces {
                excerpt.push(piece.as_ref());
            }
            excerpt.finish()
        }

        #[test]
        fn a_text_within_the_caps_is_unchanged() {
            let longest = "é".repeat(OUTPUT_BYTES_MAX / 2);
            let most_lines = "x\n".repeat(OUTPUT_LINES_MAX);
            for text in ["", "\n", "one", "one\ntwo\n", &longest, &most_lines] {
                assert_eq!(excerpt([text]), text);
                assert_eq!(excerpt(text.chars().map(String::from)), text);
            }
        }

        #[test]
        fn one_over_a_cap_is_counted() {
            let bytes = excerpt(["x".repeat(OUTPUT_BYTES_MAX + 1)]);
            assert!(bytes.contains("\n[1 bytes with 0 line ends are left out here;"), "{bytes}");
            let lines = excerpt(["x\n".repeat(OUTPUT_LINES_MAX + 1)]);
            assert!(lines.contains("\n[2 bytes with 1 line ends are left out here;"), "{lines}");
        }

        #[test]
        fn head_and_tail_stay_and_the_counts_add_up() {
            let text: String = (0..100_000).map(|n| format!("line {n} é\n")).collect();
            for piece_chars in [7, 1_000, 1_000_000] {
                let chars: Vec<char> = text.chars().collect();
                let shown = excerpt(chars.chunks(piece_chars).map(String::from_iter));
                assert!(shown.starts_with("line 0 é\nline 1 é\n"));
                assert!(shown.ends_with("line 99998 é\nline 99999 é\n"));
                assert!(shown.len() < OUTPUT_BYTES_MAX + 300);
                let note = shown.lines().find(|line| line.starts_with('[')).expect("a note");
                let figures: Vec<usize> =
                    note.split(' ').filter_map(|word| word.trim_start_matches('[').parse().ok()).collect();
                let kept: usize = shown.lines().filter(|line| *line != note).map(|line| line.len() + 1).sum();
                assert_eq!(kept + figures[0], text.len());
                assert_eq!(shown.lines().count() - 1 + figures[1], 100_000);
            }
        }

        #[test]
        fn memory_is_bounded_by_the_caps() {
            let mut excerpt = Excerpt::default();
            for size in [1, 10, 100_000] {
                for _ in 0..50_000 / size {
                    excerpt.push(&"y".repeat(size * 7));
                    assert!(excerpt.head.len() + excerpt.tail.len() <= 3 * OUTPUT_BYTES_MAX);
                }
            }
        }
    }
}
