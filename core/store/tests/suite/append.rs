//! Appending and reading back.

use raddle_protocol::event::LoggedItem;
use raddle_protocol::thread::{ApprovalMode, ThreadSettings};
use raddle_protocol::{Event, EventBody, ItemKind, TurnId, UnixMillis};
use raddle_store::Error;

use crate::support::{Script, create, events_of, home, id, open, raw};

#[test]
fn r49_sqlite_is_newer_than_the_wal_race() {
    // Up to 3.51.2 a checkpoint that meets a writer can damage the database.
    assert!(rusqlite::version_number() > 3_051_002, "{}", rusqlite::version());
}

#[tokio::test]
async fn a_thread_comes_back_as_it_was() {
    let home = home();
    let store = open(home.path());
    let lease = create(&store, "t").await;
    let turn = Script::first("t");
    let events = turn.whole("What is  this?\n", "A test.");
    let appended = store.append(&lease, events.clone()).await.unwrap();
    assert_eq!(appended.numbered().last().map(|(seq, _)| seq), Some(5));
    assert_eq!((appended.first_seq, &appended.events), (2, &events));
    store.close().await;

    let store = open(home.path());
    let row = store.thread(&id("t")).await.unwrap();
    assert_eq!(row.title.as_deref(), Some("What is this?"));
    assert_eq!((row.created_at, row.updated_at), (UnixMillis(1_000), UnixMillis(2_000)));
    assert_eq!((row.head, row.depth, row.last_seq, row.head_ended), (Some(turn.turn.clone()), 1, 5, true));
    let page = store.page(&id("t"), None, 50).await.unwrap();
    assert_eq!((page.next_cursor, page.head), (None, Some(turn.turn.clone())));
    let [stored] = page.turns.as_slice() else { panic!("{:?}", page.turns) };
    assert!(stored.ended);
    assert_eq!(events_of(stored), events);
    assert_eq!(stored.events.iter().map(|recorded| recorded.seq).collect::<Vec<_>>(), [2, 3, 4, 5]);
    assert_eq!(store.branch(&id("t")).await.unwrap(), page.turns);
    assert_eq!(store.head_turn(&id("t")).await.unwrap().as_ref(), Some(stored));
    assert_eq!(store.turn(&id("t"), &turn.turn).await.unwrap().as_ref(), Some(stored));
    assert_eq!(store.turn(&id("t"), &TurnId::from("other")).await.unwrap(), None);
    assert!(matches!(store.thread(&id("u")).await, Err(Error::ThreadNotFound { .. })));
}

#[tokio::test]
async fn r18_a_thread_without_turns_is_there_after_a_restart() {
    let home = home();
    let store = open(home.path());
    create(&store, "t").await;
    let again = store.create_thread(id("t"), UnixMillis(1), crate::support::started()).await;
    assert!(matches!(again, Err(Error::ThreadExists { .. })), "{again:?}");
    drop(store);
    let store = open(home.path());
    let row = store.thread(&id("t")).await.unwrap();
    assert_eq!((row.head, row.depth, row.last_seq, row.head_ended), (None, 0, 1, true));
    assert_eq!(store.list(Default::default()).await.unwrap().threads.len(), 1);
    assert_eq!(store.page(&id("t"), None, 50).await.unwrap().turns, []);
    let lease = store.acquire(&id("t")).await.unwrap();
    store.append(&lease, Script::first("t").whole("q", "a")).await.unwrap();
}

#[tokio::test]
async fn p1_what_was_answered_is_seen_by_everybody() {
    let home = home();
    let store = open(home.path());
    let lease = create(&store, "t").await;
    let turn = Script::first("t");
    store.append(&lease, vec![turn.start(), turn.message_start(0)]).await.unwrap();
    let other = open(home.path());
    for count in 1..=50 {
        store.append(&lease, vec![turn.delta(0, "x")]).await.unwrap();
        let seen = other.head_turn(&id("t")).await.unwrap().unwrap();
        assert_eq!(seen.events.len(), 2 + count);
        assert_eq!(seen.events.last().map(|recorded| recorded.seq), Some(3 + count as u64));
    }
}

