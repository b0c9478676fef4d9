//! Every message of Raddle's wire, typed, and what the log keeps.
//!
//! One vocabulary serves the store, the engine, the server and every client: a log event that clients see is
//! named after its notification, and turns are folded from either by one function ([`fold`]). The set of
//! methods is one table ([`methods`]); the enums that move over in-process channels, the JSON that moves over
//! pipes, and the schema all come from it, so a new method is one row.
//!
//! Nothing here does any I/O, reads a clock or knows tokio.
//!
//! ```
//! use raddle_protocol::methods::ClientRequest;
//!
//! let request = ClientRequest::decode("thread/read", serde_json::json!({ "threadId": "t" }))?;
//! assert_eq!(request.method(), "thread/read");
//! let refused = ClientRequest::decode("thread/raed", serde_json::Value::Null).unwrap_err();
//! assert_eq!(refused.code.as_str(), "methodNotFound");
//! # Ok::<(), raddle_protocol::RpcError>(())
//! ```

pub mod approval;
pub mod error;
pub mod event;
pub mod fold;
pub mod ids;
pub mod item;
mod large;
pub mod limits;
pub mod methods;
pub mod model;
pub mod payload;
pub mod rpc;
pub mod schema;
pub mod server;
mod shrink;
pub mod thread;
pub mod time;
pub mod turn;
pub mod usage;

pub use error::{ErrorCode, RpcError, StorageReason};
pub use event::{Durability, Event, EventBody, EventKind, Recorded};
pub use ids::{ItemId, RequestId, ThreadId, TurnId};
pub use item::{Item, ItemKind, ItemStatus};
pub use model::{ModelCost, ModelInfo, ModelRef};
pub use payload::{Items, PayloadReference, Text};
pub use time::{IsoTime, UnixMillis};
pub use turn::{Turn, TurnError, TurnErrorKind, TurnStatus, TurnSummary};
pub use usage::{TokenCounts, TokenUsage};
