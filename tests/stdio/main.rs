//! `raddle app-server` as a client meets it: a process, its standard streams, and lines of JSON that are written and read
//! here by hand, so that no mistake of ours is made at both ends.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test says what it needs by failing without it"
)]

mod client;
mod command;
mod lines;
mod messages;
mod process;
mod shutdown;
