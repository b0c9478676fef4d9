//! Table `piece`: the deltas of open items, in order of arrival.
//!
//! With a thousand threads streaming, deltas kept beside their threads' other events cost a page each, and
//! those here one page for fifty: five times less of the writer's time, and a twentieth of the bytes. The
//! price is paid by whoever reads an open turn, which looks through what arrived since its first piece.
//!
//! Neighbours: event, row, turn.

use std::collections::HashMap;

use raddle_protocol::{EventBody, ItemId, Recorded, ThreadId};
use rusqlite::{Connection, OptionalExtension, params};

use crate::event::{self, Stub, row_id};
use crate::row::Trouble;
use crate::turn::{self, TurnRow};

/// Pieces that one sweep deletes at most, so that no batch waits long for it.
const SWEEP_ROWS_MAX: i64 = 4_096;

/// Pieces behind which a sweep moves what keeps it from going on to table `event` (P7). An item that
/// streams for half a minute beside a thousand others stays below it; one whose thread was given up does
/// not hold the rest for ever.
const PIECES_PINNED_MAX: i64 = 1_000_000;

/// Pieces between two such moves, since each looks through all pieces: less than a microsecond for each
/// piece.
const PIECES_BETWEEN_MOVES: i64 = 250_000;

/// The statement that writes a piece: thread, seq, turn, kind, item, at, body.
pub(crate) const INSERT: &str =
    "INSERT INTO piece (thread, seq, turn, kind, item, at, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

/// Where the pieces of a thread begin, if any count.
pub(crate) fn begin_of(connection: &Connection, thread: i64) -> rusqlite::Result<Option<i64>> {
    let found = connection
        .prepare_cached("SELECT pieces_from FROM owner WHERE thread = ?1")?
        .query_row([thread], |row| row.get(0))
        .optional()?;
    Ok(found.flatten())
}

/// Notes where the pieces of a thread begin; none: no piece counts any more.
pub(crate) fn set_begin(connection: &Connection, thread: i64, from: Option<i64>) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE owner SET pieces_from = ?2 WHERE thread = ?1")?
        .execute(params![thread, from])?;
    Ok(())
}

/// The number of the last event of a thread that is a piece; zero if there is none. Looks from the end,
/// where a thread that streams is found at once.
pub(crate) fn last_seq(connection: &Connection, thread: i64, from: i64) -> rusqlite::Result<u64> {
    let found: Option<i64> = connection
        .prepare_cached("SELECT seq FROM piece WHERE id >= ?1 AND thread = ?2 ORDER BY id DESC LIMIT 1")?
        .query_row([from, thread], |row| row.get(0))
        .optional()?;
    Ok(found.map(i64::unsigned_abs).unwrap_or_default())
}

/// Which pieces count: those that no later event of their item replaces.
#[derive(Default)]
pub(crate) struct Replaced(HashMap<ItemId, u64>);

impl Replaced {
    pub(crate) fn note(&mut self, item: &ItemId, seq: u64) {
        self.0.insert(item.clone(), seq);
    }

    fn spares(&self, item: &str, seq: u64) -> bool {
        // Few items are complete in a turn that has open ones, and most are none of theirs.
        !self.0.iter().any(|(replaced, by)| replaced.as_str() == item && seq < *by)
    }
}

/// Adds the pieces that count to the other events of an open turn.
pub(crate) fn add(
    connection: &Connection,
    thread: &ThreadId,
    turn: &TurnRow,
    events: &mut Vec<Recorded>,
) -> Result<(), Trouble> {
    let Some(from) = begin_of(connection, turn.thread)? else { return Ok(()) };
    let mut replaced = Replaced::default();
    for recorded in &*events {
        if let EventBody::ItemCompleted(_) | EventBody::ItemRemoved(_) = &recorded.event.body
            && let Some(item) = recorded.event.body.item_id()
        {
            replaced.note(item, recorded.seq);
        }
    }
    let mut select = connection.prepare_cached(
        "SELECT seq, kind, item, at, body FROM piece WHERE id >= ?1 AND thread = ?2 AND turn = ?3 ORDER BY id",
    )?;
    let mut rows = select.query([from, turn.thread, turn.key])?;
    while let Some(row) = rows.next()? {
        let seq = row.get::<_, i64>(0)?.unsigned_abs();
        if replaced.spares(row.get_ref(2)?.as_str()?, seq) {
            events.push(event::recorded(row, seq, thread, turn)?);
        }
    }
    events.sort_by_key(|recorded| recorded.seq);
    Ok(())
}

