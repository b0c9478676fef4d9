//! Names, archives, forks, rewinds and deletion.

use raddle_protocol::event::{EventBody, ThreadNamed};
use raddle_protocol::{TurnId, UnixMillis};
use raddle_store::{DATABASE_FILE, Error, Lease, ListQuery, Store, StoredTurn};

use crate::support::{
    Script, archived, count, create, events_of, fork, home, id, of_thread, open, queued, rewound, started,
    until,
};

fn ids(turns: &[StoredTurn]) -> Vec<&str> {
    turns.iter().map(|turn| turn.id.as_str()).collect()
}

/// A thread with some turns, and the last of them.
async fn with_turns(store: &Store, name: &str, turns: u32) -> (Lease, Script) {
    let lease = create(store, name).await;
    let mut turn = Script::first(name);
    store.append(&lease, turn.whole("first words", "a")).await.unwrap();
    for _ in 1..turns {
        turn = turn.next();
        store.append(&lease, turn.whole("q", "a")).await.unwrap();
    }
    (lease, turn)
}

async fn delete(store: &Store, lease: &Lease) {
    store.append(lease, vec![archived(true)]).await.unwrap();
    store.delete_thread(lease).await.unwrap();
}

fn left(home: &tempfile::TempDir) -> [i64; 3] {
    ["event", "turn", "deleted"].map(|table| count(home.path(), table))
}

#[tokio::test]
async fn names_and_archives_follow_the_log() {
    let home = home();
    let store = open(home.path());
    let (lease, _) = with_turns(&store, "t", 1).await;
    let before = store.thread(&id("t")).await.unwrap();
    let named =
        |name: Option<&str>| of_thread(EventBody::NameUpdated(ThreadNamed { name: name.map(str::to_owned) }));
    store.append(&lease, vec![named(Some("a name")), archived(true)]).await.unwrap();
    let row = store.thread(&id("t")).await.unwrap();
    assert_eq!((row.name.as_deref(), row.archived), (Some("a name"), true));
    assert_eq!(row.updated_at, before.updated_at, "nothing was said");
    let listed = async |archived| {
        store.list(ListQuery { archived, ..ListQuery::default() }).await.unwrap().threads.len()
    };
    assert_eq!((listed(true).await, listed(false).await), (1, 0));
    store.append(&lease, vec![named(None), archived(false)]).await.unwrap();
    let row = store.thread(&id("t")).await.unwrap();
    assert_eq!((row.name, row.archived), (None, false));
}

#[tokio::test]
async fn a_rewind_moves_the_head_and_the_branch_goes_on_from_there() {
    let home = home();
    let store = open(home.path());
    let (lease, last) = with_turns(&store, "t", 5).await;
    let second = TurnId::from("t/2");
    let before = store.thread(&id("t")).await.unwrap();
    store.append(&lease, vec![rewound(&second)]).await.unwrap();
    let row = store.thread(&id("t")).await.unwrap();
    assert_eq!((row.head.as_ref(), row.depth, row.head_ended), (Some(&second), 2, true));
    assert_eq!((row.updated_at, row.title), (before.updated_at, before.title));
    assert_eq!(ids(&store.branch(&id("t")).await.unwrap()), ["t/1", "t/2"]);
    assert_eq!(store.turn(&id("t"), &last.turn).await.unwrap(), None);
    // The writer knows, here and after a restart; a turn may follow in the same batch.
    let stale = store.append(&lease, vec![last.next().start()]).await;
    assert!(matches!(stale, Err(Error::Rejected { .. })), "{stale:?}");
    drop(store);
    let store = open(home.path());
    let lease = store.acquire(&id("t")).await.unwrap();
    let first = Script::first("t");
    let other = Script::after("t", "other", &first);
    let batch = [rewound(&first.turn)].into_iter().chain(other.whole("q", "a")).collect();
    store.append(&lease, batch).await.unwrap();
    assert_eq!(ids(&store.branch(&id("t")).await.unwrap()), ["t/1", "other"]);
    store.append(&lease, vec![rewound(&other.turn)]).await.unwrap();
    assert_eq!(store.thread(&id("t")).await.unwrap().head, Some(other.turn));
}

