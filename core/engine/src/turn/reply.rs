//! A reply in the making: the model's stream, its failures and its end.
//!
//! Neighbours: command, input, machine, state.

use raddle_models::{FinishReason, ModelEvent};
use raddle_protocol::event::{Delta, EventBody, LoggedItem, TurnRetrying};
use raddle_protocol::limits::{TURN_ERROR_CHARS_MAX, cut_chars};
use raddle_protocol::{ItemKind, ItemStatus, TokenCounts, TurnError, TurnErrorKind, TurnStatus};

use super::ITEM_TEXT_BYTES_MAX;
use super::command::Command;
use super::input::ModelFailure;
use super::machine::Machine;
use super::state::{Out, Replying, Run, Stage, closed};

/// Which kind of text an item holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Voice {
    Answer,
    Reasoning,
}

impl Machine {
    /// Asks the model for the next reply.
    pub(super) fn ask_model(&mut self, out: &mut Out<'_>) {
        if let Some(run) = &mut self.run {
            run.reply += 1;
        }
        self.call_model(out, 1);
    }

    /// Asks the model again after a failure.
    pub(super) fn retry(&mut self, out: &mut Out<'_>) {
        if let Some(Run { stage: Stage::BackingOff { attempt, .. }, .. }) = &self.run {
            let attempt = *attempt;
            self.call_model(out, attempt);
        }
    }

    fn call_model(&mut self, out: &mut Out<'_>, attempt: u32) {
        self.calls += 1;
        let call = self.calls;
        let Some(run) = &mut self.run else { return };
        // A turn that compacts has one item, and what the model says goes into it.
        let open = run.compaction.clone();
        run.stage = Stage::Replying(Box::new(Replying {
            call,
            attempt,
            open,
            begun: Vec::new(),
            calls: Vec::new(),
            counts: TokenCounts::default(),
        }));
        out.push(Command::CallModel { call, attempt });
    }

    pub(super) fn model_event(&mut self, out: &mut Out<'_>, call: u64, event: ModelEvent) {
        let Some(run) = &mut self.run else { return };
        if !matches!(&run.stage, Stage::Replying(replying) if replying.call == call) {
            return;
        }
        match event {
            ModelEvent::Text(text) => self.text(out, Voice::Answer, text),
            ModelEvent::Reasoning(text) => self.text(out, Voice::Reasoning, text),
            ModelEvent::ReasoningSignature(_) | ModelEvent::ToolCall(_) if run.compaction.is_some() => {}
            ModelEvent::ReasoningSignature(signature) => run.sign(out, signature),
            ModelEvent::ToolCall(tool_call) => {
                if let Stage::Replying(replying) = &mut run.stage {
                    replying.calls.push(tool_call);
                }
            }
            ModelEvent::Usage(counts) => {
                if let Stage::Replying(replying) = &mut run.stage {
                    replying.counts = counts;
                }
            }
            ModelEvent::Finish(reason) => self.finish_reply(out, reason),
            _ => {}
        }
    }

    fn text(&mut self, out: &mut Out<'_>, voice: Voice, text: String) {
        let Some(run) = &mut self.run else { return };
        if text.is_empty() {
            return;
        }
        if run.speak(out, voice, text) > ITEM_TEXT_BYTES_MAX {
            let error = TurnError {
                message: format!("the model wrote more than {ITEM_TEXT_BYTES_MAX} bytes in one piece"),
                kind: TurnErrorKind::Provider,
            };
            out.push(Command::DropModel);
            self.fail(out, error);
        }
    }

    fn finish_reply(&mut self, out: &mut Out<'_>, reason: FinishReason) {
        let Some(run) = &mut self.run else { return };
        let Stage::Replying(replying) = std::mem::replace(&mut run.stage, Stage::Calling(Default::default()))
        else {
            return;
        };
        if run.compaction.is_some() {
            return self.finish_summary(out, replying.open, replying.counts);
        }
        if let Some(open) = replying.open {
            run.append(out, closed(open, ItemStatus::Completed, out.at));
        }
        self.count(out, replying.counts);
        let Some(run) = &self.run else { return };
        if matches!(reason, FinishReason::ContentFilter) {
            let message = "the provider's content filter stopped the reply".to_owned();
            return self.end(
                out,
                TurnStatus::Failed,
                Some(TurnError { message, kind: TurnErrorKind::Provider }),
            );
        }
        if !replying.calls.is_empty() {
            self.take_calls(out, replying.calls);
        } else if run.steers.is_empty() {
            self.end(out, TurnStatus::Completed, None);
        } else {
            self.go_on(out);
        }
    }

