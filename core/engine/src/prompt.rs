//! The model's context: the branch's saved items, in the order and grouping in which a provider takes them.
//!
//! Only what is committed gets in. Every call has its result directly behind it, whatever a crash, an interrupt or a
//! damaged log did, since a provider refuses anything else.
//!
//! Neighbours: none.

use std::path::Path;

use raddle_models::{AssistantPart, Message};
use raddle_protocol::event::{EventBody, LoggedItem};
use raddle_protocol::fold::{INTERRUPTED_CALL_OUTPUT, unfinished};
use raddle_protocol::{ItemKind, ItemStatus, ModelRef, Recorded};

/// What the model is told about its place before anything else.
pub(crate) fn system_prompt(cwd: &Path) -> String {
    format!(
        "You are a coding agent that works in the user's project through tools.\n\
         The working directory is {}. Relative paths start there.\n\
         Look before you answer: read files and run commands rather than guess. Say briefly what you did.",
        cwd.display()
    )
}

/// The final items of one saved turn, in their order. Those that a crash left open come as recovery closes them.
pub(crate) fn final_items(events: &[Recorded]) -> Vec<LoggedItem> {
    let mut items: Vec<LoggedItem> = Vec::new();
    let mut ended = false;
    for recorded in events {
        match &recorded.event.body {
            EventBody::ItemCompleted(logged) => {
                items.retain(|known| known.item.id != logged.item.id);
                items.push(logged.clone());
            }
            EventBody::ItemRemoved(id) => items.retain(|known| &known.item.id != id),
            EventBody::TurnCompleted(_) => ended = true,
            _ => {}
        }
    }
    if !ended {
        items.extend(unfinished(events));
    }
    items.sort_by_key(|logged| logged.item.index);
    items
}

/// The messages of one turn's final items, for `model`. Another model's reasoning and signatures are left out: they mean
/// nothing to it, and strict providers refuse them.
pub(crate) fn messages(items: &[LoggedItem], model: &ModelRef) -> Vec<Message> {
    let mut messages = Vec::new();
    let mut reply = Reply::default();
    for LoggedItem { item, origin } in items {
        let number = origin.as_ref().map(|origin| origin.reply);
        let own = origin.as_ref().filter(|origin| &origin.model == model);
        let signature = own.and_then(|origin| origin.signature.clone());
        if number.is_none() || number != reply.number {
            reply.flush(&mut messages);
            reply.number = number;
        }
        match &item.kind {
            // A steer that a crash kept from the model must not turn up in a later turn.
            ItemKind::UserMessage { .. } if item.status == ItemStatus::Interrupted => {}
            ItemKind::UserMessage { text, .. } => messages.push(Message::User { text: text.clone() }),
            ItemKind::AgentMessage { text } if text.is_empty() => {}
            ItemKind::AgentMessage { text } => reply.parts.push(AssistantPart::Text(text.clone())),
            ItemKind::Reasoning { text } => {
                // Reasoning that was cut short has no signature, and a provider that wants one refuses it without.
                if own.is_some() && item.status == ItemStatus::Completed {
                    reply.parts.push(AssistantPart::Reasoning { text: text.clone(), signature });
                }
            }
            ItemKind::ToolCall { tool_name, input, output, is_error } => {
                let id = item.id.as_str().to_owned();
                let raw = origin.as_ref().and_then(|origin| origin.arguments.clone());
                // Arguments that are no JSON object are refused by providers that parse them.
                let arguments = match raw {
                    Some(raw) if input.is_object() => raw,
                    None if input.is_object() => input.to_string(),
                    _ => "{}".to_owned(),
                };
                reply.parts.push(AssistantPart::ToolCall {
                    id: id.clone(),
                    name: tool_name.clone(),
                    arguments,
                    signature,
                });
                reply.results.push(Message::ToolResult {
                    call_id: id,
                    tool_name: tool_name.clone(),
                    text: output.clone().unwrap_or_else(|| INTERRUPTED_CALL_OUTPUT.to_owned()),
                    is_error: *is_error,
                });
            }
        }
    }
    reply.flush(&mut messages);
    messages
}

/// One reply of the model and the results of its calls.
#[derive(Default)]
struct Reply {
    number: Option<u32>,
    parts: Vec<AssistantPart>,
    results: Vec<Message>,
}

impl Reply {
    fn flush(&mut self, messages: &mut Vec<Message>) {
        let parts = std::mem::take(&mut self.parts);
        let says_something = parts.iter().any(|part| !matches!(part, AssistantPart::Reasoning { .. }));
        if says_something {
            messages.push(Message::Assistant { parts });
        }
        messages.append(&mut self.results);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use raddle_protocol::Item;
    use raddle_protocol::event::Origin;

    fn item(id: &str, index: u32, kind: ItemKind, model: &ModelRef) -> LoggedItem {
        let item = Item {
            id: id.into(),
            kind,
            status: ItemStatus::Completed,
            index: Some(index),
            parent_item_id: None,
            started_at: None,
            completed_at: None,
        };
        let signature = Some("sig".to_owned());
        let origin = Origin { reply: 1, model: model.clone(), signature, arguments: Some("{ }".to_owned()) };
        LoggedItem { item, origin: Some(origin) }
    }

    #[test]
    fn r11_reasoning_and_signatures_go_back_to_their_own_model_alone() {
        let (own, other) = (ModelRef::new("p", "own"), ModelRef::new("p", "other"));
        let call = ItemKind::ToolCall {
            tool_name: "ls".into(),
            input: serde_json::json!({}),
            output: Some("a".into()),
            is_error: false,
        };
        let items =
            [item("1.1", 1, ItemKind::Reasoning { text: "hm".into() }, &own), item("c", 2, call, &own)];
        let parts = |model: &ModelRef| match messages(&items, model).remove(0) {
            Message::Assistant { parts } => parts,
            other => panic!("{other:?}"),
        };
        let signature = Some("sig".to_owned());
        let reasoning = AssistantPart::Reasoning { text: "hm".into(), signature: signature.clone() };
        let call = |signature| AssistantPart::ToolCall {
            id: "c".into(),
            name: "ls".into(),
            arguments: "{ }".into(),
            signature,
        };
        assert_eq!(parts(&own), [reasoning, call(signature)]);
        assert_eq!(parts(&other), [call(None)]);
    }
}
