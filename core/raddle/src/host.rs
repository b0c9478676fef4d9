//! The host's side: an engine in this process, and clients of it.
//!
//! Neighbours: client, error.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use raddle_engine::models::{Models, TimeLimits};
use raddle_engine::tools::Toolbox;
use raddle_engine::{Engine, ModelLimits, ModelSource, RetryPolicy};
use raddle_protocol::ModelRef;
use raddle_protocol::server::{ClientCapabilities, ClientInfo};
use raddle_protocol::thread::Warning;
use raddle_server::{Server, ServerOptions, ShutdownTimes};

use crate::client::Client;
use crate::error::{ClientError, OpenError};

/// How to open an engine. [`Options::default`] works with nothing configured.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where settings and the like lie. `None`: `RADDLE_HOME`, else `.raddle` in the user's home directory.
    pub home: Option<PathBuf>,
    /// Where the store lies. `None`: in `home`; and without a `home`, `RADDLE_SESSION_DIR` comes before it.
    pub session_dir: Option<PathBuf>,
    /// The models. `None`: what the machine has, see [`Models::from_environment`]; with nothing, `builtin/echo`.
    pub models: Option<Models>,
    /// The model of threads that name none. `None`: what `from_environment` prefers, else `builtin/echo`.
    pub default_model: Option<ModelRef>,
    /// The tools. `None`: the built-in ones.
    pub tools: Option<Toolbox>,
    /// Environment variables that commands of tools do not inherit, besides those that usually hold providers' keys
    /// ([`KEY_VARIABLES`](raddle_engine::KEY_VARIABLES)).
    pub hidden_env: Vec<OsString>,
    /// How failed models are asked again. `None`: the engine's default.
    pub retry: Option<RetryPolicy>,
    /// How long a model may be silent. `None`: the engine's default.
    pub model_limits: Option<ModelLimits>,
    /// How often this process says that it lives. `None`: every 10 seconds.
    pub heartbeat: Option<std::time::Duration>,
    /// How long a silent owner is watched before its threads are taken over. `None`: 30 seconds.
    pub takeover_after: Option<std::time::Duration>,
    /// How long a thread stays loaded without a subscriber or work. `None`: ten minutes.
    pub unload_after: Option<std::time::Duration>,
    /// When a shutdown loses patience. `None`: after nine and ten seconds.
    pub shutdown: Option<ShutdownTimes>,
    /// What the responses that open a thread are to warn of, whichever thread it is.
    pub standing_warnings: Vec<Warning>,
}

impl Options {
    /// Defaults, with everything in `home`.
    pub fn in_home(home: impl Into<PathBuf>) -> Self {
        Self { home: Some(home.into()), ..Self::default() }
    }
}

/// An engine in this process: the context that threads share, and the manager of those that are loaded.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::protocol::methods::method;
/// use raddle::protocol::thread::ThreadStartParams;
/// use raddle::{Options, Raddle};
///
/// let raddle = Raddle::open(Options::default()).await?;
/// let client = raddle.client("my-app", "1.0").await?;
/// let params = ThreadStartParams { cwd: "/path/to/project".into(), ..Default::default() };
/// let thread = client.request::<method::ThreadStart>(params).await?.thread;
/// println!("{}", thread.id);
/// raddle.close().await;
/// # Ok(())
/// # }
/// ```
///
/// Dropping the last clone closes its threads and connections as [`close`](Self::close) does, without waiting.
#[derive(Clone)]
pub struct Raddle {
    inner: Arc<Inner>,
}

struct Inner {
    server: Server,
    runtime: tokio::runtime::Handle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Closing needs tasks of the runtime; a host may drop from a thread that is not one of its own.
        let _in_runtime = self.runtime.enter();
        self.server.abandon();
    }
}

