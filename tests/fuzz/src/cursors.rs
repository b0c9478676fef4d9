//! Cursors: one that was given out leads to its page, and any other text is refused as a cursor.
//!
//! Neighbours: none.

use std::sync::OnceLock;

use raddle_protocol::event::{EventBody, ThreadStarted, TurnEnded, TurnStarted};
use raddle_protocol::{Event, ThreadId, TokenUsage, TurnId, TurnStatus, TurnSummary, UnixMillis};
use raddle_store::{Error, ListQuery, Store, StoreOptions};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const THREADS: usize = 4;
const TURNS: u32 = 6;

/// A small store, and all cursors that it gave out.
struct World {
    runtime: Runtime,
    store: Store,
    pages: Vec<String>,
    lists: Vec<String>,
    _home: TempDir,
}

fn thread(number: usize) -> ThreadId {
    ThreadId::from(format!("thread {number}"))
}

fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let home = tempfile::tempdir().expect("a directory");
        let runtime = Runtime::new().expect("a runtime");
        let (store, pages, lists) = runtime.block_on(async {
            let store = Store::open(StoreOptions::new(home.path())).expect("an empty home opens");
            for number in 0..THREADS {
                fill(&store, number).await;
            }
            let (pages, lists) = given_out(&store).await;
            (store, pages, lists)
        });
        World { runtime, store, pages, lists, _home: home }
    })
}

async fn fill(store: &Store, number: usize) {
    let started = ThreadStarted {
        cwd: "/".to_owned(),
        name: None,
        forked_from_id: None,
        forked_at: None,
        settings: Default::default(),
    };
    let id = thread(number);
    let lease = store.create_thread(id.clone(), UnixMillis(1), started).await.expect("it is new");
    let mut parent = None;
    for depth in 1..=TURNS {
        let turn_id = TurnId::from(format!("{id} {depth}"));
        let summary = |status| TurnSummary {
            id: turn_id.clone(),
            thread_id: id.clone(),
            status,
            started_at: UnixMillis(i64::from(depth)),
            completed_at: None,
            error: None,
            usage: None,
        };
        let started = TurnStarted {
            turn: summary(TurnStatus::InProgress),
            parent,
            depth,
            request_id: None,
            queue_id: None,
            idempotency_key: None,
        };
        let ended = TurnEnded {
            turn: summary(TurnStatus::Completed),
            thread_usage: TokenUsage::default(),
            request_id: None,
        };
        let event = |body| Event { turn_id: Some(turn_id.clone()), at: UnixMillis(i64::from(depth)), body };
        let events = vec![event(EventBody::TurnStarted(started)), event(EventBody::TurnCompleted(ended))];
        store.append(&lease, events).await.expect("it fits the log");
        parent = Some(turn_id.clone());
    }
}

async fn given_out(store: &Store) -> (Vec<String>, Vec<String>) {
    let mut pages = Vec::new();
    for number in 0..THREADS {
        let mut cursor: Option<String> = None;
        loop {
            let page = store.page(&thread(number), cursor.as_deref(), 1).await.expect("it is there");
            cursor = page.next_cursor;
            match &cursor {
                Some(cursor) => pages.push(cursor.clone()),
                None => break,
            }
        }
    }
    let mut lists = Vec::new();
    let mut query = ListQuery { limit: 1, ..ListQuery::default() };
    while let Some(cursor) = store.list(query.clone()).await.expect("it lists").next_cursor {
        lists.push(cursor.clone());
        query.cursor = Some(cursor);
    }
    (pages, lists)
}

pub(crate) fn corpus() -> Vec<Vec<u8>> {
    let world = world();
    world.pages.iter().chain(&world.lists).map(|cursor| cursor.clone().into_bytes()).collect()
}

pub(crate) fn check(input: &[u8]) {
    let cursor = String::from_utf8_lossy(input).into_owned();
    let world = world();
    let given = world.pages.contains(&cursor);
    let id = thread(0);
    world.runtime.block_on(async {
        match world.store.page(&id, Some(&cursor), 50).await {
            Ok(page) => {
                assert!(given, "{cursor:?} was never given out");
                assert!(page.turns.iter().all(|turn| turn.thread_id == id), "turns of another thread");
            }
            Err(Error::InvalidCursor) => {}
            Err(other) => panic!("{cursor:?} is refused with {other:?}"),
        }
        let query = ListQuery { limit: 1, cursor: Some(cursor.clone()), ..ListQuery::default() };
        match world.store.list(query).await {
            Ok(_) => assert!(world.lists.contains(&cursor), "{cursor:?} was never given out"),
            Err(Error::InvalidCursor) => {}
            Err(other) => panic!("{cursor:?} is refused with {other:?}"),
        }
    });
}
