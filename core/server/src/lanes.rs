//! The order of requests: those about one thread run in the order of their arrival, all others side by side.
//!
//! Neighbours: none.

use std::collections::HashMap;

use parking_lot::Mutex;
use raddle_protocol::ThreadId;
use tokio::sync::oneshot;

/// One lane a thread; a request waits for the one before it on its lane.
#[derive(Default)]
pub(crate) struct Lanes {
    last: Mutex<HashMap<ThreadId, (u64, oneshot::Receiver<()>)>>,
    numbers: std::sync::atomic::AtomicU64,
}

/// A place on a lane. Dropping it lets the next one go.
pub(crate) struct Place {
    before: Option<oneshot::Receiver<()>>,
    thread_id: ThreadId,
    number: u64,
    _done: oneshot::Sender<()>,
}

impl Lanes {
    /// Takes a place behind all requests about the thread that came before.
    pub(crate) fn enter(&self, thread_id: &ThreadId) -> Place {
        let (done, after) = oneshot::channel();
        let number = self.numbers.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let before = self.last.lock().insert(thread_id.clone(), (number, after));
        Place { before: before.map(|(_, end)| end), thread_id: thread_id.clone(), number, _done: done }
    }

    /// Leaves the lane. The last one on it takes it down, so that lanes do not pile up.
    pub(crate) fn leave(&self, place: Place) {
        let mut last = self.last.lock();
        if last.get(&place.thread_id).is_some_and(|(number, _)| *number == place.number) {
            last.remove(&place.thread_id);
        }
    }
}

impl Place {
    /// Waits until it is first on its lane.
    pub(crate) async fn reached(&mut self) {
        if let Some(before) = self.before.take() {
            // Its sender is dropped, never used: either way the one before has left.
            let _ = before.await;
        }
    }
}
