//! End-to-end tests: a real engine on a real store, through the protocol. One file a topic.

#![expect(clippy::unwrap_used, reason = "a test says what it needs by failing without it")]

mod approvals;
mod compaction;
mod control;
mod face;
mod failures;
mod history;
mod images;
mod input;
mod links;
mod payloads;
mod queue;
mod races;
mod reviewed;
mod sessions;
mod settled;
mod shutdown;
mod slow;
mod threads;
mod tools;
mod transport;
mod turns;
