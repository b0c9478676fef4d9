//! The server: accepts connections and plays replies on them.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::http::{Broken, Connection};
use crate::load::Load;
use crate::provider::Ending;
use crate::reply::{Reply, Step};
use crate::request::Request;

/// Connections open at once, and as many more may wait to be accepted.
const CONNECTION_LIMIT: u32 = 4096;

/// Listens on a port of the loopback address; 0 takes a free one. Call it inside a runtime.
pub(crate) fn listen(port: u16) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::LOCALHOST, port).into())?;
    // With the usual backlog, a client of a thousand that connect at once waits a second for its next try.
    let listener = socket.listen(CONNECTION_LIMIT)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// What to do with one request.
pub(crate) enum Answer {
    /// Play this reply.
    Reply(Reply),
    /// Stream generated deltas.
    Load(Load),
}

/// What stands behind the server.
pub(crate) trait Service: Send + Sync + 'static {
    /// What keeps track of one request until its reply has ended.
    type Ticket: Send;

    /// Takes a request and says what to answer.
    fn answer(&self, request: Request) -> (Self::Ticket, Answer);

    /// The reply ended like this.
    fn ended(&self, ticket: Self::Ticket, ending: Ending);

    /// Something went wrong that the test should know of.
    fn fault(&self, fault: String);
}

/// Serves until the task is dropped; all connections end with it.
pub(crate) async fn serve<S: Service>(listener: TcpListener, service: Arc<S>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTION_LIMIT as usize => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, Arc::clone(&service)));
                }
                Err(error) => {
                    service.fault(format!("cannot accept a connection: {error}"));
                    return;
                }
            },
            Some(finished) = connections.join_next() => if finished.is_err_and(|error| error.is_panic()) {
                service.fault("the server panicked; its message is on stderr".to_owned());
            },
        }
    }
}

async fn connection<S: Service>(stream: TcpStream, service: Arc<S>) {
    // Without this a small piece would wait for the acknowledgement of the one before.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let mut connection = Connection::new(stream);
    loop {
        let request = match connection.read_request().await {
            Ok(request) => request,
            Err(Broken::Closed) => return,
            Err(Broken::Malformed(problem)) => {
                let answer = bad_request(&problem);
                service.fault(problem);
                // The rest of the connection cannot be read, whatever becomes of the answer.
                let _ = play(&mut connection, &answer).await;
                return;
            }
        };
        let (ticket, answer) = service.answer(request);
        let played = match &answer {
            Answer::Reply(reply) => play(&mut connection, reply).await,
            Answer::Load(load) => load.play(&mut connection).await,
        };
        // Writing fails when the client is no longer there to read.
        let played = played.unwrap_or(Played { ending: Ending::ClientLeft, reusable: false });
        service.ended(ticket, played.ending);
        if !played.reusable {
            return;
        }
    }
}

/// How a reply went.
pub(crate) struct Played {
    pub(crate) ending: Ending,
    /// Whether the connection can take the next request.
    pub(crate) reusable: bool,
}

async fn play(connection: &mut Connection, reply: &Reply) -> io::Result<Played> {
    let framing = reply.framing;
    connection.write_head(reply).await?;
    for step in &reply.steps {
        let ending = match step {
            Step::Send(bytes) => {
                connection.write_piece(framing, bytes).await?;
                continue;
            }
            Step::Drip(bytes) => {
                connection.write_drip(framing, bytes).await?;
                continue;
            }
            Step::Wait(gate) => {
                tokio::select! {
                    () = gate.pass() => continue,
                    () = connection.client_left() => Ending::ClientLeft,
                }
            }
            Step::Cut => Ending::Cut,
            Step::Hang => {
                connection.client_left().await;
                Ending::ClientLeft
            }
            Step::Reset => {
                connection.reset_on_close()?;
                Ending::Cut
            }
        };
        return Ok(Played { ending, reusable: false });
    }
    let reusable = connection.write_end(framing).await?;
    Ok(Played { ending: Ending::Complete, reusable })
}

/// The answer to a request that should not have been sent.
pub(crate) fn bad_request(problem: &str) -> Reply {
    Reply::error(400, "invalid_request_error", problem)
}
