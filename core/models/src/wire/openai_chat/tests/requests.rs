use serde_json::{Value, json};

use super::super::{Dialect, encode};
use crate::config::{MaxTokensField, ReasoningReplay};
use crate::request::{AssistantPart, ImagePart, Message, ModelRequest, ToolDef};

fn body(request: &ModelRequest, dialect: Dialect) -> Value {
    serde_json::from_slice(&encode(request, dialect).unwrap()).unwrap()
}

fn messages(messages: Vec<Message>) -> Value {
    body(&ModelRequest { messages, ..ModelRequest::default() }, Dialect::default())["messages"].clone()
}

fn call(id: &str, arguments: &str) -> AssistantPart {
    AssistantPart::ToolCall { id: id.into(), name: "ls".into(), arguments: arguments.into(), signature: None }
}

fn result(id: &str, text: &str) -> Message {
    Message::ToolResult { call_id: id.into(), tool_name: "ls".into(), text: text.into(), is_error: false }
}

#[test]
fn a_whole_request() {
    let request = ModelRequest {
        model: "m".into(),
        system: Some("Be brief.".into()),
        messages: vec![Message::user("Hi")],
        tools: vec![ToolDef {
            name: "ls".into(),
            description: "Lists.".into(),
            input_schema: json!({"type": "object"}),
        }],
        max_output_tokens: Some(100),
        thinking: Some("high".into()),
        attempt: 1,
    };
    let expected = json!({
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": {"name": "ls", "description": "Lists.", "parameters": {"type": "object"}}}],
        "stream": true,
        "stream_options": {"include_usage": true},
        "max_tokens": 100,
        "reasoning_effort": "high",
    });
    assert_eq!(body(&request, Dialect::default()), expected);
    let newer = body(&request, Dialect::of_host("api.openai.com"));
    assert_eq!((newer.get("max_tokens"), &newer["max_completion_tokens"]), (None, &json!(100)));
    let plain =
        body(&ModelRequest { thinking: Some("off".into()), ..ModelRequest::default() }, Dialect::default());
    assert_eq!(
        plain.as_object().unwrap().keys().collect::<Vec<_>>(),
        ["messages", "model", "stream", "stream_options"]
    );
}

/// The very bytes, since servers differ in what they make of a request and this is all that they get.
#[test]
fn images_follow_their_text_as_data_urls() {
    let image = |mime_type: &str, data: &str| ImagePart { mime_type: mime_type.into(), data: data.into() };
    let request = ModelRequest {
        model: "m".into(),
        messages: vec![
            Message::User {
                text: "Which is \"newer\"?".into(),
                images: vec![image("image/png", "iVBORw0KGgo="), image("image/webp", "UklGRg==")],
            },
            Message::Assistant { parts: vec![AssistantPart::Text("The first.".into())] },
            Message::User { text: String::new(), images: vec![image("image/jpeg", "/9j/+w==")] },
            Message::user("And now?"),
        ],
        ..ModelRequest::default()
    };
    let expected = concat!(
        r#"{"model":"m","messages":["#,
        r#"{"role":"user","content":[{"type":"text","text":"Which is \"newer\"?"},"#,
        r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}},"#,
        r#"{"type":"image_url","image_url":{"url":"data:image/webp;base64,UklGRg=="}}]},"#,
        r#"{"role":"assistant","content":"The first."},"#,
        r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/jpeg;base64,/9j/+w=="}}]},"#,
        r#"{"role":"user","content":"And now?"}],"#,
        r#""stream":true,"stream_options":{"include_usage":true}}"#,
    );
    assert_eq!(String::from_utf8(encode(&request, Dialect::default()).unwrap()).unwrap(), expected);

    let sent = body(&request.without_images(), Dialect::default());
    let contents: Vec<&Value> = sent["messages"].as_array().unwrap().iter().map(|m| &m["content"]).collect();
    assert!(contents[0].as_str().unwrap().starts_with("Which is \"newer\"?\n\n[2 pictures were left out"));
    assert!(contents[2].as_str().unwrap().starts_with("[1 picture was left out"));
    assert!(!sent.to_string().contains("base64"), "{sent}");
}

#[test]
fn r16_every_call_has_its_result_directly_after_it() {
    let calls = Message::Assistant {
        parts: vec![AssistantPart::Text("Look.".into()), call("a", "{\"p\":1}"), call("b", "{}")],
    };
    let sent = messages(vec![
        Message::user("Hi"),
        result("stray", "from nowhere"),
        calls,
        Message::user("and hurry"),
        result("b", "B"),
        result("b", "B again"),
        Message::Assistant { parts: vec![] },
        Message::Assistant { parts: vec![call("a", "not json")] },
        result("a", "A"),
    ]);
    let made_up = &sent[2]["content"];
    assert!(made_up.as_str().unwrap().starts_with("interrupted"));
    let function = |arguments: &str| json!({"name": "ls", "arguments": arguments});
    assert_eq!(
        sent,
        json!([
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Look.", "tool_calls": [
                {"id": "a", "type": "function", "function": function("{\"p\":1}")},
                {"id": "b", "type": "function", "function": function("{}")},
            ]},
            {"role": "tool", "tool_call_id": "a", "content": made_up},
            {"role": "tool", "tool_call_id": "b", "content": "B"},
            {"role": "user", "content": "and hurry"},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "a", "type": "function", "function": function("{}")}]},
            {"role": "tool", "tool_call_id": "a", "content": "A"},
        ])
    );
}

#[test]
fn r11_thinking_goes_back_where_it_is_needed() {
    let thinking = || AssistantPart::Reasoning { text: "Need a listing.".into(), signature: None };
    let request = ModelRequest {
        messages: vec![
            Message::Assistant { parts: vec![thinking(), AssistantPart::Text("Hi".into())] },
            Message::Assistant { parts: vec![thinking(), call("a", "{}")] },
            Message::Assistant { parts: vec![thinking()] },
        ],
        ..ModelRequest::default()
    };
    let sent = |reasoning_replay| {
        let sent = body(&request, Dialect { reasoning_replay, max_tokens_field: MaxTokensField::default() });
        let replies: Vec<bool> = sent["messages"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|message| message["role"] == "assistant")
            .map(|message| message.get("reasoning_content").is_some())
            .collect();
        replies
    };
    assert_eq!(sent(ReasoningReplay::Never), [false, false]);
    assert_eq!(sent(ReasoningReplay::WithToolCalls), [false, true]);
    assert_eq!(sent(ReasoningReplay::Always), [true, true]);
    assert_eq!(Dialect::default().reasoning_replay, ReasoningReplay::WithToolCalls);
}

#[test]
fn r13_signatures_go_back_on_their_call() {
    let signed = AssistantPart::ToolCall {
        id: "a".into(),
        name: "read".into(),
        arguments: "{}".into(),
        signature: Some("U0lH".into()),
    };
    let sent = messages(vec![Message::Assistant { parts: vec![signed, call("b", "{}")] }]);
    let calls = &sent[0]["tool_calls"];
    assert_eq!(calls[0]["extra_content"], json!({"google": {"thought_signature": "U0lH"}}));
    assert_eq!(calls[1].get("extra_content"), None);
}
