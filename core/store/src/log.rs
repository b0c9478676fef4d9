//! Appending: what one batch changes, inside the writer's transaction.
//!
//! The tables beside `event` are written here and nowhere else, from the events themselves.
//!
//! Neighbours: batch, blob, branch, error, event, memory, owner, piece, process, queue, removal, row, send,
//! thread, turn.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use raddle_protocol::event::{ThreadStarted, TurnEnded};
use raddle_protocol::{Event, EventBody, EventKind, ItemId, ItemKind, ThreadId, UnixMillis};
use rusqlite::{Connection, params};

use crate::batch::{Batch, Row};
use crate::blob;
use crate::branch::{self, ForkPoint};
use crate::error::Error;
use crate::event::{self, REPLACEABLE, THREAD_EVENTS_MAX, THREADS_MAX, row_id};
use crate::memory::{Head, Memory, Place, Remains};
use crate::owner::{self, Lease};
use crate::piece;
use crate::process::Process;
use crate::queue;
use crate::removal;
use crate::row::Trouble;
use crate::send;
use crate::thread;
use crate::turn;

/// The log as the writer sees it, with what it remembers of the threads that it wrote.
pub(crate) struct Log {
    connection: Connection,
    process: Arc<Process>,
    /// Of threads that this process owns. Everything in it can be read again from the tables, so after any
    /// failure it is thrown away rather than repaired.
    memory: HashMap<i64, Memory>,
    /// Whether there may be something that nobody reaches. Too often true does no harm.
    pub(crate) removal_due: Cell<bool>,
}

