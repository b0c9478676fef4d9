//! Table `send`: the keys of a thread's newest sends, so that a send that comes twice is known.
//!
//! Neighbours: row, thread.

use raddle_protocol::limits::SEND_KEYS_MAX;
use raddle_protocol::turn::SendStatus;
use raddle_protocol::{EventKind, ThreadId, TurnId};
use rusqlite::{Connection, params};

use crate::row::{Trouble, damaged};
use crate::thread;

/// What a send with a key did, the first time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The key.
    pub key: String,
    /// What it did.
    pub status: SendStatus,
    /// The turn that it started or steered.
    pub turn_id: Option<TurnId>,
    /// The input that it queued; it may have left the queue since.
    pub queue_id: Option<String>,
}

/// Notes the key of a send that became the event at `seq`. A key that is known stays with its first send; of more than
/// [`SEND_KEYS_MAX`], the oldest go.
pub(crate) fn note(
    connection: &Connection,
    thread: i64,
    seq: u64,
    key: &str,
    queue_id: Option<&str>,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO send (thread, seq, key, queue_id) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (thread, key) DO NOTHING",
        )?
        .execute(params![thread, seq.cast_signed(), key, queue_id])?;
    connection
        .prepare_cached(
            "DELETE FROM send WHERE thread = ?1 AND seq <=
             (SELECT seq FROM send WHERE thread = ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2)",
        )?
        .execute(params![thread, SEND_KEYS_MAX as i64])?;
    Ok(())
}

/// Forgets all keys of a thread.
pub(crate) fn clear(connection: &Connection, thread: i64) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM send WHERE thread = ?1")?.execute([thread]).map(drop)
}

/// The sends of a thread that are known, oldest first.
pub(crate) fn all(connection: &Connection, id: &ThreadId) -> Result<Vec<Sent>, Trouble> {
    let (key, _) = thread::expect(connection, id)?;
    let mut select = connection.prepare_cached(
        "SELECT s.key, e.kind, t.id, s.queue_id
         FROM send s JOIN event e ON e.id = (s.thread << 32 | s.seq) LEFT JOIN turn t ON t.key = e.turn
         WHERE s.thread = ?1 ORDER BY s.seq",
    )?;
    let rows = select.query_map([key], |row| {
        let status = match row.get::<_, u8>(1)? {
            kind if kind == EventKind::TurnStarted as u8 => SendStatus::Started,
            kind if kind == EventKind::SteerAccepted as u8 => SendStatus::Steered,
            kind if kind == EventKind::InputQueued as u8 => SendStatus::Queued,
            _ => return Err(damaged("a send is of another kind")),
        };
        let turn_id = row.get_ref(2)?.as_str_or_null()?.map(TurnId::from);
        Ok(Sent { key: row.get(0)?, status, turn_id, queue_id: row.get(3)? })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}
