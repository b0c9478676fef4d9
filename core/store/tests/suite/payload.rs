//! Large values: taken out, put back, read in slices, and gone with their last event.

use raddle_protocol::event::{LoggedItem, Origin};
use raddle_protocol::limits::INLINE_BYTES_MAX;
use raddle_protocol::payload::Payload;
use raddle_protocol::{Event, EventBody, ItemKind, ModelRef, Text};
use raddle_store::{Error, Store};

use crate::support::{Script, archived, count, create, events_of, fork, home, id, large, open, raw, until};

fn reference(text: &str) -> String {
    Payload::text(text).reference().id
}

async fn there(store: &Store, text: &str) -> bool {
    let slice = store.payload(&reference(text), 0, usize::MAX).await.unwrap();
    slice.is_some_and(|slice| slice.bytes == text.as_bytes())
}

/// Bytes of a turn as it was read.
fn size(events: &[Event]) -> usize {
    events.iter().map(|event| event.body.encode().len()).sum()
}

#[tokio::test]
async fn large_values_stand_beside_their_events() {
    let home = home();
    let store = open(home.path());
    let lease = create(&store, "t").await;
    let (turn, output) = (Script::first("t"), large(1, 1_000_000));
    let events = vec![
        turn.start(),
        turn.user(0, &large(2, 100_000)),
        turn.called(1, &output),
        turn.message(2, "short"),
    ];
    let appended = store.append(&lease, events.clone()).await.unwrap();
    assert_eq!(appended.events, events, "what comes back is whole");
    assert_eq!(appended.shown.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [1, 2]);
    let mut stored = events.clone();
    for (at, shown) in appended.shown {
        assert!(shown.body.encode().len() < INLINE_BYTES_MAX);
        stored[at] = shown;
    }
    assert_eq!(events_of(&store.page(&id("t"), None, 50).await.unwrap().turns[0]), stored);
    assert_eq!(events_of(&store.turn(&id("t"), &turn.turn).await.unwrap().unwrap()), stored);
    assert_eq!(events_of(&store.head_turn(&id("t")).await.unwrap().unwrap()), events);
    assert_eq!(events_of(&store.branch(&id("t")).await.unwrap()[0]), events);
    assert_eq!(events_of(&store.context(&id("t")).await.unwrap()[0]), events);
    let title = store.thread(&id("t")).await.unwrap().title.unwrap();
    assert!(title.starts_with("2 word word"), "{title}");

    // Slices of all lengths meet at all borders.
    let (id, total) = (reference(&output), output.len() as u64);
    for max in [48 * 1024, 256 * 1024, 300_001, output.len()] {
        let mut read = Vec::new();
        while (read.len() as u64) < total {
            let slice = store.payload(&id, read.len() as u64, max).await.unwrap().unwrap();
            assert_eq!(slice.total, total);
            assert_eq!(slice.bytes.len(), max.min(output.len() - read.len()));
            read.extend(slice.bytes);
        }
        assert!(read == output.as_bytes(), "in slices of {max}");
    }
    for offset in [total, total + 1, u64::MAX] {
        assert!(store.payload(&id, offset, 10).await.unwrap().unwrap().bytes.is_empty());
    }
    let longer = format!("{id}0");
    for foreign in
        ["", "../../etc/passwd", "' OR 1 --", &id.to_uppercase(), &id[1..], &longer, &"0".repeat(64)]
    {
        assert_eq!(store.payload(foreign, 0, 10).await.unwrap(), None, "{foreign}");
    }
}

#[tokio::test]
async fn p7_a_page_reads_no_large_values() {
    let home = home();
    let store = open(home.path());
    let lease = create(&store, "t").await;
    let mut turn = Script::first("t");
    for number in 0..50 {
        let output = large(number, 600_000);
        store.append(&lease, vec![turn.start(), turn.called(1, &output), turn.end()]).await.unwrap();
        turn = turn.next();
    }
    // Whoever reads one of them now, fails.
    raw(home.path()).execute("DELETE FROM blob_part", []).unwrap();
    let page = store.page(&id("t"), None, 50).await.unwrap();
    assert_eq!((page.turns.len(), page.next_cursor), (50, None));
    let bytes: usize = page.turns.iter().map(|turn| size(&events_of(turn))).sum();
    assert!(bytes < 50 * 2_048, "{bytes} bytes of 30 million");
    assert!(store.turn(&id("t"), &page.turns[7].id).await.unwrap().is_some());
    assert!(matches!(store.head_turn(&id("t")).await, Err(Error::Corrupt { .. })));
}

