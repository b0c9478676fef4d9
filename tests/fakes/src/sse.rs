//! The chunks of an OpenAI chat completion stream, each a whole server-sent event with its blank line.

use serde_json::{Value, json};

/// A piece of answer text.
#[must_use]
pub fn text(piece: &str) -> String {
    delta(&json!({ "content": piece }))
}

/// A piece of reasoning, under the name that DeepSeek, llama.cpp and vLLM use.
#[must_use]
pub fn reasoning(piece: &str) -> String {
    delta(&json!({ "reasoning_content": piece }))
}

/// A whole tool call in one chunk. `index` is its place among the calls of this reply.
#[must_use]
pub fn tool_call(index: usize, id: &str, name: &str, arguments: &str) -> String {
    let function = json!({ "name": name, "arguments": arguments });
    delta(&json!({ "tool_calls": [{ "index": index, "id": id, "type": "function", "function": function }] }))
}

/// One more piece of the arguments of the call at `index`, which an earlier [`tool_call`] began.
#[must_use]
pub fn tool_arguments(index: usize, piece: &str) -> String {
    delta(&json!({ "tool_calls": [{ "index": index, "function": { "arguments": piece } }] }))
}

/// The chunk that says why the reply ends: `stop`, `tool_calls`, `length`, `content_filter`.
#[must_use]
pub fn finish(reason: &str) -> String {
    chunk(&json!([{ "index": 0, "delta": {}, "finish_reason": reason }]), None)
}

/// The chunk that counts tokens; it has no choices, as OpenAI sends it.
#[must_use]
pub fn usage(prompt: u64, completion: u64) -> String {
    let usage = json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    });
    chunk(&json!([]), Some(usage))
}

/// The end of the stream.
#[must_use]
pub fn done() -> String {
    data("[DONE]")
}

/// Any `data:` line as an event, for what the other functions do not say.
#[must_use]
pub fn data(data: &str) -> String {
    format!("data: {data}\n\n")
}

/// An event that carries `delta` as the first choice's delta.
#[must_use]
pub fn delta(delta: &Value) -> String {
    chunk(&json!([{ "index": 0, "delta": delta, "finish_reason": null }]), None)
}

fn chunk(choices: &Value, usage: Option<Value>) -> String {
    let mut chunk = json!({
        "id": "chatcmpl-fake",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "fake-model",
        "choices": choices,
    });
    if let Some(usage) = usage {
        chunk["usage"] = usage;
    }
    data(&chunk.to_string())
}
