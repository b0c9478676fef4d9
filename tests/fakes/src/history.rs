//! What a strict provider demands of a conversation.

use serde_json::Value;

use crate::content;

/// Checks the messages of a chat completion request as the strictest providers do.
///
/// - Every tool call has an id, unique in its message, and a function's name.
/// - Every call is answered by exactly one `tool` message with its id, before any message of another role.
/// - No `tool` message answers a call that was not made.
/// - No assistant message is empty: it has text or a refusal or calls.
/// - A user message is a string, or parts of which each is a text that is not empty or an image in a `data:` URL: PNG,
///   JPEG, GIF or WebP in base64. No other message holds an image.
///
/// # Errors
/// Says which message is wrong, and how.
pub fn check_history(messages: &[Value]) -> Result<(), String> {
    // The calls of the last assistant message that have no result yet, and where that message is.
    let mut open: Vec<&str> = Vec::new();
    let mut called_at = 0;
    let mut answered: Vec<&str> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let role = message["role"].as_str().unwrap_or_default();
        let said = &message["content"];
        let checked = if role == "user" { content::check_user(said) } else { content::check_text(said) };
        checked.map_err(|problem| format!("message {at}: {problem}"))?;
        if role == "tool" {
            let id = message["tool_call_id"].as_str().unwrap_or_default();
            if let Some(place) = open.iter().position(|call| *call == id) {
                answered.push(open.swap_remove(place));
            } else if answered.contains(&id) {
                return Err(format!("message {at}: a second result for tool call {id:?}"));
            } else {
                return Err(format!(
                    "message {at}: a result for tool call {id:?}, which the assistant message before it did not make"
                ));
            }
            continue;
        }
        unanswered(&open, called_at, at)?;
        answered.clear();
        match role {
            "assistant" => {
                open = calls(message, at)?;
                called_at = at;
            }
            "system" | "developer" | "user" => {}
            other => return Err(format!("message {at}: unknown role {other:?}")),
        }
    }
    unanswered(&open, called_at, messages.len())
}

fn unanswered(open: &[&str], called_at: usize, before: usize) -> Result<(), String> {
    match open.first() {
        None => Ok(()),
        Some(id) => {
            Err(format!("message {called_at}: tool call {id:?} has no result before message {before}"))
        }
    }
}

/// The ids of an assistant message's calls.
fn calls(message: &Value, at: usize) -> Result<Vec<&str>, String> {
    let calls = message["tool_calls"].as_array().map_or(&[] as &[Value], Vec::as_slice);
    if calls.is_empty() && content::is_empty(&message["content"]) && content::is_empty(&message["refusal"]) {
        return Err(format!("message {at}: an assistant message with neither text nor tool calls"));
    }
    let mut ids = Vec::with_capacity(calls.len());
    for call in calls {
        let id = call["id"].as_str().unwrap_or_default();
        if id.is_empty() {
            return Err(format!("message {at}: a tool call without an id"));
        }
        if call["function"]["name"].as_str().is_none_or(str::is_empty) {
            return Err(format!("message {at}: tool call {id:?} names no function"));
        }
        if ids.contains(&id) {
            return Err(format!("message {at}: two tool calls with the id {id:?}"));
        }
        ids.push(id);
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(messages: &Value) -> Result<(), String> {
        check_history(messages.as_array().unwrap())
    }

    fn calling(ids: &[&str]) -> Value {
        let calls: Vec<Value> = ids
            .iter()
            .map(
                |id| json!({ "id": id, "type": "function", "function": { "name": "ls", "arguments": "{}" } }),
            )
            .collect();
        json!({ "role": "assistant", "content": null, "tool_calls": calls })
    }

    fn result(id: &str) -> Value {
        json!({ "role": "tool", "tool_call_id": id, "content": "done" })
    }

    fn user() -> Value {
        json!({ "role": "user", "content": "go on" })
    }

    #[test]
    fn a_good_history_passes() {
        let history = json!([
            { "role": "system", "content": "be brief" },
            user(),
            calling(&["a", "b"]),
            result("b"),
            result("a"),
            calling(&["a"]),
            result("a"),
            { "role": "assistant", "content": [{ "type": "text", "text": "there" }] },
            user(),
        ]);
        assert_eq!(check(&history), Ok(()));
        assert_eq!(check(&json!([])), Ok(()));
    }

    #[test]
    fn a_call_without_a_result_is_refused() {
        let cut_by_a_user = check(&json!([user(), calling(&["a", "b"]), result("a"), user(), result("b")]));
        assert_eq!(
            cut_by_a_user,
            Err("message 1: tool call \"b\" has no result before message 3".to_owned())
        );
        let at_the_end = check(&json!([user(), calling(&["a"])]));
        assert_eq!(at_the_end, Err("message 1: tool call \"a\" has no result before message 2".to_owned()));
    }

    #[test]
    fn a_result_without_a_call_is_refused() {
        assert!(check(&json!([user(), result("a")])).unwrap_err().contains("did not make"));
        let late = json!([calling(&["a"]), result("a"), user(), result("a")]);
        assert!(check(&late).unwrap_err().contains("message 3"));
    }

    #[test]
    fn a_second_result_is_refused() {
        let twice = json!([calling(&["a"]), result("a"), result("a")]);
        assert_eq!(check(&twice), Err("message 2: a second result for tool call \"a\"".to_owned()));
    }

    #[test]
    fn calls_need_ids_of_their_own_and_names() {
        assert!(check(&json!([calling(&["a", "a"])])).unwrap_err().contains("two tool calls"));
        assert!(check(&json!([calling(&[""])])).unwrap_err().contains("without an id"));
        let nameless =
            json!([{ "role": "assistant", "tool_calls": [{ "id": "a", "function": { "name": "" } }] }]);
        assert!(check(&nameless).unwrap_err().contains("names no function"));
    }

    #[test]
    fn an_empty_assistant_message_is_refused() {
        for content in [json!(null), json!(""), json!([]), json!([{ "type": "text", "text": "" }])] {
            let history = json!([{ "role": "assistant", "content": content, "reasoning_content": "hm" }]);
            assert!(check(&history).unwrap_err().contains("neither text nor tool calls"), "{content}");
        }
    }

    #[test]
    fn images_stand_in_user_messages_alone() {
        let image =
            json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,iVBORw0KGgo=" } });
        assert_eq!(check(&json!([{ "role": "user", "content": [image] }])), Ok(()));
        for role in ["system", "assistant"] {
            let refusal = check(&json!([user(), { "role": role, "content": [image] }])).unwrap_err();
            assert_eq!(refusal, "message 1: only a user message may hold an image");
        }
        let shown = json!({ "role": "tool", "tool_call_id": "a", "content": [image] });
        assert!(check(&json!([user(), calling(&["a"]), shown])).unwrap_err().starts_with("message 2: only"));
        let broken = json!([user(), { "role": "user", "content": [{ "type": "text", "text": "" }] }]);
        assert_eq!(check(&broken), Err("message 1: part 0: an empty text".to_owned()));
    }

    #[test]
    fn an_unknown_role_is_refused() {
        assert!(check(&json!([{ "role": "robot", "content": "x" }])).unwrap_err().contains("robot"));
    }
}