#[tokio::test]
async fn the_arguments_of_a_large_call_are_not_on_a_page_either() {
    let home = home();
    let store = open(home.path());
    let lease = create(&store, "t").await;
    let turn = Script::first("t");
    let mut call = turn.called(1, "done");
    let EventBody::ItemCompleted(LoggedItem { item, origin }) = &mut call.body else { panic!() };
    let ItemKind::ToolCall { input, .. } = &mut item.kind else { panic!() };
    *input = serde_json::json!({ "content": large(1, 300_000) });
    let arguments = Some(input.to_string());
    *origin = Some(Origin { reply: 1, model: ModelRef::new("p", "m"), signature: None, arguments });
    let events = vec![turn.start(), call, turn.end()];
    store.append(&lease, events.clone()).await.unwrap();
    let page = store.page(&id("t"), None, 50).await.unwrap();
    assert!(size(&events_of(&page.turns[0])) < 2_048);
    assert_eq!(events_of(&store.head_turn(&id("t")).await.unwrap().unwrap()), events);
}

#[tokio::test]
async fn an_event_may_come_with_references_to_what_is_there() {
    let home = home();
    let store = open(home.path());
    let lease = create(&store, "t").await;
    let (turn, output) = (Script::first("t"), large(1, 100_000));
    let refer = |event: Event, text: &str| {
        let mut event = event;
        if let EventBody::ItemCompleted(logged) = &mut event.body
            && let ItemKind::AgentMessage { text: slot } = &mut logged.item.kind
        {
            *slot = Text::referenced(Payload::text(text).reference());
        }
        event
    };
    let known = refer(turn.message(2, ""), &output);
    let early = store.append(&lease, vec![turn.start(), known.clone()]).await;
    assert!(matches!(early, Err(Error::Rejected { .. })), "{early:?}");
    store.append(&lease, vec![turn.start(), turn.called(1, &output), known]).await.unwrap();
    assert_eq!(events_of(&store.head_turn(&id("t")).await.unwrap().unwrap())[2], turn.message(2, &output));
    // The call goes, the message keeps what both had.
    store.append(&lease, vec![turn.removed(1)]).await.unwrap();
    assert!(there(&store, &output).await);
    store.append(&lease, vec![turn.removed(2)]).await.unwrap();
    assert!(!there(&store, &output).await);
    let late = store.append(&lease, vec![refer(turn.message(3, ""), &output)]).await;
    assert!(matches!(late, Err(Error::Rejected { .. })), "{late:?}");
}

#[tokio::test]
async fn a_blob_goes_with_its_last_event() {
    let home = home();
    let store = open(home.path());
    let blobs = |expected: i64| {
        let home = home.path();
        async move { until("blobs that nobody uses go", || count(home, "blob") == expected).await }
    };
    let lease = create(&store, "t").await;
    let turn = Script::first("t");
    let [one, two, three] = [1, 2, 3].map(|number| large(number, 700_000));
    store
        .append(&lease, vec![turn.start(), turn.called(1, &one), turn.called(2, &one), turn.called(3, &two)])
        .await
        .unwrap();
    assert_eq!(count(home.path(), "blob"), 2, "the same value is there once");
    // Replaced by another; shared until its last user is; replaced by itself.
    store.append(&lease, vec![turn.called(3, &three)]).await.unwrap();
    assert_eq!([there(&store, &two).await, there(&store, &three).await], [false, true]);
    store.append(&lease, vec![turn.called(1, "short"), turn.called(3, &three)]).await.unwrap();
    assert_eq!([there(&store, &one).await, there(&store, &three).await], [true, true]);
    store.append(&lease, vec![turn.removed(2)]).await.unwrap();
    assert!(!there(&store, &one).await);
    // It may come back before what was left of it is gone.
    store.append(&lease, vec![turn.called(2, &one), turn.end()]).await.unwrap();
    assert_eq!([there(&store, &one).await, there(&store, &three).await], [true, true]);
    blobs(2).await;

    let other = fork(&store, "f", "t", &turn.turn).await.unwrap();
    store.append(&lease, vec![archived(true)]).await.unwrap();
    store.delete_thread(&lease).await.unwrap();
    let kept = events_of(&store.head_turn(&id("f")).await.unwrap().unwrap());
    assert!(kept.contains(&turn.called(3, &three)) && kept.contains(&turn.called(2, &one)));
    store.append(&other, vec![archived(true)]).await.unwrap();
    store.delete_thread(&other).await.unwrap();
    blobs(0).await;
    assert_eq!(["blob_part", "blob_use"].map(|table| count(home.path(), table)), [0, 0]);
}