/// The pieces of an open turn that count, without their bodies.
pub(crate) fn stubs(
    connection: &Connection,
    turn: &TurnRow,
    from: i64,
    replaced: &Replaced,
) -> rusqlite::Result<Vec<Stub>> {
    let mut select = connection.prepare_cached(
        "SELECT seq, kind, item FROM piece WHERE id >= ?1 AND thread = ?2 AND turn = ?3 ORDER BY id",
    )?;
    let mut rows = select.query([from, turn.thread, turn.key])?;
    let mut stubs = Vec::new();
    while let Some(row) = rows.next()? {
        let seq = row.get::<_, i64>(0)?.unsigned_abs();
        let item = row.get_ref(2)?.as_str()?;
        if replaced.spares(item, seq) {
            stubs.push(Stub { seq, kind: row.get(1)?, item: ItemId::from(item) });
        }
    }
    Ok(stubs)
}

/// Moves the pieces of an open turn that count to its other events, where they stay until their item
/// completes. For turns whose pieces nobody will replace soon.
pub(crate) fn settle(connection: &Connection, turn: &TurnRow) -> rusqlite::Result<()> {
    let Some(from) = begin_of(connection, turn.thread)? else { return Ok(()) };
    let mut replaced = Replaced::default();
    for stub in event::stubs(connection, turn)?.iter().filter(|stub| stub.replaces()) {
        replaced.note(&stub.item, stub.seq);
    }
    let mut insert = connection.prepare_cached(event::INSERT)?;
    let mut select = connection.prepare_cached(
        "SELECT seq, kind, item, at, body FROM piece WHERE id >= ?1 AND thread = ?2 AND turn = ?3 ORDER BY id",
    )?;
    let mut rows = select.query([from, turn.thread, turn.key])?;
    while let Some(row) = rows.next()? {
        let seq = row.get::<_, i64>(0)?.unsigned_abs();
        let item = row.get_ref(2)?.as_str()?;
        if replaced.spares(item, seq) {
            let (kind, at): (u8, i64) = (row.get(1)?, row.get(3)?);
            let body = row.get_ref(4)?.as_blob()?;
            insert.execute(params![row_id(turn.thread, seq), turn.key, kind, item, at, body])?;
        }
    }
    set_begin(connection, turn.thread, None)
}

/// Deletes pieces that no longer count, from the front.
#[derive(Default)]
pub(crate) struct Sweep {
    /// The last piece when something was last moved out of the way.
    moved_at: i64,
}

impl Sweep {
    /// Deletes some, inside a transaction. Tells whether more of them are left.
    pub(crate) fn run(&mut self, connection: &Connection) -> rusqlite::Result<bool> {
        let (first, last): (Option<i64>, Option<i64>) = connection
            .prepare_cached("SELECT (SELECT min(id) FROM piece), (SELECT max(id) FROM piece)")?
            .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let (Some(first), Some(last)) = (first, last) else { return Ok(false) };
        let mut pin = pinned(connection)?;
        if let Some((from, Some(head))) = pin
            && last - from > PIECES_PINNED_MAX
            && last - self.moved_at > PIECES_BETWEEN_MOVES
        {
            // Whoever owns that thread sees at its next append that its pieces begin anew: it reads the row
            // each time.
            settle(connection, &turn::by_key(connection, head)?)?;
            self.moved_at = last;
            pin = pinned(connection)?;
        }
        // The last row stays whatever it is, so that the next one's id is higher than all before it.
        let all = pin.map_or(last, |(from, _)| from.min(last));
        let until = all.min(first.saturating_add(SWEEP_ROWS_MAX));
        connection.prepare_cached("DELETE FROM piece WHERE id < ?1")?.execute([until])?;
        Ok(until < all)
    }
}

/// The first piece that counts for any thread, and that thread's newest turn.
fn pinned(connection: &Connection) -> rusqlite::Result<Option<(i64, Option<i64>)>> {
    connection
        .prepare_cached(
            "SELECT o.pieces_from, t.head FROM owner o JOIN thread t ON t.key = o.thread
             WHERE o.pieces_from IS NOT NULL ORDER BY o.pieces_from LIMIT 1",
        )?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()
}

#[cfg(test)]
mod tests;
