//! A key that does not show itself.
//!
//! Neighbours: none.

use std::fmt;

use serde::{Deserialize, Deserializer};

/// A credential. `Debug` and `Display` print `***`, it serialises not at all, and the adapters strike it out of every
/// message that a provider sends back.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(String);

impl Secret {
    /// A secret.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The secret itself, for the one place that puts it on the wire.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// Strikes every occurrence of the secret out of `text`.
    ///
    /// # Limits
    ///
    /// A secret of fewer than eight bytes is left alone: it is a placeholder such as `none`, and striking that out
    /// would garble ordinary words.
    pub(crate) fn redact(&self, text: &str) -> String {
        const REDACT_BYTES_MIN: usize = 8;
        if self.0.len() < REDACT_BYTES_MIN { text.to_owned() } else { text.replace(&self.0, "***") }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
        Self(value)
    }
}

impl From<&str> for Secret {
    fn from(value: &str) -> Self {
        Self(value.to_owned())
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_never_shows() {
        let key = Secret::new("sk-very-secret");
        assert_eq!(format!("{key} {key:?} {:?}", Some(&key)), "*** *** Some(***)");
        assert_eq!(key.redact("bad key sk-very-secret, sk-very-secret"), "bad key ***, ***");
        assert_eq!(Secret::new("none").redact("none of it"), "none of it");
    }
}
