//! Threads, turns and approvals: what happens between a client and a model.
//!
//! An [`Engine`] owns the threads of one process. Each loaded thread is one task, its *driver*, with one inbox; it feeds
//! the pure turn machine ([`turn`]) and does what that wants, in this order always: commit, then answer and fan out, then
//! act. So nothing is seen that is not on disk (P1), and no tool runs whose call is not (P3).
//!
//! A client is a [`Subscriber`]: somebody to tell and perhaps to ask. The engine knows no transport, no JSON and no
//! request ids; an [`Answer`] is all that it needs of a request.
//!
//! Why not one lock around each thread's state? Because the order of things would then be the order in which locks are
//! taken. A task with an inbox has one order by construction, and a snapshot taken in its step (see [`Attach`]) fits what
//! follows without a gap or an overlap (P5).

mod clock;
mod driver;
mod edge;
mod engine;
mod error;
mod history;
mod input;
mod prompt;
#[cfg(test)]
mod schedules;
mod shared;
mod subscriber;
mod thread;
pub mod turn;

pub use edge::{models_error, store_error};
pub use engine::{Engine, SHUTDOWN_AFTER, Vitals};
pub use error::Error;
pub use history::History;
pub use shared::{KEY_VARIABLES, ModelLimits, ModelSource, Options, SearchFn, UNLOAD_AFTER};
pub use subscriber::{Answer, AskId, AskSink, ConnectionId, Hub, Subscriber};
pub use thread::{Attach, INBOX_MESSAGES_MAX, Live};
pub use turn::RetryPolicy;

pub use raddle_models as models;
pub use raddle_protocol as protocol;
pub use raddle_store as store;
pub use raddle_tools as tools;
