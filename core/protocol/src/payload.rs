//! Large values: what stands in their place, and how they are taken out and put back.
//!
//! A message never carries a large value itself. In its place stands a reference, and `payload/read` gives the bytes in
//! pieces. A reference is named by the SHA-256 of what it stands for, so the same value has the same name wherever it is
//! met, and a name leads to nothing but those bytes.
//!
//! Neighbours: item, limits, turn.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::item::{Item, ItemKind};

/// The word in a reference's `type`.
const TAG: &str = "payloadReference";

/// Stands for a large value: `{"type":"payloadReference","id":"…","bytes":81920,"mimeType":"text/plain"}`.
///
/// `bytes` counts what `payload/read` gives in all: the text of a string as UTF-8, the decoded bytes of an image, the JSON
/// of anything else.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PayloadReference {
    /// For `payload/read`.
    pub id: String,
    /// Bytes in all.
    pub bytes: u64,
    /// What the bytes are.
    pub mime_type: String,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
enum Tagged {
    PayloadReference {
        id: String,
        bytes: u64,
        mime_type: String,
        /// What came after the reference was made; written by clients that keep what they folded, never by the server.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        tail: String,
    },
}

impl Tagged {
    fn new(reference: &PayloadReference, tail: &str) -> Self {
        let PayloadReference { id, bytes, mime_type } = reference.clone();
        Self::PayloadReference { id, bytes, mime_type, tail: tail.to_owned() }
    }

    fn parts(self) -> (PayloadReference, String) {
        let Self::PayloadReference { id, bytes, mime_type, tail } = self;
        (PayloadReference { id, bytes, mime_type }, tail)
    }
}

impl Serialize for PayloadReference {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        Tagged::new(self, "").serialize(s)
    }
}

impl<'de> Deserialize<'de> for PayloadReference {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(Tagged::deserialize(d)?.parts().0)
    }
}

impl JsonSchema for PayloadReference {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PayloadReference".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "description": "Stands for a large value; its bytes come from `payload/read`.",
            "properties": {
                "type": { "const": TAG },
                "id": { "type": "string" },
                "bytes": { "type": "integer", "minimum": 0 },
                "mimeType": { "type": "string" },
            },
            "required": ["type", "id", "bytes", "mimeType"],
        })
    }
}

/// A value that was taken out of a message: its bytes and what they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// What they are.
    pub mime_type: String,
}

impl Payload {
    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { bytes: text.into().into_bytes(), mime_type: "text/plain".to_owned() }
    }

    /// Any value as JSON.
    pub fn json(value: &impl Serialize) -> Self {
        // Our own types have string keys and no failing serializers, so this cannot fail.
        let bytes = serde_json::to_vec(value).unwrap_or_default();
        Self { bytes, mime_type: "application/json".to_owned() }
    }

    /// What stands in its place.
    pub fn reference(&self) -> PayloadReference {
        use fmt::Write as _;
        let mut id = String::with_capacity(64);
        for byte in Sha256::digest(&self.bytes) {
            // Writing to a string cannot fail.
            let _ = write!(id, "{byte:02x}");
        }
        PayloadReference { id, bytes: self.bytes.len() as u64, mime_type: self.mime_type.clone() }
    }
}

/// A text that may be large: what a reference stands for, if there is one, followed by what is here.
///
/// On the wire it is a string or a [`PayloadReference`]. A client that adds deltas to a referenced text keeps both.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Text {
    reference: Option<PayloadReference>,
    inline: String,
}

impl Text {
    /// A text that stands elsewhere.
    pub fn referenced(reference: PayloadReference) -> Self {
        Self { reference: Some(reference), inline: String::new() }
    }

    /// Where its beginning stands, if it is not all here.
    pub fn reference(&self) -> Option<&PayloadReference> {
        self.reference.as_ref()
    }

    /// The part that is here: the whole text, unless there is a [`reference`](Self::reference).
    pub fn as_str(&self) -> &str {
        &self.inline
    }

    /// The whole text, if it is here.
    pub fn whole(&self) -> Option<&str> {
        self.reference.is_none().then_some(self.inline.as_str())
    }

    /// Bytes of the part that is here.
    pub fn len(&self) -> usize {
        self.inline.len()
    }

