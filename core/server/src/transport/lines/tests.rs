use proptest::prelude::*;

use super::*;

#[derive(Debug, PartialEq)]
enum Owned {
    Text(Vec<u8>),
    TooLong,
}

fn owned(line: Line<'_>) -> Owned {
    match line {
        Line::Text(text) => Owned::Text(text.to_vec()),
        Line::TooLong => Owned::TooLong,
    }
}

fn split<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, bytes_max: usize) -> Vec<Owned> {
    let mut splitter = LineSplitter::new(bytes_max);
    let mut lines = Vec::new();
    for piece in pieces {
        splitter.push(piece);
        while let Some(line) = splitter.next_line() {
            lines.push(owned(line));
        }
        assert!(splitter.buffer.len() - splitter.start <= bytes_max + 4, "more than the bound is held");
    }
    splitter.finish();
    while let Some(line) = splitter.next_line() {
        lines.push(owned(line));
    }
    assert_eq!(splitter.next_line(), None);
    lines
}

/// What the splitter is to do, in the plainest way.
fn expected(bytes: &[u8], bytes_max: usize) -> Vec<Owned> {
    let mut lines: Vec<&[u8]> =
        bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes).split(|b| *b == b'\n').collect();
    // A line feed ends a line; it does not begin one.
    if bytes.is_empty() || bytes.ends_with(b"\n") {
        lines.pop();
    }
    // A stream of nothing but the mark is an empty line, which means nothing.
    lines
        .into_iter()
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .map(|line| if line.len() > bytes_max { Owned::TooLong } else { Owned::Text(line.to_vec()) })
        .collect()
}

/// Bytes in which line ends, marks and long lines are as frequent as they are troublesome.
fn streams() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"\n".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\r".to_vec()),
        Just(BYTE_ORDER_MARK.to_vec()),
        Just("\u{2028}\u{2029}\u{85}".as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..12),
    ];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn r22_lines_do_not_depend_on_how_the_bytes_are_cut(
        bytes in streams(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        bytes_max in 0_usize..24,
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]);
        prop_assert_eq!(split(pieces, bytes_max), expected(&bytes, bytes_max));
        prop_assert_eq!(split(bytes.chunks(1), bytes_max), expected(&bytes, bytes_max));
    }
}

#[test]
fn the_bound_is_exact() {
    let text = |text: &str| Owned::Text(text.as_bytes().to_vec());
    assert_eq!(
        split([&b"\xEF\xBB\xBF1234\r\n12345\n1234"[..]], 4),
        [text("1234"), Owned::TooLong, text("1234")]
    );
    assert_eq!(split([&b"1234\r"[..], b"5\nx\n"], 4), [Owned::TooLong, text("x")]);
    assert_eq!(split([&b"123456789"[..], b"0\n\n"], 4), [Owned::TooLong, text("")]);
    assert_eq!(split([&b"12345"[..]], 4), [Owned::TooLong]);
}

/// A line in many pieces costs its length, not its square. Of a quadratic splitter this test would take minutes.
#[test]
fn p7_a_long_line_in_small_pieces_is_read_once() {
    let mut splitter = LineSplitter::new(64 << 20);
    let piece = [b'x'; 64];
    for _ in 0..(32 << 20) / piece.len() {
        splitter.push(&piece);
        assert_eq!(splitter.next_line(), None);
    }
    splitter.push(b"\nnext\n");
    assert!(matches!(splitter.next_line(), Some(Line::Text(text)) if text.len() == 32 << 20));
    assert_eq!(splitter.next_line(), Some(Line::Text(b"next")));
    splitter.push(b"");
    assert!(splitter.buffer.capacity() <= ROOM_KEPT_MAX, "the room is given back");
}
