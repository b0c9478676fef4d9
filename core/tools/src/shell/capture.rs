//! What becomes of a command's output: live pieces, and the text of the result.
//!
//! Neighbours: output, sink, utf8.

use crate::output::{Excerpt, floor_boundary};
use crate::sink::OutputSink;
use crate::utf8::Utf8Decoder;

use super::LIVE_BYTES_MAX;

/// How many bytes wait for room in the sink at most. Pieces that wait become one; past this much the command's
/// output is not read, so that the command waits too.
const PENDING_BYTES_MAX: usize = 64 * 1024;

/// The last live piece of a command that writes a lot.
const LIVE_END: &str = "\n[no more live output; the end of it comes with the result]\n";

/// Takes the bytes of a command's output.
pub(super) struct Capture {
    sink: OutputSink,
    decoder: Utf8Decoder,
    excerpt: Excerpt,
    /// The text of the bytes just taken; kept for its memory.
    text: String,
    /// Live output that waits for room.
    pending: String,
    /// How many bytes may still go out live; nothing once that was too few.
    live_bytes_left: Option<usize>,
}

impl Capture {
    pub(super) fn new(sink: OutputSink) -> Self {
        let live_bytes_left = sink.is_watched().then_some(LIVE_BYTES_MAX);
        Self {
            sink,
            decoder: Utf8Decoder::default(),
            excerpt: Excerpt::default(),
            text: String::new(),
            pending: String::new(),
            live_bytes_left,
        }
    }

    pub(super) fn take(&mut self, bytes: &[u8]) {
        self.text.clear();
        self.decoder.push(bytes, &mut self.text);
        self.excerpt.push(&self.text);
        let Some(left) = self.live_bytes_left else {
            return;
        };
        let end = floor_boundary(&self.text, left);
        self.pending.push_str(&self.text[..end]);
        if end < self.text.len() {
            self.pending.push_str(LIVE_END);
            self.live_bytes_left = None;
        } else {
            self.live_bytes_left = Some(left - end);
        }
    }

    /// Whether live output waits to be sent.
    pub(super) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether more bytes may be taken now.
    pub(super) fn has_room(&self) -> bool {
        self.pending.len() < PENDING_BYTES_MAX
    }

    /// Waits for room in the sink and sends what is pending. Cancel safe: nothing is lost or sent twice.
    pub(super) async fn send(&mut self) {
        self.sink.send_pending(&mut self.pending).await;
    }

    /// Sends what is pending if there is room, and drops it otherwise.
    pub(super) fn try_send(&mut self) {
        self.sink.try_send_pending(&mut self.pending);
    }

    /// The text of the result.
    pub(super) fn finish(mut self) -> String {
        self.text.clear();
        self.decoder.finish(&mut self.text);
        self.excerpt.push(&self.text);
        if self.live_bytes_left.is_some() {
            self.pending.push_str(&self.text);
        }
        self.try_send();
        self.excerpt.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::OUTPUT_BYTES_MAX;

    #[tokio::test]
    async fn r01_live_pieces_and_result_hold_whole_characters_for_every_cut() {
        let text = "é\u{2028}😀\0x".as_bytes();
        for cut in 0..=text.len() {
            let (sink, mut pieces) = OutputSink::channel(8);
            let mut capture = Capture::new(sink);
            for part in [&text[..cut], &text[cut..]] {
                capture.take(part);
                if capture.is_pending() {
                    capture.send().await;
                }
            }
            assert_eq!(capture.finish().as_bytes(), text);
            let mut live = String::new();
            while let Some(piece) = pieces.recv().await {
                live += &piece;
            }
            assert_eq!(live.as_bytes(), text);
        }
    }

    #[tokio::test]
    async fn live_output_stops_at_its_cap_and_the_result_has_the_end() {
        let (sink, mut pieces) = OutputSink::channel(1_000);
        let mut capture = Capture::new(sink);
        for _ in 0..100 {
            capture.take("é".repeat(LIVE_BYTES_MAX / 60).as_bytes());
            if capture.is_pending() {
                capture.send().await;
            }
        }
        capture.take(b"the end");
        let result = capture.finish();
        assert!(result.ends_with("the end") && result.len() < OUTPUT_BYTES_MAX + 300);
        let mut live = String::new();
        while let Some(piece) = pieces.recv().await {
            live += &piece;
        }
        let body = live.strip_suffix(LIVE_END).expect("the note comes last");
        assert!(body.len() <= LIVE_BYTES_MAX && body.len() > LIVE_BYTES_MAX - 4);
    }

    #[tokio::test]
    async fn with_the_receiver_gone_nothing_waits() {
        let (sink, pieces) = OutputSink::channel(1);
        let mut capture = Capture::new(sink);
        drop(pieces);
        for _ in 0..10 {
            capture.take(&[b'x'; PENDING_BYTES_MAX]);
            capture.send().await;
            assert!(capture.has_room());
        }
    }
}