    /// Whether the text is empty.
    pub fn is_empty(&self) -> bool {
        self.reference.is_none() && self.inline.is_empty()
    }

    /// Adds text at the end.
    pub fn push_str(&mut self, more: &str) {
        self.inline.push_str(more);
    }

    /// Puts the value of its reference back.
    pub fn fill(&mut self, beginning: &str) {
        if self.reference.take().is_some() {
            self.inline.insert_str(0, beginning);
        }
    }

    /// The part that is here, by value.
    pub fn into_string(self) -> String {
        self.inline
    }
}

impl From<String> for Text {
    fn from(inline: String) -> Self {
        Self { reference: None, inline }
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.whole() == Some(other)
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.whole() == Some(*other)
    }
}

impl PartialEq<String> for Text {
    fn eq(&self, other: &String) -> bool {
        self.whole() == Some(other.as_str())
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reference {
            None => self.inline.fmt(f),
            Some(reference) => write!(f, "<{} bytes> + {:?}", reference.bytes, self.inline),
        }
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inline)
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match &self.reference {
            None => s.serialize_str(&self.inline),
            Some(reference) => Tagged::new(reference, &self.inline).serialize(s),
        }
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Inline(String),
            Referenced(Tagged),
        }
        Ok(match Either::deserialize(d)? {
            Either::Inline(text) => Self::from(text),
            Either::Referenced(tagged) => {
                let (reference, inline) = tagged.parts();
                Self { reference: Some(reference), inline }
            }
        })
    }
}

impl JsonSchema for Text {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Text".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let reference = generator.subschema_for::<PayloadReference>();
        json_schema!({ "anyOf": [{ "type": "string" }, reference] })
    }
}

/// The items of a turn, or a reference to their JSON where they are too large for a page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Items {
    reference: Option<PayloadReference>,
    inline: Vec<Item>,
}

impl Items {
    /// Items that stand elsewhere: the payload is a JSON array of them.
    pub fn referenced(reference: PayloadReference) -> Self {
        Self { reference: Some(reference), inline: Vec::new() }
    }

    /// Where they stand, if they are not here.
    pub fn reference(&self) -> Option<&PayloadReference> {
        self.reference.as_ref()
    }

    /// Puts the items of its reference back; those that came since replace or follow them.
    pub fn fill(&mut self, items: Vec<Item>) {
        if self.reference.take().is_none() {
            return;
        }
        let newer = std::mem::replace(&mut self.inline, items);
        for item in newer {
            match self.inline.iter_mut().find(|known| known.id == item.id) {
                Some(known) => *known = item,
                None => self.inline.push(item),
            }
        }
        self.inline.sort_by_key(|item| item.index);
    }
}

impl From<Vec<Item>> for Items {
    fn from(inline: Vec<Item>) -> Self {
        Self { reference: None, inline }
    }
}

impl FromIterator<Item> for Items {
    fn from_iter<I: IntoIterator<Item = Item>>(items: I) -> Self {
        Self::from(items.into_iter().collect::<Vec<_>>())
    }
}

impl std::ops::Deref for Items {
    type Target = Vec<Item>;

    fn deref(&self) -> &Vec<Item> {
        &self.inline
    }
}

impl std::ops::DerefMut for Items {
    fn deref_mut(&mut self) -> &mut Vec<Item> {
        &mut self.inline
    }
}

impl IntoIterator for Items {
    type Item = Item;
    type IntoIter = std::vec::IntoIter<Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.inline.into_iter()
    }
}

impl<'a> IntoIterator for &'a Items {
    type Item = &'a Item;
    type IntoIter = std::slice::Iter<'a, Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.inline.iter()
    }
}

impl Serialize for Items {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match &self.reference {
            None => self.inline.serialize(s),
            Some(reference) => reference.serialize(s),
        }
    }
}

impl<'de> Deserialize<'de> for Items {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        // Not an untagged enum: that would hide what is wrong with an item behind "did not match any variant".
        let value = Value::deserialize(d)?;
        match reference_in(&value) {
            Some(reference) => Ok(Self::referenced(reference)),
            None => {
                serde_json::from_value::<Vec<Item>>(value).map(Self::from).map_err(serde::de::Error::custom)
            }
        }
    }
}

