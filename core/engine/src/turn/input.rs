//! What the machine is told.
//!
//! Neighbours: command.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use raddle_models::ModelEvent;
use raddle_protocol::approval::Decision;
use raddle_protocol::event::InputQueued;
use raddle_protocol::item::FileChange;
use raddle_protocol::thread::ApprovalMode;
use raddle_protocol::turn::UserInput;
use raddle_protocol::{ItemId, ModelCost, ModelRef, TurnError, TurnId};
use raddle_tools::Effect;

use super::command::Token;

/// The tools of a turn and what they can do.
pub type ToolTable = BTreeMap<String, Effect>;

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// Start a turn.
    Start(Box<StartTurn>),
    /// Add to the running turn.
    Steer {
        /// The request.
        token: Token,
        /// The turn that is meant.
        expected: TurnId,
        /// What is added.
        said: Box<Said>,
    },
    /// Keep an input until the thread is idle.
    Queue {
        /// The request.
        token: Token,
        /// The input.
        queued: Box<InputQueued>,
    },
    /// Take an input out of the queue.
    Unqueue {
        /// The request.
        token: Token,
        /// Its id in the queue.
        queue_id: String,
    },
    /// An input in the queue cannot start its turn.
    DropQueued {
        /// Its id in the queue.
        queue_id: String,
    },
    /// Stop the running turn.
    Interrupt {
        /// The request.
        token: Token,
        /// The turn that is meant; none: whichever runs.
        turn_id: Option<TurnId>,
    },
    /// Stop whatever runs: the thread is being unloaded.
    Shutdown,
    /// The model said something.
    Model {
        /// The call that it belongs to; others are ignored.
        call: u64,
        /// What.
        event: ModelEvent,
    },
    /// The model failed.
    ModelFailed {
        /// The call; others are ignored.
        call: u64,
        /// How.
        failure: ModelFailure,
        /// A random number from 0 to 1000, for the pause before the next attempt.
        jitter_permille: u32,
    },
    /// A tool printed something.
    ToolOutput {
        /// The call.
        item_id: ItemId,
        /// What.
        text: String,
    },
    /// A tool ended.
    ToolFinished {
        /// The call.
        item_id: ItemId,
        /// How.
        outcome: ToolOutcome,
    },
    /// A person decided, or nobody could.
    Decided {
        /// The call.
        item_id: ItemId,
        /// The word; none when nobody could answer.
        decision: Option<Decision>,
        /// For the model.
        message: Option<String>,
    },
    /// A timer went off.
    Timer {
        /// Its number; old ones are ignored.
        timer: u64,
    },
}

/// A turn to start.
#[derive(Clone, Debug)]
pub struct StartTurn {
    /// The request that it answers; none when it comes out of the queue.
    pub token: Option<Token>,
    /// Its id, made by the caller.
    pub turn_id: TurnId,
    /// The turn before it on the branch.
    pub parent: Option<TurnId>,
    /// Turns on the branch up to and including this one.
    pub depth: u32,
    /// What it is for.
    pub purpose: Purpose,
    /// The client's token for the start.
    pub request_id: Option<String>,
    /// The queued input that it takes out of the queue.
    pub queue_id: Option<String>,
    /// Ids of calls on the branch, which no call of this turn may have again.
    pub used_call_ids: HashSet<ItemId>,
    /// How it is to run.
    pub settings: RunSettings,
}

/// What a turn is for.
#[derive(Clone, Debug)]
pub enum Purpose {
    /// To answer the user.
    Answer(Said),
    /// To sum up the conversation.
    Compact,
}

/// What a user said, with the client's tokens for it.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// Text and pictures.
    pub input: UserInput,
    /// The client's token for the message.
    pub client_message_id: Option<String>,
    /// The key of the send that said it.
    pub idempotency_key: Option<String>,
}

/// How a turn is to run; fixed when it starts.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// The model.
    pub model: ModelRef,
    /// Its window in tokens; zero when unknown.
    pub context_window: u64,
    /// Its prices.
    pub cost: Option<ModelCost>,
    /// Which tools ask first.
    pub approval_mode: ApprovalMode,
    /// The tools.
    pub tools: Arc<ToolTable>,
}

/// A failure of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFailure {
    /// For the turn, if it comes to that.
    pub error: TurnError,
    /// Whether asking again may help.
    pub retryable: bool,
    /// How long the provider wants to be left alone.
    pub retry_after_ms: Option<u64>,
}

/// How a tool ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolOutcome {
    /// What the model is told.
    pub text: String,
    /// Whether that tells of a failure.
    pub is_error: bool,
    /// Whether it was stopped from outside.
    pub interrupted: bool,
    /// What it changed in files.
    pub file_changes: Vec<FileChange>,
}
