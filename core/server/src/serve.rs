//! Connections over transports: two loops each, one that reads and one that writes.
//!
//! Neighbours: connection, server, transport.

use std::future::pending;
use std::io;
use std::sync::Arc;

use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::connection::Connection;
use crate::server::Server;
use crate::transport::{MessageSink, MessageSource};

/// Why reading came to its end.
#[derive(PartialEq)]
enum Ended {
    /// There is no more input.
    Input,
    /// The server stops, and takes none.
    Server,
}

impl Server {
    /// Serves one connection of several over a transport, until either end closes it. What was accepted is answered,
    /// and what waits is sent, before it returns. While the server stops, nothing more is read.
    ///
    /// A client that reads too slowly is given up at the outbox's bound, and one that cannot be written to at once.
    pub async fn serve(&self, source: impl MessageSource, sink: impl MessageSink) {
        let connection = self.connect();
        let incoming = async {
            if self.read(&connection, source, &self.shared.stopping).await == Ended::Server {
                // Closing the connection is the server's business then, once the threads have said their last.
                pending::<()>().await;
            }
            connection.drained().await;
            connection.close();
        };
        let outgoing = write(&connection, sink);
        tokio::pin!(incoming, outgoing);
        tokio::select! {
            () = &mut incoming => {
                outgoing.await;
            }
            _ = &mut outgoing => {}
        }
    }

    /// Serves the only connection of a process. When its input ends, when it cannot be written to, or when `stop` is
    /// ready, nothing more is read, what was accepted is answered, and the server [shuts down](Self::shut_down). Returns
    /// when all of the output is written, and at the latest [`ShutdownTimes::ends_after`](crate::ShutdownTimes::ends_after)
    /// after the input's end, even if the client has stopped to read. The result is whether all of the
    /// output was written.
    pub async fn serve_alone(
        &self,
        source: impl MessageSource,
        sink: impl MessageSink,
        stop: impl Future<Output = ()>,
    ) -> bool {
        let connection = self.connect();
        let input_over = self.shared.stopping.child_token();
        let incoming = async {
            self.read(&connection, source, &input_over).await;
        };
        let outgoing = write(&connection, sink);
        tokio::pin!(incoming, outgoing, stop);
        let (mut has_read, mut has_written) = (false, None);
        tokio::select! {
            () = &mut incoming => has_read = true,
            is_whole = &mut outgoing => has_written = Some(is_whole),
            () = &mut stop => {}
        }
        let begun = Instant::now();
        let times = self.shared.shutdown;
        self.shared.ending.cancel();
        input_over.cancel();
        let ending = async {
            let shut_down = async {
                // What was asked just before the end is done, if it is soon done, and not refused.
                if has_written.is_none() {
                    let _ = timeout_at(begun + times.accepted_first, connection.drained()).await;
                }
                self.shut_down_since(begun).await;
            };
            let written = async {
                match has_written {
                    Some(is_whole) => is_whole,
                    None => outgoing.await,
                }
            };
            tokio::join!(shut_down, written).1
        };
        // A message that was read is still taken, but nothing waits for that: its answer is.
        let taking = async {
            if !has_read {
                incoming.await;
            }
            pending().await
        };
        tokio::select! {
            ended = timeout_at(begun + times.ends_after, ending) => matches!(ended, Ok(true)),
            never = taking => never,
        }
    }

    /// Reads until there is no more, or until the input is said to be over.
    async fn read(
        &self,
        connection: &Arc<Connection>,
        mut source: impl MessageSource,
        over: &CancellationToken,
    ) -> Ended {
        loop {
            let incoming = tokio::select! {
                biased;
                () = over.cancelled() => return Ended::Server,
                incoming = source.receive() => incoming,
            };
            match incoming {
                // Not within the choice above: what was read is accepted or refused, never forgotten.
                Some(incoming) => connection.take(incoming).await,
                None => return Ended::Input,
            }
        }
    }
}

/// Writes what the connection sends until it is at its end. The result is whether that was all.
async fn write(connection: &Connection, mut sink: impl MessageSink) -> bool {
    let written = tokio::select! {
        written = send_all(connection, &mut sink) => written,
        // A client that does not read may keep a write waiting for ever.
        () = connection.overflowed() => Ok(()),
    };
    if let Err(error) = &written {
        tracing::warn!(%error, "a connection could not be written to");
    }
    connection.close();
    let is_whole = written.is_ok() && !connection.has_overflowed();
    if is_whole {
        sink.close().await;
    }
    is_whole
}

async fn send_all(connection: &Connection, sink: &mut impl MessageSink) -> io::Result<()> {
    while let Some(message) = connection.next().await {
        sink.send(message).await?;
        while let Some(message) = connection.try_next() {
            sink.send(message).await?;
        }
        sink.flush().await?;
    }
    Ok(())
}
