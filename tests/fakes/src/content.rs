//! What a message says: a text, or parts among which images may be.

use serde_json::Value;

/// The types of images that all providers take.
const IMAGE_TYPES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// An image that was sent in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentImage<'a> {
    /// The number of its message in the request, counted from 0.
    pub message: usize,
    /// Its type, as `image/png`.
    pub mime_type: &'a str,
    /// Its bytes in base64.
    pub data: &'a str,
}

/// The text of a message, its parts joined by line ends.
pub(crate) fn text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

/// The images of all messages, in their order; what is not well-formed is left out.
pub(crate) fn images(messages: &[Value]) -> Vec<SentImage<'_>> {
    let mut images = Vec::new();
    for (message, body) in messages.iter().enumerate() {
        let parts = body["content"].as_array().map_or(&[] as &[Value], Vec::as_slice);
        let urls = parts.iter().filter_map(|part| part["image_url"]["url"].as_str());
        let parsed = urls.filter_map(|url| parse_data_url(url).ok());
        images.extend(parsed.map(|(mime_type, data)| SentImage { message, mime_type, data }));
    }
    images
}

/// Whether there is anything in a message's content.
pub(crate) fn is_empty(content: &Value) -> bool {
    match content {
        Value::String(text) => text.is_empty(),
        Value::Array(parts) => {
            parts.iter().all(|part| part["type"] == "text" && part["text"].as_str().is_none_or(str::is_empty))
        }
        _ => true,
    }
}

/// Checks the content of a user message as strict providers do: a string, or parts of which none is empty.
pub(crate) fn check_user(content: &Value) -> Result<(), String> {
    match content {
        Value::String(_) => Ok(()),
        Value::Array(parts) if parts.is_empty() => Err("a user message of no parts".to_owned()),
        Value::Array(parts) => parts.iter().enumerate().try_for_each(|(number, part)| {
            check_part(part).map_err(|problem| format!("part {number}: {problem}"))
        }),
        _ => Err("a user message without content".to_owned()),
    }
}

/// Checks the content of any other message, which holds no images.
pub(crate) fn check_text(content: &Value) -> Result<(), String> {
    let parts = content.as_array().map_or(&[] as &[Value], Vec::as_slice);
    match parts.iter().find(|part| !part["image_url"].is_null()) {
        Some(_) => Err("only a user message may hold an image".to_owned()),
        None => Ok(()),
    }
}

fn check_part(part: &Value) -> Result<(), String> {
    match part["type"].as_str() {
        Some("text") if part["text"].as_str().is_none_or(str::is_empty) => Err("an empty text".to_owned()),
        Some("text") => Ok(()),
        Some("image_url") => match part["image_url"]["url"].as_str() {
            Some(url) => parse_data_url(url).map(|_| ()),
            None => Err("an image without a URL".to_owned()),
        },
        _ => Err(format!("unknown type {}", part["type"])),
    }
}

/// The type and the data of an image in a `data:` URL, the only kind that a server takes which fetches nothing.
fn parse_data_url(url: &str) -> Result<(&str, &str), String> {
    // Only the beginning is ever told: the rest may be megabytes.
    let shown = || url.chars().take(40).collect::<String>();
    let (mime_type, data) = url
        .strip_prefix("data:")
        .and_then(|rest| rest.split_once(";base64,"))
        .ok_or_else(|| format!("an image's URL is no data URL in base64: {:?}", shown()))?;
    if !IMAGE_TYPES.contains(&mime_type) {
        return Err(format!("no image that a provider takes: {:?}", shown()));
    }
    let unpadded = data.strip_suffix("==").or_else(|| data.strip_suffix('=')).unwrap_or(data);
    let letters = unpadded.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'));
    if unpadded.is_empty() || !letters || !data.len().is_multiple_of(4) {
        return Err(format!("an image's data are no base64: {:?}", shown()));
    }
    Ok((mime_type, data))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn image(url: &str) -> Value {
        json!({ "type": "image_url", "image_url": { "url": url } })
    }

    #[test]
    fn parts_are_taken_and_their_images_seen() {
        let look = json!([
            { "type": "text", "text": "look" },
            image("data:image/png;base64,iVBORw0KGgo="),
            image("data:image/webp;base64,UklGRg=="),
        ]);
        assert_eq!(check_user(&look), Ok(()));
        assert_eq!(check_user(&json!([image("data:image/gif;base64,AAAA")])), Ok(()));
        assert_eq!(check_user(&json!("look")), Ok(()));
        assert_eq!(text(&look), "look");
        let messages =
            [json!({ "role": "user", "content": "hi" }), json!({ "role": "user", "content": look })];
        let seen: Vec<_> = images(&messages).iter().map(|i| (i.message, i.mime_type, i.data)).collect();
        assert_eq!(seen, [(1, "image/png", "iVBORw0KGgo="), (1, "image/webp", "UklGRg==")]);
    }

    #[test]
    fn bad_parts_are_refused() {
        for (content, problem) in [
            (json!(null), "without content"),
            (json!([]), "of no parts"),
            (json!([{ "type": "text", "text": "" }]), "part 0: an empty text"),
            (json!([{ "type": "text", "text": "x" }, { "type": "sound" }]), "part 1: unknown type \"sound\""),
            (json!([{ "type": "image_url", "image_url": {} }]), "without a URL"),
            (json!([image("https://example.com/cat.png")]), "no data URL"),
            (json!([image("data:image/png,AAAA")]), "no data URL"),
            (json!([image("data:image/svg+xml;base64,AAAA")]), "no image that a provider takes"),
            (json!([image("data:image/png;base64,")]), "no base64"),
            (json!([image("data:image/png;base64,AAA")]), "no base64"),
            (json!([image("data:image/png;base64,A===")]), "no base64"),
            (json!([image("data:image/png;base64,AA\nA")]), "no base64"),
            (json!([image("data:image/png;base64,AA-_")]), "no base64"),
        ] {
            let refusal = check_user(&content).unwrap_err();
            assert!(refusal.contains(problem), "{content}: {refusal}");
        }
        assert!(check_text(&json!([image("data:image/gif;base64,AAAA")])).is_err());
        assert_eq!(check_text(&json!([{ "type": "text", "text": "x" }])), Ok(()));
    }
}
