//! The writer: one thread that commits what waits, all of it at once.
//!
//! It takes whatever has arrived while the last commit ran, from all threads, and commits it in one
//! transaction: no timer, so a delta waits for nothing but the commit before it, and a thousand threads
//! cost the disk one sync at a time.
//!
//! While callers come one at a time there is nothing to gather, and waking two threads costs more than the
//! commit. A small tail batch is then committed on its caller's own thread, for some microseconds; see
//! [`Desk::append_now`].
//!
//! Neighbours: batch, error, group, owner, request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use raddle_protocol::Durability;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::mpsc;

use crate::batch::Batch;
use crate::error::Error;
use crate::group::Group;
use crate::owner::Lease;
use crate::request::{Line, Request};

/// Requests that may wait for the writer. At more, a caller waits until there is room, without blocking its
/// thread.
pub const WRITER_QUEUE_MAX: usize = 1024;

/// Events that a caller commits on its own thread at most: a larger batch would hold it up for too long.
const APPEND_NOW_EVENTS_MAX: usize = 16;

/// Transactions for one caller after callers last met, until a caller may commit by itself again. Callers
/// that met will meet again, and gathered they cost a fraction of what each costs alone.
const MEETING_TRANSACTIONS: u32 = 16;

/// The writing connection, where whoever commits takes it; none once the store is closed.
#[derive(Clone)]
pub(crate) struct Desk {
    group: Arc<Mutex<Option<Group>>>,
    line: Line,
    /// Transactions until callers count as alone again. Only a hint, so a lost update does no harm.
    meeting: Arc<AtomicU32>,
}

impl Desk {
    pub(crate) fn new(group: Group) -> Self {
        Self { group: Arc::new(Mutex::new(Some(group))), line: Line::default(), meeting: Arc::default() }
    }

    pub(crate) fn line(&self) -> &Line {
        &self.line
    }

    /// Commits a batch here and now, if that is no worse than asking the writer: it needs no sync, it is
    /// small, nobody waits or commits, and the runtime has other threads for others' work. None: ask the
    /// writer. Then tells whether the files want looking after.
    ///
    /// A request that joined the line before is never overtaken.
    pub(crate) fn append_now(&self, lease: &Lease, batch: &Batch) -> Option<(Result<u64, Error>, bool)> {
        if batch.durability == Durability::Barrier || batch.events.len() > APPEND_NOW_EVENTS_MAX {
            return None;
        }
        // The line is looked at under the lock: nobody takes from it meanwhile and commits later than we.
        let Some(mut group) = self.group.try_lock().filter(|_| self.line.len() == 0) else {
            self.meeting.store(MEETING_TRANSACTIONS, Ordering::Relaxed);
            return None;
        };
        if self.meeting.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let group = group.as_mut()?;
        if Handle::try_current().ok()?.runtime_flavor() == RuntimeFlavor::CurrentThread {
            return None;
        }
        let outcome = group.commit_now(lease, batch)?;
        Some((outcome, group.is_untidy()))
    }

    /// Notes for how many the writer commits.
    fn count(&self, callers: usize) {
        let left = match callers {
            0 | 1 => self.meeting.load(Ordering::Relaxed).saturating_sub(1),
            _ => MEETING_TRANSACTIONS,
        };
        self.meeting.store(left, Ordering::Relaxed);
    }
}

/// Runs until the store is closed or its last handle is gone, then answers what still waits and lets the
/// database go.
pub(crate) fn run(desk: &Desk, mut inbox: mpsc::Receiver<Request>) {
    let mut waiting = Vec::with_capacity(WRITER_QUEUE_MAX);
    tend(desk, &inbox);
    while inbox.blocking_recv_many(&mut waiting, WRITER_QUEUE_MAX) > 0 {
        let mut desk_held = desk.group.lock();
        let Some(group) = desk_held.as_mut() else { break };
        desk.count(waiting.len());
        let outcome = group.commit(&mut waiting);
        // Let go before anybody hears of it, so that whoever was alone finds the desk free next time.
        drop(desk_held);
        if outcome.close {
            inbox.close();
        }
        for answer in outcome.answers {
            answer.send(outcome.failure.as_ref());
        }
        tend(desk, &inbox);
    }
    if let Some(group) = desk.group.lock().take() {
        group.close();
    }
}

/// Looks after the files, a little at a time, and lets go in between: until nothing is to be done or somebody waits.
fn tend(desk: &Desk, inbox: &mpsc::Receiver<Request>) {
    loop {
        let idle = inbox.is_empty();
        let more = match desk.group.lock().as_mut() {
            Some(group) if group.is_untidy() => group.tidy(idle),
            _ => false,
        };
        if !more || !idle || inbox.is_closed() {
            return;
        }
    }
}
