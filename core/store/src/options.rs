//! What a host may choose about its store.
//!
//! Neighbours: filesystem.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use raddle_protocol::limits::LIST_SNAPSHOT_EXPIRES_AFTER_MS;

use crate::filesystem::{self, Filesystem};

/// How often an owner shows that it moves.
pub const HEARTBEAT: Duration = Duration::from_secs(10);

/// How long an owner's heartbeat must stand still, in the running time of the process that watches it, before
/// the thread may be taken over although the owner's lock is held.
pub const TAKEOVER_AFTER: Duration = Duration::from_secs(30);

/// Where a store lies and how it behaves. The defaults are right outside tests.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The home directory; created, for its user alone, if it is missing.
    pub home: PathBuf,
    /// How often this store shows that it moves. At least a millisecond; see [`HEARTBEAT`].
    pub heartbeat: Duration,
    /// When a standing owner may be taken over; see [`TAKEOVER_AFTER`]. At least three heartbeats of the
    /// other processes, or a late one is taken for none.
    pub takeover_after: Duration,
    /// Pages of 4 KiB that the database may grow to; a batch past it is
    /// [`Error::DiskFull`](crate::Error::DiskFull). `None`: as far as the disk goes.
    pub pages_max: Option<u32>,
    /// How long a list's later pages are kept while nobody asks for them; see
    /// [`LIST_SNAPSHOT_EXPIRES_AFTER_MS`].
    pub list_snapshot_expires_after: Duration,
    /// How to find out what a directory lies on; [`filesystem::detect`] unless replaced.
    pub filesystem: fn(&Path) -> io::Result<Filesystem>,
}

impl StoreOptions {
    /// The defaults for a home directory.
    pub fn new(home: impl Into<PathBuf>) -> Self {
        Self {
            home: home.into(),
            heartbeat: HEARTBEAT,
            takeover_after: TAKEOVER_AFTER,
            pages_max: None,
            list_snapshot_expires_after: Duration::from_millis(LIST_SNAPSHOT_EXPIRES_AFTER_MS),
            filesystem: filesystem::detect,
        }
    }
}
