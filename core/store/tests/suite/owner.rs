//! Who may write (P2).

use std::fs;
use std::time::Duration;

use raddle_store::{Error, Lease, OWNERS_DIR, Store, StoreOptions};

use crate::support::{Script, create, home, id, open};

#[tokio::test]
async fn p2_a_second_store_is_told_who_has_the_thread() {
    let home = home();
    let (first, second) = (open(home.path()), open(home.path()));
    let lease = create(&first, "t").await;
    match second.acquire(&id("t")).await {
        Err(Error::LockedElsewhere { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
        other => panic!("{other:?}"),
    }
    assert_eq!(first.acquire(&id("t")).await.unwrap(), lease, "ours stays ours");
    assert!(matches!(second.acquire(&id("u")).await, Err(Error::ThreadNotFound { .. })));
    // Reading needs no ownership.
    assert_eq!(second.thread(&id("t")).await.unwrap().last_seq, 1);
}

#[tokio::test]
async fn p2_a_lease_that_was_given_back_writes_nothing() {
    let home = home();
    let (first, second) = (open(home.path()), open(home.path()));
    let lease = create(&first, "t").await;
    first.release(&lease).await.unwrap();
    let theirs = second.acquire(&id("t")).await.unwrap();
    assert!(theirs.epoch() > lease.epoch());
    let turn = Script::first("t");
    for event in [turn.start(), turn.delta(0, "x")] {
        let refused = first.append(&lease, vec![event]).await;
        assert!(matches!(refused, Err(Error::Fenced { .. })), "{refused:?}");
    }
    assert!(matches!(first.release(&lease).await, Err(Error::Fenced { .. })));
    assert_eq!(second.append(&theirs, vec![turn.start()]).await.unwrap().first_seq, 2);
    // Another store's lease is no right of ours.
    assert!(matches!(first.append(&theirs, vec![turn.end()]).await, Err(Error::Fenced { .. })));
}

#[tokio::test]
async fn p2_a_closed_owner_is_followed_at_once() {
    let home = home();
    let first = open(home.path());
    let lease = create(&first, "t").await;
    let turn = Script::first("t");
    first.append(&lease, vec![turn.start()]).await.unwrap();
    let clone = first.clone();
    first.close().await;
    assert!(matches!(clone.append(&lease, vec![turn.end()]).await, Err(Error::Closed)));
    assert!(matches!(clone.thread(&id("t")).await, Err(Error::Closed)));
    let second = open(home.path());
    let theirs = second.acquire(&id("t")).await.unwrap();
    assert_eq!(second.append(&theirs, vec![turn.end()]).await.unwrap().first_seq, 3);
    drop(second);
    open(home.path()).acquire(&id("t")).await.unwrap();
}

/// Asks until the watched owner has stood still for long enough.
async fn take_over(store: &Store, name: &str) -> Lease {
    loop {
        match store.acquire(&id(name)).await {
            Err(Error::LockedElsewhere { .. }) => tokio::task::yield_now().await,
            other => return other.unwrap(),
        }
    }
}

#[tokio::test]
async fn p2_r46_an_owner_that_stands_still_is_fenced() {
    let home = home();
    // No heartbeat for an hour looks to others as a stopped process does, lock and all.
    let stopped =
        Store::open(StoreOptions { heartbeat: Duration::from_secs(3_600), ..StoreOptions::new(home.path()) })
            .unwrap();
    let lease = create(&stopped, "t").await;
    let turn = Script::first("t");
    stopped.append(&lease, vec![turn.start(), turn.message_start(0)]).await.unwrap();
    let watcher = Store::open(StoreOptions {
        heartbeat: Duration::from_millis(2),
        takeover_after: Duration::from_millis(20),
        ..StoreOptions::new(home.path())
    })
    .unwrap();
    let theirs = take_over(&watcher, "t").await;
    let appended = watcher.append(&theirs, vec![turn.delta(0, "theirs")]).await.unwrap();
    assert_eq!(appended.first_seq, 4);
    // It wakes up in the middle of a turn and writes on.
    for event in [turn.delta(0, "late"), turn.end()] {
        let refused = stopped.append(&lease, vec![event]).await;
        assert!(matches!(refused, Err(Error::Fenced { .. })), "{refused:?}");
    }
    let refused = stopped.acquire(&id("t")).await;
    assert!(matches!(refused, Err(Error::LockedElsewhere { .. })), "{refused:?}");
    assert_eq!(watcher.append(&theirs, vec![turn.end()]).await.unwrap().first_seq, 5);
}

#[tokio::test]
async fn an_owner_that_beats_keeps_its_thread() {
    let home = home();
    let quick = |takeover_after| StoreOptions {
        heartbeat: Duration::from_millis(1),
        takeover_after,
        ..StoreOptions::new(home.path())
    };
    let owner = Store::open(quick(Duration::from_secs(30))).unwrap();
    create(&owner, "t").await;
    let watcher = Store::open(quick(Duration::from_secs(30))).unwrap();
    for _ in 0..200 {
        let refused = watcher.acquire(&id("t")).await;
        assert!(matches!(refused, Err(Error::LockedElsewhere { .. })), "{refused:?}");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn r46_aliases_share_ownership() {
    use std::os::unix::fs::symlink;

    let home = home();
    let real = home.path().join("real");
    let first = open(&real);
    create(&first, "t").await;
    symlink(&real, home.path().join("alias")).unwrap();
    fs::create_dir(home.path().join("other")).unwrap();
    symlink(real.join("raddle.db"), home.path().join("other/raddle.db")).unwrap();
    for alias in ["alias", "real/../real/.", "other"] {
        let second = open(&home.path().join(alias));
        let refused = second.acquire(&id("t")).await;
        assert!(matches!(refused, Err(Error::LockedElsewhere { .. })), "{alias}: {refused:?}");
    }
}

#[tokio::test]
async fn the_files_of_the_dead_are_removed() {
    let home = home();
    let owners = home.path().join(OWNERS_DIR);
    let first = open(home.path());
    create(&first, "t").await;
    // A file that nobody locks is what a killed process leaves.
    let dead = owners.join("01890000-0000-7000-8000-000000000000");
    fs::write(&dead, "pid 0000000001\nbeat 00000000000000000000\n").unwrap();
    let second = open(home.path());
    while dead.exists() {
        tokio::task::yield_now().await;
    }
    assert_eq!(fs::read_dir(&owners).unwrap().count(), 2);
    drop(first);
    second.acquire(&id("t")).await.unwrap();
    drop(second);
    assert_eq!(fs::read_dir(&owners).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r46_two_stores_write_their_threads_side_by_side() {
    let home = home();
    let (first, second) = (open(home.path()), open(home.path()));
    let mut tasks = Vec::new();
    for number in 0..20 {
        let store = if number % 2 == 0 { first.clone() } else { second.clone() };
        tasks.push(tokio::spawn(async move {
            let name = format!("t{number}");
            let (lease, turn) = (create(&store, &name).await, Script::first(&name));
            store.append(&lease, vec![turn.start(), turn.message_start(0)]).await.unwrap();
            for seq in 4..104 {
                let appended = store.append(&lease, vec![turn.delta(0, "x")]).await.unwrap();
                assert_eq!(appended.first_seq, seq);
            }
            store.append(&lease, vec![turn.message(0, "xs"), turn.end()]).await.unwrap();
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    for number in 0..20 {
        let row = first.thread(&id(&format!("t{number}"))).await.unwrap();
        assert_eq!((row.last_seq, row.head_ended), (105, true));
    }
}
