//! Looking at turns.
//!
//! Neighbours: none.

use raddle::protocol::{Item, ItemKind, Text, Turn};

/// The texts of a turn's agent messages, in order.
pub fn agent_texts(turn: &Turn) -> Vec<String> {
    texts(turn, |kind| match kind {
        ItemKind::AgentMessage { text } => Some(text),
        _ => None,
    })
}

/// The texts of a turn's agent messages, joined.
pub fn agent_text(turn: &Turn) -> String {
    agent_texts(turn).concat()
}

/// The texts of a turn's reasoning, joined.
pub fn reasoning_text(turn: &Turn) -> String {
    let reasoning = texts(turn, |kind| match kind {
        ItemKind::Reasoning { text } => Some(text),
        _ => None,
    });
    reasoning.concat()
}

/// The texts of a turn's user messages, in order.
pub fn user_texts(turn: &Turn) -> Vec<String> {
    texts(turn, |kind| match kind {
        ItemKind::UserMessage { text, .. } => Some(text),
        _ => None,
    })
}

/// A turn's tool calls, in order.
pub fn calls(turn: &Turn) -> Vec<Item> {
    turn.items.iter().filter(|item| matches!(item.kind, ItemKind::ToolCall { .. })).cloned().collect()
}

/// The tool call with this id: its item and its output.
///
/// # Panics
/// When the turn has no such call.
pub fn call(turn: &Turn, id: &str) -> (Item, String) {
    let item = turn.items.iter().find(|item| item.id.as_str() == id);
    let Some(item @ Item { kind: ItemKind::ToolCall { output, .. }, .. }) = item else {
        panic!("there is no call `{id}` in {turn:#?}");
    };
    (item.clone(), output.as_ref().map(whole).unwrap_or_default())
}

/// The turn as it is stored: without the clients' own tokens.
pub fn without_tokens(turn: &Turn) -> Turn {
    let mut turn = turn.clone();
    for item in turn.items.iter_mut() {
        if let Some(without) = item.without_client_token() {
            *item = without;
        }
    }
    turn
}

fn texts(turn: &Turn, text: impl Fn(&ItemKind) -> Option<&Text>) -> Vec<String> {
    turn.items.iter().filter_map(|item| text(&item.kind)).map(whole).collect()
}

fn whole(text: &Text) -> String {
    text.whole().unwrap_or_else(|| panic!("{text:?} is not all here: resolve it first")).to_owned()
}
