//! Cursors: opaque to clients, and bound to what they were made for.
//!
//! A cursor is a version, two numbers and a hash of what it belongs to, in hexadecimal. The hash is no
//! secret: it catches cursors of other threads, other filters and other databases, not people who forge
//! their own.
//!
//! Neighbours: error.

use std::fmt::Write as _;

use crate::error::Error;

/// What every cursor of this version begins with; `h` for history, `l` for lists.
const HISTORY: &str = "h1";
const LIST: &str = "l2";

/// A point in a thread's history: the newest turn of the page that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HistoryCursor {
    pub(crate) thread: i64,
    pub(crate) turn: i64,
    /// [`bond`] of the thread's and the turn's ids.
    pub(crate) bond: u64,
}

/// A point in a snapshot of a list: the first thread of the page that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListCursor {
    pub(crate) snapshot: i64,
    pub(crate) offset: i64,
    /// [`bond`] of the store and the filters.
    pub(crate) bond: u64,
}

impl HistoryCursor {
    pub(crate) fn encode(self) -> String {
        encode(HISTORY, self.thread, self.turn, self.bond)
    }

    pub(crate) fn decode(text: &str) -> Result<Self, Error> {
        let (thread, turn, bond) = decode(HISTORY, text)?;
        Ok(Self { thread, turn, bond })
    }
}

impl ListCursor {
    pub(crate) fn encode(self) -> String {
        encode(LIST, self.snapshot, self.offset, self.bond)
    }

    pub(crate) fn decode(text: &str) -> Result<Self, Error> {
        let (snapshot, offset, bond) = decode(LIST, text)?;
        Ok(Self { snapshot, offset, bond })
    }
}

/// A hash of some texts, each with its end marked (64-bit FNV-1a).
pub(crate) fn bond<'a>(parts: impl IntoIterator<Item = &'a str>) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    // 0xff never occurs in UTF-8, so no two lists of texts run together.
    parts
        .into_iter()
        .flat_map(|part| part.bytes().chain([0xff]))
        .fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

fn encode(mark: &str, a: i64, b: i64, bond: u64) -> String {
    let mut text = String::with_capacity(mark.len() + 48);
    text.push_str(mark);
    // Writing to a string cannot fail.
    let _ = write!(text, "{a:016x}{b:016x}{bond:016x}");
    text
}

fn decode(mark: &str, text: &str) -> Result<(i64, i64, u64), Error> {
    let digits = text.strip_prefix(mark).ok_or(Error::InvalidCursor)?;
    // Stricter than the parser below, which takes a sign and capitals: one cursor has one spelling.
    if digits.len() != 48 || !digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
        return Err(Error::InvalidCursor);
    }
    let number = |at: usize| u64::from_str_radix(&digits[at..at + 16], 16).map_err(|_| Error::InvalidCursor);
    Ok((number(0)?.cast_signed(), number(16)?.cast_signed(), number(32)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn cursors_survive_the_wire(thread: i64, turn: i64, bond: u64) {
            let cursor = HistoryCursor { thread, turn, bond };
            prop_assert_eq!(HistoryCursor::decode(&cursor.encode()).unwrap(), cursor);
            prop_assert!(ListCursor::decode(&cursor.encode()).is_err());
        }

        #[test]
        fn other_texts_are_refused(text in "\\PC*") {
            prop_assert!(HistoryCursor::decode(&text).is_err());
        }

        #[test]
        fn a_changed_cursor_is_never_the_same(at in 0usize..50, byte: u8) {
            let cursor = HistoryCursor { thread: 7, turn: 123_456, bond: bond(["a", "b"]) };
            let mut bytes = cursor.encode().into_bytes();
            bytes[at] = byte;
            if let Ok(changed) = String::from_utf8(bytes) && changed != cursor.encode() {
                prop_assert_ne!(HistoryCursor::decode(&changed).ok(), Some(cursor));
            }
        }
    }

    #[test]
    fn bonds_keep_texts_apart() {
        assert_ne!(bond(["ab", "c"]), bond(["a", "bc"]));
        assert_ne!(bond([]), bond([""]));
    }
}
