//! Full disks and damaged files.

use std::fs;
use std::path::Path;

use raddle_protocol::StorageReason;
use raddle_store::{DATABASE_FILE, Error, Store, StoreOptions};

use crate::support::{Script, create, events_of, home, id, open};

#[tokio::test]
async fn a_full_disk_loses_the_batch_and_nothing_else() {
    let home = home();
    let store = Store::open(StoreOptions { pages_max: Some(60), ..StoreOptions::new(home.path()) }).unwrap();
    let lease = create(&store, "t").await;
    let turn = Script::first("t");
    store.append(&lease, vec![turn.start(), turn.user(0, "q"), turn.message_start(1)]).await.unwrap();
    let before = store.head_turn(&id("t")).await.unwrap().unwrap();
    let large = "x".repeat(400_000);
    for _ in 0..3 {
        let refused = store.append(&lease, vec![turn.delta(1, "a"), turn.message(1, &large)]).await;
        let error = refused.map(drop).unwrap_err();
        assert!(matches!(&error, Error::DiskFull { path, .. } if path.ends_with(DATABASE_FILE)), "{error:?}");
        assert_eq!(error.reason(), Some(StorageReason::DiskFull));
        assert_eq!(store.head_turn(&id("t")).await.unwrap().unwrap(), before, "nothing half-written");
    }
    // The writer goes on, with the numbers that the log knows.
    let appended = store.append(&lease, vec![turn.message(1, "short"), turn.end()]).await.unwrap();
    assert_eq!(appended.first_seq, 5);
    let left = store.head_turn(&id("t")).await.unwrap().unwrap();
    assert_eq!(events_of(&left), [turn.start(), turn.user(0, "q"), turn.message(1, "short"), turn.end()]);
}

#[tokio::test]
async fn a_failed_transaction_answers_everybody_in_it() {
    let home = home();
    let store = Store::open(StoreOptions { pages_max: Some(60), ..StoreOptions::new(home.path()) }).unwrap();
    let mut calls = Vec::new();
    for number in 0..8 {
        let name = format!("t{number}");
        let lease = create(&store, &name).await;
        calls.push((lease, Script::first(&name)));
    }
    // One thread runs all calls, so they wait together; whichever shares its transaction with the large one
    // fails with it, the others are written.
    let large = "x".repeat(400_000);
    let running: Vec<_> = calls
        .iter()
        .enumerate()
        .map(|(number, (lease, turn))| {
            let text = if number == 4 { large.clone() } else { "short".to_owned() };
            let (store, lease, events) = (store.clone(), lease.clone(), turn.whole("q", &text));
            tokio::spawn(async move { store.append(&lease, events).await.map(|appended| appended.first_seq) })
        })
        .collect();
    for (number, call) in running.into_iter().enumerate() {
        let row = match call.await.unwrap() {
            Ok(first_seq) => {
                assert!(number != 4 && first_seq == 2);
                5
            }
            Err(Error::DiskFull { .. }) => 1,
            Err(other) => panic!("{other:?}"),
        };
        assert_eq!(store.thread(&id(&format!("t{number}"))).await.unwrap().last_seq, row);
    }
}

/// A closed home with one thread of some length.
async fn written(home: &Path) {
    let store = open(home);
    let lease = create(&store, "t").await;
    let mut turn = Script::first("t");
    for _ in 0..40 {
        store.append(&lease, turn.whole("question", &"answer ".repeat(300))).await.unwrap();
        turn = turn.next();
    }
    store.close().await;
}

/// What opening and reading everything gives.
async fn read_all(home: &Path) -> Result<usize, Error> {
    let store = Store::open(StoreOptions::new(home))?;
    let threads = store.list(Default::default()).await?.threads;
    let mut turns = 0;
    for thread in threads {
        turns += store.branch(&thread.id).await?.len();
    }
    Ok(turns)
}

#[tokio::test]
async fn r49_damage_is_told_and_the_file_is_kept() {
    let intact = home();
    written(intact.path()).await;
    assert_eq!(read_all(intact.path()).await.unwrap(), 40);
    let bytes = fs::read(intact.path().join(DATABASE_FILE)).unwrap();
    let page = 4096;
    let mut flipped = bytes.clone();
    flipped[page..].iter_mut().for_each(|byte| *byte ^= 0xff);
    let mut third = bytes.clone();
    third[2 * page..3 * page].iter_mut().for_each(|byte| *byte ^= 0xff);
    let half = bytes[..bytes.len() / 2].to_vec();
    for (label, damaged) in [("all but the first page", flipped), ("page 3", third), ("half", half)] {
        let home = home();
        let file = home.path().join(DATABASE_FILE);
        fs::write(&file, &damaged).unwrap();
        let error = read_all(home.path()).await.unwrap_err();
        assert!(
            matches!(&error, Error::Corrupt { path, .. } if path.ends_with(DATABASE_FILE)),
            "{label}: {error:?}"
        );
        assert_eq!(error.reason(), Some(StorageReason::Corrupt));
        assert!(fs::read(&file).unwrap() == damaged, "{label}: the damaged file is kept as it was");
    }
}

#[tokio::test]
async fn r49_a_damaged_wal_gives_no_half_written_turn() {
    let home = home();
    let store = open(home.path());
    let lease = create(&store, "t").await;
    let mut turn = Script::first("t");
    for _ in 0..20 {
        store.append(&lease, turn.whole("question", "answer")).await.unwrap();
        turn = turn.next();
    }
    // A copy of the living files is what a crash leaves.
    for at in [100, 4_200, 30_000] {
        let crashed = self::home();
        fs::copy(home.path().join(DATABASE_FILE), crashed.path().join(DATABASE_FILE)).unwrap();
        let mut wal = fs::read(home.path().join("raddle.db-wal")).unwrap();
        wal[at] ^= 0xff;
        fs::write(crashed.path().join("raddle.db-wal"), wal).unwrap();
        match read_all(crashed.path()).await {
            // SQLite ends the log before the damage; what is left is whole.
            Ok(turns) => {
                let store = open(crashed.path());
                for stored in store.branch(&id("t")).await.unwrap_or_default() {
                    assert_eq!(stored.events.len(), 4, "of {turns}");
                }
            }
            Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{error:?}"),
        }
    }
}
