//! Reading a thread's turns: a page, a branch, one turn.
//!
//! Neighbours: blob, cursor, error, event, row, thread, turn.

use raddle_protocol::event::LoggedItem;
use raddle_protocol::limits::HISTORY_PAGE_TURNS_MAX;
use raddle_protocol::{EventBody, ItemKind, ItemStatus, ThreadId, TurnId};
use rusqlite::Connection;

use crate::blob;
use crate::cursor::{HistoryCursor, bond};
use crate::error::Error;
use crate::event;
use crate::row::Trouble;
use crate::thread;
use crate::turn::{self, StoredTurn, TurnRow};

/// Bytes of text that a page reads at most; one that would have more ends earlier and goes on at its cursor. One turn is
/// always on it, however large.
pub(crate) const HISTORY_PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A stretch of a thread's history. What is large in it stands as references; see [`Store::payload`](crate::Store::payload).
#[derive(Clone, Debug, PartialEq)]
pub struct HistoryPage {
    /// Its turns, oldest first.
    pub turns: Vec<StoredTurn>,
    /// For the page before; none on the oldest.
    pub next_cursor: Option<String>,
    /// The thread's newest turn, on this page or not.
    pub head: Option<TurnId>,
}

/// The thread that is read.
struct Branch<'a> {
    id: &'a ThreadId,
    key: i64,
    head: Option<TurnRow>,
}

impl<'a> Branch<'a> {
    fn find(connection: &Connection, id: &'a ThreadId) -> Result<Self, Trouble> {
        let (key, head) = thread::expect(connection, id)?;
        let head = head.map(|key| turn::by_key(connection, key)).transpose()?;
        Ok(Self { id, key, head })
    }

    /// Whether a turn is on the branch; O(log depth).
    fn has(&self, connection: &Connection, turn: &TurnRow) -> rusqlite::Result<bool> {
        let Some(head) = self.head.clone() else { return Ok(false) };
        let found = turn::ancestor_at(connection, head, turn.depth)?;
        Ok(found.is_some_and(|found| found.key == turn.key))
    }

    fn load(&self, connection: &Connection, row: TurnRow) -> Result<StoredTurn, Trouble> {
        // A fork's older turns lie in the thread that ran them.
        let thread_id = match row.thread {
            key if key == self.key => self.id.clone(),
            key => thread::id_of(connection, key)?,
        };
        let events = event::of_turn(connection, &thread_id, &row)?;
        Ok(StoredTurn { id: row.id, thread_id, depth: row.depth, ended: row.ended, events })
    }

    /// As [`load`](Self::load), with the values of all references.
    fn load_whole(&self, connection: &Connection, row: TurnRow) -> Result<StoredTurn, Trouble> {
        let mut turn = self.load(connection, row)?;
        for recorded in &mut turn.events {
            blob::fill(connection, &mut recorded.event.body)?;
        }
        Ok(turn)
    }

    fn cursor_at(&self, turn: &TurnRow) -> HistoryCursor {
        let bond = bond([self.id.as_str(), turn.id.as_str()]);
        HistoryCursor { thread: self.key, turn: turn.key, bond }
    }

    /// The turn that a cursor stands at, if that is still part of this branch.
    fn follow(&self, connection: &Connection, cursor: &str) -> Result<TurnRow, Trouble> {
        let cursor = HistoryCursor::decode(cursor)?;
        let turn = match cursor.thread == self.key {
            true => turn::find(connection, cursor.turn)?,
            false => None,
        };
        match turn {
            Some(turn) if self.cursor_at(&turn) == cursor && self.has(connection, &turn)? => Ok(turn),
            _ => Err(Error::InvalidCursor.into()),
        }
    }
}

