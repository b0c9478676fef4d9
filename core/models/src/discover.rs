//! Asking a server which models it has.
//!
//! Neighbours: config, error, http, secret.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use raddle_protocol::ModelInfo;
use serde::Deserialize;

use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::http::{Endpoint, Http};
use crate::secret::Secret;

/// How long a server may take to name its models. At it there are none, and the next call asks again.
pub const DISCOVERY_TIME_MAX: Duration = Duration::from_secs(5);

/// Models that are taken from one server; further ones are left out, with a warning in the log.
pub const DISCOVERED_MODELS_MAX: usize = 2_000;

/// Bytes that a list of models may have; a larger one counts as none.
const LIST_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Parts of a model's name that show that it holds no conversation. Such models are listed hidden.
const NO_CHAT_WORDS: &[&str] = &[
    "embed",
    "whisper",
    "tts",
    "dall-e",
    "moderation",
    "transcribe",
    "realtime",
    "rerank",
    "image",
    "sora",
    "davinci-002",
    "babbage",
];

/// What one attempt comes to: the models, or nothing after a warning.
type Flight = Shared<BoxFuture<'static, Option<Arc<[ModelInfo]>>>>;

/// The models of one server, asked for once.
pub(crate) struct Discovery {
    provider: Arc<str>,
    http: Arc<Http>,
    endpoint: Endpoint,
    key: Option<Secret>,
    /// The attempt that runs or has succeeded. All that ask meanwhile wait for the same one.
    flight: Mutex<Option<Flight>>,
}

impl Discovery {
    pub(crate) fn new(provider: &str, http: Arc<Http>, endpoint: Endpoint, key: Option<Secret>) -> Self {
        Self { provider: provider.into(), http, endpoint, key, flight: Mutex::new(None) }
    }

    /// The server's models; nothing when it could not say.
    pub(crate) async fn models(&self) -> Option<Arc<[ModelInfo]>> {
        let flight = self.flight.lock().get_or_insert_with(|| self.depart()).clone();
        let found = flight.clone().await;
        if found.is_none() {
            let mut slot = self.flight.lock();
            // Only the failed attempt is forgotten, not one that another caller has begun since.
            if slot.as_ref().is_some_and(|current| current.ptr_eq(&flight)) {
                *slot = None;
            }
        }
        found
    }

    fn depart(&self) -> Flight {
        let (provider, http) = (self.provider.clone(), self.http.clone());
        let (endpoint, key) = (self.endpoint.clone(), self.key.clone());
        async move {
            match tokio::time::timeout(DISCOVERY_TIME_MAX, list(&http, &endpoint, key.as_ref(), &provider)).await {
                Ok(Ok(models)) => Some(models.into()),
                Ok(Err(error)) => {
                    let error = error.map_message(|text| key.as_ref().map_or(text.to_owned(), |key| key.redact(text)));
                    tracing::warn!(%provider, %error, "the provider does not say which models it has");
                    None
                }
                Err(_) => {
                    tracing::warn!(%provider, limit = ?DISCOVERY_TIME_MAX, "the provider took too long to name its models");
                    None
                }
            }
        }
        .boxed()
        .shared()
    }
}

/// Fetches and reads `{endpoint}/models`.
pub(crate) async fn list(
    http: &Http,
    endpoint: &Endpoint,
    key: Option<&Secret>,
    provider: &str,
) -> Result<Vec<ModelInfo>, ModelError> {
    let document = http.get(endpoint, "models", key, LIST_BYTES_MAX).await?;
    let list: ModelList = serde_json::from_slice(&document).map_err(|error| ModelError::Malformed {
        message: format!("the list of models is not one: {error}"),
        retryable: true,
        source: Some(error.into()),
    })?;
    if list.data.len() > DISCOVERED_MODELS_MAX {
        tracing::warn!(
            provider,
            models = list.data.len(),
            "only the first {DISCOVERED_MODELS_MAX} models are listed"
        );
    }
    Ok(list.data.into_iter().take(DISCOVERED_MODELS_MAX).map(|row| row.info(provider)).collect())
}

#[derive(Deserialize)]
struct ModelList {
    data: Vec<ModelRow>,
}

/// A row, with the names under which servers give the size of the window.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ModelRow {
    id: String,
    name: Option<String>,
    /// OpenRouter.
    context_length: Option<u64>,
    /// vLLM.
    max_model_len: Option<u64>,
    /// LM Studio, Groq.
    max_context_length: Option<u64>,
    context_window: Option<u64>,
    meta: Option<ModelMeta>,
    architecture: Option<Architecture>,
}

/// llama.cpp. `n_ctx` is what it was started with, `n_ctx_train` what the model could take.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ModelMeta {
    n_ctx: Option<u64>,
    n_ctx_train: Option<u64>,
}

/// OpenRouter.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Architecture {
    input_modalities: Vec<String>,
}

impl ModelRow {
    fn info(self, provider: &str) -> ModelInfo {
        let meta = self.meta.unwrap_or_default();
        let context_window = [
            self.context_length,
            self.max_model_len,
            self.context_window,
            self.max_context_length,
            meta.n_ctx,
            meta.n_ctx_train,
        ];
        let lower = self.id.to_lowercase();
        let chats = !NO_CHAT_WORDS.iter().any(|word| lower.contains(word));
        let config = ModelConfig {
            id: self.id,
            name: self.name,
            context_window: context_window.into_iter().flatten().find(|tokens| *tokens > 0),
            images: self
                .architecture
                .is_some_and(|known| known.input_modalities.iter().any(|kind| kind == "image")),
            ..ModelConfig::default()
        };
        ModelInfo { hidden: !chats, ..config.info(provider) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_many_servers_are_read() {
        let json = r#"{"object":"list","data":[
            {"id":"a","context_length":10,"architecture":{"input_modalities":["text","image"]}},
            {"id":"b","max_model_len":20,"extra":{}},
            {"id":"c","meta":{"n_ctx_train":40,"n_ctx":30}},
            {"id":"text-embedding-3"}, {"id":"e","name":"E"}]}"#;
        let list: ModelList = serde_json::from_str(json).unwrap();
        let rows: Vec<ModelInfo> = list.data.into_iter().map(|row| row.info("p")).collect();
        assert_eq!(rows.iter().map(|row| row.context_window).collect::<Vec<_>>(), [10, 20, 30, 0, 0]);
        assert_eq!(rows.iter().map(|row| row.hidden).collect::<Vec<_>>(), [false, false, false, true, false]);
        assert!(rows[0].images && !rows[1].images);
        assert_eq!((rows[4].name.as_str(), rows[4].provider.as_str()), ("E", "p"));
    }
}
