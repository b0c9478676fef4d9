//! From a row of the table to its handler.
//!
//! Neighbours: connection, handler, lanes, responder.

use std::sync::Arc;

use raddle_protocol::ThreadId;
use raddle_protocol::methods::ClientRequest;

use crate::connection::Connection;
use crate::handler;
use crate::responder::Responder;

/// Runs a request on a task of its own. The responder answers it, here or later.
pub(crate) fn dispatch(connection: &Arc<Connection>, request: ClientRequest, responder: Responder) {
    let place = lane_of(&request).map(|thread_id| connection.lanes.enter(thread_id));
    let connection = connection.clone();
    let server = connection.server.clone();
    let (requests, runtime) = (server.requests.clone(), server.runtime.clone());
    let task = async move {
        let run = async {
            match place {
                Some(mut place) => {
                    place.reached().await;
                    handle(&connection, request, responder).await;
                    connection.lanes.leave(place);
                }
                None => handle(&connection, request, responder).await,
            }
        };
        // Giving up drops the responder, and that answers.
        tokio::select! {
            () = run => {}
            () = server.stopped.cancelled() => {}
        }
    };
    requests.spawn_on(task, &runtime);
}

/// The thread whose requests this one is ordered with. A test holds it against the table's scopes.
fn lane_of(request: &ClientRequest) -> Option<&ThreadId> {
    match request {
        ClientRequest::ThreadResume(params) => Some(&params.thread_id),
        ClientRequest::ThreadSettingsUpdate(params) => Some(&params.thread_id),
        ClientRequest::TurnStart(params) => Some(&params.thread_id),
        ClientRequest::TurnSteer(params) => Some(&params.thread_id),
        ClientRequest::TurnInterrupt(params) => Some(&params.thread_id),
        ClientRequest::TurnSend(params) => Some(&params.start.thread_id),
        ClientRequest::TurnQueueAdd(params) => Some(&params.thread_id),
        ClientRequest::TurnQueueRemove(params) => Some(&params.thread_id),
        ClientRequest::ThreadFork(params) => Some(&params.thread_id),
        ClientRequest::ThreadNameSet(params) => Some(&params.thread_id),
        ClientRequest::ThreadArchive(params)
        | ClientRequest::ThreadUnarchive(params)
        | ClientRequest::ThreadDelete(params)
        | ClientRequest::ThreadUnsubscribe(params) => Some(&params.thread_id),
        ClientRequest::ThreadCompact(params) => Some(&params.thread_id),
        ClientRequest::ThreadRewind(params) => Some(&params.thread_id),
        ClientRequest::Initialize(_)
        | ClientRequest::ThreadStart(_)
        | ClientRequest::ThreadRead(_)
        | ClientRequest::ThreadList(_)
        | ClientRequest::PayloadRead(_)
        | ClientRequest::ModelList(_)
        | ClientRequest::ServerDiagnostics(_) => None,
    }
}

async fn handle(connection: &Arc<Connection>, request: ClientRequest, responder: Responder) {
    match request {
        // Answered before dispatch, since what follows on the connection depends on it.
        ClientRequest::Initialize(_) => drop(responder),
        ClientRequest::ThreadStart(params) => handler::thread::start(connection, params, responder).await,
        ClientRequest::ThreadRead(params) => handler::thread::read(connection, params, responder).await,
        ClientRequest::ThreadResume(params) => handler::thread::resume(connection, params, responder).await,
        ClientRequest::ThreadList(params) => handler::thread::list(connection, params, responder).await,
        ClientRequest::ThreadSettingsUpdate(params) => {
            handler::thread::update_settings(connection, params, responder).await;
        }
        ClientRequest::TurnStart(params) => handler::turn::start(connection, params, responder).await,
        ClientRequest::TurnSteer(params) => handler::turn::steer(connection, params, responder).await,
        ClientRequest::TurnInterrupt(params) => handler::turn::interrupt(connection, params, responder).await,
        ClientRequest::TurnSend(params) => handler::turn::send(connection, params, responder).await,
        ClientRequest::TurnQueueAdd(params) => handler::turn::queue_add(connection, params, responder).await,
        ClientRequest::TurnQueueRemove(params) => {
            handler::turn::queue_remove(connection, params, responder).await;
        }
        ClientRequest::ThreadFork(params) => handler::thread::fork(connection, params, responder).await,
        ClientRequest::ThreadNameSet(params) => handler::change::rename(connection, params, responder).await,
        ClientRequest::ThreadArchive(params) => handler::change::archive(connection, params, responder).await,
        ClientRequest::ThreadUnarchive(params) => {
            handler::change::unarchive(connection, params, responder).await;
        }
        ClientRequest::ThreadDelete(params) => handler::change::delete(connection, params, responder).await,
        ClientRequest::ThreadUnsubscribe(params) => {
            handler::change::unsubscribe(connection, params, responder).await;
        }
        ClientRequest::ThreadCompact(params) => handler::change::compact(connection, params, responder).await,
        ClientRequest::ThreadRewind(params) => handler::change::rewind(connection, params, responder).await,
        ClientRequest::PayloadRead(params) => handler::payload::read(connection, params, responder).await,
        ClientRequest::ModelList(_) => handler::server::models(connection, responder).await,
        ClientRequest::ServerDiagnostics(_) => handler::server::diagnostics(connection, responder),
    }
}

#[cfg(test)]
mod tests {
    use raddle_protocol::methods::{Direction, METHODS, Scope};
    use serde_json::json;

    use super::*;

    #[test]
    fn lanes_follow_the_scopes_of_the_table() {
        let params = json!({
            "threadId": "t", "expectedTurnId": "u", "text": "x", "cwd": "/",
            "turnId": "u", "queueId": "q", "id": "p", "clientInfo": { "name": "n", "version": "v" },
        });
        for row in METHODS {
            let Direction::ClientRequest(scope) = row.direction else { continue };
            let request = ClientRequest::decode(row.name, params.clone()).unwrap();
            assert_eq!(lane_of(&request).is_some(), scope == Scope::Thread, "{}", row.name);
        }
    }
}
