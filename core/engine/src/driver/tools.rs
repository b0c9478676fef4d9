//! Tools that run: one task each, owned and joined here.
//!
//! Neighbours: driver, turn.

use std::collections::HashMap;
use std::ffi::OsString;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use raddle_models::ToolDef;
use raddle_protocol::ItemId;
use raddle_tools::{OutputSink, ProcessRegistry, Tool, ToolContext, ToolError, Toolbox};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Driver;
use crate::turn::{Input, ToolOutcome, ToolTable};

/// Pieces of output that may wait between a tool and its thread; at more, the tool's output waits.
const OUTPUT_PIECES_MAX: usize = 64;

/// How long the end of a thread waits for tools that were told to stop.
const GONE_AFTER: Duration = Duration::from_secs(1);

/// Something that a running tool did.
pub(super) enum ToolEvent {
    Output { item_id: ItemId, text: String },
    Finished { item_id: ItemId, outcome: ToolOutcome },
}

/// The tools of one thread.
pub(super) struct ToolRunner {
    toolbox: Toolbox,
    table: Arc<ToolTable>,
    context: ToolContext,
    tasks: JoinSet<()>,
    cancels: HashMap<ItemId, CancellationToken>,
    events: mpsc::Receiver<ToolEvent>,
    sender: mpsc::Sender<ToolEvent>,
}

impl ToolRunner {
    pub(super) fn new(toolbox: Toolbox, cwd: PathBuf, hidden_env: Arc<[OsString]>) -> Self {
        let (sender, events) = mpsc::channel(OUTPUT_PIECES_MAX);
        let table = toolbox.specs().into_iter().map(|spec| (spec.name, spec.effect)).collect();
        Self {
            toolbox,
            table: Arc::new(table),
            context: ToolContext { hidden_env, ..ToolContext::new(cwd) },
            tasks: JoinSet::new(),
            cancels: HashMap::new(),
            events,
            sender,
        }
    }

    pub(super) fn table(&self) -> Arc<ToolTable> {
        self.table.clone()
    }

    pub(super) fn definitions(&self) -> Vec<ToolDef> {
        let definition = |spec: raddle_tools::ToolSpec| ToolDef {
            name: spec.name,
            description: spec.description,
            input_schema: spec.input_schema,
        };
        self.toolbox.specs().into_iter().map(definition).collect()
    }

    pub(super) fn run(&mut self, item_id: ItemId, tool_name: &str, input: Value) {
        let cancel = CancellationToken::new();
        self.cancels.insert(item_id.clone(), cancel.clone());
        let sender = self.sender.clone();
        let Some(tool) = self.toolbox.get(tool_name).cloned() else {
            // The machine admits known tools only; a tool that vanished since is an ordinary failure.
            let text = format!("not run: there is no tool `{tool_name}`");
            let outcome = ToolOutcome { text, is_error: true, interrupted: false, file_changes: Vec::new() };
            self.tasks.spawn(async move {
                let _ = sender.send(ToolEvent::Finished { item_id, outcome }).await;
            });
            return;
        };
        let context = ToolContext { cancel, ..self.context.clone() };
        self.tasks.spawn(run_one(tool, item_id, input, context, sender));
    }

    pub(super) fn cancel(&self, item_id: &ItemId) {
        if let Some(cancel) = self.cancels.get(item_id) {
            cancel.cancel();
        }
    }

    /// Waits for something to happen; for ever when no tool runs.
    pub(super) async fn next(&mut self) -> ToolEvent {
        loop {
            tokio::select! {
                biased;
                Some(event) = self.events.recv() => {
                    if let ToolEvent::Finished { item_id, .. } = &event {
                        self.cancels.remove(item_id);
                    }
                    return event;
                }
                Some(_) = self.tasks.join_next() => {}
                else => std::future::pending().await,
            }
        }
    }

    /// Stops everything and forgets it: nobody is left to be told.
    pub(super) fn abandon_all(&mut self) {
        for (_, cancel) in self.cancels.drain() {
            cancel.cancel();
        }
        let (sender, events) = mpsc::channel(OUTPUT_PIECES_MAX);
        (self.sender, self.events) = (sender, events);
    }

    /// Stops everything, waits a little for it to be gone, and ends the processes that calls left behind. Whatever
    /// runs by now was told to stop before; a tool that does not is dropped, so that it keeps neither the thread from
    /// unloading nor the process from closing (P9).
    pub(super) async fn join(&mut self) {
        self.abandon_all();
        let all_gone = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(GONE_AFTER, all_gone).await.is_err() {
            tracing::warn!(tools = self.tasks.len(), "tools that did not stop are dropped");
            self.tasks.abort_all();
        }
        self.processes().kill_all().await;
    }

    fn processes(&self) -> &ProcessRegistry {
        &self.context.processes
    }
}

/// Runs a tool and reports its output and its end, a panic included (P9).
async fn run_one(
    tool: Arc<dyn Tool>,
    item_id: ItemId,
    input: Value,
    context: ToolContext,
    events: mpsc::Sender<ToolEvent>,
) {
    let (sink, mut output) = OutputSink::channel(OUTPUT_PIECES_MAX);
    let context = ToolContext { sink, ..context };
    let cancel = context.cancel.clone();
    let run = AssertUnwindSafe(tool.run(input, context)).catch_unwind();
    tokio::pin!(run);
    let result = loop {
        tokio::select! {
            biased;
            Some(text) = output.recv() => {
                let _ = events.send(ToolEvent::Output { item_id: item_id.clone(), text }).await;
            }
            result = &mut run => break result,
        }
    };
    while let Ok(text) = output.try_recv() {
        let _ = events.send(ToolEvent::Output { item_id: item_id.clone(), text }).await;
    }
    let outcome = match result {
        Ok(Ok(output)) => ToolOutcome {
            text: output.text,
            is_error: output.is_error,
            interrupted: false,
            file_changes: output.file_changes,
        },
        Ok(Err(error)) => {
            let interrupted = cancel.is_cancelled() && matches!(error, ToolError::Cancelled { .. });
            ToolOutcome { text: error.to_string(), is_error: true, interrupted, file_changes: Vec::new() }
        }
        Err(_) => {
            tracing::error!(item = %item_id, tool = %tool.spec().name, "a tool panicked");
            let text = "the tool failed in an unexpected way; its effects are unknown".to_owned();
            ToolOutcome { text, is_error: true, interrupted: false, file_changes: Vec::new() }
        }
    };
    let _ = events.send(ToolEvent::Finished { item_id, outcome }).await;
}

/// What the machine is told of a tool that was cancelled before it began.
pub(super) fn never_ran(item_id: ItemId) -> Input {
    let text = "not run: the turn was interrupted before this call began".to_owned();
    Input::ToolFinished {
        item_id,
        outcome: ToolOutcome { text, is_error: true, interrupted: true, file_changes: Vec::new() },
    }
}

impl Driver {
    pub(super) fn tool_event(&mut self, event: ToolEvent) {
        match event {
            ToolEvent::Output { item_id, text } => self.step(Input::ToolOutput { item_id, text }),
            ToolEvent::Finished { item_id, outcome } => self.step(Input::ToolFinished { item_id, outcome }),
        }
    }
}
