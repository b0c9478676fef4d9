//! The turn machine: what a turn does next, and nothing else.
//!
//! `step` takes one input and writes commands; it does no I/O, reads no clock and draws no random number, so it
//! can be driven through millions of schedules with a crash after any commit. The [`pipeline`] beside it holds
//! the commands in order and says what may happen when: commit, then fan out, then act.
//!
//! Neighbours: none.

mod calls;
mod command;
mod input;
mod machine;
mod pipeline;
mod queue;
mod recover;
mod reply;
mod state;
#[cfg(test)]
mod tests;

pub use command::{Append, Command, Outcome, Refusal, Reply, Token};
pub use input::{Input, ModelFailure, Purpose, RunSettings, Said, StartTurn, ToolOutcome, ToolTable};
pub use machine::Machine;
pub use pipeline::{Pipeline, Step};
pub use recover::recover;
pub use state::RetryPolicy;

/// Tools of one reply that run at the same time when all of them are read-only; the rest wait for a place.
pub const PARALLEL_TOOLS_MAX: usize = 8;

/// Tool calls of one reply that are run; the model is told that the rest were not.
pub const CALLS_PER_REPLY_MAX: usize = 64;

/// Levels of nesting in a call's arguments; deeper ones are not run, and kept as text: parsers, ours among them, stop at 128
/// levels, and an event or a notification adds some of its own.
pub const ARGUMENTS_DEPTH_MAX: usize = 64;

/// Characters of a tool's name and of a call's id as a model writes them; a longer name is cut, and instead of a longer id the
/// engine makes one.
pub const CALL_NAME_CHARS_MAX: usize = 256;

/// Bytes of text in one item of a model's reply; at more, the reply fails and is not asked for again.
pub const ITEM_TEXT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Steers that may wait for one turn; one more is refused with `invalidParams`.
pub const STEERS_WAITING_MAX: usize = 64;

/// Milliseconds that an interrupted turn waits for its tools to be gone; then it ends without them.
pub const SETTLE_MS: u64 = 5_000;
