//! Gates: the places where a script waits for the test.

use std::sync::Arc;

use tokio::sync::watch;

use crate::wait::within;

/// A place in a script where the server stops until the test opens it.
///
/// Clones are the same gate. A gate that is open stays open, so it may be opened before the server comes to it.
#[derive(Clone, Debug)]
pub struct Gate {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    open: watch::Sender<bool>,
    reached: watch::Sender<bool>,
}

impl Gate {
    /// A closed gate.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: Arc::new(State { open: watch::Sender::new(false), reached: watch::Sender::new(false) }),
        }
    }

    /// Lets the server go on, now and whenever it comes here again.
    pub fn open(&self) {
        self.state.open.send_replace(true);
    }

    /// Waits until the server stands at this gate (or has passed it). All that the script sends before the gate
    /// has then been handed to the operating system.
    ///
    /// # Panics
    /// If the server does not come here within half a minute.
    pub async fn reached(&self) {
        let mut reached = self.state.reached.subscribe();
        within("the server to reach a gate".to_owned(), async move {
            // The sender lives as long as this gate does, which the caller's borrow outlives.
            let _ = reached.wait_for(|reached| *reached).await;
        })
        .await;
    }

    /// The server's side: tells the test that it is here, and waits for the test.
    pub(crate) async fn pass(&self) {
        self.state.reached.send_replace(true);
        let _ = self.state.open.subscribe().wait_for(|open| *open).await;
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}
