//! The tool `bash`: a command, run by a shell.
//!
//! # When a call ends
//!
//! When the shell ends. Not when its output is closed: a background child holds that open for as long as it
//! lives. What was written before the shell ended is always in the result, and for [`DRAIN_GRACE`] more the
//! call listens to what children still write. Processes that are left then keep running under the rule of
//! [`ProcessRegistry`](crate::ProcessRegistry), and the result names them. A call that is cancelled or meets
//! its time limit ends its processes and returns, also when one of them got away and holds the output.
//!
//! # What a command finds
//!
//! The host's environment, without what [`ToolContext::hidden_env`] names and with no pager or prompt that
//! would wait for a person; an empty standard input; no terminal, where the system has `setsid`, else a
//! process group of its own. (A group alone leaves the terminal in reach, and who reads from it in the
//! background is stopped. A session also keeps the jobs of `set -m` together; the call to make one between fork
//! and exec would take unsafe code, hence the program.)
//!
//! Neighbours: context, error, input, output, tool.

mod capture;
mod run;

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::context::{TIME_LIMIT_DEFAULT, ToolContext};
use crate::error::ToolError;
use crate::input::{decode_input, input_schema, whole_number};
use crate::output::{OUTPUT_BYTES_MAX, OUTPUT_LINES_MAX, ToolOutput};
use crate::tool::{Effect, Tool, ToolSpec};

use run::{End, Shell, run};

const NAME: &str = "bash";

/// The longest time limit that a model can set. A longer one counts as this.
pub const TIME_LIMIT_MAX: Duration = Duration::from_secs(600);

/// How long a call listens, after its shell has ended, to children that still hold its output.
pub const DRAIN_GRACE: Duration = Duration::from_millis(100);

/// How many bytes of a command's output are sent live. Then a last piece says that no more come; the result
/// still gets the tail.
pub const LIVE_BYTES_MAX: usize = 256 * 1024;

/// How many bytes a command may have; a longer one is an invalid input. Linux takes no longer argument than
/// 128 KiB.
pub const COMMAND_BYTES_MAX: usize = 100 * 1024;

/// How many processes left running are named in a result. The others are counted.
const LEFT_NAMED_MAX: usize = 8;

/// The input of `bash`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BashInput {
    /// The command: a whole script, passed to the shell as it is.
    // No other name and no other shape is accepted: whoever judges the command must see what runs.
    pub command: String,
    /// The time limit in milliseconds, at most 600000. Default: 120000.
    #[serde(default, alias = "timeout_ms", deserialize_with = "whole_number")]
    #[schemars(with = "u64")]
    pub timeout_ms: Option<u64>,
}

/// The tool `bash`: runs a command with bash, or with sh where there is no bash.
///
/// The module's page says when a call ends and what a command finds; its rules hold for every call. Output is
/// taken as UTF-8 and bytes that are not become U+FFFD. A failing command is no error of the tool: the output
/// ends in `[exit code 3]` or `[killed by signal 9]` and has [`ToolOutput::is_error`] set.
///
/// # Limits
///
/// The text holds [`OUTPUT_BYTES_MAX`] bytes and [`OUTPUT_LINES_MAX`] lines, the head and the tail of what was
/// written, with a line that counts what is left out. Live output stops at [`LIVE_BYTES_MAX`]. Time is limited
/// by the input, else by [`ToolContext::time_limit_default`], and always by [`TIME_LIMIT_MAX`]; at the limit
/// the processes are ended and the error has what they wrote. Memory does not grow with the output.
#[derive(Debug)]
pub struct Bash {
    spec: ToolSpec,
    shell: Shell,
}

impl Bash {
    /// The tool. Looks through `PATH` for the shell, once.
    pub fn new() -> Self {
        let shell = Shell::find();
        let description = format!(
            "Runs a command with {} in the working directory. Standard input is empty and there is no \
             terminal. Returns standard output and error together, at most {} KiB or {OUTPUT_LINES_MAX} \
             lines, with the middle left out when there is more. The call ends when the shell ends; a process \
             started with & keeps running until the session closes, so start a server with `server > \
             server.log 2>&1 &`. The time limit is {} ms unless timeoutMs says otherwise.",
            shell.name(),
            OUTPUT_BYTES_MAX / 1024,
            TIME_LIMIT_DEFAULT.as_millis(),
        );
        Self {
            spec: ToolSpec {
                name: NAME.to_owned(),
                description,
                input_schema: input_schema::<BashInput>(),
                effect: Effect::Mutating,
            },
            shell,
        }
    }
}

impl Default for Bash {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Tool for Bash {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, input: Value, cx: ToolContext) -> Result<ToolOutput, ToolError> {
        let BashInput { command, timeout_ms } = decode_input(NAME, input)?;
        if command.trim().is_empty() {
            return Err(ToolError::invalid(NAME, "command is empty"));
        }
        if command.contains('\0') {
            return Err(ToolError::invalid(NAME, "command holds a NUL character, which no shell takes"));
        }
        if command.len() > COMMAND_BYTES_MAX {
            return Err(ToolError::invalid(
                NAME,
                format!(
                    "command has {} bytes, at most {COMMAND_BYTES_MAX} are possible; put the script or its \
                     data into a file",
                    command.len()
                ),
            ));
        }
        let limit = match timeout_ms {
            Some(0) => return Err(ToolError::invalid(NAME, "timeoutMs must be at least 1")),
            Some(limit_ms) => Duration::from_millis(limit_ms),
            None => cx.time_limit_default,
        }
        .min(TIME_LIMIT_MAX);

        // Boxed: the future is large, and every caller's would be as large.
        let (text, end) = Box::pin(run(&self.shell, &command, limit, cx)).await?;
        match end {
            End::Cancelled => Err(ToolError::Cancelled { partial: text }),
            End::TimedOut => Err(ToolError::TimedOut {
                partial: text,
                limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
            }),
            exited => Ok(answer(text, &exited)),
        }
    }
}

/// The output, with notes on how the shell ended and what it left.
fn answer(mut text: String, end: &End) -> ToolOutput {
    let End::Exited { status, left, holds_output, ended_older } = end else {
        return ToolOutput::error(text);
    };
    let mut notes = Vec::new();
    let mut is_error = false;
    match status {
        Some(status) if status.success() => {}
        Some(status) => {
            is_error = true;
            notes.push(match (status.code(), status.signal()) {
                (Some(code), _) => format!("exit code {code}"),
                (None, Some(signal)) => format!("killed by signal {signal}"),
                (None, None) => status.to_string(),
            });
        }
        None => notes.push("ended; its exit code is not known".to_owned()),
    }
    if !left.is_empty() {
        let named: Vec<String> =
            left.iter().take(LEFT_NAMED_MAX).map(|pid| pid.as_raw_nonzero().to_string()).collect();
        let others = match left.len() - named.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let what = if cfg!(target_os = "linux") { "process" } else { "process group" };
        notes.push(format!("left running in the background: {what} {}{others}", named.join(", ")));
    }
    if left.is_empty() && *holds_output {
        notes.push("a process that still holds the output was left running in the background".to_owned());
    }
    if *ended_older {
        notes.push(
            "background processes of the oldest command that had left some were ended, for there were too \
             many"
                .to_owned(),
        );
    }
    if text.is_empty() && notes.is_empty() {
        notes.push("no output".to_owned());
    }
    for note in notes {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&format!("[{note}]"));
    }
    if is_error { ToolOutput::error(text) } else { ToolOutput::ok(text) }
}
