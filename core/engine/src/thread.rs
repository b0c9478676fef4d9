//! A loaded thread from outside: its inbox and what everybody may look at.
//!
//! Neighbours: error, history, subscriber, turn.

use std::sync::Arc;

use parking_lot::Mutex;
use raddle_protocol::approval::RequestApprovalResult;
use raddle_protocol::thread::{
    Thread, ThreadCompactResult, ThreadSettings, ThreadSettingsUpdateParams, ThreadStatus,
};
use raddle_protocol::turn::{
    Queue, SendMode, TurnInterruptParams, TurnSendResult, TurnStartResult, TurnSteerResult,
};
use raddle_protocol::{ItemId, TokenUsage, Turn, TurnId};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::history::History;
use crate::subscriber::{Answer, AskId, ConnectionId, Subscriber};
use crate::turn::Said;

/// Requests that may wait for one thread; at more, the connection that sends them waits.
pub const INBOX_MESSAGES_MAX: usize = 256;

/// An input that wants a turn, checked and ready.
pub(crate) struct Start {
    /// What was said.
    pub(crate) said: Said,
    /// The client's token for the turn.
    pub(crate) request_id: Option<String>,
}

/// A change of a thread that needs a log that can be written, but no turn.
pub(crate) enum Change {
    Settings { params: ThreadSettingsUpdateParams, answer: Answer<ThreadSettings> },
    Queue { start: Box<Start>, answer: Answer<String> },
    Unqueue { queue_id: String, answer: Answer<bool> },
    Rename { name: Option<String>, answer: Answer<()> },
    Archive { answer: Answer<()> },
    Rewind { turn_id: TurnId, answer: Answer<TokenUsage> },
    Interrupt { params: TurnInterruptParams, answer: Answer<()> },
}

/// What a thread's task can be told.
pub(crate) enum Message {
    StartTurn {
        start: Box<Start>,
        subscriber: Option<Arc<dyn Subscriber>>,
        answer: Answer<TurnStartResult>,
    },
    Send {
        start: Box<Start>,
        mode: SendMode,
        subscriber: Arc<dyn Subscriber>,
        answer: Answer<TurnSendResult>,
    },
    Steer {
        expected: TurnId,
        said: Box<Said>,
        answer: Answer<TurnSteerResult>,
    },
    Compact {
        instructions: Option<String>,
        answer: Answer<ThreadCompactResult>,
    },
    Change(Change),
    Attach(Attach),
    AttachReading(AttachReading),
    Detach {
        connection: ConnectionId,
        answer: Option<Answer<bool>>,
    },
    /// Gives all subscribers away to another thread, and tells them.
    Replace {
        thread: Box<Thread>,
        subscribers: oneshot::Sender<Vec<Arc<dyn Subscriber>>>,
    },
    /// Takes subscribers over from another thread.
    Adopt(Vec<Arc<dyn Subscriber>>),
    Decided {
        item_id: ItemId,
        ask: AskId,
        connection: ConnectionId,
        answer: Option<RequestApprovalResult>,
    },
    Shutdown,
}

/// A wish to subscribe, and to get the live state of the very moment from which on notifications come.
pub struct Attach {
    /// Who.
    pub subscriber: Arc<dyn Subscriber>,
    /// The last ended turn of the history that the caller has read; `None`: not to be compared.
    pub expected_head: Option<Option<TurnId>>,
    /// Given in the thread's own step. [`Error::StaleHistory`] when the history is not current any more; then nobody
    /// was subscribed, and the caller reads again.
    pub deliver: Answer<Live>,
}

/// [`Attach`] with the page read by the thread's own task.
pub(crate) struct AttachReading {
    pub(crate) subscriber: Arc<dyn Subscriber>,
    pub(crate) cursor: Option<String>,
    pub(crate) limit: u32,
    pub(crate) deliver: Answer<(History, Live)>,
}

/// What is live about a thread at one moment.
#[derive(Clone, Debug)]
pub struct Live {
    /// What it does.
    pub status: ThreadStatus,
    /// Its settings.
    pub settings: ThreadSettings,
    /// The turn that runs, as far as it is committed.
    pub running_turn: Option<Turn>,
    /// What waits.
    pub queue: Queue,
    /// The branch's totals.
    pub usage: TokenUsage,
}

/// What everybody may look at without asking the thread's task.
#[derive(Clone, Debug)]
pub(crate) struct Glance {
    pub(crate) status: ThreadStatus,
}

/// A loaded thread.
#[derive(Clone)]
pub(crate) struct ThreadHandle {
    pub(crate) inbox: mpsc::Sender<Message>,
    pub(crate) glance: Arc<Mutex<Glance>>,
    /// Cancelled when its task has ended and the thread's ownership is given back.
    pub(crate) gone: CancellationToken,
}

impl ThreadHandle {
    /// Hands a message over, waiting for room; gives it back when the thread has been unloaded meanwhile.
    pub(crate) async fn send(&self, message: Message) -> Result<(), Message> {
        self.inbox.send(message).await.map_err(|lost| lost.0)
    }
}

impl Change {
    /// Answers with an error.
    pub(crate) fn fail(self, error: Error) {
        match self {
            Self::Settings { answer, .. } => answer.send(Err(error)),
            Self::Queue { answer, .. } => answer.send(Err(error)),
            Self::Unqueue { answer, .. } => answer.send(Err(error)),
            Self::Rename { answer, .. } | Self::Archive { answer } | Self::Interrupt { answer, .. } => {
                answer.send(Err(error));
            }
            Self::Rewind { answer, .. } => answer.send(Err(error)),
        }
    }
}

impl Message {
    /// Answers with an error, if there is anything to answer.
    pub(crate) fn fail(self, error: Error) {
        match self {
            Self::StartTurn { answer, .. } => answer.send(Err(error)),
            Self::Send { answer, .. } => answer.send(Err(error)),
            Self::Steer { answer, .. } => answer.send(Err(error)),
            Self::Compact { answer, .. } => answer.send(Err(error)),
            Self::Change(change) => change.fail(error),
            Self::Attach(attach) => attach.deliver.send(Err(error)),
            Self::AttachReading(attach) => attach.deliver.send(Err(error)),
            Self::Detach { answer: Some(answer), .. } => answer.send(Err(error)),
            Self::Detach { answer: None, .. }
            | Self::Replace { .. }
            | Self::Adopt(_)
            | Self::Decided { .. }
            | Self::Shutdown => {}
        }
    }
}
