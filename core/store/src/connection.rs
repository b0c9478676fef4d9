//! Opening SQLite: the settings of each connection, each with its reason, and the migrations.
//!
//! Neighbours: error, options.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use crate::error::Error;

/// How long one statement waits for other processes before it is [`Error::Busy`].
pub const BUSY_WAIT_MAX: Duration = Duration::from_secs(5);

/// Pause between two attempts to get the write lock. SQLite's own handler pauses for milliseconds, a
/// hundred times longer than the commits that it waits for.
const BUSY_STEP: Duration = Duration::from_micros(30);

/// Attempts at [`BUSY_STEP`]; later ones come at [`BUSY_STEP_LATE`], so that a long wait burns no core.
const BUSY_STEPS_EARLY: i32 = 200;

/// Pause between later attempts.
const BUSY_STEP_LATE: Duration = Duration::from_micros(500);

/// Prepared statements that a connection keeps; more than there are in the crate.
const STATEMENTS_KEPT: usize = 128;

/// Marks a database as ours (`RADL`), so that another program's is refused rather than filled with our
/// tables.
const APPLICATION_ID: i64 = 0x5241_444c;

/// One step a schema version, never edited after release.
const MIGRATIONS: &[&str] =
    &[include_str!("../migrations/001_spine.sql"), include_str!("../migrations/002_threads.sql")];

/// The newest schema that this version knows.
pub const SCHEMA_VERSION: i64 = MIGRATIONS.len() as i64;

/// Held while a store opens: making the database's file and closing it must not meet SQLite opening the
/// same file in this process, since the close would drop its locks.
pub(crate) static OPENING: Mutex<()> = Mutex::new(());

/// The writing connection, and the length of its WAL.
pub(crate) struct Writing {
    pub(crate) connection: Connection,
    /// Pages in the WAL after the last commit of this connection.
    pub(crate) wal_pages: Arc<AtomicU32>,
    /// How long a statement waits for other processes.
    pub(crate) patience: Patience,
}

/// How long the statements of one connection wait for others; [`BUSY_WAIT_MAX`] unless changed.
#[derive(Clone)]
pub(crate) struct Patience(Arc<AtomicU64>);

impl Patience {
    fn new() -> Self {
        let patience = Self(Arc::default());
        patience.set(BUSY_WAIT_MAX);
        patience
    }

    pub(crate) fn set(&self, wait: Duration) {
        self.0.store(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

/// Opens the connection that writes; migrates.
pub(crate) fn open_writing(
    path: &Path,
    pages_max: Option<u32>,
    wal_bytes_max: u64,
) -> Result<Writing, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        // One thread has the connection, so SQLite need not lock it.
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        // Every error with its full code.
        | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let failed = |source| at_open(path, source);
    let mut connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    let patience = set_common(&mut connection).map_err(failed)?;
    if connection.is_readonly(rusqlite::MAIN_DB).map_err(failed)? {
        // SQLite falls back to reading when it may not write, and would tell at the first append.
        return Err(Error::not_writable(path, std::io::ErrorKind::PermissionDenied.into()));
    }
    check_schema(&connection, path)?;
    use_wal(&connection).map_err(failed)?;
    connection
        .execute_batch(&format!(
            // A checkpoint writes the WAL back in our own time, never inside a commit that a delta waits for.
            "PRAGMA wal_autocheckpoint = 0;
             -- What a burst made of the WAL goes back to the system at its next start from the front.
             PRAGMA journal_size_limit = {wal_bytes_max};
             -- Deltas survive the process; the writer raises it to FULL for what must survive a power cut.
             PRAGMA synchronous = NORMAL;
             -- Each live thread appends to a page of its own: 8 MiB hold those of two thousand.
             PRAGMA cache_size = -8192;"
        ))
        .map_err(failed)?;
    if let Some(pages) = pages_max {
        connection.execute_batch(&format!("PRAGMA max_page_count = {pages}")).map_err(failed)?;
    }
    migrate(&mut connection, path)?;
    let wal_pages = Arc::new(AtomicU32::new(0));
    let pages = Arc::clone(&wal_pages);
    connection
        .wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, count: i32| {
            pages.store(count.unsigned_abs(), Ordering::Relaxed);
            Ok(())
        }))
        .map_err(failed)?;
    Ok(Writing { connection, wal_pages, patience })
}

