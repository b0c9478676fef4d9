//! The one file that opens a connection.
//!
//! Neighbours: config, error, secret, wire.

use std::error::Error as _;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use raddle_protocol::TurnErrorKind;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, DATE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url, redirect};
use rustls::crypto::CryptoProvider;
use tokio::sync::OnceCell;

use crate::config::TimeLimits;
use crate::error::ModelError;
use crate::secret::Secret;
use crate::wire::fault::{self, ERROR_BODY_BYTES_MAX};

/// How long the body of an error may take; what has come by then is used.
const ERROR_BODY_TIME_MAX: Duration = Duration::from_secs(5);

/// Connections that are kept open to one host while nobody uses them; further ones are closed after use.
const IDLE_CONNECTIONS_MAX: usize = 32;

/// How long a connection is kept open while nobody uses it.
const IDLE_CONNECTION_TIME_MAX: Duration = Duration::from_secs(60);

/// After this much silence on a connection in use its other end is asked for a sign of life, so that a dead network
/// shows; unanswered for [`KEEP_ALIVE_ANSWER_MAX`], the connection breaks.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(30);

/// How long the answer to a keep-alive may take.
const KEEP_ALIVE_ANSWER_MAX: Duration = Duration::from_secs(20);

/// The body of an answer, as it arrives.
pub(crate) type BodyStream = Pin<Box<dyn Stream<Item = Result<Bytes, reqwest::Error>> + Send>>;

/// Where a provider's API begins.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    url: Url,
    /// Scheme, host and port: what messages show. The rest may hold what is nobody's business.
    pub(crate) origin: String,
}

impl Endpoint {
    /// # Errors
    ///
    /// Says what is wrong with the address.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Err("`apiEndpoint` is missing".to_owned());
        }
        let url = Url::parse(text.trim()).map_err(|error| format!("`apiEndpoint` is no address: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err("`apiEndpoint` must begin with http:// or https://".to_owned());
        }
        let origin = url.origin().ascii_serialization();
        Ok(Self { url, origin })
    }

    pub(crate) fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }

    /// The address of a resource below the endpoint; the endpoint's own query stays.
    fn join(&self, path: &str) -> Url {
        let mut url = self.url.clone();
        url.set_path(&format!("{}/{path}", self.url.path().trim_end_matches('/')));
        url
    }

    /// Whether it is this machine, without TLS.
    fn is_plain_local(&self) -> bool {
        let host = self.host().trim_start_matches('[').trim_end_matches(']');
        let local = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        local && self.url.scheme() == "http"
    }
}

/// The connections of all providers.
///
/// Nothing is built before it is needed: reading the system's certificates takes milliseconds that opening the engine
/// does not have. Servers on this machine have a client of their own, which reads none and passes no proxy.
#[derive(Debug, Default)]
pub(crate) struct Http {
    limits: TimeLimits,
    outside: OnceCell<Client>,
    local: OnceCell<Client>,
}

