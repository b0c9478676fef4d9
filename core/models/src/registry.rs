//! All models of the process, by their refs.
//!
//! Neighbours: builtin, config, error, event, http, openai, provider, request.

use std::fmt;
use std::sync::Arc;

use futures_util::future::join_all;
use parking_lot::RwLock;
use raddle_protocol::{ModelInfo, ModelRef};

use crate::builtin::Builtin;
use crate::config::{BUILTIN_PROVIDER, ModelsConfig, ProviderConfig, ProviderKind};
use crate::error::{KNOWN_MODELS_MAX, ModelsError};
use crate::event::ModelStream;
use crate::http::Http;
use crate::openai::OpenAiProvider;
use crate::provider::Provider;
use crate::request::ModelRequest;

/// The models that there are. Cheap to clone; all clones are one registry with one pool of connections.
///
/// Making one opens no file and no connection.
#[derive(Clone)]
pub struct Models {
    inner: Arc<Inner>,
}

struct Inner {
    slots: RwLock<Vec<Slot>>,
}

/// A provider under its id.
#[derive(Clone)]
struct Slot {
    id: String,
    /// What is wrong with its settings, when it cannot be used. It stays in its place, so that whoever asks for one of
    /// its models is told why there are none.
    provider: Result<Arc<dyn Provider>, ModelsError>,
}

/// A model that can be asked.
#[derive(Clone)]
pub struct ResolvedModel {
    /// What is known of it.
    pub info: ModelInfo,
    provider: Arc<dyn Provider>,
}

impl ResolvedModel {
    /// Its ref.
    pub fn name(&self) -> ModelRef {
        ModelRef::new(self.info.provider.clone(), self.info.id.clone())
    }

    /// Asks the model. Returns at once: the work is done while the stream is polled, which needs a tokio runtime with
    /// its clock and its network. `request.model` is filled in, and a model that takes no images gets the request
    /// [without them](ModelRequest::without_images).
    pub fn stream(&self, mut request: ModelRequest) -> ModelStream {
        request.model.clone_from(&self.info.id);
        self.provider.stream(if self.info.images { request } else { request.without_images() })
    }
}

impl fmt::Debug for ResolvedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResolvedModel").field("info", &self.info).finish_non_exhaustive()
    }
}

impl fmt::Debug for Models {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Models").field("providers", &self.provider_ids()).finish()
    }
}

impl Models {
    /// The built-in models and those of the configured providers. Never fails: what is wrong with a provider is told to
    /// whoever asks for one of its models, and to the log.
    pub fn new(config: ModelsConfig) -> Self {
        let http = Arc::new(Http::new(config.time_limits));
        Self::with_http(config.providers, &http)
    }

    /// [`new`](Self::new) on connections that exist already.
    pub(crate) fn with_http(providers: Vec<ProviderConfig>, http: &Arc<Http>) -> Self {
        let builtin: Arc<dyn Provider> = Arc::new(Builtin);
        let mut slots = vec![Slot { id: BUILTIN_PROVIDER.to_owned(), provider: Ok(builtin) }];
        for config in providers {
            let id = config.id.clone();
            if slots.iter().any(|slot| slot.id == id) {
                tracing::warn!(provider = %id, "a provider was left out: its id is taken");
                continue;
            }
            let provider = open(config, http);
            if let Err(error) = &provider {
                tracing::warn!(provider = %id, %error, "a provider cannot be used");
            }
            slots.push(Slot { id, provider });
        }
        Self { inner: Arc::new(Inner { slots: RwLock::new(slots) }) }
    }

    /// Adds a provider of another make, such as an extension's.
    ///
    /// # Errors
    ///
    /// [`ModelsError::Config`] when its id is taken, empty, or holds a slash.
    pub fn add_provider(&self, provider: Arc<dyn Provider>) -> Result<(), ModelsError> {
        let id = provider.id().to_owned();
        let refuse =
            |message: &str| ModelsError::Config { provider: id.clone(), message: message.to_owned() };
        check_id(&id)?;
        let mut slots = self.inner.slots.write();
        if slots.iter().any(|slot| slot.id == id) {
            return Err(refuse("this id is taken"));
        }
        slots.push(Slot { id: id.clone(), provider: Ok(provider) });
        Ok(())
    }

    /// Every model of every provider: the built-in ones, then the providers in their order.
    ///
    /// Providers whose models are not configured are asked for them, all at once, each for at most
    /// [`DISCOVERY_TIME_MAX`](crate::DISCOVERY_TIME_MAX) and only until it has answered once. One that does not answer has
    /// no rows, which the log says, and is asked again by the next call.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn list(&self) -> Vec<ModelInfo> {
        let slots = self.inner.slots.read().clone();
        let asked =
            slots.iter().filter_map(|slot| slot.provider.as_ref().ok()).map(|provider| provider.models());
        join_all(asked).await.into_iter().flatten().collect()
    }

    /// Finds a model. A provider that cannot name its models is believed to have every model that it is asked for.
    ///
    /// # Errors
    ///
    /// [`ModelsError::UnknownProvider`], [`ModelsError::UnknownModel`], and [`ModelsError::Config`] when the
    /// provider's settings cannot be used.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn resolve(&self, model: &ModelRef) -> Result<ResolvedModel, ModelsError> {
        let slot = self.inner.slots.read().iter().find(|slot| slot.id == model.provider).cloned();
        let Some(slot) = slot else {
            return Err(ModelsError::UnknownProvider {
                provider: model.provider.clone(),
                known: self.provider_ids(),
            });
        };
        let provider = slot.provider?;
        if let Some(info) = provider.find(&model.id).await {
            return Ok(ResolvedModel { info, provider });
        }
        let rows = provider.models().await;
        let name = |row: ModelInfo| ModelRef::new(row.provider, row.id).to_string();
        let known = rows.into_iter().take(KNOWN_MODELS_MAX).map(name).collect();
        Err(ModelsError::UnknownModel { model: model.clone(), known })
    }

    fn provider_ids(&self) -> Vec<String> {
        self.inner.slots.read().iter().map(|slot| slot.id.clone()).collect()
    }
}

fn open(config: ProviderConfig, http: &Arc<Http>) -> Result<Arc<dyn Provider>, ModelsError> {
    check_id(&config.id)?;
    let id = config.id.clone();
    let refuse = |message: String| ModelsError::Config { provider: id.clone(), message };
    match config.kind {
        ProviderKind::OpenaiCompat => {
            let provider = OpenAiProvider::new(config, http.clone()).map_err(refuse)?;
            Ok(Arc::new(provider))
        }
        ProviderKind::OpenaiResponses
        | ProviderKind::Anthropic
        | ProviderKind::Gemini
        | ProviderKind::Unknown => {
            Err(refuse("this `type` is not spoken yet; `openai-compat` is".to_owned()))
        }
    }
}

fn check_id(id: &str) -> Result<(), ModelsError> {
    if id.is_empty() || id.contains('/') {
        let message = "a provider's `id` must not be empty or hold a slash".to_owned();
        return Err(ModelsError::Config { provider: id.to_owned(), message });
    }
    Ok(())
}
