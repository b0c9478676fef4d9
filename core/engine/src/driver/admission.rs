//! Starts on their way in: what must be known before the machine may see them.
//!
//! A start needs its model, its history, and a thread whose log can be written. Finding these takes time, in which the
//! thread goes on listening: an interrupt cancels the start, another start is refused.
//!
//! Neighbours: driver, error, prompt, subscriber, thread, turn.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use raddle_protocol::thread::{ThreadSettings, ThreadSettingsUpdateParams, ThreadStatus};
use raddle_protocol::turn::{StartStatus, TurnStartParams, TurnStartResult};
use raddle_protocol::{ModelRef, ThreadId, TurnId};
use tokio::time::Sleep;

use super::requests::{Pending, check_input};
use super::{Driver, Loaded, TurnContext, load};
use crate::error::Error;
use crate::prompt;
use crate::shared::Shared;
use crate::subscriber::{Answer, Subscriber};
use crate::turn::{Input, Machine, RunSettings, SETTLE_MS, StartTurn};

/// A request that waits for something to be found out.
pub(super) struct Admission {
    future: Pin<Box<dyn Future<Output = Result<Findings, Error>> + Send>>,
    purpose: Option<Purpose>,
}

enum Purpose {
    Start {
        params: TurnStartParams,
        subscriber: Option<Arc<dyn Subscriber>>,
        answer: Answer<TurnStartResult>,
    },
    Settings {
        params: ThreadSettingsUpdateParams,
        answer: Answer<ThreadSettings>,
    },
}

/// What was found out.
struct Findings {
    reloaded: Option<Loaded>,
    context: Option<TurnContext>,
}

/// An admission that is done.
pub(super) struct Admitted {
    findings: Result<Findings, Error>,
    purpose: Option<Purpose>,
}

/// A start that came right after an interrupt and waits for the old turn to end.
pub(super) struct WaitingStart {
    params: TurnStartParams,
    subscriber: Option<Arc<dyn Subscriber>>,
    answer: Answer<TurnStartResult>,
    limit: Pin<Box<Sleep>>,
}

