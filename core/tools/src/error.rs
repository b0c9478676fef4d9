//! The one error of this crate. Its text is read by a model, so it says the way out.
//!
//! Neighbours: none.

use std::io;

/// Why a tool gave no output.
///
/// Display is what the model is told. It holds no secret: only names, paths and figures of the call itself,
/// and the output that a command had already written.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The input does not fit the tool. Nothing was done; the model can mend the input and call again.
    #[error("invalid input for {tool}: {problem}")]
    InvalidInput {
        /// The tool's name.
        tool: String,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// The tool refused, or could not do what was asked, for the reason in `message`.
    #[error("{message}")]
    Failed {
        /// The whole sentence for the model.
        message: String,
    },
    /// The operating system refused something.
    #[error("cannot {action}: {}", reason(.source))]
    Io {
        /// What was tried and on what, such as "read src/main.rs".
        action: String,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// [`ToolContext::cancel`](crate::ToolContext) fired before the tool was done. What it had started was
    /// ended.
    #[error("cancelled before it was done{}", so_far(.partial))]
    Cancelled {
        /// The output up to then, capped like a result's text; empty if there was none.
        partial: String,
    },
    /// The time limit passed. What the tool had started was ended.
    #[error("stopped at its time limit of {limit_ms} ms; allow more time or do less at once{}", so_far(.partial))]
    TimedOut {
        /// The output up to then, capped like a result's text; empty if there was none.
        partial: String,
        /// The limit, in milliseconds.
        limit_ms: u64,
    },
    /// The tool itself is at fault: its task panicked. The host and the other tools are unharmed.
    #[error("{tool} failed inside; this is a fault of the tool, not of the input")]
    Internal {
        /// The tool's name.
        tool: String,
    },
}

impl ToolError {
    pub(crate) fn invalid(tool: &str, problem: impl Into<String>) -> Self {
        Self::InvalidInput { tool: tool.to_owned(), problem: problem.into() }
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::Failed { message: message.into() }
    }

    pub(crate) fn io(action: impl Into<String>, source: io::Error) -> Self {
        Self::Io { action: action.into(), source }
    }

    pub(crate) fn cancelled() -> Self {
        Self::Cancelled { partial: String::new() }
    }
}

fn so_far(partial: &str) -> String {
    if partial.is_empty() {
        "; it had written nothing".to_owned()
    } else {
        format!("; what it had written:\n{partial}")
    }
}

/// Words for the failures that models meet often; the system's own text for the rest.
fn reason(source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::NotADirectory => "a part of the path is not a directory".to_owned(),
        io::ErrorKind::InvalidFilename => "the name is too long".to_owned(),
        io::ErrorKind::WouldBlock => "it has nothing to read now, and would wait".to_owned(),
        _ if is_link_loop(source) => "symbolic links go round in a loop".to_owned(),
        _ => source.to_string(),
    }
}

#[cfg(unix)]
pub(crate) fn is_link_loop(source: &io::Error) -> bool {
    // `ErrorKind::FilesystemLoop` is not stable, so the number is asked.
    source.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}

#[cfg(not(unix))]
pub(crate) fn is_link_loop(_source: &io::Error) -> bool {
    false
}