#[tokio::test]
async fn a_rewind_to_what_is_no_finished_turn_of_the_branch_is_refused() {
    let home = home();
    let store = open(home.path());
    let (lease, first) = with_turns(&store, "t", 1).await;
    let (_, foreign) = with_turns(&store, "u", 1).await;
    let (cut, away) = (first.next(), Script::after("t", "away", &first));
    let bare = create(&store, "v").await;
    store.append(&lease, away.whole("q", "a")).await.unwrap();
    // One turn leaves the branch; one loses its end and is followed.
    store.append(&lease, vec![rewound(&first.turn), cut.start()]).await.unwrap();
    let refused = async |lease: &Lease, to: &TurnId| {
        let refused = store.append(lease, vec![rewound(to)]).await;
        assert!(matches!(refused, Err(Error::Rejected { .. })), "{to}: {refused:?}");
    };
    refused(&lease, &first.turn).await;
    store.append(&lease, cut.next().whole("q", "a")).await.unwrap();
    for to in [&cut.turn, &away.turn, &foreign.turn, &TurnId::from("nowhere")] {
        refused(&lease, to).await;
    }
    refused(&bare, &first.turn).await;
    store.append(&lease, vec![rewound(&first.turn)]).await.unwrap();
}

#[tokio::test]
async fn a_fork_shares_the_turns_of_its_source() {
    let home = home();
    let store = open(home.path());
    let (lease, last) = with_turns(&store, "t", 4).await;
    let rows = count(home.path(), "event");
    let forked = fork(&store, "f", "t", &TurnId::from("t/3")).await.unwrap();
    assert_eq!(count(home.path(), "event"), rows + 1, "no turn was copied");
    let row = store.thread(&id("f")).await.unwrap();
    assert_eq!((row.title.as_deref(), row.forked_from_id), (Some("first words"), Some(id("t"))));
    assert_eq!((row.head, row.depth, row.last_seq, row.head_ended), (Some(TurnId::from("t/3")), 3, 1, true));
    assert_eq!(row.created_at, UnixMillis(60_000));
    assert_eq!(store.branch(&id("f")).await.unwrap(), store.branch(&id("t")).await.unwrap()[..3]);
    // Each goes on by itself, and a fork can be forked.
    store.append(&lease, last.next().whole("q", "a")).await.unwrap();
    let third = Script { depth: 3, turn: TurnId::from("t/3"), ..Script::first("t") };
    let own = Script::after("f", "f/4", &third);
    store.append(&forked, own.whole("other words", "a")).await.unwrap();
    fork(&store, "g", "f", &own.turn).await.unwrap();
    fork(&store, "h", "g", &TurnId::from("t/2")).await.unwrap();
    drop(store);
    let store = open(home.path());
    let branch = async |name: &str| store.branch(&id(name)).await.unwrap();
    assert_eq!(ids(&branch("t").await), ["t/1", "t/2", "t/3", "t/4", "t/5"]);
    assert_eq!(ids(&branch("f").await), ["t/1", "t/2", "t/3", "f/4"]);
    assert_eq!(branch("g").await, branch("f").await);
    assert_eq!(ids(&branch("h").await), ["t/1", "t/2"]);
    let ran: Vec<_> = branch("g").await.iter().map(|turn| turn.thread_id.to_string()).collect();
    assert_eq!(ran, ["t", "t", "t", "f"]);
    assert_eq!(store.thread(&id("f")).await.unwrap().title.as_deref(), Some("first words"));
    // A page goes over from one to the other, and a cursor keeps its place.
    let page = store.page(&id("g"), None, 2).await.unwrap();
    assert_eq!(ids(&page.turns), ["t/3", "f/4"]);
    let next = store.page(&id("g"), page.next_cursor.as_deref(), 2).await.unwrap();
    assert_eq!(ids(&next.turns), ["t/1", "t/2"]);
    let elsewhere = store.page(&id("f"), page.next_cursor.as_deref(), 2).await;
    assert!(matches!(elsewhere, Err(Error::InvalidCursor)), "{elsewhere:?}");
}