#[tokio::test]
async fn waiting_batches_share_commits_and_only_barriers_sync() {
    let home = home();
    let store = open(home.path());
    let mut streams = Vec::new();
    for name in 0..50 {
        let name = format!("t{name}");
        let (lease, turn) = (create(&store, &name).await, Script::first(&name));
        store.append(&lease, vec![turn.start(), turn.message_start(0)]).await.unwrap();
        streams.push((lease, turn));
    }
    let before = store.counters();
    assert_eq!((before.commits, before.syncs, before.events, before.batches), (100, 100, 150, 100));
    // All calls of a round wait at once; one thread runs them, so each round reaches the writer together.
    for _ in 0..20 {
        let round = streams.iter().map(|(lease, turn)| {
            let (store, lease, event) = (store.clone(), lease.clone(), turn.delta(0, "word "));
            tokio::spawn(async move { store.append(&lease, vec![event]).await.unwrap().first_seq })
        });
        for call in round.collect::<Vec<_>>() {
            call.await.unwrap();
        }
    }
    let after = store.counters();
    assert_eq!(after.batches - before.batches, 1_000);
    assert_eq!(after.events - before.events, 1_000);
    assert_eq!(after.syncs, before.syncs, "a delta costs no sync");
    let commits = after.commits - before.commits;
    assert!(commits <= 500, "{commits} commits for 1,000 batches of 50 threads");
    assert_eq!(after.queue_depth, 0);
    let (lease, turn) = &streams[0];
    store.append(lease, vec![turn.message(0, "word ")]).await.unwrap();
    assert_eq!(store.counters().syncs, after.syncs + 1);
    store.append(lease, vec![turn.delta(1, "x")]).await.unwrap();
    assert_eq!(store.counters().syncs, after.syncs + 1, "back to none");
}

/// A caller that is alone commits by itself, and several in a row keep their order, whoever commits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_a_caller_that_is_alone_commits_by_itself() {
    let home = home();
    let store = open(home.path());
    let lease = create(&store, "t").await;
    let turn = Script::first("t");
    store.append(&lease, vec![turn.start(), turn.message_start(0)]).await.unwrap();
    let other = open(home.path());
    for seq in 4..104 {
        assert_eq!(store.append(&lease, vec![turn.delta(0, "x")]).await.unwrap().first_seq, seq);
        assert_eq!(other.thread(&id("t")).await.unwrap().last_seq, seq);
    }
    let before = store.counters();
    let streams = (0..8).map(|number| {
        let store = store.clone();
        tokio::spawn(async move {
            let name = format!("u{number}");
            let (lease, turn) = (create(&store, &name).await, Script::first(&name));
            store.append(&lease, vec![turn.start(), turn.message_start(0)]).await.unwrap();
            let mut calls = tokio::task::JoinSet::new();
            for round in 0..100 {
                // Polled here once, so in the line, before the next is made.
                let (store, lease, delta) = (store.clone(), lease.clone(), turn.delta(0, "x"));
                let mut call = Box::pin(async move { store.append(&lease, vec![delta]).await });
                let seq = 4 + round;
                match poll_once(&mut call).await {
                    Some(done) => assert_eq!(done.unwrap().first_seq, seq),
                    None => drop(calls.spawn(async move { assert_eq!(call.await.unwrap().first_seq, seq) })),
                }
            }
            calls.join_all().await;
        })
    });
    for stream in streams.collect::<Vec<_>>() {
        stream.await.unwrap();
    }
    let after = store.counters();
    assert_eq!(after.events - before.events, 8 * 103);
    assert_eq!(after.queue_depth, 0);
}

/// Polls once.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match std::pin::Pin::new(&mut *future).poll(context) {
            std::task::Poll::Ready(done) => Some(done),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

