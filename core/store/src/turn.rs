//! Table `turn`: the tree of history.
//!
//! Neighbours: row.

use raddle_protocol::{Recorded, ThreadId, TurnId, TurnStatus};
use rusqlite::{Connection, OptionalExtension, Row};

use crate::row::damaged;

/// A saved turn, with its events as the log has them: one without an end, or with open items, is left for the
/// reader to fold.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredTurn {
    /// Its id.
    pub id: TurnId,
    /// The thread that ran it. In a fork this can be the source.
    pub thread_id: ThreadId,
    /// Turns on the branch up to and including this one.
    pub depth: u32,
    /// Whether its end is in the log.
    pub ended: bool,
    /// Its events, in order.
    pub events: Vec<Recorded>,
}

/// A row.
#[derive(Clone, Debug)]
pub(crate) struct TurnRow {
    pub(crate) key: i64,
    pub(crate) id: TurnId,
    pub(crate) thread: i64,
    pub(crate) parent: Option<i64>,
    pub(crate) jump: Option<i64>,
    pub(crate) depth: u32,
    pub(crate) first_seq: u64,
    pub(crate) last_seq: Option<u64>,
    pub(crate) ended: bool,
    /// How many threads and turns reach it directly.
    pub(crate) uses: i64,
}

const COLUMNS: &str = "key, id, thread, parent, jump, depth, first_seq, last_seq, ended, uses";

fn from_row(row: &Row<'_>) -> rusqlite::Result<TurnRow> {
    Ok(TurnRow {
        key: row.get(0)?,
        id: TurnId::from(row.get_ref(1)?.as_str()?),
        thread: row.get(2)?,
        parent: row.get(3)?,
        jump: row.get(4)?,
        depth: row.get(5)?,
        first_seq: row.get::<_, i64>(6)?.unsigned_abs(),
        last_seq: row.get::<_, Option<i64>>(7)?.map(i64::unsigned_abs),
        ended: row.get(8)?,
        uses: row.get(9)?,
    })
}

/// The row with this key. A key in another row always leads to one.
pub(crate) fn by_key(connection: &Connection, key: i64) -> rusqlite::Result<TurnRow> {
    connection
        .prepare_cached(&format!("SELECT {COLUMNS} FROM turn WHERE key = ?1"))?
        .query_row([key], from_row)
}

/// The row with this id.
pub(crate) fn by_id(connection: &Connection, id: &TurnId) -> rusqlite::Result<Option<TurnRow>> {
    connection
        .prepare_cached(&format!("SELECT {COLUMNS} FROM turn WHERE id = ?1"))?
        .query_row([id.as_str()], from_row)
        .optional()
}

/// The ancestor of `turn` at `depth`, itself included; none when `depth` is no depth of its branch. Reads
/// O(log depth) rows.
pub(crate) fn ancestor_at(
    connection: &Connection,
    mut turn: TurnRow,
    depth: u32,
) -> rusqlite::Result<Option<TurnRow>> {
    while turn.depth > depth {
        let jump = turn.jump.map(|key| by_key(connection, key)).transpose()?;
        let above = match (jump, turn.parent) {
            (Some(jump), _) if jump.depth >= depth => jump,
            (_, Some(parent)) => by_key(connection, parent)?,
            (_, None) => return Ok(None),
        };
        if above.depth >= turn.depth {
            return Err(damaged("a turn is not deeper than its ancestor"));
        }
        turn = above;
    }
    Ok((turn.depth == depth).then_some(turn))
}

/// Where the jump pointer of a child of `parent` leads: twice as far up as the parent's own, whenever the
/// two last jumps were of one length. Source: Myers, "An applicative random-access stack", 1983.
pub(crate) fn jump_below(connection: &Connection, parent: &TurnRow) -> rusqlite::Result<i64> {
    let Some(near) = parent.jump.map(|key| by_key(connection, key)).transpose()? else {
        return Ok(parent.key);
    };
    // The first turn of a branch counts as its own jump.
    let far_depth = match near.jump {
        Some(key) => by_key(connection, key)?.depth,
        None => near.depth,
    };
    let far = near.jump.unwrap_or(near.key);
    let [last, before] = [(parent.depth, near.depth), (near.depth, far_depth)].map(|(a, b)| a.abs_diff(b));
    Ok(if last == before { far } else { parent.key })
}

/// The turn above `turn` on its branch.
pub(crate) fn parent_of(connection: &Connection, turn: &TurnRow) -> rusqlite::Result<Option<TurnRow>> {
    let parent = turn.parent.map(|key| by_key(connection, key)).transpose()?;
    match parent {
        // A ring would be walked for ever.
        Some(parent) if parent.depth >= turn.depth => Err(damaged("a turn is not deeper than its parent")),
        parent => Ok(parent),
    }
}

/// Bounds a turn's events.
pub(crate) fn set_last_seq(connection: &Connection, turn: i64, seq: u64) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE turn SET last_seq = ?2 WHERE key = ?1")?
        .execute([turn, seq.cast_signed()])
        .map(drop)
}

/// Notes that one more thread reaches a turn.
pub(crate) fn use_once_more(connection: &Connection, turn: i64) -> rusqlite::Result<()> {
    connection.prepare_cached("UPDATE turn SET uses = uses + 1 WHERE key = ?1")?.execute([turn]).map(drop)
}

/// The word for table `turn`, as on the wire.
pub(crate) fn status_word(status: TurnStatus) -> &'static str {
    match status {
        TurnStatus::InProgress => "inProgress",
        TurnStatus::Completed => "completed",
        TurnStatus::Failed => "failed",
        TurnStatus::Interrupted => "interrupted",
    }
}

/// The row with this key, which comes from outside.
pub(crate) fn find(connection: &Connection, key: i64) -> rusqlite::Result<Option<TurnRow>> {
    by_key(connection, key).optional()
}
