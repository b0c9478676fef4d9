//! A world to test in, and the checks at its end.
//!
//! Neighbours: client, resolve, turns.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use raddle::engine::models::{ModelConfig, Models, ModelsConfig, ProviderConfig};
use raddle::engine::tools::Toolbox;
use raddle::engine::{ModelLimits, RetryPolicy};
use raddle::protocol::methods::method;
use raddle::protocol::thread::{ApprovalMode, ThreadListParams, ThreadStartParams};
use raddle::protocol::{ModelCost, ModelRef, ThreadId, Turn, TurnId, TurnStatus};
use raddle::server::{Server, ServerOptions};
use raddle::{Options, Raddle};
use raddle_fakes::{Gate, Provider, Reply};
use tempfile::TempDir;

use crate::client::Client;
use crate::resolve::Payloads;
use crate::turns::{agent_text, without_tokens};

/// The id of the fake provider in the engine's configuration.
pub const PROVIDER: &str = "fake";

/// The fake provider's one configured model.
pub const MODEL: &str = "fake-model";

/// What a world is made of. The defaults are a fake provider whose model is the default, and retries after
/// milliseconds.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The default model; `None`: the fake provider's.
    pub default_model: Option<ModelRef>,
    /// Models of the fake provider.
    pub models: Vec<ModelConfig>,
    /// Where the fake provider is said to be; `None`: where it is.
    pub endpoint: Option<String>,
    /// The tools; `None`: the built-in ones.
    pub tools: Option<Toolbox>,
    /// How failed models are asked again.
    pub retry: RetryPolicy,
    /// How long a model may be silent; `None`: the engine's default.
    pub model_limits: Option<ModelLimits>,
    /// How long a thread stays loaded without a subscriber or work; `None`: the engine's default.
    pub unload_after: Option<Duration>,
}

impl Default for Setup {
    fn default() -> Self {
        let model = ModelConfig {
            context_window: Some(1_000),
            cost: Some(ModelCost { input: 1.0, output: 10.0, cache_read: 0.5, cache_write: 2.0 }),
            ..ModelConfig::new(MODEL)
        };
        Self {
            default_model: None,
            models: vec![model],
            endpoint: None,
            tools: None,
            retry: RetryPolicy { attempts_max: 3, delay_first_ms: 2, delay_max_ms: 3_000 },
            model_limits: None,
            unload_after: None,
        }
    }
}

impl Setup {
    /// Opens the world.
    pub async fn start(self) -> World {
        let directory = tempfile::tempdir().unwrap();
        let project = directory.path().join("project");
        std::fs::create_dir(&project).unwrap();
        let project = project.canonicalize().unwrap();
        let provider = Provider::start().await;
        let raddle = self.open(&directory.path().join("home"), &provider).await;
        World {
            setup: self,
            home: directory.path().join("home"),
            project,
            _directory: directory,
            provider,
            raddle,
            clients: Mutex::new(Vec::new()),
            payloads: Payloads::default(),
            named: AtomicU32::new(0),
            finished: false,
        }
    }

    /// The built-in tools and these.
    #[must_use]
    pub fn with_tools(
        self,
        tools: impl IntoIterator<Item = std::sync::Arc<dyn raddle::engine::tools::Tool>>,
    ) -> Self {
        let tools = tools.into_iter().fold(Toolbox::builtin(), Toolbox::with);
        Self { tools: Some(tools), ..self }
    }

    async fn open(&self, home: &Path, provider: &Provider) -> Raddle {
        Raddle::open(self.options(home, provider)).await.unwrap()
    }

    fn options(&self, home: &Path, provider: &Provider) -> Options {
        let endpoint = self.endpoint.clone().unwrap_or_else(|| provider.base_url());
        let config =
            ProviderConfig { models: self.models.clone(), ..ProviderConfig::new(PROVIDER, endpoint) };
        let models = Models::new(ModelsConfig { providers: vec![config], ..ModelsConfig::default() });
        Options {
            models: Some(models),
            default_model: Some(self.default_model.clone().unwrap_or_else(|| ModelRef::new(PROVIDER, MODEL))),
            tools: self.tools.clone(),
            retry: Some(self.retry),
            model_limits: self.model_limits,
            unload_after: self.unload_after,
            ..Options::in_home(home)
        }
    }
}

/// An engine on a home directory of its own, with a project to work in and a model to ask.
///
/// Every test ends with [`finish`](Self::finish); a world that is dropped without it fails the test.
pub struct World {
    setup: Setup,
    home: PathBuf,
    project: PathBuf,
    /// Removed when the world is dropped.
    _directory: TempDir,
    provider: Provider,
    raddle: Raddle,
    clients: Mutex<Vec<Client>>,
    payloads: Payloads,
    named: AtomicU32,
    finished: bool,
}

impl World {
    /// The usual world.
    pub async fn start() -> Self {
        Setup::default().start().await
    }

    /// A world whose default model is one of the built-in ones.
    pub async fn with_builtin(model: &str) -> Self {
        let default_model = Some(ModelRef::new("builtin", model));
        Setup { default_model, ..Setup::default() }.start().await
    }

