//! Large values in events: taken out before they are kept, put back before a model is sent them.
//!
//! Neighbours: event, ids, item, limits, payload, turn.

use crate::event::{EventBody, InputQueued, LoggedItem, SteerAccepted};
use crate::ids::ItemId;
use crate::item::{Item, ItemKind, ItemStatus};
use crate::limits::INLINE_BYTES_MAX;
use crate::payload::{Payload, PayloadReference};
use crate::shrink::FillError;
use crate::turn::UserInput;

impl EventBody {
    /// The body with its largest values taken out, as the log keeps it and as clients see it; `None` where nothing is
    /// large, as nearly everywhere. What is taken out goes to `put`, with what stands in its place.
    pub fn shrunk(&self, mut put: impl FnMut(PayloadReference, Payload)) -> Option<Self> {
        let mut took = false;
        let mut put = |reference, payload| {
            took = true;
            put(reference, payload);
        };
        let shrunk = match self {
            Self::ItemStarted(logged) if logged.may_shrink() => Self::ItemStarted(logged.shrunk(&mut put)),
            Self::ItemCompleted(logged) if logged.may_shrink() => {
                Self::ItemCompleted(logged.shrunk(&mut put))
            }
            Self::SteerAccepted(steer) if steer.input.is_large() => {
                let input = steer.input.shrunk(&mut put);
                Self::SteerAccepted(SteerAccepted { input, ..steer.clone() })
            }
            Self::InputQueued(queued) if queued.input.is_large() => {
                let input = queued.input.shrunk(&mut put);
                Self::InputQueued(InputQueued { input, ..queued.clone() })
            }
            _ => return None,
        };
        took.then_some(shrunk)
    }

    /// The references that stand in it, each once.
    pub fn references(&self) -> Vec<PayloadReference> {
        let mut references = match self {
            Self::ItemStarted(logged) | Self::ItemCompleted(logged) => logged.item.references(),
            Self::SteerAccepted(SteerAccepted { input, .. })
            | Self::InputQueued(InputQueued { input, .. }) => {
                let texts = std::iter::once(&input.text).chain(input.images.iter().map(|image| &image.data));
                texts.filter_map(|text| text.reference().cloned()).collect()
            }
            _ => Vec::new(),
        };
        let mut seen = std::collections::HashSet::new();
        references.retain(|reference| seen.insert(reference.id.clone()));
        references
    }

    /// Puts the values of all its references back: the reverse of [`shrunk`](Self::shrunk). `read` gives the bytes of each.
    ///
    /// # Errors
    /// Those of `read`, and [`FillError`]; what was not filled by then stays a reference.
    pub fn fill<E: From<FillError>>(
        &mut self,
        mut read: impl FnMut(&PayloadReference) -> Result<Vec<u8>, E>,
    ) -> Result<(), E> {
        // A tool's input comes first and is filled last: what it says may look like a reference to one of the others.
        for reference in self.references().into_iter().rev() {
            let bytes = read(&reference)?;
            match self {
                Self::ItemStarted(logged) | Self::ItemCompleted(logged) => {
                    logged.item.fill(&reference.id, &bytes)?;
                }
                Self::SteerAccepted(SteerAccepted { input, .. })
                | Self::InputQueued(InputQueued { input, .. }) => {
                    input.fill(&reference.id, &bytes)?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl LoggedItem {
    /// Whether it is worth to look for large values. A tool's input in the form of a reference is wrapped in any case.
    fn may_shrink(&self) -> bool {
        const ESCAPED: usize = 6;
        self.item.text_bytes() * ESCAPED > INLINE_BYTES_MAX / 2
            || matches!(&self.item.kind, ItemKind::ToolCall { .. } | ItemKind::Extension { .. }
                if self.item.has_references())
    }

    fn shrunk(&self, put: impl FnMut(PayloadReference, Payload)) -> Self {
        let mut logged = self.clone();
        logged.item.shrink(INLINE_BYTES_MAX, put);
        logged
    }
}

impl UserInput {
    fn is_large(&self) -> bool {
        const ESCAPED: usize = 6;
        self.bytes() * ESCAPED > INLINE_BYTES_MAX / 2
    }

    fn shrunk(&self, put: impl FnMut(PayloadReference, Payload)) -> Self {
        let mut input = self.clone();
        input.as_message(|item| item.shrink(INLINE_BYTES_MAX, put));
        input
    }

    fn fill(&mut self, id: &str, bytes: &[u8]) -> Result<(), FillError> {
        self.as_message(|item| item.fill(id, bytes))
    }

    /// Changes it as the user message that it will be.
    fn as_message<T>(&mut self, change: impl FnOnce(&mut Item) -> T) -> T {
        let Self { text, images } = std::mem::take(self);
        let mut item = Item {
            id: ItemId::from(""),
            kind: ItemKind::UserMessage { text, images, client_message_id: None },
            status: ItemStatus::Completed,
            index: None,
            parent_item_id: None,
            started_at: None,
            completed_at: None,
        };
        let outcome = change(&mut item);
        if let ItemKind::UserMessage { text, images, .. } = item.kind {
            *self = Self { text, images };
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::item::Image;
    use crate::payload::Text;

    /// Takes out what is large, and puts it back.
    fn there_and_back(whole: &EventBody) -> (EventBody, EventBody) {
        let mut taken = HashMap::new();
        let small =
            whole.shrunk(|reference, payload| drop(taken.insert(reference.id, payload.bytes))).unwrap();
        let mut back = small.clone();
        back.fill(|reference| Ok::<_, FillError>(taken[&reference.id].clone())).unwrap();
        (small, back)
    }

    #[test]
    fn inputs_come_back() {
        let image = Image { mime_type: "image/png".into(), data: "AAAA".repeat(40_000).into(), path: None };
        let text = Text::from("x".repeat(INLINE_BYTES_MAX));
        let input = UserInput { text, images: vec![image.clone(), image] };
        let steer = SteerAccepted { item_id: "1.1".into(), input: input.clone(), idempotency_key: None };
        let queued = InputQueued {
            id: "q".into(),
            input,
            request_id: None,
            client_message_id: None,
            idempotency_key: None,
        };
        for whole in [EventBody::SteerAccepted(steer), EventBody::InputQueued(queued)] {
            let (small, back) = there_and_back(&whole);
            assert_eq!(back, whole);
            assert!(small.encode().len() < INLINE_BYTES_MAX);
            // The two pictures are one payload.
            assert_eq!(small.references().len(), 2);
            assert_eq!(back.references(), []);
        }
    }

    #[test]
    fn an_input_that_names_another_payload_of_its_item_stays_what_it_is() {
        let output = "o".repeat(2 * INLINE_BYTES_MAX);
        let kind = ItemKind::ToolCall {
            tool_name: "read".into(),
            input: serde_json::to_value(Payload::text(output.clone()).reference()).unwrap(),
            output: Some(output.into()),
            is_error: false,
            file_changes: Vec::new(),
        };
        let item = Item {
            id: "call".into(),
            kind,
            status: ItemStatus::Completed,
            index: Some(1),
            parent_item_id: None,
            started_at: None,
            completed_at: None,
        };
        let whole = EventBody::ItemCompleted(LoggedItem { item, origin: None });
        let (small, back) = there_and_back(&whole);
        assert_eq!(small.references().len(), 2);
        assert_eq!(back, whole);
    }
}
