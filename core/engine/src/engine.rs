//! The engine: the threads of one process and what they share.
//!
//! Neighbours: error, history, input, shared, subscriber, thread.

mod changes;
mod fork;
mod turns;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use raddle_protocol::event::ThreadStarted;
use raddle_protocol::limits::{HISTORY_PAGE_TURNS_MAX, LIST_PAGE_DEFAULT, LIST_PAGE_MAX};
use raddle_protocol::methods::ServerNotification;
use raddle_protocol::thread::{
    Thread, ThreadListParams, ThreadNotification, ThreadSettings, ThreadStartParams,
};
use raddle_protocol::{ModelInfo, ModelRef, ThreadId, Turn, TurnId};
use raddle_store::{Counters, ListQuery, PayloadSlice, Store, StoreOptions};
use raddle_tools::Toolbox;

use crate::error::Error;
use crate::history::History;
use crate::input;
use crate::shared::{ModelSource, Options, Shared};
use crate::subscriber::{Answer, Hub, Subscriber};
use crate::thread::{Attach, AttachReading, Live, Message};

/// How long [`Engine::shut_down`] waits for threads to end. Source: the app-server documentation, which leaves a
/// tenth second to drain output.
pub const SHUTDOWN_AFTER: Duration = Duration::from_secs(9);

/// The engine. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

/// What diagnostics say about threads and the store.
#[derive(Clone, Copy, Debug)]
pub struct Vitals {
    /// Threads in memory.
    pub loaded_threads: u64,
    /// Threads on their way into memory.
    pub loading_threads: u64,
    /// The store's counts.
    pub store: Counters,
}

impl Engine {
    /// Opens the store and starts nothing else. Threads are loaded when they are first used.
    ///
    /// # Errors
    /// Whatever keeps the store from being opened, as [`Error::Store`].
    pub async fn open(options: Options, source: ModelSource, toolbox: Toolbox) -> Result<Self, Error> {
        let store_options = StoreOptions {
            heartbeat: options.heartbeat,
            takeover_after: options.takeover_after,
            ..StoreOptions::new(&options.home)
        };
        let store = tokio::task::spawn_blocking(move || Store::open(store_options))
            .await
            .map_err(|_| Error::Abandoned)??;
        let searches = matches!(source, ModelSource::Search(_));
        let shared = Arc::new(Shared::new(options, store, source, toolbox));
        if searches {
            let search = {
                let shared = shared.clone();
                async move {
                    tokio::select! {
                        _ = shared.models() => {}
                        () = shared.stopping.cancelled() => {}
                    }
                }
            };
            shared.tasks.spawn_on(search, &shared.runtime);
        }
        Ok(Self { shared })
    }

    /// Every initialised connection.
    pub fn hub(&self) -> &Hub {
        &self.shared.hub
    }

    /// Creates a durable thread, owned and loaded, with `subscriber` subscribed; tells everybody, then answers.
    ///
    /// # Durability
    /// The answer comes after a barrier: an id that was given out can always be used.
    pub async fn start_thread(
        &self,
        params: ThreadStartParams,
        subscriber: Arc<dyn Subscriber>,
        answer: Answer<Thread>,
    ) {
        match self.create(params, subscriber).await {
            Ok(thread) => {
                // In this order, so that nobody can start a turn in it, and be heard, before it has been announced.
                let announced = ThreadNotification { thread: thread.clone() };
                self.shared.hub.broadcast(ServerNotification::ThreadStarted(announced));
                answer.send(Ok(thread));
            }
            Err(error) => answer.send(Err(error)),
        }
    }

    async fn create(
        &self,
        params: ThreadStartParams,
        subscriber: Arc<dyn Subscriber>,
    ) -> Result<Thread, Error> {
        if self.shared.is_stopping() {
            return Err(Error::ShuttingDown);
        }
        let cwd = canonical_directory(&params.cwd).await?;
        self.check_model(params.model.as_ref()).await?;
        let settings = ThreadSettings {
            model: params.model,
            approval_mode: params.approval_mode.unwrap_or_default(),
            instructions: input::instructions(params.instructions)?,
        };
        let id = input::new_thread_id(params.thread_id)?;
        let name = input::thread_name(params.name)?;
        let started = ThreadStarted { cwd, name, forked_from_id: None, forked_at: None, settings };
        self.shared.create(&id, started, subscriber).await?;
        let row = self.shared.store.thread(&id).await?;
        Ok(self.shared.describe(row))
    }

    /// Reads a page of saved history without loading, owning or writing anything.
    ///
    /// # Errors
    /// [`raddle_store::Error::ThreadNotFound`] and [`raddle_store::Error::InvalidCursor`] as [`Error::Store`];
    /// [`Error::InvalidParams`] for a limit out of range.
    pub async fn read(
        &self,
        id: &ThreadId,
        cursor: Option<&str>,
        limit: Option<u32>,
    ) -> Result<History, Error> {
        let limit = page_limit(limit, HISTORY_PAGE_TURNS_MAX, HISTORY_PAGE_TURNS_MAX)?;
        self.shared.read_history(id, cursor, limit).await
    }

    /// Reads one turn of a thread as a reader sees it; `None` for one that is not on the thread's branch any more.
    ///
    /// # Errors
    /// [`raddle_store::Error::ThreadNotFound`] as [`Error::Store`].
    pub async fn turn(&self, id: &ThreadId, turn: &TurnId) -> Result<Option<Turn>, Error> {
        self.shared.read_turn(id, turn).await
    }

