//! What the demo has shown, thread by thread, to be compared with what is saved.
//!
//! It is kept twice: the turns and items as the protocol's own fold makes them of the notifications, and each text as
//! it went onto the screen. So a fault of the fold cannot hide itself by being in both sides of the comparison.
//!
//! Neighbours: report.

use std::collections::BTreeMap;

use raddle::protocol::fold::Change;
use raddle::protocol::methods::ServerNotification;
use raddle::protocol::{
    Item, ItemId, ItemKind, Text, ThreadId, TokenUsage, Turn, TurnError, TurnId, TurnStatus,
};

use super::report::Lane;

/// What was shown of one thread.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    /// The thread, once it was started.
    pub(crate) id: Option<ThreadId>,
    /// Its turns, oldest first.
    pub(crate) turns: Vec<Turn>,
    /// The texts that were printed, by item.
    pub(crate) printed: BTreeMap<ItemId, String>,
    /// The thread's token totals.
    pub(crate) usage: Option<TokenUsage>,
}

/// What was shown.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    lanes: [Shown; Lane::ALL.len()],
}

impl Ledger {
    /// What was shown of a thread.
    pub(crate) fn of(&self, lane: Lane) -> &Shown {
        &self.lanes[lane.index()]
    }

    /// Which of the two a thread is.
    pub(crate) fn lane(&self, id: &ThreadId) -> Option<Lane> {
        Lane::ALL.into_iter().find(|lane| self.of(*lane).id.as_ref() == Some(id))
    }

    /// Learns a thread's id.
    pub(crate) fn name(&mut self, lane: Lane, id: ThreadId) {
        self.lanes[lane.index()].id = Some(id);
    }

    /// Adds text that goes onto the screen now.
    pub(crate) fn print(&mut self, lane: Lane, item: &ItemId, text: &str) {
        self.lanes[lane.index()].printed.entry(item.clone()).or_default().push_str(text);
    }

    /// Takes a notification in.
    ///
    /// # Errors
    /// A sentence, when it does not fit what came before: then something was lost on the way.
    pub(crate) fn take(&mut self, notification: &ServerNotification) -> Result<(), String> {
        if let ServerNotification::ThreadTokenUsageUpdated(update) = notification {
            if let Some(lane) = self.lane(&update.thread_id) {
                self.lanes[lane.index()].usage = Some(update.usage);
            }
            return Ok(());
        }
        let Some((thread, turn, change)) = Change::of_notification(notification) else { return Ok(()) };
        let Some(lane) = self.lane(thread) else { return Ok(()) };
        let shown = &mut self.lanes[lane.index()];
        if let Change::Removed(item) = change {
            shown.printed.remove(item);
        }
        match (shown.turns.iter_mut().find(|known| &known.summary.id == turn), change) {
            (Some(known), change) => known.apply(change).map_err(|error| format!("thread {lane}: {error}")),
            (None, Change::Summary(summary)) => {
                shown.turns.push(Turn::new(summary.clone()));
                Ok(())
            }
            (None, _) => Err(format!("thread {lane}: there is news of a turn `{turn}` that never began")),
        }
    }

    /// Threads whose turn runs.
    pub(crate) fn running(&self) -> Vec<Lane> {
        let runs = |lane: &Lane| {
            self.of(*lane).turns.iter().any(|turn| turn.summary.status == TurnStatus::InProgress)
        };
        Lane::ALL.into_iter().filter(runs).collect()
    }

    /// The first turn that failed, and why.
    pub(crate) fn failure(&self) -> Option<(Lane, &TurnError)> {
        Lane::ALL.into_iter().find_map(|lane| {
            let error = self.of(lane).turns.iter().find_map(|turn| turn.summary.error.as_ref())?;
            Some((lane, error))
        })
    }
}

impl Shown {
    /// What is known of an item.
    pub(crate) fn item(&self, turn: &TurnId, item: &ItemId) -> Option<&Item> {
        let turn = self.turns.iter().rev().find(|known| &known.summary.id == turn)?;
        turn.items.iter().find(|known| &known.id == item)
    }

    /// Whether a tool was called.
    pub(crate) fn has_called(&self) -> bool {
        self.turns
            .iter()
            .flat_map(|turn| &turn.items)
            .any(|item| matches!(item.kind, ItemKind::ToolCall { .. }))
    }
}

/// The text of an item that a model or a tool wrote.
pub(crate) fn written(item: &Item) -> &str {
    match &item.kind {
        ItemKind::AgentMessage { text } | ItemKind::Reasoning { text } => text.as_str(),
        ItemKind::ToolCall { output, .. } => output.as_ref().map_or("", Text::as_str),
        // What we said ourselves; and what no prompt of the demo brings about.
        ItemKind::UserMessage { .. } | ItemKind::Compaction { .. } | ItemKind::Extension { .. } => "",
    }
}
