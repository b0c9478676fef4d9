//! The one error of the crate.
//!
//! Neighbours: none.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use raddle_protocol::event::EventDecodeError;
use raddle_protocol::{StorageReason, ThreadId, TurnId};
use rusqlite::ErrorCode;

/// Why the store did not do what it was asked.
///
/// It can be cloned because one failed transaction answers every batch that was in it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// There is no thread with this id.
    #[error("there is no thread `{id}`")]
    ThreadNotFound {
        /// The id that was asked for.
        id: ThreadId,
    },
    /// A thread with this id is there already.
    #[error("there is a thread `{id}` already")]
    ThreadExists {
        /// The id.
        id: ThreadId,
    },
    /// The turn that a fork is to end with is not on the source's branch, or has no end in the log.
    #[error("thread `{id}` has no finished turn `{turn}`")]
    TurnNotFound {
        /// The source.
        id: ThreadId,
        /// The turn that was asked for.
        turn: TurnId,
    },
    /// The thread is not archived, and so is not deleted.
    #[error("thread `{id}` is not archived: archive it first")]
    NotArchived {
        /// The thread.
        id: ThreadId,
    },
    /// Another process, or another [`Store`](crate::Store) of this one, owns the thread and lives.
    #[error("thread `{id}` is in use by {}", .pid.map_or("another process".to_owned(), |pid| format!("process {pid}")))]
    LockedElsewhere {
        /// The thread.
        id: ThreadId,
        /// The owner's process id, where its file could be read.
        pid: Option<u32>,
    },
    /// The lease is no longer ours: somebody took the thread over, or it was released. Nothing was written.
    #[error("thread `{id}` is owned by another process since")]
    Fenced {
        /// The thread.
        id: ThreadId,
    },
    /// The batch contradicts the log; nothing of it was written. A bug of the caller.
    #[error("an event of thread `{id}` does not fit its log: {why}")]
    Rejected {
        /// The thread.
        id: ThreadId,
        /// What does not fit.
        why: &'static str,
    },
    /// The thread has used up its sequence numbers, or the database its thread numbers.
    #[error("thread `{id}` is full: start a new one")]
    Full {
        /// The thread.
        id: ThreadId,
    },
    /// The cursor is malformed, of another thread or other filters, its turn left the branch, or the snapshot of its list is gone.
    #[error("the cursor does not belong here: read again from the first page")]
    InvalidCursor,
    /// The file at the database's place is no database of ours.
    #[error("{} is not a Raddle database: move it away, or choose another home directory", .path.display())]
    NotADatabase {
        /// The file.
        path: PathBuf,
    },
    /// The database is damaged. It is left as it is.
    #[error("{} is damaged: move it aside together with its -wal file and restore a copy", .path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        #[source]
        source: Arc<rusqlite::Error>,
    },
    /// A newer Raddle wrote the database.
    #[error("{} has schema {found}, and this version knows {known}: update Raddle", .path.display())]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// The schema in the file.
        found: i64,
        /// The newest schema of this version.
        known: i64,
    },
    /// The database has a second name, under which SQLite would not find its WAL and would damage it.
    #[error("{} has {links} hard links: keep one of them and remove the others", .path.display())]
    HardLinked {
        /// The file.
        path: PathBuf,
        /// How many names it has.
        links: u64,
    },
    /// The file system does not give processes the shared memory that SQLite's WAL needs.
    #[error("{} lies on {filesystem}, which cannot carry a database: choose a local directory", .path.display())]
    UnsupportedFilesystem {
        /// The home directory.
        path: PathBuf,
        /// What the system calls the file system.
        filesystem: String,
    },
    /// The home directory or a file in it cannot be written.
    #[error("{} cannot be written: check its permissions, or choose another home directory", .path.display())]
    NotWritable {
        /// The directory or file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// No space is left. The batch was not written; later ones may be.
    #[error("no space is left for {}", .path.display())]
    DiskFull {
        /// The database.
        path: PathBuf,
        /// What SQLite or the system said.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// Another process held the database longer than [`BUSY_WAIT_MAX`](crate::BUSY_WAIT_MAX).
    #[error("{} is kept busy by another process", .path.display())]
    Busy {
        /// The database.
        path: PathBuf,
        /// What SQLite said.
        #[source]
        source: Arc<rusqlite::Error>,
    },
    /// An input or output failure outside SQLite.
    #[error("{} failed", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: Arc<io::Error>,
    },
    /// Any other failure of SQLite.
    #[error("the database {} failed", .path.display())]
    Sqlite {
        /// The database.
        path: PathBuf,
        /// What SQLite said.
        #[source]
        source: Arc<rusqlite::Error>,
    },
    /// An event cannot be read back.
    #[error("event {seq} of thread `{id}` cannot be read")]
    Unreadable {
        /// The thread.
        id: ThreadId,
        /// The event's place.
        seq: u64,
        /// What does not fit.
        #[source]
        source: Arc<EventDecodeError>,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

impl Error {
    /// The word for `data.reason` beside `internal`, where the store itself failed; `None` where the request
    /// was at fault.
    pub fn reason(&self) -> Option<StorageReason> {
        Some(match self {
            Self::NotADatabase { .. } => StorageReason::NotADatabase,
            Self::Corrupt { .. } => StorageReason::Corrupt,
            Self::NewerSchema { .. } => StorageReason::NewerSchema,
            Self::HardLinked { .. } => StorageReason::HardLinked,
            Self::UnsupportedFilesystem { .. } => StorageReason::UnsupportedFilesystem,
            Self::NotWritable { .. } => StorageReason::NotWritable,
            Self::DiskFull { .. } => StorageReason::DiskFull,
            Self::Busy { .. } | Self::Io { .. } | Self::Sqlite { .. } => StorageReason::Io,
            Self::Unreadable { source, .. } => match **source {
                EventDecodeError::UnknownKind(_) => StorageReason::NewerSchema,
                EventDecodeError::Json { .. } | EventDecodeError::Malformed(_) => StorageReason::Corrupt,
            },
            Self::ThreadNotFound { .. }
            | Self::ThreadExists { .. }
            | Self::TurnNotFound { .. }
            | Self::NotArchived { .. }
            | Self::LockedElsewhere { .. }
            | Self::Fenced { .. }
            | Self::Rejected { .. }
            | Self::Full { .. }
            | Self::InvalidCursor
            | Self::Closed => return None,
        })
    }

    /// What an error of SQLite on `path` means to a caller.
    pub(crate) fn sqlite(path: &Path, source: rusqlite::Error) -> Self {
        let path = path.to_owned();
        let code = match &source {
            // Where a row may be missing or of another type, the statement's caller says so; anywhere else
            // a healthy database has it.
            rusqlite::Error::QueryReturnedNoRows
            | rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::InvalidColumnType(..) => Some(ErrorCode::DatabaseCorrupt),
            // The memory that processes share is a file too, and only a lack of space keeps it from growing.
            rusqlite::Error::SqliteFailure(failure, _)
                if failure.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE =>
            {
                Some(ErrorCode::DiskFull)
            }
            other => other.sqlite_error_code(),
        };
        let source = Arc::new(source);
        match code {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Corrupt { path, source },
            Some(ErrorCode::DiskFull) => Self::DiskFull { path, source },
            Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
                Self::NotWritable { path, source }
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy { path, source },
            _ => Self::Sqlite { path, source },
        }
    }

    /// A failure of the system on `path` while opening: what cannot be created or opened cannot be written, be it
    /// for lack of permission or of space.
    pub(crate) fn not_writable(path: &Path, source: io::Error) -> Self {
        let (path, kind, source) = (path.to_owned(), source.kind(), Arc::new(source));
        match kind {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::DiskFull { path, source },
            _ => Self::NotWritable { path, source },
        }
    }

    /// A failure of the system on `path`.
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source: Arc::new(source) }
    }
}