#[tokio::test]
async fn a_fork_of_what_is_no_finished_turn_is_refused() {
    let home = home();
    let store = open(home.path());
    let (lease, first) = with_turns(&store, "t", 1).await;
    with_turns(&store, "u", 1).await;
    let (running, away) = (first.next(), Script::after("t", "away", &first));
    store.append(&lease, away.whole("q", "a")).await.unwrap();
    store.append(&lease, vec![rewound(&first.turn), running.start()]).await.unwrap();
    for turn in [&running.turn, &away.turn, &TurnId::from("u/1"), &TurnId::from("nowhere")] {
        match fork(&store, "f", "t", turn).await {
            Err(Error::TurnNotFound { id, turn: named }) => assert_eq!((id.as_str(), &named), ("t", turn)),
            other => panic!("{turn}: {other:?}"),
        }
    }
    let gone = fork(&store, "f", "gone", &first.turn).await;
    assert!(matches!(gone, Err(Error::ThreadNotFound { id }) if id.as_str() == "gone"));
    let header = raddle_protocol::event::ThreadStarted { forked_at: Some(first.turn.clone()), ..started() };
    let nameless = store.create_thread(id("f"), UnixMillis(1), header).await;
    assert!(matches!(nameless, Err(Error::Rejected { .. })), "{nameless:?}");
    assert!(matches!(store.thread(&id("f")).await, Err(Error::ThreadNotFound { .. })));
    fork(&store, "f", "t", &first.turn).await.unwrap();
}

#[tokio::test]
async fn a_deleted_thread_is_gone_for_everybody_at_once() {
    let home = home();
    let store = open(home.path());
    let (lease, last) = with_turns(&store, "t", 3).await;
    let cursor = store.page(&id("t"), None, 1).await.unwrap().next_cursor;
    let early = store.delete_thread(&lease).await;
    assert!(matches!(early, Err(Error::NotArchived { .. })), "{early:?}");
    store.append(&lease, vec![queued("q", "later", Some("key")), archived(true)]).await.unwrap();
    let syncs = store.counters().syncs;
    store.delete_thread(&lease).await.unwrap();
    assert_eq!(store.counters().syncs, syncs + 1);
    for reader in [&store, &open(home.path())] {
        let gone = [
            reader.thread(&id("t")).await.map(drop),
            reader.page(&id("t"), cursor.as_deref(), 1).await.map(drop),
            reader.branch(&id("t")).await.map(drop),
            reader.context(&id("t")).await.map(drop),
            reader.head_turn(&id("t")).await.map(drop),
            reader.turn(&id("t"), &last.turn).await.map(drop),
            reader.queue(&id("t")).await.map(drop),
            reader.sends(&id("t")).await.map(drop),
            reader.acquire(&id("t")).await.map(drop),
        ];
        for read in gone {
            assert!(matches!(read, Err(Error::ThreadNotFound { .. })), "{read:?}");
        }
        let archived = ListQuery { archived: true, ..ListQuery::default() };
        assert_eq!(reader.list(archived).await.unwrap().threads, []);
    }
    // The right to write went with it, for a new thread of that name as well.
    for again in [false, true] {
        if again {
            create(&store, "t").await;
        }
        let late = store.append(&lease, vec![last.next().start()]).await.map(drop);
        for refused in [late, store.delete_thread(&lease).await, store.release(&lease).await] {
            assert!(matches!(refused, Err(Error::Fenced { .. })), "{refused:?}");
        }
    }
    let stale = store.page(&id("t"), cursor.as_deref(), 1).await;
    assert!(matches!(stale, Err(Error::InvalidCursor)), "{stale:?}");
    assert_eq!(store.queue(&id("t")).await.unwrap(), []);
    until("its rows go", || left(&home) == [1, 0, 0]).await;
}

#[tokio::test]
async fn p2_a_thread_that_changed_hands_is_not_deleted() {
    let home = home();
    let (first, second) = (open(home.path()), open(home.path()));
    let (lease, _) = with_turns(&first, "t", 1).await;
    first.append(&lease, vec![archived(true)]).await.unwrap();
    first.release(&lease).await.unwrap();
    let theirs = second.acquire(&id("t")).await.unwrap();
    assert!(matches!(first.delete_thread(&lease).await, Err(Error::Fenced { .. })));
    assert!(matches!(first.delete_thread(&theirs).await, Err(Error::Fenced { .. })));
    assert_eq!(second.thread(&id("t")).await.unwrap().depth, 1);
    second.delete_thread(&theirs).await.unwrap();
}

