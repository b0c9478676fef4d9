//! One chunk of a reply as serde sees it: borrowed from the bytes, lenient about types. A field of an unexpected
//! type counts as absent, since a chunk is worth more than the one odd field in it.
//!
//! Neighbours: none.

use std::borrow::Cow;
use std::fmt;

use raddle_protocol::TokenCounts;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// A `chat.completion.chunk`, or a whole `chat.completion`.
#[derive(Deserialize)]
pub(super) struct Chunk<'a> {
    #[serde(borrow, default)]
    pub(super) choices: Option<Vec<Choice<'a>>>,
    #[serde(default)]
    pub(super) usage: Option<Usage>,
    #[serde(borrow, default)]
    pub(super) error: Option<&'a RawValue>,
    /// Where Groq keeps the usage.
    #[serde(default)]
    pub(super) x_groq: Option<GroqPart>,
    /// Some servers send an error as the whole chunk.
    #[serde(borrow, default)]
    pub(super) message: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) detail: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct GroqPart {
    #[serde(default)]
    pub(super) usage: Option<Usage>,
}

#[derive(Deserialize)]
pub(super) struct Choice<'a> {
    #[serde(default)]
    pub(super) index: Number,
    #[serde(borrow, default)]
    pub(super) delta: Option<Delta<'a>>,
    /// The whole message, in a reply that is not streamed.
    #[serde(borrow, default)]
    pub(super) message: Option<Delta<'a>>,
    #[serde(borrow, default)]
    pub(super) finish_reason: Text<'a>,
    /// Where Moonshot keeps the usage.
    #[serde(default)]
    pub(super) usage: Option<Usage>,
    #[serde(borrow, default)]
    pub(super) error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct Delta<'a> {
    #[serde(borrow, default)]
    pub(super) content: Content<'a>,
    #[serde(borrow, default)]
    pub(super) reasoning: Text<'a>,
    #[serde(borrow, default)]
    pub(super) reasoning_content: Text<'a>,
    #[serde(borrow, default)]
    pub(super) refusal: Text<'a>,
    #[serde(borrow, default)]
    pub(super) tool_calls: Option<Vec<CallPiece<'a>>>,
}

/// A piece of a tool call, or a whole one.
#[derive(Deserialize)]
pub(super) struct CallPiece<'a> {
    #[serde(default)]
    pub(super) index: Number,
    #[serde(borrow, default)]
    pub(super) id: Text<'a>,
    #[serde(borrow, default)]
    pub(super) function: Option<FunctionPiece<'a>>,
    #[serde(borrow, default)]
    pub(super) extra_content: Option<ExtraContent<'a>>,
}

#[derive(Deserialize)]
pub(super) struct FunctionPiece<'a> {
    #[serde(borrow, default)]
    pub(super) name: Text<'a>,
    /// A string of JSON, or from some servers the JSON itself.
    #[serde(borrow, default)]
    pub(super) arguments: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct ExtraContent<'a> {
    #[serde(borrow, default)]
    pub(super) google: Option<GooglePart<'a>>,
}

#[derive(Deserialize)]
pub(super) struct GooglePart<'a> {
    #[serde(borrow, default)]
    pub(super) thought_signature: Text<'a>,
}

/// Token counts in the shapes that servers give them.
#[derive(Clone, Copy, Deserialize)]
pub(super) struct Usage {
    #[serde(default)]
    prompt_tokens: Number,
    #[serde(default)]
    completion_tokens: Number,
    #[serde(default)]
    prompt_tokens_details: Option<PromptDetails>,
    /// DeepSeek.
    #[serde(default)]
    prompt_cache_hit_tokens: Number,
    /// Moonshot.
    #[serde(default)]
    cached_tokens: Number,
}

#[derive(Clone, Copy, Deserialize)]
struct PromptDetails {
    #[serde(default)]
    cached_tokens: Number,
    /// OpenRouter.
    #[serde(default)]
    cache_write_tokens: Number,
}

