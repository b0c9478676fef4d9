//! Requests that wait for the machine, or for a commit, and how each is answered.
//!
//! Neighbours: driver, error, sends, subscriber, turn.

use raddle_protocol::thread::{CompactStatus, ThreadCompactResult, ThreadSettings};
use raddle_protocol::turn::{SendStatus, StartStatus, TurnSendResult, TurnStartResult, TurnSteerResult};
use raddle_protocol::{RpcError, ThreadId, TokenUsage, TurnId};

use super::Driver;
use super::sends::SendAnswer;
use crate::error::Error;
use crate::subscriber::Answer;
use crate::turn::{Outcome, Reply, Token};

/// A request whose answer the machine, or a commit, will give.
pub(super) enum Pending {
    Start(StartAnswer),
    /// A send that found a running turn.
    Send(SendAnswer),
    Steer(Answer<TurnSteerResult>),
    Queue(Answer<String>),
    Unqueue(Answer<bool>),
    Interrupt(Answer<()>),
    Compact(Answer<ThreadCompactResult>),
    Settings {
        answer: Answer<ThreadSettings>,
        settings: ThreadSettings,
    },
    /// Answered when the thread is unloaded: whoever has the answer may have the thread.
    Archive(Answer<()>),
    /// A change that is answered by its having happened.
    Change(Answer<()>),
    Rewind {
        answer: Answer<TokenUsage>,
        usage: TokenUsage,
    },
}

/// Who is told that a turn started.
pub(super) enum StartAnswer {
    Start { answer: Answer<TurnStartResult>, request_id: Option<String> },
    Send(SendAnswer),
}

impl StartAnswer {
    pub(super) fn fail(self, error: Error) {
        match self {
            Self::Start { answer, .. } => answer.send(Err(error)),
            Self::Send(send) => send.fail(error),
        }
    }

    /// Tells what became of the start.
    pub(super) fn tell(self, thread_id: &ThreadId, status: StartStatus, turn_id: Option<TurnId>) {
        let thread_id = thread_id.clone();
        match self {
            Self::Start { answer, request_id } => {
                answer.send(Ok(TurnStartResult { status, thread_id, turn_id, request_id }));
            }
            Self::Send(send) => {
                let status = match status {
                    StartStatus::Started => SendStatus::Started,
                    StartStatus::Handled => SendStatus::Handled,
                    StartStatus::Cancelled => SendStatus::Cancelled,
                };
                send.tell(TurnSendResult { status, thread_id, turn_id, queue_id: None, request_id: None });
            }
        }
    }
}

impl Pending {
    pub(super) fn fail(self, error: RpcError) {
        self.refuse(Error::Broken(error));
    }

    fn refuse(self, error: Error) {
        match self {
            Self::Start(answer) => answer.fail(error),
            Self::Send(send) => send.fail(error),
            Self::Steer(answer) => answer.send(Err(error)),
            Self::Queue(answer) => answer.send(Err(error)),
            Self::Unqueue(answer) => answer.send(Err(error)),
            Self::Interrupt(answer) | Self::Archive(answer) | Self::Change(answer) => answer.send(Err(error)),
            Self::Compact(answer) => answer.send(Err(error)),
            Self::Settings { answer, .. } => answer.send(Err(error)),
            Self::Rewind { answer, .. } => answer.send(Err(error)),
        }
    }
}

impl Driver {
    pub(super) fn wait_for(&mut self, pending: Pending) -> Token {
        self.last_token += 1;
        let token = Token(self.last_token);
        self.pending.insert(token, pending);
        token
    }

    pub(super) fn answer(&mut self, reply: Reply) {
        let Some(pending) = self.pending.remove(&reply.token) else { return };
        match (pending, reply.outcome) {
            (pending, Outcome::Refused(refusal)) => pending.refuse(refusal.into()),
            (Pending::Start(answer), Outcome::Started(turn_id)) => {
                if let StartAnswer::Send(send) = &answer {
                    self.sends.settle(send, SendStatus::Started, Some(turn_id.clone()), None);
                }
                answer.tell(&self.id, StartStatus::Started, Some(turn_id));
            }
            (Pending::Compact(answer), Outcome::Started(turn_id)) => {
                let turn_id = Some(turn_id);
                answer.send(Ok(ThreadCompactResult { status: CompactStatus::Started, turn_id }));
            }
            (Pending::Send(send), Outcome::Steered(turn_id)) => {
                self.settle_send(send, SendStatus::Steered, Some(turn_id), None);
            }
            (Pending::Send(send), Outcome::Queued(queue_id)) => {
                self.settle_send(send, SendStatus::Queued, None, Some(queue_id));
            }
            (Pending::Steer(answer), Outcome::Steered(turn_id)) => {
                answer.send(Ok(TurnSteerResult { turn_id }));
            }
            (Pending::Queue(answer), Outcome::Queued(queue_id)) => answer.send(Ok(queue_id)),
            (Pending::Unqueue(answer), Outcome::Unqueued(removed)) => answer.send(Ok(removed)),
            (Pending::Interrupt(answer), Outcome::Interrupted)
            | (Pending::Change(answer), Outcome::Recorded) => answer.send(Ok(())),
            (Pending::Archive(answer), Outcome::Recorded) => self.parting = Some(answer),
            (Pending::Settings { answer, settings }, Outcome::Recorded) => answer.send(Ok(settings)),
            (Pending::Rewind { answer, usage }, Outcome::Recorded) => answer.send(Ok(usage)),
            // The machine answers each request with an outcome of its kind.
            (pending, _) => pending.refuse(Error::Abandoned),
        }
    }

    fn settle_send(
        &mut self,
        send: SendAnswer,
        status: SendStatus,
        turn_id: Option<TurnId>,
        queue_id: Option<String>,
    ) {
        self.sends.settle(&send, status, turn_id.clone(), queue_id.clone());
        let thread_id = self.id.clone();
        send.tell(TurnSendResult { status, thread_id, turn_id, queue_id, request_id: None });
    }
}
