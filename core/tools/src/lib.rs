//! The built-in tools of the engine: what a model may ask for, and the code that does it.
//!
//! # The main types and how they meet
//!
//! A [`Toolbox`] holds tools by name. Each is a [`Tool`]: its [`ToolSpec`] is what a model is told, with
//! the JSON Schema of the input and the [`Effect`], and [`Tool::run`] does the work. What a run needs from
//! its surroundings comes in a [`ToolContext`]: the working directory, a cancellation token, an
//! [`OutputSink`] for live output, and the [`ProcessRegistry`] that knows which processes commands left
//! behind. A run ends in a [`ToolOutput`] or a [`ToolError`]; the text of both is written for a model to
//! read, and an error says what to do next.
//!
//! Three tools are built in: [`Read`] and [`Ls`], which change nothing, and `bash` (`Bash`, on Unix).
//!
//! # Why not the obvious way
//!
//! The obvious shell tool waits until its output pipes close, and a single background child holds them open
//! for ever. Here a call ends when the shell ends; the module `shell` has the rules. The obvious input is
//! a `serde_json::Value` that each tool picks apart. Here it is a type, the schema is made from the type, and
//! [`decode_input`] is the only reader: an approval gate that decodes with it cannot see another input than
//! the tool sees.
//!
//! # What this crate must not know
//!
//! Threads, turns, approvals, stores and transports. It may import `raddle_protocol` and nothing else of
//! ours.
//!
//! # Example
//!
//! ```
//! use raddle_tools::{Effect, ToolContext, Toolbox};
//! use serde_json::json;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let directory = tempfile::tempdir()?;
//! std::fs::write(directory.path().join("notes.txt"), "one\ntwo\nthree\n")?;
//!
//! let tools = Toolbox::builtin();
//! let read = tools.get("read").ok_or("no such tool")?;
//! assert_eq!(read.spec().effect, Effect::ReadOnly);
//!
//! let context = ToolContext::new(directory.path());
//! let output = read.run(json!({"path": "notes.txt", "offset": 2}), context).await?;
//! assert_eq!(output.text, "two\nthree\n");
//! # Ok(())
//! # }
//! ```
//!
//! Neighbours: none.

mod context;
mod error;
mod file_kind;
mod input;
mod ls;
mod output;
mod process;
mod read;
#[cfg(unix)]
mod shell;
mod sink;
mod tool;
mod toolbox;
#[cfg(unix)]
mod utf8;

pub use context::{TIME_LIMIT_DEFAULT, ToolContext};
pub use error::ToolError;
pub use input::{INPUT_EXCERPT_BYTES_MAX, decode_input, input_schema};
pub use ls::{LS_ENTRIES_DEFAULT, LS_ENTRIES_MAX, Ls, LsInput};
pub use output::{OUTPUT_BYTES_MAX, OUTPUT_LINES_MAX, ToolOutput};
pub use process::{KILL_GRACE, ProcessRegistry, STRAY_CALLS_MAX};
pub use read::{READ_LINE_BYTES_MAX, READ_LINES_MAX, READ_SCAN_BYTES_MAX, Read, ReadInput};
#[cfg(unix)]
pub use shell::{Bash, BashInput, COMMAND_BYTES_MAX, DRAIN_GRACE, LIVE_BYTES_MAX, TIME_LIMIT_MAX};
pub use sink::OutputSink;
pub use tool::{Effect, Tool, ToolSpec};
pub use toolbox::Toolbox;
