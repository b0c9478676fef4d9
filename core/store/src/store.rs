//! The handle that the engine holds.
//!
//! Neighbours: batch, blob, connection, counters, error, group, history, home, list, options, owner, process,
//! queue, reader, request, send, snapshot, thread, turn, wal, writer.

use std::fmt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use parking_lot::Mutex;
use raddle_protocol::event::{InputQueued, ThreadStarted};
use raddle_protocol::{Event, ThreadId, TurnId, UnixMillis};
use tokio::sync::{mpsc, oneshot};

use crate::batch::{Appended, Batch};
use crate::blob::{self, PayloadSlice};
use crate::connection::{OPENING, open_writing};
use crate::counters::{Counters, Tally};
use crate::error::Error;
use crate::group::Group;
use crate::history::{self, HistoryPage};
use crate::home::Home;
use crate::list::{self, ListPage, ListQuery};
use crate::options::StoreOptions;
use crate::owner::Lease;
use crate::process::{Keeper, Process};
use crate::queue;
use crate::reader::Readers;
use crate::request::{Reply, Request};
use crate::send::{self, Sent};
use crate::snapshot::{Pending, Snapshots};
use crate::thread::ThreadRow;
use crate::turn::StoredTurn;
use crate::wal::WAL_BYTES_MAX;
use crate::writer::{self, Desk, WRITER_QUEUE_MAX};

/// One open home directory. Cheap to clone; all clones are one store. Its methods are called within a tokio
/// runtime.
///
/// [`close`](Self::close), or dropping the last clone, stops the writer after what it was handed before,
/// and gives back every thread that this store owns.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    /// Gone when the last handle goes, which is how the writer learns of it.
    inbox: Option<mpsc::Sender<Request>>,
    desk: Desk,
    threads: Mutex<Option<Threads>>,
    readers: Arc<Readers>,
    snapshots: Arc<Snapshots>,
    tally: Arc<Tally>,
}

/// The store's own threads. Dropping it waits for the writer, then gives the lock back: never the other way
/// round, or a successor could begin while our last batch is still being written.
struct Threads {
    writer: Option<JoinHandle<()>>,
    keeper: Option<Keeper>,
}

impl Drop for Threads {
    fn drop(&mut self) {
        if self.writer.take().is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the store's writer panicked");
        }
        drop(self.keeper.take());
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("counters", &self.counters()).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens a home directory, creating and migrating what is needed. Blocks for a few milliseconds at
    /// most, unless another process migrates at the same time.
    ///
    /// # Errors
    /// Every reason not to touch the directory: [`Error::NotWritable`], [`Error::UnsupportedFilesystem`],
    /// [`Error::HardLinked`], [`Error::NotADatabase`], [`Error::NewerSchema`], [`Error::Corrupt`],
    /// [`Error::DiskFull`].
    pub fn open(options: StoreOptions) -> Result<Self, Error> {
        let opening = OPENING.lock();
        let home = Home::prepare(&options)?;
        let writing = open_writing(&home.database, options.pages_max, WAL_BYTES_MAX)?;
        drop(opening);
        let process = Arc::new(Process::claim(&home.owners, options.heartbeat, options.takeover_after)?);
        let keeper = Keeper::start(Arc::clone(&process)).map_err(|source| Error::io(&home.owners, source))?;
        let tally = Arc::new(Tally::default());
        let snapshots = Snapshots::new(process.id().to_string(), options.list_snapshot_expires_after);
        let (inbox, requests) = mpsc::channel(WRITER_QUEUE_MAX);
        let group = Group::new(home.database.clone(), writing, process, Arc::clone(&tally));
        let desk = Desk::new(group);
        let writer = thread::Builder::new()
            .name("raddle-writer".to_owned())
            .spawn({
                let desk = desk.clone();
                move || writer::run(&desk, requests)
            })
            .map_err(|source| Error::io(&home.database, source))?;
        let threads = Mutex::new(Some(Threads { writer: Some(writer), keeper: Some(keeper) }));
        let readers = Readers::new(home.database);
        Ok(Self { inner: Arc::new(Inner { inbox: Some(inbox), desk, threads, readers, snapshots, tally }) })
    }

