//! Transports: bytes or channels on one side, typed messages on the other. They know no method names.
//!
//! In process there is no transport at all: both ends of a [`Connection`](crate::Connection) are typed already.
//!
//! Neighbours: none.

use std::future::Future;

use raddle_protocol::rpc::{ClientMessage, ServerMessage};
use raddle_protocol::{RequestId, RpcError};

/// What a transport has read.
#[derive(Clone, Debug, PartialEq)]
pub enum Incoming {
    /// A message.
    Message(ClientMessage),
    /// Something that is no message; it is answered, and the next one is read.
    Malformed {
        /// The id of the request, if so much could be read.
        id: Option<RequestId>,
        /// What to answer.
        error: RpcError,
    },
}

/// The reading half.
pub trait MessageSource: Send {
    /// Waits for the next message; `None` at the end of input.
    fn receive(&mut self) -> impl Future<Output = Option<Incoming>> + Send;
}

/// The writing half.
pub trait MessageSink: Send {
    /// Writes one message, waiting for room.
    fn send(&mut self, message: ServerMessage) -> impl Future<Output = std::io::Result<()>> + Send;

    /// Writes out what it holds back, and ends.
    fn close(&mut self) -> impl Future<Output = ()> + Send;
}