    /// Ends a turn that sums up: with a summary, from which the next turn goes on, or as failed, which changes nothing.
    fn finish_summary(&mut self, out: &mut Out<'_>, open: Option<LoggedItem>, counts: TokenCounts) {
        self.count(out, counts);
        let (Some(open), Some(run)) = (open, &self.run) else { return };
        let is_blank =
            matches!(&open.item.kind, ItemKind::Compaction { text } if text.as_str().trim().is_empty());
        if is_blank {
            run.append(out, closed(open, ItemStatus::Failed, out.at));
            let message = "the model wrote no summary; the conversation stays as it is".to_owned();
            let error = TurnError { message, kind: TurnErrorKind::Provider };
            return self.end(out, TurnStatus::Failed, Some(error));
        }
        run.append(out, closed(open, ItemStatus::Completed, out.at));
        // How much of the window the summary takes, the next reply will tell.
        self.usage.context_tokens = None;
        self.end(out, TurnStatus::Completed, None);
    }

    /// Adds what a provider counted to the totals of the turn and of the branch.
    fn count(&mut self, out: &mut Out<'_>, counts: TokenCounts) {
        let Some(run) = &mut self.run else { return };
        let cost = run.settings.cost.map_or(0.0, |price| price_of(counts, &price));
        run.usage.add_reply(counts, cost, run.settings.context_window);
        self.usage.add_reply(counts, cost, run.settings.context_window);
        run.append(out, EventBody::TokenUsageUpdated(self.usage));
    }

    pub(super) fn model_failed(
        &mut self,
        out: &mut Out<'_>,
        call: u64,
        failure: ModelFailure,
        jitter_permille: u32,
    ) {
        let Some(run) = &mut self.run else { return };
        let Stage::Replying(replying) = &mut run.stage else { return };
        if replying.call != call {
            return;
        }
        out.push(Command::DropModel);
        // What a provider counted is paid for, whether or not its reply stays.
        let counts = std::mem::take(&mut replying.counts);
        if counts != TokenCounts::default() {
            self.count(out, counts);
        }
        let Some(run) = &mut self.run else { return };
        let Stage::Replying(replying) = &mut run.stage else { return };
        let error = TurnError {
            message: cut_chars(&failure.error.message, TURN_ERROR_CHARS_MAX).to_owned(),
            kind: failure.error.kind,
        };
        let next = replying.attempt + 1;
        let delay_ms = self.policy.delay(replying.attempt, failure.retry_after_ms, jitter_permille);
        let (Some(delay_ms), true) = (delay_ms, failure.retryable && next <= self.policy.attempts_max) else {
            return self.fail(out, error);
        };
        // Only the last attempt stays: what this one said is withdrawn.
        for item_id in std::mem::take(&mut replying.begun) {
            run.next_index = run.next_index.saturating_sub(1);
            run.append(out, EventBody::ItemRemoved(item_id));
        }
        self.timers += 1;
        let timer = self.timers;
        run.stage = Stage::BackingOff { timer, attempt: next };
        let max_attempts = self.policy.attempts_max;
        run.append(
            out,
            EventBody::TurnRetrying(TurnRetrying { attempt: next, max_attempts, delay_ms, error }),
        );
        out.push(Command::SetTimer { timer, delay_ms });
    }

    /// Ends the turn as failed; what the model said stays, marked as cut short.
    fn fail(&mut self, out: &mut Out<'_>, error: TurnError) {
        let Some(run) = &mut self.run else { return };
        if let Stage::Replying(replying) = &mut run.stage
            && let Some(open) = replying.open.take()
        {
            run.append(out, closed(open, ItemStatus::Failed, out.at));
        }
        self.end(out, TurnStatus::Failed, Some(error));
    }
}