/// Opens a connection that only reads. The database exists and has its schema.
pub(crate) fn open_reading(path: &Path) -> Result<Connection, Error> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let failed = |source| Error::sqlite(path, source);
    let mut connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    set_common(&mut connection).map_err(failed)?;
    Ok(connection)
}

fn set_common(connection: &mut Connection) -> rusqlite::Result<Patience> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
    connection.execute_batch(
        // On macOS a plain fsync leaves the data in the drive's cache, where a power cut takes it. No
        // effect elsewhere.
        "PRAGMA fullfsync = ON;
         PRAGMA checkpoint_fullfsync = ON;
         -- A page whose cells do not add up is reported when it is read, not worked with.
         PRAGMA cell_size_check = ON;
         -- The schema in a file from elsewhere runs no functions of ours.
         PRAGMA trusted_schema = OFF;
         -- Sorting never leaves conversations in a temporary file.
         PRAGMA temp_store = MEMORY;
         -- A file that shrinks under a mapping kills the host with SIGBUS; a read reports an error (P9).
         PRAGMA mmap_size = 0;
         -- The store keeps its own references; checking them again costs a lookup for each event.
         PRAGMA foreign_keys = OFF;",
    )?;
    let patience = Patience::new();
    let ours = patience.clone();
    let mut since = None;
    connection.busy_handler(Some(move |attempt: i32| {
        if attempt == 0 {
            since = None;
        }
        let since = *since.get_or_insert_with(Instant::now);
        if since.elapsed() >= ours.get() {
            return false;
        }
        thread::sleep(if attempt < BUSY_STEPS_EARLY { BUSY_STEP } else { BUSY_STEP_LATE });
        true
    }))?;
    Ok(patience)
}

/// Turning a new file into a WAL database takes a lock that SQLite does not wait for, so two processes that
/// make one home at once would fail each other.
fn use_wal(connection: &Connection) -> rusqlite::Result<()> {
    let since = Instant::now();
    loop {
        let mode = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0));
        match mode {
            Err(source)
                if source.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && since.elapsed() < BUSY_WAIT_MAX =>
            {
                thread::sleep(BUSY_STEP_LATE);
            }
            other => return other.map(drop),
        }
    }
}

/// Refuses a database of another program or of a newer version before anything in it is changed.
fn check_schema(connection: &Connection, path: &Path) -> Result<(), Error> {
    let failed = |source| at_open(path, source);
    let number = |pragma: &str| connection.query_row(pragma, [], |row| row.get::<_, i64>(0));
    let found = number("PRAGMA user_version").map_err(failed)?;
    let application = number("PRAGMA application_id").map_err(failed)?;
    let tables = number("SELECT count(*) FROM sqlite_schema").map_err(failed)?;
    if application != APPLICATION_ID && (application != 0 || found != 0 || tables != 0) {
        return Err(Error::NotADatabase { path: path.to_owned() });
    }
    if found > SCHEMA_VERSION {
        return Err(Error::NewerSchema { path: path.to_owned(), found, known: SCHEMA_VERSION });
    }
    Ok(())
}

/// Brings an older schema up to ours, all of it or nothing: version and tables change in one transaction,
/// so a process killed in the middle leaves the old schema.
fn migrate(connection: &mut Connection, path: &Path) -> Result<(), Error> {
    let failed = |source| at_open(path, source);
    let version = |connection: &Connection| {
        connection.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0)).map_err(failed)
    };
    if version(connection)? == SCHEMA_VERSION {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    // Another process may have migrated while this one waited for the lock.
    let from = usize::try_from(version(&transaction)?).unwrap_or_default();
    for (step, sql) in MIGRATIONS.iter().enumerate().skip(from) {
        tracing::info!(version = step + 1, "migrating the database");
        transaction.execute_batch(sql).map_err(failed)?;
    }
    transaction
        .execute_batch(&format!(
            "PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};"
        ))
        .map_err(failed)?;
    transaction.commit().map_err(failed)
}

/// As [`Error::sqlite`], but a file that does not even begin like a database is somebody's other file, not a
/// damaged one of ours.
fn at_open(path: &Path, source: rusqlite::Error) -> Error {
    match source.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => Error::NotADatabase { path: path.to_owned() },
        _ => Error::sqlite(path, source),
    }
}
