//! Starts on their way in: what must be known before the machine may see them.
//!
//! A start needs its model, its history, and a thread whose log can be written. Finding these takes time, in which the
//! thread goes on listening: an interrupt cancels the start, another start is refused.
//!
//! Neighbours: driver, error, prompt, replies, requests, sends, shared, subscriber, thread, turn.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use raddle_protocol::event::EventBody;
use raddle_protocol::methods::ServerNotification;
use raddle_protocol::server::ErrorNotification;
use raddle_protocol::thread::{CompactStatus, ThreadCompactResult};
use raddle_protocol::turn::StartStatus;
use raddle_protocol::{RpcError, ThreadId, TokenUsage, TurnId};
use raddle_store::StoredTurn;
use tokio::time::Sleep;

use super::context::context;
use super::replies::{Pending, StartAnswer};
use super::requests::Rewinding;
use super::{Driver, Loaded, TurnContext, load};
use crate::error::Error;
use crate::shared::Shared;
use crate::subscriber::{Answer, Subscriber};
use crate::thread::{Change, Start};
use crate::turn::{Command, Input, Purpose as TurnPurpose, RunSettings, SETTLE_MS, Said, StartTurn};

/// A request that waits for something to be found out.
pub(super) struct Admission {
    future: Pin<Box<dyn Future<Output = Result<Findings, Error>> + Send>>,
    purpose: Option<Purpose>,
}

/// What the findings are for.
pub(super) enum Purpose {
    Start {
        start: Box<Start>,
        subscriber: Option<Arc<dyn Subscriber>>,
        answer: StartAnswer,
    },
    /// The oldest input of the queue, whichever it is by then.
    Queued,
    Compact {
        instructions: Option<String>,
        answer: Answer<ThreadCompactResult>,
    },
    Rewind {
        turn_id: TurnId,
        answer: Answer<TokenUsage>,
    },
    Archive {
        answer: Answer<()>,
    },
    /// A change that needs the log to be read again first, and nothing else.
    Change(Change),
}

impl Purpose {
    fn fail(self, error: Error) {
        match self {
            Self::Start { answer, .. } => answer.fail(error),
            Self::Queued => {}
            Self::Compact { answer, .. } => answer.send(Err(error)),
            Self::Rewind { answer, .. } => answer.send(Err(error)),
            Self::Archive { answer } => answer.send(Err(error)),
            Self::Change(change) => change.fail(error),
        }
    }

    fn needs_context(&self) -> bool {
        matches!(self, Self::Start { .. } | Self::Queued | Self::Compact { .. })
    }

    /// What an interrupt does to it: a start that was not accepted is cancelled, a change is none of its business.
    fn interrupt(self, thread_id: &ThreadId) -> Option<Self> {
        match self {
            Self::Start { answer, .. } => answer.tell(thread_id, StartStatus::Cancelled, None),
            Self::Queued => {}
            Self::Compact { answer, .. } => {
                answer.send(Ok(ThreadCompactResult { status: CompactStatus::Cancelled, turn_id: None }));
            }
            other => return Some(other),
        }
        None
    }
}

/// What was found out.
struct Findings {
    reloaded: Option<Loaded>,
    context: Option<TurnContext>,
    /// The turn that ran when the thread broke down, as the log has it now.
    broken_turn: Option<StoredTurn>,
    /// The turn that the branch is to be rewound to.
    turn: Option<StoredTurn>,
}

/// An admission that is done.
pub(super) struct Admitted {
    findings: Result<Findings, Error>,
    purpose: Option<Purpose>,
}

/// What came right after an interrupt and waits for the old turn to end.
pub(super) struct Waiting {
    purpose: Purpose,
    limit: Pin<Box<Sleep>>,
}

impl Waiting {
    pub(super) fn fail(self, error: Error) {
        self.purpose.fail(error);
    }
}

/// Waits for the admission; for ever when there is none.
pub(super) async fn done(admission: &mut Option<Admission>) -> Admitted {
    match admission {
        Some(pending) => {
            let findings = (&mut pending.future).await;
            let purpose = pending.purpose.take();
            *admission = None;
            Admitted { findings, purpose }
        }
        None => std::future::pending().await,
    }
}

/// Waits until something has waited too long; for ever when nothing waits.
pub(super) async fn too_long(waiting: &mut Option<Waiting>) {
    match waiting {
        Some(waiting) => (&mut waiting.limit).await,
        None => std::future::pending().await,
    }
}

impl Driver {
    /// Takes in what needs the thread to be idle: a start, a compaction, a rewind, the archive.
    pub(super) fn start_turn(&mut self, purpose: Purpose) {
        if self.admission.is_some() || self.waiting.is_some() {
            return purpose.fail(Error::Starting(self.id.clone()));
        }
        if self.is_ending() {
            let limit = Box::pin(tokio::time::sleep(Duration::from_millis(SETTLE_MS)));
            self.waiting = Some(Waiting { purpose, limit });
            return;
        }
        if let Some(running) = self.machine.running_turn() {
            return purpose.fail(crate::turn::Refusal::TurnInProgress(running.clone()).into());
        }
        self.admit(purpose);
    }

