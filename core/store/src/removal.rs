//! Deleting a thread: at once for every reader, and the rest of it in bites.
//!
//! Neighbours: blob, error, event, owner, queue, row, send, turn.

use raddle_protocol::EventKind;
use rusqlite::{Connection, OptionalExtension, params};

use crate::blob;
use crate::error::Error;
use crate::event::{THREAD_EVENTS_MAX, row_id, seq_of};
use crate::owner::Lease;
use crate::queue;
use crate::row::Trouble;
use crate::send;
use crate::turn::{self, TurnRow};

/// Events that one bite looks at, at most, so that no batch waits long for it.
const BITE_EVENTS_MAX: usize = 256;

/// Bytes of events that one bite removes, at most; one event more in any case.
const BITE_BYTES_MAX: i64 = 1024 * 1024;

/// Makes an archived thread unreachable. What it leaves is removed by [`bite`].
pub(crate) fn delete(connection: &Connection, lease: &Lease) -> Result<(), Trouble> {
    let (archived, head): (bool, Option<i64>) = connection
        .prepare_cached("SELECT archived, head FROM thread WHERE key = ?1")?
        .query_row([lease.key], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if !archived {
        return Err(Error::NotArchived { id: lease.thread.clone() }.into());
    }
    connection
        .prepare_cached("INSERT INTO deleted (thread, id, until) VALUES (?1, ?2, ?3)")?
        .execute(params![lease.key, lease.thread.as_str(), THREAD_EVENTS_MAX.cast_signed()])?;
    connection.prepare_cached("DELETE FROM thread WHERE key = ?1")?.execute([lease.key])?;
    // With it goes what marks the beginning of its pieces, so they are swept.
    connection.prepare_cached("DELETE FROM owner WHERE thread = ?1")?.execute([lease.key])?;
    queue::clear(connection, lease.key)?;
    send::clear(connection, lease.key)?;
    if let Some(head) = head {
        let_go(connection, head)?;
    }
    Ok(())
}

/// Notes that one less reaches a turn directly. If nobody does now and its thread was deleted, it is to be removed.
pub(crate) fn let_go(connection: &Connection, turn: i64) -> rusqlite::Result<()> {
    connection.prepare_cached("UPDATE turn SET uses = uses - 1 WHERE key = ?1")?.execute([turn])?;
    connection
        .prepare_cached(
            "UPDATE deleted SET until = max(coalesce(until, 0), coalesce(t.last_seq, ?2))
             FROM turn t WHERE t.key = ?1 AND t.uses = 0 AND deleted.thread = t.thread",
        )?
        .execute([turn, THREAD_EVENTS_MAX.cast_signed()])?;
    Ok(())
}

/// Whether an earlier process left something for [`bite`].
pub(crate) fn is_due(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row(
        "SELECT EXISTS (SELECT 1 FROM deleted WHERE until IS NOT NULL)
             OR EXISTS (SELECT 1 FROM blob WHERE hash IS NULL)",
        [],
        |row| row.get(0),
    )
}

/// Removes some of what nobody reaches, inside a transaction. Tells whether more may be left.
pub(crate) fn bite(connection: &Connection) -> rusqlite::Result<bool> {
    if blob::bite(connection)? {
        return Ok(true);
    }
    let next: Option<(i64, i64)> = connection
        .prepare_cached("SELECT thread, until FROM deleted WHERE until IS NOT NULL LIMIT 1")?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    match next {
        Some((thread, until)) => bite_thread(connection, thread, until.unsigned_abs()).map(|()| true),
        None => Ok(false),
    }
}

/// An event as far as a bite looks at it.
struct Seen {
    id: i64,
    turn: Option<i64>,
    starts: bool,
}

/// Looks at a deleted thread's next events, newest first: so a turn goes before the one that it follows, and its start after
/// the rest of it.
fn bite_thread(connection: &Connection, thread: i64, until: u64) -> rusqlite::Result<()> {
    let seen = newest(connection, thread, until)?;
    let Some(lowest) = seen.last() else { return finish(connection, thread) };
    // First of all, since a turn that goes may raise it again.
    connection
        .prepare_cached("UPDATE deleted SET until = ?2 WHERE thread = ?1")?
        .execute([thread, seq_of(lowest.id).cast_signed() - 1])?;
    let mut current: Option<TurnRow> = None;
    for event in seen {
        if let Some(key) = event.turn {
            if current.as_ref().is_none_or(|turn| turn.key != key) {
                current = turn::find(connection, key)?;
            }
            if current.as_ref().is_some_and(|turn| turn.uses > 0) {
                continue;
            }
        }
        blob::release(connection, event.id)?;
        connection.prepare_cached("DELETE FROM event WHERE id = ?1")?.execute([event.id])?;
        if event.starts
            && let Some(turn) = current.take()
        {
            connection.prepare_cached("DELETE FROM turn WHERE key = ?1")?.execute([turn.key])?;
            if let Some(parent) = turn.parent {
                let_go(connection, parent)?;
            }
        }
    }
    Ok(())
}

fn newest(connection: &Connection, thread: i64, until: u64) -> rusqlite::Result<Vec<Seen>> {
    let mut select = connection.prepare_cached(
        "SELECT id, turn, kind, length(body) FROM event WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC",
    )?;
    let mut rows = select.query([row_id(thread, 1), row_id(thread, until)])?;
    let (mut seen, mut bytes) = (Vec::new(), 0);
    while seen.len() < BITE_EVENTS_MAX
        && bytes < BITE_BYTES_MAX
        && let Some(row) = rows.next()?
    {
        let starts = row.get::<_, u8>(2)? == EventKind::TurnStarted as u8;
        seen.push(Seen { id: row.get(0)?, turn: row.get(1)?, starts });
        bytes += row.get::<_, i64>(3)?;
    }
    Ok(seen)
}

/// Forgets a deleted thread that was looked through, unless others reach turns of it.
fn finish(connection: &Connection, thread: i64) -> rusqlite::Result<()> {
    let range = [row_id(thread, 1), row_id(thread, THREAD_EVENTS_MAX)];
    let left: bool = connection
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM event WHERE id BETWEEN ?1 AND ?2)")?
        .query_row(range, |row| row.get(0))?;
    let sql = match left {
        true => "UPDATE deleted SET until = NULL WHERE thread = ?1",
        false => "DELETE FROM deleted WHERE thread = ?1",
    };
    connection.prepare_cached(sql)?.execute([thread]).map(drop)
}
