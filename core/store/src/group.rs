//! One transaction for all that waits (group commit), and all that happens on the writing connection.
//!
//! Neighbours: batch, connection, counters, error, log, owner, piece, process, request, row, wal.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use raddle_protocol::Durability;
use rusqlite::ErrorCode;

use crate::batch::Batch;
use crate::connection::{BUSY_WAIT_MAX, Patience, Writing};
use crate::counters::Tally;
use crate::error::Error;
use crate::log::Log;
use crate::owner::Lease;
use crate::piece::Sweep;
use crate::process::Process;
use crate::request::{Answer, Request};
use crate::row::Trouble;
use crate::wal::Wal;

/// Events after which the writer sweeps the pieces of finished items when it has nothing else to do.
const SWEEP_EVENTS_IDLE: u64 = 4_096;

/// Events after which it sweeps although batches wait (P7).
const SWEEP_EVENTS_MAX: u64 = 32_768;

/// Rounds of the writer between two bites of what nobody reaches while batches wait: a bite takes a few milliseconds, and nobody
/// waits for what it removes.
const REMOVAL_ROUNDS: u32 = 32;

/// The writing connection and what is known about it.
pub(crate) struct Group {
    path: PathBuf,
    log: Log,
    patience: Patience,
    wal: Wal,
    sweep: Sweep,
    /// Events since the last sweep that left nothing to do.
    unswept: u64,
    /// Rounds since something was last removed although there is more.
    unremoved: u32,
    /// What `synchronous` is set to.
    durability: Durability,
    tally: Arc<Tally>,
}

/// What a transaction left to do once its callers have been answered.
pub(crate) struct Outcome {
    pub(crate) answers: Vec<Answer>,
    pub(crate) failure: Option<Error>,
    pub(crate) close: bool,
}

impl Group {
    pub(crate) fn new(path: PathBuf, writing: Writing, process: Arc<Process>, tally: Arc<Tally>) -> Self {
        let Writing { connection, wal_pages, patience } = writing;
        Self {
            path,
            log: Log::new(connection, process),
            wal: Wal::new(wal_pages, patience.clone(), Arc::clone(&tally)),
            patience,
            sweep: Sweep::default(),
            unswept: 0,
            unremoved: 0,
            durability: Durability::Tail,
            tally,
        }
    }

    /// Commits all that waits. What is refused is refused alone; when the transaction fails, all of it is
    /// answered with the failure and nothing of it is written.
    pub(crate) fn commit(&mut self, waiting: &mut Vec<Request>) -> Outcome {
        let durability = waiting.iter().map(Request::durability).max().unwrap_or(Durability::Tail);
        let mut answers = Vec::with_capacity(waiting.len());
        let mut close = false;
        let mut written = Written::default();
        let mut health = self.begin(durability);
        for request in waiting.drain(..) {
            close |= matches!(request, Request::Close);
            let answer = match &health {
                Ok(()) => {
                    let (answer, after) = self.apply(request, &mut written);
                    health = after;
                    answer
                }
                Err(_) => request.untried(),
            };
            answers.extend(answer);
        }
        let failure = health.and_then(|()| self.end(durability, &written)).err().map(|source| {
            let failure = self.fail(source);
            tracing::error!(error = %failure, batches = answers.len(), "a transaction failed");
            failure
        });
        Outcome { answers, failure, close }
    }

    /// Commits one tail batch at once, on the caller's thread. None if another process has the database:
    /// nothing was done then, and the writer may wait for it.
    pub(crate) fn commit_now(&mut self, lease: &Lease, batch: &Batch) -> Option<Result<u64, Error>> {
        debug_assert_eq!(batch.durability, Durability::Tail, "only a tail batch does not wait for the disk");
        self.patience.set(Duration::ZERO);
        let begun = self.begin(Durability::Tail);
        self.patience.set(BUSY_WAIT_MAX);
        match begun {
            Ok(()) => {}
            Err(source) if source.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => return None,
            Err(source) => return Some(Err(self.fail(source))),
        }
        let mut written = Written::default();
        let (done, health) = settle(self.log.append(lease, batch));
        written.note(&done, 1, batch.events.len());
        Some(match (health.and_then(|()| self.end(Durability::Tail, &written)), done) {
            (Ok(()), Some(done)) => done,
            (Ok(()), None) => Err(Error::Closed),
            (Err(source), _) => Err(self.fail(source)),
        })
    }

