//! Moving heads: turns that start, forks, rewinds.
//!
//! Neighbours: error, event, memory, owner, removal, row, thread, turn.

use std::collections::HashMap;

use raddle_protocol::event::{ThreadStarted, TurnStarted};
use raddle_protocol::{ThreadId, TurnId, UnixMillis};
use rusqlite::{Connection, params};

use crate::error::Error;
use crate::memory::{Head, Memory, Place};
use crate::owner::Lease;
use crate::removal;
use crate::row::Trouble;
use crate::thread;
use crate::turn::{self, TurnRow};

/// Makes the row of a turn and moves the thread's head to it.
pub(crate) fn start(
    connection: &Connection,
    lease: &Lease,
    memory: &mut Memory,
    (at, started): (UnixMillis, &TurnStarted),
    seq: u64,
) -> Result<Place, Trouble> {
    let rejected = |why| Err(Error::Rejected { id: lease.thread.clone(), why }.into());
    if started.parent.as_ref() != memory.head.as_ref().map(|head| &head.id) {
        return rejected("a turn follows the newest one of its branch");
    }
    if started.depth != memory.head.as_ref().map_or(0, |head| head.depth).saturating_add(1) {
        return rejected("a turn is one deeper than the one before");
    }
    if turn::by_id(connection, &started.turn.id)?.is_some() {
        return rejected("a turn starts once");
    }
    if let Some(Head { key, ended: false, .. }) = memory.head {
        // Its end was lost. The turn that follows bounds its events all the same.
        memory.settle(connection)?;
        turn::set_last_seq(connection, key, seq - 1)?;
    }
    let parent = memory.head.as_ref().map(|head| turn::by_key(connection, head.key)).transpose()?;
    let jump = parent.as_ref().map(|parent| turn::jump_below(connection, parent)).transpose()?;
    // Its one use is the thread; the parent is now used by it instead.
    connection
        .prepare_cached(
            "INSERT INTO turn (id, thread, parent, jump, depth, first_seq, status, started_at, uses)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 1)",
        )?
        .execute(params![
            started.turn.id.as_str(),
            lease.key,
            parent.map(|parent| parent.key),
            jump,
            started.depth,
            seq.cast_signed(),
            turn::status_word(started.turn.status),
            started.turn.started_at.0,
        ])?;
    let key = connection.last_insert_rowid();
    connection
        .prepare_cached("UPDATE thread SET head = ?2, updated_at = ?3 WHERE key = ?1")?
        .execute(params![lease.key, key, at.0])?;
    memory.head = Some(Head {
        id: started.turn.id.clone(),
        key,
        depth: started.depth,
        ended: false,
        items: HashMap::new(),
        in_pieces: 0,
    });
    Ok(Place { turn: key, first_seq: None })
}

/// Moves a thread's head back to a finished turn of its branch.
pub(crate) fn rewind(
    connection: &Connection,
    lease: &Lease,
    memory: &mut Memory,
    to: &TurnId,
) -> Result<(), Trouble> {
    let rejected = |why| Err(Error::Rejected { id: lease.thread.clone(), why }.into());
    let Some(head) = &memory.head else { return rejected("there is no turn to go back to") };
    if !head.ended {
        return rejected("a thread is not rewound while a turn runs");
    }
    let Some(row) = finished_on_branch(connection, head.key, to)? else {
        return rejected("it goes back to no finished turn of its branch");
    };
    connection.prepare_cached("UPDATE thread SET head = ?2 WHERE key = ?1")?.execute([lease.key, row.key])?;
    turn::use_once_more(connection, row.key)?;
    removal::let_go(connection, head.key)?;
    memory.head = Some(Head::finished(row));
    Ok(())
}

/// Where a fork begins.
pub(crate) struct ForkPoint {
    pub(crate) head: TurnRow,
    pub(crate) title: Option<String>,
}

impl ForkPoint {
    /// The turn that a new thread begins with, if it is a fork that has turns.
    pub(crate) fn find(
        connection: &Connection,
        id: &ThreadId,
        started: &ThreadStarted,
    ) -> Result<Option<Self>, Trouble> {
        let Some(at) = &started.forked_at else { return Ok(None) };
        let Some(source) = &started.forked_from_id else {
            return Err(Error::Rejected { id: id.clone(), why: "a fork names its source" }.into());
        };
        let (key, head) = thread::expect(connection, source)?;
        let found = head.map(|head| finished_on_branch(connection, head, at)).transpose()?.flatten();
        let Some(head) = found else {
            return Err(Error::TurnNotFound { id: source.clone(), turn: at.clone() }.into());
        };
        let title = connection
            .prepare_cached("SELECT title FROM thread WHERE key = ?1")?
            .query_row([key], |row| row.get(0))?;
        Ok(Some(Self { head, title }))
    }
}

/// The turn with this id, if it is on the branch that ends with `head` and has its end in the log.
fn finished_on_branch(connection: &Connection, head: i64, id: &TurnId) -> rusqlite::Result<Option<TurnRow>> {
    let Some(row) = turn::by_id(connection, id)?.filter(|row| row.ended) else { return Ok(None) };
    let found = turn::ancestor_at(connection, turn::by_key(connection, head)?, row.depth)?;
    Ok(found.filter(|found| found.key == row.key))
}
