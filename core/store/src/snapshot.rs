//! Snapshots of lists: which threads come after a first page, and in which order.
//!
//! What a list's later pages show was settled when its first was read: threads that move, come or change meanwhile neither
//! double nor hide others. A snapshot is the keys of those threads and nothing else; their rows are read when their page is.
//!
//! Neighbours: cursor, error.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use raddle_protocol::limits::LIST_SNAPSHOTS_MAX;
use tokio::sync::watch;

use crate::cursor::{ListCursor, bond};
use crate::error::Error;

/// Threads that all snapshots of a store name together, at four bytes each; at more, those that were unused for longest go
/// (P7). The newest stays whatever its length, since its cursor is on the way already.
pub const LIST_SNAPSHOT_KEYS_MAX: usize = 4 * 1024 * 1024;

/// Keys of threads, in their order. A thread's key has 31 bits.
pub(crate) type Keys = Arc<[u32]>;

/// The snapshots of one store, with their cursors. None outlives it.
pub(crate) struct Snapshots {
    /// Part of each cursor, so that no other store takes it for one of its own.
    store: String,
    expires_after: Duration,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    last: i64,
    /// The one unused for longest first.
    snapshots: VecDeque<Snapshot>,
}

struct Snapshot {
    id: i64,
    used_at: Instant,
    /// None until they were collected.
    keys: watch::Receiver<Option<Keys>>,
}

impl Snapshot {
    fn len(&self) -> usize {
        self.keys.borrow().as_ref().map_or(0, |keys| keys.len())
    }
}

impl Kept {
    fn expire(&mut self, now: Instant, after: Duration) {
        // Those in front were unused for longest.
        while self.snapshots.front().is_some_and(|first| now.duration_since(first.used_at) >= after) {
            self.snapshots.pop_front();
        }
    }

    fn trim(&mut self) {
        let mut keys: usize = self.snapshots.iter().map(Snapshot::len).sum();
        while self.snapshots.len() > LIST_SNAPSHOTS_MAX
            || (keys > LIST_SNAPSHOT_KEYS_MAX && self.snapshots.len() > 1)
        {
            keys -= self.snapshots.pop_front().map_or(0, |gone| gone.len());
        }
    }
}

/// A snapshot whose keys are still to come. Dropped without them, its cursors are invalid.
pub(crate) struct Pending {
    snapshots: Arc<Snapshots>,
    id: i64,
    keys: watch::Sender<Option<Keys>>,
}

impl Pending {
    pub(crate) fn id(&self) -> i64 {
        self.id
    }

    pub(crate) fn fill(self, keys: Vec<u32>) {
        self.keys.send_replace(Some(keys.into()));
        self.snapshots.kept.lock().trim();
    }
}

/// A place in a snapshot.
pub(crate) struct Place {
    id: i64,
    pub(crate) offset: usize,
    keys: watch::Receiver<Option<Keys>>,
}

impl Place {
    pub(crate) fn id(&self) -> i64 {
        self.id
    }

    /// The snapshot's keys, once they are collected.
    pub(crate) async fn keys(&mut self) -> Result<Keys, Error> {
        let keys = self.keys.wait_for(Option::is_some).await.map_err(|_| Error::InvalidCursor)?;
        let keys = keys.clone().filter(|keys| self.offset < keys.len());
        keys.ok_or(Error::InvalidCursor)
    }
}

impl Snapshots {
    pub(crate) fn new(store: String, expires_after: Duration) -> Arc<Self> {
        Arc::new(Self { store, expires_after, kept: Mutex::default() })
    }

    /// Makes room for a snapshot, if need be that of the one unused for longest.
    pub(crate) fn begin(self: &Arc<Self>, now: Instant) -> Pending {
        let (keys, collected) = watch::channel(None);
        let mut kept = self.kept.lock();
        kept.expire(now, self.expires_after);
        kept.last += 1;
        let id = kept.last;
        kept.snapshots.push_back(Snapshot { id, used_at: now, keys: collected });
        kept.trim();
        Pending { snapshots: Arc::clone(self), id, keys }
    }

