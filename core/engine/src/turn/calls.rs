//! The tool calls of a reply: what may run, what asks first, and what the model is told.
//!
//! Neighbours: command, input, machine, state.

use raddle_models::ToolCall;
use raddle_protocol::approval::Decision;
use raddle_protocol::event::{ApprovalDecided, Delta, EventBody};
use raddle_protocol::item::FileChange;
use raddle_protocol::limits::{DECLINE_MESSAGE_CHARS_MAX, cut_chars};
use raddle_protocol::thread::{ApprovalMode, ThreadStatus, WaitingOn};
use raddle_protocol::{ItemId, ItemKind, ItemStatus, TurnStatus};
use raddle_tools::Effect;
use serde_json::Value;

use super::command::Command;
use super::input::ToolOutcome;
use super::machine::{Machine, call_id};
use super::state::{Call, Calling, Out, Progress, Run, Stage, closed, parsed_arguments};
use super::{CALL_NAME_CHARS_MAX, CALLS_PER_REPLY_MAX, PARALLEL_TOOLS_MAX};

/// What the gate offers for a call; anything else counts as `decline`.
const OFFERED: [Decision; 3] = [Decision::Accept, Decision::Decline, Decision::Cancel];

const NOBODY_ANSWERED: &str = "not run: this call needs an approval, and nobody could give one";
const CANCELLED: &str = "not run: the user cancelled the call and stopped the turn";
const NOT_STARTED: &str = "not run: the turn was interrupted before this call began";
const GIVEN_UP: &str = "interrupted: the call did not stop in time and was abandoned";

impl Machine {
    /// Makes every call of a reply durable, then begins with them.
    pub(super) fn take_calls(&mut self, out: &mut Out<'_>, tool_calls: Vec<ToolCall>) {
        let Some(run) = &mut self.run else { return };
        let mut calling = Calling { parallel: true, ..Calling::default() };
        for (position, tool_call) in tool_calls.into_iter().enumerate() {
            let (logged, refusal) = run.admit(out, tool_call, position);
            let id = logged.item.id.clone();
            run.append(out, EventBody::ItemStarted(logged.clone()));
            let mut call = Call { logged, progress: Progress::Waiting };
            if let Some(refusal) = refusal {
                call.finish(run, out, ItemStatus::Failed, refusal, true);
            } else {
                calling.parallel &= run.effect(&call) == Some(Effect::ReadOnly);
            }
            calling.order.push(id.clone());
            calling.calls.insert(id, call);
        }
        run.stage = Stage::Calling(calling);
        self.advance(out);
    }

    /// Begins whatever may begin; asks the model again when every call has its result.
    fn advance(&mut self, out: &mut Out<'_>) {
        let Some(run) = &mut self.run else { return };
        let Stage::Calling(mut calling) =
            std::mem::replace(&mut run.stage, Stage::Calling(Calling::default()))
        else {
            return;
        };
        let places = if calling.parallel { PARALLEL_TOOLS_MAX } else { 1 };
        for id in &calling.order {
            let busy = calling.calls.values().filter(|call| call.is_busy()).count();
            if busy >= places {
                break;
            }
            if let Some(call) = calling.calls.get_mut(id)
                && call.progress == Progress::Waiting
            {
                call.begin(run, out);
            }
        }
        let all_done = calling.calls.values().all(|call| call.progress == Progress::Done);
        run.stage = Stage::Calling(calling);
        if all_done {
            self.go_on(out);
        }
    }

    pub(super) fn tool_output(&mut self, out: &mut Out<'_>, item_id: &ItemId, text: String) {
        let Some(run) = &mut self.run else { return };
        let Some(call) = run.stage.call(item_id) else { return };
        if call.progress != Progress::Running || text.is_empty() {
            return;
        }
        if let ItemKind::ToolCall { output, .. } = &mut call.logged.item.kind {
            output.get_or_insert_default().push_str(&text);
        }
        let delta = Delta { item_id: item_id.clone(), delta: text };
        run.append(out, EventBody::ToolOutputDelta(delta));
    }

