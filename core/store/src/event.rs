//! Table `event`: where a row lies, and how it is read back.
//!
//! Neighbours: blob, error, piece, row, turn.

use raddle_protocol::{Event, EventBody, EventKind, ItemId, Recorded, ThreadId, UnixMillis};
use rusqlite::{Connection, Row};

use crate::blob;
use crate::error::Error;
use crate::piece;
use crate::row::{Trouble, damaged};
use crate::turn::TurnRow;

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

pub(crate) fn seq_of(row_id: i64) -> u64 {
    row_id.unsigned_abs() & THREAD_EVENTS_MAX
}

/// The statement that writes an event: id, turn, kind, item, at, body.
pub(crate) const INSERT: &str =
    "INSERT INTO event (id, turn, kind, item, at, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

/// Of an item's events, those that its completion replaces (kinds 4 to 8): its start, its deltas and an earlier whole. What was
/// decided about it stays.
pub(crate) const REPLACEABLE: &str = "kind BETWEEN 4 AND 8";

/// The number of a thread's last event; zero before the first. `pieces_from` is that of its owner row.
pub(crate) fn last_seq(
    connection: &Connection,
    thread: i64,
    pieces_from: Option<i64>,
) -> rusqlite::Result<u64> {
    let mut select = connection.prepare_cached("SELECT max(id) FROM event WHERE id BETWEEN ?1 AND ?2")?;
    let last: Option<i64> =
        select.query_row([row_id(thread, 1), row_id(thread, THREAD_EVENTS_MAX)], |row| row.get(0))?;
    let last = last.map(seq_of).unwrap_or_default();
    Ok(match pieces_from {
        Some(from) => last.max(piece::last_seq(connection, thread, from)?),
        None => last,
    })
}

/// An event as far as the writer remembers it.
pub(crate) struct Stub {
    pub(crate) seq: u64,
    pub(crate) kind: u8,
    pub(crate) item: ItemId,
}

impl Stub {
    /// Whether it ends what came before of its item.
    pub(crate) fn replaces(&self) -> bool {
        self.kind == EventKind::ItemCompleted as u8 || self.kind == EventKind::ItemRemoved as u8
    }
}

/// The rows of a turn that concern items, without their bodies. Deltas in table `piece` are not among them.
pub(crate) fn stubs(connection: &Connection, turn: &TurnRow) -> rusqlite::Result<Vec<Stub>> {
    let mut select = connection.prepare_cached(
        "SELECT id, kind, item FROM event
         WHERE id BETWEEN ?1 AND ?2 AND turn = ?3 AND item IS NOT NULL ORDER BY id",
    )?;
    let (first, last) = range(turn);
    let rows = select.query_map([first, last, turn.key], |row| {
        let item = ItemId::from(row.get_ref(2)?.as_str()?);
        Ok(Stub { seq: seq_of(row.get(0)?), kind: row.get(1)?, item })
    })?;
    rows.collect()
}

/// The events of a turn that `thread` ran, in order.
pub(crate) fn of_turn(
    connection: &Connection,
    thread: &ThreadId,
    turn: &TurnRow,
) -> Result<Vec<Recorded>, Trouble> {
    let mut select = connection.prepare_cached(
        "SELECT id, kind, item, at, body FROM event
         WHERE id BETWEEN ?1 AND ?2 AND turn = ?3 ORDER BY id",
    )?;
    let (first, last) = range(turn);
    let mut rows = select.query([first, last, turn.key])?;
    let mut events = Vec::new();
    while let Some(row) = rows.next()? {
        events.push(recorded(row, seq_of(row.get(0)?), thread, turn)?);
    }
    if !turn.ended {
        piece::add(connection, thread, turn, &mut events)?;
    }
    Ok(events)
}

/// The body of one event, whole.
pub(crate) fn body_at(connection: &Connection, thread: &ThreadId, id: i64) -> Result<EventBody, Trouble> {
    let mut select = connection.prepare_cached("SELECT kind, item, body FROM event WHERE id = ?1")?;
    let mut rows = select.query([id])?;
    let row = rows.next()?.ok_or_else(|| damaged("an event is not there"))?;
    let item = row.get_ref(1)?.as_str_or_null()?.map(ItemId::from);
    let mut body = EventBody::decode(row.get(0)?, item, row.get_ref(2)?.as_blob()?)
        .map_err(|source| Error::Unreadable { id: thread.clone(), seq: seq_of(id), source: source.into() })?;
    blob::fill(connection, &mut body)?;
    Ok(body)
}

fn range(turn: &TurnRow) -> (i64, i64) {
    let last = turn.last_seq.unwrap_or(THREAD_EVENTS_MAX);
    (row_id(turn.thread, turn.first_seq), row_id(turn.thread, last))
}

/// An event from columns 1 to 4: kind, item, at, body.
pub(crate) fn recorded(
    row: &Row<'_>,
    seq: u64,
    thread: &ThreadId,
    turn: &TurnRow,
) -> Result<Recorded, Trouble> {
    let item = row.get_ref(2)?.as_str_or_null()?.map(ItemId::from);
    let body = EventBody::decode(row.get(1)?, item, row.get_ref(4)?.as_blob()?)
        .map_err(|source| Error::Unreadable { id: thread.clone(), seq, source: source.into() })?;
    let event = Event { turn_id: Some(turn.id.clone()), at: UnixMillis(row.get(3)?), body };
    Ok(Recorded { seq, event })
}
