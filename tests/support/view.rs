//! What a client knows after folding all that it was sent.
//!
//! Neighbours: none.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use raddle::protocol::fold::Change;
use raddle::protocol::methods::ServerNotification;
use raddle::protocol::payload::{Payload, PayloadReference};
use raddle::protocol::thread::{ThreadResumeResult, ThreadStatus};
use raddle::protocol::turn::Queue;
use raddle::protocol::{
    Item, ItemId, ItemKind, ItemStatus, Text, ThreadId, TokenUsage, Turn, TurnId, TurnStatus, TurnSummary,
};

/// The fold of one connection's messages, and what was wrong with them.
///
/// Besides folding it holds the server to what any folding client relies on: a turn begins once and ends once, one turn
/// of a thread at a time; an item begins before anything else of it and nothing of it comes after its end; the final
/// text of a message is the sum of its deltas; nothing is open in a turn that has ended; totals never shrink; a status is
/// told only when it changes; everybody is told of the end of a turn once, and as its subscribers are.
#[derive(Default)]
pub struct View {
    threads: BTreeMap<ThreadId, Vec<Turn>>,
    ends: HashMap<TurnId, TurnSummary>,
    told: HashMap<TurnId, TurnSummary>,
    usage: HashMap<ThreadId, TokenUsage>,
    status: HashMap<ThreadId, ThreadStatus>,
    queues: HashMap<ThreadId, Queue>,
    started: HashSet<ThreadId>,
    /// What came for turns of a snapshot whose items are a reference: it waits until they are read.
    held: HashMap<TurnId, Vec<Arc<ServerNotification>>>,
    faults: Vec<String>,
}

impl View {
    /// The turns that are known of a thread, oldest first.
    pub fn turns(&self, thread: &ThreadId) -> &[Turn] {
        self.threads.get(thread).map_or(&[], Vec::as_slice)
    }

    /// The threads of which turns are known.
    pub fn threads(&self) -> impl Iterator<Item = (&ThreadId, &[Turn])> {
        self.threads.iter().map(|(id, turns)| (id, turns.as_slice()))
    }

    /// The turn with this id.
    pub fn turn(&self, id: &TurnId) -> Option<&Turn> {
        self.threads.values().flatten().find(|turn| &turn.summary.id == id)
    }

    /// The thread's last token totals.
    pub fn usage(&self, thread: &ThreadId) -> Option<TokenUsage> {
        self.usage.get(thread).copied()
    }

    /// The thread's last status.
    pub fn status(&self, thread: &ThreadId) -> Option<&ThreadStatus> {
        self.status.get(thread)
    }

    /// Whether nothing runs in a thread, and nothing waits to.
    pub fn is_at_rest(&self, thread: &ThreadId) -> bool {
        let runs = self.turns(thread).iter().any(|turn| turn.summary.status == TurnStatus::InProgress);
        match self.status(thread) {
            Some(ThreadStatus::Active { .. }) => false,
            Some(ThreadStatus::Idle) => {
                !runs && self.queues.get(thread).is_none_or(|queue| queue.follow_up.is_empty())
            }
            _ => !runs,
        }
    }

    /// How everybody was told that a turn ended.
    pub fn told(&self, turn: &TurnId) -> Option<&TurnSummary> {
        self.told.get(turn)
    }

    /// Whether a thread's creation was told.
    pub fn is_started(&self, thread: &ThreadId) -> bool {
        self.started.contains(thread)
    }

    /// What was wrong with the messages so far.
    pub fn faults(&self) -> &[String] {
        &self.faults
    }

    /// Installs a snapshot, as a client does before it applies what follows.
    pub(crate) fn install(&mut self, resumed: &ThreadResumeResult, newest: bool) {
        let page = if newest { resumed.turns.as_slice() } else { &[] };
        let turns = self.threads.entry(resumed.thread.id.clone()).or_default();
        // What a page holds is the newest of the branch, so whatever else was known comes before it.
        let shown = |turn: &Turn| page.iter().any(|shown| shown.summary.id == turn.summary.id);
        turns.retain(|turn| !shown(turn));
        turns.extend(page.iter().cloned());
        if let Some(running) = &resumed.running_turn {
            turns.retain(|turn| turn.summary.id != running.summary.id);
            turns.push(running.clone());
        }
        self.queues.insert(resumed.thread.id.clone(), resumed.queue.clone());
        self.usage.insert(resumed.thread.id.clone(), resumed.usage);
        self.status.insert(resumed.thread.id.clone(), resumed.thread.status.clone());
    }

