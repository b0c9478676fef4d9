//! The one map from the engine's errors to the protocol's codes.
//!
//! Every match is exhaustive: a new error does not compile until it has a code.
//!
//! Neighbours: error, turn.

use raddle_models::ModelsError;
use raddle_protocol::{ErrorCode, RpcError};
use raddle_store::Error as StoreError;
use serde_json::json;

use crate::error::Error;
use crate::turn::Refusal;

impl From<Error> for RpcError {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::Store(error) => store_error(&error),
            Error::Models(error) => models_error(&error),
            Error::Refused(refusal) => refusal_error(&refusal),
            Error::InvalidParams { message, reason } => {
                let error = RpcError::invalid_params(message);
                match reason {
                    Some(reason) => error.with_reason(reason),
                    None => error,
                }
            }
            Error::Starting(_) | Error::StillSettling(_) => RpcError::new(ErrorCode::TurnInProgress, message),
            Error::ShuttingDown => RpcError::new(ErrorCode::ShuttingDown, message),
            Error::Broken(error) => error,
            Error::StaleHistory | Error::Abandoned | Error::Setup(_) => {
                RpcError::new(ErrorCode::Internal, message)
            }
        }
    }
}

fn refusal_error(refusal: &Refusal) -> RpcError {
    let message = refusal.to_string();
    match refusal {
        Refusal::TurnInProgress(turn_id) => {
            RpcError::new(ErrorCode::TurnInProgress, message).with_data(json!({ "turnId": turn_id }))
        }
        Refusal::TurnMismatch { running } => {
            RpcError::new(ErrorCode::TurnMismatch, message).with_data(json!({ "runningTurnId": running }))
        }
        Refusal::TooManySteers(_) => RpcError::invalid_params(message).with_reason("tooManySteers"),
    }
}

/// The protocol's error for a failure of the model registry.
pub fn models_error(error: &ModelsError) -> RpcError {
    let message = error.to_string();
    match error {
        ModelsError::UnknownProvider { .. } => {
            RpcError::invalid_params(message).with_reason("unknownProvider")
        }
        ModelsError::UnknownModel { .. } => RpcError::invalid_params(message).with_reason("unknownModel"),
        ModelsError::Config { .. } => RpcError::invalid_params(message).with_reason("config"),
    }
}
