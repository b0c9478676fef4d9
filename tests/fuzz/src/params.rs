//! The params, results and notifications of every row: read or refused with a code, and the same when read again.
//!
//! Neighbours: none.

use raddle_protocol::ErrorCode;
use raddle_protocol::methods::{
    ClientNotification, ClientRequest, ClientResponse, Direction, METHODS, ServerNotification, ServerRequest,
};
use serde_json::Value;

pub(crate) fn check(input: &[u8]) {
    let Some((row, json)) = input.split_first() else { return };
    let Ok(value) = serde_json::from_slice::<Value>(json) else { return };
    let row = &METHODS[usize::from(*row) % METHODS.len()];
    let name = row.name;
    // The params of a whole message, too.
    let value = value.get("params").or(value.get("result")).cloned().unwrap_or(value);
    match row.direction {
        Direction::ClientRequest(_) => {
            match ClientRequest::decode(name, value.clone()) {
                Ok(request) => {
                    let params = request.params().expect("it has a JSON form");
                    assert_eq!(ClientRequest::decode(name, params), Ok(request), "{name}");
                }
                Err(error) => assert_eq!(error.code, ErrorCode::InvalidParams, "{name}"),
            }
            if let Ok(response) = ClientResponse::decode(name, value) {
                let result = response.result().expect("it has a JSON form");
                assert_eq!(ClientResponse::decode(name, result), Ok(response), "{name}");
            }
        }
        Direction::ServerRequest => {
            if let Ok(request) = ServerRequest::decode(name, value.clone()) {
                let params = request.params().expect("it has a JSON form");
                assert_eq!(ServerRequest::decode(name, params), Ok(request.clone()), "{name}");
                // Whatever a client answers, it is read or refused.
                let _ = request.decode_answer(value);
            }
        }
        Direction::ClientNotification => drop(ClientNotification::decode(name, value)),
        Direction::ServerNotification(_) => {
            if let Ok(notification) = ServerNotification::decode(name, value) {
                let params = notification.params().expect("it has a JSON form");
                assert_eq!(ServerNotification::decode(name, params), Ok(notification), "{name}");
            }
        }
    }
}
