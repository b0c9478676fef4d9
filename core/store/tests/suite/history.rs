//! Pages, cursors, branches.

use raddle_protocol::{ItemStatus, TurnId};
use raddle_store::{Error, Store, StoredTurn};

use crate::support::{Script, create, events_of, home, id, open, raw, rewound};

async fn with_turns(store: &Store, name: &str, count: u32) -> Vec<TurnId> {
    let lease = create(store, name).await;
    let mut turn = Script::first(name);
    let mut ids = Vec::new();
    for _ in 0..count {
        store.append(&lease, turn.whole("q", "a")).await.unwrap();
        ids.push(turn.turn.clone());
        turn = turn.next();
    }
    ids
}

fn ids(turns: &[StoredTurn]) -> Vec<TurnId> {
    turns.iter().map(|turn| turn.id.clone()).collect()
}

#[tokio::test]
async fn pages_walk_a_thousand_turns_and_keep_their_place() {
    let home = home();
    let store = open(home.path());
    let mut all = with_turns(&store, "t", 1_000).await;
    assert_eq!(ids(&store.branch(&id("t")).await.unwrap()), all);
    for limit in [50, 7] {
        let mut page = store.page(&id("t"), None, limit).await.unwrap();
        let mut seen = ids(&page.turns);
        let mut pages = 1;
        while let Some(cursor) = page.next_cursor {
            // The thread grows under the reader's feet, and the cursor survives a restart.
            if pages == 3 {
                let lease = store.acquire(&id("t")).await.unwrap();
                let depth = all.len() as u32;
                let last = Script { turn: all[all.len() - 1].clone(), depth, ..Script::first("t") };
                store.append(&lease, last.next().whole("q", "a")).await.unwrap();
            }
            let store = if pages == 4 { open(home.path()) } else { store.clone() };
            page = store.page(&id("t"), Some(&cursor), limit).await.unwrap();
            seen.splice(0..0, ids(&page.turns));
            pages += 1;
        }
        assert_eq!(seen, all);
        assert_eq!(pages, all.len().div_ceil(limit as usize));
        all = ids(&store.branch(&id("t")).await.unwrap());
    }
    let whole = store.page(&id("t"), None, 1_000).await.unwrap();
    assert_eq!(whole.turns.len(), 50, "a page has a bound");
    assert_eq!(store.page(&id("t"), None, 0).await.unwrap().turns.len(), 1);
    let depths: Vec<_> = whole.turns.iter().map(|turn| turn.depth).collect();
    assert!(depths.is_sorted() && depths.last() == Some(&1_002));
}

#[tokio::test]
async fn cursors_of_elsewhere_are_refused() {
    let home = home();
    let store = open(home.path());
    with_turns(&store, "t", 10).await;
    with_turns(&store, "u", 10).await;
    let cursor = store.page(&id("t"), None, 3).await.unwrap().next_cursor.unwrap();
    let list = store.list(raddle_store::ListQuery { limit: 1, ..Default::default() }).await.unwrap();
    let mut changed = cursor.clone();
    let last = if changed.pop() == Some('0') { '1' } else { '0' };
    changed.push(last);
    let foreign = ["", "h1", "nonsense", &changed, &cursor.to_uppercase(), &cursor[1..]];
    for bad in foreign.into_iter().chain(list.next_cursor.as_deref()) {
        let refused = store.page(&id("t"), Some(bad), 3).await;
        assert!(matches!(refused, Err(Error::InvalidCursor)), "{bad}: {refused:?}");
    }
    let refused = store.page(&id("u"), Some(&cursor), 3).await;
    assert!(matches!(refused, Err(Error::InvalidCursor)), "{refused:?}");
    assert_eq!(store.page(&id("t"), Some(&cursor), 50).await.unwrap().turns.len(), 7);
}

#[tokio::test]
async fn a_cursor_whose_turn_left_the_branch_is_refused() {
    let home = home();
    let store = open(home.path());
    let all = with_turns(&store, "t", 40).await;
    let cursor = store.page(&id("t"), None, 10).await.unwrap().next_cursor.unwrap();
    // The head goes back, first to a turn that has the cursor's above it, then past it.
    let lease = store.acquire(&id("t")).await.unwrap();
    let rewind = async |to: &TurnId| drop(store.append(&lease, vec![rewound(to)]).await.unwrap());
    rewind(&all[32]).await;
    assert_eq!(store.page(&id("t"), Some(&cursor), 50).await.unwrap().turns.len(), 30);
    rewind(&all[20]).await;
    let refused = store.page(&id("t"), Some(&cursor), 50).await;
    assert!(matches!(refused, Err(Error::InvalidCursor)), "{refused:?}");
    assert_eq!(ids(&store.branch(&id("t")).await.unwrap()), all[..21]);
    assert_eq!(store.turn(&id("t"), &all[21]).await.unwrap(), None);
    assert!(store.turn(&id("t"), &all[3]).await.unwrap().is_some());
}

#[tokio::test]
async fn the_context_begins_with_the_newest_compaction() {
    let home = home();
    let store = open(home.path());
    let lease = create(&store, "t").await;
    let mut turn = Script::first("t");
    let mut all = Vec::new();
    for number in 0..6 {
        let compaction = match number {
            1 | 3 => Some(turn.compaction(1, ItemStatus::Completed)),
            // One that failed shortens nothing.
            4 => Some(turn.compaction(1, ItemStatus::Failed)),
            _ => None,
        };
        let said = [turn.user(0, "q")].into_iter().chain(compaction);
        let events: Vec<_> = [turn.start()].into_iter().chain(said).chain([turn.end()]).collect();
        store.append(&lease, events.clone()).await.unwrap();
        if number == 0 {
            assert_eq!(store.context(&id("t")).await.unwrap(), store.branch(&id("t")).await.unwrap());
        }
        all.push(events);
        turn = turn.next();
    }
    // What lies before is not even looked at.
    raw(home.path())
        .execute("UPDATE event SET body = x'00' WHERE turn IN (SELECT key FROM turn WHERE depth < 4)", [])
        .unwrap();
    let context = store.context(&id("t")).await.unwrap();
    assert_eq!(context.iter().map(events_of).collect::<Vec<_>>(), all[3..]);
    assert!(matches!(store.branch(&id("t")).await, Err(Error::Unreadable { .. })));
}
