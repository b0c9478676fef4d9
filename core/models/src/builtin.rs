//! The provider `builtin`: the two models that need no key and no network.
//!
//! Neighbours: config, echo, event, provider, request, script.

use async_trait::async_trait;
use raddle_protocol::ModelInfo;

use crate::config::{BUILTIN_PROVIDER, ModelConfig};
use crate::event::ModelStream;
use crate::provider::Provider;
use crate::request::ModelRequest;
use crate::{echo, script};

/// The window that the built-in models claim, so that a host can show how full it is.
const CONTEXT_WINDOW: u64 = 128_000;

/// The longest answer that the built-in models claim.
const MAX_OUTPUT_TOKENS: u64 = 16_000;

const SCRIPT: &str = "script";

/// The provider.
pub(crate) struct Builtin;

impl Builtin {
    fn rows() -> [ModelInfo; 2] {
        [("echo", "Echo", false), (SCRIPT, "Script", true)].map(|(id, name, reasoning)| {
            let config = ModelConfig {
                name: Some(name.to_owned()),
                context_window: Some(CONTEXT_WINDOW),
                max_output_tokens: Some(MAX_OUTPUT_TOKENS),
                reasoning,
                ..ModelConfig::new(id)
            };
            config.info(BUILTIN_PROVIDER)
        })
    }
}

#[async_trait]
impl Provider for Builtin {
    fn id(&self) -> &str {
        BUILTIN_PROVIDER
    }

    async fn models(&self) -> Vec<ModelInfo> {
        Self::rows().into()
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        if request.model == SCRIPT { script::stream(&request) } else { echo::stream(&request) }
    }
}
