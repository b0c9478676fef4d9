//! Lists.

use raddle_protocol::UnixMillis;
use raddle_protocol::event::ThreadStarted;
use raddle_protocol::limits::LIST_SNAPSHOTS_MAX;
use raddle_store::{Error, ListPage, ListQuery, Store, StoreOptions};

use crate::support::{Script, archived, home, id, open, started};

/// Twelve threads, `t0` the oldest; the odd ones in another directory.
async fn filled(store: &Store) {
    for number in 0..12 {
        let cwd = if number % 2 == 0 { "/home/someone/even" } else { "/home/someone/odd" }.to_owned();
        let name = (number == 5).then(|| "Größe der Häuser".to_owned());
        let thread = id(&format!("t{number}"));
        let header = ThreadStarted { cwd, name, ..started() };
        let lease = store.create_thread(thread, UnixMillis(100 * number), header).await.unwrap();
        let turn = Script { at: 10_000 + 100 * number, ..Script::first(&format!("t{number}")) };
        store.append(&lease, turn.whole(&format!("Question {number}"), "a")).await.unwrap();
    }
}

fn names(page: &ListPage) -> Vec<&str> {
    page.threads.iter().map(|thread| thread.id.as_str()).collect()
}

async fn all(store: &Store, query: ListQuery) -> Vec<String> {
    let mut page = store.list(query.clone()).await.unwrap();
    let mut found: Vec<String> = names(&page).into_iter().map(str::to_owned).collect();
    while let Some(cursor) = page.next_cursor {
        page = store.list(ListQuery { cursor: Some(cursor), ..query.clone() }).await.unwrap();
        assert!(!page.threads.is_empty());
        found.extend(names(&page).into_iter().map(str::to_owned));
    }
    found
}

#[tokio::test]
async fn the_newest_activity_comes_first() {
    let home = home();
    let store = open(home.path());
    filled(&store).await;
    let newest: Vec<_> = (0..12).rev().map(|number| format!("t{number}")).collect();
    for limit in [1, 5, 12, 50] {
        assert_eq!(all(&store, ListQuery { limit, ..ListQuery::default() }).await, newest);
    }
    let page = store.list(ListQuery { limit: 4, ..ListQuery::default() }).await.unwrap();
    assert_eq!(names(&page), ["t11", "t10", "t9", "t8"]);
    let first = &page.threads[0];
    assert_eq!((first.depth, first.last_seq, first.head_ended), (1, 5, true));
}

#[tokio::test]
async fn later_pages_are_those_of_the_moment_of_the_first() {
    let home = home();
    let store = open(home.path());
    filled(&store).await;
    let page = store.list(ListQuery { limit: 4, ..ListQuery::default() }).await.unwrap();
    let next =
        |cursor: &Option<String>| ListQuery { limit: 4, cursor: cursor.clone(), ..ListQuery::default() };
    // One comes to the front, one is archived, one is deleted, one is new, and the order of the rest turns round.
    let lease = async |name: &str| store.acquire(&id(name)).await.unwrap();
    for (name, at) in [("t3", 90_000), ("t4", 80_000), ("t5", 70_000), ("t6", 60_000)] {
        let turn = Script { at, ..Script::first(name).next() };
        store.append(&lease(name).await, vec![turn.start()]).await.unwrap();
    }
    store.append(&lease("t7").await, vec![archived(true)]).await.unwrap();
    store.append(&lease("t2").await, vec![archived(true)]).await.unwrap();
    store.delete_thread(&lease("t2").await).await.unwrap();
    crate::support::create(&store, "new").await;
    let second = store.list(next(&page.next_cursor)).await.unwrap();
    assert_eq!(names(&second), ["t7", "t6", "t5", "t4"]);
    assert!(
        second.threads[0].archived && second.threads[1].updated_at == UnixMillis(60_000),
        "as they are now"
    );
    let third = store.list(next(&second.next_cursor)).await.unwrap();
    assert_eq!((names(&third), &third.next_cursor), (vec!["t3", "t1", "t0"], &None));
    // Any page can be read again.
    assert_eq!(store.list(next(&page.next_cursor)).await.unwrap(), second);
    let anew = all(&store, ListQuery { limit: 3, ..ListQuery::default() }).await;
    assert_eq!(anew, ["t3", "t4", "t5", "t6", "t11", "t10", "t9", "t8", "t1", "t0", "new"]);
}

#[tokio::test]
async fn a_list_whose_rest_was_deleted_ends() {
    let home = home();
    let store = open(home.path());
    filled(&store).await;
    let page = store.list(ListQuery { limit: 10, ..ListQuery::default() }).await.unwrap();
    for name in ["t0", "t1"] {
        let lease = store.acquire(&id(name)).await.unwrap();
        store.append(&lease, vec![archived(true)]).await.unwrap();
        store.delete_thread(&lease).await.unwrap();
    }
    let rest = store.list(ListQuery { cursor: page.next_cursor, ..ListQuery::default() }).await.unwrap();
    assert_eq!(rest, ListPage { threads: Vec::new(), next_cursor: None });
}

