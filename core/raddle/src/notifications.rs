//! Notifications as a stream.
//!
//! Neighbours: none.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use raddle_protocol::limits::OUTBOX_BYTES_MAX;
use raddle_protocol::methods::ServerNotification;
use raddle_protocol::rpc::ServerMessage;
use raddle_server::Outbox;

/// A stream of notifications with a buffer of its own: bounded in bytes, with deltas of one item merging while they wait.
/// It ends with its connection, or when more than [`OUTBOX_BYTES_MAX`] bytes wait; see [`has_overflowed`].
///
/// [`has_overflowed`]: Notifications::has_overflowed
pub struct Notifications {
    queue: Arc<Outbox>,
    waiting: Option<Pin<Box<dyn Future<Output = Option<ServerMessage>> + Send>>>,
}

impl Notifications {
    pub(crate) fn new() -> (Self, Arc<Outbox>) {
        let queue = Arc::new(Outbox::new(OUTBOX_BYTES_MAX));
        (Self { queue: queue.clone(), waiting: None }, queue)
    }

    /// Waits for the next notification; `None` at the end.
    ///
    /// # Cancel safety
    /// Dropping the future loses no notification.
    pub async fn next(&mut self) -> Option<ServerNotification> {
        self.queue.next().await.and_then(unwrap)
    }

    /// The next notification, if one waits.
    pub fn try_next(&mut self) -> Option<ServerNotification> {
        self.queue.try_next().and_then(unwrap)
    }

    /// Whether the stream ended because it was read too slowly.
    pub fn has_overflowed(&self) -> bool {
        self.queue.has_overflowed()
    }
}

impl Stream for Notifications {
    type Item = ServerNotification;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ServerNotification>> {
        if let Some(message) = self.queue.try_next() {
            self.waiting = None;
            return Poll::Ready(unwrap(message));
        }
        let queue = self.queue.clone();
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(async move { queue.next().await }));
        let polled = waiting.as_mut().poll(cx);
        if polled.is_ready() {
            self.waiting = None;
        }
        polled.map(|message| message.and_then(unwrap))
    }
}

fn unwrap(message: ServerMessage) -> Option<ServerNotification> {
    match message {
        ServerMessage::Notification(notification) => Some(Arc::unwrap_or_clone(notification)),
        // Only notifications are pushed into this queue.
        _ => None,
    }
}
