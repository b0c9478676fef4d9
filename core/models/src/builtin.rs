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
                images: true,
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

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use crate::config::ModelsConfig;
    use crate::event::ModelEvent;
    use crate::registry::Models;
    use crate::request::{ImagePart, Message, ModelRequest};

    async fn say(model: &str, text: &str) -> String {
        let model = Models::new(ModelsConfig::default()).resolve(&model.parse().unwrap()).await.unwrap();
        let image = ImagePart { mime_type: "image/png".to_owned(), data: "AAAA".into() };
        let message = Message::User { text: text.to_owned(), images: vec![image] };
        let request = ModelRequest { messages: vec![message], ..ModelRequest::default() };
        let text = |event| match event {
            Ok(ModelEvent::Text(text)) => Some(text),
            _ => None,
        };
        model.stream(request).filter_map(async |event| text(event)).collect().await
    }

    #[tokio::test]
    async fn both_models_take_images() {
        assert_eq!(say("builtin/echo", "").await, "[1 image]");
        assert_eq!(say("builtin/echo", "What is it?").await, "What is it?");
        assert_eq!(say("builtin/script", "script: text A cat.").await, "A cat.");
    }
}
