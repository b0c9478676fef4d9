//! Table `owner`: who may write a thread, and since which epoch (P2).
//!
//! Neighbours: error, process, row.

use raddle_protocol::ThreadId;
use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

use crate::error::Error;
use crate::process::{Probe, Process};
use crate::row::{Trouble, damaged};

/// The right to append to one thread, until somebody takes it over. Cheap to clone; all clones are one right.
///
/// Dropping it gives nothing back; see [`Store::release`](crate::Store::release).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub(crate) thread: ThreadId,
    pub(crate) key: i64,
    pub(crate) process: Uuid,
    pub(crate) epoch: i64,
}

impl Lease {
    /// The thread.
    pub fn thread_id(&self) -> &ThreadId {
        &self.thread
    }

    /// How often the thread has changed hands; grows with every new owner.
    pub fn epoch(&self) -> u64 {
        self.epoch.unsigned_abs()
    }
}

struct OwnerRow {
    process: Option<Uuid>,
    epoch: i64,
}

fn row_of(connection: &Connection, thread: i64) -> rusqlite::Result<Option<OwnerRow>> {
    let row = connection
        .prepare_cached("SELECT process, epoch FROM owner WHERE thread = ?1")?
        .query_row([thread], |row| {
            Ok((row.get_ref(0)?.as_blob_or_null()?.map(Uuid::from_slice), row.get(1)?))
        })
        .optional()?;
    let Some((process, epoch)) = row else { return Ok(None) };
    let process = process.transpose().map_err(|_| damaged("an owner has no name"))?;
    Ok(Some(OwnerRow { process, epoch }))
}

fn put(connection: &Connection, thread: i64, process: Uuid, epoch: i64) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO owner (thread, process, epoch) VALUES (?1, ?2, ?3)
             ON CONFLICT (thread) DO UPDATE SET process = excluded.process, epoch = excluded.epoch",
        )?
        .execute(params![thread, process.as_bytes(), epoch])?;
    Ok(())
}

/// Makes a new thread ours.
pub(crate) fn begin(
    connection: &Connection,
    process: &Process,
    thread: &ThreadId,
    key: i64,
) -> rusqlite::Result<Lease> {
    let epoch = 1;
    put(connection, key, process.id(), epoch)?;
    Ok(Lease { thread: thread.clone(), key, process: process.id(), epoch })
}

/// Makes a thread ours if nobody who lives has it. Runs inside the transaction that makes it so: two
/// processes that find the same owner dead do not both get the thread.
pub(crate) fn acquire(
    connection: &Connection,
    process: &Process,
    thread: &ThreadId,
    key: i64,
) -> Result<Lease, Trouble> {
    let row = row_of(connection, key)?;
    let epoch = match &row {
        None => 1,
        Some(OwnerRow { process: Some(owner), epoch }) if *owner == process.id() => {
            return Ok(Lease { thread: thread.clone(), key, process: *owner, epoch: *epoch });
        }
        Some(OwnerRow { process: None, epoch }) => epoch + 1,
        Some(OwnerRow { process: Some(owner), epoch }) => match process.probe(*owner) {
            Probe::Dead => epoch + 1,
            Probe::Stalled => {
                tracing::warn!(%thread, %owner, "taking a thread over from a process that stands still");
                epoch + 1
            }
            Probe::Alive { pid } => return Err(Error::LockedElsewhere { id: thread.clone(), pid }.into()),
        },
    };
    put(connection, key, process.id(), epoch)?;
    Ok(Lease { thread: thread.clone(), key, process: process.id(), epoch })
}

/// Gives a thread back. The epoch stays, so that the next owner's is higher.
pub(crate) fn release(connection: &Connection, lease: &Lease) -> Result<(), Trouble> {
    let changed = connection
        .prepare_cached("UPDATE owner SET process = NULL WHERE thread = ?1 AND process = ?2 AND epoch = ?3")?
        .execute(params![lease.key, lease.process.as_bytes(), lease.epoch])?;
    if changed == 1 { Ok(()) } else { Err(Error::Fenced { id: lease.thread.clone() }.into()) }
}

/// Whether a lease of ours still holds, inside the transaction that is about to use it; also tells where
/// the thread's pieces begin. On the path of every delta, so the statement is the caller's and nothing is
/// copied. Holds: P2.
pub(crate) fn check(
    connection: &Connection,
    process: &Process,
    lease: &Lease,
) -> Result<Option<i64>, Trouble> {
    let found = connection
        .prepare_cached("SELECT process, epoch, pieces_from FROM owner WHERE thread = ?1")?
        .query_row([lease.key], |row| {
            let owner = row.get_ref(0)?.as_blob_or_null()?;
            // A lease of another store in this process is no right of ours.
            let holds = lease.process == process.id()
                && owner == Some(lease.process.as_bytes().as_slice())
                && row.get::<_, i64>(1)? == lease.epoch;
            Ok(if holds { Some(row.get(2)?) } else { None })
        })
        .optional()?;
    found.flatten().ok_or_else(|| Error::Fenced { id: lease.thread.clone() }.into())
}
