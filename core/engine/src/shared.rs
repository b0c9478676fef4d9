//! What the threads of one process share.
//!
//! Neighbours: clock, driver, error, subscriber, thread.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use raddle_models::{FoundModels, Models, ResolvedModel};
use raddle_protocol::event::{EventBody, ThreadStarted};
use raddle_protocol::methods::ServerNotification;
use raddle_protocol::thread::{
    ThreadIdNotification, ThreadNameNotification, ThreadStatus, ThreadStatusNotification,
};
use raddle_protocol::{ModelRef, ThreadId};
use raddle_store::{Lease, Store};
use raddle_tools::Toolbox;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock;
use crate::driver::{self, Loaded};
use crate::error::Error;
use crate::subscriber::{Hub, Subscriber};
use crate::thread::{Glance, Message, ThreadHandle};
use crate::turn::RetryPolicy;

/// A thread without a subscriber or work is unloaded after this long. Source: the app-server documentation.
pub const UNLOAD_AFTER: Duration = Duration::from_secs(600);

/// Reasons of threads that failed, kept for their status; at more, an arbitrary one is forgotten.
const FAILED_THREADS_MAX: usize = 1_024;

/// Environment variables that hold providers' keys. Commands that a model asks for have no use for them.
pub const KEY_VARIABLES: &[&str] =
    &["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENROUTER_API_KEY"];

/// How long a model may be silent. Beyond, the turn fails with a `network` error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelLimits {
    /// Until the first sign of life. Local servers read long prompts for minutes.
    pub first_event: Duration,
    /// Between two signs of life.
    pub idle: Duration,
}

impl Default for ModelLimits {
    fn default() -> Self {
        Self { first_event: Duration::from_secs(300), idle: Duration::from_secs(120) }
    }
}

/// How an engine is to run. [`Options::new`] gives defaults that work with nothing configured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the store lies; made if it does not exist.
    pub home: PathBuf,
    /// The model of threads that name none. `None`: what was found to be best, else `builtin/echo`.
    pub default_model: Option<ModelRef>,
    /// Environment variables that commands of tools do not inherit: the host's keys.
    pub hidden_env: Arc<[OsString]>,
    /// How failed models are asked again.
    pub retry: RetryPolicy,
    /// How long a model may be silent.
    pub model_limits: ModelLimits,
    /// How long a thread stays loaded without a subscriber or work.
    pub unload_after: Duration,
    /// How often this process says that it lives.
    pub heartbeat: Duration,
    /// How long another process's silence is watched before its threads are taken over.
    pub takeover_after: Duration,
}

impl Options {
    /// The defaults, for a store in `home`.
    pub fn new(home: impl Into<PathBuf>) -> Self {
        let home = home.into();
        let store = raddle_store::StoreOptions::new(&home);
        Self {
            home,
            default_model: None,
            hidden_env: KEY_VARIABLES.iter().map(OsString::from).collect(),
            retry: RetryPolicy::default(),
            model_limits: ModelLimits::default(),
            unload_after: UNLOAD_AFTER,
            heartbeat: store.heartbeat,
            takeover_after: store.takeover_after,
        }
    }
}

pub(crate) type Slot = Arc<OnceCell<ThreadHandle>>;

/// Where the models come from.
pub enum ModelSource {
    /// They are known.
    Known(Models),
    /// They are looked for when the engine opens, in the background: opening does not wait, the first turn does.
    Search(SearchFn),
}

/// Looks for models. Called again only if the call before it was dropped.
pub type SearchFn = Box<dyn Fn() -> Pin<Box<dyn Future<Output = FoundModels> + Send>> + Send + Sync>;

/// What a visit met.
pub(crate) enum Visit<T> {
    /// The thread is loaded; nothing was done.
    Loaded(ThreadHandle),
    /// It is not loaded, and this came of the visit.
    Done(T),
}

/// A visit does not load: it leaves the thread's place as empty as it was.
struct Visited;

/// The inside of an engine.
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) store: Store,
    models: OnceCell<FoundModels>,
    source: ModelSource,
    pub(crate) toolbox: Toolbox,
    pub(crate) hub: Hub,
    pub(crate) tasks: TaskTracker,
    /// Everything runs on the runtime that the engine was opened on, whichever one a request comes from.
    pub(crate) runtime: Handle,
    pub(crate) stopping: CancellationToken,
    pub(crate) threads: Mutex<HashMap<ThreadId, Slot>>,
    /// Why threads that are not loaded any more could not go on.
    pub(crate) failed: Mutex<HashMap<ThreadId, String>>,
}