#[tokio::test]
async fn an_item_that_completes_replaces_its_pieces() {
    let home = home();
    let store = open(home.path());
    let lease = create(&store, "t").await;
    let turn = Script::first("t");
    let mut events = vec![turn.start(), turn.user(0, "q"), turn.message_start(1)];
    events.extend((0..200).map(|_| turn.delta(1, "a")));
    events.extend((0..200).flat_map(|_| [turn.delta(2, "b"), turn.delta(3, "c")]));
    store.append(&lease, events.clone()).await.unwrap();
    let seen = || async { events_of(&store.head_turn(&id("t")).await.unwrap().unwrap()) };
    assert_eq!(seen().await, events);

    store.append(&lease, vec![turn.message(1, "aaa")]).await.unwrap();
    assert_eq!(seen().await.len(), 2 + 400 + 1);
    store.append(&lease, vec![turn.decided(2), turn.delta(2, "b"), turn.removed(2)]).await.unwrap();
    store.append(&lease, vec![turn.message(3, "ccc"), turn.message(3, "ccc!")]).await.unwrap();
    let left = [turn.start(), turn.user(0, "q"), turn.message(1, "aaa"), turn.decided(2), turn.removed(2)];
    let left: Vec<_> = left.into_iter().chain([turn.message(3, "ccc!")]).collect();
    assert_eq!(seen().await, left);
    // A number is used once, whatever was deleted.
    let last = store.append(&lease, vec![turn.end()]).await.unwrap().first_seq;
    assert_eq!(last, 1 + events.len() as u64 + 1 + 3 + 2 + 1);
    assert_eq!(seen().await.len(), left.len() + 1);
}

#[tokio::test]
async fn pieces_are_found_again_after_a_restart() {
    let home = home();
    let turn = Script::first("t");
    let store = open(home.path());
    let lease = create(&store, "t").await;
    let begun = vec![turn.start(), turn.user(0, "q"), turn.message_start(1), turn.message_start(2)];
    store.append(&lease, begun).await.unwrap();
    for _ in 0..30 {
        store.append(&lease, vec![turn.delta(1, "a"), turn.delta(2, "b")]).await.unwrap();
    }
    drop(store);
    let store = open(home.path());
    let lease = store.acquire(&id("t")).await.unwrap();
    assert_eq!(store.head_turn(&id("t")).await.unwrap().unwrap().events.len(), 4 + 60);
    store.append(&lease, vec![turn.delta(2, "b"), turn.message(1, "a…")]).await.unwrap();
    let left = store.head_turn(&id("t")).await.unwrap().unwrap();
    assert_eq!(left.events.len(), 2 + 1 + 31 + 1);
    // An item that never completes keeps its pieces when its turn ends.
    store.append(&lease, vec![turn.end()]).await.unwrap();
    let ended = store.head_turn(&id("t")).await.unwrap().unwrap();
    assert!(ended.ended);
    assert_eq!(ended.events[..35], left.events);
    assert_eq!(ended.events.len(), 36);
}

#[tokio::test]
async fn what_contradicts_the_log_is_refused_alone() {
    let home = home();
    let store = open(home.path());
    let (lease, other) = (create(&store, "t").await, create(&store, "u").await);
    let (first, foreign) = (Script::first("t"), Script::first("u"));
    store.append(&lease, first.whole("q", "a")).await.unwrap();
    store.append(&other, vec![foreign.start()]).await.unwrap();
    let second = first.next();
    let unplaced = Event { turn_id: None, ..first.delta(1, "x") };
    let twice = Event { turn_id: None, ..first.event(EventBody::ThreadStarted(crate::support::started())) };
    let deep = Script { depth: 7, ..second.clone() };
    let orphan = Script { parent: None, depth: 1, ..second.clone() };
    let same = Script { turn: first.turn.clone(), ..second.clone() };
    let mislabelled = Event { turn_id: Some(first.turn.clone()), ..second.start() };
    let bad = [
        first.delta(1, "late"),
        second.delta(1, "early"),
        foreign.delta(0, "elsewhere"),
        unplaced,
        twice,
        deep.start(),
        orphan.start(),
        same.start(),
        mislabelled,
    ];
    let before = store.counters();
    for event in bad {
        // A good event before it in the batch is not written either.
        let settings = EventBody::SettingsUpdated(ThreadSettings::default());
        let good = Event { turn_id: None, at: UnixMillis(1), body: settings };
        let label = format!("{event:?}");
        let refused = store.append(&lease, vec![good, event.clone()]).await;
        assert!(matches!(refused, Err(Error::Rejected { .. })), "{label}: {refused:?}");
        let refused = store.append(&lease, vec![event]).await;
        assert!(matches!(refused, Err(Error::Rejected { .. })), "{label}: {refused:?}");
    }
    assert_eq!(store.counters().events, before.events);
    let appended = store.append(&lease, vec![second.start(), second.end()]).await.unwrap();
    assert_eq!(appended.first_seq, 6);
    assert_eq!(store.append(&lease, Vec::new()).await.unwrap().first_seq, 8, "nothing is nothing");
}

