//! The answer to a running request: given exactly once, whatever becomes of the request (P4).
//!
//! Neighbours: connection.

use std::sync::Arc;

use raddle_engine::{Answer, Error};
use raddle_protocol::methods::ClientResponse;
use raddle_protocol::{ErrorCode, RequestId, RpcError};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::connection::Connection;

/// Owns the duty to answer. Dropped without an answer, it gives one: `shuttingDown` if that is why, else `internal`.
pub(crate) struct Responder {
    connection: Arc<Connection>,
    id: RequestId,
    method: &'static str,
    answered: bool,
    _permit: OwnedSemaphorePermit,
}

impl Responder {
    pub(crate) fn new(
        connection: Arc<Connection>,
        id: RequestId,
        method: &'static str,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self { connection, id, method, answered: false, _permit: permit }
    }

    /// Answers.
    pub(crate) fn finish(mut self, result: Result<impl Into<ClientResponse>, impl Into<RpcError>>) {
        self.give(result.map(Into::into).map_err(Into::into));
    }

    /// An engine's answer that is given here, in the engine's own step.
    pub(crate) fn answer<T, R: Into<ClientResponse>>(
        self,
        result: impl FnOnce(T) -> R + Send + 'static,
    ) -> Answer<T> {
        Answer::new(move |outcome: Result<T, Error>| self.finish(outcome.map(result)))
    }

    /// [`answer`](Self::answer), and a receiver that ends when it was given: for requests that those behind them on the
    /// lane must find done.
    pub(crate) fn awaited<T, R: Into<ClientResponse>>(
        self,
        result: impl FnOnce(T) -> R + Send + 'static,
    ) -> (Answer<T>, oneshot::Receiver<()>) {
        let (given, wait) = oneshot::channel();
        let answer = Answer::new(move |outcome: Result<T, Error>| {
            self.finish(outcome.map(result));
            drop(given);
        });
        (answer, wait)
    }

    fn give(&mut self, result: Result<ClientResponse, RpcError>) {
        self.answered = true;
        if let Err(error) = &result {
            tracing::debug!(method = self.method, code = %error.code, "a request failed: {}", error.message);
        }
        self.connection.respond(&self.id, result);
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let error = if self.connection.server.stopping.is_cancelled() {
            RpcError::new(ErrorCode::ShuttingDown, "the server is shutting down")
        } else {
            tracing::error!(method = self.method, "a request was abandoned");
            RpcError::new(ErrorCode::Internal, "the request was abandoned")
        };
        self.give(Err(error));
    }
}
