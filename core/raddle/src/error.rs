//! What can go wrong for a client, and for a host that opens an engine.
//!
//! Neighbours: none.

use raddle_protocol::{ErrorCode, RpcError};

/// Why a request gave no result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The server refused or failed; code, message and data are exactly as it sent them.
    #[error(transparent)]
    Server(#[from] RpcError),
    /// The connection ended before the answer came: closed by this side, or by the server since too much waited unread.
    #[error("the connection is closed")]
    Closed,
    /// The answer came, but its result is not what this client knows: a server of another version.
    #[error("the answer to `{method}` cannot be read: {message}")]
    UnreadableResult {
        /// The method that was asked.
        method: &'static str,
        /// What does not fit.
        message: String,
    },
    /// The server's process could not be started.
    #[error("the server could not be started: {message}")]
    Spawn {
        /// What kind of failure it is.
        kind: std::io::ErrorKind,
        /// What the system says.
        message: String,
    },
    /// What a reference stands for is more than the caller takes.
    #[error("the payload has {bytes} bytes, more than {bytes_max}")]
    PayloadTooLarge {
        /// Bytes of the payload.
        bytes: u64,
        /// How many the caller takes.
        bytes_max: u64,
    },
    /// What came of a payload is not what its reference says: a server of another version, or a bug.
    #[error("the payload cannot be read: {message}")]
    UnreadablePayload {
        /// What does not fit.
        message: String,
    },
    /// The answer was another method's: a bug of ours.
    #[error("the answer to `{method}` had another method's shape")]
    UnexpectedResult {
        /// The method that was asked.
        method: &'static str,
    },
}

impl ClientError {
    /// The server's code, if the server answered.
    pub fn code(&self) -> Option<&ErrorCode> {
        match self {
            Self::Server(error) => Some(&error.code),
            _ => None,
        }
    }

    /// The server's `data.reason`, if there is one.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Server(error) => error.reason(),
            _ => None,
        }
    }
}

/// Why an engine could not be opened: the same code, message and data that a response would carry.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("Raddle could not be opened: {0}")]
pub struct OpenError(pub RpcError);

impl OpenError {
    /// The stable code.
    pub fn code(&self) -> &ErrorCode {
        &self.0.code
    }

    /// What about the store failed, if it was the store; see
    /// [`StorageReason`](raddle_protocol::StorageReason).
    pub fn reason(&self) -> Option<&str> {
        self.0.reason()
    }
}
