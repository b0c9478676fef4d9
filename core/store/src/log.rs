//! Appending: what one batch changes, inside the writer's transaction.
//!
//! The tables beside `event` are written here and nowhere else, from the events themselves.
//!
//! Neighbours: batch, error, event, memory, owner, piece, process, row, thread, turn.

use std::collections::HashMap;
use std::sync::Arc;

use raddle_protocol::event::{ThreadStarted, TurnEnded, TurnStarted};
use raddle_protocol::{Event, EventBody, EventKind, ItemId, ItemKind, ThreadId, UnixMillis};
use rusqlite::{Connection, params};

use crate::batch::Batch;
use crate::error::Error;
use crate::event::{self, THREAD_EVENTS_MAX, THREADS_MAX, row_id};
use crate::memory::{Head, Memory, Place, Remains};
use crate::owner::{self, Lease};
use crate::piece;
use crate::process::Process;
use crate::row::Trouble;
use crate::thread;
use crate::turn;

/// The log as the writer sees it, with what it remembers of the threads that it wrote.
pub(crate) struct Log {
    connection: Connection,
    process: Arc<Process>,
    /// Of threads that this process owns. Everything in it can be read again from the tables, so after any
    /// failure it is thrown away rather than repaired.
    memory: HashMap<i64, Memory>,
}

impl Log {
    pub(crate) fn new(connection: Connection, process: Arc<Process>) -> Self {
        Self { connection, process, memory: HashMap::new() }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn into_connection(self) -> Connection {
        self.connection
    }

    /// Forgets all that a failed transaction may have made wrong.
    pub(crate) fn forget(&mut self) {
        self.memory.clear();
    }

    /// Writes a new thread and its first event, and makes it ours.
    pub(crate) fn create(
        &mut self,
        id: &ThreadId,
        at: UnixMillis,
        started: &ThreadStarted,
    ) -> Result<Lease, Trouble> {
        if thread::key_and_head(&self.connection, id)?.is_some() {
            return Err(Error::ThreadExists { id: id.clone() }.into());
        }
        let last: Option<i64> = self
            .connection
            .prepare_cached("SELECT max(seq) FROM sqlite_sequence WHERE name = 'thread'")?
            .query_row([], |row| row.get(0))?;
        if last.is_some_and(|last| last >= THREADS_MAX) {
            return Err(Error::Full { id: id.clone() }.into());
        }
        let settings = EventBody::SettingsUpdated(started.settings.clone()).encode();
        self.connection
            .prepare_cached(
                "INSERT INTO thread (id, cwd, name, created_at, updated_at, forked_from, settings)
                 VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?6)",
            )?
            .execute(params![
                id.as_str(),
                started.cwd,
                started.name,
                at.0,
                started.forked_from_id.as_ref().map(ThreadId::as_str),
                String::from_utf8_lossy(&settings),
            ])?;
        let key = self.connection.last_insert_rowid();
        let body = EventBody::ThreadStarted(started.clone()).encode();
        let kind = EventKind::ThreadStarted as u8;
        self.connection.prepare_cached(event::INSERT)?.execute(params![
            row_id(key, 1),
            None::<i64>,
            kind,
            None::<&str>,
            at.0,
            body
        ])?;
        let lease = owner::begin(&self.connection, &self.process, id, key)?;
        let memory = Memory { epoch: lease.epoch, next_seq: 2, head: None, titled: false, pieces_from: None };
        self.memory.insert(key, memory);
        Ok(lease)
    }

    /// Makes a thread ours.
    pub(crate) fn acquire(&mut self, id: &ThreadId) -> Result<Lease, Trouble> {
        let found = thread::key_and_head(&self.connection, id)?;
        let (key, _) = found.ok_or_else(|| Error::ThreadNotFound { id: id.clone() })?;
        owner::acquire(&self.connection, &self.process, id, key)
    }

    /// Gives a thread back.
    pub(crate) fn release(&mut self, lease: &Lease) -> Result<(), Trouble> {
        self.memory.remove(&lease.key);
        owner::release(&self.connection, lease)
    }

    /// Writes a batch, all of it or nothing; returns the number of its first event. Holds: P2.
    pub(crate) fn append(&mut self, lease: &Lease, batch: &Batch) -> Result<u64, Trouble> {
        // Out of the map while it changes: whatever fails on the way leaves no half-changed memory.
        let known = self.memory.remove(&lease.key);
        let pieces_from = owner::check(&self.connection, &self.process, lease)?;
        let mut memory = match known {
            Some(memory) if memory.epoch == lease.epoch => Memory { pieces_from, ..memory },
            _ => Memory::load(&self.connection, lease, pieces_from)?,
        };
        let first = memory.next_seq;
        if batch.is_one_delta() {
            // Its one row is the last thing that can fail, so there is nothing to take back.
            self.write_all(lease, &mut memory, batch)?;
        } else {
            self.in_savepoint(|| self.write_all(lease, &mut memory, batch))?;
        }
        self.memory.insert(lease.key, memory);
        Ok(first)
    }

