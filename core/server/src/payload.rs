//! Large values: what was given out, and reading it.
//!
//! Whatever has a reference in it passes here on its way to a client, and only what has passed can be read. An id is looked
//! up in the registry and then leads to bytes by their hash, never to a path.
//!
//! Neighbours: handler, server.

mod clock;
mod edge;
mod registry;

use std::sync::{Arc, Weak};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use parking_lot::Mutex;
use raddle_engine::Engine;
use raddle_protocol::approval::RequestApprovalParams;
use raddle_protocol::limits::PAYLOAD_CHUNK_BYTES_MAX;
use raddle_protocol::methods::ServerNotification;
use raddle_protocol::payload::{PayloadReadParams, PayloadReadResult, reference_in};
use raddle_protocol::turn::{Queue, TurnQueueUpdatedNotification};
use raddle_protocol::{ErrorCode, Item, RpcError};

pub use clock::Clock;
pub(crate) use edge::ShrunkTurn;
use edge::{is_small, shrink_queue};
use registry::{Bounds, Found, Given, Registry, SavedTurn};
pub use registry::{PAYLOAD_MEMORY_BYTES_MAX, PAYLOAD_REFERENCES_MAX};

/// What a server has given out.
pub(crate) struct Payloads {
    registry: Mutex<Registry>,
    clock: Clock,
    /// The last queue that was shrunk, and what it became: each subscriber is told the same.
    last_queue: Mutex<Option<(Weak<ServerNotification>, Arc<ServerNotification>)>>,
}

/// A piece of a payload, and how many bytes it has in all.
struct Chunk {
    bytes: Vec<u8>,
    total: u64,
}

impl Payloads {
    pub(crate) fn new(clock: Clock, memory_bytes_max: usize) -> Self {
        let bounds = Bounds { memory_bytes: memory_bytes_max, ..Bounds::default() };
        Self { registry: Mutex::new(Registry::new(bounds)), clock, last_queue: Mutex::new(None) }
    }

    /// How many references live, and the bytes that they stand for.
    pub(crate) fn live(&self) -> (u64, u64) {
        let now = self.clock.now();
        self.registry.lock().live(now)
    }

    /// Notes references that go to a client.
    pub(crate) fn give(&self, given: impl IntoIterator<Item = Given>) {
        let mut given = given.into_iter().peekable();
        if given.peek().is_none() {
            return;
        }
        let now = self.clock.now();
        let mut registry = self.registry.lock();
        given.for_each(|given| registry.give(given, now));
    }

    /// A notification as a client is sent it. Nothing is done for those without large values.
    pub(crate) fn shown(&self, notification: &Arc<ServerNotification>) -> Arc<ServerNotification> {
        match &**notification {
            ServerNotification::ItemStarted(n) | ServerNotification::ItemCompleted(n) => {
                if n.item.has_references() {
                    self.give(n.item.references().into_iter().map(Given::stored));
                }
                notification.clone()
            }
            ServerNotification::TurnQueueUpdated(n) if !is_small(&n.queue) => {
                self.shown_queue(notification, n)
            }
            _ => notification.clone(),
        }
    }

    fn shown_queue(
        &self,
        notification: &Arc<ServerNotification>,
        updated: &TurnQueueUpdatedNotification,
    ) -> Arc<ServerNotification> {
        let mut last = self.last_queue.lock();
        if let Some((before, shown)) = &*last
            && before.as_ptr() == Arc::as_ptr(notification)
        {
            return shown.clone();
        }
        let mut updated = updated.clone();
        self.shrink_queue(&mut updated.queue);
        let shown = Arc::new(ServerNotification::TurnQueueUpdated(updated));
        *last = Some((Arc::downgrade(notification), shown.clone()));
        shown
    }

    /// Brings a queue down to its size.
    pub(crate) fn shrink_queue(&self, queue: &mut Queue) {
        self.give(shrink_queue(queue));
    }

    /// Notes what a question to a client refers to.
    pub(crate) fn asked(&self, params: &RequestApprovalParams) {
        self.give(reference_in(&params.input).map(Given::stored));
    }

