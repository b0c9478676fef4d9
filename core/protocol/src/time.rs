//! Points in time: numbers on turns and items, ISO 8601 strings on threads.
//!
//! The types are here, the clock is not: only the engine reads one.
//!
//! Neighbours: none.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Milliseconds since 1970-01-01T00:00:00Z.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct UnixMillis(pub i64);

impl UnixMillis {
    /// The same point as an ISO 8601 string with milliseconds, as threads carry it.
    pub fn to_iso(self) -> IsoTime {
        // A time that the calendar cannot hold (a damaged row) becomes the epoch rather than a panic.
        let stamp = jiff::Timestamp::from_millisecond(self.0).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        IsoTime(format!("{stamp:.3}"))
    }
}

/// An ISO 8601 time in UTC: `2026-12-01T09:30:00.000Z`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct IsoTime(pub String);

impl fmt::Display for IsoTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iso_has_milliseconds_and_zulu() {
        assert_eq!(UnixMillis(1_700_000_000_007).to_iso().0, "2023-11-14T22:13:20.007Z");
        assert_eq!(UnixMillis(i64::MAX).to_iso().0, "1970-01-01T00:00:00.000Z");
    }
}