impl Raddle {
    /// Opens the store and finds the models. Must be called within a tokio runtime with time and I/O, on which everything
    /// then runs: keep that runtime. No thread is loaded until it is used.
    ///
    /// # Errors
    /// [`OpenError`] with the code `internal` and a `reason` when the store cannot be opened: a file that is no database, a
    /// directory that cannot be written, a database of a newer version, and so on. Nothing is changed then.
    ///
    /// Looking for models, where none are given, goes on in the background.
    pub async fn open(options: Options) -> Result<Self, OpenError> {
        let session_dir = session_dir(options.home, options.session_dir)?;
        let source = match options.models {
            Some(models) => ModelSource::Known(models),
            None => ModelSource::Search(Box::new(|| {
                Box::pin(async {
                    let lookup = |name: &str| std::env::var(name).ok();
                    Models::from_environment(lookup, TimeLimits::default()).await
                })
            })),
        };
        let mut engine_options = raddle_engine::Options::new(session_dir);
        engine_options.default_model = options.default_model;
        engine_options.hidden_env =
            engine_options.hidden_env.iter().cloned().chain(options.hidden_env).collect();
        set(&mut engine_options.retry, options.retry);
        set(&mut engine_options.model_limits, options.model_limits);
        set(&mut engine_options.heartbeat, options.heartbeat);
        set(&mut engine_options.takeover_after, options.takeover_after);
        set(&mut engine_options.unload_after, options.unload_after);
        let tools = options.tools.unwrap_or_else(Toolbox::builtin);
        let engine =
            Engine::open(engine_options, source, tools).await.map_err(|error| OpenError(error.into()))?;
        let server_options = ServerOptions {
            shutdown: options.shutdown.unwrap_or_default(),
            standing_warnings: options.standing_warnings,
            ..ServerOptions::default()
        };
        let server = Server::with_options(engine, server_options);
        let inner = Inner { server, runtime: tokio::runtime::Handle::current() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// A client in this process, connected and initialised. The same as [`create_in_process_client`].
    ///
    /// # Errors
    /// [`ClientError`] when the engine is shutting down.
    pub async fn client(&self, name: &str, version: &str) -> Result<Client, ClientError> {
        let info = ClientInfo { name: name.to_owned(), version: version.to_owned() };
        create_in_process_client(self, info, ClientCapabilities::default()).await
    }

    /// The server, for transports other than the process's own memory.
    pub fn server(&self) -> &Server {
        &self.inner.server
    }

    /// Closes all threads and connections: running turns end as interrupted, every accepted request is answered, and nothing
    /// can be written any more. Takes ten seconds at most.
    pub async fn close(&self) {
        self.inner.server.shut_down().await;
    }
}

/// Connects a client to an engine in the same process and completes the handshake.
///
/// # Errors
/// What the server answers to `initialize`, or [`ClientError::Closed`].
pub async fn create_in_process_client(
    raddle: &Raddle,
    client_info: ClientInfo,
    capabilities: ClientCapabilities,
) -> Result<Client, ClientError> {
    Client::connect(raddle.server(), &raddle.inner.runtime, client_info, capabilities).await
}

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

/// Where the store lies.
fn session_dir(home: Option<PathBuf>, session_dir: Option<PathBuf>) -> Result<PathBuf, OpenError> {
    if let Some(session_dir) = session_dir {
        return Ok(session_dir);
    }
    // A host that names a home means it, whatever the environment says.
    if let Some(home) = home {
        return Ok(home);
    }
    if let Some(session_dir) = std::env::var_os("RADDLE_SESSION_DIR").filter(|path| !path.is_empty()) {
        return Ok(session_dir.into());
    }
    // Here the setting `sessionDir` of the home's settings file comes in.
    default_home()
}

fn default_home() -> Result<PathBuf, OpenError> {
    if let Some(home) = std::env::var_os("RADDLE_HOME").filter(|home| !home.is_empty()) {
        return Ok(home.into());
    }
    std::env::home_dir().map(|home| home.join(".raddle")).ok_or_else(|| {
        let message = "there is no home directory to keep threads in: set RADDLE_HOME, or give `home`";
        OpenError(raddle_protocol::RpcError::invalid_params(message).with_reason("noHome"))
    })
}
