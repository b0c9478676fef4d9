//! What the host process tells its parent: one JSON line a report, on the host's standard output.
//!
//! Neighbours: none.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use raddle::protocol::ThreadId;
use raddle::protocol::approval::{Decision, RequestApprovalParams};
use raddle::protocol::methods::ServerNotification;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One of the demo's two threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Lane {
    /// The one that looks around, and later tells the story.
    A,
    /// The one that runs a command.
    B,
}

impl Lane {
    /// Both, in the order in which they are shown.
    pub(crate) const ALL: [Self; 2] = [Self::A, Self::B];

    /// Its place in arrays.
    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What the host does from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Step {
    /// A turn on each thread, both at once.
    Together,
    /// The long turn that is to be cut.
    Story,
}

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "camelCase")]
pub(crate) enum Report {
    /// A thread was started.
    Thread {
        /// Which of the two.
        lane: Lane,
        /// Its id.
        id: ThreadId,
    },
    /// The next step begins.
    Step {
        /// Which.
        step: Step,
    },
    /// What the host's client was sent, as it would stand on the wire.
    Notification {
        /// The wire name.
        method: String,
        /// The params.
        params: Value,
    },
    /// The host's client was asked, and answered.
    Approval {
        /// What it was asked.
        ask: RequestApprovalParams,
        /// What it said.
        decision: Decision,
    },
    /// The host cannot go on.
    Failed {
        /// Why.
        message: String,
    },
    /// Every step is done.
    Finished,
}

/// Where the host writes its reports.
#[derive(Debug, Default)]
pub(crate) struct Reporter {
    line: Mutex<()>,
}

impl Reporter {
    /// Writes one line. It waits while the pipe is full; the engine goes on meanwhile, and what it says then merges.
    ///
    /// # Errors
    /// When the parent is gone.
    pub(crate) fn send(&self, report: &Report) -> io::Result<()> {
        let mut line = serde_json::to_vec(report)?;
        line.push(b'\n');
        // So that reports of two tasks do not mix.
        let _one_at_a_time = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = io::stdout().lock();
        out.write_all(&line)?;
        out.flush()
    }

    /// Passes on what the client was sent.
    ///
    /// # Errors
    /// When the parent is gone.
    pub(crate) fn notification(&self, notification: &ServerNotification) -> io::Result<()> {
        let params = notification.params()?;
        self.send(&Report::Notification { method: notification.method().to_owned(), params })
    }
}
