//! Which providers are on, with their addresses, keys and models: the `providers` of the settings.
//!
//! Neighbours: error, secret.

use std::time::Duration;

use raddle_protocol::{ModelCost, ModelInfo};
use serde::Deserialize;

use crate::error::ModelsError;
use crate::secret::Secret;

/// The id under which the two built-in models are found; a configured provider cannot take it.
pub const BUILTIN_PROVIDER: &str = "builtin";

/// All that [`Models`](crate::Models) is made from.
#[derive(Clone, Debug, Default)]
pub struct ModelsConfig {
    /// The providers, in the order in which they are listed. Of two with one id the first counts.
    pub providers: Vec<ProviderConfig>,
    /// How long the network may take.
    pub time_limits: TimeLimits,
}

/// How long the network may take.
///
/// Only connecting is limited here. How long a model may be silent is for whoever reads its stream to say, since
/// [`Ping`](crate::ModelEvent::Ping) events show that it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimits {
    /// Name lookup, TCP and TLS together, by default 10 s. At it the request fails as a network error.
    pub connect: Duration,
}

impl Default for TimeLimits {
    fn default() -> Self {
        Self { connect: Duration::from_secs(10) }
    }
}

/// A provider in the settings:
/// `{"id":"local","apiEndpoint":"http://127.0.0.1:8080/v1","apiKey":"$LOCAL_KEY","models":[{"id":"qwen"}]}`.
///
/// Fields that it does not know are ignored.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProviderConfig {
    /// What its models are called by: `id/model`.
    pub id: String,
    /// The format that it speaks.
    #[serde(rename = "type")]
    pub kind: ProviderKind,
    /// Where its API begins, for example `https://api.openai.com/v1`; a trailing slash does not matter.
    pub api_endpoint: String,
    /// Its key; absent for a server that wants none.
    pub api_key: Option<Secret>,
    /// Its models. None means that it is asked for them.
    pub models: Vec<ModelConfig>,
    /// Ask it for its models although some are given here; those given here win.
    pub discover_models: bool,
    /// Tokens that one answer may take at most, whatever is asked for.
    pub max_output_tokens: Option<u64>,
}

impl ProviderConfig {
    /// A provider that speaks OpenAI's chat completions, wants no key and is asked for its models.
    pub fn new(id: impl Into<String>, api_endpoint: impl Into<String>) -> Self {
        Self { id: id.into(), api_endpoint: api_endpoint.into(), ..Self::default() }
    }

    /// Replaces `$NAME` in the address and in the key by what `lookup` gives for `NAME`.
    ///
    /// # Errors
    ///
    /// [`ModelsError::Config`] when a name that is referred to is unset or empty: a key that was declared and is not
    /// there must not turn into a request without one.
    pub fn resolve_references(&mut self, lookup: &dyn Fn(&str) -> Option<String>) -> Result<(), ModelsError> {
        let resolve = |value: &str| match value.strip_prefix('$') {
            None => Ok(value.to_owned()),
            Some(name) => lookup(name).filter(|found| !found.is_empty()).ok_or_else(|| ModelsError::Config {
                provider: self.id.clone(),
                message: format!("the environment variable {name} is not set"),
            }),
        };
        let api_endpoint = resolve(&self.api_endpoint)?;
        let api_key = self.api_key.as_ref().map(|key| resolve(key.expose())).transpose()?;
        self.api_endpoint = api_endpoint;
        self.api_key = api_key.map(Secret::new);
        Ok(())
    }
}

/// The format that a provider speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProviderKind {
    /// OpenAI chat completions, and everything compatible with it.
    #[default]
    OpenaiCompat,
    /// OpenAI Responses. Not spoken yet.
    OpenaiResponses,
    /// Anthropic Messages. Not spoken yet.
    Anthropic,
    /// Gemini. Not spoken yet.
    Gemini,
    /// A word that this version does not know.
    #[serde(other)]
    Unknown,
}