    fn in_savepoint(&self, work: impl FnOnce() -> Result<(), Trouble>) -> Result<(), Trouble> {
        let run = |sql| self.connection.prepare_cached(sql).and_then(|mut statement| statement.execute([]));
        run("SAVEPOINT batch")?;
        let outcome = work();
        if let Err(Trouble::Refused(_)) = outcome {
            run("ROLLBACK TO batch")?;
        }
        // After a failure of the database the transaction may be gone, and its savepoints with it.
        if !matches!(outcome, Err(Trouble::Broken(_))) {
            run("RELEASE batch")?;
        }
        outcome
    }

    fn write_all(&self, lease: &Lease, memory: &mut Memory, batch: &Batch) -> Result<(), Trouble> {
        batch.rows().try_for_each(|(event, body)| self.write(lease, memory, event, body))
    }

    fn write(&self, lease: &Lease, memory: &mut Memory, event: &Event, body: &[u8]) -> Result<(), Trouble> {
        let seq = memory.next_seq;
        if seq > THREAD_EVENTS_MAX {
            return Err(Error::Full { id: lease.thread.clone() }.into());
        }
        let place = self.place(lease, memory, event, seq)?;
        let (kind, at) = (event.body.kind() as u8, event.at.0);
        match (&event.body, memory.head_at(place)) {
            (
                EventBody::AgentMessageDelta(delta)
                | EventBody::ReasoningDelta(delta)
                | EventBody::ToolOutputDelta(delta),
                Some(head),
            ) => {
                let item = &delta.item_id;
                let row = params![lease.key, seq.cast_signed(), head.key, kind, item.as_str(), at, body];
                self.connection.prepare_cached(piece::INSERT)?.execute(row)?;
                head.add_piece(item, seq);
                if memory.pieces_from.is_none() {
                    memory.pieces_from = Some(self.connection.last_insert_rowid());
                    piece::set_begin(&self.connection, lease.key, memory.pieces_from)?;
                }
            }
            _ => {
                let turn = place.map(|place| place.turn);
                let item = event.body.item_id().map(ItemId::as_str);
                let row = params![row_id(lease.key, seq), turn, kind, item, at, body];
                self.connection.prepare_cached(event::INSERT)?.execute(row)?;
            }
        }
        memory.next_seq += 1;
        self.derive(lease, memory, event, body, place, seq)
    }

    /// Finds the turn of an event, making the row of one that starts; refuses what contradicts the log.
    fn place(
        &self,
        lease: &Lease,
        memory: &mut Memory,
        event: &Event,
        seq: u64,
    ) -> Result<Option<Place>, Trouble> {
        let rejected = |why| Err(Error::Rejected { id: lease.thread.clone(), why }.into());
        match &event.body {
            EventBody::ThreadStarted(_) => return rejected("a thread starts once"),
            EventBody::TurnStarted(started) if event.turn_id.as_ref() != Some(&started.turn.id) => {
                return rejected("a turn's start belongs to another turn");
            }
            EventBody::TurnStarted(started) => {
                return start_turn(&self.connection, lease, memory, (event.at, started), seq).map(Some);
            }
            EventBody::TurnCompleted(ended) if event.turn_id.as_ref() != Some(&ended.turn.id) => {
                return rejected("a turn's end belongs to another turn");
            }
            _ => {}
        }
        let Some(id) = &event.turn_id else {
            return match &event.body {
                EventBody::SettingsUpdated(_)
                | EventBody::NameUpdated(_)
                | EventBody::Archived(_)
                | EventBody::Rewound(_)
                | EventBody::InputQueued(_)
                | EventBody::InputsUnqueued(_)
                | EventBody::TokenUsageUpdated(_) => Ok(None),
                _ => rejected("it needs a turn"),
            };
        };
        match &memory.head {
            Some(head) if head.id == *id && !head.ended => {
                return Ok(Some(Place { turn: head.key, first_seq: None }));
            }
            _ => {}
        }
        let Some(row) = turn::by_id(&self.connection, id)? else { return rejected("its turn never started") };
        if row.thread != lease.key {
            return rejected("its turn belongs to another thread");
        }
        if row.ended {
            return rejected("its turn has ended");
        }
        // A turn whose end was lost, and that another one followed.
        set_last_seq(&self.connection, row.key, seq)?;
        Ok(Some(Place { turn: row.key, first_seq: Some(row.first_seq) }))
    }

