//! Table `event`: where a row lies, and how it is read back.
//!
//! Neighbours: error, row.

use raddle_protocol::{Event, EventBody, ItemId, Recorded, ThreadId, TurnId, UnixMillis};
use rusqlite::{CachedStatement, Connection, Row};

use crate::error::Error;
use crate::row::Trouble;

/// Most events of one thread, in numbers ever given: a sequence number has 32 bits of a row's key. One more
/// is [`Error::Full`](crate::Error::Full).
pub const THREAD_EVENTS_MAX: u64 = u32::MAX as u64;

/// Most threads of one database, in numbers ever given: a thread has 31 bits of a row's key. One more is
/// [`Error::Full`](crate::Error::Full).
pub const THREADS_MAX: i64 = i32::MAX as i64;

const SEQ_BITS: u32 = 32;

/// The key of a row. Both parts are within their limits, so they never meet.
pub(crate) fn row_id(thread: i64, seq: u64) -> i64 {
    (thread << SEQ_BITS) | i64::try_from(seq).unwrap_or(i64::MAX)
}

fn seq_of(row_id: i64) -> u64 {
    row_id.unsigned_abs() & THREAD_EVENTS_MAX
}

/// The number of a thread's last event; zero before the first.
pub(crate) fn last_seq(connection: &Connection, thread: i64) -> rusqlite::Result<u64> {
    let mut select = connection.prepare_cached("SELECT max(id) FROM event WHERE id BETWEEN ?1 AND ?2")?;
    let last: Option<i64> =
        select.query_row([row_id(thread, 1), row_id(thread, THREAD_EVENTS_MAX)], |row| row.get(0))?;
    Ok(last.map(seq_of).unwrap_or_default())
}

/// A row without its body.
pub(crate) struct Stub {
    pub(crate) seq: u64,
    pub(crate) kind: u8,
    pub(crate) item: Option<ItemId>,
}

/// The rows of a turn without their bodies, from its first event on.
pub(crate) fn stubs(
    connection: &Connection,
    thread: i64,
    turn: i64,
    first: u64,
) -> rusqlite::Result<Vec<Stub>> {
    let mut select = connection.prepare_cached(
        "SELECT id, kind, item FROM event WHERE id BETWEEN ?1 AND ?2 AND turn = ?3 ORDER BY id",
    )?;
    let rows = select.query_map([row_id(thread, first), row_id(thread, THREAD_EVENTS_MAX), turn], |row| {
        Ok(Stub { seq: seq_of(row.get(0)?), kind: row.get(1)?, item: item_of(row, 2)? })
    })?;
    rows.collect()
}

/// The events of a turn, in order.
pub(crate) fn of_turn(
    connection: &Connection,
    thread: (i64, &ThreadId),
    turn: (i64, &TurnId),
    first: u64,
    last: Option<u64>,
) -> Result<Vec<Recorded>, Trouble> {
    let mut select: CachedStatement<'_> = connection.prepare_cached(
        "SELECT id, kind, item, at, body FROM event WHERE id BETWEEN ?1 AND ?2 AND turn = ?3 ORDER BY id",
    )?;
    let until = row_id(thread.0, last.unwrap_or(THREAD_EVENTS_MAX));
    let mut rows = select.query([row_id(thread.0, first), until, turn.0])?;
    let mut events = Vec::new();
    while let Some(row) = rows.next()? {
        let seq = seq_of(row.get(0)?);
        let body = EventBody::decode(row.get(1)?, item_of(row, 2)?, row.get_ref(4)?.as_blob()?)
            .map_err(|source| Error::Unreadable { id: thread.1.clone(), seq, source: source.into() })?;
        let event = Event { turn_id: Some(turn.1.clone()), at: UnixMillis(row.get(3)?), body };
        events.push(Recorded { seq, event });
    }
    Ok(events)
}

fn item_of(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<ItemId>> {
    Ok(row.get_ref(column)?.as_str_or_null()?.map(ItemId::from))
}