impl JsonSchema for Items {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Items".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (item, reference) =
            (generator.subschema_for::<Item>(), generator.subschema_for::<PayloadReference>());
        json_schema!({ "anyOf": [{ "type": "array", "items": item }, reference] })
    }
}

/// The reference that a JSON value is, if it has the form of one.
pub fn reference_in(value: &Value) -> Option<PayloadReference> {
    if value.get("type")?.as_str()? != TAG {
        return None;
    }
    serde_json::from_value(value.clone()).ok()
}

/// A value inside an item that a reference may stand for.
enum Slot<'a> {
    Text(&'a mut Text, &'static str),
    Image(&'a mut Text, String),
    Json(&'a mut Value),
}

impl Slot<'_> {
    /// Bytes of its JSON; none where a reference stands already.
    fn size(&self) -> Option<usize> {
        match self {
            Self::Text(text, _) | Self::Image(text, _) => text.whole().map(json_len),
            Self::Json(value) => reference_in(value).is_none().then(|| json_len(value)),
        }
    }

    fn payload(&self) -> Payload {
        match self {
            Self::Text(text, mime_type) => {
                Payload { bytes: text.as_str().as_bytes().to_vec(), mime_type: (*mime_type).to_owned() }
            }
            Self::Image(data, mime_type) => match BASE64_STANDARD.decode(data.as_str()) {
                Ok(bytes) => Payload { bytes, mime_type: mime_type.clone() },
                // Checked when it came in; what is stored damaged is still shown as it is.
                Err(_) => Payload::text(data.as_str()),
            },
            Self::Json(value) => Payload::json(value),
        }
    }

    fn replace(self, reference: PayloadReference) {
        match self {
            Self::Text(text, _) | Self::Image(text, _) => *text = Text::referenced(reference),
            Self::Json(value) => {
                *value = serde_json::to_value(reference).unwrap_or_default();
            }
        }
    }

    fn reference(&self) -> Option<PayloadReference> {
        match self {
            Self::Text(text, _) | Self::Image(text, _) => text.reference().cloned(),
            Self::Json(value) => reference_in(value),
        }
    }

    fn fill(self, bytes: &[u8]) -> Result<(), FillError> {
        match self {
            Self::Text(text, _) => text.fill(std::str::from_utf8(bytes).map_err(|_| FillError)?),
            Self::Image(data, mime_type) => match data.reference() {
                Some(reference) if reference.mime_type == mime_type => {
                    data.fill(&BASE64_STANDARD.encode(bytes));
                }
                _ => data.fill(std::str::from_utf8(bytes).map_err(|_| FillError)?),
            },
            Self::Json(value) => *value = serde_json::from_slice(bytes).map_err(|_| FillError)?,
        }
        Ok(())
    }
}

/// The bytes of a payload are not what its reference stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the payload's bytes do not fit the value that they stand for")]
pub struct FillError;

fn slots(item: &mut Item) -> Vec<Slot<'_>> {
    match &mut item.kind {
        ItemKind::UserMessage { text, images, .. } => {
            let images = images.iter_mut().map(|image| Slot::Image(&mut image.data, image.mime_type.clone()));
            std::iter::once(Slot::Text(text, "text/plain")).chain(images).collect()
        }
        ItemKind::AgentMessage { text } | ItemKind::Reasoning { text } | ItemKind::Compaction { text } => {
            vec![Slot::Text(text, "text/plain")]
        }
        ItemKind::ToolCall { input, output, file_changes, .. } => {
            let diffs = file_changes.iter_mut().filter_map(|change| change.diff.as_mut());
            let output = output.iter_mut().map(|output| Slot::Text(output, "text/plain"));
            let diffs = diffs.map(|diff| Slot::Text(diff, "text/x-diff"));
            std::iter::once(Slot::Json(input)).chain(output).chain(diffs).collect()
        }
        ItemKind::Extension { data, .. } => vec![Slot::Json(data)],
    }
}

