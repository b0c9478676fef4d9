//! Tools by name.
//!
//! Neighbours: ls, read, shell, tool.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::ls::Ls;
use crate::read::Read;
#[cfg(unix)]
use crate::shell::Bash;
use crate::tool::{Tool, ToolSpec};

/// A set of tools, each under its own name. Cloning is cheap: the tools are shared.
#[derive(Clone, Default)]
pub struct Toolbox {
    tools: BTreeMap<String, Arc<dyn Tool>>,
}

impl Toolbox {
    /// A box without tools.
    pub fn new() -> Self {
        Self::default()
    }

    /// The built-in tools: `ls`, `read` and, on Unix, `bash`.
    ///
    /// Looks through `PATH` once for the shell, so make it once and clone it.
    pub fn builtin() -> Self {
        let tools = Self::new().with(Arc::new(Ls::new())).with(Arc::new(Read::new()));
        #[cfg(unix)]
        let tools = tools.with(Arc::new(Bash::new()));
        tools
    }

    /// The same box with one more tool. A tool of the same name is replaced.
    #[must_use]
    pub fn with(mut self, tool: Arc<dyn Tool>) -> Self {
        self.tools.insert(tool.spec().name.clone(), tool);
        self
    }

    /// The tool of that name, if there is one. Names are compared exactly.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.tools.get(name)
    }

    /// What a model is told of the tools, sorted by name: the same tools always give the same order, so a
    /// provider's prompt cache stays warm.
    pub fn specs(&self) -> Vec<ToolSpec> {
        self.tools.values().map(|tool| tool.spec().clone()).collect()
    }
}

impl fmt::Debug for Toolbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.tools.keys()).finish()
    }
}
