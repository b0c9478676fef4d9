//! What the engine knows of a client: somebody to tell, and perhaps to ask.
//!
//! Neighbours: error.

use std::sync::Arc;

use parking_lot::RwLock;
use raddle_protocol::methods::{ServerAnswer, ServerNotification, ServerRequest};
use raddle_protocol::{RpcError, ThreadId};

use crate::error::Error;

/// Names a connection in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// Names a request of the server on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AskId(pub u64);

/// Takes the answer to a request of the server; an error when there will be none.
pub type AskSink = Box<dyn FnOnce(Result<ServerAnswer, RpcError>) + Send>;

/// One end of a connection, as threads see it. No call blocks: a slow client slows nobody (P8).
pub trait Subscriber: Send + Sync + 'static {
    /// Its connection.
    fn id(&self) -> ConnectionId;
    /// Whether it still listens. One that does not is forgotten.
    fn is_open(&self) -> bool;
    /// Queues a notification.
    fn notify(&self, notification: &Arc<ServerNotification>);
    /// Queues a request. The sink is called once, with an error if the client cannot answer or leaves; after
    /// [`withdraw`](Self::withdraw) it is not called any more.
    fn ask(&self, request: ServerRequest, sink: AskSink) -> AskId;
    /// Says that a subscription of it went over to another thread, from which it is to be detached when it closes.
    fn follow(&self, thread_id: &ThreadId);
    /// Says that the request needs no answer any more.
    fn withdraw(&self, ask: AskId, reason: &str);
}

/// The answer to a request; given exactly once (P4). Dropped without, it answers that it was abandoned.
pub struct Answer<T>(Option<AnswerSink<T>>);

type AnswerSink<T> = Box<dyn FnOnce(Result<T, Error>) + Send>;

impl<T> Answer<T> {
    /// An answer that goes to `sink`.
    pub fn new(sink: impl FnOnce(Result<T, Error>) + Send + 'static) -> Self {
        Self(Some(Box::new(sink)))
    }

    /// Gives it.
    pub fn send(mut self, result: Result<T, Error>) {
        if let Some(sink) = self.0.take() {
            sink(result);
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        if let Some(sink) = self.0.take() {
            sink(Err(Error::Abandoned));
        }
    }
}

impl<T> std::fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Answer")
    }
}

/// Every initialised connection of the process, for what concerns all.
#[derive(Default)]
pub struct Hub {
    connections: RwLock<Vec<Arc<dyn Subscriber>>>,
}

impl Hub {
    /// Adds a connection.
    pub fn join(&self, connection: Arc<dyn Subscriber>) {
        self.connections.write().push(connection);
    }

    /// Removes a connection.
    pub fn leave(&self, id: ConnectionId) {
        self.connections.write().retain(|connection| connection.id() != id);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.connections.read().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tells all.
    pub fn broadcast(&self, notification: ServerNotification) {
        let notification = Arc::new(notification);
        for connection in &*self.connections.read() {
            connection.notify(&notification);
        }
    }
}
