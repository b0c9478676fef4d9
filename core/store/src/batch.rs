//! What one append hands to the writer.
//!
//! Neighbours: none.

use raddle_protocol::event::LoggedItem;
use raddle_protocol::{Durability, Event, EventBody, ItemKind};

/// Events that are committed together, encoded on the caller's thread: the writer is shared by all threads.
pub(crate) struct Batch {
    pub(crate) events: Vec<Event>,
    /// The bodies of those events that are no deltas, in order. A delta's body is its text, where it lies.
    bodies: Vec<Vec<u8>>,
    /// The most that any of them asks for.
    pub(crate) durability: Durability,
}

impl Batch {
    pub(crate) fn new(events: Vec<Event>) -> Self {
        let mut durability = Durability::Tail;
        let mut bodies = Vec::new();
        for event in &events {
            durability = durability.max(event.body.durability());
            if text_of(&event.body).is_none() {
                bodies.push(encode(&event.body));
            }
        }
        Self { events, bodies, durability }
    }

    /// The events, each with its body as the database keeps it.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&Event, &[u8])> {
        let mut bodies = self.bodies.iter();
        self.events.iter().map(move |event| {
            let body = text_of(&event.body).or_else(|| bodies.next().map(Vec::as_slice));
            (event, body.unwrap_or_default())
        })
    }

    /// Whether it is one delta, which touches nothing but table `event`.
    pub(crate) fn is_one_delta(&self) -> bool {
        matches!(self.events.as_slice(), [event] if text_of(&event.body).is_some())
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

fn encode(body: &EventBody) -> Vec<u8> {
    match body {
        EventBody::ItemStarted(logged) => match without_token(logged) {
            Some(logged) => EventBody::ItemStarted(logged).encode(),
            None => body.encode(),
        },
        EventBody::ItemCompleted(logged) => match without_token(logged) {
            Some(logged) => EventBody::ItemCompleted(logged).encode(),
            None => body.encode(),
        },
        _ => body.encode(),
    }
}

/// The item without the client's token, if it has one: that is echoed while the turn is live and never
/// stored. Source: the app-server documentation, "Threads and turns".
fn without_token(logged: &LoggedItem) -> Option<LoggedItem> {
    match &logged.item.kind {
        ItemKind::UserMessage { client_message_id: Some(_), .. } => {
            let mut logged = logged.clone();
            if let ItemKind::UserMessage { client_message_id, .. } = &mut logged.item.kind {
                *client_message_id = None;
            }
            Some(logged)
        }
        _ => None,
    }
}
