//! A provider that speaks OpenAI's chat completions: the format from [`wire`](crate::wire), the connection from
//! [`http`](crate::http), and the list of its models.
//!
//! Neighbours: config, discover, error, event, http, provider, request, secret, wire.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::Stream;
use raddle_protocol::{ModelInfo, TurnErrorKind};
use tokio::task::spawn_blocking;
use tokio::time::{Sleep, sleep};

use crate::config::{ModelConfig, ProviderConfig};
use crate::discover::Discovery;
use crate::error::ModelError;
use crate::event::{ModelEvent, ModelStream};
use crate::http::{BodyStream, Endpoint, Http, broken};
use crate::provider::Provider;
use crate::request::ModelRequest;
use crate::secret::Secret;
use crate::wire::openai_chat::{Dialect, ReplyDecoder, encode};

/// How long `Finish` waits for the end of the body behind it, so that the connection can serve the next request: it
/// nearly always comes in the same packet, and another connection would cost several round trips. At the limit
/// `Finish` is given and the connection closed.
const DRAIN_TIME_MAX: Duration = Duration::from_millis(25);

/// The provider.
pub(crate) struct OpenAiProvider {
    config: ProviderConfig,
    endpoint: Endpoint,
    http: Arc<Http>,
    discovery: Option<Discovery>,
}

impl OpenAiProvider {
    /// # Errors
    ///
    /// Says what is wrong with the settings.
    pub(crate) fn new(config: ProviderConfig, http: Arc<Http>) -> Result<Self, String> {
        let endpoint = Endpoint::parse(&config.api_endpoint)?;
        let discovery = (config.models.is_empty() || config.discover_models)
            .then(|| Discovery::new(&config.id, http.clone(), endpoint.clone(), config.api_key.clone()));
        Ok(Self { config, endpoint, http, discovery })
    }

    /// The models from the settings, then those that the server names besides; and whether the server was asked in
    /// vain.
    async fn known(&self) -> (Vec<ModelInfo>, bool) {
        let mut rows: Vec<ModelInfo> =
            self.config.models.iter().map(|model| model.info(&self.config.id)).collect();
        let Some(discovery) = &self.discovery else { return (rows, false) };
        let Some(found) = discovery.models().await else { return (rows, true) };
        for row in found.iter() {
            if !rows.iter().any(|known| known.id == row.id) {
                rows.push(row.clone());
            }
        }
        (rows, false)
    }

    fn dialect(&self, model: &str) -> Dialect {
        let known = Dialect::of_host(self.endpoint.host());
        let configured = self.config.models.iter().find(|config| config.id == model);
        Dialect {
            max_tokens_field: configured
                .and_then(|model| model.max_tokens_field)
                .unwrap_or(known.max_tokens_field),
            reasoning_replay: configured
                .and_then(|model| model.reasoning_replay)
                .unwrap_or(known.reasoning_replay),
        }
    }

    /// What an answer may take: the least of what is asked for, what the model gives and what the provider may cost.
    fn output_limit(&self, request: &ModelRequest) -> Option<u64> {
        let model = self.config.models.iter().find(|config| config.id == request.model);
        let limits = [request.max_output_tokens, self.config.max_output_tokens];
        let asked = limits.into_iter().flatten().min()?;
        Some(model.and_then(|model| model.max_output_tokens).map_or(asked, |most| asked.min(most)))
    }
}

#[async_trait]
impl Provider for OpenAiProvider {
    fn id(&self) -> &str {
        &self.config.id
    }

    async fn models(&self) -> Vec<ModelInfo> {
        self.known().await.0
    }

    async fn find(&self, id: &str) -> Option<ModelInfo> {
        let (rows, unlisted) = self.known().await;
        // Gateways without a list exist, and a server that is down has none either. The name is tried: the error that
        // the server then gives says more than that its list is missing.
        let tried = || unlisted.then(|| ModelConfig::new(id).info(&self.config.id));
        rows.into_iter().find(|info| info.id == id).or_else(tried)
    }