impl Run {
    /// Adds text to the open item of this voice, beginning one where there is none. Returns its length in bytes.
    fn speak(&mut self, out: &mut Out<'_>, voice: Voice, text: String) -> usize {
        if self.compaction.is_some() {
            return self.sum_up(voice, &text);
        }
        self.open(out, voice);
        let Stage::Replying(replying) = &mut self.stage else { return 0 };
        let Some(open) = &mut replying.open else { return 0 };
        let item_id = open.item.id.clone();
        let length = match &mut open.item.kind {
            ItemKind::AgentMessage { text: whole } | ItemKind::Reasoning { text: whole } => {
                whole.push_str(&text);
                whole.len()
            }
            _ => 0,
        };
        let delta = Delta { item_id, delta: text };
        let body = match voice {
            Voice::Answer => EventBody::AgentMessageDelta(delta),
            Voice::Reasoning => EventBody::ReasoningDelta(delta),
        };
        self.append(out, body);
        length
    }

    /// Adds text to the summary; it is shown when it is complete, since half of one means nothing.
    fn sum_up(&mut self, voice: Voice, more: &str) -> usize {
        let Stage::Replying(replying) = &mut self.stage else { return 0 };
        match replying.open.as_mut().map(|open| &mut open.item.kind) {
            Some(ItemKind::Compaction { text }) if voice == Voice::Answer => {
                text.push_str(more);
                text.len()
            }
            _ => 0,
        }
    }

    /// Makes sure that the open item is one of this voice.
    fn open(&mut self, out: &mut Out<'_>, voice: Voice) {
        let Stage::Replying(replying) = &mut self.stage else { return };
        let fits = replying.open.as_ref().is_some_and(|open| match open.item.kind {
            ItemKind::AgentMessage { .. } => voice == Voice::Answer,
            _ => voice == Voice::Reasoning,
        });
        if fits {
            return;
        }
        if let Some(other) = replying.open.take() {
            self.append(out, closed(other, ItemStatus::Completed, out.at));
        }
        let id = self.fresh_id();
        let kind = match voice {
            Voice::Answer => ItemKind::AgentMessage { text: "".into() },
            Voice::Reasoning => ItemKind::Reasoning { text: "".into() },
        };
        let begun = self.begin(out.at, id, kind);
        self.append(out, EventBody::ItemStarted(begun.clone()));
        if let Stage::Replying(replying) = &mut self.stage {
            replying.begun.push(begun.item.id.clone());
            replying.open = Some(begun);
        }
    }

    /// A signature closes the reasoning that it signs; without any, it stands for reasoning that is hidden.
    fn sign(&mut self, out: &mut Out<'_>, signature: String) {
        self.open(out, Voice::Reasoning);
        let Stage::Replying(replying) = &mut self.stage else { return };
        if let Some(mut open) = replying.open.take() {
            if let Some(origin) = &mut open.origin {
                origin.signature = Some(signature);
            }
            self.append(out, closed(open, ItemStatus::Completed, out.at));
        }
    }
}

fn price_of(counts: TokenCounts, price: &raddle_protocol::ModelCost) -> f64 {
    const TOKENS_PER_PRICE: f64 = 1_000_000.0;
    let sum = counts.input as f64 * price.input
        + counts.output as f64 * price.output
        + counts.cache_read as f64 * price.cache_read
        + counts.cache_write as f64 * price.cache_write;
    sum / TOKENS_PER_PRICE
}

impl super::RetryPolicy {
    /// The pause after a failed attempt: doubled each time, a quarter of it by chance, never shorter than what the
    /// provider asks for. `None` when the provider asks for more than we are ready to wait.
    fn delay(&self, attempt: u32, wanted_ms: Option<u64>, jitter_permille: u32) -> Option<u64> {
        if let Some(wanted) = wanted_ms {
            return (wanted <= self.delay_max_ms).then_some(wanted);
        }
        let doubled = self.delay_first_ms.saturating_mul(1 << (attempt - 1).min(16));
        let full = doubled.min(self.delay_max_ms);
        Some(full - full / 4 * u64::from(jitter_permille.min(1_000)) / 1_000)
    }
}
