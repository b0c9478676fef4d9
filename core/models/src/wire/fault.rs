//! Providers' errors, in the many shapes that they come in, and what class each belongs to.
//!
//! Neighbours: error.

use std::time::Duration;

use raddle_protocol::TurnErrorKind;
use raddle_protocol::limits::cut_chars;
use serde_json::Value;

use crate::error::ModelError;

/// Bytes of an error's body that are read, and characters of a message that are kept; the rest is cut.
pub(crate) const ERROR_BODY_BYTES_MAX: usize = 64 * 1024;

/// What a provider said about its failure.
#[derive(Debug, Default, PartialEq, Eq)]
struct Fault {
    message: String,
    /// `code`, a number as digits.
    code: Option<String>,
    /// `type` or `status`: a word beside the code.
    word: Option<String>,
}

/// The error of an answer whose status is not a success. `body` may be cut, HTML, or nothing.
pub(crate) fn from_response(status: u16, retry_after: Option<Duration>, body: &str) -> ModelError {
    let fault =
        serde_json::from_str::<Value>(body).ok().and_then(|value| find(&value)).unwrap_or_else(|| {
            // A page of HTML says nothing that its status does not; a plain line may.
            let text = body.trim();
            let plain = !text.starts_with(['<', '{', '[']) && text.len() <= 1_000;
            Fault { message: if plain { text.to_owned() } else { String::new() }, ..Fault::default() }
        });
    build(Some(status), retry_after, fault)
}

/// The error that a provider sent as (part of) a reply under status 200: the text of the JSON value that holds it.
pub(crate) fn from_reply(json: &str) -> ModelError {
    let fault = serde_json::from_str::<Value>(json).ok().and_then(|value| find(&value));
    build(None, None, fault.unwrap_or_else(|| Fault { message: json.trim().to_owned(), ..Fault::default() }))
}

