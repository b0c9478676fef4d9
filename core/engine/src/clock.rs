//! The only source of time and chance in the engine.
//!
//! Neighbours: none.

use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use raddle_protocol::UnixMillis;

/// Now, by the system's clock.
pub(crate) fn now() -> UnixMillis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMillis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// A random number from 0 to 1000. The standard library's hash keys are random enough to spread retries.
pub(crate) fn jitter_permille() -> u32 {
    (RandomState::new().hash_one(0_u8) % 1_001) as u32
}
