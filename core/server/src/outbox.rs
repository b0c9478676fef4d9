//! A connection's outbox: bounded in bytes, and merging, so that a slow client gets fewer and larger deltas.
//!
//! Neighbours: size.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use raddle_protocol::methods::ServerNotification;
use raddle_protocol::rpc::ServerMessage;
use raddle_protocol::turn::DeltaNotification;
use raddle_protocol::{ItemId, ThreadId};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::size::message_bytes;

/// Messages for one reader. Pushing never blocks (P8).
///
/// Deltas that wait for the same item become one, as long as nothing else came after the first of them: a snapshot in a
/// response must stay between what it holds and what follows it.
pub struct Outbox {
    inner: Mutex<Inner>,
    ready: Notify,
    overflow: CancellationToken,
    bytes_max: usize,
}

#[derive(Default)]
struct Inner {
    queue: VecDeque<ServerMessage>,
    /// Messages taken so far: the place of the queue's front among all messages ever pushed.
    taken: u64,
    bytes: usize,
    /// Deltas at the queue's end that may still grow, by their place.
    growing: HashMap<DeltaKey, u64>,
    closed: bool,
}

#[derive(PartialEq, Eq, Hash)]
struct DeltaKey(ThreadId, ItemId, std::mem::Discriminant<ServerNotification>);

/// What became of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// It waits for the reader.
    Queued,
    /// The outbox was full: it is closed now, and the connection is at its end.
    Overflowed,
    /// The outbox is closed already.
    Closed,
}

impl Outbox {
    /// An outbox that ends its connection when more than `bytes_max` bytes wait.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            inner: Mutex::new(Inner::default()),
            ready: Notify::new(),
            overflow: CancellationToken::new(),
            bytes_max,
        }
    }

    /// Adds a message at the end, or into a delta that waits.
    pub fn push(&self, message: ServerMessage) -> Pushed {
        let was_empty = {
            let mut inner = self.inner.lock();
            if inner.closed {
                return Pushed::Closed;
            }
            let was_empty = inner.queue.is_empty();
            inner.push(message);
            if inner.bytes > self.bytes_max {
                inner.closed = true;
                inner.queue.clear();
                inner.growing.clear();
                inner.bytes = 0;
                drop(inner);
                self.overflow.cancel();
                self.ready.notify_one();
                return Pushed::Overflowed;
            }
            was_empty
        };
        if was_empty {
            self.ready.notify_one();
        }
        Pushed::Queued
    }

    /// Waits for the next message; `None` when the outbox is closed and everything was taken. One reader at a time.
    ///
    /// # Cancel safety
    /// Dropping the future loses no message.
    pub async fn next(&self) -> Option<ServerMessage> {
        loop {
            {
                let mut inner = self.inner.lock();
                if let Some(message) = inner.pop() {
                    return Some(message);
                }
                if inner.closed {
                    return None;
                }
            }
            self.ready.notified().await;
        }
    }

    /// Takes the next message if there is one.
    pub fn try_next(&self) -> Option<ServerMessage> {
        self.inner.lock().pop()
    }

    /// Takes no more; what waits can still be read.
    pub fn close(&self) {
        self.inner.lock().closed = true;
        self.ready.notify_one();
    }

    /// Whether it takes no more.
    pub fn is_closed(&self) -> bool {
        self.inner.lock().closed
    }

    /// Whether it was closed because too much waited.
    pub fn has_overflowed(&self) -> bool {
        self.overflow.is_cancelled()
    }

    /// Waits until it is closed because too much waited.
    pub async fn overflowed(&self) {
        self.overflow.cancelled().await;
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> usize {
        self.inner.lock().bytes
    }
}

impl Inner {
    fn push(&mut self, message: ServerMessage) {
        let key = match &message {
            ServerMessage::Notification(notification) => {
                delta_of(notification).map(|delta| key_of(notification, delta))
            }
            _ => None,
        };
        let Some(key) = key else {
            self.growing.clear();
            return self.push_back(message);
        };
        if let Some(place) = self.growing.get(&key).copied().and_then(|place| place.checked_sub(self.taken))
            && let Some(ServerMessage::Notification(waiting)) = self.queue.get_mut(place as usize)
            && let ServerMessage::Notification(more) = &message
        {
            let grown = grow(Arc::make_mut(waiting), more);
            self.bytes += grown;
            return;
        }
        if self.growing.len() >= GROWING_FORGOTTEN_AT {
            let taken = self.taken;
            self.growing.retain(|_, place| *place >= taken);
        }
        self.growing.insert(key, self.taken + self.queue.len() as u64);
        self.push_back(message);
    }

    fn push_back(&mut self, message: ServerMessage) {
        self.bytes += message_bytes(&message);
        self.queue.push_back(message);
    }

    fn pop(&mut self) -> Option<ServerMessage> {
        let message = self.queue.pop_front()?;
        self.taken += 1;
        self.bytes = self.bytes.saturating_sub(message_bytes(&message));
        Some(message)
    }
}

/// Places of deltas that were taken are dropped when there are this many.
const GROWING_FORGOTTEN_AT: usize = 64;

fn delta_of(notification: &ServerNotification) -> Option<&DeltaNotification> {
    match notification {
        ServerNotification::ItemAgentMessageDelta(delta)
        | ServerNotification::ItemReasoningDelta(delta)
        | ServerNotification::ItemToolCallOutputDelta(delta) => Some(delta),
        _ => None,
    }
}

fn key_of(notification: &ServerNotification, delta: &DeltaNotification) -> DeltaKey {
    DeltaKey(delta.thread_id.clone(), delta.item_id.clone(), std::mem::discriminant(notification))
}

/// Adds one delta to another of the same item; returns the bytes added.
fn grow(waiting: &mut ServerNotification, more: &ServerNotification) -> usize {
    let Some(more) = delta_of(more) else { return 0 };
    match waiting {
        ServerNotification::ItemAgentMessageDelta(delta)
        | ServerNotification::ItemReasoningDelta(delta)
        | ServerNotification::ItemToolCallOutputDelta(delta) => {
            delta.delta.push_str(&more.delta);
            more.delta.len()
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
