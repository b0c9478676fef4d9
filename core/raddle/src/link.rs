//! What a client talks over: the connection itself in the same process, or lines of JSON to another one.
//!
//! Neighbours: none.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use raddle_protocol::methods::ServerAnswer;
use raddle_protocol::rpc::ClientMessage;
use raddle_protocol::{RequestId, RpcError};
use raddle_server::transport::envelope::FromServer;
use raddle_server::transport::stdio::{ClientSink, ClientSource};
use raddle_server::{Answered, Connection};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

/// Messages to a server that wait to be written; at more, whoever sends waits.
const OUTGOING_MAX: usize = 64;

/// Requests of a server over bytes that may be open at the same time; further ones are refused at once.
const OPEN_REQUESTS_MAX: usize = 1_024;

/// The sending half. Closing it, or dropping it, closes the connection.
pub(crate) enum Link {
    /// Typed messages, nothing serialised.
    Memory(Arc<Connection>),
    /// Lines.
    Bytes(Bytes),
}

/// The receiving half.
pub(crate) enum Inbox {
    Memory(Arc<Connection>),
    Bytes(Box<ClientSource<Box<dyn AsyncRead + Send + Unpin>>>),
}

pub(crate) struct Bytes {
    /// `None` once the link is closed; the writing task then ends.
    outgoing: Mutex<Option<mpsc::Sender<ClientMessage>>>,
    writing: AbortHandle,
    /// What this client was asked and has not answered.
    open: Mutex<HashSet<RequestId>>,
}

impl Link {
    /// The two halves of a connection in this process.
    pub(crate) fn memory(connection: Arc<Connection>) -> (Self, Inbox) {
        (Self::Memory(connection.clone()), Inbox::Memory(connection))
    }

    /// The two halves of a connection over bytes.
    pub(crate) fn bytes(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        runtime: &Handle,
    ) -> (Self, Inbox) {
        let (outgoing, queue) = mpsc::channel(OUTGOING_MAX);
        let writing = runtime.spawn(write(ClientSink::new(writer), queue)).abort_handle();
        let reader: Box<dyn AsyncRead + Send + Unpin> = Box::new(reader);
        let bytes = Bytes { outgoing: Mutex::new(Some(outgoing)), writing, open: Mutex::new(HashSet::new()) };
        (Self::Bytes(bytes), Inbox::Bytes(Box::new(ClientSource::new(reader))))
    }

    /// Sends a message, waiting for room; whether it is on its way.
    pub(crate) async fn send(&self, message: ClientMessage) -> bool {
        match self {
            Self::Memory(connection) => {
                connection.receive(message).await;
                true
            }
            Self::Bytes(bytes) => bytes.send(message).await,
        }
    }

    /// Answers a request of the server.
    pub(crate) async fn answer(&self, id: &RequestId, answer: Result<ServerAnswer, RpcError>) -> Answered {
        match self {
            Self::Memory(connection) => connection.answer(id, answer),
            Self::Bytes(bytes) => {
                let was_open = bytes.open.lock().remove(id);
                if !was_open {
                    tracing::info!(%id, "an answer to no open request was ignored");
                    return Answered::Late;
                }
                match bytes.send(ClientMessage::Answer { id: id.clone(), answer }).await {
                    true => Answered::Taken,
                    false => Answered::Late,
                }
            }
        }
    }

    /// The server asked something. Whether that may wait for its answer beside all else that does.
    pub(crate) fn opens(&self, id: &RequestId) -> bool {
        let Self::Bytes(bytes) = self else { return true };
        let mut open = bytes.open.lock();
        let has_room = open.len() < OPEN_REQUESTS_MAX;
        open.insert(id.clone());
        has_room
    }

    /// The server needs no answer any more.
    pub(crate) fn withdraws(&self, id: &RequestId) {
        if let Self::Bytes(bytes) = self {
            bytes.open.lock().remove(id);
        }
    }

    /// Closes the connection. Over bytes, what waits is written first, and the far end then reads the end of its input.
    pub(crate) fn close(&self) {
        match self {
            Self::Memory(connection) => connection.close(),
            Self::Bytes(bytes) => *bytes.outgoing.lock() = None,
        }
    }

    /// Closes the connection without waiting for anything. Over bytes, what waits is dropped.
    pub(crate) fn abandon(&self) {
        self.close();
        if let Self::Bytes(bytes) = self {
            bytes.writing.abort();
        }
    }

    /// Whether the far end may be another process, which may never end by itself.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self, Self::Bytes(_))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl Inbox {
    /// The next message; `None` at the end. `asked` tells the method of an open request.
    pub(crate) async fn next(
        &mut self,
        asked: impl FnMut(&RequestId) -> Option<&'static str> + Send,
    ) -> Option<FromServer> {
        match self {
            Self::Memory(connection) => connection.next().await.map(FromServer::Message),
            Self::Bytes(source) => source.receive(asked).await,
        }
    }
}

impl Bytes {
    async fn send(&self, message: ClientMessage) -> bool {
        let outgoing = self.outgoing.lock().clone();
        match outgoing {
            Some(outgoing) => outgoing.send(message).await.is_ok(),
            None => false,
        }
    }
}

async fn write<W: AsyncWrite + Send + Unpin>(
    mut sink: ClientSink<W>,
    mut queue: mpsc::Receiver<ClientMessage>,
) {
    while let Some(message) = queue.recv().await {
        let mut next = Some(message);
        let mut written = Ok(());
        while let (Some(message), Ok(())) = (next.take(), &written) {
            written = sink.send(&message).await;
            next = queue.try_recv().ok();
        }
        if let Err(error) = written.and(sink.flush().await) {
            tracing::warn!(%error, "the server could not be written to");
            return;
        }
    }
    sink.close().await;
}
