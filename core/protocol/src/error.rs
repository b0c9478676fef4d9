//! The stable error codes and the error of a response.
//!
//! A code is a word. It never changes its meaning; the message beside it is for people and may.
//!
//! Neighbours: none.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)+) => {
        /// Why a request failed, as a word that programs may rely on.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $($(#[$doc])* $name,)+
            /// A word that this version does not know, kept as it came.
            Unrecognised(String),
        }

        impl ErrorCode {
            /// All codes of this version, in the order of the documentation.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$name,)+];

            /// The word on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$name => $word,)+
                    Self::Unrecognised(word) => word,
                }
            }
        }

        impl From<String> for ErrorCode {
            fn from(word: String) -> Self {
                match word.as_str() {
                    $($word => Self::$name,)+
                    _ => Self::Unrecognised(word),
                }
            }
        }
    };
}

error_codes! {
    /// A line was not JSON.
    ParseError = "parseError",
    /// JSON, but no message of this protocol; a second `initialize`; a request id that still runs.
    InvalidRequest = "invalidRequest",
    /// A request before the handshake was complete.
    NotInitialized = "notInitialized",
    /// The method exists, its parameters do not fit. `data.reason` says more where there is more to say.
    InvalidParams = "invalidParams",
    /// There is no such method.
    MethodNotFound = "methodNotFound",
    /// There is no thread with this id.
    ThreadNotFound = "threadNotFound",
    /// The thread must be archived first.
    ThreadNotArchived = "threadNotArchived",
    /// The thread runs a turn, or is about to.
    TurnInProgress = "turnInProgress",
    /// The named turn is not the running one.
    TurnMismatch = "turnMismatch",
    /// Another process owns the thread. `data.pid` names it where it is known.
    ThreadLockedElsewhere = "threadLockedElsewhere",
    /// The cursor is malformed, foreign, expired, or its branch is gone.
    InvalidCursor = "invalidCursor",
    /// The settings file changed meanwhile. `data.version` is its version now.
    ConfigConflict = "configConflict",
    /// Archiving or restoring met something in its way.
    ArchiveConflict = "archiveConflict",
    /// A program that the method needs is missing.
    ToolMissing = "toolMissing",
    /// The server stops and takes nothing more.
    ShuttingDown = "shuttingDown",
    /// Something failed on our side. `data.reason` is one of [`StorageReason`] where the store failed.
    Internal = "internal",
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for ErrorCode {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ErrorCode {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(Self::from(String::deserialize(d)?))
    }
}

impl JsonSchema for ErrorCode {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ErrorCode".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let known: Vec<&str> = Self::ALL.iter().map(Self::as_str).collect();
        json_schema!({
            "type": "string",
            "description": "A stable word. Clients keep words that they do not know.",
            "examples": known,
        })
    }
}

/// What failed about the store: `data.reason` beside [`ErrorCode::Internal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum StorageReason {
    /// The file at the database's place is no database.
    NotADatabase,
    /// The database is damaged.
    Corrupt,
    /// A newer Raddle wrote this database.
    NewerSchema,
    /// The database has a second hard link, through which it would be damaged.
    HardLinked,
    /// The file system cannot carry a shared SQLite database (a network mount, for example).
    UnsupportedFilesystem,
    /// The directory or the database cannot be written.
    NotWritable,
    /// No space is left.
    DiskFull,
    /// Another input or output failure.
    Io,
}

/// The error of a response: `{"code":"threadNotFound","message":"…","data":{…}}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[error("{code}: {message}")]
pub struct RpcError {
    /// The stable word.
    pub code: ErrorCode,
    /// For people; may change.
    pub message: String,
    /// What a program may act on besides the code; its shape depends on the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl RpcError {
    /// An error without data.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// An `invalidParams` error.
    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidParams, message)
    }

    /// The same error with `data`.
    #[must_use]
    pub fn with_data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }

    /// The same error with `data: {"reason": …}`.
    #[must_use]
    pub fn with_reason(self, reason: impl Serialize) -> Self {
        self.with_data(serde_json::json!({ "reason": reason }))
    }

    /// `data.reason`, if there is one.
    pub fn reason(&self) -> Option<&str> {
        self.data.as_ref()?.get("reason")?.as_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive_the_wire_known_or_not() {
        for code in ErrorCode::ALL {
            let json = serde_json::to_string(code).unwrap();
            assert_eq!(&serde_json::from_str::<ErrorCode>(&json).unwrap(), code);
        }
        let odd: ErrorCode = serde_json::from_str("\"fromTheFuture\"").unwrap();
        assert_eq!(odd.as_str(), "fromTheFuture");
    }
}
