//! What survives a crash, kept as the store keeps it.
//!
//! Neighbours: none.

use std::collections::{BTreeSet, HashMap, HashSet};

use raddle_protocol::event::{EventBody, InputQueued};
use raddle_protocol::{Event, ItemId, Recorded, TurnId};

/// What survives a crash.
#[derive(Clone, Default)]
pub(super) struct Disk {
    pub(super) log: Vec<Recorded>,
    /// How often each call was run, in all lives of the process.
    pub(super) runs: HashMap<(TurnId, ItemId), u32>,
    pub(super) next_seq: u64,
    /// Counts owners; each append is checked against it, as the store does in its transaction.
    pub(super) epoch: u32,
    pub(super) turns: u32,
    pub(super) head: Option<TurnId>,
    /// What waits, oldest first.
    pub(super) queue: Vec<InputQueued>,
    /// Ids that ever waited.
    pub(super) queued: BTreeSet<String>,
}

impl Disk {
    /// Commits as the store does: an item's end takes its earlier events away.
    pub(super) fn commit(&mut self, events: &[Event]) {
        for event in events {
            if let EventBody::TurnStarted(started) = &event.body {
                self.turns = started.depth;
                self.head = Some(started.turn.id.clone());
                if let Some(id) = &started.queue_id {
                    let waiting = self.queue.first().map(|queued| &queued.id);
                    assert_eq!(waiting, Some(id), "a queued input starts once, in its order");
                    self.queue.remove(0);
                }
            }
            match &event.body {
                EventBody::InputQueued(queued) => {
                    assert!(self.queued.insert(queued.id.clone()), "an input is queued once");
                    self.queue.push(queued.clone());
                }
                EventBody::InputsUnqueued(gone) => {
                    let before = self.queue.len();
                    self.queue.retain(|queued| !gone.ids.contains(&queued.id));
                    assert_eq!(self.queue.len() + gone.ids.len(), before, "what leaves the queue was in it");
                }
                _ => {}
            }
            if let EventBody::ItemCompleted(_) | EventBody::ItemRemoved(_) = &event.body {
                let gone = event.body.item_id().cloned();
                self.log.retain(|row| {
                    row.event.turn_id != event.turn_id
                        || row.event.body.item_id() != gone.as_ref()
                        || matches!(
                            row.event.body,
                            EventBody::ApprovalDecided(_)
                                | EventBody::SteerAccepted(_)
                                | EventBody::ItemCompleted(_)
                        ) && !matches!(event.body, EventBody::ItemRemoved(_))
                });
            }
            self.next_seq += 1;
            self.log.push(Recorded { seq: self.next_seq, event: event.clone() });
        }
    }

    pub(super) fn events_of(&self, turn: &TurnId) -> Vec<Recorded> {
        self.log.iter().filter(|row| row.event.turn_id.as_ref() == Some(turn)).cloned().collect()
    }

    pub(super) fn call_ids(&self) -> HashSet<ItemId> {
        let calls = self.log.iter().filter_map(|row| match &row.event.body {
            EventBody::ItemCompleted(logged) if logged.item.kind.type_name() == "toolCall" => {
                Some(logged.item.id.clone())
            }
            _ => None,
        });
        calls.collect()
    }

    pub(super) fn turn_ids(&self) -> Vec<TurnId> {
        let started = self.log.iter().filter_map(|row| match &row.event.body {
            EventBody::TurnStarted(started) => Some(started.turn.id.clone()),
            _ => None,
        });
        started.collect()
    }
}