    /// The fake provider.
    pub fn provider(&self) -> &Provider {
        &self.provider
    }

    /// The engine's face.
    pub fn raddle(&self) -> &Raddle {
        &self.raddle
    }

    /// The project directory: absolute, canonical.
    pub fn project(&self) -> &Path {
        &self.project
    }

    /// The project directory as params take it.
    pub fn cwd(&self) -> String {
        self.project.display().to_string()
    }

    /// The home directory.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// The options that the engine was opened with.
    pub fn options(&self) -> Options {
        self.setup.options(&self.home, &self.provider)
    }

    /// A client that has completed its handshake.
    pub async fn client(&self) -> Client {
        self.client_without(&[]).await
    }

    /// A client that does not want some notifications.
    pub async fn client_without(&self, opt_out: &[&str]) -> Client {
        let client = self.raw_client();
        client.initialize(opt_out).await;
        client
    }

    /// A client that has said nothing yet.
    pub fn raw_client(&self) -> Client {
        self.raw_client_of(self.raddle.server())
    }

    /// A client of another server on the same engine, that has said nothing yet.
    pub fn raw_client_of(&self, server: &Server) -> Client {
        let number = self.named.fetch_add(1, Ordering::Relaxed) + 1;
        let client = Client::raw(&format!("client {number}"), server.connect(), self.payloads.clone());
        self.clients.lock().push(client.clone());
        client
    }

    /// A client of another server on the same engine.
    pub async fn client_of(&self, server: &Server) -> Client {
        let client = self.raw_client_of(server);
        client.initialize(&[]).await;
        client
    }

    /// A server on the same engine whose connections may have `bytes_max` bytes waiting.
    pub fn server_with_outbox_bound(&self, bytes_max: usize) -> Server {
        self.server_with(ServerOptions { outbox_bytes_max: bytes_max, ..ServerOptions::default() })
    }

    /// A server of its own on the same engine.
    pub fn server_with(&self, options: ServerOptions) -> Server {
        Server::with_options(self.raddle.server().engine().clone(), options)
    }

    /// A new thread in the project with full access.
    pub async fn thread(&self, client: &Client) -> ThreadId {
        self.thread_with(client, ApprovalMode::FullAccess).await
    }

    /// A new thread in the project.
    pub async fn thread_with(&self, client: &Client, mode: ApprovalMode) -> ThreadId {
        let params =
            ThreadStartParams { cwd: self.cwd(), approval_mode: Some(mode), ..ThreadStartParams::default() };
        let id = client.request::<method::ThreadStart>(params).await.unwrap().thread.id;
        client.view_until("thread/started", |view| view.is_started(&id).then_some(())).await;
        id
    }

    /// A thread whose turn has said "Half" and stands still until the gate is opened; then it says " and whole.".
    pub async fn half_said(&self, client: &Client) -> (ThreadId, TurnId, Gate) {
        let thread = self.thread(client).await;
        let gate = Gate::new();
        self.provider.push(Reply::stream().text("Half").wait(&gate).text(" and whole.").stop());
        let turn = client.start(&thread, "Hi").await;
        client.turn_until(&turn, "half an answer", |turn| agent_text(turn) == "Half").await;
        (thread, turn, gate)
    }

    /// Closes the engine and opens it again on the same home. All connections end.
    pub async fn reopen(&mut self) {
        for client in self.clients() {
            if !client.is_ended() {
                client.settle().await;
            }
        }
        self.raddle.close().await;
        self.await_ends().await;
        self.raddle = self.setup.open(&self.home, &self.provider).await;
    }

    /// [`reopen`](Self::reopen) with another setup.
    pub async fn reopen_as(&mut self, setup: Setup) {
        self.setup = setup;
        self.reopen().await;
    }

    fn clients(&self) -> Vec<Client> {
        self.clients.lock().clone()
    }

    async fn await_ends(&self) {
        for client in self.clients() {
            client.read_on();
            client.ended().await;
        }
    }

    /// Whether some client has left: what it folded stays as it was, whatever becomes of the thread.
    pub fn has_ended_clients(&self) -> bool {
        self.clients.lock().iter().any(Client::is_ended)
    }

