//! What a victim's lines prove, and whether the log agrees.
//!
//! Neighbours: host.

use std::collections::{BTreeMap, HashMap};

use raddle::protocol::fold::Change;
use raddle::protocol::limits::INLINE_BYTES_MAX;
use raddle::protocol::methods::{Method, ServerNotification, method};
use raddle::protocol::payload::Payload;
use raddle::protocol::thread::{Thread, ThreadSettings};
use raddle::protocol::turn::TurnStartResult;
use raddle::protocol::{
    Item, ItemId, ItemKind, ItemStatus, Text, ThreadId, TokenUsage, Turn, TurnId, TurnStatus,
};
use serde_json::Value;

use crate::host::Seen;

/// A request that was sent, as far as its answer proves something.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    StartThread,
    StartTurn {
        text: String,
    },
    Steer {
        text: String,
    },
    Settings {
        thread_id: ThreadId,
        settings: ThreadSettings,
    },
    /// Its answer proves nothing that lasts.
    Other,
}

/// What one life of a victim has shown of the threads of its home.
#[derive(Debug, Default)]
pub(crate) struct Witness {
    threads: BTreeMap<ThreadId, Shown>,
}

/// What was shown of one thread.
#[derive(Debug, Default)]
struct Shown {
    /// The start of the thread was answered.
    started: bool,
    /// The fold of what was told, oldest turn first. A turn that began in an earlier life is not among them.
    turns: Vec<Turn>,
    /// Starts that were answered, with their texts.
    accepted: Vec<(TurnId, String)>,
    /// Steers that were answered, with their texts.
    steered: Vec<(TurnId, String)>,
    /// The totals that were told last.
    usage: Option<TokenUsage>,
    /// The settings that the last answer said are durable.
    settings: Option<ThreadSettings>,
    /// Settings that were asked for, and not answered.
    settings_asked: Vec<ThreadSettings>,
}

impl Witness {
    /// Reads the lines of one life, with what was asked under which id.
    pub(crate) fn of(seen: &[Seen], asked: &HashMap<i64, Asked>) -> Self {
        let mut witness = Self::default();
        for line in seen {
            match line {
                Seen::Told(notification) => witness.told(notification),
                Seen::Answer { id, result: Ok(result) } => {
                    witness.answered(asked.get(id).unwrap_or(&Asked::Other), result.clone());
                }
                Seen::Answer { result: Err(_), .. } | Seen::Asked { .. } => {}
            }
        }
        let answered =
            |id: &i64| seen.iter().any(|line| matches!(line, Seen::Answer { id: known, .. } if known == id));
        for (id, request) in asked {
            if let Asked::Settings { thread_id, settings } = request
                && !answered(id)
            {
                witness.thread(thread_id).settings_asked.push(settings.clone());
            }
        }
        witness
    }

    fn thread(&mut self, id: &ThreadId) -> &mut Shown {
        self.threads.entry(id.clone()).or_default()
    }

    fn told(&mut self, notification: &ServerNotification) {
        match notification {
            ServerNotification::TurnStarted(n) => {
                self.thread(&n.thread_id).turns.push(Turn::new(n.turn.clone()));
            }
            ServerNotification::ThreadTokenUsageUpdated(n) => {
                self.thread(&n.thread_id).usage = Some(n.usage);
            }
            other => {
                let Some((thread_id, turn_id, change)) = Change::of_notification(other) else { return };
                let turns = &mut self.thread(thread_id).turns;
                let turn = turns.iter_mut().find(|turn| &turn.summary.id == turn_id);
                let turn = turn.unwrap_or_else(|| panic!("turn {turn_id} never began: {other:?}"));
                turn.apply(change).expect("what is told fits what was told before");
            }
        }
    }

