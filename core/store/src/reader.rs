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
        self.read_then(|connection| Ok((work(connection)?, None)), |_, ()| Ok(())).await
    }

    /// The same, but goes on in that transaction after it has answered, if there is a rest to do.
    pub(crate) async fn read_then<T: Send + 'static, R>(
        self: &Arc<Self>,
        work: impl FnOnce(&Connection) -> Result<(T, Option<R>), Trouble> + Send + 'static,
        then: impl FnOnce(&Connection, R) -> rusqlite::Result<()> + Send + 'static,
    ) -> Result<T, Error> {
        let slot = Arc::clone(&self.slots).acquire_owned().await.map_err(|_| Error::Closed)?;
        let readers = Arc::clone(self);
        let (answer, answered) = oneshot::channel();
        let reading = tokio::task::spawn_blocking(move || {
            let mut answer = Some(answer);
            let outcome = readers.read_now(work, then, |found| {
                // Whoever waits no longer is not told.
                answer.take().map(|answer| answer.send(Ok(found)));
            });
            drop(slot);
            match (outcome.transpose(), answer) {
                (Some(outcome), Some(answer)) => drop(answer.send(outcome)),
                (Some(Err(error)), None) => tracing::warn!(%error, "the rest of a read failed"),
                _ => {}
            }
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

    /// Gives what was found, unless it was handed to `tell` before the rest was done.
    fn read_now<T, R>(
        &self,
        work: impl FnOnce(&Connection) -> Result<(T, Option<R>), Trouble>,
        then: impl FnOnce(&Connection, R) -> rusqlite::Result<()>,
        tell: impl FnOnce(T),
    ) -> Result<Option<T>, Error> {
        let broken = |source| Error::sqlite(&self.path, source);
        let idle = self.idle.lock().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => open_reading(&self.path)?,
        };
        let transaction = connection.unchecked_transaction().map_err(broken)?;
        // After a failure the connection goes with its error; a fresh one takes its place.
        let outcome = match work(&transaction) {
            Ok((found, None)) => Ok(Some(found)),
            Ok((found, Some(rest))) => {
                tell(found);
                then(&transaction, rest).map_err(broken)?;
                Ok(None)
            }
            Err(Trouble::Refused(error)) => Err(error),
            Err(Trouble::Broken(source)) => return Err(broken(source)),
        };
        transaction.finish().map_err(broken)?;
        self.idle.lock().push(connection);
        outcome
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
