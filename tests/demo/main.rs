//! The demo as a newcomer runs it: the real command as a process of its own, with the built-in model, with a model server
//! that other people wrote, and with providers that do badly.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test says what it needs by failing without it"
)]

mod aimock;
mod builtin;
mod command;
mod providers;
