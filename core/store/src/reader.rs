//! Reading: a few connections beside the writer's, used on the runtime's threads for blocking work.
//!
//! A reader sees one committed state from its first statement to its last, and never waits for the writer.
//!
//! Neighbours: connection, error, row.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::{Semaphore, oneshot};

use crate::connection::open_reading;
use crate::error::Error;
use crate::row::Trouble;

/// Reads that run at once, and so connections that are kept open for them. At more, a reader waits for its
/// turn without blocking its thread.
pub const READERS_MAX: usize = 4;

/// The connections for reading, opened when they are first needed.
pub(crate) struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    slots: Arc<Semaphore>,
}

impl Readers {
    pub(crate) fn new(path: PathBuf) -> Arc<Self> {
        let slots = Arc::new(Semaphore::new(READERS_MAX));
        Arc::new(Self { path, idle: Mutex::default(), slots })
    }

    /// Runs `work` on a connection, in one read transaction. Dropping the future lets work that has begun
    /// run to its end unseen.
    pub(crate) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Connection) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, Error> {
        self.read_then(|connection| Ok((work(connection)?, ())), |_, ()| Ok(())).await
    }

    /// The same, and goes on in that transaction after it has answered.
    pub(crate) async fn read_then<T: Send + 'static, R>(
        self: &Arc<Self>,
        work: impl FnOnce(&Connection) -> Result<(T, R), Trouble> + Send + 'static,
        then: impl FnOnce(&Connection, R) -> rusqlite::Result<()> + Send + 'static,
    ) -> Result<T, Error> {
        let slot = Arc::clone(&self.slots).acquire_owned().await.map_err(|_| Error::Closed)?;
        let readers = Arc::clone(self);
        let (answer, answered) = oneshot::channel();
        let reading = tokio::task::spawn_blocking(move || {
            readers.read_now(work, then, answer);
            drop(slot);
        });
        if let Ok(outcome) = answered.await {
            return outcome;
        }
        match reading.await.map_err(tokio::task::JoinError::try_into_panic) {
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            // The runtime goes down and took the work with it.
            Ok(()) | Err(Err(_)) => Err(Error::Closed),
        }
    }

    fn read_now<T, R>(
        &self,
        work: impl FnOnce(&Connection) -> Result<(T, R), Trouble>,
        then: impl FnOnce(&Connection, R) -> rusqlite::Result<()>,
        answer: oneshot::Sender<Result<T, Error>>,
    ) {
        let broken = |source| Error::sqlite(&self.path, source);
        let idle = self.idle.lock().pop();
        let connection = match idle.map_or_else(|| open_reading(&self.path), Ok) {
            Ok(connection) => connection,
            Err(error) => return drop(answer.send(Err(error))),
        };
        let transaction = match connection.unchecked_transaction() {
            Ok(transaction) => transaction,
            Err(source) => return drop(answer.send(Err(broken(source)))),
        };
        // Whoever waits no longer is not told.
        let finished = match work(&transaction) {
            Ok((found, rest)) => {
                let _ = answer.send(Ok(found));
                then(&transaction, rest).and_then(|()| transaction.finish())
            }
            Err(Trouble::Refused(error)) => {
                let _ = answer.send(Err(error));
                transaction.finish()
            }
            Err(Trouble::Broken(source)) => {
                let _ = answer.send(Err(broken(source)));
                return;
            }
        };
        match finished {
            Ok(()) => self.idle.lock().push(connection),
            // The connection goes with its error; a fresh one takes its place.
            Err(source) => tracing::warn!(error = %broken(source), "a read could not be finished"),
        }
    }

    /// Waits for the reads that run, then refuses all others.
    pub(crate) async fn close(&self) {
        // An error means that somebody closed it before.
        let slots = self.slots.acquire_many(READERS_MAX as u32).await;
        self.slots.close();
        drop(slots);
        self.let_go();
    }

    /// Closes the connections that nobody uses.
    pub(crate) fn let_go(&self) {
        self.idle.lock().clear();
    }
}