impl Log {
    pub(crate) fn new(connection: Connection, process: Arc<Process>) -> Self {
        let due = removal::is_due(&connection).unwrap_or(true);
        Self { connection, process, memory: HashMap::new(), removal_due: Cell::new(due) }
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

    /// Writes a new thread and its first event, and makes it ours. A fork begins with the turns of its source.
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
        let fork = ForkPoint::find(&self.connection, id, started)?;
        let head = fork.as_ref().map(|fork| fork.head.key);
        let title = fork.as_ref().and_then(|fork| fork.title.as_deref());
        let settings = EventBody::SettingsUpdated(started.settings.clone()).encode();
        self.connection
            .prepare_cached(
                "INSERT INTO thread (id, cwd, name, created_at, updated_at, forked_from, settings, title, head)
                 VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![
                id.as_str(),
                started.cwd,
                started.name,
                at.0,
                started.forked_from_id.as_ref().map(ThreadId::as_str),
                String::from_utf8_lossy(&settings),
                title,
                head,
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
        if let Some(head) = head {
            turn::use_once_more(&self.connection, head)?;
        }
        let lease = owner::begin(&self.connection, &self.process, id, key)?;
        let titled = title.is_some();
        let head = fork.map(|fork| Head::finished(fork.head));
        let memory = Memory { epoch: lease.epoch, next_seq: 2, head, titled, pieces_from: None };
        self.memory.insert(key, memory);
        Ok(lease)
    }

    /// Makes a thread ours.
    pub(crate) fn acquire(&mut self, id: &ThreadId) -> Result<Lease, Trouble> {
        let (key, _) = thread::expect(&self.connection, id)?;
        owner::acquire(&self.connection, &self.process, id, key)
    }

    /// Gives a thread back.
    pub(crate) fn release(&mut self, lease: &Lease) -> Result<(), Trouble> {
        self.memory.remove(&lease.key);
        owner::release(&self.connection, lease)
    }

    /// Deletes an archived thread of ours. Holds: P2.
    pub(crate) fn delete(&mut self, lease: &Lease) -> Result<(), Trouble> {
        owner::check(&self.connection, &self.process, lease)?;
        removal::delete(&self.connection, lease)?;
        self.memory.remove(&lease.key);
        self.removal_due.set(true);
        Ok(())
    }

    /// Removes some of what nobody reaches, inside a transaction.
    pub(crate) fn remove_some(&self) -> rusqlite::Result<()> {
        self.removal_due.set(removal::bite(&self.connection)?);
        Ok(())
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
        batch.rows().try_for_each(|row| self.write(lease, memory, &row))
    }

    fn write(&self, lease: &Lease, memory: &mut Memory, row: &Row<'_>) -> Result<(), Trouble> {
        let Row { event, body, .. } = row;
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
                let id = row_id(lease.key, seq);
                self.connection
                    .prepare_cached(event::INSERT)?
                    .execute(params![id, turn, kind, item, at, body])?;
                if row.dangles || !blob::put(&self.connection, id, row.uses)? {
                    let why = "it refers to a payload that is not there";
                    return Err(Error::Rejected { id: lease.thread.clone(), why }.into());
                }
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
                return branch::start(&self.connection, lease, memory, (event.at, started), seq).map(Some);
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
        turn::set_last_seq(&self.connection, row.key, seq)?;
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
        let rejected = |why| Err(Error::Rejected { id: lease.thread.clone(), why }.into());
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
            EventBody::NameUpdated(named) => {
                self.connection
                    .prepare_cached("UPDATE thread SET name = ?2 WHERE key = ?1")?
                    .execute(params![lease.key, named.name])?;
            }
            EventBody::Archived(archived) => {
                self.connection
                    .prepare_cached("UPDATE thread SET archived = ?2 WHERE key = ?1")?
                    .execute(params![lease.key, archived.archived])?;
            }
            EventBody::Rewound(rewound) => {
                branch::rewind(&self.connection, lease, memory, &rewound.turn_id)?;
                // It may have been the last to reach a turn of a deleted thread.
                self.removal_due.set(true);
            }
            EventBody::InputQueued(queued) => {
                if !queue::put(&self.connection, lease.key, seq, &queued.id)? {
                    return rejected("an input waits once");
                }
                self.note_send(lease, seq, queued.idempotency_key.as_deref(), Some(&queued.id))?;
            }
            EventBody::InputsUnqueued(unqueued) => {
                for id in &unqueued.ids {
                    self.unqueue(lease, id)?;
                }
            }
            EventBody::TurnStarted(started) => {
                if let Some(id) = &started.queue_id {
                    self.unqueue(lease, id)?;
                }
                self.note_send(lease, seq, started.idempotency_key.as_deref(), None)?;
            }
            EventBody::SteerAccepted(steer) => {
                self.note_send(lease, seq, steer.idempotency_key.as_deref(), None)?;
            }
            EventBody::ThreadStarted(_)
            | EventBody::AgentMessageDelta(_)
            | EventBody::ReasoningDelta(_)
            | EventBody::ToolOutputDelta(_)
            | EventBody::ApprovalDecided(_)
            | EventBody::TurnRetrying(_)
            | EventBody::TokenUsageUpdated(_) => {}
        }
        Ok(())
    }

    fn note_send(
        &self,
        lease: &Lease,
        seq: u64,
        key: Option<&str>,
        queue_id: Option<&str>,
    ) -> rusqlite::Result<()> {
        match key {
            Some(key) => send::note(&self.connection, lease.key, seq, key, queue_id),
            None => Ok(()),
        }
    }

    fn unqueue(&self, lease: &Lease, id: &str) -> Result<(), Trouble> {
        match queue::take(&self.connection, lease.key, id)? {
            true => Ok(()),
            // Taken twice, an input would start two turns.
            false => Err(Error::Rejected { id: lease.thread.clone(), why: "its input does not wait" }.into()),
        }
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
        let (first, end) = (row_id(lease.key, first), row_id(lease.key, seq));
        for event in blob::users_of_item(&self.connection, (first, end), item.as_str())? {
            if blob::release(&self.connection, event)? {
                self.removal_due.set(true);
            }
        }
        self.connection
            .prepare_cached(&format!(
                "DELETE FROM event WHERE id >= ?1 AND id < ?2 AND item = ?3 AND {REPLACEABLE}"
            ))?
            .execute(params![first, end, item.as_str()])?;
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
