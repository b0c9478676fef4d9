//! Handler of `payload/read`.
//!
//! Neighbours: connection, responder.

use std::sync::Arc;

use raddle_protocol::payload::PayloadReadParams;

use crate::connection::Connection;
use crate::responder::Responder;

pub(crate) async fn read(connection: &Arc<Connection>, params: PayloadReadParams, responder: Responder) {
    let server = &connection.server;
    responder.finish(server.payloads.read(&server.engine, params).await);
}