    /// Reads a chunk.
    pub(crate) async fn read(
        &self,
        engine: &Engine,
        params: PayloadReadParams,
    ) -> Result<PayloadReadResult, RpcError> {
        let PayloadReadParams { id, offset } = params;
        let now = self.clock.now();
        let found = self.registry.lock().find(&id, now);
        let Some(found) = found else { return Err(unknown(&id)) };
        let Some(chunk) = self.chunk(engine, &id, offset, &found).await? else {
            self.registry.lock().forget(&id);
            return Err(unknown(&id));
        };
        let Chunk { bytes, total } = chunk;
        if offset > total {
            let message = format!("`offset` is {offset}, but the payload has {total} bytes");
            return Err(RpcError::invalid_params(message));
        }
        let end = offset + bytes.len() as u64;
        let eof = end >= total;
        Ok(PayloadReadResult {
            data: BASE64_STANDARD.encode(&bytes),
            next_offset: (!eof).then_some(end),
            eof,
        })
    }

    async fn chunk(
        &self,
        engine: &Engine,
        id: &str,
        offset: u64,
        found: &Found,
    ) -> Result<Option<Chunk>, RpcError> {
        let memory = match &found.memory {
            Some(memory) => Some(memory.clone()),
            None => match engine.payload(id, offset, PAYLOAD_CHUNK_BYTES_MAX).await? {
                Some(slice) => return Ok(Some(Chunk { bytes: slice.bytes, total: slice.total })),
                None => match &found.turn {
                    Some(turn) => self.rendered_again(engine, id, turn).await?,
                    None => None,
                },
            },
        };
        let Some(memory) = memory else { return Ok(None) };
        let chunk = Chunk::of(&memory, offset);
        if found.holds_items && chunk.is_last(offset) {
            self.give_nested(&memory, found.turn.as_ref());
        }
        Ok(Some(chunk))
    }

    /// Renders a saved turn as it was when the reference was given out; `None` when that is not what it is any more.
    async fn rendered_again(
        &self,
        engine: &Engine,
        id: &str,
        saved: &SavedTurn,
    ) -> Result<Option<Arc<Vec<u8>>>, RpcError> {
        let turn = match engine.turn(&saved.thread_id, &saved.turn_id).await.map_err(RpcError::from) {
            Ok(turn) => turn,
            Err(error) if error.code == ErrorCode::ThreadNotFound => None,
            Err(error) => return Err(error),
        };
        let Some(turn) = turn else { return Ok(None) };
        let rendered = ShrunkTurn::rendered_again(saved.clone(), turn);
        let Some(given) = rendered.into_iter().find(|given| given.reference.id == id) else {
            return Ok(None);
        };
        let memory = given.bytes.clone().map(Arc::new);
        self.give([given]);
        Ok(memory)
    }

    /// Items were read to their end, and what they refer to comes next.
    fn give_nested(&self, items: &[u8], turn: Option<&SavedTurn>) {
        let items: Vec<Item> = serde_json::from_slice(items).unwrap_or_default();
        let nested = items.iter().flat_map(Item::references);
        self.give(nested.map(|reference| Given { turn: turn.cloned(), ..Given::stored(reference) }));
    }
}

impl Chunk {
    fn of(payload: &[u8], offset: u64) -> Self {
        let begin = usize::try_from(offset).unwrap_or(usize::MAX).min(payload.len());
        let end = begin.saturating_add(PAYLOAD_CHUNK_BYTES_MAX).min(payload.len());
        Self { bytes: payload[begin..end].to_vec(), total: payload.len() as u64 }
    }

    fn is_last(&self, offset: u64) -> bool {
        offset + self.bytes.len() as u64 >= self.total
    }
}

/// The same whether it never was, has expired, or is no id at all.
fn unknown(id: &str) -> RpcError {
    const ID_SHOWN_CHARS: usize = 80;
    let id = raddle_protocol::limits::cut_chars(id, ID_SHOWN_CHARS);
    let message = format!("there is no payload `{id}`, or its reference has expired: read the thread again");
    RpcError::invalid_params(message).with_reason("unknownPayload")
}