    /// Forgets a thread's turns: the subscription to it has ended, and what comes later may have a gap before it.
    pub(crate) fn forget(&mut self, thread: &ThreadId) {
        self.threads.remove(thread);
    }

    /// Turns whose items are a reference.
    pub(crate) fn referenced(&self) -> Vec<(TurnId, PayloadReference)> {
        let turns = self.threads.values().flatten();
        turns.filter_map(|turn| Some((turn.summary.id.clone(), turn.items.reference()?.clone()))).collect()
    }

    /// Puts the items of a turn in the place of their reference, and applies what came since.
    pub(crate) fn settle(&mut self, id: &TurnId, items: Vec<Item>) {
        let Some(turn) = self.threads.values_mut().flatten().find(|turn| &turn.summary.id == id) else {
            return;
        };
        turn.items.fill(items);
        let summary = turn.summary.clone();
        let held = self.held.remove(id).unwrap_or_default();
        // Whoever held these back has seen the turn's end already.
        turn.summary.status = TurnStatus::InProgress;
        for notification in held {
            self.take_change(&notification);
        }
        if let Some(turn) = self.threads.values_mut().flatten().find(|turn| &turn.summary.id == id) {
            turn.summary = summary;
        }
    }

    /// Takes one notification.
    pub(crate) fn take(&mut self, notification: &Arc<ServerNotification>) {
        match &**notification {
            ServerNotification::ThreadStarted(n) => {
                let is_new = self.started.insert(n.thread.id.clone());
                self.expect(is_new, || format!("thread {} started twice", n.thread.id));
            }
            ServerNotification::ThreadStatusChanged(n) => {
                let before = self.status.insert(n.thread_id.clone(), n.status.clone());
                if before.as_ref() == Some(&n.status) {
                    self.faults.push(format!("status {:?} told twice in a row", n.status));
                }
            }
            ServerNotification::TurnQueueUpdated(n) => {
                self.queues.insert(n.thread_id.clone(), n.queue.clone());
            }
            ServerNotification::ThreadRewound(n) => {
                let turns = self.threads.entry(n.thread_id.clone()).or_default();
                match turns.iter().position(|turn| turn.summary.id == n.turn_id) {
                    Some(last) => turns.truncate(last + 1),
                    // The branch ends before all that this client has seen of it.
                    None => turns.clear(),
                }
                self.usage.insert(n.thread_id.clone(), n.usage);
            }
            ServerNotification::ThreadDeleted(n) => self.forget(&n.thread_id),
            ServerNotification::ThreadReplaced(n) => self.forget(&n.thread_id),
            ServerNotification::ThreadTokenUsageUpdated(n) => self.take_usage(&n.thread_id, n.usage),
            ServerNotification::ThreadTurnCompleted(n) => {
                if self.told.insert(n.turn.id.clone(), n.turn.clone()).is_some() {
                    self.faults.push(format!("everybody was told twice that turn {} ended", n.turn.id));
                }
                if self.ends.get(&n.turn.id).is_some_and(|end| end != &n.turn) {
                    self.faults.push(format!("turn {} ended in two ways", n.turn.id));
                }
            }
            _ => {}
        }
        self.take_change(notification);
    }

    fn take_change(&mut self, notification: &Arc<ServerNotification>) {
        let Some((thread, turn_id, change)) = Change::of_notification(notification) else { return };
        let waits = |turn: &Turn| turn.items.reference().is_some() && !matches!(change, Change::Summary(_));
        if self.turn(turn_id).is_some_and(waits) {
            return self.held.entry(turn_id.clone()).or_default().push(notification.clone());
        }
        self.apply(thread, turn_id, change, notification);
    }

    fn expect(&mut self, holds: bool, fault: impl FnOnce() -> String) {
        if !holds {
            self.faults.push(fault());
        }
    }

    fn take_usage(&mut self, thread: &ThreadId, usage: TokenUsage) {
        let before = self.usage.insert(thread.clone(), usage).unwrap_or_default();
        if usage.counts.prompt() < before.counts.prompt() || usage.counts.output < before.counts.output {
            self.faults.push(format!("totals shrank from {before:?} to {usage:?}"));
        }
    }

