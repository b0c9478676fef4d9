//! What is taken out comes back, and only references look like references.

use proptest::prelude::*;

use super::*;
use crate::item::{FileChange, FileChangeKind, Image, ItemStatus};

fn item(kind: ItemKind) -> Item {
    Item {
        id: "1.0".into(),
        kind,
        status: ItemStatus::Completed,
        index: Some(0),
        parent_item_id: None,
        started_at: None,
        completed_at: None,
    }
}

fn call(input: Value, output: &str, diff: &str) -> Item {
    item(ItemKind::ToolCall {
        tool_name: "edit".into(),
        input,
        output: Some(output.into()),
        is_error: false,
        file_changes: vec![FileChange {
            path: "a".into(),
            kind: FileChangeKind::Modify,
            diff: Some(diff.into()),
        }],
    })
}

/// Shrinks an item, sends it over the wire and fills it again.
fn there_and_back(whole: &Item, max: usize) -> Item {
    let mut small = whole.clone();
    let mut payloads = Vec::new();
    small.shrink(max, |reference, payload| payloads.push((reference, payload)));
    let mut back: Item = serde_json::from_str(&serde_json::to_string(&small).unwrap()).unwrap();
    assert_eq!(back.references().len(), payloads.len());
    for (reference, payload) in payloads {
        assert_eq!(payload.bytes.len() as u64, reference.bytes);
        back.fill(&reference.id, &payload.bytes).unwrap();
    }
    assert!(!back.has_references() || reference_in(&Value::Null).is_some());
    back
}

proptest! {
    #[test]
    fn what_is_taken_out_comes_back(output in "\\PC{0,400}", diff in "\\PC{0,400}", arg in "\\PC{0,400}", max in 200usize..2_000) {
        let whole = call(serde_json::json!({ "arg": arg }), &output, &diff);
        let mut small = whole.clone();
        small.shrink(max, |_, _| {});
        prop_assert!(json_len(&small) <= max.max(json_len(&whole).min(900)));
        prop_assert_eq!(there_and_back(&whole, max), whole);
    }
}

#[test]
fn the_largest_value_goes_first() {
    let mut item = call(Value::Null, &"o".repeat(3_000), &"d".repeat(1_000));
    item.shrink(2_000, |reference, payload| {
        assert_eq!(reference.mime_type, "text/plain");
        assert_eq!(payload.bytes.len(), 3_000);
    });
    let ItemKind::ToolCall { output: Some(output), file_changes, .. } = &item.kind else { panic!() };
    assert!(output.reference().is_some());
    assert!(file_changes[0].diff.as_ref().unwrap().reference().is_none());
}

#[test]
fn images_are_references_to_their_own_bytes() {
    let bytes = vec![7; 3_000];
    let data = Text::from(BASE64_STANDARD.encode(&bytes));
    let image = Image { mime_type: "image/png".into(), data, path: None };
    let whole =
        item(ItemKind::UserMessage { text: "look".into(), images: vec![image], client_message_id: None });
    let mut small = whole.clone();
    small.shrink(1_000, |reference, payload| {
        assert_eq!((reference.mime_type.as_str(), payload.bytes.as_slice()), ("image/png", &bytes[..]));
    });
    assert_eq!(there_and_back(&whole, 1_000), whole);
}

#[test]
fn an_input_in_the_form_of_a_reference_is_wrapped() {
    let forged = serde_json::json!({ "type": "payloadReference", "id": "../../etc/passwd", "bytes": 1, "mimeType": "x" });
    let whole = call(forged.clone(), "", "");
    let mut small = whole.clone();
    small.shrink(100_000, |_, payload| {
        assert_eq!(serde_json::from_slice::<Value>(&payload.bytes).unwrap(), forged);
    });
    let reference = &small.references()[0];
    assert_eq!(reference.id.len(), 64);
}

#[test]
fn a_referenced_text_takes_deltas_and_its_beginning() {
    let reference = Payload::text("begin").reference();
    let mut text = Text::referenced(reference);
    text.push_str(" end");
    let json = serde_json::to_string(&text).unwrap();
    let mut back: Text = serde_json::from_str(&json).unwrap();
    assert_eq!(back, text);
    assert_eq!(back.whole(), None);
    back.fill("begin");
    assert_eq!(back, "begin end");
}
