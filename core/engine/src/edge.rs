//! The one map from the engine's errors to the protocol's codes.
//!
//! Every match is exhaustive: a new error does not compile until it has a code.
//!
//! Neighbours: error, turn.

use raddle_models::ModelsError;
use raddle_protocol::limits::cut_chars;
use raddle_protocol::{ErrorCode, RpcError};
use raddle_store::Error as StoreError;
use serde_json::json;

use crate::error::Error;
use crate::turn::Refusal;

/// Characters of an error's message; what it repeats of a request may be long.
const MESSAGE_CHARS_MAX: usize = 1_000;

impl From<Error> for RpcError {
    fn from(error: Error) -> Self {
        let mut rpc = of_error(error);
        rpc.message = cut_chars(&rpc.message, MESSAGE_CHARS_MAX).to_owned();
        rpc
    }
}

fn of_error(error: Error) -> RpcError {
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
        Error::Busy(_) | Error::Starting(_) | Error::StillSettling(_) => {
            RpcError::new(ErrorCode::TurnInProgress, message)
        }
        Error::Archived(_) => RpcError::invalid_params(message).with_reason("archived"),
        Error::NotArchived(_) => RpcError::new(ErrorCode::ThreadNotArchived, message),
        Error::ShuttingDown => RpcError::new(ErrorCode::ShuttingDown, message),
        Error::Broken(error) => error,
        Error::StaleHistory | Error::Abandoned => RpcError::new(ErrorCode::Internal, message),
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
        Refusal::QueueFull(_) | Refusal::TooMuchWaits(_) => {
            RpcError::invalid_params(message).with_reason("queueFull")
        }
        Refusal::NotSteerable(_) => RpcError::invalid_params(message).with_reason("notSteerable"),
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

/// The protocol's error for a failure of the store.
pub fn store_error(error: &StoreError) -> RpcError {
    let message = error.to_string();
    let internal = || {
        let failed = RpcError::new(ErrorCode::Internal, message.clone());
        match error.reason() {
            Some(reason) => failed.with_reason(reason),
            None => failed,
        }
    };
    match error {
        StoreError::ThreadNotFound { .. } => RpcError::new(ErrorCode::ThreadNotFound, message),
        StoreError::TurnNotFound { .. } => RpcError::invalid_params(message).with_reason("unknownTurn"),
        StoreError::NotArchived { .. } => RpcError::new(ErrorCode::ThreadNotArchived, message),
        StoreError::ThreadExists { .. } => RpcError::invalid_params(message).with_reason("threadExists"),
        StoreError::LockedElsewhere { pid, .. } => {
            RpcError::new(ErrorCode::ThreadLockedElsewhere, message).with_data(json!({ "pid": pid }))
        }
        StoreError::Fenced { .. } => {
            RpcError::new(ErrorCode::ThreadLockedElsewhere, message).with_reason("ownershipLost")
        }
        StoreError::InvalidCursor => RpcError::new(ErrorCode::InvalidCursor, message),
        StoreError::Closed => RpcError::new(ErrorCode::ShuttingDown, message),
        StoreError::Rejected { .. }
        | StoreError::Full { .. }
        | StoreError::NotADatabase { .. }
        | StoreError::Corrupt { .. }
        | StoreError::NewerSchema { .. }
        | StoreError::HardLinked { .. }
        | StoreError::UnsupportedFilesystem { .. }
        | StoreError::NotWritable { .. }
        | StoreError::DiskFull { .. }
        | StoreError::Busy { .. }
        | StoreError::Io { .. }
        | StoreError::Sqlite { .. }
        | StoreError::Unreadable { .. } => internal(),
    }
}
