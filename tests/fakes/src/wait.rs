//! The runtime that all fakes of a process share, and waiting with an end.

use std::sync::LazyLock;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

/// How long a test waits for something that never happens before it fails and says what it waited for.
///
/// Nothing waits this long in a test that passes, so the value only has to exceed the worst pause of a
/// loaded machine.
const LIMIT: Duration = Duration::from_secs(30);

/// The fakes run on a thread of their own. A test that blocks its own runtime, or has paused its clock, then
/// neither stops the server nor makes a wait end early.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    match Builder::new_multi_thread().worker_threads(1).thread_name("raddle-fakes").enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => fail(&format!("cannot start the runtime of the fakes: {error}")),
    }
});

/// The runtime that the fakes run on.
pub(crate) fn runtime() -> &'static Handle {
    RUNTIME.handle()
}

/// Waits for `future`, or panics after [`LIMIT`] with `what` in the message.
pub(crate) async fn within<F>(what: String, future: F) -> F::Output
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    match runtime().spawn(tokio::time::timeout(LIMIT, future)).await {
        Ok(Ok(value)) => value,
        Ok(Err(_)) => fail(&format!("waited {} s for {what}, and it did not happen", LIMIT.as_secs())),
        Err(error) => fail(&format!("waiting for {what} ended early: {error}")),
    }
}

/// Fails the running test. Fakes have no other way to say that the test itself is wrong.
#[track_caller]
#[expect(clippy::panic, reason = "a panic is how a test fails, and this crate runs only in tests")]
pub(crate) fn fail(message: &str) -> ! {
    panic!("fake provider: {message}")
}
