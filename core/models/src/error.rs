//! What can go wrong: [`ModelsError`] before a request, [`ModelError`] from then on. They are two types because they
//! reach a user in two ways, as the refusal of a call and as the failure of a turn, and neither becomes the other.
//!
//! Neighbours: none.

use std::fmt;
use std::time::Duration;

use raddle_protocol::limits::{TURN_ERROR_CHARS_MAX, cut_chars};
use raddle_protocol::{ModelRef, TurnErrorKind};

/// A source of any type: the HTTP library stays this crate's own affair.
type Source = Box<dyn std::error::Error + Send + Sync>;

/// Names that [`ModelsError::UnknownModel`] lists at most; the rest is left out.
pub const KNOWN_MODELS_MAX: usize = 20;

/// A reply that failed.
///
/// `Display` is for people and holds no secret; it is cut at 2,000 characters.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The provider said no, before the reply or in the middle of it.
    #[error("{}", Bounded(message))]
    Provider {
        /// The class of the failure.
        kind: TurnErrorKind,
        /// The provider's message with its code, whole.
        message: String,
        /// The provider's code, where it gave one; a number as digits.
        code: Option<String>,
        /// The HTTP status, when the failure was the answer itself.
        status: Option<u16>,
        /// Whether the same request may succeed later.
        retryable: bool,
        /// How long the provider asks to wait.
        retry_after: Option<Duration>,
    },
    /// The provider could not be reached, or the connection broke.
    #[error("{}", Bounded(message))]
    Network {
        /// What failed, with the address and the cause.
        message: String,
        /// The cause itself.
        #[source]
        source: Source,
    },
    /// The connection ended cleanly in the middle of the reply.
    #[error("stream ended before the reply was finished")]
    Cut,
    /// The provider sent what is no part of its own protocol.
    #[error("{}", Bounded(message))]
    Malformed {
        /// What was wrong with it.
        message: String,
        /// Whether it looks like a passing fault rather than a wrong address.
        retryable: bool,
        /// What the parser said.
        #[source]
        source: Option<Source>,
    },
    /// The request cannot be sent as it is: a key or an address that HTTP has no way to say.
    #[error("{}", Bounded(message))]
    Request {
        /// [`TurnErrorKind::Auth`] for a key, else [`TurnErrorKind::Other`].
        kind: TurnErrorKind,
        /// What is wrong, and where to mend it.
        message: String,
        /// The cause, where there is one.
        #[source]
        source: Option<Source>,
    },
    /// The script for `builtin/script` is not one.
    #[error("script, line {line}, column {column}: {}", Bounded(message))]
    Script {
        /// The line in the user message, from 1.
        line: usize,
        /// The character in that line, from 1.
        column: usize,
        /// What was expected.
        message: String,
    },
}

/// A model that cannot be had: nothing was sent anywhere.
///
/// `Display` holds no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelsError {
    /// No provider of that name is configured.
    #[error("no provider named `{provider}`; known: {}", known.join(", "))]
    UnknownProvider {
        /// The name that was asked for.
        provider: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// The provider has no such model.
    #[error("no model `{model}`; known: {}", known.join(", "))]
    UnknownModel {
        /// The ref that was asked for.
        model: ModelRef,
        /// Models that there are, as refs; at most [`KNOWN_MODELS_MAX`].
        known: Vec<String>,
    },
    /// A provider's settings cannot be used.
    #[error("provider `{provider}`: {message}")]
    Config {
        /// The provider.
        provider: String,
        /// What is wrong, and the way out.
        message: String,
    },
}

impl ModelError {
    /// The class of the failure, as a turn reports it.
    pub fn kind(&self) -> TurnErrorKind {
        match self {
            Self::Provider { kind, .. } | Self::Request { kind, .. } => *kind,
            Self::Network { .. } | Self::Cut => TurnErrorKind::Network,
            Self::Malformed { .. } => TurnErrorKind::Provider,
            Self::Script { .. } => TurnErrorKind::Other,
        }
    }

    /// What people read: the provider's own message and code, at most 2,000 characters, without any secret.
    pub fn message(&self) -> String {
        self.to_string()
    }

    /// Whether the same request may succeed when it is sent again.
    pub fn retryable(&self) -> bool {
        match self {
            Self::Provider { retryable, .. } | Self::Malformed { retryable, .. } => *retryable,
            Self::Network { .. } | Self::Cut => true,
            Self::Request { .. } | Self::Script { .. } => false,
        }
    }

    /// How long the provider asks to wait before the next try, uncapped: the caller has its own longest wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Provider { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Passes every text that came from outside through `change`.
    pub(crate) fn map_message(mut self, change: impl Fn(&str) -> String) -> Self {
        match &mut self {
            Self::Provider { message, code, .. } => {
                *message = change(message);
                *code = code.take().map(|code| change(&code));
            }
            Self::Network { message, .. }
            | Self::Malformed { message, .. }
            | Self::Request { message, .. } => *message = change(message),
            Self::Cut | Self::Script { .. } => {}
        }
        self
    }
}

/// Shows at most as many characters as a turn's error may have.
struct Bounded<'a>(&'a str);

impl fmt::Display for Bounded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(cut_chars(self.0, TURN_ERROR_CHARS_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut_on_a_character() {
        let error = ModelError::Malformed { message: "ä".repeat(3000), retryable: true, source: None };
        assert_eq!(error.message().chars().count(), 2000);
        assert_eq!(error.kind(), TurnErrorKind::Provider);
    }
}
