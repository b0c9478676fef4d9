//! Handler of `payload/read`.
//!
//! Neighbours: connection, responder.

use std::sync::Arc;

use raddle_protocol::RpcError;
use raddle_protocol::payload::{PayloadReadParams, PayloadReadResult};

use crate::connection::Connection;
use crate::responder::Responder;

pub(crate) async fn read(_connection: &Arc<Connection>, params: PayloadReadParams, responder: Responder) {
    let error = RpcError::invalid_params(format!("there is no payload `{}`", params.id));
    responder.finish(Err::<PayloadReadResult, _>(error.with_reason("unknownPayload")));
}