    /// Brings the other tables up to an event that was just written.
    fn derive(
        &self,
        lease: &Lease,
        memory: &mut Memory,
        event: &Event,
        body: &[u8],
        place: Option<Place>,
        seq: u64,
    ) -> Result<(), Trouble> {
        match &event.body {
            EventBody::SettingsUpdated(_) => {
                self.connection
                    .prepare_cached("UPDATE thread SET settings = ?2 WHERE key = ?1")?
                    .execute(params![lease.key, String::from_utf8_lossy(body)])?;
            }
            EventBody::ItemStarted(logged) => {
                if let Some(head) = memory.head_at(place) {
                    let begun = Remains { first_seq: seq, pieces: false };
                    head.items.entry(logged.item.id.clone()).or_insert(begun);
                }
            }
            EventBody::ItemCompleted(logged) => {
                self.compact(lease, memory, place, &logged.item.id, seq)?;
                if let Some(head) = memory.head_at(place) {
                    let whole = Remains { first_seq: seq, pieces: false };
                    head.items.insert(logged.item.id.clone(), whole);
                }
                if let ItemKind::UserMessage { text, .. } = &logged.item.kind {
                    self.set_title(lease, memory, text.as_str())?;
                }
            }
            EventBody::ItemRemoved(item) => {
                self.compact(lease, memory, place, item, seq)?;
            }
            EventBody::TurnCompleted(ended) => self.end_turn(lease, memory, place, (event.at, ended), seq)?,
            EventBody::ThreadStarted(_)
            | EventBody::NameUpdated(_)
            | EventBody::Archived(_)
            | EventBody::Rewound(_)
            | EventBody::InputQueued(_)
            | EventBody::InputsUnqueued(_)
            | EventBody::TurnStarted(_)
            | EventBody::AgentMessageDelta(_)
            | EventBody::ReasoningDelta(_)
            | EventBody::ToolOutputDelta(_)
            | EventBody::ApprovalDecided(_)
            | EventBody::SteerAccepted(_)
            | EventBody::TurnRetrying(_)
            | EventBody::TokenUsageUpdated(_) => {}
        }
        Ok(())
    }

    /// Takes away all of an item that the event at `seq` replaces. Its rows in table `event` are deleted;
    /// its pieces stop counting by that event's being there, and are swept later.
    fn compact(
        &self,
        lease: &Lease,
        memory: &mut Memory,
        place: Option<Place>,
        item: &ItemId,
        seq: u64,
    ) -> rusqlite::Result<()> {
        let first = match (memory.head_at(place), place) {
            (Some(head), _) => head.take(item),
            (None, place) => place.and_then(|place| place.first_seq),
        };
        let Some(first) = first else { return Ok(()) };
        if memory.pieces_from.is_some() && memory.head.as_ref().is_none_or(|head| head.in_pieces == 0) {
            memory.pieces_from = None;
            piece::set_begin(&self.connection, lease.key, None)?;
        }
        self.connection
            // Kinds 4 to 8: the start, the deltas and an earlier whole. What was decided about it stays.
            .prepare_cached(
                "DELETE FROM event WHERE id >= ?1 AND id < ?2 AND item = ?3 AND kind BETWEEN 4 AND 8",
            )?
            .execute(params![row_id(lease.key, first), row_id(lease.key, seq), item.as_str()])?;
        Ok(())
    }

    fn set_title(&self, lease: &Lease, memory: &mut Memory, message: &str) -> rusqlite::Result<()> {
        let Some(title) = (!memory.titled).then(|| thread::title_of(message)).flatten() else {
            return Ok(());
        };
        self.connection
            .prepare_cached("UPDATE thread SET title = ?2 WHERE key = ?1")?
            .execute(params![lease.key, title])?;
        memory.titled = true;
        Ok(())
    }

    fn end_turn(
        &self,
        lease: &Lease,
        memory: &mut Memory,
        place: Option<Place>,
        (at, ended): (UnixMillis, &TurnEnded),
        seq: u64,
    ) -> Result<(), Trouble> {
        let Some(place) = place else { return Ok(()) };
        if memory.head_at(Some(place)).is_some() {
            memory.settle(&self.connection)?;
        }
        self.connection
            .prepare_cached("UPDATE thread SET updated_at = ?2 WHERE key = ?1")?
            .execute(params![lease.key, at.0])?;
        self.connection
            .prepare_cached(
                "UPDATE turn SET ended = 1, last_seq = ?2, status = ?3, completed_at = ?4 WHERE key = ?1",
            )?
            .execute(params![
                place.turn,
                seq.cast_signed(),
                turn::status_word(ended.turn.status),
                ended.turn.completed_at.map(|at| at.0),
            ])?;
        if let Some(head) = memory.head_at(Some(place)) {
            head.ended = true;
            head.items = HashMap::new();
            head.in_pieces = 0;
        }
        Ok(())
    }
}

/// Makes the row of a turn and moves the thread's head to it.
fn start_turn(
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
        set_last_seq(connection, key, seq - 1)?;
    }
    let parent = memory.head.as_ref().map(|head| turn::by_key(connection, head.key)).transpose()?;
    let jump = parent.as_ref().map(|parent| turn::jump_below(connection, parent)).transpose()?;
    connection
        .prepare_cached(
            "INSERT INTO turn (id, thread, parent, jump, depth, first_seq, status, started_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
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

fn set_last_seq(connection: &Connection, turn: i64, seq: u64) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE turn SET last_seq = ?2 WHERE key = ?1")?
        .execute(params![turn, seq.cast_signed()])?;
    Ok(())
}
