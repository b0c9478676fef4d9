//! Large values in tests: reading what references stand for, and putting it back.
//!
//! Neighbours: client.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use parking_lot::Mutex;
use raddle::protocol::limits::PAYLOAD_CHUNK_BYTES_MAX;
use raddle::protocol::methods::method;
use raddle::protocol::payload::{Payload, PayloadReadParams, PayloadReference};
use raddle::protocol::{Item, RpcError, Turn};

use crate::client::Client;

/// All payloads that the clients of a world have read: what a client that is gone has seen can still be looked at.
pub(crate) type Payloads = Arc<Mutex<HashMap<String, Vec<u8>>>>;

impl Client {
    /// Reads a payload, and holds the server to what it says of it.
    ///
    /// # Errors
    /// The server's.
    pub async fn payload(&self, reference: &PayloadReference) -> Result<Vec<u8>, RpcError> {
        let mut bytes = Vec::new();
        loop {
            let params = PayloadReadParams { id: reference.id.clone(), offset: bytes.len() as u64 };
            let chunk = self.request::<method::PayloadRead>(params).await?;
            let data = BASE64_STANDARD.decode(&chunk.data).unwrap();
            assert!(data.len() <= PAYLOAD_CHUNK_BYTES_MAX, "a chunk of {} bytes", data.len());
            bytes.extend(data);
            if chunk.eof {
                assert_eq!(chunk.next_offset, None);
                break;
            }
            assert_eq!(chunk.next_offset, Some(bytes.len() as u64));
        }
        let payload = Payload { bytes, mime_type: reference.mime_type.clone() };
        assert_eq!(&payload.reference(), reference, "a payload is what its reference says");
        self.payloads().lock().insert(reference.id.clone(), payload.bytes.clone());
        Ok(payload.bytes)
    }

    /// The turn with all its values; one that is whole comes back as it is.
    pub async fn resolve(&self, mut turn: Turn) -> Turn {
        if let Some(reference) = turn.items.reference().cloned() {
            turn.items.fill(self.referenced_items(&reference).await);
        }
        for at in 0..turn.items.len() {
            turn.items[at] = self.resolve_item(turn.items[at].clone()).await;
        }
        turn
    }

    /// The item with all its values.
    pub async fn resolve_item(&self, mut item: Item) -> Item {
        let references = item.references();
        for reference in references.into_iter().rev() {
            let bytes = self.seen_payload(&reference).await;
            item.fill(&reference.id, &bytes).unwrap();
        }
        item
    }

    /// The items that a reference stands for, with the references in them.
    pub(crate) async fn referenced_items(&self, reference: &PayloadReference) -> Vec<Item> {
        serde_json::from_slice(&self.seen_payload(reference).await).unwrap()
    }

    /// Reads a payload, or what anybody has read of it when this client is gone.
    async fn seen_payload(&self, reference: &PayloadReference) -> Vec<u8> {
        if self.is_ended() {
            let known = self.payloads().lock().get(&reference.id).cloned();
            return known.unwrap_or_else(|| panic!("{}: nobody has read {reference:?}", self.name()));
        }
        self.payload(reference).await.unwrap()
    }
}
