//! Keeping the write-ahead log short, in the writer's own time.
//!
//! Neighbours: connection, counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rusqlite::wal::CheckpointMode;
use rusqlite::{Connection, ErrorCode};

use crate::connection::{BUSY_WAIT_MAX, Patience};
use crate::counters::Tally;

/// Pages of 4 KiB in the WAL from which the writer writes them back when it has nothing else to do.
pub const WAL_PAGES_IDLE: u32 = 1_000;

/// Pages of 4 KiB in the WAL at which the writer writes them back although batches wait (P7). If others are
/// in the way, it waits for them up to [`CHECKPOINT_WAIT_MAX`]. A program that holds an old state open for
/// longer keeps the WAL growing; the writer tries again every [`WAL_PAGES_IDLE`] pages.
pub const WAL_PAGES_MAX: u32 = 4_000;

/// How long batches may wait while the writer waits for other processes and readers to let go of the WAL.
pub const CHECKPOINT_WAIT_MAX: Duration = Duration::from_millis(50);

/// What is left of the WAL's file when it starts again from the front after a burst.
pub(crate) const WAL_BYTES_MAX: u64 = WAL_PAGES_MAX as u64 * 4096;

/// The WAL of the writer's connection.
pub(crate) struct Wal {
    pages: Arc<AtomicU32>,
    patience: Patience,
    tally: Arc<Tally>,
    /// Pages below which another attempt is too early.
    next: u32,
}

impl Wal {
    pub(crate) fn new(pages: Arc<AtomicU32>, patience: Patience, tally: Arc<Tally>) -> Self {
        Self { pages, patience, tally, next: 0 }
    }

    /// Whether it may be time.
    pub(crate) fn is_long(&self) -> bool {
        let pages = self.pages.load(Ordering::Relaxed);
        pages >= WAL_PAGES_IDLE && pages >= self.next
    }

    /// Writes the WAL back, if it is time. Called between transactions.
    pub(crate) fn tend(&mut self, connection: &Connection, idle: bool) {
        let pages = self.pages.load(Ordering::Relaxed);
        if pages < WAL_PAGES_IDLE {
            // It started again from the front.
            self.next = 0;
            return;
        }
        let full = pages >= WAL_PAGES_MAX;
        if pages < self.next || !(idle || full) {
            return;
        }
        self.next = pages.saturating_add(WAL_PAGES_IDLE);
        let mut outcome = checkpoint(connection, CheckpointMode::PASSIVE);
        if let Ok((pages, written_back)) = outcome
            && pages != written_back
            && full
        {
            // Another process wrote meanwhile, or a reader holds an old state. Now they wait, or we do, for
            // a moment.
            self.patience.set(CHECKPOINT_WAIT_MAX);
            outcome = checkpoint(connection, CheckpointMode::RESTART);
            self.patience.set(BUSY_WAIT_MAX);
        }
        match outcome {
            Ok(_) => self.tally.checkpoints.add(1),
            Err(source) if source.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
                tracing::warn!(pages, "somebody keeps the WAL from being written back");
            }
            // The log is whole without it.
            Err(source) => tracing::warn!(%source, "the WAL could not be written back"),
        }
    }
}

fn checkpoint(connection: &Connection, mode: CheckpointMode) -> rusqlite::Result<(i32, i32)> {
    connection.wal_checkpoint_v2(Some(rusqlite::MAIN_DB), mode)
}