impl Http {
    pub(crate) fn new(limits: TimeLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Sends a request for a reply and waits for the head of the answer.
    ///
    /// # Errors
    ///
    /// Whatever kept it from being a success; a provider's own error is read and classified.
    pub(crate) async fn post(
        &self,
        endpoint: &Endpoint,
        path: &str,
        key: Option<&Secret>,
        body: Vec<u8>,
    ) -> Result<BodyStream, ModelError> {
        let request = self
            .client(endpoint)
            .await?
            .post(endpoint.join(path))
            .headers(headers(key)?)
            .header(ACCEPT, "text/event-stream, application/json")
            .header(CONTENT_TYPE, "application/json")
            .body(body);
        let response = request.send().await.map_err(|error| self.unreachable(endpoint, error))?;
        Ok(Box::pin(success(endpoint, response).await?.bytes_stream()))
    }

    /// Fetches a document of at most `bytes_max`. The caller bounds the time.
    ///
    /// # Errors
    ///
    /// As [`post`](Self::post), and when the document is larger.
    pub(crate) async fn get(
        &self,
        endpoint: &Endpoint,
        path: &str,
        key: Option<&Secret>,
        bytes_max: usize,
    ) -> Result<Vec<u8>, ModelError> {
        let request = self
            .client(endpoint)
            .await?
            .get(endpoint.join(path))
            .headers(headers(key)?)
            .header(ACCEPT, "application/json");
        let response = request.send().await.map_err(|error| self.unreachable(endpoint, error))?;
        let mut response = success(endpoint, response).await?;
        let mut document = Vec::new();
        while let Some(bytes) = response.chunk().await.map_err(|error| broken(endpoint, error))? {
            if document.len() + bytes.len() > bytes_max {
                return Err(ModelError::Malformed {
                    message: format!("{} answered with more than {bytes_max} bytes", endpoint.origin),
                    retryable: false,
                    source: None,
                });
            }
            document.extend_from_slice(&bytes);
        }
        Ok(document)
    }

    async fn client(&self, endpoint: &Endpoint) -> Result<&Client, ModelError> {
        let limits = self.limits;
        if endpoint.is_plain_local() {
            return self.local.get_or_try_init(|| async { build(limits, Reach::Local) }).await;
        }
        let build = || async {
            // It reads a few hundred files: not something to do on a thread that others wait for.
            match tokio::task::spawn_blocking(move || build(limits, Reach::Outside)).await {
                Ok(client) => client,
                Err(error) => Err(cannot_build(error.into())),
            }
        };
        self.outside.get_or_try_init(build).await
    }

    fn unreachable(&self, endpoint: &Endpoint, error: reqwest::Error) -> ModelError {
        if !error.is_connect() {
            return broken(endpoint, error);
        }
        let message = if error.is_timeout() {
            format!("connecting to {} took longer than {:?}", endpoint.origin, self.limits.connect)
        } else {
            format!("could not connect to {}: {}", endpoint.origin, root_cause(&error))
        };
        ModelError::Network { message, source: error.without_url().into() }
    }
}

/// A connection that broke after it was there.
pub(crate) fn broken(endpoint: &Endpoint, error: reqwest::Error) -> ModelError {
    ModelError::Network {
        message: format!("the connection to {} broke: {}", endpoint.origin, root_cause(&error)),
        source: error.without_url().into(),
    }
}

/// The innermost error: the outer ones only say that something failed.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    if error.source().is_none() { "it ended too early".to_owned() } else { cause.to_string() }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Local,
    Outside,
}