    /// Where a cursor of the filters with this hash stands. Whatever is asked for stays for a while longer.
    pub(crate) fn find(&self, now: Instant, filters: u64, cursor: &str) -> Result<Place, Error> {
        let cursor = ListCursor::decode(cursor)?;
        if cursor.bond != self.bond(filters) {
            return Err(Error::InvalidCursor);
        }
        let mut kept = self.kept.lock();
        kept.expire(now, self.expires_after);
        let at = kept.snapshots.iter().position(|snapshot| snapshot.id == cursor.snapshot);
        let mut found = at.and_then(|at| kept.snapshots.remove(at)).ok_or(Error::InvalidCursor)?;
        found.used_at = now;
        let keys = found.keys.clone();
        kept.snapshots.push_back(found);
        let offset = usize::try_from(cursor.offset).map_err(|_| Error::InvalidCursor)?;
        Ok(Place { id: cursor.snapshot, offset, keys })
    }

    /// The cursor of a place.
    pub(crate) fn cursor(&self, snapshot: i64, offset: usize, filters: u64) -> String {
        let offset = i64::try_from(offset).unwrap_or(i64::MAX);
        ListCursor { snapshot, offset, bond: self.bond(filters) }.encode()
    }

    fn bond(&self, filters: u64) -> u64 {
        bond([self.store.as_str(), &filters.to_string()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILTERS: u64 = 7;

    fn filled(snapshots: &Arc<Snapshots>, now: Instant, keys: usize) -> String {
        let pending = snapshots.begin(now);
        let cursor = snapshots.cursor(pending.id(), 0, FILTERS);
        pending.fill(vec![1; keys]);
        cursor
    }

    #[test]
    fn p7_the_one_unused_for_longest_goes() {
        let now = Instant::now();
        let snapshots = Snapshots::new("store".to_owned(), Duration::from_secs(300));
        let cursors: Vec<_> = (0..LIST_SNAPSHOTS_MAX).map(|_| filled(&snapshots, now, 3)).collect();
        snapshots.find(now, FILTERS, &cursors[0]).unwrap();
        filled(&snapshots, now, 3);
        assert!(snapshots.find(now, FILTERS, &cursors[0]).is_ok());
        assert!(snapshots.find(now, FILTERS, &cursors[1]).is_err());
        assert!(snapshots.find(now, FILTERS, &cursors[2]).is_ok());
        assert!(snapshots.find(now, FILTERS + 1, &cursors[2]).is_err());
    }

    #[test]
    fn use_puts_the_end_off() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let snapshots = Snapshots::new("store".to_owned(), Duration::from_secs(300));
        let [used, unused] = [0, 0].map(|_| filled(&snapshots, start, 3));
        assert!(snapshots.find(at(299), FILTERS, &used).is_ok());
        assert!(snapshots.find(at(300), FILTERS, &unused).is_err());
        assert!(snapshots.find(at(598), FILTERS, &used).is_ok());
        assert!(snapshots.find(at(898), FILTERS, &used).is_err());
    }

    #[test]
    fn p7_snapshots_are_bounded_together() {
        let now = Instant::now();
        let snapshots = Snapshots::new("store".to_owned(), Duration::from_secs(300));
        let small = filled(&snapshots, now, 3);
        let large = filled(&snapshots, now, LIST_SNAPSHOT_KEYS_MAX - 3);
        assert!(snapshots.find(now, FILTERS, &small).is_ok());
        let next = filled(&snapshots, now, 4);
        assert!(snapshots.find(now, FILTERS, &large).is_err());
        assert!(snapshots.find(now, FILTERS, &small).is_ok());
        let huge = filled(&snapshots, now, LIST_SNAPSHOT_KEYS_MAX + 1);
        assert!(snapshots.find(now, FILTERS, &huge).is_ok());
        assert!(snapshots.find(now, FILTERS, &next).is_err());
    }

    #[tokio::test]
    async fn keys_that_never_come_are_an_invalid_cursor() {
        let now = Instant::now();
        let snapshots = Snapshots::new("store".to_owned(), Duration::from_secs(300));
        let pending = snapshots.begin(now);
        let cursor = snapshots.cursor(pending.id(), 0, FILTERS);
        let mut place = snapshots.find(now, FILTERS, &cursor).unwrap();
        drop(pending);
        assert!(matches!(place.keys().await, Err(Error::InvalidCursor)));
        let beyond = filled(&snapshots, now, 3);
        let end = snapshots.cursor(snapshots.find(now, FILTERS, &beyond).unwrap().id(), 3, FILTERS);
        assert!(matches!(
            snapshots.find(now, FILTERS, &end).unwrap().keys().await,
            Err(Error::InvalidCursor)
        ));
    }
}
