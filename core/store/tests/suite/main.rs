//! The store through its public face, in real directories.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod append;
mod crash;
mod damage;
mod history;
mod list;
mod model;
mod open;
mod owner;
mod payload;
mod queue;
mod support;
mod tree;
