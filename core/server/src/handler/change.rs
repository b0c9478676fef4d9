//! Handlers of the requests that change a thread without a turn of the user's.
//!
//! Those that need no load are waited for: on a loaded thread they go through its inbox, and on one that is not they do not, so
//! the one behind on the lane would not find them done.
//!
//! Neighbours: connection, responder.

use std::sync::Arc;

use raddle_engine::Subscriber;
use raddle_protocol::thread::{
    ThreadArchiveResult, ThreadCompactParams, ThreadDeleteResult, ThreadIdParams, ThreadNameSetParams,
    ThreadNameSetResult, ThreadRewindParams, ThreadRewindResult, ThreadUnarchiveResult,
    ThreadUnsubscribeResult, UnsubscribeStatus,
};

use crate::connection::Connection;
use crate::responder::Responder;

pub(crate) async fn rename(connection: &Arc<Connection>, params: ThreadNameSetParams, responder: Responder) {
    let (answer, given) = responder.awaited(|()| ThreadNameSetResult {});
    connection.server.engine.rename(params, answer).await;
    let _ = given.await;
}

pub(crate) async fn archive(connection: &Arc<Connection>, params: ThreadIdParams, responder: Responder) {
    let (answer, given) = responder.awaited(|()| ThreadArchiveResult {});
    connection.server.engine.archive(&params.thread_id, answer).await;
    let _ = given.await;
}

pub(crate) async fn unarchive(connection: &Arc<Connection>, params: ThreadIdParams, responder: Responder) {
    let (answer, given) = responder.awaited(|()| ThreadUnarchiveResult {});
    connection.server.engine.unarchive(&params.thread_id, answer).await;
    let _ = given.await;
}

pub(crate) async fn delete(connection: &Arc<Connection>, params: ThreadIdParams, responder: Responder) {
    let (answer, given) = responder.awaited(|()| ThreadDeleteResult {});
    connection.server.engine.delete(&params.thread_id, answer).await;
    let _ = given.await;
}

pub(crate) async fn unsubscribe(connection: &Arc<Connection>, params: ThreadIdParams, responder: Responder) {
    let answer = responder.answer(|subscribed| ThreadUnsubscribeResult {
        status: match subscribed {
            true => UnsubscribeStatus::Unsubscribed,
            false => UnsubscribeStatus::NotSubscribed,
        },
    });
    connection.server.engine.unsubscribe(&params.thread_id, connection.id(), answer).await;
}

pub(crate) async fn compact(connection: &Arc<Connection>, params: ThreadCompactParams, responder: Responder) {
    let answer = responder.answer(|result| result);
    connection.server.engine.compact(params, answer).await;
}

pub(crate) async fn rewind(connection: &Arc<Connection>, params: ThreadRewindParams, responder: Responder) {
    let answer = responder.answer(|usage| ThreadRewindResult { usage });
    connection.server.engine.rewind(params, answer).await;
}
