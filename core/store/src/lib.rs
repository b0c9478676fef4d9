//! The event log, the turn tree and ownership, on SQLite. The only crate that knows SQL.
//!
//! A [`Store`] is one open home directory. What happens in a thread is appended to its log as
//! [events](raddle_protocol::Event); the log is the only truth. The tables beside it (which threads there
//! are, what each is called, which turn follows which) are derived from the events by the store itself, in
//! the transaction that writes them, so they cannot disagree with it.
//!
//! - **Appending** takes a [`Lease`]: one process owns a thread at a time, and each append checks that it still
//!   does, in its own transaction (P2). [`Store::append`] returns when the events are committed (P1). What must
//!   survive a power cut waits for the disk, in company: all that waits at a time is one transaction and one
//!   sync. A delta never waits for the disk.
//! - **Reading** needs no ownership and waits for nobody: lists ([`Store::list`]), pages of history that cost
//!   the page whatever the history's length ([`Store::page`]), whole branches. Turns come as their events; who
//!   reads them folds them, with the same function that folds live notifications (P5).
//! - **Threads share turns.** A fork costs the same whatever it shares, a rewind moves the head back, and of a deleted
//!   thread those turns stay that others have ([`Store::delete_thread`]). Nothing of this holds others up: what nobody
//!   reaches any more is removed a little at a time.
//! - **Large values** lie beside their events, each once. Pages have references in their place, and [`Store::payload`]
//!   reads a slice; what the model needs comes whole ([`Store::context`]).
//! - **Opening** refuses what would lose data later: network mounts, hard-linked or foreign files, newer
//!   schemas. A damaged file is reported and never replaced. See [`Error`].
//!
//! Why not a file a thread: a list would open them all, a crash would leave half a line, and nothing would
//! order two threads against each other. Why not a server: the engine lives in its host's process and may
//! be one of many. `docs/decisions/0002-store.md` has the reasons behind the rest.
//!
//! ```
//! use raddle_protocol::event::{Event, EventBody, ThreadStarted};
//! use raddle_protocol::thread::ThreadSettings;
//! use raddle_protocol::{ThreadId, UnixMillis};
//! use raddle_store::{Store, StoreOptions};
//!
//! # let home = tempfile::tempdir()?;
//! # let home = home.path();
//! # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! # runtime.block_on(async {
//! let store = Store::open(StoreOptions::new(home))?;
//! let started = ThreadStarted {
//!     cwd: "/path/to/project".to_owned(),
//!     name: None,
//!     forked_from_id: None,
//!     forked_at: None,
//!     settings: ThreadSettings::default(),
//! };
//! let id = ThreadId::generate();
//! let lease = store.create_thread(id.clone(), UnixMillis(1_790_000_000_000), started).await?;
//!
//! let body = EventBody::SettingsUpdated(ThreadSettings::default());
//! let event = Event { turn_id: None, at: UnixMillis(1_790_000_000_001), body };
//! let appended = store.append(&lease, vec![event]).await?;
//! assert_eq!(appended.first_seq, 2);
//! assert_eq!(store.thread(&id).await?.last_seq, 2);
//!
//! // Another store, here or in another process, is told who has the thread, and may read it.
//! let other = Store::open(StoreOptions::new(home))?;
//! assert!(other.acquire(&id).await.is_err());
//! assert_eq!(other.page(&id, None, 50).await?.turns, []);
//! store.close().await;
//! assert!(other.acquire(&id).await.is_ok());
//! # Ok::<(), raddle_store::Error>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod batch;
mod blob;
mod branch;
mod connection;
mod counters;
mod cursor;
mod error;
mod event;
pub mod filesystem;
mod group;
mod history;
mod home;
mod list;
mod log;
mod memory;
mod options;
mod owner;
mod piece;
mod process;
mod queue;
mod reader;
mod removal;
mod request;
mod row;
mod send;
mod snapshot;
mod store;
mod thread;
mod turn;
mod wal;
mod writer;

pub use batch::Appended;
pub use blob::PayloadSlice;
pub use connection::{BUSY_WAIT_MAX, SCHEMA_VERSION};
pub use counters::Counters;
pub use error::Error;
pub use event::{THREAD_EVENTS_MAX, THREADS_MAX};
pub use history::HistoryPage;
pub use home::{DATABASE_FILE, OWNERS_DIR};
pub use list::{ListPage, ListQuery};
pub use options::{HEARTBEAT, StoreOptions, TAKEOVER_AFTER};
pub use owner::Lease;
pub use reader::READERS_MAX;
pub use send::Sent;
pub use snapshot::LIST_SNAPSHOT_KEYS_MAX;
pub use store::Store;
pub use thread::ThreadRow;
pub use turn::StoredTurn;
pub use wal::{CHECKPOINT_WAIT_MAX, WAL_PAGES_IDLE, WAL_PAGES_MAX};
pub use writer::WRITER_QUEUE_MAX;
