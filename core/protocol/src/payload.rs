//! Large values: what stands in their place. How they are taken out and put back is the business of `shrink`.
//!
//! A message never carries a large value itself. In its place stands a reference, and `payload/read` gives the bytes in
//! pieces. A reference is named by the SHA-256 of what it stands for, so the same value has the same name wherever it is
//! met, and a name leads to nothing but those bytes.
//!
//! Neighbours: item, shrink.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::item::Item;
pub use crate::shrink::{FillError, json_len};

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
