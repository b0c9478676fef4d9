//! Connections, dispatch and outboxes over an engine.
//!
//! A [`Server`] has connections; a [`Connection`] has a handshake, running requests and an [`Outbox`]. In process a client
//! holds the connection itself: typed messages go in by [`Connection::receive`] and come out by [`Connection::next`], and
//! nothing is serialised. Over bytes, [`Server::serve`] runs a connection on the two halves of a [`transport`].
//!
//! Each accepted request carries a duty to answer that cannot be lost: dropped, it answers (P4). Pushing to a connection
//! never waits: its outbox merges deltas, and past its bound the connection ends (P7, P8).
//!
//! This crate knows no turn and no SQL; what a request means is the engine's business.

mod connection;
mod dispatch;
mod handler;
mod lanes;
mod outbox;
mod payload;
mod responder;
mod serve;
mod server;
mod size;
pub mod transport;

pub use connection::{Answered, Connection, REQUESTS_RUNNING_MAX};
pub use outbox::{Outbox, Pushed};
pub use payload::{Clock, PAYLOAD_MEMORY_BYTES_MAX, PAYLOAD_REFERENCES_MAX};
pub use server::{
    SHUTDOWN_ACCEPTED_FIRST, SHUTDOWN_ANSWERS_AFTER, SHUTDOWN_ENDS_AFTER, Server, ServerOptions,
    ShutdownTimes,
};

pub use raddle_engine as engine;
pub use raddle_protocol as protocol;
