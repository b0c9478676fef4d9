//! What the machine wants done.
//!
//! Neighbours: none.

use raddle_protocol::approval::Decision;
use raddle_protocol::methods::ServerNotification;
use raddle_protocol::thread::ThreadStatus;
use raddle_protocol::{Event, ItemId, TurnId};
use serde_json::Value;

/// Names a request that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Something to do, in order. What stands behind an [`Append`] waits for its commit.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Commit, then answer, then fan out.
    Append(Append),
    /// Answer a request.
    Answer(Reply),
    /// Tell subscribers something that the log does not keep.
    Notify(ServerNotification),
    /// The thread does something else now.
    Status(ThreadStatus),
    /// Ask the model. Events of it carry the same number.
    CallModel {
        /// The number of this call in the thread's load.
        call: u64,
        /// 1 for the first try of a reply.
        attempt: u32,
    },
    /// Listen to the model no more.
    DropModel,
    /// Run a tool. Its call is durable by now (P3).
    RunTool {
        /// The call.
        item_id: ItemId,
        /// The tool.
        tool_name: String,
        /// Its arguments.
        input: Value,
    },
    /// Stop a tool; its end is still reported.
    CancelTool(ItemId),
    /// Ask a person.
    Ask {
        /// The call.
        item_id: ItemId,
        /// The tool.
        tool_name: String,
        /// Its arguments.
        input: Value,
        /// What may be answered.
        decisions: Vec<Decision>,
    },
    /// Nobody need answer any more.
    Withdraw(ItemId),
    /// Report [`Input::Timer`](super::Input::Timer) after a while. A newer timer replaces an older one.
    SetTimer {
        /// Its number.
        timer: u64,
        /// How long.
        delay_ms: u64,
    },
}

/// An event to commit, and the request that its commit answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Append {
    /// What happened.
    pub event: Event,
    /// Answered when it is committed, before anybody is notified of it.
    pub reply: Option<Reply>,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// Which request.
    pub token: Token,
    /// The answer.
    pub outcome: Outcome,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The turn runs.
    Started(TurnId),
    /// The turn has the steer.
    Steered(TurnId),
    /// The input waits under this id.
    Queued(String),
    /// Whether the input was taken out of the queue.
    Unqueued(bool),
    /// A change that is no turn is durable.
    Recorded,
    /// The turn is being stopped, or there was none.
    Interrupted,
    /// It was refused, and nothing happened.
    Refused(Refusal),
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A turn runs.
    #[error("turn {0} is running; wait for its end, steer it, or interrupt it")]
    TurnInProgress(TurnId),
    /// Another turn runs than the one named, or none.
    #[error("{}", match .running {
        Some(id) => format!("turn {id} is running, not the one named"),
        None => "no turn is running".to_owned(),
    })]
    TurnMismatch {
        /// The running one.
        running: Option<TurnId>,
    },
    /// The running turn sums up the conversation, and takes no steers.
    #[error("turn {0} compacts the conversation and takes no steers; queue the input, or wait")]
    NotSteerable(TurnId),
    /// Too many inputs wait.
    #[error("{0} inputs already wait in the queue; remove some, or let them start")]
    QueueFull(usize),
    /// What waits is too large.
    #[error("what waits in this thread may have at most {0} bytes; let some of it start, or remove it")]
    TooMuchWaits(usize),
    /// Too many steers wait.
    #[error("{0} steers already wait for this turn; let the model take them first")]
    TooManySteers(usize),
}