    fn answered(&mut self, request: &Asked, result: Value) {
        match request {
            Asked::StartThread => {
                let thread: Thread = read::<method::ThreadStart>(result).thread;
                self.thread(&thread.id).started = true;
            }
            Asked::StartTurn { text } => {
                let TurnStartResult { thread_id, turn_id, .. } = read::<method::TurnStart>(result);
                if let Some(turn_id) = turn_id {
                    self.thread(&thread_id).accepted.push((turn_id, text.clone()));
                }
            }
            Asked::Steer { text } => {
                let turn_id = read::<method::TurnSteer>(result).turn_id;
                let thread = self
                    .threads
                    .values_mut()
                    .find(|shown| shown.accepted.iter().any(|(id, _)| *id == turn_id));
                let thread = thread.expect("a steer comes after its turn");
                thread.steered.push((turn_id, text.clone()));
            }
            Asked::Settings { thread_id, .. } => {
                let settings = read::<method::ThreadSettingsUpdate>(result).settings;
                self.thread(thread_id).settings = Some(settings);
            }
            Asked::Other => {}
        }
    }

    /// The threads that the victim is known to have.
    pub(crate) fn threads(&self) -> impl Iterator<Item = &ThreadId> {
        self.threads.iter().filter(|(_, shown)| shown.started).map(|(id, _)| id)
    }

    /// The turns of a thread that began.
    pub(crate) fn turns(&self, id: &ThreadId) -> &[Turn] {
        self.threads.get(id).map_or(&[], |shown| shown.turns.as_slice())
    }

    /// The totals of a thread that were told last.
    pub(crate) fn usage(&self, id: &ThreadId) -> Option<TokenUsage> {
        self.threads.get(id)?.usage
    }

    /// The turns that were under way when the lines end.
    pub(crate) fn running(&self) -> impl Iterator<Item = &Turn> {
        let last = self.threads.values().filter_map(|shown| shown.turns.last());
        last.filter(|turn| turn.summary.status == TurnStatus::InProgress)
    }

    /// Compares with what is stored of a thread; gives the items that are not stored although they were shown.
    ///
    /// # Errors
    /// Says what was shown and is stored in another way, or not at all. Holds: P1.
    pub(crate) fn compare(&self, thread: &Thread, stored: &[Turn]) -> Result<Vec<(TurnId, ItemId)>, String> {
        let Some(shown) = self.threads.get(&thread.id) else { return Ok(Vec::new()) };
        if let Some(settings) = &shown.settings
            && &thread.settings != settings
            && !shown.settings_asked.contains(&thread.settings)
        {
            return Err(format!("settings {settings:?} were answered, {:?} are stored", thread.settings));
        }
        let find = |id: &TurnId| {
            stored
                .iter()
                .find(|turn| &turn.summary.id == id)
                .ok_or_else(|| format!("turn {id} is not stored"))
        };
        let mut missing = Vec::new();
        for turn in &shown.turns {
            let kept = find(&turn.summary.id)?;
            if turn.summary.status != TurnStatus::InProgress {
                let turn = as_stored(turn);
                if turn != as_shown(kept) {
                    return Err(format!(
                        "the whole turn was shown as\n{turn:#?}\nand is stored as\n{kept:#?}"
                    ));
                }
                continue;
            }
            for item in &turn.items {
                match kept.items.iter().find(|known| known.id == item.id) {
                    Some(known) => compare_item(item, known)?,
                    None => missing.push((turn.summary.id.clone(), item.id.clone())),
                }
            }
        }
        for (turn_id, text) in &shown.accepted {
            let kept = find(turn_id)?;
            if user_texts(kept).next().map_or("", Text::as_str) != text.as_str() {
                return Err(format!(
                    "the start of turn {turn_id} was answered; its text {text:?} is not in {kept:#?}"
                ));
            }
        }
        for (turn_id, text) in &shown.steered {
            let kept = find(turn_id)?;
            // A turn that was stopped, or that failed, lets go of steers that the model has not seen.
            let ended_by_itself = kept.summary.completed_at.is_some();
            let let_go = ended_by_itself && kept.summary.status != TurnStatus::Completed;
            if !let_go && !user_texts(kept).any(|known| known == text) {
                return Err(format!("the steer {text:?} was answered; it is not in {kept:#?}"));
            }
        }
        Ok(missing)
    }
}

