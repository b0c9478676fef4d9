//! End-to-end tests: a real engine on a real store, through the protocol. One file a topic.

#![expect(clippy::unwrap_used, reason = "a test says what it needs by failing without it")]

mod approvals;
mod control;
mod face;
mod failures;
mod history;
mod input;
mod payloads;
mod races;
mod settled;
mod shutdown;
mod tools;
mod transport;
mod turns;
