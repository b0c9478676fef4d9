//! Transports: bytes or channels on one side, typed messages on the other. They know no method names.
//!
//! In process there is no transport at all: both ends of a [`Connection`](crate::Connection) are typed already.
//! Over bytes a message is a line of JSON: [`lines`] cuts the bytes, [`envelope`] reads and writes the messages, and
//! [`stdio`] does both for readers and writers of tokio, at either end.
//!
//! Neighbours: none.

pub mod envelope;
pub mod lines;
pub mod stdio;

use std::future::Future;

use raddle_protocol::rpc::{ClientMessage, ServerMessage};
use raddle_protocol::{RequestId, RpcError};
use serde_json::Value;

/// What a transport has read.
#[derive(Clone, Debug, PartialEq)]
pub enum Incoming {
    /// A message.
    Message(ClientMessage),
    /// An answer to a request of the server. Only the connection knows what it asked, so it reads the result.
    Answer {
        /// The server's id.
        id: RequestId,
        /// The result as it came, or why there is none.
        result: Result<Value, RpcError>,
    },
    /// A request whose method or params are not ours; it is answered.
    BadRequest {
        /// The client's id.
        id: RequestId,
        /// Its method, as it came.
        method: String,
        /// What to answer, if nothing else speaks against the request.
        error: RpcError,
    },
    /// Something that is no message; it is answered, and the next one is read.
    Malformed {
        /// The id of the request, if so much could be read.
        id: Option<RequestId>,
        /// What to answer.
        error: RpcError,
    },
    /// Something that cannot be answered, since it was never read; the client is told by an `error` notification.
    Dropped {
        /// What to tell.
        error: RpcError,
    },
}

/// The reading half.
pub trait MessageSource: Send {
    /// Waits for the next message; `None` at the end of input.
    ///
    /// # Cancel safety
    /// Dropping the future loses no message.
    fn receive(&mut self) -> impl Future<Output = Option<Incoming>> + Send;
}

/// The writing half.
pub trait MessageSink: Send {
    /// Writes one message, waiting for room. It may be held back until the next [`flush`](Self::flush).
    fn send(&mut self, message: ServerMessage) -> impl Future<Output = std::io::Result<()>> + Send;

    /// Writes out what it holds back. Called when no more messages wait.
    fn flush(&mut self) -> impl Future<Output = std::io::Result<()>> + Send {
        async { Ok(()) }
    }

    /// Writes out what it holds back, and ends.
    fn close(&mut self) -> impl Future<Output = ()> + Send;
}
