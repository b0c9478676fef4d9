//! Handlers of `turn/…`.
//!
//! Neighbours: connection, responder.

use std::sync::Arc;

use raddle_protocol::turn::{TurnInterruptParams, TurnInterruptResult, TurnStartParams, TurnSteerParams};

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
