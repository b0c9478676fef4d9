//! What one append hands to the writer.
//!
//! Neighbours: blob.

use raddle_protocol::{Durability, Event, EventBody};

use crate::blob::{Hash, Use};

/// What a batch became.
#[derive(Debug)]
pub struct Appended {
    /// The number of the first event; the others follow without a gap.
    pub first_seq: u64,
    /// The events, given back so that they can be sent on without a copy.
    pub events: Vec<Event>,
    /// Those of them that were too large, by their place in [`events`](Self::events): as the log has them, with references in
    /// the place of their largest values. What clients are shown.
    pub shown: Vec<(usize, Event)>,
}

impl Appended {
    /// The events with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (u64, &Event)> {
        (self.first_seq..).zip(&self.events)
    }
}

/// Events that are committed together, encoded on the caller's thread: the writer is shared by all threads.
pub(crate) struct Batch {
    pub(crate) events: Vec<Event>,
    /// Those that were too large, as they are kept.
    shown: Vec<(usize, Event)>,
    /// What is kept of those events that are no deltas, in order. A delta's body is its text, where it lies.
    encoded: Vec<Encoded>,
    /// The most that any of them asks for.
    pub(crate) durability: Durability,
}

struct Encoded {
    body: Vec<u8>,
    uses: Vec<Use>,
    /// Whether it refers to something that cannot be there.
    dangles: bool,
}

/// An event as the database keeps it.
pub(crate) struct Row<'a> {
    /// As it came, with all its values.
    pub(crate) event: &'a Event,
    pub(crate) body: &'a [u8],
    /// The large values that were taken out of it.
    pub(crate) uses: &'a [Use],
    /// Whether it refers to a value that no store has.
    pub(crate) dangles: bool,
}

impl Batch {
    pub(crate) fn new(events: Vec<Event>) -> Self {
        let mut durability = Durability::Tail;
        let (mut encoded, mut shown) = (Vec::new(), Vec::new());
        for (at, event) in events.iter().enumerate() {
            durability = durability.max(event.body.durability());
            if text_of(&event.body).is_some() {
                continue;
            }
            let mut payloads = Vec::new();
            let small = event.body.shrunk(|reference, payload| payloads.push((reference.id, payload.bytes)));
            encoded.push(Encoded::new(small.as_ref().unwrap_or(&event.body), payloads));
            if let Some(body) = small {
                shown.push((at, Event { body, turn_id: event.turn_id.clone(), at: event.at }));
            }
        }
        Self { events, shown, encoded, durability }
    }

    /// What it became.
    pub(crate) fn appended(self, first_seq: u64) -> Appended {
        Appended { first_seq, events: self.events, shown: self.shown }
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        let mut encoded = self.encoded.iter();
        self.events.iter().map(move |event| match text_of(&event.body) {
            Some(body) => Row { event, body, uses: &[], dangles: false },
            None => match encoded.next() {
                Some(Encoded { body, uses, dangles }) => Row { event, body, uses, dangles: *dangles },
                None => Row { event, body: &[], uses: &[], dangles: true },
            },
        })
    }

    /// Whether it is one delta, which touches nothing but table `piece`.
    pub(crate) fn is_one_delta(&self) -> bool {
        matches!(self.events.as_slice(), [event] if text_of(&event.body).is_some())
    }
}

impl Encoded {
    fn new(body: &EventBody, mut payloads: Vec<(String, Vec<u8>)>) -> Self {
        let mut dangles = false;
        let mut uses = Vec::new();
        for reference in body.references() {
            let taken = payloads.iter().position(|(id, _)| *id == reference.id);
            let bytes = taken.map(|at| payloads.swap_remove(at).1);
            match Hash::parse(&reference.id) {
                Some(hash) => uses.push(Use { hash, bytes }),
                None => dangles = true,
            }
        }
        Self { body: body.encode(), uses, dangles }
    }
}

fn text_of(body: &EventBody) -> Option<&[u8]> {
    match body {
        EventBody::AgentMessageDelta(delta)
        | EventBody::ReasoningDelta(delta)
        | EventBody::ToolOutputDelta(delta) => Some(delta.delta.as_bytes()),
        _ => None,
    }
}
