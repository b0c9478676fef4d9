//! Table `thread`: what lists and headers show, derived from the log.
//!
//! Neighbours: error, event, row.

use raddle_protocol::limits::TITLE_CHARS_MAX;
use raddle_protocol::thread::ThreadSettings;
use raddle_protocol::{ThreadId, TurnId, UnixMillis};
use rusqlite::{Connection, OptionalExtension, Row};

use crate::error::Error;
use crate::event;
use crate::row::Trouble;

/// A thread as the database has it.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadRow {
    /// Its id.
    pub id: ThreadId,
    /// The project directory.
    pub cwd: String,
    /// A name that somebody gave it.
    pub name: Option<String>,
    /// The start of the first user message that says anything: at most [`TITLE_CHARS_MAX`] characters, each
    /// stretch of white space as one blank.
    pub title: Option<String>,
    /// When it was created.
    pub created_at: UnixMillis,
    /// When a turn of it last began or ended; until then, when it was created.
    pub updated_at: UnixMillis,
    /// Whether it is put away.
    pub archived: bool,
    /// The thread that it was forked from.
    pub forked_from_id: Option<ThreadId>,
    /// Its settings for the turns to come.
    pub settings: ThreadSettings,
    /// The newest turn on its branch.
    pub head: Option<TurnId>,
    /// Turns on its branch.
    pub depth: u32,
    /// The number of its last event.
    pub last_seq: u64,
    /// Whether the head's end is in the log; true without a head.
    pub head_ended: bool,
}

/// All that [`from_row`] reads, of a thread `t` and its head `h`.
pub(crate) const COLUMNS: &str = "t.key, t.id, t.cwd, t.name, t.title, t.created_at, t.updated_at, t.archived, \
     t.forked_from, t.settings, h.id, h.depth, h.ended, o.pieces_from";

/// The tables of [`COLUMNS`].
pub(crate) const FROM: &str =
    "FROM thread t LEFT JOIN turn h ON h.key = t.head LEFT JOIN owner o ON o.thread = t.key";

/// A row of [`COLUMNS`].
pub(crate) struct Found {
    pub(crate) key: i64,
    pieces_from: Option<i64>,
    thread: ThreadRow,
}

/// Reads a row of [`COLUMNS`].
pub(crate) fn from_row(row: &Row<'_>) -> rusqlite::Result<Found> {
    let text = |column| -> rusqlite::Result<Option<String>> { row.get(column) };
    let settings = row.get_ref(9)?.as_str()?;
    let thread = ThreadRow {
        id: ThreadId::from(row.get_ref(1)?.as_str()?),
        cwd: row.get(2)?,
        name: text(3)?,
        title: text(4)?,
        created_at: UnixMillis(row.get(5)?),
        updated_at: UnixMillis(row.get(6)?),
        archived: row.get(7)?,
        forked_from_id: text(8)?.map(ThreadId::from),
        // What cannot be read restores as the default, which asks (P6).
        settings: serde_json::from_str(settings).unwrap_or_default(),
        head: text(10)?.map(TurnId::from),
        depth: row.get::<_, Option<u32>>(11)?.unwrap_or_default(),
        last_seq: 0,
        head_ended: row.get::<_, Option<bool>>(12)?.unwrap_or(true),
    };
    Ok(Found { key: row.get(0)?, pieces_from: row.get(13)?, thread })
}

impl Found {
    /// The whole thread. The number of its last event is not kept but looked up, so that a delta writes no
    /// row but its own.
    pub(crate) fn complete(self, connection: &Connection) -> rusqlite::Result<ThreadRow> {
        let last_seq = event::last_seq(connection, self.key, self.pieces_from)?;
        Ok(ThreadRow { last_seq, ..self.thread })
    }
}

/// The thread with this id.
pub(crate) fn by_id(connection: &Connection, id: &ThreadId) -> rusqlite::Result<Option<ThreadRow>> {
    let found = connection
        .prepare_cached(&format!("SELECT {COLUMNS} {FROM} WHERE t.id = ?1"))?
        .query_row([id.as_str()], from_row)
        .optional()?;
    found.map(|found| found.complete(connection)).transpose()
}

/// The key of the thread with this id, and its newest turn's.
pub(crate) fn key_and_head(
    connection: &Connection,
    id: &ThreadId,
) -> rusqlite::Result<Option<(i64, Option<i64>)>> {
    connection
        .prepare_cached("SELECT key, head FROM thread WHERE id = ?1")?
        .query_row([id.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()
}

/// The same of a thread that there must be.
pub(crate) fn expect(connection: &Connection, id: &ThreadId) -> Result<(i64, Option<i64>), Trouble> {
    Ok(key_and_head(connection, id)?.ok_or_else(|| Error::ThreadNotFound { id: id.clone() })?)
}

/// The id of the thread with this key, which may have been deleted since.
pub(crate) fn id_of(connection: &Connection, key: i64) -> rusqlite::Result<ThreadId> {
    connection
        .prepare_cached(
            "SELECT id FROM thread WHERE key = ?1 UNION ALL SELECT id FROM deleted WHERE thread = ?1",
        )?
        .query_row([key], |row| Ok(ThreadId::from(row.get_ref(0)?.as_str()?)))
}

/// The start of a message as a title; none when there is nothing to show.
pub(crate) fn title_of(message: &str) -> Option<String> {
    let mut title = String::new();
    // A message may be megabytes long, so it is followed only as far as the title goes.
    'words: for word in message.split_whitespace() {
        let blank = (!title.is_empty()).then_some(' ');
        for character in blank.into_iter().chain(word.chars()) {
            if title.chars().count() == TITLE_CHARS_MAX {
                break 'words;
            }
            title.push(character);
        }
    }
    title.truncate(title.trim_end().len());
    (!title.is_empty()).then_some(title)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_one_short_line() {
        assert_eq!(title_of("  Explain\n\n\tthis  repository "), Some("Explain this repository".to_owned()));
        assert_eq!(title_of(" \n "), None);
        let long = title_of(&"ö ".repeat(100_000)).unwrap();
        assert_eq!(long.chars().count(), TITLE_CHARS_MAX - 1, "the last blank goes");
        assert_eq!(title_of(&"ß".repeat(500)).unwrap().chars().count(), TITLE_CHARS_MAX);
    }
}
