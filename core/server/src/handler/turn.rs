//! Handlers of `turn/…`.
//!
//! Neighbours: connection, responder.

use std::sync::Arc;

use raddle_protocol::turn::{
    TurnInterruptParams, TurnInterruptResult, TurnQueueAddParams, TurnQueueAddResult, TurnQueueRemoveParams,
    TurnQueueRemoveResult, TurnSendParams, TurnStartParams, TurnSteerParams,
};

use crate::connection::Connection;
use crate::responder::Responder;

pub(crate) async fn start(connection: &Arc<Connection>, params: TurnStartParams, responder: Responder) {
    connection.will_subscribe(&params.thread_id);
    let answer = responder.answer(|result| result);
    connection.server.engine.start_turn(params, connection.clone(), answer).await;
}

pub(crate) async fn steer(connection: &Arc<Connection>, params: TurnSteerParams, responder: Responder) {
    let answer = responder.answer(|result| result);
    connection.server.engine.steer(params, answer).await;
}

pub(crate) async fn interrupt(
    connection: &Arc<Connection>,
    params: TurnInterruptParams,
    responder: Responder,
) {
    let answer = responder.answer(|()| TurnInterruptResult {});
    connection.server.engine.interrupt(params, answer).await;
}

pub(crate) async fn send(connection: &Arc<Connection>, params: TurnSendParams, responder: Responder) {
    connection.will_subscribe(&params.start.thread_id);
    let answer = responder.answer(|result| result);
    connection.server.engine.send(params, connection.clone(), answer).await;
}

pub(crate) async fn queue_add(
    connection: &Arc<Connection>,
    params: TurnQueueAddParams,
    responder: Responder,
) {
    let answer = responder.answer(|queue_id| TurnQueueAddResult { queue_id });
    connection.server.engine.queue_add(params, answer).await;
}

pub(crate) async fn queue_remove(
    connection: &Arc<Connection>,
    params: TurnQueueRemoveParams,
    responder: Responder,
) {
    let answer = responder.answer(|removed| TurnQueueRemoveResult { removed });
    connection.server.engine.queue_remove(params, answer).await;
}