#[tokio::test]
async fn settings_and_titles_follow_the_log() {
    let home = home();
    let store = open(home.path());
    let lease = create(&store, "t").await;
    let settings = ThreadSettings { approval_mode: ApprovalMode::AutoEdit, ..ThreadSettings::default() };
    let body = EventBody::SettingsUpdated(settings.clone());
    store.append(&lease, vec![Event { turn_id: None, at: UnixMillis(5), body }]).await.unwrap();
    let turn = Script::first("t");
    store.append(&lease, vec![turn.start(), turn.user(0, " \n")]).await.unwrap();
    let row = store.thread(&id("t")).await.unwrap();
    assert_eq!((row.settings, row.title, row.head_ended), (settings, None, false));
    store.append(&lease, vec![turn.user(1, "first words"), turn.user(2, "later words")]).await.unwrap();
    assert_eq!(store.thread(&id("t")).await.unwrap().title.as_deref(), Some("first words"));
}

#[tokio::test]
async fn the_clients_token_is_not_stored() {
    let home = home();
    let store = open(home.path());
    let lease = create(&store, "t").await;
    let turn = Script::first("t");
    let mut said = turn.user(0, "q");
    if let EventBody::ItemCompleted(LoggedItem { item, .. }) = &mut said.body
        && let ItemKind::UserMessage { client_message_id, .. } = &mut item.kind
    {
        *client_message_id = Some("optimistic-1".to_owned());
    }
    let appended = store.append(&lease, vec![turn.start(), said.clone()]).await.unwrap();
    assert_eq!(appended.events[1], said, "the live message has it");
    let stored = store.head_turn(&id("t")).await.unwrap().unwrap();
    assert_eq!(events_of(&stored)[1], turn.user(0, "q"));
    let found: i64 = raw(home.path())
        .query_row("SELECT count(*) FROM event WHERE instr(body, 'optimistic') > 0", [], |row| row.get(0))
        .unwrap();
    assert_eq!(found, 0);
}

#[tokio::test]
async fn p7_the_files_stay_small_under_a_long_stream() {
    let home = home();
    let store = open(home.path());
    let lease = create(&store, "t").await;
    let turn = Script::first("t");
    store.append(&lease, vec![turn.start()]).await.unwrap();
    // Deltas of many items, one after the other, four times what the WAL may hold. A reader looks on.
    let mut stored = 3;
    for item in 0..320 {
        let mut batch = vec![turn.message_start(item)];
        batch.extend((0..250).map(|_| turn.delta(item, &"word ".repeat(40))));
        store.append(&lease, batch).await.unwrap();
        store.append(&lease, vec![turn.message(item, "whole")]).await.unwrap();
        stored += 252;
        assert_eq!(store.thread(&id("t")).await.unwrap().last_seq, stored - 1);
    }
    assert!(store.counters().checkpoints > 0);
    let bytes = |name: &str| std::fs::metadata(home.path().join(name)).unwrap().len();
    let page = 4096;
    assert!(bytes("raddle.db-wal") < 2 * u64::from(raddle_store::WAL_PAGES_MAX) * page);
    let pieces: i64 = raw(home.path()).query_row("SELECT count(*) FROM piece", [], |row| row.get(0)).unwrap();
    assert!(pieces < 12_000, "{pieces} of 80,000 deltas lie there still");
    assert!(bytes("raddle.db") < 16 * 1024 * 1024, "their room is used again");
    assert_eq!(store.head_turn(&id("t")).await.unwrap().unwrap().events.len(), 1 + 320);
}
