//! Appending and reading back.

use raddle_protocol::UnixMillis;
use raddle_store::Error;

use crate::support::{Script, create, home, id, open};

#[tokio::test]
async fn a_thread_comes_back_as_it_was() {
    let home = home();
    let store = open(home.path());
    let lease = create(&store, "t").await;
    let turn = Script::first("t");
    let appended = store.append(&lease, turn.whole("What is  this?\n", "A test.")).await.unwrap();
    assert_eq!((appended.first_seq, appended.events), (2, turn.whole("What is  this?\n", "A test.")));
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
    let events: Vec<_> = stored.events.iter().map(|recorded| recorded.event.clone()).collect();
    assert_eq!(events, turn.whole("What is  this?\n", "A test."));
    assert_eq!(stored.events.iter().map(|recorded| recorded.seq).collect::<Vec<_>>(), [2, 3, 4, 5]);
    assert_eq!(store.branch(&id("t")).await.unwrap(), page.turns);
    assert_eq!(store.head_turn(&id("t")).await.unwrap().as_ref(), Some(stored));
    assert_eq!(store.turn(&id("t"), &turn.turn).await.unwrap().as_ref(), Some(stored));
    assert!(matches!(store.thread(&id("u")).await, Err(Error::ThreadNotFound { .. })));
}