/// A model in the settings: `{"id":"qwen3","contextWindow":32768,"reasoning":true}`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelConfig {
    /// Its id at the provider.
    pub id: String,
    /// Its name for people; the id when absent.
    pub name: Option<String>,
    /// Tokens that prompt and answer may take together.
    pub context_window: Option<u64>,
    /// Tokens that an answer may take.
    pub max_output_tokens: Option<u64>,
    /// Whether it thinks.
    pub reasoning: bool,
    /// The levels of thinking that it takes; absent gives `off`, `low`, `medium`, `high` to one that thinks.
    pub thinking_levels: Option<Vec<String>>,
    /// Whether it takes images.
    pub images: bool,
    /// US dollars a million tokens.
    pub cost: Option<ModelCost>,
    /// When its thinking is sent back to it; absent takes what is known of the provider.
    pub reasoning_replay: Option<ReasoningReplay>,
    /// What the field that limits the answer is called; absent takes what is known of the provider.
    pub max_tokens_field: Option<MaxTokensField>,
}

impl ModelConfig {
    /// A model of which only the id is known.
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: id.into(), ..Self::default() }
    }

    /// Its row in `model/list`.
    pub(crate) fn info(&self, provider: &str) -> ModelInfo {
        let levels = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        ModelInfo {
            provider: provider.to_owned(),
            id: self.id.clone(),
            name: self.name.clone().unwrap_or_else(|| self.id.clone()),
            context_window: self.context_window.unwrap_or(0),
            max_output_tokens: self.max_output_tokens.unwrap_or(0),
            images: self.images,
            thinking_levels: match &self.thinking_levels {
                Some(given) => given.clone(),
                None if self.reasoning => levels(&["off", "low", "medium", "high"]),
                None => levels(&["off"]),
            },
            cost: self.cost,
            hidden: false,
        }
    }
}

/// When a model's thinking is sent back to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ReasoningReplay {
    /// Never.
    Never,
    /// With a reply that made a tool call. DeepSeek refuses the next request without it (case R11), and a server that
    /// thinks aloud and does not need it ignores it.
    #[default]
    WithToolCalls,
    /// With every reply.
    Always,
}

/// What the field is called that limits the tokens of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MaxTokensField {
    /// `max_tokens`, the older name, which every compatible server knows.
    #[default]
    MaxTokens,
    /// `max_completion_tokens`, the only one that OpenAI's reasoning models take.
    MaxCompletionTokens,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read() {
        let json = r#"{"id":"p","type":"anthropic","apiEndpoint":"$URL","apiKey":"$KEY","later":1,
            "models":[{"id":"m","contextWindow":10,"reasoning":true,"reasoningReplay":"withToolCalls",
                       "maxTokensField":"max_completion_tokens","cost":{"input":1.5}}]}"#;
        let mut config: ProviderConfig = serde_json::from_str(json).unwrap();
        assert_eq!(config.kind, ProviderKind::Anthropic);
        let model = &config.models[0];
        assert_eq!(model.reasoning_replay, Some(ReasoningReplay::WithToolCalls));
        assert_eq!(model.max_tokens_field, Some(MaxTokensField::MaxCompletionTokens));
        let info = model.info("p");
        assert_eq!((info.name.as_str(), info.context_window, info.max_output_tokens), ("m", 10, 0));
        assert_eq!(info.thinking_levels, ["off", "low", "medium", "high"]);
        assert!(!format!("{config:?}").contains("$KEY"));

        let unset = config.clone().resolve_references(&|_| None).unwrap_err();
        assert_eq!(unset.to_string(), "provider `p`: the environment variable URL is not set");
        config.resolve_references(&|name| Some(format!("<{name}>"))).unwrap();
        assert_eq!((config.api_endpoint.as_str(), config.api_key), ("<URL>", Some(Secret::new("<KEY>"))));
        let odd: ProviderConfig = serde_json::from_str(r#"{"id":"p","type":"telepathy"}"#).unwrap();
        assert_eq!(odd.kind, ProviderKind::Unknown);
    }
}