/// Finds the error in a value: the error itself, or what wraps it.
fn find(value: &Value) -> Option<Fault> {
    match value {
        Value::String(text) if !text.trim().is_empty() => {
            Some(Fault { message: text.trim().to_owned(), ..Fault::default() })
        }
        Value::Array(list) => list.iter().find_map(find),
        Value::Object(fields) => {
            if let Some(inner) = fields.get("error").and_then(find) {
                // `{"error": "a sentence", "code": …}` keeps its code outside.
                let code = inner.code.or_else(|| fields.get("code").and_then(scalar));
                return Some(Fault { code, ..inner });
            }
            let message = ["message", "detail", "msg", "error_description", "errors"]
                .iter()
                .find_map(|name| fields.get(*name).and_then(find))
                .map(|inner| inner.message);
            let code = fields.get("code").and_then(scalar);
            let word = ["type", "status"].iter().find_map(|name| fields.get(*name).and_then(scalar));
            if message.is_none() && code.is_none() {
                return None;
            }
            let mut message = message.unwrap_or_default();
            // An aggregator's own message is often only that its provider failed; what that said lies here.
            if let Some(Value::String(raw)) = fields.get("metadata").and_then(|metadata| metadata.get("raw"))
            {
                message = format!("{message}: {}", raw.trim());
            }
            Some(Fault { message, code, word })
        }
        _ => None,
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn build(status: Option<u16>, retry_after: Option<Duration>, fault: Fault) -> ModelError {
    let (kind, retryable) = classify(status, &fault);
    let mut message = match (fault.message.is_empty(), status) {
        (false, Some(status)) => format!("HTTP {status}: {}", fault.message),
        (true, Some(status)) => format!("HTTP {status}{}", reason(status)),
        (false, None) => fault.message.clone(),
        (true, None) => "the provider reported an error without a message".to_owned(),
    };
    let code = fault.code.or(fault.word);
    if let Some(code) = &code
        && !message.contains(code.as_str())
    {
        message = format!("{message} (code {code})");
    }
    message.truncate(cut_chars(&message, ERROR_BODY_BYTES_MAX).len());
    ModelError::Provider { kind, message, code, status, retryable, retry_after }
}

/// The usual words for a status that came without any.
fn reason(status: u16) -> String {
    reqwest::StatusCode::from_u16(status)
        .ok()
        .and_then(|status| status.canonical_reason())
        .map(|reason| format!(" {reason}"))
        .unwrap_or_default()
}

/// Phrases by which servers say that a prompt is longer than the model takes. Lower case.
const OVERFLOW_PHRASES: &[&str] = &[
    "context_length_exceeded",
    "exceed_context_size",
    "context length",
    "context window",
    "context size",
    "maximum context",
    "maximum prompt length",
    "prompt is too long",
    "input is too long",
    "input length",
    "too many tokens",
    "token count",
    "reduce the length",
    "request_too_large",
];

/// Words by which servers say that an account, not a rate, is used up: waiting does not help.
const QUOTA_PHRASES: &[&str] = &[
    "insufficient_quota",
    "insufficient balance",
    "insufficient credits",
    "billing",
    "exceeded your current quota",
];

/// Words for a rate that was exceeded.
const RATE_PHRASES: &[&str] =
    &["rate_limit", "rate limit", "too_many_requests", "too many requests", "resource_exhausted"];

/// Words for a key that is missing, wrong or not allowed to do this.
const AUTH_PHRASES: &[&str] = &[
    "invalid_api_key",
    "incorrect api key",
    "invalid api key",
    "authentication_error",
    "unauthenticated",
    "unauthorized",
    "permission_denied",
    "permission_error",
];

/// Words for a request that will fail again just so.
const REFUSAL_PHRASES: &[&str] =
    &["invalid_request", "invalid_argument", "not_found", "model_not_found", "unsupported"];

/// The class of a fault, and whether the same request may succeed later.
fn classify(status: Option<u16>, fault: &Fault) -> (TurnErrorKind, bool) {
    let text = [Some(fault.message.as_str()), fault.code.as_deref(), fault.word.as_deref()]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" ")
        .to_lowercase();
    let says = |phrases: &[&str]| phrases.iter().any(|phrase| text.contains(phrase));
    // Within a stream, the code is often the status of an upstream answer.
    let status = status.or_else(|| {
        fault.code.as_deref().and_then(|code| code.parse().ok()).filter(|code| (400..600).contains(code))
    });

    // A server that is down may name whatever is down with it; then its account is not the matter.
    if status == Some(402) || (status.is_none_or(|status| status < 500) && says(QUOTA_PHRASES)) {
        return (TurnErrorKind::RateLimit, false);
    }
    if status == Some(429) || says(RATE_PHRASES) {
        return (TurnErrorKind::RateLimit, true);
    }
    // An overloaded server may well mention its context; only a refusal is about this request.
    if matches!(status, None | Some(400 | 413 | 422 | 500)) && says(OVERFLOW_PHRASES) {
        return (TurnErrorKind::ContextOverflow, false);
    }
    match status {
        Some(401 | 403) => (TurnErrorKind::Auth, false),
        Some(408 | 425 | 500..) => (TurnErrorKind::Provider, true),
        // A wrong key answered with 400 is Google's habit.
        Some(_) if says(AUTH_PHRASES) || text.contains("api key not valid") => (TurnErrorKind::Auth, false),
        Some(_) => (TurnErrorKind::Provider, false),
        None if says(AUTH_PHRASES) => (TurnErrorKind::Auth, false),
        None => (TurnErrorKind::Provider, !says(REFUSAL_PHRASES)),
    }
}

/// Reads a `Retry-After`: seconds, or an HTTP date that `now` is subtracted from. A date that has passed is zero.
pub(crate) fn parse_retry_after(value: &str, now: jiff::Timestamp) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let at = jiff::fmt::rfc2822::parse(value).ok()?.timestamp();
    Some(Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Status (0 for in a stream), body, and the class, retryability and message that must come of it.
    #[test]
    fn errors_are_classified() {
        use TurnErrorKind::{Auth, ContextOverflow, Provider, RateLimit};
        let cases: &[(u16, &str, TurnErrorKind, bool, &str)] = &[
            (
                401,
                r#"{"error":{"message":"Incorrect API key","code":"invalid_api_key"}}"#,
                Auth,
                false,
                "HTTP 401: Incorrect API key (code invalid_api_key)",
            ),
            (403, "", Auth, false, "HTTP 403 Forbidden"),
            (
                400,
                r#"[{"error":{"code":400,"message":"API key not valid.","status":"INVALID_ARGUMENT"}}]"#,
                Auth,
                false,
                "HTTP 400: API key not valid.",
            ),
            (429, r#"{"error":"slow down"}"#, RateLimit, true, "HTTP 429: slow down"),
            (
                429,
                r#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":null}}"#,
                RateLimit,
                false,
                "HTTP 429: You exceeded your current quota (code insufficient_quota)",
            ),
            (
                402,
                r#"{"error":{"message":"Insufficient Balance"}}"#,
                RateLimit,
                false,
                "HTTP 402: Insufficient Balance",
            ),
            (
                400,
                r#"{"error":{"message":"This model's maximum context length is 8192 tokens.","code":"context_length_exceeded"}}"#,
                ContextOverflow,
                false,
                "HTTP 400: This model's maximum context length is 8192 tokens. (code context_length_exceeded)",
            ),
            (
                400,
                r#"{"object":"error","message":"the prompt exceeds the available context size","code":400}"#,
                ContextOverflow,
                false,
                "HTTP 400: the prompt exceeds the available context size",
            ),
            (
                413,
                r#"{"error":{"message":"Request too large for model on tokens per minute","code":"rate_limit_exceeded"}}"#,
                RateLimit,
                true,
                "HTTP 413: Request too large for model on tokens per minute (code rate_limit_exceeded)",
            ),
            (400, r#"{"error":{"message":"bad tool schema"}}"#, Provider, false, "HTTP 400: bad tool schema"),
            (
                422,
                r#"{"detail":[{"loc":["body"],"msg":"field required"}]}"#,
                Provider,
                false,
                "HTTP 422: field required",
            ),
            (
                404,
                r#"{"error":{"message":"no such model","code":"model_not_found"}}"#,
                Provider,
                false,
                "HTTP 404: no such model (code model_not_found)",
            ),
            (502, "<html><body>Bad gateway</body></html>", Provider, true, "HTTP 502 Bad Gateway"),
            (503, "upstream is down", Provider, true, "HTTP 503: upstream is down"),
            (
                529,
                r#"{"error":{"type":"overloaded_error","message":"Overloaded"}}"#,
                Provider,
                true,
                "HTTP 529: Overloaded (code overloaded_error)",
            ),
            (408, "", Provider, true, "HTTP 408 Request Timeout"),
            (425, "", Provider, true, "HTTP 425 Too Early"),
            (
                0,
                r#"{"code":502,"message":"upstream worker limit reached"}"#,
                Provider,
                true,
                "upstream worker limit reached (code 502)",
            ),
            (
                0,
                r#"{"message":"quota exceeded","type":"insufficient_quota","code":"server_error"}"#,
                RateLimit,
                false,
                "quota exceeded (code server_error)",
            ),
            (
                0,
                r#"{"message":"no","code":"invalid_request_error"}"#,
                Provider,
                false,
                "no (code invalid_request_error)",
            ),
            (0, r#"{"message":"slow down","code":429}"#, RateLimit, true, "slow down (code 429)"),
            (
                0,
                r#"{"message":"Provider returned error","code":400,"metadata":{"raw":"prompt is too long"}}"#,
                ContextOverflow,
                false,
                "Provider returned error: prompt is too long (code 400)",
            ),
            (0, r#""it broke""#, Provider, true, "it broke"),
        ];
        for (status, body, kind, retryable, message) in cases {
            let error = if *status == 0 { from_reply(body) } else { from_response(*status, None, body) };
            assert_eq!(
                (error.kind(), error.retryable(), error.message().as_str()),
                (*kind, *retryable, *message),
                "{status} {body}"
            );
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = jiff::Timestamp::from_second(1_445_412_440).unwrap();
        assert_eq!(parse_retry_after("7", now), Some(Duration::from_secs(7)));
        assert_eq!(parse_retry_after("0.5", now), Some(Duration::from_millis(500)));
        assert_eq!(parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT", now), Some(Duration::from_secs(40)));
        assert_eq!(parse_retry_after("Wed, 21 Oct 2015 07:00:00 GMT", now), Some(Duration::ZERO));
        for bad in ["", "soon", "-1", "inf", "NaN"] {
            assert_eq!(parse_retry_after(bad, now), None, "{bad}");
        }
    }
}
