//! The model's context: the branch's saved items, in the order and grouping in which a provider takes them.
//!
//! Only what is committed gets in. Every call has its result directly behind it, whatever a crash, an interrupt or a
//! damaged log did, since a provider refuses anything else.
//!
//! Neighbours: none.

use std::path::Path;

use raddle_models::{AssistantPart, ImagePart, Message};
use raddle_protocol::event::{EventBody, LoggedItem};
use raddle_protocol::fold::{INTERRUPTED_CALL_OUTPUT, unfinished};
use raddle_protocol::item::Image;
use raddle_protocol::{ItemKind, ItemStatus, ModelRef, Recorded, Text};

/// What the model is told about its place before anything else.
pub(crate) fn system_prompt(cwd: &Path, instructions: Option<&str>) -> String {
    let mut prompt = format!(
        "You are a coding agent that works in the user's project through tools.\n\
         The working directory is {}. Relative paths start there.\n\
         Look before you answer: read files and run commands rather than guess. Say briefly what you did.",
        cwd.display()
    );
    if let Some(instructions) = instructions {
        prompt.push_str("\n\n");
        prompt.push_str(instructions);
    }
    prompt
}

/// What the model is asked in order to sum up the conversation.
pub(crate) fn summary_request(instructions: Option<&str>) -> Message {
    let mut text = "Sum up this conversation so that you could go on with the work from your summary alone. Say what the \
         user wants, what was decided and why, what was done and found, which files matter and what is in them, what \
         failed, and what comes next. Write the summary only; call no tools."
        .to_owned();
    if let Some(instructions) = instructions {
        text.push_str("\n\nAbove all, keep this: ");
        text.push_str(instructions);
    }
    Message::user(text)
}

/// What the model is told in place of all that came before a summary.
fn summary_message(summary: &str) -> Message {
    Message::user(format!("This conversation was shortened. What came before, in short:\n\n{summary}"))
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
            ItemKind::UserMessage { text, images, .. } => messages.push(Message::User {
                text: text.as_str().to_owned(),
                images: images.iter().map(image_part).collect(),
            }),
            ItemKind::AgentMessage { text } if text.is_empty() => {}
            ItemKind::AgentMessage { text } => {
                reply.parts.push(AssistantPart::Text(text.as_str().to_owned()));
            }
            ItemKind::Compaction { text } if item.status == ItemStatus::Completed => {
                messages.push(summary_message(text.as_str()));
            }
            // What an extension put in is for people.
            ItemKind::Compaction { .. } | ItemKind::Extension { .. } => {}
            ItemKind::Reasoning { text } => {
                // Reasoning that was cut short has no signature, and a provider that wants one refuses it without.
                if own.is_some() && item.status == ItemStatus::Completed {
                    let text = text.as_str().to_owned();
                    reply.parts.push(AssistantPart::Reasoning { text, signature });
                }
            }
            ItemKind::ToolCall { tool_name, input, output, is_error, .. } => {
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
                    text: output.as_ref().map_or(INTERRUPTED_CALL_OUTPUT, Text::as_str).to_owned(),
                    is_error: *is_error,
                });
            }
        }
    }
    reply.flush(&mut messages);
    messages
}

fn image_part(image: &Image) -> ImagePart {
    ImagePart { mime_type: image.mime_type.clone(), data: image.data.as_str().into() }
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
            file_changes: Vec::new(),
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