    /// Creates a thread, with [`EventBody::ThreadStarted`](raddle_protocol::EventBody::ThreadStarted) as
    /// its event 1, and owns it at once.
    ///
    /// With `forked_at` it begins with the turns of `forked_from_id` up to that one, which both share from then on: whatever
    /// their length, this costs the same. Its title is the source's, its totals are those of the turn.
    ///
    /// # Durability
    /// Barrier: an id that was returned is there after a power cut. Case: R18.
    ///
    /// # Errors
    /// [`Error::ThreadExists`], [`Error::Full`], and whatever the database fails with. For a fork [`Error::ThreadNotFound`] when
    /// its source is gone, and [`Error::TurnNotFound`] when the turn is not on the source's branch or has no end in the log.
    pub async fn create_thread(
        &self,
        id: ThreadId,
        at: UnixMillis,
        started: ThreadStarted,
    ) -> Result<Lease, Error> {
        self.ask(|reply| Request::Create { id, at, started: Box::new(started), reply }).await
    }

    /// Owns a thread, so that this store and no other may append to it. A second call gives the same lease
    /// again.
    ///
    /// An owner that is dead loses the thread at once. One that lives but shows no heartbeat is watched
    /// from the first refused call on, and loses it at the next call after
    /// [`takeover_after`](StoreOptions::takeover_after). Holds: P2.
    ///
    /// # Durability
    /// Tail: after a power cut all owners are dead.
    ///
    /// # Errors
    /// [`Error::ThreadNotFound`], [`Error::LockedElsewhere`].
    pub async fn acquire(&self, id: &ThreadId) -> Result<Lease, Error> {
        let id = id.clone();
        self.ask(|reply| Request::Acquire { id, reply }).await
    }

    /// Gives a thread back, so that another process may own it at once.
    ///
    /// # Errors
    /// [`Error::Fenced`] when it was no longer ours.
    pub async fn release(&self, lease: &Lease) -> Result<(), Error> {
        let lease = lease.clone();
        self.ask(|reply| Request::Release { lease, reply }).await
    }

    /// Deletes an archived thread. No read finds it from then on, the lease is good for nothing more, and its id may be used
    /// again.
    ///
    /// Turns that a fork has stay, and keep the thread's id as theirs; all others are removed later, a little at a time, by
    /// whichever store has the database open. Until then payloads of them may still be read.
    ///
    /// # Durability
    /// Barrier: what was deleted does not come back after a power cut.
    ///
    /// # Errors
    /// [`Error::NotArchived`]; [`Error::Fenced`] when the thread is no longer ours. Nothing was changed then.
    pub async fn delete_thread(&self, lease: &Lease) -> Result<(), Error> {
        let lease = lease.clone();
        self.ask(|reply| Request::Delete { lease, reply }).await
    }

    /// Appends events, all of them or none, and brings the thread and its turns up to them in the same
    /// transaction. The events come back with the number of the first; numbers of a thread have no gap and
    /// no repeat. Holds: P1, P2.
    ///
    /// An item's completion replaces its start and its deltas, a removal withdraws all of it: those rows
    /// are deleted in the same transaction. Calls that are polled in some order are committed in that
    /// order.
    ///
    /// An event whose JSON has more than [`INLINE_BYTES_MAX`](raddle_protocol::limits::INLINE_BYTES_MAX) bytes is kept with its
    /// largest values beside it; see [`Appended::shown`] and [`payload`](Self::payload). An event may come with references
    /// itself, as long as their values are there; a tool's input that looks like one is taken for what it is, a value.
    ///
    /// # Durability
    /// Committed when it returns: visible to every reader, and safe from the death of the process. If any
    /// event asks for a [barrier](raddle_protocol::Durability::Barrier), safe from a power cut, with all
    /// that was committed before.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have appended.
    ///
    /// # Limits
    /// [`WRITER_QUEUE_MAX`] calls wait for the writer; later ones wait for room.
    ///
    /// # Errors
    /// [`Error::Fenced`] when the thread is no longer ours, [`Error::Rejected`] when an event contradicts
    /// the log, [`Error::Full`]; [`Error::DiskFull`] and other failures of the database. Nothing was
    /// written in each case.
    pub async fn append(&self, lease: &Lease, events: Vec<Event>) -> Result<Appended, Error> {
        let batch = Batch::new(events);
        if let Some((outcome, untidy)) = self.inner.desk.append_now(lease, &batch) {
            if untidy && let Some(inbox) = &self.inner.inbox {
                // A writer with a full queue is awake already.
                let _ = inbox.try_send(Request::Tidy);
            }
            return outcome.map(|first_seq| batch.appended(first_seq));
        }
        let lease = lease.clone();
        self.ask(|reply| Request::Append { lease, batch, reply }).await
    }