    pub(super) fn tool_finished(&mut self, out: &mut Out<'_>, item_id: &ItemId, outcome: ToolOutcome) {
        let Some(run) = &mut self.run else { return };
        let mut stage = std::mem::replace(&mut run.stage, Stage::Calling(Calling::default()));
        if let Some(call) = stage.call(item_id)
            && call.progress == Progress::Running
        {
            let status = match (outcome.interrupted, outcome.is_error) {
                (true, _) => ItemStatus::Interrupted,
                (false, true) => ItemStatus::Failed,
                (false, false) => ItemStatus::Completed,
            };
            if status == ItemStatus::Completed {
                call.report(outcome.file_changes);
            }
            call.finish(run, out, status, outcome.text, outcome.is_error || outcome.interrupted);
        }
        run.stage = stage;
        match &run.stage {
            Stage::Settling { calls, .. } if !calls.calls.values().any(Call::is_busy) => {
                self.end(out, TurnStatus::Interrupted, None);
            }
            Stage::Settling { .. } => {}
            _ => self.advance(out),
        }
    }

    pub(super) fn decided(
        &mut self,
        out: &mut Out<'_>,
        item_id: &ItemId,
        decision: Option<Decision>,
        message: Option<String>,
    ) {
        let Some(run) = &mut self.run else { return };
        let mut stage = std::mem::replace(&mut run.stage, Stage::Calling(Calling::default()));
        let Some(call) = stage.call(item_id).filter(|call| call.progress == Progress::Asking) else {
            run.stage = stage;
            return;
        };
        // A word that was not offered never grants anything (P6).
        let decision = decision.map(|word| if OFFERED.contains(&word) { word } else { Decision::Decline });
        let message = message.map(|text| cut_chars(&text, DECLINE_MESSAGE_CHARS_MAX).to_owned());
        let decided = ApprovalDecided { item_id: item_id.clone(), decision, message: message.clone() };
        run.append(out, EventBody::ApprovalDecided(decided));
        out.push(Command::Status(ThreadStatus::Active { waiting_on: Vec::new() }));
        match decision {
            Some(Decision::Accept) => call.run(out),
            Some(Decision::Cancel) => call.finish(run, out, ItemStatus::Declined, CANCELLED.to_owned(), true),
            None => call.finish(run, out, ItemStatus::Declined, NOBODY_ANSWERED.to_owned(), true),
            Some(_) => {
                let text = match message.filter(|text| !text.trim().is_empty()) {
                    Some(said) => format!("not run: the user declined this call and said: {said}"),
                    None => "not run: the user declined this call".to_owned(),
                };
                call.finish(run, out, ItemStatus::Declined, text, true);
            }
        }
        run.stage = stage;
        if decision == Some(Decision::Cancel) { self.stop(out) } else { self.advance(out) }
    }
}

impl Stage {
    fn call(&mut self, item_id: &ItemId) -> Option<&mut Call> {
        match self {
            Self::Calling(calling) | Self::Settling { calls: calling, .. } => calling.calls.get_mut(item_id),
            _ => None,
        }
    }
}

impl Run {
    /// The item of a call, and why it cannot run if it cannot.
    fn admit(
        &mut self,
        out: &Out<'_>,
        tool_call: ToolCall,
        position: usize,
    ) -> (raddle_protocol::event::LoggedItem, Option<String>) {
        let id = call_id(self, tool_call.id);
        let (input, refusal) = match parsed_arguments(&tool_call.arguments) {
            Ok(input) => (input, None),
            Err(input) => {
                (input, Some("not run: the arguments are not a JSON object, or are nested too deeply; call again with a flat one".to_owned()))
            }
        };
        let refusal = if position >= CALLS_PER_REPLY_MAX {
            Some(format!(
                "not run: a reply may make at most {CALLS_PER_REPLY_MAX} calls; make this one again"
            ))
        } else if self.settings.tools.contains_key(&tool_call.name) {
            refusal
        } else {
            let names: Vec<&str> = self.settings.tools.keys().map(String::as_str).collect();
            Some(format!(
                "not run: there is no tool `{}`; the tools are: {}",
                tool_call.name,
                names.join(", ")
            ))
        };
        let kind = ItemKind::ToolCall {
            tool_name: cut_chars(&tool_call.name, CALL_NAME_CHARS_MAX).to_owned(),
            input,
            output: None,
            is_error: false,
            file_changes: Vec::new(),
        };
        let mut logged = self.begin(out.at, id, kind);
        if let Some(origin) = &mut logged.origin {
            origin.signature = tool_call.signature;
            origin.arguments = Some(tool_call.arguments);
        }
        (logged, refusal)
    }

