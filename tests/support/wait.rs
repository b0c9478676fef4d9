//! Waiting with an end.
//!
//! Neighbours: none.

use std::future::Future;
use std::time::Duration;

/// How long a test waits for something that never happens before it fails and says what it waited for. Nothing waits
/// this long in a test that passes, so the value only has to exceed the worst pause of a loaded machine.
pub const WAIT_MAX: Duration = Duration::from_secs(30);

/// Waits for `future`.
///
/// # Panics
/// After [`WAIT_MAX`], with `what` and whatever `seen` says by then.
pub async fn within<F: Future>(what: &str, seen: impl FnOnce() -> String, future: F) -> F::Output {
    match tokio::time::timeout(WAIT_MAX, future).await {
        Ok(output) => output,
        Err(_) => panic!("waited {} s for {what}, and it did not happen\n{}", WAIT_MAX.as_secs(), seen()),
    }
}
