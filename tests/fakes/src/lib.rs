//! Fake peers for tests and benches: a model provider that speaks real HTTP and obeys a script.
//!
//! A [`Provider`] listens on a free port of the loopback address. A test queues [`Reply`]s, points the code
//! under test at [`Provider::base_url`], and then looks at what was asked. The provider controls every byte:
//! where a chunk ends, when it is sent, and how the connection dies. Nothing here sleeps: a script stops at
//! a [`Gate`], which the test opens, and a test waits for what happened rather than for time to pass.
//!
//! ```
//! # async fn example() {
//! use raddle_fakes::{Gate, Provider, Reply};
//!
//! let provider = Provider::start().await;
//! let gate = Gate::new();
//! provider.push(Reply::stream().text("Hel").wait(&gate).text("lo").finish("stop").done());
//! // … the code under test asks provider.base_url() …
//! gate.reached().await; // "Hel" is on the wire, and nothing else will be until:
//! gate.open();
//! let request = provider.request(0).await;
//! assert_eq!(request.header("authorization"), Some("Bearer secret"));
//! # }
//! ```
//!
//! The provider also refuses histories that a strict provider would refuse (see [`check_history`]): such a
//! request gets a 400, and the test panics when the provider is dropped.
//!
//! This crate depends on nothing of ours, so any crate may use it for its tests without a cycle.

mod content;
mod gate;
mod history;
mod http;
mod load;
mod provider;
mod reply;
mod request;
mod script;
pub mod sse;
mod wait;

pub use content::SentImage;
pub use gate::Gate;
pub use history::check_history;
pub use load::{LoadServer, monotonic_nanos};
pub use provider::{Ending, Provider};
pub use reply::Reply;
pub use request::Request;
