//! The event log, the turn tree and ownership, on SQLite. The only crate that knows SQL.

mod batch;
mod connection;
mod counters;
mod cursor;
mod error;
mod event;
pub mod filesystem;
mod history;
mod home;
mod list;
mod log;
mod options;
mod owner;
mod piece;
mod process;
mod reader;
mod row;
mod store;
mod thread;
mod turn;
mod writer;

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
pub use store::Store;
pub use thread::ThreadRow;
pub use turn::StoredTurn;
pub use writer::{Appended, WAL_PAGES_IDLE, WAL_PAGES_MAX, WRITER_QUEUE_MAX};