    /// Checks what must hold at the end of every test; see the crate's page.
    pub async fn finish(mut self) {
        // First, so that a failed check is not followed by the complaint that there was none.
        self.finished = true;
        let watchers = self.clients();
        for client in &watchers {
            client.read_on();
            if client.is_ended() {
                continue;
            }
            client
                .view_until("all turns to end", |view| {
                    let open = view
                        .threads()
                        .flat_map(|(_, turns)| turns)
                        .any(|turn| turn.summary.status == TurnStatus::InProgress);
                    (!open).then_some(())
                })
                .await;
        }
        let reader = self.client().await;
        let threads = all_threads(&reader).await;
        for (thread, _) in threads.iter().filter(|(_, archived)| !archived) {
            reader.resume(thread).await;
            reader
                .view_until("all threads to be at rest", |view| view.is_at_rest(thread).then_some(()))
                .await;
        }
        let mut histories = Vec::new();
        for (thread, archived) in threads {
            let turns = reader.read_all_as_sent(&thread, 50).await;
            assert_eq!(turns, reader.read_all_as_sent(&thread, 3).await, "pages of other sizes differ (P5)");
            let history = History::new(turns, &reader).await;
            if archived {
                histories.push((thread, history));
                continue;
            }
            let turns = &history.as_sent;
            let mut resumed = reader.resume(&thread).await;
            assert_eq!(resumed.running_turn, None, "a turn still runs at the end of the test");
            // A page ends after 50 turns, or earlier when its texts are large.
            let newest = turns.len().saturating_sub(resumed.turns.len());
            assert_eq!(resumed.next_cursor.is_some(), newest > 0, "a page that ends early has a cursor");
            for (at, turn) in resumed.turns.iter_mut().enumerate() {
                // Beside much that is live, a resume may refer to the items of a turn that a read has inline.
                if *turn != turns[newest + at] {
                    *turn = reader.resolve(turn.clone()).await;
                    assert!(*turn == history.whole[newest + at], "resume differs from read (P5)");
                }
            }
            histories.push((thread, history));
        }
        let mut faults = Vec::new();
        for client in &watchers {
            client.settle().await;
            for (thread, folded) in client.folded() {
                let Some((_, history)) = histories.iter().find(|(id, _)| *id == thread) else {
                    faults.push(format!("{}: thread {thread} is in no list", client.name()));
                    continue;
                };
                compare(&folded, history, client, &mut faults).await;
            }
            faults.extend(client.faults().into_iter().map(|fault| format!("{}: {fault}", client.name())));
        }
        if !faults.is_empty() {
            let transcripts: Vec<_> = watchers.iter().map(Client::transcript).collect();
            panic!("{}\n{}", faults.join("\n"), transcripts.join("\n"));
        }
        self.provider.assert_well_formed();
        assert_eq!(self.provider.queued(), 0, "replies that nobody asked for");

        self.raddle.close().await;
        self.await_ends().await;
        assert_eq!(reader.faults(), Vec::<String>::new());
        self.raddle = self.setup.open(&self.home, &self.provider).await;
        let reader = self.client().await;
        for (thread, history) in histories {
            let turns = reader.read_all_as_sent(&thread, 50).await;
            assert_eq!(history.as_sent, turns, "a restart changed the history (P5)");
            let whole = History::new(turns, &reader).await.whole;
            assert!(history.whole == whole, "a restart changed what the history refers to (P5)");
        }
        self.raddle.close().await;
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if !self.finished && !std::thread::panicking() {
            panic!("a test must end with `world.finish().await`");
        }
    }
}

/// The ids of all threads, and whether each is archived.
async fn all_threads(reader: &Client) -> Vec<(ThreadId, bool)> {
    let mut ids = Vec::new();
    for archived in [false, true] {
        let mut params =
            ThreadListParams { limit: Some(200), archived: Some(archived), ..ThreadListParams::default() };
        loop {
            let page = reader.request::<method::ThreadList>(params.clone()).await.unwrap();
            ids.extend(page.threads.into_iter().map(|thread| (thread.id, archived)));
            match page.next_cursor {
                Some(cursor) => params.cursor = Some(cursor),
                None => break,
            }
        }
    }
    ids
}

/// A thread's turns.
struct History {
    /// With references where the server has put them.
    as_sent: Vec<Turn>,
    /// With all values.
    whole: Vec<Turn>,
}

impl History {
    async fn new(as_sent: Vec<Turn>, reader: &Client) -> Self {
        let mut whole = Vec::new();
        for turn in &as_sent {
            whole.push(reader.resolve(turn.clone()).await);
        }
        Self { as_sent, whole }
    }
}

/// Compares what a client has folded with what is saved. A client that left in the middle of a turn, or came in the
/// middle of the history, has a part of it; what it has must be the same and in one piece.
async fn compare(folded: &[Turn], history: &History, client: &Client, faults: &mut Vec<String>) {
    let mut last = None;
    for turn in folded {
        let Some(at) = history.as_sent.iter().position(|known| known.summary.id == turn.summary.id) else {
            faults.push(format!("{}: turn {} is not saved (P5)", client.name(), turn.summary.id));
            continue;
        };
        if last.is_some_and(|last| at != last + 1) {
            faults.push(format!("{}: turns are missing before {} (P5)", client.name(), turn.summary.id));
        }
        last = Some(at);
        let seen_whole = turn.summary.status != TurnStatus::InProgress;
        if seen_whole {
            let (mut watched, mut saved) = (without_tokens(turn), &history.as_sent[at]);
            // An item is the same on both ways, its references included. Only items that are referred to as a whole have to
            // be looked at whole.
            if saved.items.reference().is_some() {
                (watched, saved) = (client.resolve(watched).await, &history.whole[at]);
            }
            if watched != *saved {
                faults.push(format!(
                    "{}: watching differs from reading (P5)\n  watched: {watched:#?}\n  read: {saved:#?}",
                    client.name(),
                ));
            }
        } else if !seen_whole && !client.is_ended() {
            faults.push(format!("{}: turn {} never ended", client.name(), turn.summary.id));
        }
    }
}