impl Usage {
    /// The counts with cached tokens taken out of `input`; nothing when the provider counted nothing.
    pub(super) fn counts(self) -> Option<TokenCounts> {
        let prompt = self.prompt_tokens.or_zero();
        let output = self.completion_tokens.or_zero();
        if prompt == 0 && output == 0 {
            return None;
        }
        let details = self.prompt_tokens_details;
        let cache_read = details
            .map_or(0, |details| details.cached_tokens.or_zero())
            .max(self.prompt_cache_hit_tokens.or_zero())
            .max(self.cached_tokens.or_zero())
            .min(prompt);
        let cache_write =
            details.map_or(0, |details| details.cache_write_tokens.or_zero()).min(prompt - cache_read);
        Some(TokenCounts { input: prompt - cache_read - cache_write, output, cache_read, cache_write })
    }
}

/// A text; empty for null and for what is no text.
#[derive(Default)]
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor).map(Self)
    }
}

struct TextVisitor;

/// What a visitor does with the types that it has no use for: it reads past them and gives nothing.
macro_rules! others_are_nothing {
    ($de:lifetime) => {
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Default::default())
        }

        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
            Ok(Default::default())
        }

        fn visit_map<A: MapAccess<$de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            Ok(Default::default())
        }
    };
}

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Cow::Owned(number.to_string()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Cow::Owned(number.to_string()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        Ok(Cow::Owned(number.to_string()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Cow::default())
    }

    others_are_nothing!('de);
}

/// A count or an index; absent for null and for what is no number.
#[derive(Clone, Copy, Default)]
pub(super) struct Number(pub(super) Option<u64>);

impl Number {
    fn or_zero(self) -> u64 {
        self.0.unwrap_or(0)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberVisitor)
    }
}

struct NumberVisitor;

impl<'de> Visitor<'de> for NumberVisitor {
    type Value = Number;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_u64<E>(self, number: u64) -> Result<Number, E> {
        Ok(Number(Some(number)))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Number, E> {
        Ok(Number(u64::try_from(number).ok()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Number, E> {
        // A float casts to the nearest value in range; what is not a number becomes 0.
        Ok(Number(Some(number as u64)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Number, E> {
        Ok(Number(text.trim().parse().ok()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Number, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Number(None))
    }

    others_are_nothing!('de);
}

/// The content of a delta: a text, or a list of parts some of which may be thinking (Mistral).
#[derive(Default)]
pub(super) struct Content<'a> {
    pub(super) text: Cow<'a, str>,
    pub(super) thinking: String,
}

#[derive(Deserialize)]
struct ContentPart<'a> {
    #[serde(borrow, default)]
    text: Text<'a>,
    /// A text, or a list of parts again.
    #[serde(borrow, default)]
    thinking: PartsText<'a>,
}

/// The text of a text or of a list of parts.
#[derive(Default)]
struct PartsText<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for PartsText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor).map(|content| Self(content.text))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a list of parts")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Content { text: Cow::Borrowed(text), thinking: String::new() })
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Content { text: Cow::Owned(text.to_owned()), thinking: String::new() })
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Content::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Content::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Content::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut content = Content::default();
        while let Some(part) = seq.next_element::<Option<ContentPart<'de>>>()? {
            if let Some(part) = part {
                content.text.to_mut().push_str(&part.text.0);
                content.thinking.push_str(&part.thinking.0);
            }
        }
        Ok(content)
    }

    others_are_nothing!('de);
}

/// Writes the replacement character for every `\uD8xx` in a JSON text that has no partner. Servers that stream tokens
/// can split a pair, and serde rightly refuses half of one. Only called for a text that was refused.
pub(super) fn replace_lone_surrogates(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        out.push_str(before);
        let taken = match surrogate(escape) {
            Some(high) if high < 0xDC00 => {
                let paired = escape.get(6..).and_then(surrogate).is_some_and(|low| low >= 0xDC00);
                out.push_str(if paired { &escape[..12] } else { "\\ufffd" });
                if paired { 12 } else { 6 }
            }
            Some(_) => {
                out.push_str("\\ufffd");
                6
            }
            None => {
                let taken = escape.chars().take(2).map(char::len_utf8).sum();
                out.push_str(&escape[..taken]);
                taken
            }
        };
        rest = &escape[taken..];
    }
    out.push_str(rest);
    out
}

/// The code unit, when the text begins with the escape of a surrogate.
fn surrogate(escape: &str) -> Option<u16> {
    let digits = escape.strip_prefix("\\u")?.get(..4)?;
    u16::from_str_radix(digits, 16).ok().filter(|unit| (0xD800..0xE000).contains(unit))
}
