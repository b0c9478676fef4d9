//! The writer: one thread, one connection, one transaction for all that waits (group commit).
//!
//! It takes whatever has arrived while the last commit ran, from all threads, and commits it at once: no
//! timer, so a delta waits for nothing but the commit before it, and a thousand threads cost the disk one
//! sync at a time.
//!
//! Neighbours: batch, connection, counters, error, log, owner, piece, process, row, wal.

use std::path::PathBuf;
use std::sync::Arc;

use raddle_protocol::event::ThreadStarted;
use raddle_protocol::{Durability, Event, ThreadId, UnixMillis};
use rusqlite::{Connection, Statement};
use tokio::sync::{mpsc, oneshot};

use crate::batch::Batch;
use crate::connection::Writing;
use crate::counters::Tally;
use crate::error::Error;
use crate::log::Log;
use crate::owner::Lease;
use crate::piece::Sweep;
use crate::process::Process;
use crate::row::Trouble;
use crate::wal::Wal;

/// Requests that may wait for the writer. At more, a caller waits until there is room, without blocking its
/// thread.
pub const WRITER_QUEUE_MAX: usize = 1024;

/// Events after which the writer sweeps the pieces of finished items when it has nothing else to do.
const SWEEP_EVENTS_IDLE: u64 = 4_096;

/// Events after which it sweeps although batches wait (P7).
const SWEEP_EVENTS_MAX: u64 = 32_768;

/// What a batch became.
#[derive(Debug)]
pub struct Appended {
    /// The number of the first event; the others follow without a gap.
    pub first_seq: u64,
    /// The events, given back so that they can be sent on without a copy.
    pub events: Vec<Event>,
}

impl Appended {
    /// The events with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (u64, &Event)> {
        (self.first_seq..).zip(&self.events)
    }
}

type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// What the writer is asked.
pub(crate) enum Request {
    Create { id: ThreadId, at: UnixMillis, started: Box<ThreadStarted>, reply: Reply<Lease> },
    Acquire { id: ThreadId, reply: Reply<Lease> },
    Release { lease: Lease, reply: Reply<()> },
    Append { lease: Lease, batch: Batch, reply: Reply<Appended> },
    Close,
}

impl Request {
    fn durability(&self) -> Durability {
        match self {
            Self::Append { batch, .. } => batch.durability,
            Self::Create { .. } => Durability::Barrier,
            // A power cut ends all processes, and an owner that is no longer there is recognised as dead.
            Self::Acquire { .. } | Self::Release { .. } | Self::Close => Durability::Tail,
        }
    }
}

/// An answer that waits for the commit. Without an outcome, the transaction failed before it had one.
enum Answer {
    Leased(Reply<Lease>, Option<Result<Lease, Error>>),
    Released(Reply<()>, Option<Result<(), Error>>),
    Appended(Reply<Appended>, Option<Result<Appended, Error>>),
}

impl Answer {
    /// Sends it; `failure` is what became of the transaction. A refusal stands either way.
    fn send(self, failure: Option<&Error>) {
        fn deliver<T>(reply: Reply<T>, outcome: Option<Result<T, Error>>, failure: Option<&Error>) {
            let outcome = match (outcome, failure) {
                (Some(Err(refused)), _) => Err(refused),
                (_, Some(failure)) => Err(failure.clone()),
                (Some(done), None) => done,
                (None, None) => Err(Error::Closed),
            };
            // Whoever gave up waiting does not hear that it was written; it was.
            let _ = reply.send(outcome);
        }
        match self {
            Self::Leased(reply, outcome) => deliver(reply, outcome, failure),
            Self::Released(reply, outcome) => deliver(reply, outcome, failure),
            Self::Appended(reply, outcome) => deliver(reply, outcome, failure),
        }
    }
}

/// All that the writer thread owns.
pub(crate) struct Writer {
    pub(crate) path: PathBuf,
    pub(crate) writing: Writing,
    pub(crate) process: Arc<Process>,
    pub(crate) inbox: mpsc::Receiver<Request>,
    pub(crate) tally: Arc<Tally>,
}

