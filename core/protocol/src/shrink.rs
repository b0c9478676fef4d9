//! Taking large values out of an item, and putting them back.
//!
//! Neighbours: item, payload.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use serde_json::Value;

use crate::item::{Item, ItemKind};
use crate::payload::{Payload, PayloadReference, Text, reference_in};

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

#[cfg(test)]
mod tests;
