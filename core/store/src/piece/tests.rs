//! Sweeping past a thread that was given up in the middle of an item.

use super::*;
use crate::connection::open_writing;

/// A database with one thread and one open turn, whose item has a piece at `from`.
fn database(from: i64) -> (tempfile::TempDir, Connection) {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("raddle.db");
    std::fs::write(&file, "").unwrap();
    let connection = open_writing(&file, None, 1 << 20).unwrap().connection;
    connection
        .execute_batch(&format!(
            "INSERT INTO thread (key, id, cwd, created_at, updated_at, settings, head) VALUES (1, 't', '/', 0, 0, '{{}}', 5);
             INSERT INTO turn (key, id, thread, depth, first_seq, status, started_at) VALUES (5, 'u', 1, 1, 2, '', 0);
             INSERT INTO owner (thread, epoch, pieces_from) VALUES (1, 1, {from});
             INSERT INTO event (id, turn, kind, item, at, body) VALUES ({}, 5, 9, 'gone', 0, x'');",
            row_id(1, 7)
        ))
        .unwrap();
    put(&connection, from, 1, 4, "kept");
    put(&connection, from + 1, 1, 5, "gone");
    put(&connection, from + 2, 2, 4, "kept");
    put(&connection, from + 3, 1, 6, "kept");
    (home, connection)
}

fn put(connection: &Connection, id: i64, thread: i64, seq: i64, item: &str) {
    connection
        .execute(
            "INSERT INTO piece (id, thread, seq, turn, kind, item, at, body) VALUES (?1, ?2, ?3, 5, 5, ?4, 0, x'61')",
            params![id, thread, seq, item],
        )
        .unwrap();
}

fn ids(connection: &Connection, table: &str) -> Vec<i64> {
    let mut select = connection.prepare(&format!("SELECT id FROM {table} ORDER BY id")).unwrap();
    select.query_map([], |row| row.get(0)).unwrap().collect::<rusqlite::Result<_>>().unwrap()
}

#[test]
fn pieces_that_count_hold_back_a_sweep() {
    let (_home, connection) = database(100);
    put(&connection, 7, 9, 1, "old");
    put(&connection, 200, 9, 2, "new");
    assert!(!Sweep::default().run(&connection).unwrap());
    assert_eq!(ids(&connection, "piece"), [100, 101, 102, 103, 200]);
    set_begin(&connection, 1, None).unwrap();
    assert!(!Sweep::default().run(&connection).unwrap());
    assert_eq!(ids(&connection, "piece"), [200], "the last one keeps ids growing");
    put(&connection, 200 + 2 * SWEEP_ROWS_MAX, 9, 3, "new");
    assert!(Sweep::default().run(&connection).unwrap(), "one bite at a time");
    assert!(!Sweep::default().run(&connection).unwrap());
}

#[test]
fn pieces_far_behind_are_moved_out_of_the_way() {
    let (_home, connection) = database(100);
    put(&connection, 101 + PIECES_PINNED_MAX, 9, 1, "new");
    let mut sweep = Sweep::default();
    assert!(sweep.run(&connection).unwrap());
    while sweep.run(&connection).unwrap() {}
    assert_eq!(ids(&connection, "piece"), [101 + PIECES_PINNED_MAX]);
    assert_eq!(begin_of(&connection, 1).unwrap(), None);
    // The removed item's piece is not among them, nor the other thread's.
    assert_eq!(ids(&connection, "event"), [row_id(1, 4), row_id(1, 6), row_id(1, 7)]);
}