impl Writer {
    /// Runs until the store is closed or its last handle is gone, then answers what still waits and lets the
    /// database go.
    pub(crate) fn run(self) {
        let Self { path, writing: Writing { connection, wal_pages, patience }, process, mut inbox, tally } =
            self;
        match Group::new(&path, &connection, process, &tally) {
            Ok(mut group) => {
                let mut wal = Wal::new(&connection, wal_pages, patience, &tally);
                let mut waiting = Vec::with_capacity(WRITER_QUEUE_MAX);
                while inbox.blocking_recv_many(&mut waiting, WRITER_QUEUE_MAX) > 0 {
                    if group.commit(&mut waiting) == Next::Stop {
                        inbox.close();
                    }
                    group.sweep(inbox.is_empty());
                    wal.tend(inbox.is_empty());
                }
            }
            Err(source) => {
                let error = Error::sqlite(&path, source);
                while let Some(request) = inbox.blocking_recv() {
                    if matches!(request, Request::Close) {
                        inbox.close();
                    }
                    if let Some(answer) = unanswered(request) {
                        answer.send(Some(&error));
                    }
                }
            }
        }
        // The last connection to close writes the WAL back and removes it, so the next open finds one file.
        if let Err((_, source)) = connection.close() {
            tracing::warn!(%source, "the database did not close cleanly");
        }
    }
}

#[derive(PartialEq, Eq)]
enum Next {
    GoOn,
    Stop,
}

/// The one transaction that is open at a time.
struct Group<'c> {
    path: &'c PathBuf,
    connection: &'c Connection,
    log: Log<'c>,
    begin: Statement<'c>,
    commit: Statement<'c>,
    /// What `synchronous` is set to.
    durability: Durability,
    tally: &'c Tally,
    answers: Vec<Answer>,
    sweep: Sweep,
    /// Events since the last sweep that left nothing to do.
    unswept: u64,
}

impl<'c> Group<'c> {
    fn new(
        path: &'c PathBuf,
        connection: &'c Connection,
        process: Arc<Process>,
        tally: &'c Tally,
    ) -> rusqlite::Result<Self> {
        Ok(Self {
            path,
            connection,
            log: Log::new(connection, process)?,
            // At once, not at the first write: a transaction that has read cannot wait for another writer.
            begin: connection.prepare("BEGIN IMMEDIATE")?,
            commit: connection.prepare("COMMIT")?,
            durability: Durability::Tail,
            tally,
            answers: Vec::with_capacity(WRITER_QUEUE_MAX),
            sweep: Sweep::default(),
            unswept: 0,
        })
    }

    /// Commits all that waits, then answers it. What is refused is refused alone; when the transaction
    /// fails, all of it is answered with the failure and nothing of it is written.
    fn commit(&mut self, waiting: &mut Vec<Request>) -> Next {
        let mut next = Next::GoOn;
        let durability = waiting.iter().map(Request::durability).max().unwrap_or(Durability::Tail);
        let mut written = Written::default();
        let mut outcome = self.begin(durability);
        for request in waiting.drain(..) {
            if matches!(request, Request::Close) {
                next = Next::Stop;
            }
            let answer = match &outcome {
                Ok(()) => {
                    let (answer, health) = self.apply(request, &mut written);
                    outcome = health;
                    answer
                }
                Err(_) => unanswered(request),
            };
            self.answers.extend(answer);
        }
        let failure = outcome.and_then(|()| self.end(durability, written)).err().map(|source| {
            self.abandon();
            let failure = Error::sqlite(self.path, source);
            tracing::error!(error = %failure, batches = self.answers.len(), "a transaction failed");
            failure
        });
        for answer in self.answers.drain(..) {
            answer.send(failure.as_ref());
        }
        next
    }

    fn begin(&mut self, durability: Durability) -> rusqlite::Result<()> {
        if durability != self.durability {
            // Takes effect only between transactions. The statement cannot be kept: SQLite obeys this pragma
            // while it compiles it.
            self.connection.execute_batch(match durability {
                Durability::Tail => "PRAGMA synchronous = NORMAL",
                Durability::Barrier => "PRAGMA synchronous = FULL",
            })?;
            self.durability = durability;
        }
        self.begin.execute([]).map(drop)
    }

