use proptest::prelude::*;

use super::*;

/// One item, owned: a name and data, or nothing for an idle sign.
type Seen = Option<(String, Vec<u8>)>;

fn decode(pieces: &[&[u8]]) -> Result<Vec<Seen>, SseEventTooLarge> {
    let mut seen = Vec::new();
    let mut sink = |item: SseItem<'_>| {
        seen.push(match item {
            SseItem::Event { name, data } => {
                Some((String::from_utf8_lossy(name).into_owned(), data.to_vec()))
            }
            SseItem::Idle => None,
        });
        Ok::<(), SseEventTooLarge>(())
    };
    let mut decoder = SseDecoder::default();
    for piece in pieces {
        decoder.push(piece, &mut sink)?;
    }
    decoder.end(&mut sink)?;
    Ok(seen)
}

/// Decodes the bytes whole, cut at every place, and one by one; all must agree.
fn check(bytes: &[u8], expected: &[Seen]) {
    assert_eq!(decode(&[bytes]).unwrap(), expected);
    for at in 0..=bytes.len() {
        let (head, tail) = bytes.split_at(at);
        assert_eq!(decode(&[head, tail]).unwrap(), expected, "cut at {at}");
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(decode(&single).unwrap(), expected, "byte by byte");
}

fn data(text: &str) -> Seen {
    Some((String::new(), text.as_bytes().to_vec()))
}

fn named(name: &str, text: &str) -> Seen {
    Some((name.to_owned(), text.as_bytes().to_vec()))
}

#[test]
fn events_end_at_a_blank_line_whatever_the_line_end() {
    for end in ["\n", "\r", "\r\n"] {
        let body = format!("data: one{end}{end}event: x{end}data: a{end}data:b{end}data{end}{end}");
        check(body.as_bytes(), &[data("one"), named("x", "a\nb\n")]);
    }
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_first_field() {
    check(b"\xEF\xBB\xBFdata: one\n\n", &[data("one")]);
}

#[test]
fn r03_comments_and_empty_events_are_signs_of_life() {
    check(b":\n\n: PROCESSING\n\nid: 7\ndata: A\n\n", &[None, None, data("A")]);
    check(b"data:\n\nretry: 3000\n\n\n", &[None, None, None]);
    // The name of an event without data does not stick to the next one.
    check(b"event: ping\n\ndata: B\n\n", &[None, data("B")]);
}

#[test]
fn a_last_event_without_its_blank_line_is_passed_on() {
    check(b"data: one\n\ndata: [DONE]", &[data("one"), data("[DONE]")]);
    check(b"data: one\ndata: two\n", &[data("one\ntwo")]);
}

#[test]
fn lines_that_forget_the_field_are_data() {
    check(b"error: {\"code\":500}\n\n", &[named("error", "{\"code\":500}")]);
    check(b"{\"error\":\"no\"}\n\n", &[data("{\"error\":\"no\"}")]);
}

#[test]
fn an_event_over_the_limit_fails_in_every_cut() {
    let exact = SSE_EVENT_BYTES_MAX - "data:".len();
    let fits = [b"data:".as_slice(), &vec![b'x'; exact], b"\n\n"].concat();
    assert_eq!(decode(&[&fits]).unwrap().len(), 1);
    let over = [b"data:".as_slice(), &vec![b'x'; exact + 1], b"\n\n"].concat();
    assert!(decode(&[&over]).is_err());
    let pieces: Vec<&[u8]> = over.chunks(100_000).collect();
    assert!(decode(&pieces).is_err());
    // Many short lines of one event count together.
    let many = b"data: 0123456789012345678901234567890123456789\n".repeat(SSE_EVENT_BYTES_MAX / 40);
    assert!(decode(&[&many]).is_err());
    // And an endless line is not kept for ever, even when it is a comment.
    let comment = [b":".as_slice(), &vec![b'x'; SSE_EVENT_BYTES_MAX]].concat();
    let pieces: Vec<&[u8]> = comment.chunks(100_000).collect();
    assert!(decode(&pieces).is_err());
}

proptest! {
    #[test]
    fn any_cut_gives_the_same_items(
        lines in prop::collection::vec(
            prop::sample::select(vec![
                "data: {\"a\":1}", "data:", "data: é😀", ": note", "", "", "event: error", "id: 1", "{\"x\":1}",
                "error: {}", "\u{feff}data: x", "junk", "data",
            ]),
            0..30,
        ),
        ends in prop::collection::vec(prop::sample::select(vec!["\n", "\r", "\r\n"]), 30),
        cuts in prop::collection::vec(0usize..400, 0..12),
    ) {
        let body: String = lines.iter().zip(&ends).map(|(line, end)| format!("{line}{end}")).collect();
        let bytes = body.as_bytes();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for cut in cuts.into_iter().chain([bytes.len()]) {
            pieces.push(&bytes[from..cut]);
            from = cut;
        }
        prop_assert_eq!(decode(&pieces).unwrap(), decode(&[bytes]).unwrap());
    }
}