    /// What the database has of a thread. Needs no ownership, as all reading.
    ///
    /// # Errors
    /// [`Error::ThreadNotFound`].
    pub async fn thread(&self, id: &ThreadId) -> Result<ThreadRow, Error> {
        let id = id.clone();
        let read = move |connection: &rusqlite::Connection| match crate::thread::by_id(connection, &id)? {
            Some(thread) => Ok(thread),
            None => Err(Error::ThreadNotFound { id }.into()),
        };
        self.inner.readers.read(read).await
    }

    /// A page of threads, newest activity first.
    ///
    /// Which threads later pages have, and in which order, is settled when the first is read; what they say of each is as of
    /// their own moment. A thread that was deleted meanwhile is left out, one that was archived, renamed or moved is not.
    ///
    /// # Limits
    /// [`LIST_SNAPSHOTS_MAX`](raddle_protocol::limits::LIST_SNAPSHOTS_MAX) lists can be gone on with, of
    /// [`LIST_SNAPSHOT_KEYS_MAX`](crate::LIST_SNAPSHOT_KEYS_MAX) threads together; at more, those unused for longest cannot.
    /// Nor can one that was unused for [`list_snapshot_expires_after`](StoreOptions::list_snapshot_expires_after).
    ///
    /// # Errors
    /// [`Error::InvalidCursor`] for a cursor that is malformed, of other filters, of another store or of an earlier run, and
    /// for a list that cannot be gone on with.
    pub async fn list(&self, query: ListQuery) -> Result<ListPage, Error> {
        let (snapshots, filters) = (Arc::clone(&self.inner.snapshots), query.bond());
        let Some(cursor) = &query.cursor else {
            let query = Arc::new(query);
            let rest_of = Arc::clone(&query);
            let first = move |connection: &rusqlite::Connection| {
                let (threads, last) = list::first(connection, &query)?;
                let rest = last.map(|last| (last, snapshots.begin(Instant::now())));
                let cursor = |(_, pending): &(_, Pending)| snapshots.cursor(pending.id(), 0, filters);
                Ok((ListPage { threads, next_cursor: rest.as_ref().map(cursor) }, rest))
            };
            let rest = move |connection: &rusqlite::Connection, (last, pending): (list::Spot, Pending)| {
                pending.fill(list::rest(connection, &rest_of, last)?);
                Ok(())
            };
            return self.inner.readers.read_then(first, rest).await;
        };
        let mut place = snapshots.find(Instant::now(), filters, cursor)?;
        let keys = place.keys().await?;
        let next = move |connection: &rusqlite::Connection| {
            let (threads, taken) = list::of_keys(connection, &keys[place.offset..], &query)?;
            let offset = place.offset + taken;
            let more = offset < keys.len();
            Ok(ListPage { threads, next_cursor: more.then(|| snapshots.cursor(place.id(), offset, filters)) })
        };
        self.inner.readers.read(next).await
    }

    /// A page of a thread's turns: the newest ones, or those before an earlier page. A cursor keeps its
    /// place while the thread grows, and survives a restart. Large values stand as references.
    ///
    /// # Limits
    /// `limit` is brought to 1 to
    /// [`HISTORY_PAGE_TURNS_MAX`](raddle_protocol::limits::HISTORY_PAGE_TURNS_MAX).
    ///
    /// # Errors
    /// [`Error::ThreadNotFound`]; [`Error::InvalidCursor`] for a cursor that is malformed, of another
    /// thread, or whose turn is no longer on the branch.
    pub async fn page(&self, id: &ThreadId, cursor: Option<&str>, limit: u32) -> Result<HistoryPage, Error> {
        let (id, cursor) = (id.clone(), cursor.map(str::to_owned));
        self.inner
            .readers
            .read(move |connection| history::page(connection, &id, cursor.as_deref(), limit))
            .await
    }