#[tokio::test]
async fn of_a_deleted_thread_what_others_have_stays() {
    let home = home();
    let store = open(home.path());
    let (lease, last) = with_turns(&store, "t", 3).await;
    // Turns that left the branch go as well.
    let second = Script { depth: 2, turn: TurnId::from("t/2"), ..Script::first("t") };
    let away = Script::after("t", "away", &second);
    let batch = [rewound(&second.turn)].into_iter().chain(away.whole("q", "a")).collect();
    store.append(&lease, batch).await.unwrap();
    let forked = fork(&store, "f", "t", &second.turn).await.unwrap();
    let own = Script::after("f", "f/3", &second);
    store.append(&forked, own.whole("q", "a")).await.unwrap();
    let grand = fork(&store, "g", "f", &own.turn).await.unwrap();
    let before = store.branch(&id("f")).await.unwrap();
    delete(&store, &lease).await;
    // 2 turns of t and one of f with 4 events each; f has two of its own, g one.
    until("what only t had goes", || left(&home) == [8 + 4 + 1 + 1, 3, 1]).await;
    assert_eq!(store.branch(&id("f")).await.unwrap(), before);
    assert_eq!(before[0].thread_id, id("t"), "a name that outlives its thread");
    assert_eq!(store.thread(&id("f")).await.unwrap().forked_from_id, Some(id("t")));
    assert_eq!(store.turn(&id("f"), &last.turn).await.unwrap(), None);
    // Somebody else may have the name since; the turns are not theirs.
    create(&store, "t").await;
    assert_eq!(store.branch(&id("t")).await.unwrap(), []);
    delete(&store, &forked).await;
    until("what only f had goes", || left(&home) == [8 + 4 + 1 + 1, 3, 2]).await;
    drop(store);
    let store = open(home.path());
    assert_eq!(store.branch(&id("g")).await.unwrap(), before);
    let grand_again = store.acquire(&id("g")).await.unwrap();
    assert_ne!(grand_again, grand, "another store, another lease");
    // The last that has them goes back before them, then goes.
    store.append(&grand_again, vec![rewound(&TurnId::from("t/1"))]).await.unwrap();
    until("what g left goes", || left(&home) == [4 + 2 + 1, 1, 1]).await;
    assert_eq!(ids(&store.branch(&id("g")).await.unwrap()), ["t/1"]);
    delete(&store, &grand_again).await;
    until("all of it goes", || left(&home) == [1, 0, 0]).await;
}

/// One thread with many items, archived.
async fn long_thread(store: &Store, items: u32) -> Lease {
    let lease = create(store, "long").await;
    let turn = Script::first("long");
    store.append(&lease, vec![turn.start()]).await.unwrap();
    for batch in 0..items / 1_000 {
        let messages = (0..1_000).map(|item| turn.message(batch * 1_000 + item, "words"));
        store.append(&lease, messages.collect()).await.unwrap();
    }
    store.append(&lease, vec![turn.end(), archived(true)]).await.unwrap();
    lease
}

#[tokio::test]
async fn a_deletion_that_was_cut_off_is_finished_by_the_next_process() {
    let living = home();
    let store = open(living.path());
    let lease = long_thread(&store, 30_000).await;
    let (kept, _) = with_turns(&store, "kept", 2).await;
    store.delete_thread(&lease).await.unwrap();
    // A copy of the living files is what a crash leaves.
    let home = home();
    for file in [DATABASE_FILE, "raddle.db-wal"] {
        std::fs::copy(living.path().join(file), home.path().join(file)).unwrap();
    }
    assert!(count(home.path(), "event") > 9, "it was not over yet");
    drop((store, kept));
    let store = open(home.path());
    assert!(matches!(store.thread(&id("long")).await, Err(Error::ThreadNotFound { .. })));
    until("the rest of it goes", || left(&home) == [9, 2, 0]).await;
    assert_eq!(store.branch(&id("kept")).await.unwrap().len(), 2);
    assert_eq!(events_of(&store.head_turn(&id("kept")).await.unwrap().unwrap()).len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p8_a_deletion_stops_nobody() {
    let home = home();
    let store = open(home.path());
    let lease = long_thread(&store, 100_000).await;
    let other = create(&store, "t").await;
    let turn = Script::first("t");
    store.append(&other, vec![turn.start(), turn.message_start(0)]).await.unwrap();
    store.delete_thread(&lease).await.unwrap();
    let raw = crate::support::raw(home.path());
    let left = || raw.query_row("SELECT count(*) FROM event", [], |row| row.get::<_, i64>(0)).unwrap();
    let (mut meanwhile, mut slowest) = (0, std::time::Duration::ZERO);
    while left() > 3 {
        let since = std::time::Instant::now();
        store.append(&other, vec![turn.delta(0, "x")]).await.unwrap();
        slowest = slowest.max(since.elapsed());
        meanwhile += 1;
    }
    assert!(
        meanwhile > 50,
        "{meanwhile} deltas while 100,000 items were removed, the slowest in {slowest:?}"
    );
}