impl Shared {
    pub(crate) fn new(options: Options, store: Store, source: ModelSource, toolbox: Toolbox) -> Self {
        Self {
            options,
            store,
            models: OnceCell::new(),
            source,
            toolbox,
            hub: Hub::default(),
            tasks: TaskTracker::new(),
            runtime: Handle::current(),
            stopping: CancellationToken::new(),
            threads: Mutex::new(HashMap::new()),
            failed: Mutex::new(HashMap::new()),
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.is_cancelled()
    }

    /// The models, once they are found.
    pub(crate) async fn models(&self) -> &FoundModels {
        self.models
            .get_or_init(|| async {
                match &self.source {
                    ModelSource::Known(models) => FoundModels { models: models.clone(), default: None },
                    ModelSource::Search(search) => search().await,
                }
            })
            .await
    }

    /// The model that a thread is to use.
    pub(crate) async fn resolve(&self, wanted: Option<&ModelRef>) -> Result<ResolvedModel, Error> {
        let found = self.models().await;
        let echo = ModelRef::new("builtin", "echo");
        let chosen = wanted.or(self.options.default_model.as_ref()).or(found.default.as_ref());
        Ok(found.models.resolve(chosen.unwrap_or(&echo)).await?)
    }

    /// The loaded thread, loading it first if need be; at most one load of a thread runs at a time.
    pub(crate) async fn load(self: &Arc<Self>, id: &ThreadId) -> Result<ThreadHandle, Error> {
        loop {
            if self.is_stopping() {
                return Err(Error::ShuttingDown);
            }
            let slot = self.threads.lock().entry(id.clone()).or_default().clone();
            let loaded = slot.get_or_try_init(|| self.open(id)).await;
            match loaded {
                Ok(handle) if !handle.inbox.is_closed() => {
                    self.stop_if_late(handle);
                    return Ok(handle.clone());
                }
                Ok(handle) => {
                    // It is being unloaded. A load beside that would get the same ownership, and lose it when the
                    // unload gives it back.
                    handle.gone.cancelled().await;
                    self.drop_slot(id, &slot);
                }
                Err(error) => {
                    self.drop_empty_slot(id, &slot);
                    return Err(error);
                }
            }
        }
    }

    /// Owns a thread that is not loaded for one change. Nobody loads it meanwhile.
    pub(crate) async fn visit<T, F>(
        &self,
        id: &ThreadId,
        change: impl FnOnce(Lease) -> F + Send,
    ) -> Result<Visit<T>, Error>
    where
        T: Send,
        F: Future<Output = Result<T, Error>> + Send,
    {
        let mut change = Some(change);
        loop {
            if self.is_stopping() {
                return Err(Error::ShuttingDown);
            }
            let slot = self.threads.lock().entry(id.clone()).or_default().clone();
            let mut outcome = None;
            let met = slot
                .get_or_try_init(|| async {
                    if let Some(change) = change.take() {
                        outcome = Some(self.change_unloaded(id, change).await);
                    }
                    Err(Visited)
                })
                .await;
            match met {
                Ok(handle) if !handle.inbox.is_closed() => return Ok(Visit::Loaded(handle.clone())),
                Ok(handle) => {
                    handle.gone.cancelled().await;
                    self.drop_slot(id, &slot);
                }
                Err(Visited) => {
                    self.drop_empty_slot(id, &slot);
                    return outcome.unwrap_or(Err(Error::Abandoned)).map(Visit::Done);
                }
            }
        }
    }

    async fn change_unloaded<T, F: Future<Output = Result<T, Error>>>(
        &self,
        id: &ThreadId,
        change: impl FnOnce(Lease) -> F,
    ) -> Result<T, Error> {
        let lease = self.store.acquire(id).await?;
        let outcome = change(lease.clone()).await;
        if let Err(error) = self.store.release(&lease).await {
            // A deleted thread has no owner to give back.
            tracing::debug!(thread = %id, %error, "the thread's ownership was not given back");
        }
        outcome
    }

    /// Tells every connection what changed about a thread that is not part of a turn.
    pub(crate) fn tell_everybody(&self, id: &ThreadId, body: &EventBody) {
        let thread_id = id.clone();
        self.hub.broadcast(match body {
            EventBody::NameUpdated(named) => {
                let name = named.name.clone();
                ServerNotification::ThreadNameUpdated(ThreadNameNotification { thread_id, name })
            }
            EventBody::Archived(archival) if archival.archived => {
                ServerNotification::ThreadArchived(ThreadIdNotification { thread_id })
            }
            EventBody::Archived(_) => {
                ServerNotification::ThreadUnarchived(ThreadIdNotification { thread_id })
            }
            _ => return,
        });
    }

    /// Stops a thread that was loaded while the engine began to stop, and so may have missed the word.
    pub(crate) fn stop_if_late(&self, handle: &ThreadHandle) {
        if self.is_stopping() {
            let _ = handle.inbox.try_send(Message::Shutdown);
        }
    }

    /// Begins to stop: nothing new is taken, and every thread is told. Threads whose inbox is full are returned.
    pub(crate) fn begin_to_stop(&self) -> Vec<ThreadHandle> {
        self.stopping.cancel();
        self.tasks.close();
        let handles: Vec<ThreadHandle> =
            self.threads.lock().values().filter_map(|slot| slot.get().cloned()).collect();
        handles.into_iter().filter(|handle| handle.inbox.try_send(Message::Shutdown).is_err()).collect()
    }

    /// The thread, if it is loaded.
    pub(crate) fn loaded(&self, id: &ThreadId) -> Option<ThreadHandle> {
        let threads = self.threads.lock();
        threads.get(id)?.get().filter(|handle| !handle.inbox.is_closed()).cloned()
    }

    pub(crate) fn drop_slot(&self, id: &ThreadId, slot: &Slot) {
        let mut threads = self.threads.lock();
        if threads.get(id).is_some_and(|known| Arc::ptr_eq(known, slot)) {
            threads.remove(id);
        }
    }

    /// Takes away the place of a load that failed, unless others wait to try it: they would load a thread whose place
    /// nobody finds.
    fn drop_empty_slot(&self, id: &ThreadId, slot: &Slot) {
        /// The map's own, and the caller's.
        const NOBODY_WAITS: usize = 2;
        let mut threads = self.threads.lock();
        if slot.get().is_none()
            && Arc::strong_count(slot) <= NOBODY_WAITS
            && threads.get(id).is_some_and(|known| Arc::ptr_eq(known, slot))
        {
            threads.remove(id);
        }
    }

    async fn open(self: &Arc<Self>, id: &ThreadId) -> Result<ThreadHandle, Error> {
        let loaded = driver::load(self, id).await?;
        let row = self.store.thread(id).await?;
        self.failed.lock().remove(id);
        // Before its task begins, which may be over at once and say so.
        self.hub.broadcast(ServerNotification::ThreadStatusChanged(ThreadStatusNotification {
            thread_id: id.clone(),
            status: ThreadStatus::Idle,
        }));
        Ok(driver::spawn(self, id.clone(), row.cwd.into(), loaded, Vec::new()))
    }

    /// Creates a thread and loads it. Its slot is there before its row, so whoever finds the row meets the slot, and no
    /// second load of it can begin.
    pub(crate) async fn create(
        self: &Arc<Self>,
        id: &ThreadId,
        started: ThreadStarted,
        subscriber: Arc<dyn Subscriber>,
    ) -> Result<(), Error> {
        let slot = self.threads.lock().entry(id.clone()).or_default().clone();
        let mut created_here = false;
        let created = slot
            .get_or_try_init(|| async {
                created_here = true;
                let (cwd, settings) = (started.cwd.clone(), started.settings.clone());
                let is_fork = started.forked_at.is_some();
                let lease = self.store.create_thread(id.clone(), clock::now(), started).await?;
                let loaded = match is_fork {
                    true => driver::load(self, id).await?,
                    false => Loaded::empty(lease, settings),
                };
                Ok(driver::spawn(self, id.clone(), cwd.into(), loaded, vec![subscriber]))
            })
            .await;
        match created {
            // A caller's own id that is taken by a loaded thread.
            Ok(_) if !created_here => Err(raddle_store::Error::ThreadExists { id: id.clone() }.into()),
            Ok(handle) => {
                self.stop_if_late(handle);
                Ok(())
            }
            Err(error) => {
                self.drop_empty_slot(id, &slot);
                Err(error)
            }
        }
    }

    /// A thread's task has ended.
    pub(crate) fn forget(&self, id: &ThreadId, glance: &Arc<Mutex<Glance>>, failed: Option<String>) {
        let mut threads = self.threads.lock();
        let is_ours = threads
            .get(id)
            .and_then(|slot| slot.get())
            .is_some_and(|handle| Arc::ptr_eq(&handle.glance, glance));
        if is_ours {
            threads.remove(id);
        }
        drop(threads);
        if let Some(reason) = failed {
            let mut all = self.failed.lock();
            if all.len() >= FAILED_THREADS_MAX
                && let Some(any) = all.keys().next().cloned()
            {
                all.remove(&any);
            }
            all.insert(id.clone(), reason);
        }
    }

    /// Hands a message to a thread, loading it if need be.
    pub(crate) async fn deliver(self: &Arc<Self>, id: &ThreadId, mut message: Message) {
        loop {
            let handle = match self.load(id).await {
                Ok(handle) => handle,
                Err(error) => return message.fail(error),
            };
            match handle.send(message).await {
                Ok(()) => return,
                // It was unloaded in between: load it again.
                Err(returned) => message = returned,
            }
        }
    }

    /// [`deliver`](Self::deliver) for a message that reached a thread on its way out.
    pub(crate) fn redeliver(self: &Arc<Self>, id: ThreadId, message: Message) {
        let shared = self.clone();
        self.tasks.spawn_on(async move { shared.deliver(&id, message).await }, &self.runtime);
    }
}
