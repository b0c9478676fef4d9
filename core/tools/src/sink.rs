//! Where live output of a running tool goes.
//!
//! Neighbours: none.

use tokio::sync::mpsc;

/// Takes live output of a running tool, in pieces of whole characters. Clones feed the same receiver.
///
/// The channel is bounded: [`send`](Self::send) waits while it is full. What is sent after the receiver is
/// gone is dropped. Live output is only a view: the result of the run is complete without it.
#[derive(Clone, Debug)]
pub struct OutputSink {
    sender: Option<mpsc::Sender<String>>,
}

impl OutputSink {
    /// A sink and its receiver, with room for `capacity` pieces; 0 counts as 1.
    pub fn channel(capacity: usize) -> (Self, mpsc::Receiver<String>) {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        let sink = Self { sender: Some(sender) };
        (sink, receiver)
    }

    /// A sink that drops everything at once.
    pub fn discard() -> Self {
        Self { sender: None }
    }

    /// Hands over one piece, waiting while the channel is full. An empty piece is not sent.
    ///
    /// # Cancel safety
    ///
    /// A dropped `send` has sent nothing.
    pub async fn send(&self, piece: String) {
        if piece.is_empty() {
            return;
        }
        if let Some(sender) = &self.sender {
            // An error means that the receiver is gone: nobody watches any more, and that is no fault.
            let _ = sender.send(piece).await;
        }
    }

    /// Whether anybody still takes what is sent.
    pub fn is_watched(&self) -> bool {
        self.sender.as_ref().is_some_and(|sender| !sender.is_closed())
    }

    /// Waits for room and hands `pending` over as one piece, leaving it empty. With nobody watching it is
    /// emptied at once.
    ///
    /// Cancel safe: until the room is there, `pending` is untouched.
    #[cfg(unix)]
    pub(crate) async fn send_pending(&self, pending: &mut String) {
        if let Some(sender) = &self.sender
            && let Ok(room) = sender.reserve().await
        {
            room.send(std::mem::take(pending));
        } else {
            pending.clear();
        }
    }

    /// Hands `pending` over if there is room now, and empties it in any case.
    #[cfg(unix)]
    pub(crate) fn try_send_pending(&self, pending: &mut String) {
        let piece = std::mem::take(pending);
        if !piece.is_empty()
            && let Some(sender) = &self.sender
        {
            // Full or closed: the piece is in the result, so it is not lost.
            let _ = sender.try_send(piece);
        }
    }
}
