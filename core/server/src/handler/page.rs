//! Pages of history and of threads that fit into a response.
//!
//! A page that would be too large is read again with a smaller limit, so it ends earlier and its cursor is the right one.
//!
//! Neighbours: payload, server, transport.

use raddle_engine::{Error, History, Live};
use raddle_protocol::limits::{INLINE_BYTES_MAX, RESPONSE_BYTES_MAX};
use raddle_protocol::thread::{
    Thread, ThreadListParams, ThreadListResult, ThreadReadParams, ThreadReadResult, ThreadResumeResult,
    Warning,
};
use raddle_protocol::{TurnId, TurnStatus};

use crate::payload::{Payloads, ShrunkTurn};
use crate::server::Shared;
use crate::transport::envelope::written_len;

/// Bytes kept free for what frames a response: its members, the request's id, the cursor, the usage.
const FRAME_BYTES: usize = 16 * 1024;

/// Bytes kept free for what is live: the running turn and the queue, each in its size.
const LIVE_BYTES: usize = 2 * INLINE_BYTES_MAX;

/// What a response has beside a page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beside {
    Nothing,
    /// What a resume tells of the moment, the running turn included: that is not on the page then.
    Live,
}

/// A page of history, brought down to its size.
pub(crate) struct Page {
    pub(crate) thread: Thread,
    pub(crate) ended_head: Option<TurnId>,
    turns: Vec<ShrunkTurn>,
    next_cursor: Option<String>,
    /// Turns that were read and are not on it.
    left_out: usize,
}

impl Page {
    /// Reads a page that fits.
    pub(crate) async fn read(
        server: &Shared,
        params: &ThreadReadParams,
        beside: Beside,
    ) -> Result<Self, Error> {
        let mut limit = params.limit;
        loop {
            let history = server.engine.read(&params.thread_id, params.cursor.as_deref(), limit).await?;
            let page = Self::of(history, beside);
            let reserved = match beside {
                Beside::Nothing => 0,
                Beside::Live => LIVE_BYTES + written_len(&server.standing_warnings),
            };
            let room = room(reserved + written_len(&page.thread));
            let fitting = fitting(page.turns.iter().rev().map(|turn| turn.bytes), room);
            if fitting == page.turns.len() {
                return Ok(page);
            }
            limit = Some((fitting + page.left_out) as u32);
        }
    }

    /// A page as it was read.
    pub(crate) fn of(history: History, beside: Beside) -> Self {
        let History { thread, mut turns, next_cursor, ended_head } = history;
        let read = turns.len();
        if beside == Beside::Live {
            turns.retain(|turn| turn.summary.status != TurnStatus::InProgress);
        }
        let left_out = read - turns.len();
        let turns = turns.into_iter().map(|turn| ShrunkTurn::new(&thread.id, turn)).collect();
        Self { thread, ended_head, turns, next_cursor, left_out }
    }

    /// The result of a read.
    pub(crate) fn answered(self, payloads: &Payloads) -> ThreadReadResult {
        let mut result =
            ThreadReadResult { thread: self.thread, turns: Vec::new(), next_cursor: self.next_cursor };
        let rest = written_len(&result);
        result.turns = given(self.turns, rest, payloads);
        result
    }

    /// The result of a resume.
    pub(crate) fn resumed(
        self,
        payloads: &Payloads,
        live: Live,
        warnings: Vec<Warning>,
    ) -> ThreadResumeResult {
        let Live { status, settings, running_turn, mut queue, usage } = live;
        let thread = Thread { status, settings, ..self.thread };
        let running = running_turn.map(|turn| ShrunkTurn::new(&thread.id, turn));
        payloads.shrink_queue(&mut queue);
        let mut result = ThreadResumeResult {
            thread,
            turns: Vec::new(),
            next_cursor: self.next_cursor,
            running_turn: running.map(|running| {
                payloads.give(running.given);
                running.turn
            }),
            queue,
            usage,
            warnings,
        };
        let rest = written_len(&result);
        result.turns = given(self.turns, rest, payloads);
        result
    }
}

/// Gives the turns of a page out. It was read to fit, but what is beside it may have grown since, and a thread that reads
/// its own page reads it once: then the largest turns go without their items.
fn given(mut turns: Vec<ShrunkTurn>, rest: usize, payloads: &Payloads) -> Vec<raddle_protocol::Turn> {
    let room = room(rest);
    let mut bytes: usize = turns.iter().map(|turn| turn.bytes + 1).sum();
    while bytes > room
        && let Some(largest) = turns
            .iter_mut()
            .filter(|turn| turn.turn.items.reference().is_none())
            .max_by_key(|turn| turn.bytes)
    {
        bytes -= largest.bytes;
        largest.refer_items();
        bytes += largest.bytes;
    }
    payloads.give(turns.iter_mut().flat_map(|turn| std::mem::take(&mut turn.given)));
    turns.into_iter().map(|turn| turn.turn).collect()
}

/// Lists threads on a page that fits.
pub(crate) async fn list(server: &Shared, mut params: ThreadListParams) -> Result<ThreadListResult, Error> {
    loop {
        let (threads, next_cursor) = server.engine.list(params.clone()).await?;
        let fitting = fitting(threads.iter().map(written_len), room(0));
        if fitting == threads.len() {
            return Ok(ThreadListResult { threads, next_cursor });
        }
        params.limit = Some(fitting as u32);
    }
}

/// What is left for the rows of a page beside all else.
fn room(rest: usize) -> usize {
    RESPONSE_BYTES_MAX.saturating_sub(FRAME_BYTES + rest)
}

/// How many of the rows fit, from the first on; one always does.
fn fitting(rows: impl ExactSizeIterator<Item = usize>, room: usize) -> usize {
    let (many, mut bytes) = (rows.len(), 0);
    let fits = |row: &usize| {
        bytes += row + 1;
        bytes <= room
    };
    rows.take_while(fits).count().max(1).min(many)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_counted_with_their_commas() {
        assert_eq!(fitting([].into_iter(), 10), 0);
        assert_eq!(fitting([100].into_iter(), 10), 1);
        assert_eq!(fitting([4, 4, 4].into_iter(), 10), 2);
        assert_eq!(fitting([4, 5, 4].into_iter(), 10), 1);
    }
}
