//! The envelopes that move over a transport, typed. Framing is the transports' business.
//!
//! Neighbours: error, ids, methods.

use std::sync::Arc;

use crate::error::RpcError;
use crate::ids::RequestId;
use crate::methods::{
    ClientNotification, ClientRequest, ClientResponse, ServerAnswer, ServerNotification, ServerRequest,
};

/// From a client.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientMessage {
    /// A request; answered exactly once (P4).
    Request {
        /// Chosen by the client; not to be used twice at the same time.
        id: RequestId,
        /// What is asked.
        request: ClientRequest,
    },
    /// A notification.
    Notification(ClientNotification),
    /// The answer to a request of the server.
    Answer {
        /// The server's id.
        id: RequestId,
        /// The answer, or why there is none.
        answer: Result<ServerAnswer, RpcError>,
    },
}

/// From the server.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerMessage {
    /// The answer to a request.
    Response {
        /// The client's id; `None`, which is `null` on the wire, when it could not be read.
        id: Option<RequestId>,
        /// The result, or why there is none.
        result: Result<ClientResponse, RpcError>,
    },
    /// A notification; shared, since several connections may get it.
    Notification(Arc<ServerNotification>),
    /// A request of the server.
    Request {
        /// Chosen by the server.
        id: RequestId,
        /// What is asked.
        request: ServerRequest,
    },
}