    fn effect(&self, call: &Call) -> Option<Effect> {
        self.settings.tools.get(call.tool_name()).copied()
    }

    /// Whether a person must be asked. What is not known to be harmless asks (P6).
    fn asks(&self, call: &Call) -> bool {
        match self.settings.approval_mode {
            ApprovalMode::FullAccess => false,
            ApprovalMode::Ask | ApprovalMode::AutoEdit => self.effect(call) != Some(Effect::ReadOnly),
        }
    }
}

impl Call {
    fn is_busy(&self) -> bool {
        matches!(self.progress, Progress::Asking | Progress::Running)
    }

    fn tool_name(&self) -> &str {
        match &self.logged.item.kind {
            ItemKind::ToolCall { tool_name, .. } => tool_name,
            _ => "",
        }
    }

    fn input(&self) -> Value {
        match &self.logged.item.kind {
            ItemKind::ToolCall { input, .. } => input.clone(),
            _ => Value::Null,
        }
    }

    fn begin(&mut self, run: &Run, out: &mut Out<'_>) {
        if !run.asks(self) {
            return self.run(out);
        }
        self.progress = Progress::Asking;
        out.push(Command::Status(ThreadStatus::Active { waiting_on: vec![WaitingOn::Approval] }));
        out.push(Command::Ask {
            item_id: self.logged.item.id.clone(),
            tool_name: self.tool_name().to_owned(),
            input: self.input(),
            decisions: OFFERED.to_vec(),
        });
    }

    fn run(&mut self, out: &mut Out<'_>) {
        self.progress = Progress::Running;
        out.push(Command::RunTool {
            item_id: self.logged.item.id.clone(),
            tool_name: self.tool_name().to_owned(),
            input: self.input(),
        });
    }

    fn report(&mut self, changes: Vec<FileChange>) {
        if let ItemKind::ToolCall { file_changes, .. } = &mut self.logged.item.kind {
            *file_changes = changes;
        }
    }

    fn finish(&mut self, run: &Run, out: &mut Out<'_>, status: ItemStatus, text: String, failed: bool) {
        self.progress = Progress::Done;
        if let ItemKind::ToolCall { output, is_error, .. } = &mut self.logged.item.kind {
            *output = Some(text.into());
            *is_error = failed;
        }
        run.append(out, closed(self.logged.clone(), status, out.at));
    }
}

impl Calling {
    /// Ends every call that does not run and cancels those that do. Returns whether any still runs.
    pub(super) fn stop_all(&mut self, run: &Run, out: &mut Out<'_>) -> bool {
        let mut running = false;
        for id in &self.order {
            let Some(call) = self.calls.get_mut(id) else { continue };
            match call.progress {
                Progress::Waiting => {
                    call.finish(run, out, ItemStatus::Interrupted, NOT_STARTED.to_owned(), true);
                }
                Progress::Asking => {
                    out.push(Command::Withdraw(id.clone()));
                    call.finish(run, out, ItemStatus::Interrupted, NOT_STARTED.to_owned(), true);
                }
                Progress::Running => {
                    out.push(Command::CancelTool(id.clone()));
                    running = true;
                }
                Progress::Done => {}
            }
        }
        running
    }

    /// Ends every call that is still not gone.
    pub(super) fn give_up(&mut self, run: &Run, out: &mut Out<'_>) {
        for id in &self.order {
            let Some(call) = self.calls.get_mut(id) else { continue };
            if call.progress != Progress::Done {
                call.finish(run, out, ItemStatus::Interrupted, GIVEN_UP.to_owned(), true);
            }
        }
    }
}