/// Builds a client with a crypto provider of its own, so that the host's choice for its process is not touched.
fn build(limits: TimeLimits, reach: Reach) -> Result<Client, ModelError> {
    let crypto = Arc::new(rustls::crypto::ring::default_provider());
    let tls = tls(crypto, reach).map_err(|error| cannot_build(error.into()))?;
    let mut builder = Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(concat!("raddle/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(limits.connect)
        .tcp_nodelay(true)
        .tcp_keepalive(KEEP_ALIVE_EVERY)
        .http2_keep_alive_interval(KEEP_ALIVE_EVERY)
        .http2_keep_alive_timeout(KEEP_ALIVE_ANSWER_MAX)
        .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
        .pool_idle_timeout(IDLE_CONNECTION_TIME_MAX)
        // A key must not follow a redirect to somewhere else, and a POST seldom survives one.
        .redirect(redirect::Policy::none());
    if reach == Reach::Local {
        builder = builder.no_proxy();
    }
    builder.build().map_err(|error| cannot_build(error.into()))
}

fn tls(crypto: Arc<CryptoProvider>, reach: Reach) -> Result<rustls::ClientConfig, rustls::Error> {
    let builder =
        rustls::ClientConfig::builder_with_provider(crypto.clone()).with_safe_default_protocol_versions()?;
    let mut config = match reach {
        Reach::Local => builder.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth(),
        Reach::Outside => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(rustls_platform_verifier::Verifier::new(crypto)?))
            .with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn cannot_build(source: Box<dyn std::error::Error + Send + Sync>) -> ModelError {
    ModelError::Request {
        kind: TurnErrorKind::Other,
        message: format!("no HTTPS client can be made on this machine: {source}"),
        source: Some(source),
    }
}

fn headers(key: Option<&Secret>) -> Result<HeaderMap, ModelError> {
    let mut headers = HeaderMap::new();
    if let Some(key) = key {
        let mut value =
            HeaderValue::from_str(&format!("Bearer {}", key.expose().trim())).map_err(|error| {
                ModelError::Request {
                    kind: TurnErrorKind::Auth,
                    message: "the API key holds characters that no key can have".to_owned(),
                    source: Some(error.into()),
                }
            })?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    Ok(headers)
}

/// Lets a success pass and turns anything else into an error.
async fn success(endpoint: &Endpoint, mut response: Response) -> Result<Response, ModelError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    if status.is_redirection() && status != StatusCode::NOT_MODIFIED {
        return Err(ModelError::Malformed {
            message: format!(
                "{} answered with a redirect (HTTP {status}); check `apiEndpoint`",
                endpoint.origin
            ),
            retryable: false,
            source: None,
        });
    }
    let retry_after = retry_after(response.headers());
    let mut body = Vec::new();
    let read = async {
        while body.len() < ERROR_BODY_BYTES_MAX {
            // A body that breaks off still says what it says.
            let Ok(Some(bytes)) = response.chunk().await else { return };
            body.extend_from_slice(&bytes);
        }
    };
    // At the limit the part that came is used.
    let _ = tokio::time::timeout(ERROR_BODY_TIME_MAX, read).await;
    body.truncate(ERROR_BODY_BYTES_MAX);
    Err(fault::from_response(status.as_u16(), retry_after, &String::from_utf8_lossy(&body)))
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
    if let Some(millis) =
        headers.get("retry-after-ms").and_then(text).and_then(|text| text.parse::<f64>().ok())
    {
        return Duration::try_from_secs_f64(millis / 1000.0).ok();
    }
    // A date is a date by the server's clock, so it is compared with that where the server says what it shows.
    let now = headers
        .get(DATE)
        .and_then(text)
        .and_then(|date| jiff::fmt::rfc2822::parse(&date).ok())
        .map_or_else(jiff::Timestamp::now, |date| date.timestamp());
    fault::parse_retry_after(&headers.get(RETRY_AFTER).and_then(text)?, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_checked_and_joined() {
        let join = |text: &str| Endpoint::parse(text).unwrap().join("models").to_string();
        assert_eq!(join("http://h:1/v1"), "http://h:1/v1/models");
        assert_eq!(join("https://h/v1//"), "https://h/v1/models");
        assert_eq!(join("https://h"), "https://h/models");
        assert_eq!(join("https://h/d?api-version=1"), "https://h/d/models?api-version=1");
        assert_eq!(Endpoint::parse("https://user:word@h/v1?key=k").unwrap().origin, "https://h");
        for bad in ["", " ", "h:1", "file:///x", "not an address"] {
            assert!(Endpoint::parse(bad).is_err(), "{bad}");
        }
        let local = |text: &str| Endpoint::parse(text).unwrap().is_plain_local();
        assert!(local("http://localhost:1/v1") && local("http://127.0.0.1:1") && local("http://[::1]:1/v1"));
        assert!(
            !local("https://127.0.0.1:1")
                && !local("http://localhost.example/")
                && !local("http://10.0.0.1/")
        );
    }

    #[test]
    fn keys_become_sensitive_headers() {
        let headers = headers(Some(&Secret::new(" sk-1 \n"))).unwrap();
        assert!(headers[AUTHORIZATION].is_sensitive());
        assert_eq!(headers[AUTHORIZATION], "Bearer sk-1");
        let error = super::headers(Some(&Secret::new("sk-secret\nx"))).unwrap_err();
        assert_eq!(error.kind(), TurnErrorKind::Auth);
        assert!(!format!("{error} {error:?}").contains("sk-secret"));
    }

    #[test]
    fn a_date_to_retry_at_is_read_by_the_servers_clock() {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_static("Wed, 21 Oct 2015 07:28:00 GMT"));
        headers.insert(DATE, HeaderValue::from_static("Wed, 21 Oct 2015 07:27:30 GMT"));
        assert_eq!(retry_after(&headers), Some(Duration::from_secs(30)));
        headers.insert("retry-after-ms", HeaderValue::from_static("1500"));
        assert_eq!(retry_after(&headers), Some(Duration::from_millis(1500)));
    }
}