    fn stream(&self, mut request: ModelRequest) -> ModelStream {
        request.max_output_tokens = self.output_limit(&request);
        let dialect = self.dialect(&request.model);
        let (http, endpoint, key) = (self.http.clone(), self.endpoint.clone(), self.config.api_key.clone());
        let connect = {
            let (endpoint, key) = (endpoint.clone(), key.clone());
            async move {
                let body = body(request, dialect).await?;
                http.post(&endpoint, "chat/completions", key.as_ref(), body).await
            }
        };
        Box::pin(ReplyStream {
            endpoint,
            key,
            phase: Phase::Connecting(Box::pin(connect)),
            decoder: ReplyDecoder::default(),
            ready: VecDeque::new(),
            failed: None,
        })
    }
}

/// Writes the body. The largest images take a tenth of a second, which is too long for a thread that others wait for.
async fn body(request: ModelRequest, dialect: Dialect) -> Result<Vec<u8>, ModelError> {
    if !request.has_images() {
        return encode(&request, dialect);
    }
    spawn_blocking(move || encode(&request, dialect)).await.unwrap_or_else(|error| {
        Err(ModelError::Request {
            kind: TurnErrorKind::Other,
            message: "the request's body was not written".to_owned(),
            source: Some(error.into()),
        })
    })
}

/// A reply on its way.
struct ReplyStream {
    endpoint: Endpoint,
    key: Option<Secret>,
    phase: Phase,
    decoder: ReplyDecoder,
    /// Events that were decoded and not yet taken: one read often holds several.
    ready: VecDeque<ModelEvent>,
    /// What ends the stream once `ready` is empty.
    failed: Option<ModelError>,
}

enum Phase {
    Connecting(Pin<Box<dyn Future<Output = Result<BodyStream, ModelError>> + Send>>),
    Reading(BodyStream),
    /// The reply is decoded to its end; the end of the body is waited for before `Finish` is given.
    Draining(BodyStream, Pin<Box<Sleep>>),
    Over,
}

impl ReplyStream {
    /// Takes what the body gave; nothing is its end.
    fn take(&mut self, read: Option<Result<bytes::Bytes, reqwest::Error>>) {
        let outcome = match read {
            Some(Ok(bytes)) => self.decoder.push(&bytes, &mut self.ready),
            None => self.decoder.end(&mut self.ready),
            Some(Err(error)) => {
                // A reply whose end was seen is whole, however its connection ended.
                self.decoder.end(&mut self.ready).map_err(|_| broken(&self.endpoint, error))
            }
        };
        self.failed = outcome.err();
    }
}

impl Stream for ReplyStream {
    type Item = Result<ModelEvent, ModelError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Phase::Draining(body, deadline) = &mut this.phase
                && matches!(this.ready.front(), Some(ModelEvent::Finish(_)))
            {
                // Servers say nothing after the end, so the first thing that comes is taken for it.
                if body.as_mut().poll_next(cx).is_pending() {
                    ready!(deadline.as_mut().poll(cx));
                }
                this.phase = Phase::Over;
            }
            if let Some(event) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if let Some(error) = this.failed.take() {
                this.phase = Phase::Over;
                let error = match &this.key {
                    Some(key) => error.map_message(|text| key.redact(text)),
                    None => error,
                };
                return Poll::Ready(Some(Err(error)));
            }
            match &mut this.phase {
                Phase::Connecting(connect) => match ready!(connect.as_mut().poll(cx)) {
                    Ok(body) => this.phase = Phase::Reading(body),
                    Err(error) => this.failed = Some(error),
                },
                Phase::Reading(body) => {
                    let read = ready!(body.as_mut().poll_next(cx));
                    let ended = !matches!(read, Some(Ok(_)));
                    this.take(read);
                    if ended {
                        this.phase = Phase::Over;
                    } else if this.decoder.is_finished()
                        && let Phase::Reading(body) = std::mem::replace(&mut this.phase, Phase::Over)
                    {
                        this.phase = Phase::Draining(body, Box::pin(sleep(DRAIN_TIME_MAX)));
                    }
                }
                Phase::Draining(..) | Phase::Over => return Poll::Ready(None),
            }
        }
    }
}
