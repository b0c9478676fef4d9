//! Lists.

use raddle_protocol::UnixMillis;
use raddle_protocol::event::ThreadStarted;
use raddle_store::{Error, ListPage, ListQuery, Store};

use crate::support::{Script, home, id, open, started};

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
    // A thread that comes to the front between two pages is not doubled among those that stayed.
    let lease = store.acquire(&id("t3")).await.unwrap();
    let turn = Script { at: 90_000, ..Script::first("t3").next() };
    store.append(&lease, vec![turn.start()]).await.unwrap();
    let next = ListQuery { limit: 4, cursor: page.next_cursor, ..ListQuery::default() };
    assert_eq!(names(&store.list(next).await.unwrap()), ["t7", "t6", "t5", "t4"]);
    assert_eq!(names(&store.list(ListQuery { limit: 1, ..Default::default() }).await.unwrap()), ["t3"]);
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
    for bad in ["", "l1", "h1"] {
        let refused = store.list(ListQuery { cursor: Some(bad.to_owned()), ..ListQuery::default() }).await;
        assert!(matches!(refused, Err(Error::InvalidCursor)), "{refused:?}");
    }
    // The length of a page is no filter.
    let rest = store.list(ListQuery { cursor, limit: 50, ..ListQuery::default() }).await.unwrap();
    assert_eq!(rest.threads.len(), 9);
}