    fn apply(
        &mut self,
        thread: &ThreadId,
        turn_id: &TurnId,
        change: Change<'_>,
        notification: &ServerNotification,
    ) {
        let mut faults = Vec::new();
        let turns = self.threads.entry(thread.clone()).or_default();
        if let ServerNotification::TurnStarted(n) = notification {
            if turns.iter().any(|known| &known.summary.id == turn_id) {
                faults.push(format!("turn {turn_id} started twice"));
            } else {
                if let Some(open) = turns.iter().find(|turn| turn.summary.status == TurnStatus::InProgress) {
                    faults.push(format!("turn {turn_id} started while {} runs", open.summary.id));
                }
                turns.push(Turn::new(n.turn.clone()));
            }
        } else if let Some(turn) = turns.iter_mut().find(|known| &known.summary.id == turn_id) {
            check(turn, change, notification, &mut faults);
            if let Err(error) = turn.apply(change) {
                faults.push(error.to_string());
            }
            if let ServerNotification::TurnCompleted(n) = notification {
                for item in turn.items.iter().filter(|item| item.status == ItemStatus::InProgress) {
                    faults.push(format!("item {} is open in turn {turn_id}, which has ended", item.id));
                }
                self.ends.insert(turn_id.clone(), n.turn.clone());
                if self.told.contains_key(turn_id) {
                    faults.push(format!("everybody knew of the end of {turn_id} before its subscribers"));
                }
            }
        } else {
            faults.push(format!("{} of turn {turn_id}, which is not known", notification.method()));
        }
        self.faults.append(&mut faults);
    }
}

/// What must hold before a change is applied to a turn that is known.
fn check(turn: &Turn, change: Change<'_>, notification: &ServerNotification, faults: &mut Vec<String>) {
    let method = notification.method();
    if turn.summary.status != TurnStatus::InProgress {
        faults.push(format!("{method} after the end of turn {}", turn.summary.id));
    }
    let known = |id: &ItemId| turn.items.iter().find(|item| &item.id == id);
    match change {
        Change::Item(item) => match (known(&item.id), item.status) {
            (Some(_), ItemStatus::InProgress) => faults.push(format!("item {} started twice", item.id)),
            (None, ItemStatus::InProgress) => {}
            (None, _) => faults.push(format!("item {} ended before it started", item.id)),
            (Some(open), _) => {
                if open.status != ItemStatus::InProgress {
                    faults.push(format!("item {} ended twice", item.id));
                }
                if open.kind.type_name() != item.kind.type_name() {
                    faults.push(format!("item {} changed its type", item.id));
                }
                match (&open.kind, &item.kind) {
                    (ItemKind::AgentMessage { text: summed }, ItemKind::AgentMessage { text })
                    | (ItemKind::Reasoning { text: summed }, ItemKind::Reasoning { text })
                        if !is_sum(summed, text) =>
                    {
                        faults.push(format!(
                            "item {}: its deltas give {} bytes of text, its end has {}",
                            item.id,
                            summed.len(),
                            text.len()
                        ));
                    }
                    _ => {}
                }
            }
        },
        Change::Delta(id, delta) => {
            if known(id).is_some_and(|item| item.status != ItemStatus::InProgress) {
                faults.push(format!("{method} after the end of item {id}"));
            }
            if delta.is_empty() {
                faults.push(format!("{method} of nothing for item {id}"));
            }
        }
        Change::Removed(id) => {
            if known(id).is_none() {
                faults.push(format!("item {id} was removed and was never there"));
            }
        }
        Change::Summary(_) => {}
    }
}

/// Whether a text that was added up is the text of the item's end. Where a part of either stands elsewhere, its bytes count.
fn is_sum(summed: &Text, text: &Text) -> bool {
    let bytes = |text: &Text| text.reference().map_or(0, |part| part.bytes) + text.len() as u64;
    match (summed.whole(), text.reference()) {
        (Some(whole), Some(reference)) if text.as_str().is_empty() => {
            &Payload::text(whole).reference() == reference
        }
        (Some(whole), None) => text == whole,
        _ => bytes(summed) == bytes(text),
    }
}
