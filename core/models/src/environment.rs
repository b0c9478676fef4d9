//! What the machine has when nothing is configured.
//!
//! Neighbours: config, discover, http, registry.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use raddle_protocol::{ModelInfo, ModelRef};

use crate::config::{ProviderConfig, TimeLimits};
use crate::discover::list;
use crate::http::{Endpoint, Http};
use crate::registry::Models;

/// How long a local server may take to say that it is there. Later it counts as absent.
pub const PROBE_TIME_MAX: Duration = Duration::from_millis(300);

/// Where OpenAI is, unless `OPENAI_BASE_URL` says otherwise.
const OPENAI_BASE_URL: &str = "https://api.openai.com/v1";

/// Where local servers listen, and what their provider is called; the first that answers gives the default model.
const LOCAL_SERVERS: &[(&str, &str)] = &[
    ("ollama", "http://127.0.0.1:11434/v1"),
    ("llamacpp", "http://127.0.0.1:8080/v1"),
    ("lmstudio", "http://127.0.0.1:1234/v1"),
    ("vllm", "http://127.0.0.1:8000/v1"),
];

/// OpenAI's models that make a good default, the best first. It lists dozens, and in no order.
const OPENAI_DEFAULTS: &[&str] = &["gpt-5-mini", "gpt-4.1-mini", "gpt-4o-mini"];

/// What [`Models::from_environment`] found.
#[derive(Clone, Debug)]
pub struct FoundModels {
    /// The models.
    pub models: Models,
    /// The one to use when nobody has chosen; nothing when only the built-in models are there.
    pub default: Option<ModelRef>,
}

impl Models {
    /// What the machine has, without any configuration.
    ///
    /// With `OPENAI_API_KEY` this is the provider `openai` at `OPENAI_BASE_URL`, else at OpenAI's address, and the
    /// default is `RADDLE_MODEL`, else one that the provider lists. Without, the usual ports of Ollama, llama.cpp, LM
    /// Studio and vLLM on this machine are tried, all at once and for at most [`PROBE_TIME_MAX`]; those that answer with
    /// models become `ollama`, `llamacpp`, `lmstudio`, `vllm`. `RADDLE_MODEL` may then name one of their models, too.
    ///
    /// `lookup` gives an environment variable. A server that lists its models is asked here, so this can take as long
    /// as [`DISCOVERY_TIME_MAX`](crate::DISCOVERY_TIME_MAX) when there is a key and no `RADDLE_MODEL`.
    pub async fn from_environment(
        lookup: impl Fn(&str) -> Option<String> + Send,
        limits: TimeLimits,
    ) -> FoundModels {
        let get = |name| lookup(name).filter(|value| !value.trim().is_empty());
        let wanted = get("RADDLE_MODEL");
        let key = get("OPENAI_API_KEY");
        let base = get("OPENAI_BASE_URL").unwrap_or_else(|| OPENAI_BASE_URL.to_owned());
        drop(lookup);
        let http = Arc::new(Http::new(limits));
        match key {
            Some(key) => {
                let config =
                    ProviderConfig { api_key: Some(key.into()), ..ProviderConfig::new("openai", base) };
                from_key(config, wanted, &http).await
            }
            None => from_local(LOCAL_SERVERS, wanted, &http).await,
        }
    }
}

async fn from_key(config: ProviderConfig, wanted: Option<String>, http: &Arc<Http>) -> FoundModels {
    let provider = config.id.clone();
    let models = Models::with_http(vec![config], http);
    let default = match wanted {
        Some(id) => {
            // Both `openai/gpt-5` and `gpt-5` are what people write.
            let id = id.strip_prefix("openai/").unwrap_or(&id);
            Some(ModelRef::new(provider, id))
        }
        None => {
            let rows: Vec<ModelInfo> =
                models.list().await.into_iter().filter(|row| row.provider == provider).collect();
            let good = OPENAI_DEFAULTS.iter().find_map(|id| rows.iter().find(|row| row.id == *id));
            good.or_else(|| rows.iter().find(|row| !row.hidden)).map(|row| ModelRef::new(&provider, &row.id))
        }
    };
    FoundModels { models, default }
}

async fn from_local(servers: &[(&str, &str)], wanted: Option<String>, http: &Arc<Http>) -> FoundModels {
    let probes = servers.iter().map(|(id, base)| async move {
        let endpoint = Endpoint::parse(base).ok()?;
        let rows = tokio::time::timeout(PROBE_TIME_MAX, list(http, &endpoint, None, id)).await.ok()?.ok()?;
        (!rows.is_empty()).then(|| (ProviderConfig::new(*id, *base), rows))
    });
    let found: Vec<(ProviderConfig, Vec<ModelInfo>)> = join_all(probes).await.into_iter().flatten().collect();
    let rows = || found.iter().flat_map(|(_, rows)| rows);
    let reference = |row: &ModelInfo| ModelRef::new(&row.provider, &row.id);
    let named = |row: &&ModelInfo| {
        wanted.as_deref().is_some_and(|name| name == row.id || name == reference(row).to_string())
    };
    let default = rows().find(named).or_else(|| rows().find(|row| !row.hidden)).map(reference);
    let configs = found.iter().map(|(config, _)| config.clone()).collect();
    FoundModels { models: Models::with_http(configs, http), default }
}

#[cfg(test)]
#[path = "environment/tests.rs"]
mod tests;
