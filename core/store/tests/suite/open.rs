//! Opening, and refusing to.

use std::fs;
use std::path::Path;

use raddle_protocol::{EventBody, StorageReason};
use raddle_store::filesystem::Filesystem;
use raddle_store::{DATABASE_FILE, Error, SCHEMA_VERSION, Store, StoreOptions};

use crate::support::{
    Script, archived, count, create, events_of, fork, home, id, of_thread, open, queued, raw, rewound,
    started, until,
};

fn refusal(home: &Path) -> Error {
    Store::open(StoreOptions::new(home)).map(drop).unwrap_err()
}

#[tokio::test]
async fn a_new_home_is_its_users_alone() {
    let home = home();
    let new = home.path().join("some/where");
    create(&open(&new), "t").await;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&new), mode(&new.join(DATABASE_FILE))), (0o700, 0o600));
    }
    assert!(!new.join("raddle.db-wal").exists(), "the last one out writes the WAL back");
    assert_eq!(open(&new).thread(&id("t")).await.unwrap().last_seq, 1);
}

#[test]
fn a_home_that_cannot_be_written_is_refused() {
    let home = home();
    let file = home.path().join("file");
    fs::write(&file, "not a directory").unwrap();
    let mut places = vec![file.clone(), file.join("below")];
    if cfg!(target_os = "linux") {
        // Nobody may make anything there, root included.
        places.push("/proc/self/raddle".into());
    }
    for place in places {
        let refused = refusal(&place);
        assert!(matches!(refused, Error::NotWritable { .. }), "{}: {refused:?}", place.display());
        assert_eq!(refused.reason(), Some(StorageReason::NotWritable));
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "not a directory");
}

#[test]
fn what_is_no_database_of_ours_is_left_alone() {
    for content in ["short", &"a text file of some length\n".repeat(100)] {
        let home = home();
        let file = home.path().join(DATABASE_FILE);
        fs::write(&file, content).unwrap();
        let refused = refusal(home.path());
        assert!(
            matches!(&refused, Error::NotADatabase { path } if path.ends_with(DATABASE_FILE)),
            "{refused:?}"
        );
        assert_eq!(refused.reason(), Some(StorageReason::NotADatabase));
        assert_eq!(fs::read_to_string(&file).unwrap(), content);
    }
    let home = home();
    raw(home.path()).execute_batch("CREATE TABLE bookmark (url TEXT); PRAGMA user_version = 3").unwrap();
    let refused = refusal(home.path());
    assert!(matches!(refused, Error::NotADatabase { .. }), "{refused:?}");
    let mode: String = raw(home.path()).query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
    assert_eq!(mode, "delete", "nothing of it was changed");
    // An empty file is what an interrupted first start leaves.
    let home = self::home();
    fs::write(home.path().join(DATABASE_FILE), "").unwrap();
    open(home.path());
}

#[test]
fn r49_an_older_build_refuses_a_newer_schema() {
    let home = home();
    drop(open(home.path()));
    raw(home.path()).execute_batch(&format!("PRAGMA user_version = {}", SCHEMA_VERSION + 7)).unwrap();
    let refused = refusal(home.path());
    match &refused {
        Error::NewerSchema { found, known, .. } => {
            assert_eq!((*found, *known), (SCHEMA_VERSION + 7, SCHEMA_VERSION));
        }
        other => panic!("{other:?}"),
    }
    assert!(refused.to_string().contains("update Raddle"), "{refused}");
    assert_eq!(refused.reason(), Some(StorageReason::NewerSchema));
}

#[cfg(unix)]
#[tokio::test]
async fn a_database_with_two_names_is_refused() {
    let home = home();
    create(&open(home.path()), "t").await;
    let second = home.path().join("copy.db");
    fs::hard_link(home.path().join(DATABASE_FILE), &second).unwrap();
    let refused = refusal(home.path());
    assert!(matches!(refused, Error::HardLinked { links: 2, .. }), "{refused:?}");
    assert_eq!(refused.reason(), Some(StorageReason::HardLinked));
    fs::remove_file(&second).unwrap();
    assert_eq!(open(home.path()).thread(&id("t")).await.unwrap().last_seq, 1);
}

#[cfg(unix)]
#[test]
fn a_link_to_nowhere_is_refused() {
    let home = home();
    let target = home.path().join("elsewhere/raddle.db");
    std::os::unix::fs::symlink(&target, home.path().join(DATABASE_FILE)).unwrap();
    let refused = refusal(home.path());
    assert!(matches!(refused, Error::NotWritable { .. }), "{refused:?}");
}