impl WaitingStart {
    pub(super) fn fail(self, error: Error) {
        self.answer.send(Err(error));
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

/// Waits until a start has waited too long; for ever when none waits.
pub(super) async fn too_long(waiting: &mut Option<WaitingStart>) {
    match waiting {
        Some(start) => (&mut start.limit).await,
        None => std::future::pending().await,
    }
}

impl Driver {
    pub(super) fn start_turn(
        &mut self,
        params: TurnStartParams,
        subscriber: Option<Arc<dyn Subscriber>>,
        answer: Answer<TurnStartResult>,
    ) {
        if let Err(error) = check_input(&params.text, params.client_message_id.as_deref()) {
            return answer.send(Err(error));
        }
        if self.admission.is_some() || self.waiting_start.is_some() {
            return answer.send(Err(Error::Starting(self.id.clone())));
        }
        if self.is_ending() {
            let limit = Box::pin(tokio::time::sleep(Duration::from_millis(SETTLE_MS)));
            self.waiting_start = Some(WaitingStart { params, subscriber, answer, limit });
            return;
        }
        if let Some(running) = self.machine.running_turn() {
            return answer.send(Err(crate::turn::Refusal::TurnInProgress(running.clone()).into()));
        }
        self.admit(Purpose::Start { params, subscriber, answer });
    }

    /// Whether the running turn is on its way out: being stopped, or ended with something of it not yet committed. The
    /// branch's head is known only once all of it is.
    fn is_ending(&self) -> bool {
        self.machine.is_settling() || (!self.machine.is_running() && !self.pipeline.is_empty())
    }

    /// Starts what waited for the old turn to end, once it has ended.
    pub(super) fn start_waiting(&mut self) {
        if self.waiting_start.is_none() || self.is_ending() || self.machine.is_running() {
            return;
        }
        if let Some(WaitingStart { params, subscriber, answer, .. }) = self.waiting_start.take() {
            self.start_turn(params, subscriber, answer);
        }
    }

    pub(super) fn start_waited_too_long(&mut self) {
        if let Some(waiting) = self.waiting_start.take() {
            let error = match &self.running {
                Some(running) => Error::StillSettling(running.turn.summary.id.clone()),
                None => Error::Starting(self.id.clone()),
            };
            waiting.fail(error);
        }
    }

    /// A settings change on a thread whose log must be loaded again first.
    pub(super) fn admit_settings(
        &mut self,
        params: ThreadSettingsUpdateParams,
        answer: Answer<ThreadSettings>,
    ) {
        if self.admission.is_some() {
            return answer.send(Err(Error::Starting(self.id.clone())));
        }
        self.admit(Purpose::Settings { params, answer });
    }

    fn admit(&mut self, purpose: Purpose) {
        let shared = self.shared.clone();
        let id = self.id.clone();
        let reload = self.broken;
        let start = matches!(purpose, Purpose::Start { .. });
        let model = self.newest_settings().model;
        // What a reload finds may be more than what was kept.
        let kept = if reload { None } else { self.context.take() };
        // A commit that was reported as failed may be on the disk all the same, so a reload always looks.
        let has_history = reload || self.head.is_some();
        let future = Box::pin(async move {
            let reloaded = if reload { Some(load(&shared, &id).await?) } else { None };
            let context =
                if start { Some(context(&shared, &id, model, kept, has_history).await?) } else { None };
            Ok(Findings { reloaded, context })
        });
        self.admission = Some(Admission { future, purpose: Some(purpose) });
    }

    pub(super) fn admitted(&mut self, admitted: Admitted) {
        let findings = match admitted.findings {
            Ok(findings) => findings,
            Err(error) => return admitted.purpose.map_or((), |purpose| purpose.fail(error)),
        };
        match findings.reloaded {
            Some(loaded) => self.mend(loaded),
            // The log broke while the request was on its way in: once more, with a load.
            None if self.broken => return admitted.purpose.map_or((), |purpose| self.admit(purpose)),
            None => {}
        }
        match (admitted.purpose, findings.context) {
            (Some(Purpose::Start { params, subscriber, answer }), Some(context)) => {
                self.begin_turn(params, subscriber, answer, context);
            }
            (Some(Purpose::Settings { params, answer }), _) => self.update_settings(params, answer),
            _ => {}
        }
    }

    /// The thread's log can be written again.
    fn mend(&mut self, loaded: Loaded) {
        self.machine = Machine::new(self.id.clone(), self.shared.options.retry, loaded.usage);
        self.lease = loaded.lease;
        self.settings = loaded.settings;
        self.head = loaded.head;
        self.ended_head = self.head.clone();
        self.depth = loaded.depth;
        self.broken = false;
        self.set_status(ThreadStatus::Idle);
    }

    fn begin_turn(
        &mut self,
        params: TurnStartParams,
        subscriber: Option<Arc<dyn Subscriber>>,
        answer: Answer<TurnStartResult>,
        context: TurnContext,
    ) {
        if let Some(subscriber) = subscriber {
            self.subscribe_initiator(subscriber);
        }
        let info = &context.model.info;
        let settings = RunSettings {
            model: context.model.name(),
            context_window: info.context_window,
            cost: info.cost,
            approval_mode: self.newest_settings().approval_mode,
            tools: self.tools.table(),
        };
        let used_call_ids = context.used_call_ids.clone();
        self.context = Some(context);
        let token = self.wait_for(Pending::Start { answer, request_id: params.request_id.clone() });
        self.step(Input::Start(Box::new(StartTurn {
            token,
            turn_id: TurnId::generate(),
            parent: self.head.clone(),
            depth: self.depth.saturating_add(1),
            text: params.text,
            client_message_id: params.client_message_id,
            request_id: params.request_id,
            used_call_ids,
            settings,
        })));
    }

    /// An interrupt cancels a start that has not been accepted yet.
    pub(super) fn interrupt_admission(&mut self) {
        let waiting = self.waiting_start.take().map(|start| (start.params, start.answer));
        let admitting = match self.admission.take() {
            Some(Admission { purpose: Some(Purpose::Start { params, answer, .. }), .. }) => {
                Some((params, answer))
            }
            other => {
                self.admission = other;
                None
            }
        };
        for (params, answer) in waiting.into_iter().chain(admitting) {
            answer.send(Ok(self.start_result(StartStatus::Cancelled, None, params.request_id)));
        }
    }

    /// The engine stops: what has not been accepted is refused.
    pub(super) fn refuse_admission(&mut self) {
        if let Some(waiting) = self.waiting_start.take() {
            waiting.fail(Error::ShuttingDown);
        }
        if let Some(Admission { purpose: Some(purpose), .. }) = self.admission.take() {
            purpose.fail(Error::ShuttingDown);
        }
    }
}

impl Purpose {
    fn fail(self, error: Error) {
        match self {
            Self::Start { answer, .. } => answer.send(Err(error)),
            Self::Settings { answer, .. } => answer.send(Err(error)),
        }
    }
}

/// The model of the next turn, and what was said before it: what was kept, if it was kept for this model.
async fn context(
    shared: &Shared,
    id: &ThreadId,
    model: Option<ModelRef>,
    kept: Option<TurnContext>,
    has_history: bool,
) -> Result<TurnContext, Error> {
    let model = shared.resolve(model.as_ref()).await?;
    if let Some(kept) = kept.filter(|kept| kept.model.name() == model.name()) {
        return Ok(TurnContext { model, ..kept });
    }
    let mut context = TurnContext::new(model);
    if has_history {
        for turn in shared.store.branch(id).await? {
            context.add(&prompt::final_items(&turn.events));
        }
    }
    Ok(context)
}
