//! The engine's error.
//!
//! Neighbours: turn.

use raddle_protocol::{RpcError, ThreadId, TurnId};

use crate::turn::Refusal;

/// Why the engine could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] raddle_store::Error),
    /// The model is not known, or its provider is not usable.
    #[error(transparent)]
    Models(#[from] raddle_models::ModelsError),
    /// The turn machine refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A parameter does not fit.
    #[error("{message}")]
    InvalidParams {
        /// What does not fit, and what would.
        message: String,
        /// A word for programs.
        reason: Option<&'static str>,
    },
    /// The thread runs a turn, or has one waiting.
    #[error("thread {0} has a turn running or waiting; wait for its end, or interrupt it")]
    Busy(ThreadId),
    /// A turn is just being started.
    #[error("a turn is just being started in thread {0}; wait for it, or interrupt it")]
    Starting(ThreadId),
    /// A start waited for the interrupted turn to end, and it did not.
    #[error("the interrupted turn {0} has not ended yet; try again")]
    StillSettling(TurnId),
    /// The history that a subscriber had read is not current any more; it is to be read again.
    #[error("the history changed while it was read")]
    StaleHistory,
    /// The thread's log could not be written while the request waited.
    #[error("{0}")]
    Broken(RpcError),
    /// The thread is archived.
    #[error("thread {0} is archived; unarchive it first")]
    Archived(ThreadId),
    /// Only an archived thread can be deleted.
    #[error("thread {0} is not archived; archive it first, then delete it")]
    NotArchived(ThreadId),
    /// The engine stops.
    #[error("the engine is shutting down")]
    ShuttingDown,
    /// What would have answered is gone: a bug, since a task must have panicked.
    #[error("the request was abandoned by a task that ended unexpectedly")]
    Abandoned,
}

impl Error {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::InvalidParams { message: message.into(), reason: None }
    }

    pub(crate) fn unknown_turn(turn_id: &TurnId) -> Self {
        let message = format!("there is no turn `{turn_id}` on this thread's branch");
        Self::InvalidParams { message, reason: Some("unknownTurn") }
    }
}