/// A page of at most `limit` turns, from the cursor's turn or the newest backwards; fewer when their texts are large,
/// but at least one. Its cost is that of the page.
pub(crate) fn page(
    connection: &Connection,
    id: &ThreadId,
    cursor: Option<&str>,
    limit: u32,
) -> Result<HistoryPage, Trouble> {
    let branch = Branch::find(connection, id)?;
    let mut next = match cursor {
        Some(cursor) => Some(branch.follow(connection, cursor)?),
        None => branch.head.clone(),
    };
    let mut turns = Vec::new();
    let mut bytes = 0;
    while let Some(row) = next.take_if(|_| turns.len() < limit.clamp(1, HISTORY_PAGE_TURNS_MAX) as usize) {
        let turn = branch.load(connection, row.clone())?;
        bytes += text_bytes(&turn);
        if bytes > HISTORY_PAGE_BYTES_MAX && !turns.is_empty() {
            next = Some(row);
            break;
        }
        turns.push(turn);
        next = turn::parent_of(connection, &row)?;
    }
    turns.reverse();
    let next_cursor = next.map(|row| branch.cursor_at(&row).encode());
    Ok(HistoryPage { turns, next_cursor, head: branch.head.map(|head| head.id) })
}

/// Bytes of a turn's texts, an item that is there twice counted twice.
fn text_bytes(turn: &StoredTurn) -> usize {
    let of = |body: &EventBody| match body {
        EventBody::ItemStarted(logged) | EventBody::ItemCompleted(logged) => logged.item.text_bytes(),
        EventBody::AgentMessageDelta(d) | EventBody::ReasoningDelta(d) | EventBody::ToolOutputDelta(d) => {
            d.delta.len()
        }
        _ => 0,
    };
    turn.events.iter().map(|recorded| of(&recorded.event.body)).sum()
}

/// All turns of the branch, whole, oldest first.
pub(crate) fn branch(connection: &Connection, id: &ThreadId) -> Result<Vec<StoredTurn>, Trouble> {
    newest_until(connection, id, |_| false)
}

/// The turns of the branch from its newest compaction on, whole, oldest first; all of them without one.
pub(crate) fn context(connection: &Connection, id: &ThreadId) -> Result<Vec<StoredTurn>, Trouble> {
    newest_until(connection, id, |turn| {
        turn.events.iter().any(|recorded| is_compaction(&recorded.event.body))
    })
}

fn is_compaction(body: &EventBody) -> bool {
    matches!(body, EventBody::ItemCompleted(LoggedItem { item, .. })
        if matches!(item.kind, ItemKind::Compaction { .. }) && item.status == ItemStatus::Completed)
}

/// The newest turns of the branch, whole, oldest first, until one that is the `last`. Reads nothing beyond it.
fn newest_until(
    connection: &Connection,
    id: &ThreadId,
    last: impl Fn(&StoredTurn) -> bool,
) -> Result<Vec<StoredTurn>, Trouble> {
    let branch = Branch::find(connection, id)?;
    let mut next = branch.head.clone();
    let mut turns = Vec::new();
    while let Some(row) = next.take() {
        let turn = branch.load_whole(connection, row.clone())?;
        if !last(&turn) {
            next = turn::parent_of(connection, &row)?;
        }
        turns.push(turn);
    }
    turns.reverse();
    Ok(turns)
}

/// One turn of the branch.
pub(crate) fn turn(
    connection: &Connection,
    id: &ThreadId,
    turn: &TurnId,
) -> Result<Option<StoredTurn>, Trouble> {
    let branch = Branch::find(connection, id)?;
    match turn::by_id(connection, turn)? {
        Some(row) if branch.has(connection, &row)? => branch.load(connection, row).map(Some),
        _ => Ok(None),
    }
}

/// The newest turn of the branch, whole.
pub(crate) fn head_turn(connection: &Connection, id: &ThreadId) -> Result<Option<StoredTurn>, Trouble> {
    let branch = Branch::find(connection, id)?;
    branch.head.clone().map(|row| branch.load_whole(connection, row)).transpose()
}
