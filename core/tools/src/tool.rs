//! What a tool is: a description for the model and a function that runs.
//!
//! Neighbours: context, error, output.

use async_trait::async_trait;
use serde_json::Value;

use crate::context::ToolContext;
use crate::error::ToolError;
use crate::output::ToolOutput;

/// Whether running a tool can change anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It changes nothing that anybody else can see, so it may run beside others and run again after a crash.
    ReadOnly,
    /// It may change something. What is not known to be read-only is this.
    Mutating,
}

/// What a model is told of a tool.
#[derive(Clone, Debug)]
pub struct ToolSpec {
    /// The name by which it is called; unique in a [`Toolbox`](crate::Toolbox).
    pub name: String,
    /// What it does, its limits, and when to use another one.
    pub description: String,
    /// JSON Schema of the input, always of type `object`. [`input_schema`](crate::input_schema) makes it.
    pub input_schema: Value,
    /// Whether a run can change anything.
    pub effect: Effect,
}

/// A tool that a model may call.
#[async_trait]
pub trait Tool: Send + Sync + 'static {
    /// What a model is told of it. The same for the whole life of the tool.
    fn spec(&self) -> &ToolSpec;

    /// Runs the tool once.
    ///
    /// # Errors
    ///
    /// Never panics on any input: a bad one is [`ToolError::InvalidInput`], whose text tells a model what to
    /// do. When `cx.cancel` fires the run ends soon with [`ToolError::Cancelled`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future is allowed, but hard: what a run has started is killed without a chance to clean
    /// up. Prefer `cx.cancel`.
    async fn run(&self, input: Value, cx: ToolContext) -> Result<ToolOutput, ToolError>;
}