    /// Lists threads, newest activity first.
    ///
    /// # Errors
    /// [`raddle_store::Error::InvalidCursor`] as [`Error::Store`]; [`Error::InvalidParams`] for a limit out of range.
    pub async fn list(&self, params: ThreadListParams) -> Result<(Vec<Thread>, Option<String>), Error> {
        let limit = page_limit(params.limit, LIST_PAGE_DEFAULT, LIST_PAGE_MAX)?;
        // Threads keep canonical directories, so an alias finds them too; a directory that is gone still lists.
        let cwd = match params.cwd {
            Some(cwd) => Some(canonical_directory(&cwd).await.unwrap_or(cwd)),
            None => None,
        };
        let query = ListQuery {
            cwd,
            archived: params.archived.unwrap_or(false),
            search: params.search,
            limit,
            cursor: params.cursor,
        };
        let page = self.shared.store.list(query).await?;
        let threads = page.threads.into_iter().map(|row| self.shared.describe(row)).collect();
        Ok((threads, page.next_cursor))
    }

    /// Loads a thread, which owns it and closes what a crash left open in it.
    ///
    /// # Errors
    /// [`raddle_store::Error::ThreadNotFound`] and [`raddle_store::Error::LockedElsewhere`] as [`Error::Store`].
    pub async fn load(&self, id: &ThreadId) -> Result<(), Error> {
        self.shared.load(id).await.map(|_| ())
    }

    /// Loads a thread and subscribes; see [`Attach`].
    pub async fn attach(&self, id: &ThreadId, attach: Attach) {
        self.shared.deliver(id, Message::Attach(attach)).await;
    }

    /// Loads a thread, reads a page of it and subscribes, all in the thread's own step: always current, but the thread does
    /// nothing else meanwhile. For readers that [`attach`](Self::attach) found outdated again and again.
    pub async fn attach_reading(
        &self,
        id: &ThreadId,
        cursor: Option<String>,
        limit: Option<u32>,
        subscriber: Arc<dyn Subscriber>,
        deliver: Answer<(History, Live)>,
    ) {
        match page_limit(limit, HISTORY_PAGE_TURNS_MAX, HISTORY_PAGE_TURNS_MAX) {
            Ok(limit) => {
                let attach = AttachReading { subscriber, cursor, limit, deliver };
                self.shared.deliver(id, Message::AttachReading(attach)).await;
            }
            Err(error) => deliver.send(Err(error)),
        }
    }

    /// A piece of a large value that an item refers to; `None` for one that is not there any more.
    ///
    /// # Errors
    /// Failures of the store.
    pub async fn payload(&self, id: &str, offset: u64, max: usize) -> Result<Option<PayloadSlice>, Error> {
        Ok(self.shared.store.payload(id, offset, max).await?)
    }

    /// All models of all providers.
    pub async fn models(&self) -> Vec<ModelInfo> {
        self.shared.models().await.models.list().await
    }

    /// Counts for diagnostics.
    pub fn vitals(&self) -> Vitals {
        let threads = self.shared.threads.lock();
        let loaded = threads.values().filter(|slot| slot.initialized()).count();
        Vitals {
            loaded_threads: loaded as u64,
            loading_threads: (threads.len() - loaded) as u64,
            store: self.shared.store.counters(),
        }
    }

    /// An unknown ref is refused before anything is queued.
    async fn check_model(&self, model: Option<&ModelRef>) -> Result<(), Error> {
        match model {
            Some(model) => self.shared.resolve(Some(model)).await.map(|_| ()),
            None => Ok(()),
        }
    }

    /// Begins what [`shut_down`](Self::shut_down) does, without waiting: for a host that drops everything. A thread whose
    /// inbox is full ends when it is next idle for long enough.
    pub fn abandon(&self) {
        self.shared.begin_to_stop();
    }

    /// Stops all threads: running turns are interrupted, with an end in the log. Waits for them at most
    /// [`SHUTDOWN_AFTER`], then closes the store, so that nothing can be written any more.
    ///
    /// # Errors
    /// None: what did not end in time is closed by the next load, as after a crash.
    pub async fn shut_down(&self) {
        let finished = async {
            for handle in self.shared.begin_to_stop() {
                let _ = handle.send(Message::Shutdown).await;
            }
            self.shared.tasks.wait().await;
        };
        if tokio::time::timeout(SHUTDOWN_AFTER, finished).await.is_err() {
            tracing::warn!("some threads did not end in time; they are closed at their next load");
        }
        self.shared.store.clone().close().await;
    }
}

fn page_limit(limit: Option<u32>, default: u32, max: u32) -> Result<u32, Error> {
    match limit {
        None => Ok(default),
        Some(limit) if (1..=max).contains(&limit) => Ok(limit),
        Some(limit) => Err(Error::invalid(format!("`limit` is {limit}; it must be from 1 to {max}"))),
    }
}

/// The canonical form of a directory, so that aliases of it are one.
async fn canonical_directory(path: &str) -> Result<String, Error> {
    if !Path::new(path).is_absolute() {
        return Err(Error::invalid(format!("`cwd` must be an absolute path, not `{path}`")));
    }
    let canonical = tokio::fs::canonicalize(path)
        .await
        .map_err(|error| Error::invalid(format!("`cwd`: `{path}` cannot be used: {error}")))?;
    match tokio::fs::metadata(&canonical).await {
        Ok(metadata) if metadata.is_dir() => {}
        _ => return Err(Error::invalid(format!("`cwd`: `{path}` is not a directory"))),
    }
    canonical
        .into_os_string()
        .into_string()
        .map_err(|_| Error::invalid(format!("`cwd`: the path of `{path}` is not valid UTF-8")))
}
