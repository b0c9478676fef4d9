//! The harness of the end-to-end tests: a real engine on a real store, clients that write everything down, and
//! the checks that every test ends with.
//!
//! A [`World`] is a home directory, a project directory, a fake model provider and an engine. Its [`Client`]s are
//! connections at the level of typed messages: what the server sends is recorded in its order and folded as it
//! comes ([`View`]), and a test waits for what it wants to see rather than for time to pass.
//!
//! [`World::finish`] is the last line of every test. It checks what must hold whatever the test was about:
//!
//! - **P4**: each request of each client got exactly one answer.
//! - **P5**: what each client folded is what `thread/read` gives, in pages of any size, what `thread/resume` gives,
//!   and what another process reads after a restart.
//! - The rules that a folding client relies on (see [`View`]) held in every message.
//! - No request to the model was one that a strict provider refuses.
//!
//! ```no_run
//! # async fn example() {
//! use raddle_tests::{Reply, World, agent_text};
//!
//! let world = World::start().await;
//! let client = world.client().await;
//! let thread = world.thread(&client).await;
//! world.provider().push(Reply::says("Hello."));
//! let turn = client.run(&thread, "Hi").await;
//! assert_eq!(agent_text(&turn), "Hello.");
//! world.finish().await;
//! # }
//! ```
//!
//! Why not the typed client of `raddle`? It hides what these tests are about: the order of answers among
//! notifications, a second answer to one request, a connection that nobody reads. It has a file of its own in `e2e/`.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic is how a test fails, and this crate runs only in tests"
)]

mod binary;
mod client;
mod golden;
mod resolve;
mod tools;
mod turns;
mod view;
mod wait;
mod world;

pub use binary::raddle_binary;
pub use client::{Ask, Client, Closed};
pub use golden::{Golden, Names};
pub use tools::{Latch, Meeting, Panics, Says, Stuck};
pub use turns::{agent_text, agent_texts, call, calls, reasoning_text, user_texts, without_tokens};
pub use view::View;
pub use wait::{WAIT_MAX, within};
pub use world::{MODEL, PROVIDER, Setup, World};

pub use raddle::engine::protocol;
pub use raddle_fakes::{Ending, Gate, Provider, Reply, sse};
