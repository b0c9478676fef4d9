//! Tools that a test brings along.
//!
//! Neighbours: wait.

use std::sync::Arc;

use async_trait::async_trait;
use raddle::engine::tools::{Effect, Tool, ToolContext, ToolError, ToolOutput, ToolSpec};
use serde_json::{Value, json};
use tokio::sync::{Barrier, watch};

use crate::wait::within;

fn spec(name: &str, effect: Effect) -> ToolSpec {
    ToolSpec {
        name: name.to_owned(),
        description: format!("{name}, for tests"),
        input_schema: json!({ "type": "object" }),
        effect,
    }
}

/// A place in a tool where it stops until the test opens it: what [`Gate`](crate::Gate) is for a provider's script.
#[derive(Clone, Debug)]
pub struct Latch {
    reached: watch::Sender<bool>,
    open: watch::Sender<bool>,
}

impl Latch {
    /// A closed one. Clones are the same latch.
    #[must_use]
    pub fn new() -> Self {
        Self { reached: watch::Sender::new(false), open: watch::Sender::new(false) }
    }

    /// Lets the tool go on, now and whenever it comes here again.
    pub fn open(&self) {
        self.open.send_replace(true);
    }

    /// Waits until a tool stands here or has passed.
    pub async fn reached(&self) {
        let mut reached = self.reached.subscribe();
        let arrival = reached.wait_for(|reached| *reached);
        // The sender lives as long as this latch.
        let _ = within("a tool to reach a latch", String::new, arrival).await;
    }

    async fn pass(&self) {
        self.reached.send_replace(true);
        let _ = self.open.subscribe().wait_for(|open| *open).await;
    }
}

impl Default for Latch {
    fn default() -> Self {
        Self::new()
    }
}

/// A read-only tool whose calls end only when as many of them as were agreed on are running: calls one after the other
/// would never end.
pub struct Meeting {
    spec: ToolSpec,
    barrier: Barrier,
}

impl Meeting {
    /// A tool called `meet` for that many calls.
    pub fn of(calls: usize) -> Arc<Self> {
        Arc::new(Self { spec: spec("meet", Effect::ReadOnly), barrier: Barrier::new(calls) })
    }
}

#[async_trait]
impl Tool for Meeting {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, input: Value, cx: ToolContext) -> Result<ToolOutput, ToolError> {
        tokio::select! {
            _ = self.barrier.wait() => Ok(ToolOutput::ok(format!("met {input}"))),
            () = cx.cancel.cancelled() => Err(ToolError::Cancelled { partial: String::new() }),
        }
    }
}

/// A read-only tool that panics.
pub struct Panics(ToolSpec);

impl Panics {
    /// A tool called `panics`.
    pub fn tool() -> Arc<Self> {
        Arc::new(Self(spec("panics", Effect::ReadOnly)))
    }
}

#[async_trait]
impl Tool for Panics {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn run(&self, _: Value, _: ToolContext) -> Result<ToolOutput, ToolError> {
        panic!("this tool always panics, and a test wants it to");
    }
}

/// A tool that prints pieces, waits at a latch if there is one, and gives a text back.
pub struct Says {
    spec: ToolSpec,
    pieces: Vec<String>,
    latch: Option<Latch>,
    result: String,
}

impl Says {
    /// A read-only tool of that name.
    pub fn tool(name: &str, pieces: &[&str], latch: Option<&Latch>, result: &str) -> Arc<Self> {
        Self::with_effect(Effect::ReadOnly, name, pieces, latch, result)
    }

    /// A tool of that name, with that effect.
    pub fn with_effect(
        effect: Effect,
        name: &str,
        pieces: &[&str],
        latch: Option<&Latch>,
        result: &str,
    ) -> Arc<Self> {
        Arc::new(Self {
            spec: spec(name, effect),
            pieces: pieces.iter().map(|piece| (*piece).to_owned()).collect(),
            latch: latch.cloned(),
            result: result.to_owned(),
        })
    }
}

#[async_trait]
impl Tool for Says {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, _: Value, cx: ToolContext) -> Result<ToolOutput, ToolError> {
        for piece in &self.pieces {
            cx.sink.send(piece.clone()).await;
        }
        if let Some(latch) = &self.latch {
            tokio::select! {
                () = latch.pass() => {}
                () = cx.cancel.cancelled() => return Err(ToolError::Cancelled { partial: self.pieces.concat() }),
            }
        }
        Ok(ToolOutput::ok(self.result.clone()))
    }
}

/// A read-only tool that never ends, not even when it is told to.
pub struct Stuck(ToolSpec);

impl Stuck {
    /// A tool called `stuck`.
    pub fn tool() -> Arc<Self> {
        Arc::new(Self(spec("stuck", Effect::ReadOnly)))
    }
}

#[async_trait]
impl Tool for Stuck {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn run(&self, _: Value, _: ToolContext) -> Result<ToolOutput, ToolError> {
        std::future::pending().await
    }
}