impl Item {
    /// Takes its largest values out, one after the other, until its JSON has at most `max` bytes; gives them to `put` with
    /// what now stands in their place.
    ///
    /// A tool's input that only looks like a reference is taken out as well, so that whatever looks like one is one.
    pub fn shrink(&mut self, max: usize, mut put: impl FnMut(PayloadReference, Payload)) {
        let disguised = match &self.kind {
            ItemKind::ToolCall { input, .. } => reference_in(input).is_some(),
            ItemKind::Extension { data, .. } => reference_in(data).is_some(),
            _ => false,
        };
        if disguised && let Some(Slot::Json(value)) = slots(self).into_iter().next() {
            let payload = Payload::json(value);
            let reference = payload.reference();
            Slot::Json(value).replace(reference.clone());
            put(reference, payload);
        }
        self.shrink_whole(max, put);
    }

    /// [`shrink`](Self::shrink) for an item whose references are known to be ours.
    pub fn shrink_whole(&mut self, max: usize, mut put: impl FnMut(PayloadReference, Payload)) {
        // A character takes six bytes at most where JSON escapes it, so most items need no second look.
        const ESCAPED: usize = 6;
        const REST: usize = 1024;
        if self.text_bytes().saturating_mul(ESCAPED) + REST <= max {
            return;
        }
        let mut size = json_len(self);
        if size <= max {
            return;
        }
        let mut sized: Vec<(usize, Slot<'_>)> =
            slots(self).into_iter().filter_map(|slot| Some((slot.size()?, slot))).collect();
        sized.sort_by_key(|(size, _)| std::cmp::Reverse(*size));
        for (value_size, slot) in sized {
            let payload = slot.payload();
            let reference = payload.reference();
            let reference_size = json_len(&reference);
            if size <= max || value_size <= reference_size {
                break;
            }
            slot.replace(reference.clone());
            size = size - value_size + reference_size;
            put(reference, payload);
        }
    }

    /// The references that stand in it.
    pub fn references(&self) -> Vec<PayloadReference> {
        if !self.has_references() {
            return Vec::new();
        }
        slots(&mut self.clone()).iter().filter_map(Slot::reference).collect()
    }

    /// Whether any reference stands in it.
    pub fn has_references(&self) -> bool {
        let outside = |text: &Text| text.reference().is_some();
        match &self.kind {
            ItemKind::UserMessage { text, images, .. } => {
                outside(text) || images.iter().any(|image| outside(&image.data))
            }
            ItemKind::AgentMessage { text }
            | ItemKind::Reasoning { text }
            | ItemKind::Compaction { text } => outside(text),
            ItemKind::ToolCall { input, output, file_changes, .. } => {
                reference_in(input).is_some()
                    || output.as_ref().is_some_and(outside)
                    || file_changes.iter().any(|change| change.diff.as_ref().is_some_and(outside))
            }
            ItemKind::Extension { data, .. } => reference_in(data).is_some(),
        }
    }

    /// Puts the value of a reference back wherever it stands in the item.
    ///
    /// # Errors
    /// [`FillError`] when the bytes are not what the reference stands for; the item is left as it was there.
    pub fn fill(&mut self, id: &str, bytes: &[u8]) -> Result<(), FillError> {
        slots(self)
            .into_iter()
            .filter(|slot| slot.reference().is_some_and(|reference| reference.id == id))
            .try_for_each(|slot| slot.fill(bytes))
    }
}

/// Bytes of a value as JSON, without keeping it.
pub fn json_len(value: &(impl Serialize + ?Sized)) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Our own types have string keys and no failing serializers, so this cannot fail.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// Params of `payload/read`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PayloadReadParams {
    /// From a reference that this server gave out.
    pub id: String,
    /// Where to begin, in bytes; from `nextOffset` of the chunk before.
    #[serde(default)]
    pub offset: u64,
}

/// Result of `payload/read`: one chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PayloadReadResult {
    /// The bytes in base64; at most [`PAYLOAD_CHUNK_BYTES_MAX`](crate::limits::PAYLOAD_CHUNK_BYTES_MAX) before encoding.
    pub data: String,
    /// Where the next chunk begins, in bytes; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_offset: Option<u64>,
    /// Whether this chunk is the last.
    pub eof: bool,
}

#[cfg(test)]
mod tests {
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
        let forged =
            serde_json::json!({ "type": TAG, "id": "../../etc/passwd", "bytes": 1, "mimeType": "x" });
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
}
