//! The model's stream: asked, listened to, given up.
//!
//! Neighbours: clock, driver, prompt, turn.

use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use raddle_models::{ModelError, ModelEvent, ModelRequest, ModelStream};
use raddle_protocol::{TurnError, TurnErrorKind};
use tokio::time::Instant;

use super::{Driver, MODEL_EVENTS_AT_ONCE};
use crate::clock;
use crate::prompt;
use crate::shared::ModelLimits;
use crate::turn::{Input, ModelFailure};

/// A model that is being listened to.
pub(super) struct ModelCall {
    number: u64,
    stream: ModelStream,
    limits: ModelLimits,
    /// When it last said anything, a sign of life without content included.
    heard_at: Instant,
    spoke: bool,
    /// Goes off at the earliest time at which it may have been silent for too long; set anew only then, so that a
    /// delta costs no timer.
    alarm: std::pin::Pin<Box<tokio::time::Sleep>>,
}

/// What came of listening.
pub(super) enum ModelWake {
    Said(Result<ModelEvent, ModelError>),
    Ended,
    Silent(Duration),
}

impl ModelCall {
    fn new(number: u64, stream: ModelStream, limits: ModelLimits) -> Self {
        let alarm = Box::pin(tokio::time::sleep(limits.first_event));
        Self { number, stream, limits, heard_at: Instant::now(), spoke: false, alarm }
    }

    fn limit(&self) -> Duration {
        if self.spoke { self.limits.idle } else { self.limits.first_event }
    }

    async fn next(&mut self) -> ModelWake {
        loop {
            tokio::select! {
                biased;
                said = self.stream.next() => {
                    self.heard_at = Instant::now();
                    self.spoke = true;
                    return said.map_or(ModelWake::Ended, ModelWake::Said);
                }
                () = &mut self.alarm => {
                    let limit = self.limit();
                    let deadline = self.heard_at + limit;
                    if deadline <= Instant::now() {
                        return ModelWake::Silent(limit);
                    }
                    self.alarm.as_mut().reset(deadline);
                }
            }
        }
    }
}

/// Waits for the model; for ever when none is listened to.
pub(super) async fn next(model: &mut Option<ModelCall>) -> ModelWake {
    match model {
        Some(call) => call.next().await,
        None => std::future::pending().await,
    }
}

impl Driver {
    pub(super) fn call_model(&mut self, call: u64, attempt: u32) {
        let Some(context) = &self.context else { return };
        let info = &context.model.info;
        let mut messages = context.history.clone();
        if let Some(running) = &self.running {
            messages.extend(prompt::messages(&running.items, &context.model.name()));
        }
        let compacting = self.machine.is_compacting();
        if compacting {
            messages.push(prompt::summary_request(self.instructions.as_deref()));
        }
        // What a summary is to keep was said in its request.
        let instructions = self.instructions.as_deref().filter(|_| !compacting);
        let request = ModelRequest {
            model: info.id.clone(),
            system: Some(prompt::system_prompt(&self.cwd, instructions)),
            messages,
            tools: if compacting { Vec::new() } else { self.tools.definitions() },
            max_output_tokens: (info.max_output_tokens > 0).then_some(info.max_output_tokens),
            thinking: None,
            attempt,
        };
        tracing::debug!(thread = %self.id, call, attempt, model = %info.id, "asking the model");
        let stream = context.model.stream(request);
        self.model = Some(ModelCall::new(call, stream, self.shared.options.model_limits));
    }

    pub(super) fn model_woke(&mut self, wake: ModelWake) {
        let Some(call) = self.model.as_ref().map(|model| model.number) else { return };
        self.model_said(call, wake);
        // One read of the socket often holds many events: take them all before anything is committed.
        for _ in 0..MODEL_EVENTS_AT_ONCE {
            if !self.pipeline.has_room() {
                break;
            }
            let ready = match &mut self.model {
                Some(model) if model.number == call => model.stream.next().now_or_never(),
                _ => None,
            };
            match ready {
                Some(said) => self.model_said(call, said.map_or(ModelWake::Ended, ModelWake::Said)),
                None => break,
            }
        }
    }

    fn model_said(&mut self, call: u64, wake: ModelWake) {
        match wake {
            ModelWake::Said(Ok(ModelEvent::Ping)) => {}
            ModelWake::Said(Ok(event)) => {
                if matches!(event, ModelEvent::Finish(_)) {
                    self.model = None;
                }
                self.step(Input::Model { call, event });
            }
            ModelWake::Said(Err(error)) => self.model_failed(call, failure(&error)),
            ModelWake::Ended => self.model_failed(call, cut_off()),
            ModelWake::Silent(limit) => self.model_failed(call, silent(limit)),
        }
    }

    pub(super) fn model_failed(&mut self, call: u64, failure: ModelFailure) {
        tracing::warn!(
            thread = %self.id, call, kind = ?failure.error.kind, retryable = failure.retryable,
            "the model failed: {}", failure.error.message
        );
        self.model = None;
        self.step(Input::ModelFailed { call, failure, jitter_permille: clock::jitter_permille() });
    }
}

fn failure(error: &ModelError) -> ModelFailure {
    ModelFailure {
        error: TurnError { message: error.to_string(), kind: error.kind() },
        retryable: error.retryable(),
        retry_after_ms: error.retry_after().map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
    }
}

/// A stream that ends without an end was cut, whatever adapter it came through.
fn cut_off() -> ModelFailure {
    let message = "the model's stream ended before its reply was finished".to_owned();
    ModelFailure {
        error: TurnError { message, kind: TurnErrorKind::Network },
        retryable: true,
        retry_after_ms: None,
    }
}

/// Not tried again: the user has waited long enough.
fn silent(limit: Duration) -> ModelFailure {
    let message = format!("the model said nothing for {} ms; the request was given up", limit.as_millis());
    ModelFailure {
        error: TurnError { message, kind: TurnErrorKind::Network },
        retryable: false,
        retry_after_ms: None,
    }
}
