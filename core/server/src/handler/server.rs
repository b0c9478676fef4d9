//! Handlers of `server/…` and `model/list`.
//!
//! Neighbours: connection, responder.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use raddle_protocol::RpcError;
use raddle_protocol::model::ModelListResult;
use raddle_protocol::server::DiagnosticsResult;

use crate::connection::Connection;
use crate::responder::Responder;

pub(crate) async fn models(connection: &Arc<Connection>, responder: Responder) {
    let models = connection.server.engine.models().await;
    responder.finish(Ok::<_, RpcError>(ModelListResult { models }));
}

pub(crate) fn diagnostics(connection: &Arc<Connection>, responder: Responder) {
    let server = &connection.server;
    let vitals = server.engine.vitals();
    let (payload_files, payload_bytes) = server.payloads.live();
    responder.finish(Ok::<_, RpcError>(DiagnosticsResult {
        rss_bytes: rss_bytes().unwrap_or(0),
        loaded_threads: vitals.loaded_threads,
        loading_threads: vitals.loading_threads,
        payload_files,
        payload_bytes,
        uptime_ms: u64::try_from(server.opened_at.elapsed().as_millis()).unwrap_or(u64::MAX),
        connections: server.engine.hub().len() as u64,
        dropped_connections: server.dropped_connections.load(Ordering::Relaxed),
        commits: vitals.store.commits,
        syncs: vitals.store.syncs,
        events: vitals.store.events,
        queue_depth: vitals.store.queue_depth,
        ..DiagnosticsResult::default()
    }));
}

/// Resident memory, where the system tells it in a file.
fn rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}