    /// Whether the running turn is on its way out: being stopped, or ended with something of it not yet committed. The
    /// branch's head is known only once all of it is.
    fn is_ending(&self) -> bool {
        self.machine.is_settling() || (!self.machine.is_running() && !self.pipeline.is_empty())
    }

    /// Takes in what waited for the old turn to end, once it has ended.
    pub(super) fn admit_waiting(&mut self) {
        if self.waiting.is_none() || self.is_ending() || self.machine.is_running() {
            return;
        }
        if let Some(Waiting { purpose, .. }) = self.waiting.take() {
            self.start_turn(purpose);
        }
    }

    /// Takes in the oldest input of the queue, once nothing else is going on.
    pub(super) fn admit_queued(&mut self) {
        let may_start = self.is_at_rest()
            && self.waiting.is_none()
            && self.queue_held_until.is_none()
            && !self.broken
            && !self.stopping;
        if may_start && self.machine.next_queued().is_some() {
            self.admit(Purpose::Queued);
        }
    }

    pub(super) fn waited_too_long(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            let error = match &self.running {
                Some(running) => Error::StillSettling(running.turn.summary.id.clone()),
                None => Error::Starting(self.id.clone()),
            };
            waiting.fail(error);
        }
    }

    /// A change of a thread whose log must be loaded again first.
    pub(super) fn admit_change(&mut self, change: Change) {
        if self.admission.is_some() {
            return change.fail(Error::Starting(self.id.clone()));
        }
        self.admit(Purpose::Change(change));
    }

    fn admit(&mut self, purpose: Purpose) {
        let shared = self.shared.clone();
        let id = self.id.clone();
        let reload = self.broken;
        let needs_context = purpose.needs_context();
        let rewind_to = match &purpose {
            Purpose::Rewind { turn_id, .. } => Some(turn_id.clone()),
            _ => None,
        };
        let broken_turn = self.broken_turn.as_ref().map(|turn| turn.summary.id.clone());
        let model = self.newest_settings().model;
        // What a reload finds may be more than what was kept.
        let kept = if reload { None } else { self.context.take_if(|_| needs_context) };
        // A commit that was reported as failed may be on the disk all the same, so a reload always looks.
        let has_history = reload || self.head.is_some();
        let future = Box::pin(async move {
            let reloaded = if reload { Some(load(&shared, &id).await?) } else { None };
            let broken_turn = match broken_turn {
                Some(turn_id) => shared.store.turn(&id, &turn_id).await?,
                None => None,
            };
            let model = reloaded.as_ref().map_or(model, |loaded: &Loaded| loaded.settings.model.clone());
            let context = match needs_context {
                true => Some(context(&shared, &id, model, kept, has_history).await?),
                false => None,
            };
            let turn = match rewind_to {
                Some(turn_id) => Some(turn_to_rewind_to(&shared, &id, &turn_id).await?),
                None => None,
            };
            Ok(Findings { reloaded, context, broken_turn, turn })
        });
        self.admission = Some(Admission { future, purpose: Some(purpose) });
    }

    pub(super) fn admitted(&mut self, admitted: Admitted) {
        let Some(purpose) = admitted.purpose else { return };
        let findings = match admitted.findings {
            Ok(findings) => findings,
            Err(error) => return self.not_admitted(purpose, error),
        };
        match findings.reloaded {
            Some(loaded) => self.mend(loaded, findings.broken_turn),
            // The log broke while the request was on its way in: once more, with a load.
            None if self.broken => return self.admit(purpose),
            None => {}
        }
        match (purpose, findings.context, findings.turn) {
            (Purpose::Start { start, subscriber, answer }, Some(context), _) => {
                // A reload may have brought to light that this send was done before.
                let answer = match answer {
                    StartAnswer::Send(send) => match self.sends.known(&send) {
                        Some(sent) => {
                            self.context = Some(context);
                            return send.tell_again(&self.id, sent);
                        }
                        None => StartAnswer::Send(send),
                    },
                    other => other,
                };
                if let Some(subscriber) = subscriber {
                    self.subscribe_initiator(subscriber);
                }
                let token = self.wait_for(Pending::Start(answer));
                let Start { said, request_id } = *start;
                let purpose = TurnPurpose::Answer(said);
                self.begin_turn(context, Some(token), purpose, request_id, None);
            }
            (Purpose::Queued, Some(context), _) => self.begin_queued(context),
            (Purpose::Compact { instructions, answer }, Some(context), _) => {
                self.begin_compaction(context, instructions, answer);
            }
            (Purpose::Rewind { answer, .. }, _, Some(turn)) => self.rewind_to(&turn, answer),
            (Purpose::Archive { answer }, _, _) => self.archive(answer),
            (Purpose::Change(change), _, _) => self.change(change),
            // Findings are of the kind that their purpose needs.
            (purpose, _, _) => purpose.fail(Error::Abandoned),
        }
    }

    fn not_admitted(&mut self, purpose: Purpose, error: Error) {
        match (purpose, self.machine.next_queued()) {
            (Purpose::Queued, Some(queued)) => {
                let queue_id = queued.id.clone();
                let error = RpcError::from(error);
                tracing::warn!(thread = %self.id, queued = %queue_id, "a queued input could not start: {error}");
                self.step(Input::DropQueued { queue_id: queue_id.clone() });
                // Behind the change of the queue, so that who hears of it finds the queue without it.
                let dropped = ServerNotification::Error(ErrorNotification {
                    thread_id: Some(self.id.clone()),
                    code: error.code,
                    message: format!("a queued input was dropped: {}", error.message),
                    data: Some(serde_json::json!({ "queueId": queue_id })),
                });
                self.pipeline.extend([Command::Notify(dropped)]);
            }
            (purpose, _) => purpose.fail(error),
        }
    }

    fn begin_queued(&mut self, context: TurnContext) {
        let Some(queued) = self.machine.next_queued().cloned() else {
            // Taken back meanwhile.
            self.context = Some(context);
            return;
        };
        let said = Said {
            input: queued.input,
            client_message_id: queued.client_message_id,
            idempotency_key: queued.idempotency_key,
        };
        let purpose = TurnPurpose::Answer(said);
        self.begin_turn(context, None, purpose, queued.request_id, Some(queued.id));
    }

    fn begin_compaction(
        &mut self,
        context: TurnContext,
        instructions: Option<String>,
        answer: Answer<ThreadCompactResult>,
    ) {
        if !context.has_news() {
            self.context = Some(context);
            let status = CompactStatus::NothingToCompact;
            return answer.send(Ok(ThreadCompactResult { status, turn_id: None }));
        }
        let token = self.wait_for(Pending::Compact(answer));
        self.begin_turn(context, Some(token), TurnPurpose::Compact, None, None);
        self.instructions = instructions;
    }

    fn begin_turn(
        &mut self,
        context: TurnContext,
        token: Option<crate::turn::Token>,
        purpose: TurnPurpose,
        request_id: Option<String>,
        queue_id: Option<String>,
    ) {
        let info = &context.model.info;
        let newest = self.newest_settings();
        self.instructions = newest.instructions;
        let settings = RunSettings {
            model: context.model.name(),
            context_window: info.context_window,
            cost: info.cost,
            approval_mode: newest.approval_mode,
            tools: self.tools.table(),
        };
        let used_call_ids = context.used_call_ids.clone();
        self.context = Some(context);
        self.step(Input::Start(Box::new(StartTurn {
            token,
            turn_id: TurnId::generate(),
            parent: self.head.clone(),
            depth: self.depth.saturating_add(1),
            purpose,
            request_id,
            queue_id,
            used_call_ids,
            settings,
        })));
    }

    fn rewind_to(&mut self, turn: &StoredTurn, answer: Answer<TokenUsage>) {
        if self.head.as_ref() == Some(&turn.id) {
            return answer.send(Ok(self.machine.usage()));
        }
        let usage = turn.events.iter().rev().find_map(|recorded| match &recorded.event.body {
            EventBody::TurnCompleted(ended) => Some(ended.thread_usage),
            _ => None,
        });
        let usage = usage.unwrap_or_default();
        self.rewind(Rewinding { turn_id: turn.id.clone(), depth: turn.depth, usage }, answer);
    }

    /// An interrupt cancels a start that has not been accepted yet.
    pub(super) fn interrupt_admission(&mut self) {
        if let Some(Waiting { purpose, limit }) = self.waiting.take() {
            self.waiting = purpose.interrupt(&self.id).map(|purpose| Waiting { purpose, limit });
        }
        if let Some(Admission { future, purpose: Some(purpose) }) = self.admission.take() {
            let kept = purpose.interrupt(&self.id);
            self.admission = kept.map(|purpose| Admission { future, purpose: Some(purpose) });
        }
    }

    /// The engine stops: what has not been accepted is refused.
    pub(super) fn refuse_admission(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            waiting.fail(Error::ShuttingDown);
        }
        if let Some(Admission { purpose: Some(purpose), .. }) = self.admission.take() {
            purpose.fail(Error::ShuttingDown);
        }
    }
}

async fn turn_to_rewind_to(shared: &Shared, id: &ThreadId, turn_id: &TurnId) -> Result<StoredTurn, Error> {
    let turn = shared.store.turn(id, turn_id).await?;
    turn.ok_or_else(|| Error::unknown_turn(turn_id))
}
