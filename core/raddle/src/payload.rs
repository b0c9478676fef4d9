//! Large values: reading what references stand for, and putting it back.
//!
//! Neighbours: client, error, pump.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use raddle_protocol::methods::method;
use raddle_protocol::payload::{PayloadReadParams, PayloadReadResult, PayloadReference};
use raddle_protocol::{Item, Turn};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use crate::client::Client;
use crate::error::ClientError;
use crate::pump::Inner;

/// The bytes that a reference stands for, chunk by chunk: [`Client::read_payload`] makes one.
///
/// One request is under way at a time, and none before the first read. A failure is an [`io::Error`] whose source is the
/// [`ClientError`]; after one, every read fails. A reader that was given more or fewer bytes than its reference says fails,
/// too, rather than end early.
pub struct PayloadReader {
    client: Arc<Inner>,
    reference: PayloadReference,
    /// Bytes that the server has given.
    received: u64,
    /// What was received and not yet read.
    chunk: io::Cursor<Vec<u8>>,
    state: State,
}

enum State {
    /// The next chunk is to be asked for.
    Ready,
    Asking(Asking),
    /// Nothing more comes.
    Over,
    Failed(ClientError),
}

type Asking = Pin<Box<dyn Future<Output = Result<PayloadReadResult, ClientError>> + Send>>;

impl PayloadReader {
    fn new(client: Arc<Inner>, reference: PayloadReference) -> Self {
        Self { client, reference, received: 0, chunk: io::Cursor::default(), state: State::Ready }
    }

    /// What is read.
    pub fn reference(&self) -> &PayloadReference {
        &self.reference
    }

    fn ask(&self) -> Asking {
        let client = self.client.clone();
        let params = PayloadReadParams { id: self.reference.id.clone(), offset: self.received };
        Box::pin(async move { client.request::<method::PayloadRead>(params).await })
    }

    /// Takes a chunk in; whether it was the last.
    fn take(&mut self, result: PayloadReadResult) -> Result<bool, ClientError> {
        let unreadable = |message: String| ClientError::UnreadablePayload { message };
        let bytes = BASE64_STANDARD
            .decode(&result.data)
            .map_err(|error| unreadable(format!("not base64: {error}")))?;
        self.received += bytes.len() as u64;
        let (received, expected) = (self.received, self.reference.bytes);
        let goes_on = !result.eof && !bytes.is_empty() && result.next_offset == Some(received);
        if received > expected || result.eof && received < expected || !result.eof && !goes_on {
            let message = format!(
                "{received} of {expected} bytes came, and the next chunk is said to begin at {:?}",
                result.next_offset
            );
            return Err(unreadable(message));
        }
        self.chunk = io::Cursor::new(bytes);
        Ok(result.eof)
    }
}

impl AsyncRead for PayloadReader {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if buffer.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            let at = usize::try_from(this.chunk.position()).unwrap_or(usize::MAX);
            if let Some(rest) = this.chunk.get_ref().get(at..).filter(|rest| !rest.is_empty()) {
                let many = rest.len().min(buffer.remaining());
                buffer.put_slice(&rest[..many]);
                this.chunk.set_position((at + many) as u64);
                return Poll::Ready(Ok(()));
            }
            match &mut this.state {
                State::Ready => this.state = State::Asking(this.ask()),
                State::Asking(asking) => {
                    let answer = ready!(asking.as_mut().poll(context));
                    this.state = match answer.and_then(|result| this.take(result)) {
                        Ok(true) => State::Over,
                        Ok(false) => State::Ready,
                        Err(error) => State::Failed(error),
                    };
                }
                State::Over => return Poll::Ready(Ok(())),
                State::Failed(error) => return Poll::Ready(Err(io::Error::other(error.clone()))),
            }
        }
    }
}

impl std::fmt::Debug for PayloadReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PayloadReader")
            .field("reference", &self.reference)
            .field("received", &self.received)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Reads what a reference stands for as a stream, however large it is.
    ///
    /// ```no_run
    /// # async fn example(client: raddle::Client, image: raddle::protocol::payload::PayloadReference) -> std::io::Result<()> {
    /// let mut file = tokio::fs::File::create("picture.png").await?;
    /// tokio::io::copy(&mut client.read_payload(&image), &mut file).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A reference that nobody used for half an hour has expired: reading it fails with `invalidParams` and the reason
    /// `unknownPayload`. Read the thread again then.
    pub fn read_payload(&self, reference: &PayloadReference) -> PayloadReader {
        PayloadReader::new(self.inner.clone(), reference.clone())
    }

    /// Reads all that a reference stands for, if that is at most `bytes_max` bytes.
    ///
    /// # Errors
    /// [`ClientError::PayloadTooLarge`] when it is more, without reading any of it; otherwise what the server answers.
    pub async fn payload_bytes(
        &self,
        reference: &PayloadReference,
        bytes_max: u64,
    ) -> Result<Vec<u8>, ClientError> {
        if reference.bytes > bytes_max {
            return Err(ClientError::PayloadTooLarge { bytes: reference.bytes, bytes_max });
        }
        let mut reader = self.read_payload(reference);
        let mut bytes = Vec::new();
        // The reader gives no more than the reference says.
        match reader.read_to_end(&mut bytes).await {
            Ok(_) => Ok(bytes),
            Err(error) => Err(match reader.state {
                State::Failed(error) => error,
                _ => ClientError::UnreadablePayload { message: error.to_string() },
            }),
        }
    }

    /// Puts every value back that a reference in the item stands for. Text that deltas have added since stays behind it.
    /// The whole item is then in memory: a picture can have 20 MiB. To be called once: in a whole item, what a model has
    /// written may look like a reference.
    ///
    /// # Errors
    /// Those of reading; [`ClientError::UnreadablePayload`] when the bytes are not what the reference says.
    pub async fn resolve_item(&self, mut item: Item) -> Result<Item, ClientError> {
        let mut references = item.references();
        let mut seen = std::collections::HashSet::new();
        references.retain(|reference| seen.insert(reference.id.clone()));
        // A tool's input comes first and is put back last: what it says may look like a reference to one of the others.
        for reference in references.into_iter().rev() {
            let bytes = self.payload_bytes(&reference, u64::MAX).await?;
            item.fill(&reference.id, &bytes)
                .map_err(|error| ClientError::UnreadablePayload { message: error.to_string() })?;
        }
        Ok(item)
    }

    /// Puts every value back that a reference in the turn stands for: its items, if they are one, and then those in each of
    /// them. The whole turn is then in memory.
    ///
    /// A running turn of `thread/resume` whose items are a reference must be resolved before deltas are added to it.
    ///
    /// # Errors
    /// As [`resolve_item`](Self::resolve_item).
    pub async fn resolve_turn(&self, mut turn: Turn) -> Result<Turn, ClientError> {
        if let Some(reference) = turn.items.reference() {
            let bytes = self.payload_bytes(reference, u64::MAX).await?;
            let items = serde_json::from_slice(&bytes)
                .map_err(|error| ClientError::UnreadablePayload { message: error.to_string() })?;
            turn.items.fill(items);
        }
        for at in 0..turn.items.len() {
            if turn.items[at].has_references() {
                turn.items[at] = self.resolve_item(turn.items[at].clone()).await?;
            }
        }
        Ok(turn)
    }
}
