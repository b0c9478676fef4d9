//! What the writer is asked, and what it answers.
//!
//! Neighbours: batch, error, owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use raddle_protocol::event::ThreadStarted;
use raddle_protocol::{Durability, ThreadId, UnixMillis};
use tokio::sync::oneshot;

use crate::batch::{Appended, Batch};
use crate::error::Error;
use crate::owner::Lease;

/// The requests that wait for the writer, or for a place among those that do.
#[derive(Clone, Default)]
pub(crate) struct Line(Arc<AtomicUsize>);

impl Line {
    /// Joins it. Whoever asks later, sees it.
    pub(crate) fn join(&self) -> Ticket {
        self.0.fetch_add(1, Ordering::AcqRel);
        Ticket(Arc::clone(&self.0))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

/// A place in the line, given up when it is dropped: with the answer, or by a caller who waits no longer.
pub(crate) struct Ticket(Arc<AtomicUsize>);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Where an answer goes.
pub(crate) struct Reply<T> {
    pub(crate) to: oneshot::Sender<Result<T, Error>>,
    pub(crate) ticket: Ticket,
}

/// What the writer is asked.
pub(crate) enum Request {
    Create {
        id: ThreadId,
        at: UnixMillis,
        started: Box<ThreadStarted>,
        reply: Reply<Lease>,
    },
    Acquire {
        id: ThreadId,
        reply: Reply<Lease>,
    },
    Release {
        lease: Lease,
        reply: Reply<()>,
    },
    Delete {
        lease: Lease,
        reply: Reply<()>,
    },
    Append {
        lease: Lease,
        batch: Batch,
        reply: Reply<Appended>,
    },
    /// To look after the files; what was appended without the writer left something to do.
    Tidy,
    Close,
}

impl Request {
    pub(crate) fn durability(&self) -> Durability {
        match self {
            Self::Append { batch, .. } => batch.durability,
            Self::Create { .. } | Self::Delete { .. } => Durability::Barrier,
            // A power cut ends all processes, and an owner that is no longer there is recognised as dead.
            Self::Acquire { .. } | Self::Release { .. } | Self::Tidy | Self::Close => Durability::Tail,
        }
    }

    /// The answer to a request that was not tried.
    pub(crate) fn untried(self) -> Option<Answer> {
        match self {
            Self::Create { reply, .. } | Self::Acquire { reply, .. } => Some(Answer::Leased(reply, None)),
            Self::Release { reply, .. } | Self::Delete { reply, .. } => Some(Answer::Done(reply, None)),
            Self::Append { reply, .. } => Some(Answer::Appended(reply, None)),
            Self::Tidy | Self::Close => None,
        }
    }
}

/// An answer that waits for the commit. Without an outcome, the transaction failed before it had one.
pub(crate) enum Answer {
    Leased(Reply<Lease>, Option<Result<Lease, Error>>),
    Done(Reply<()>, Option<Result<(), Error>>),
    Appended(Reply<Appended>, Option<Result<Appended, Error>>),
}

impl Answer {
    /// Sends it; `failure` is what became of the transaction. A refusal stands either way.
    pub(crate) fn send(self, failure: Option<&Error>) {
        fn deliver<T>(reply: Reply<T>, outcome: Option<Result<T, Error>>, failure: Option<&Error>) {
            let outcome = match (outcome, failure) {
                (Some(Err(refused)), _) => Err(refused),
                (_, Some(failure)) => Err(failure.clone()),
                (Some(done), None) => done,
                (None, None) => Err(Error::Closed),
            };
            // First out of the line, so that the caller's next request finds it empty.
            drop(reply.ticket);
            // Whoever gave up waiting does not hear that it was written; it was.
            let _ = reply.to.send(outcome);
        }
        match self {
            Self::Leased(reply, outcome) => deliver(reply, outcome, failure),
            Self::Done(reply, outcome) => deliver(reply, outcome, failure),
            Self::Appended(reply, outcome) => deliver(reply, outcome, failure),
        }
    }
}