#[test]
fn r49_a_network_mount_is_refused_before_anything_is_made_there() {
    let home = home();
    let options = StoreOptions {
        filesystem: |_| Ok(Filesystem::Shared("NFS".to_owned())),
        ..StoreOptions::new(home.path())
    };
    let refused = Store::open(options).map(drop).unwrap_err();
    assert!(matches!(&refused, Error::UnsupportedFilesystem { filesystem, .. } if filesystem == "NFS"));
    assert_eq!(refused.reason(), Some(StorageReason::UnsupportedFilesystem));
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn r49_a_migration_is_all_or_nothing() {
    // What a process leaves that is killed in the middle: an old version, and nothing of the new one. Here
    // the new tables cannot be made because one of their names is taken.
    let home = home();
    raw(home.path())
        .execute_batch(
            "PRAGMA application_id = 0x5241444c; PRAGMA journal_mode = WAL; CREATE TABLE owner (x)",
        )
        .unwrap();
    let refused = refusal(home.path());
    assert!(matches!(refused, Error::Sqlite { .. }), "{refused:?}");
    let database = raw(home.path());
    let number = |sql: &str| database.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(number("PRAGMA user_version"), 0);
    assert_eq!(number("SELECT count(*) FROM sqlite_schema"), 1);
    database.execute_batch("DROP TABLE owner").unwrap();
    drop(database);
    drop(open(home.path()));
    let version: i64 = raw(home.path()).query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(version, SCHEMA_VERSION);
}

/// A home as the first schema left it: an ended turn, and one that was cut off in the middle of an item.
fn first_schema(home: &Path) {
    let database = raw(home);
    database.execute_batch("PRAGMA journal_mode = WAL").unwrap();
    database.execute_batch(include_str!("../../migrations/001_spine.sql")).unwrap();
    let turn = Script::first("t");
    let (ended, cut) = (turn.whole("first words", "a"), turn.next());
    let open = [cut.start(), cut.user(0, "q"), cut.message_start(1)];
    let header = of_thread(EventBody::ThreadStarted(started()));
    database
        .execute_batch(
            "PRAGMA application_id = 0x5241444c; PRAGMA user_version = 1;
             INSERT INTO thread (key, id, cwd, title, created_at, updated_at, settings, head)
             VALUES (1, 't', '/home/someone/project', 'first words', 1000, 3000, '{}', 2);
             INSERT INTO turn (key, id, thread, depth, first_seq, last_seq, ended, status, started_at)
             VALUES (1, 't/1', 1, 1, 2, 5, 1, 'completed', 2000);
             INSERT INTO turn (key, id, thread, parent, jump, depth, first_seq, status, started_at)
             VALUES (2, 't/2', 1, 1, 1, 2, 6, 'inProgress', 3000);
             INSERT INTO owner (thread, process, epoch, pieces_from) VALUES (1, NULL, 3, 1);
             INSERT INTO piece (thread, seq, turn, kind, item, at, body) VALUES (1, 9, 2, 5, '2.1', 3000, x'6869');",
        )
        .unwrap();
    for (seq, event) in (1..).zip([header].into_iter().chain(ended).chain(open)) {
        let turn = event.turn_id.as_ref().map(|id| if id.as_str() == "t/1" { 1 } else { 2 });
        let item = event.body.item_id().map(|item| item.as_str());
        let row = rusqlite::params![
            (1_i64 << 32) | seq,
            turn,
            event.body.kind() as u8,
            item,
            event.at.0,
            event.body.encode()
        ];
        database
            .execute(
                "INSERT INTO event (id, turn, kind, item, at, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                row,
            )
            .unwrap();
    }
}

#[tokio::test]
async fn what_the_first_schema_wrote_is_read_and_goes_on() {
    let home = home();
    first_schema(home.path());
    let store = open(home.path());
    let first = Script::first("t");
    let cut = first.next();
    let branch = store.branch(&id("t")).await.unwrap();
    assert_eq!(events_of(&branch[0]), first.whole("first words", "a"));
    let open_turn = [cut.start(), cut.user(0, "q"), cut.message_start(1), cut.delta(1, "hi")];
    assert_eq!(events_of(&branch[1]), open_turn);
    let lease = store.acquire(&id("t")).await.unwrap();
    assert_eq!(lease.epoch(), 4);
    assert_eq!(store.append(&lease, vec![cut.message(1, "hi"), cut.end()]).await.unwrap().first_seq, 10);
    // Its turns can be shared, left and removed as those of today.
    let forked = fork(&store, "f", "t", &first.turn).await.unwrap();
    store
        .append(&lease, vec![rewound(&first.turn), queued("q", "later", None), archived(true)])
        .await
        .unwrap();
    assert_eq!(store.branch(&id("t")).await.unwrap(), branch[..1]);
    store.delete_thread(&lease).await.unwrap();
    until("the second turn goes", || count(home.path(), "turn") == 1).await;
    assert_eq!(store.branch(&id("f")).await.unwrap(), branch[..1]);
    store.append(&forked, vec![archived(true)]).await.unwrap();
    store.delete_thread(&forked).await.unwrap();
    until("all of it goes", || count(home.path(), "event") + count(home.path(), "deleted") == 0).await;
}

#[tokio::test]
async fn r49_the_second_migration_is_all_or_nothing() {
    let home = home();
    first_schema(home.path());
    // Killed in the middle: none of it is there. Here a name is taken, late in the migration.
    raw(home.path()).execute_batch("CREATE TABLE blob_use (x)").unwrap();
    let refused = refusal(home.path());
    assert!(matches!(refused, Error::Sqlite { .. }), "{refused:?}");
    let database = raw(home.path());
    let number = |sql: &str| database.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(number("PRAGMA user_version"), 1);
    assert_eq!(number("SELECT count(*) FROM pragma_table_info('turn') WHERE name = 'uses'"), 0);
    assert_eq!(number("SELECT count(*) FROM sqlite_schema WHERE name IN ('queue', 'deleted', 'blob')"), 0);
    database.execute_batch("DROP TABLE blob_use").unwrap();
    assert_eq!(open(home.path()).thread(&id("t")).await.unwrap().depth, 2);
}

#[test]
fn many_may_make_one_home_at_once() {
    let home = home();
    let openers: Vec<_> = (0..8)
        .map(|_| {
            let home = home.path().to_owned();
            std::thread::spawn(move || Store::open(StoreOptions::new(home)).map(drop))
        })
        .collect();
    for opener in openers {
        opener.join().unwrap().unwrap();
    }
}