    /// All turns of a thread's branch, oldest first, with all their values. As long as the history: for what needs all of it.
    ///
    /// # Errors
    /// [`Error::ThreadNotFound`].
    pub async fn branch(&self, id: &ThreadId) -> Result<Vec<StoredTurn>, Error> {
        let id = id.clone();
        self.inner.readers.read(move |connection| history::branch(connection, &id)).await
    }

    /// What a model needs of a thread: the turns of its branch from the newest on that holds a completed compaction, oldest
    /// first, with all their values; all turns if nothing was compacted. What lies before is not read.
    ///
    /// # Errors
    /// [`Error::ThreadNotFound`].
    pub async fn context(&self, id: &ThreadId) -> Result<Vec<StoredTurn>, Error> {
        let id = id.clone();
        self.inner.readers.read(move |connection| history::context(connection, &id)).await
    }

    /// One turn of a thread's branch, large values as references; none if it is not on it.
    ///
    /// # Errors
    /// [`Error::ThreadNotFound`].
    pub async fn turn(&self, id: &ThreadId, turn: &TurnId) -> Result<Option<StoredTurn>, Error> {
        let (id, turn) = (id.clone(), turn.clone());
        self.inner.readers.read(move |connection| history::turn(connection, &id, &turn)).await
    }

    /// The newest turn of a thread's branch with all its values, finished or not: what a load looks at first.
    ///
    /// # Errors
    /// [`Error::ThreadNotFound`].
    pub async fn head_turn(&self, id: &ThreadId) -> Result<Option<StoredTurn>, Error> {
        let id = id.clone();
        self.inner.readers.read(move |connection| history::head_turn(connection, &id)).await
    }

    /// Inputs that wait in a thread, whole, oldest first.
    ///
    /// # Errors
    /// [`Error::ThreadNotFound`].
    pub async fn queue(&self, id: &ThreadId) -> Result<Vec<InputQueued>, Error> {
        let id = id.clone();
        self.inner.readers.read(move |connection| queue::all(connection, &id)).await
    }

    /// The sends of a thread that had a key, oldest first: its newest
    /// [`SEND_KEYS_MAX`](raddle_protocol::limits::SEND_KEYS_MAX).
    ///
    /// # Errors
    /// [`Error::ThreadNotFound`].
    pub async fn sends(&self, id: &ThreadId) -> Result<Vec<Sent>, Error> {
        let id = id.clone();
        self.inner.readers.read(move |connection| send::all(connection, &id)).await
    }

    /// A slice of what a reference stands for: at most `max` bytes from `offset` on, and none beyond the end. Nothing else of
    /// it is loaded. `None` for what is no reference's id, and when no event uses the value any more.
    ///
    /// # Errors
    /// Whatever the database fails with.
    pub async fn payload(&self, id: &str, offset: u64, max: usize) -> Result<Option<PayloadSlice>, Error> {
        let id = id.to_owned();
        self.inner.readers.read(move |connection| Ok(blob::slice(connection, &id, offset, max)?)).await
    }

    /// What this store has done so far.
    pub fn counters(&self) -> Counters {
        let tally = &self.inner.tally;
        Counters {
            commits: tally.commits.get(),
            syncs: tally.syncs.get(),
            events: tally.events.get(),
            batches: tally.batches.get(),
            queue_depth: self.inner.desk.line().len() as u64,
            checkpoints: tally.checkpoints.get(),
        }
    }

    /// Writes what was handed over before, refuses everything later, and returns when the threads have
    /// ended and the lock is given back. Other clones get [`Error::Closed`] from then on.
    pub async fn close(self) {
        self.inner.readers.close().await;
        if let Some(inbox) = &self.inner.inbox {
            // No room to ask means that the writer stops already.
            let _ = inbox.send(Request::Close).await;
        }
        let threads = self.inner.threads.lock().take();
        // The drop blocks, for as long as the last commit and the write-back of the WAL take. A runtime
        // that goes down refuses the work and drops it here instead, which is as good.
        let _ = tokio::task::spawn_blocking(move || drop(threads)).await;
    }

    async fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, Error> {
        let inbox = self.inner.inbox.as_ref().ok_or(Error::Closed)?;
        let ticket = self.inner.desk.line().join();
        let (to, answer) = oneshot::channel();
        inbox.send(request(Reply { to, ticket })).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.readers.let_go();
        self.inbox = None;
        drop(self.threads.get_mut().take());
    }
}
