//! The handshake, diagnostics, and what a server says about itself.
//!
//! Neighbours: error, ids.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::ErrorCode;
use crate::ids::ThreadId;
use crate::thread::Warning;

/// Params of `initialize`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InitializeParams {
    /// Who connects.
    pub client_info: ClientInfo,
    /// What it can do and wants.
    #[serde(default)]
    pub capabilities: ClientCapabilities,
}

/// A client's name and version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClientInfo {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// What a client wants of the connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientCapabilities {
    /// Methods of notifications that are not to be sent; at most 256, unknown names tolerated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub opt_out_notifications: Vec<String>,
}

/// Result of `initialize`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InitializeResult {
    /// Who answers.
    pub server_info: ServerInfo,
    /// Where it runs.
    pub platform: Platform,
}

/// The server's name and version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServerInfo {
    /// `raddle`.
    pub name: String,
    /// The version; there is no other protocol version.
    pub version: String,
}

/// The machine that the server runs on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Platform {
    /// `win32`, `darwin` or `linux`.
    pub os: String,
    /// As Node names it: `x64`, `arm64`, …
    pub arch: String,
    /// The user's home directory; empty where there is none.
    pub home_dir: String,
}

/// Params of the client notification `initialized`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InitializedParams {}

/// Params of `server/diagnostics`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiagnosticsParams {}

/// Result of `server/diagnostics`: the whole process, not this connection alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiagnosticsResult {
    /// Resident memory of the process; zero where the system does not tell.
    pub rss_bytes: u64,
    /// Bytes of heap in use; zero where the allocator does not tell.
    pub heap_bytes: u64,
    /// Threads in memory.
    pub loaded_threads: u64,
    /// Threads on their way into memory.
    pub loading_threads: u64,
    /// Live payload references.
    pub payload_files: u64,
    /// The bytes that they stand for.
    pub payload_bytes: u64,
    /// Cached extension factories that nobody uses.
    pub inactive_factories: u64,
    /// Since the engine was opened.
    pub uptime_ms: u64,
    /// Transcripts opened by listings; always zero, since our index is a table.
    pub listing_files_opened: u64,
    /// Bytes read by listings; always zero, since our index is a table.
    pub listing_bytes_scanned: u64,
    /// Open connections.
    pub connections: u64,
    /// Connections ended because their outbox was full.
    pub dropped_connections: u64,
    /// Transactions committed.
    pub commits: u64,
    /// Of these, the ones that were synced to disk.
    pub syncs: u64,
    /// Events written.
    pub events: u64,
    /// Batches that wait for the writer now.
    pub queue_depth: u64,
}

/// `error`: something failed that no response can tell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ErrorNotification {
    /// The thread that it concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<ThreadId>,
    /// The same words as in responses.
    pub code: ErrorCode,
    /// For people.
    pub message: String,
    /// As in responses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

/// `warning`: something went wrong that does not stop the thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WarningNotification {
    /// The thread that it concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<ThreadId>,
    /// What went wrong.
    #[serde(flatten)]
    pub warning: Warning,
}
