//! Models as a client sees them.
//!
//! Neighbours: none.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Names a model: `{"provider":"openai","id":"gpt-5"}`, or `openai/gpt-5` as text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct ModelRef {
    /// The provider's id in the settings; `builtin` for ours.
    pub provider: String,
    /// The model's id at that provider; may hold slashes.
    pub id: String,
}

impl ModelRef {
    /// A ref from its two parts.
    pub fn new(provider: impl Into<String>, id: impl Into<String>) -> Self {
        Self { provider: provider.into(), id: id.into() }
    }
}

impl fmt::Display for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.provider, self.id)
    }
}

/// A text that names no model: it must be `provider/model`, or the one bare ref `echo`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` names no model: write `provider/model`, or `echo`")]
pub struct ModelRefError(pub String);

impl FromStr for ModelRef {
    type Err = ModelRefError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((provider, id)) if !provider.is_empty() && !id.is_empty() => Ok(Self::new(provider, id)),
            None if text == "echo" => Ok(Self::new("builtin", "echo")),
            _ => Err(ModelRefError(text.to_owned())),
        }
    }
}

/// A row of `model/list`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelInfo {
    /// The provider's id.
    pub provider: String,
    /// The model's id at the provider.
    pub id: String,
    /// For people.
    pub name: String,
    /// Tokens that prompt and answer may take together; zero when unknown.
    pub context_window: u64,
    /// Tokens that an answer may take; zero when unknown.
    pub max_output_tokens: u64,
    /// Whether it takes images.
    pub images: bool,
    /// What a picker may offer; `["off"]` for a model that does not reason.
    pub thinking_levels: Vec<String>,
    /// Prices, where they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<ModelCost>,
    /// Whether a picker leaves it out.
    pub hidden: bool,
}

/// US dollars a million tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelCost {
    /// Prompt tokens.
    pub input: f64,
    /// Answer tokens.
    pub output: f64,
    /// Prompt tokens read from a cache.
    pub cache_read: f64,
    /// Prompt tokens written to a cache.
    pub cache_write: f64,
}

/// Params of `model/list`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelListParams {}

/// Result of `model/list`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelListResult {
    /// All models of all providers.
    pub models: Vec<ModelInfo>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refs_parse() {
        let nested: ModelRef = "openrouter/meta/llama".parse().unwrap();
        assert_eq!((nested.provider.as_str(), nested.id.as_str()), ("openrouter", "meta/llama"));
        assert_eq!("echo".parse::<ModelRef>().unwrap().to_string(), "builtin/echo");
        for bad in ["", "gpt", "/x", "x/"] {
            assert!(bad.parse::<ModelRef>().is_err(), "{bad}");
        }
    }
}
