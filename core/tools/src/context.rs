//! What a run gets from its surroundings.
//!
//! Neighbours: error, process, sink.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::ToolError;
use crate::process::ProcessRegistry;
use crate::sink::OutputSink;

/// How long a command may run when neither the model nor the host says otherwise. At the limit it is ended
/// and the model is told, with what it had written.
pub const TIME_LIMIT_DEFAULT: Duration = Duration::from_secs(120);

/// How long a cancelled run waits for its blocking part to notice. After that it returns without it: a read
/// that hangs in the kernel (a dead network mount) cannot be ended, only left.
const BLOCKING_GRACE: Duration = Duration::from_millis(200);

/// What a run gets from its surroundings: where it works, when to stop, where live output goes.
#[derive(Clone, Debug)]
pub struct ToolContext {
    /// The directory that relative paths start from and commands run in. Absolute.
    pub cwd: PathBuf,
    /// Fires when the run should stop.
    pub cancel: CancellationToken,
    /// Takes live output.
    pub sink: OutputSink,
    /// Remembers what commands leave running. Share one among all runs of a thread; see [`ProcessRegistry`]
    /// for who ends them and when.
    pub processes: ProcessRegistry,
    /// How long a command may run when the model sets no limit.
    pub time_limit_default: Duration,
    /// Names of environment variables that commands do not inherit, such as those that hold the host's keys.
    pub hidden_env: Arc<[OsString]>,
}

impl ToolContext {
    /// A context for `cwd` that is never cancelled, drops live output and has a registry of its own. Set the
    /// fields that should differ.
    pub fn new(cwd: impl Into<PathBuf>) -> Self {
        Self {
            cwd: cwd.into(),
            cancel: CancellationToken::new(),
            sink: OutputSink::discard(),
            processes: ProcessRegistry::new(),
            time_limit_default: TIME_LIMIT_DEFAULT,
            hidden_env: Arc::from([]),
        }
    }

    /// The path that a tool means by `path`: relative ones start at `cwd`. Nothing else is rewritten, `~` and
    /// `..` included; whoever judges paths must judge this one.
    pub fn resolve(&self, path: impl AsRef<Path>) -> PathBuf {
        self.cwd.join(path)
    }

    /// Runs `work` where blocking is allowed. `work` looks at the token between its steps.
    pub(crate) async fn run_blocking<T: Send + 'static>(
        &self,
        tool: &'static str,
        work: impl FnOnce(&CancellationToken) -> Result<T, ToolError> + Send + 'static,
    ) -> Result<T, ToolError> {
        let token = self.cancel.clone();
        let mut task = tokio::task::spawn_blocking(move || work(&token));
        let joined = tokio::select! {
            joined = &mut task => joined,
            () = self.cancel.cancelled() => {
                match tokio::time::timeout(BLOCKING_GRACE, task).await {
                    Ok(joined) => joined,
                    Err(_) => return Err(ToolError::cancelled()),
                }
            }
        };
        joined.unwrap_or_else(|fault| {
            tracing::error!(tool, %fault, "a tool's blocking part ended abnormally");
            Err(ToolError::Internal { tool: tool.to_owned() })
        })
    }
}