#[tokio::test]
async fn p7_old_snapshots_make_room() {
    let home = home();
    let store = open(home.path());
    filled(&store).await;
    let first = async || {
        store.list(ListQuery { limit: 3, ..ListQuery::default() }).await.unwrap().next_cursor.unwrap()
    };
    let next = async |cursor: &String| {
        store.list(ListQuery { cursor: Some(cursor.clone()), ..ListQuery::default() }).await
    };
    let mut cursors = Vec::new();
    for _ in 0..LIST_SNAPSHOTS_MAX {
        cursors.push(first().await);
    }
    for cursor in &cursors {
        assert_eq!(next(cursor).await.unwrap().threads.len(), 9);
    }
    // A list that ends on its first page keeps nothing.
    all(&store, ListQuery { limit: 12, ..ListQuery::default() }).await;
    next(&cursors[0]).await.unwrap();
    first().await;
    assert!(matches!(next(&cursors[1]).await, Err(Error::InvalidCursor)));
    assert_eq!(next(&cursors[0]).await.unwrap().threads.len(), 9);
    assert_eq!(next(&cursors[2]).await.unwrap().threads.len(), 9);
}

#[tokio::test]
async fn a_cursor_is_good_for_a_while_and_for_its_store() {
    let home = home();
    let store = open(home.path());
    filled(&store).await;
    let query = ListQuery { limit: 3, ..ListQuery::default() };
    let cursor = store.list(query.clone()).await.unwrap().next_cursor;
    let refused = async |store: &Store| {
        let refused = store.list(ListQuery { cursor: cursor.clone(), ..query.clone() }).await;
        assert!(matches!(refused, Err(Error::InvalidCursor)), "{refused:?}");
    };
    let other = open(home.path());
    assert!(other.list(query.clone()).await.unwrap().next_cursor != cursor);
    refused(&other).await;
    store.close().await;
    refused(&open(home.path())).await;
    let options = StoreOptions {
        list_snapshot_expires_after: std::time::Duration::ZERO,
        ..StoreOptions::new(home.path())
    };
    let forgetful = Store::open(options).unwrap();
    let cursor = forgetful.list(query.clone()).await.unwrap().next_cursor;
    let late = forgetful.list(ListQuery { cursor, ..query }).await;
    assert!(matches!(late, Err(Error::InvalidCursor)), "{late:?}");
}

#[tokio::test]
async fn filters_narrow_it() {
    let home = home();
    let store = open(home.path());
    filled(&store).await;
    let cwd = Some("/home/someone/odd".to_owned());
    for limit in [2, 50] {
        let query = ListQuery { cwd: cwd.clone(), limit, ..ListQuery::default() };
        assert_eq!(all(&store, query).await, ["t11", "t9", "t7", "t5", "t3", "t1"]);
    }
    let search = |text: &str| ListQuery { search: Some(text.to_owned()), limit: 2, ..ListQuery::default() };
    assert_eq!(all(&store, search("qUESTION 1")).await, ["t11", "t10", "t1"]);
    assert_eq!(all(&store, search("HÄUSER")).await, ["t5"]);
    assert!(all(&store, search("nowhere")).await.is_empty());
    let both = ListQuery { cwd, ..search("question 1") };
    assert_eq!(all(&store, both).await, ["t11", "t1"]);
    let archived = ListQuery { archived: true, ..ListQuery::default() };
    assert!(all(&store, archived).await.is_empty());
}

#[tokio::test]
async fn a_cursor_is_good_for_its_filters_alone() {
    let home = home();
    let store = open(home.path());
    filled(&store).await;
    let page = store.list(ListQuery { limit: 3, ..ListQuery::default() }).await.unwrap();
    let cursor = page.next_cursor;
    let others = [
        ListQuery { cwd: Some("/home/someone/odd".to_owned()), ..ListQuery::default() },
        ListQuery { archived: true, ..ListQuery::default() },
        ListQuery { search: Some(String::new()), ..ListQuery::default() },
    ];
    for other in others {
        let refused = store.list(ListQuery { cursor: cursor.clone(), ..other }).await;
        assert!(matches!(refused, Err(Error::InvalidCursor)), "{refused:?}");
    }
    let history = store.page(&id("t1"), None, 1).await.unwrap();
    assert_eq!(history.next_cursor, None);
    for bad in ["", "l1", "l2", "h1", &format!("l2{:048}", 0)] {
        let refused = store.list(ListQuery { cursor: Some(bad.to_owned()), ..ListQuery::default() }).await;
        assert!(matches!(refused, Err(Error::InvalidCursor)), "{refused:?}");
    }
    // The length of a page is no filter.
    let rest = store.list(ListQuery { cursor, limit: 50, ..ListQuery::default() }).await.unwrap();
    assert_eq!(rest.threads.len(), 9);
}