/// What was shown of an item must be the beginning of what is stored of it, or all of it.
fn compare_item(shown: &Item, stored: &Item) -> Result<(), String> {
    let shown = &shown.without_client_token().unwrap_or_else(|| shown.clone());
    let differ = || Err(format!("an item was shown as\n{shown:#?}\nand is stored as\n{stored:#?}"));
    if shown.status != ItemStatus::InProgress {
        return if *shown == small(stored) { Ok(()) } else { differ() };
    }
    let cancelled = stored.status == ItemStatus::Interrupted && stored.completed_at.is_some();
    let begins = match (&shown.kind, &stored.kind) {
        (ItemKind::UserMessage { text: a, .. }, ItemKind::UserMessage { text: b, .. })
        | (ItemKind::AgentMessage { text: a }, ItemKind::AgentMessage { text: b })
        | (ItemKind::Reasoning { text: a }, ItemKind::Reasoning { text: b }) => {
            b.as_str().starts_with(a.as_str())
        }
        (
            ItemKind::ToolCall { tool_name: name, input, output: shown, .. },
            ItemKind::ToolCall { tool_name, input: stored_input, output: stored, .. },
        ) => {
            let [kept, seen] = [stored, shown].map(|text| text.as_ref().map_or("", Text::as_str));
            // A call that was cancelled in good order has a result that quotes what it had printed.
            let quotes = cancelled && kept.contains(seen);
            name == tool_name && input == stored_input && (quotes || kept.starts_with(seen))
        }
        _ => false,
    };
    let same_place = shown.index == stored.index && shown.started_at == stored.started_at;
    if begins && same_place { Ok(()) } else { differ() }
}

/// A turn without what is only echoed while it is live.
fn as_stored(turn: &Turn) -> Turn {
    let items = turn.items.iter().map(|item| item.without_client_token().unwrap_or_else(|| item.clone()));
    Turn { summary: turn.summary.clone(), items: items.collect() }
}

/// Whether a turn was sent as the server sends this one: with references in the place of what is large.
pub(crate) fn is_sent_as(sent: &Turn, turn: &Turn) -> bool {
    let shown = as_shown(turn);
    match sent.items.reference() {
        Some(reference) => {
            sent.summary == shown.summary && *reference == Payload::json(&shown.items).reference()
        }
        None => *sent == shown,
    }
}

/// A turn with references where its clients were shown them.
pub(crate) fn as_shown(turn: &Turn) -> Turn {
    Turn { summary: turn.summary.clone(), items: turn.items.iter().map(small).collect() }
}

fn small(item: &Item) -> Item {
    let mut item = item.clone();
    if item.has_references() {
        return item;
    }
    item.shrink(INLINE_BYTES_MAX, |_, _| {});
    item
}

pub(crate) fn user_texts(turn: &Turn) -> impl Iterator<Item = &Text> {
    turn.items.iter().filter_map(|item| match &item.kind {
        ItemKind::UserMessage { text, .. } => Some(text),
        _ => None,
    })
}

fn read<M: Method>(result: Value) -> M::Result {
    serde_json::from_value(result).expect("the result of a method")
}

/// Where two histories differ first.
pub(crate) fn difference(one: &[Turn], other: &[Turn]) -> String {
    let place = one.iter().zip(other).position(|(one, other)| one != other);
    let place = place.unwrap_or(one.len().min(other.len()));
    format!(
        "of {} and {} turns number {place} is\n{:#?}\nand\n{:#?}",
        one.len(),
        other.len(),
        one.get(place),
        other.get(place)
    )
}