    /// Does one request inside the transaction; an error is one of the whole transaction.
    fn apply(&mut self, request: Request, written: &mut Written) -> (Option<Answer>, rusqlite::Result<()>) {
        match request {
            Request::Create { id, at, started, reply } => {
                let (done, health) = settle(self.log.create(&id, at, &started));
                written.note(&done, 1, 1);
                (Some(Answer::Leased(reply, done)), health)
            }
            Request::Acquire { id, reply } => {
                let (done, health) = settle(self.log.acquire(&id));
                written.note(&done, 0, 0);
                (Some(Answer::Leased(reply, done)), health)
            }
            Request::Release { lease, reply } => {
                let (done, health) = settle(self.log.release(&lease));
                written.note(&done, 0, 0);
                (Some(Answer::Released(reply, done)), health)
            }
            Request::Append { lease, batch, reply } => {
                let (done, health) = settle(self.log.append(&lease, &batch));
                written.note(&done, 1, batch.events.len());
                let done =
                    done.map(|done| done.map(|first_seq| Appended { first_seq, events: batch.events }));
                (Some(Answer::Appended(reply, done)), health)
            }
            Request::Close => (None, Ok(())),
        }
    }

    /// Deletes pieces of finished items, if it is time. Each call is one short transaction, so that the
    /// next batch waits for one at most.
    fn sweep(&mut self, idle: bool) {
        if self.unswept < if idle { SWEEP_EVENTS_IDLE } else { SWEEP_EVENTS_MAX } {
            return;
        }
        let swept = self.begin(Durability::Tail).and_then(|()| {
            let more = self.sweep.run(self.connection)?;
            self.commit.execute([])?;
            Ok(more)
        });
        match swept {
            Ok(true) => {}
            Ok(false) => self.unswept = 0,
            Err(source) => {
                self.abandon();
                self.unswept = 0;
                tracing::warn!(%source, "old deltas could not be swept");
            }
        }
    }

    fn end(&mut self, durability: Durability, written: Written) -> rusqlite::Result<()> {
        self.commit.execute([])?;
        if written.any {
            self.tally.commits.add(1);
            self.tally.syncs.add(u64::from(durability == Durability::Barrier));
            self.unswept += written.events;
            self.tally.events.add(written.events);
            self.tally.batches.add(written.batches);
        }
        Ok(())
    }

    /// Takes back a transaction that failed, with all that was remembered of it.
    fn abandon(&mut self) {
        self.log.forget();
        // SQLite takes some failures back itself.
        if !self.connection.is_autocommit()
            && let Err(source) = self.connection.execute_batch("ROLLBACK")
        {
            tracing::error!(%source, "a failed transaction could not be taken back");
        }
    }
}

#[derive(Default)]
struct Written {
    any: bool,
    batches: u64,
    events: u64,
}

impl Written {
    fn note<T>(&mut self, done: &Option<Result<T, Error>>, batches: u64, events: usize) {
        if matches!(done, Some(Ok(_))) {
            self.any = true;
            self.batches += batches;
            self.events += events as u64;
        }
    }
}

/// Tells a refusal, which is an outcome, from a failure, which is the transaction's.
fn settle<T>(done: Result<T, Trouble>) -> (Option<Result<T, Error>>, rusqlite::Result<()>) {
    match done {
        Ok(done) => (Some(Ok(done)), Ok(())),
        Err(Trouble::Refused(error)) => (Some(Err(error)), Ok(())),
        Err(Trouble::Broken(source)) => (None, Err(source)),
    }
}

/// The answer to a request that was not tried.
fn unanswered(request: Request) -> Option<Answer> {
    match request {
        Request::Create { reply, .. } | Request::Acquire { reply, .. } => Some(Answer::Leased(reply, None)),
        Request::Release { reply, .. } => Some(Answer::Released(reply, None)),
        Request::Append { reply, .. } => Some(Answer::Appended(reply, None)),
        Request::Close => None,
    }
}