    /// Whether [`tidy`](Self::tidy) has something to do.
    pub(crate) fn is_untidy(&self) -> bool {
        self.goes_on() || self.wal.is_long()
    }

    /// Looks after the files, if it is time; `idle` tells that nobody waits. Tells whether more is to be done
    /// as long as nobody does.
    pub(crate) fn tidy(&mut self, idle: bool) -> bool {
        if self.unswept >= if idle { SWEEP_EVENTS_IDLE } else { SWEEP_EVENTS_MAX } {
            self.sweep();
        }
        self.unremoved += 1;
        if self.log.removal_due.get() && (idle || self.unremoved >= REMOVAL_ROUNDS) {
            self.unremoved = 0;
            self.remove();
        }
        self.wal.tend(self.log.connection(), idle);
        self.goes_on()
    }

    fn goes_on(&self) -> bool {
        self.unswept >= SWEEP_EVENTS_IDLE || self.log.removal_due.get()
    }

    /// Lets the database go. The last connection to close writes the WAL back and removes it, so the next
    /// open finds one file.
    pub(crate) fn close(self) {
        if let Err((_, source)) = self.log.into_connection().close() {
            tracing::warn!(%source, "the database did not close cleanly");
        }
    }

    /// Deletes pieces of finished items. Each call is one short transaction, so that the next batch waits
    /// for one at most.
    fn sweep(&mut self) {
        let swept = self.begin(Durability::Tail).and_then(|()| {
            let more = self.sweep.run(self.log.connection())?;
            self.run("COMMIT")?;
            Ok(more)
        });
        match swept {
            Ok(true) => {}
            Ok(false) => self.unswept = 0,
            Err(source) => {
                self.unswept = 0;
                let failure = self.fail(source);
                tracing::warn!(error = %failure, "old deltas could not be swept");
            }
        }
    }

    /// Removes some of what nobody reaches, in one short transaction as well.
    fn remove(&mut self) {
        let removed = self.begin(Durability::Tail).and_then(|()| {
            self.log.remove_some()?;
            self.run("COMMIT")
        });
        if let Err(source) = removed {
            // Tried again when the store is next opened, or has more to remove.
            self.log.removal_due.set(false);
            let failure = self.fail(source);
            tracing::warn!(error = %failure, "what nobody reaches could not be removed");
        }
    }

    fn begin(&mut self, durability: Durability) -> rusqlite::Result<()> {
        if durability != self.durability {
            // Takes effect only between transactions. The statement cannot be kept: SQLite obeys this
            // pragma while it compiles it.
            self.log.connection().execute_batch(match durability {
                Durability::Tail => "PRAGMA synchronous = NORMAL",
                Durability::Barrier => "PRAGMA synchronous = FULL",
            })?;
            self.durability = durability;
        }
        // At once, not at the first write: a transaction that has read cannot wait for another writer.
        self.run("BEGIN IMMEDIATE")
    }

    fn run(&self, sql: &str) -> rusqlite::Result<()> {
        self.log.connection().prepare_cached(sql)?.execute([]).map(drop)
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
                (Some(Answer::Done(reply, done)), health)
            }
            Request::Delete { lease, reply } => {
                let (done, health) = settle(self.log.delete(&lease));
                written.note(&done, 1, 0);
                if matches!(done, Some(Ok(()))) {
                    // Its pieces as well.
                    self.unswept = self.unswept.max(SWEEP_EVENTS_IDLE);
                }
                (Some(Answer::Done(reply, done)), health)
            }
            Request::Append { lease, batch, reply } => {
                let (done, health) = settle(self.log.append(&lease, &batch));
                written.note(&done, 1, batch.events.len());
                let done = done.map(|done| done.map(|first_seq| batch.appended(first_seq)));
                (Some(Answer::Appended(reply, done)), health)
            }
            Request::Tidy | Request::Close => (None, Ok(())),
        }
    }

    fn end(&mut self, durability: Durability, written: &Written) -> rusqlite::Result<()> {
        self.run("COMMIT")?;
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
    fn fail(&mut self, source: rusqlite::Error) -> Error {
        self.log.forget();
        let connection = self.log.connection();
        // SQLite takes some failures back itself.
        if !connection.is_autocommit()
            && let Err(source) = connection.execute_batch("ROLLBACK")
        {
            tracing::error!(%source, "a failed transaction could not be taken back");
        }
        Error::sqlite(&self.path, source)
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
