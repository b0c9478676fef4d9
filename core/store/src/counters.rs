//! What the store has done so far.
//!
//! Neighbours: none.

use std::sync::atomic::{AtomicU64, Ordering};

/// How much a store has done since it was opened, for diagnostics and for tests of what a promise costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Transactions that wrote something.
    pub commits: u64,
    /// Those among them that waited for the disk.
    pub syncs: u64,
    /// Events written.
    pub events: u64,
    /// Batches written.
    pub batches: u64,
    /// Requests that wait for the writer now, or for room among the
    /// [`WRITER_QUEUE_MAX`](crate::WRITER_QUEUE_MAX) that may.
    pub queue_depth: u64,
    /// Times that the WAL was written back into the database.
    pub checkpoints: u64,
}

/// The same, as the writer counts.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) commits: Count,
    pub(crate) syncs: Count,
    pub(crate) events: Count,
    pub(crate) batches: Count,
    pub(crate) checkpoints: Count,
}

/// A number that one thread raises and others read; nothing else is ordered by it.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
