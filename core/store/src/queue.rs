//! Table `queue`: inputs that wait to start a turn.
//!
//! Neighbours: error, event, row, thread.

use raddle_protocol::ThreadId;
use raddle_protocol::event::{EventBody, InputQueued};
use rusqlite::{Connection, params};

use crate::error::Error;
use crate::event::{self, row_id};
use crate::row::Trouble;
use crate::thread;

/// Puts an input at the end; tells whether its id was free.
pub(crate) fn put(connection: &Connection, thread: i64, seq: u64, id: &str) -> rusqlite::Result<bool> {
    // A queue is short, so looking through it needs no index.
    let inserted = connection
        .prepare_cached(
            "INSERT INTO queue (thread, seq, id) SELECT ?1, ?2, ?3
             WHERE NOT EXISTS (SELECT 1 FROM queue WHERE thread = ?1 AND id = ?3)",
        )?
        .execute(params![thread, seq.cast_signed(), id])?;
    Ok(inserted == 1)
}

/// Takes an input out; tells whether it was there.
pub(crate) fn take(connection: &Connection, thread: i64, id: &str) -> rusqlite::Result<bool> {
    let removed = connection
        .prepare_cached("DELETE FROM queue WHERE thread = ?1 AND id = ?2")?
        .execute(params![thread, id])?;
    Ok(removed == 1)
}

/// Takes all of a thread out.
pub(crate) fn clear(connection: &Connection, thread: i64) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM queue WHERE thread = ?1")?.execute([thread]).map(drop)
}

/// What waits in a thread, whole, oldest first.
pub(crate) fn all(connection: &Connection, id: &ThreadId) -> Result<Vec<InputQueued>, Trouble> {
    let (key, _) = thread::expect(connection, id)?;
    let mut select = connection.prepare_cached("SELECT seq FROM queue WHERE thread = ?1 ORDER BY seq")?;
    let seqs = select.query_map([key], |row| row.get::<_, i64>(0))?;
    let mut queue = Vec::new();
    for seq in seqs {
        let seq = seq?.unsigned_abs();
        match event::body_at(connection, id, row_id(key, seq))? {
            EventBody::InputQueued(queued) => queue.push(queued),
            other => {
                let source = raddle_protocol::event::EventDecodeError::Malformed(other.kind() as u8);
                return Err(Error::Unreadable { id: id.clone(), seq, source: source.into() }.into());
            }
        }
    }
    Ok(queue)
}
