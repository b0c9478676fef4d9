use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use proptest::prelude::*;
use raddle_protocol::methods::ServerNotification;
use raddle_protocol::server::ErrorNotification;
use raddle_protocol::{ErrorCode, RpcError};
use tokio::io::ReadBuf;

use super::*;

/// Gives its pieces out one read at a time, after a `Pending` each, and then fails or ends.
struct Pieces {
    pieces: std::vec::IntoIter<Vec<u8>>,
    is_pending: bool,
    fails: bool,
}

impl AsyncRead for Pieces {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.is_pending = !self.is_pending;
        if self.is_pending {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        match self.pieces.next() {
            Some(piece) => into.put_slice(&piece),
            None if self.fails => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            None => {}
        }
        Poll::Ready(Ok(()))
    }
}

fn read_all(pieces: Vec<Vec<u8>>, fails: bool) -> Vec<Incoming> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let reader = Pieces { pieces: pieces.into_iter(), is_pending: false, fails };
        let mut source = ServerSource::with_line_bound(reader, 120);
        let mut messages = Vec::new();
        while let Some(message) = source.receive().await {
            messages.push(message);
        }
        assert_eq!(source.receive().await, None, "the end stays the end");
        messages
    })
}

proptest! {
    #[test]
    fn r22_messages_do_not_depend_on_how_the_bytes_are_cut(
        lines in prop::collection::vec(prop_oneof![
            Just(r#"{"id":"é","method":"model/list"}"#.to_owned()),
            Just(r#"{"method":"initialized"}"#.to_owned()),
            Just(r#"{"id":3,"result":{"decision":"accept"}}"#.to_owned()),
            Just("nonsense".to_owned()),
            Just(String::new()),
            Just("x".repeat(200)),
        ], 0..8),
        end in prop_oneof![Just("\n"), Just("\r\n")],
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        fails in any::<bool>(),
    ) {
        let bytes = lines.join(end).into_bytes();
        let whole = read_all(vec![bytes.clone()], fails);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        // An empty piece would be the end.
        let cut = |cut: &[usize]| (cut[0] < cut[1]).then(|| bytes[cut[0]..cut[1]].to_vec());
        prop_assert_eq!(&read_all(cuts.windows(2).filter_map(cut).collect(), fails), &whole);
        prop_assert_eq!(&read_all(bytes.chunks(1).map(<[u8]>::to_vec).collect(), fails), &whole);
        let wanted = lines.iter().filter(|line| !line.is_empty()).count();
        prop_assert_eq!(whole.len(), wanted);
    }
}

/// Counts what it is asked for.
#[derive(Default)]
struct Counts {
    bytes: usize,
    largest: usize,
    writes: usize,
    flushes: usize,
    is_shut: bool,
}

impl AsyncWrite for Counts {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        self.writes += 1;
        self.bytes += from.len();
        self.largest = self.largest.max(from.len());
        Poll::Ready(Ok(from.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flushes += 1;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.is_shut = true;
        Poll::Ready(Ok(()))
    }
}

fn message(bytes: usize) -> ServerMessage {
    ServerMessage::Notification(Arc::new(ServerNotification::Error(ErrorNotification {
        thread_id: None,
        code: ErrorCode::Internal,
        message: "x".repeat(bytes),
        data: None,
    })))
}

#[tokio::test]
async fn messages_that_wait_are_written_together() {
    let mut sink = ServerSink::new(Counts::default());
    for _ in 0..100 {
        sink.send(message(100)).await.unwrap();
    }
    assert_eq!(sink.lines.writer.writes, 0);
    sink.flush().await.unwrap();
    let counts = &sink.lines.writer;
    assert_eq!((counts.writes, counts.flushes), (1, 1));
    assert!(counts.bytes > 100 * 100);
}

#[tokio::test]
async fn p7_what_is_held_back_is_bounded() {
    let mut sink = ServerSink::new(Counts::default());
    for _ in 0..10_000 {
        sink.send(message(1_000)).await.unwrap();
        assert!(sink.lines.buffer.len() < WRITE_AT);
    }
    assert!(sink.lines.writer.largest < WRITE_AT + 2_000);
    sink.send(message(16 << 20)).await.unwrap();
    assert!(sink.lines.buffer.capacity() <= ROOM_KEPT_MAX, "the room of a large message is given back");
    let error = RpcError::new(ErrorCode::Internal, "last");
    sink.send(ServerMessage::Response { id: None, result: Err(error) }).await.unwrap();
    let before = sink.lines.writer.bytes;
    sink.close().await;
    assert!(sink.lines.writer.bytes > before && sink.lines.writer.is_shut);
}
