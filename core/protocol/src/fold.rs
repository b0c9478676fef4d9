//! The pure fold of events or notifications into turns and items (P5).
//!
//! Watching equals reading because both are this one function: the log's events and the live
//! notifications reduce to the same [`Change`]s.
//!
//! Neighbours: event, ids, item, methods, payload, turn.

use crate::event::{Event, EventBody, LoggedItem, Recorded};
use crate::ids::{ItemId, ThreadId, TurnId};
use crate::item::{Item, ItemKind, ItemStatus};
use crate::methods::ServerNotification;
use crate::payload::Items;
use crate::turn::{Turn, TurnStatus, TurnSummary};

/// What an event or a notification changes about a turn.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// The turn begins, or ends.
    Summary(&'a TurnSummary),
    /// The item is now this.
    Item(&'a Item),
    /// Text is added to the item.
    Delta(&'a ItemId, &'a str),
    /// The item is gone.
    Removed(&'a ItemId),
}

impl<'a> Change<'a> {
    /// What an event changes, if anything that a reader sees.
    pub fn of_event(event: &'a Event) -> Option<Self> {
        Some(match &event.body {
            EventBody::TurnStarted(started) => Self::Summary(&started.turn),
            EventBody::TurnCompleted(ended) => Self::Summary(&ended.turn),
            EventBody::ItemStarted(logged) | EventBody::ItemCompleted(logged) => Self::Item(&logged.item),
            EventBody::AgentMessageDelta(d)
            | EventBody::ReasoningDelta(d)
            | EventBody::ToolOutputDelta(d) => Self::Delta(&d.item_id, &d.delta),
            EventBody::ItemRemoved(item_id) => Self::Removed(item_id),
            _ => return None,
        })
    }

    /// What a notification changes, with the thread and turn that it concerns.
    pub fn of_notification(notification: &'a ServerNotification) -> Option<(&'a ThreadId, &'a TurnId, Self)> {
        use ServerNotification as N;
        Some(match notification {
            N::TurnStarted(n) | N::TurnCompleted(n) => (&n.thread_id, &n.turn.id, Self::Summary(&n.turn)),
            N::ItemStarted(n) | N::ItemCompleted(n) => (&n.thread_id, &n.turn_id, Self::Item(&n.item)),
            N::ItemAgentMessageDelta(n) | N::ItemReasoningDelta(n) | N::ItemToolCallOutputDelta(n) => {
                (&n.thread_id, &n.turn_id, Self::Delta(&n.item_id, &n.delta))
            }
            N::ItemRemoved(n) => (&n.thread_id, &n.turn_id, Self::Removed(&n.item_id)),
            _ => return None,
        })
    }
}

/// A change that does not fit: a delta for an item that was never begun. Only a lost message can cause one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no item `{0}` to add text to")]
pub struct FoldError(pub ItemId);

impl Turn {
    /// A turn without items.
    pub fn new(summary: TurnSummary) -> Self {
        Self { summary, items: Items::default() }
    }

    /// Applies one change.
    ///
    /// # Errors
    /// A delta for an unknown item; the turn is left as it was.
    pub fn apply(&mut self, change: Change<'_>) -> Result<(), FoldError> {
        match change {
            Change::Summary(summary) => self.summary = summary.clone(),
            Change::Item(item) => self.put(item),
            Change::Delta(item_id, delta) => {
                let item = self.find(item_id).ok_or_else(|| FoldError(item_id.clone()))?;
                match &mut item.kind {
                    ItemKind::AgentMessage { text }
                    | ItemKind::Reasoning { text }
                    | ItemKind::Compaction { text }
                    | ItemKind::UserMessage { text, .. } => text.push_str(delta),
                    ItemKind::ToolCall { output, .. } => output.get_or_insert_default().push_str(delta),
                    ItemKind::Extension { .. } => {}
                }
            }
            Change::Removed(item_id) => self.items.retain(|item| &item.id != item_id),
        }
        Ok(())
    }

    /// Folds the events of one saved turn, as a reader sees them: without an end it is `interrupted`, and so
    /// is what was still going on in it. `None` when the events do not begin with the turn's start.
    pub fn saved(events: &[Recorded]) -> Option<Self> {
        let mut turn = Self::live(events)?;
        if turn.summary.status == TurnStatus::InProgress {
            turn.summary.status = TurnStatus::Interrupted;
            for logged in unfinished(events) {
                turn.put(&logged.item);
            }
        }
        Some(turn)
    }

    /// Folds the events of a turn as they are; one without an end stays `inProgress`.
    pub fn live(events: &[Recorded]) -> Option<Self> {
        let EventBody::TurnStarted(started) = &events.first()?.event.body else { return None };
        let mut turn = Self::new(started.turn.clone());
        for recorded in &events[1..] {
            if let Some(change) = Change::of_event(&recorded.event) {
                // A delta whose item is gone can only come from a damaged log; the rest still reads.
                let _ = turn.apply(change);
            }
        }
        Some(turn)
    }

    fn find(&mut self, item_id: &ItemId) -> Option<&mut Item> {
        // Open items are the last ones, so looking from the end finds them at once.
        self.items.iter_mut().rev().find(|item| &item.id == item_id)
    }

    fn put(&mut self, item: &Item) {
        match self.find(&item.id) {
            Some(known) => *known = item.clone(),
            None => self.items.push(item.clone()),
        }
        if !self.items.is_sorted_by_key(|item| item.index) {
            self.items.sort_by_key(|item| item.index);
        }
    }
}

/// What a turn without an end left open, as it is to be closed: items that were going on, and steers that were
/// accepted but never reached the model. Reading such a turn and recovering it both close it with these, so
/// both give the same turn (P5).
pub fn unfinished(events: &[Recorded]) -> Vec<LoggedItem> {
    let Some(turn) = Turn::live(events) else { return Vec::new() };
    let origin_of = |id: &ItemId| {
        events.iter().find_map(|recorded| match &recorded.event.body {
            EventBody::ItemStarted(logged) if &logged.item.id == id => logged.origin.clone(),
            _ => None,
        })
    };
    let mut closed: Vec<LoggedItem> = turn
        .items
        .iter()
        .filter(|item| item.status == ItemStatus::InProgress)
        .map(|item| LoggedItem { item: item.interrupted(), origin: origin_of(&item.id) })
        .collect();
    let mut index = turn.items.iter().filter_map(|item| item.index).max().map_or(0, |last| last + 1);
    for recorded in events {
        let EventBody::SteerAccepted(steer) = &recorded.event.body else { continue };
        if turn.items.iter().any(|item| item.id == steer.item_id) {
            continue;
        }
        let item = Item {
            id: steer.item_id.clone(),
            kind: ItemKind::UserMessage {
                text: steer.input.text.clone(),
                images: steer.input.images.clone(),
                client_message_id: None,
            },
            status: ItemStatus::Interrupted,
            index: Some(index),
            parent_item_id: None,
            started_at: None,
            completed_at: None,
        };
        closed.push(LoggedItem { item, origin: None });
        index += 1;
    }
    closed
}

/// What a tool call that never ended tells the model and the reader.
pub const INTERRUPTED_CALL_OUTPUT: &str =
    "[interrupted: the call was cut off before its result was known; it may have had effects]";

impl Item {
    /// The item as a crash leaves it: what was there stays, a tool call gets a made-up result.
    #[must_use]
    pub fn interrupted(&self) -> Self {
        let mut item = self.clone();
        item.status = ItemStatus::Interrupted;
        if let ItemKind::ToolCall { output, is_error, .. } = &mut item.kind {
            let text = output.get_or_insert_default();
            if !text.is_empty() && !text.as_str().ends_with('\n') {
                text.push_str("\n");
            }
            text.push_str(INTERRUPTED_CALL_OUTPUT);
            *is_error = true;
        }
        item
    }
}
