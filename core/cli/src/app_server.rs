//! `raddle app-server`: the protocol on the standard streams, for one client, which is the process's only one.
//!
//! Standard output carries messages and nothing else; whatever is to be told to people goes to standard error. The end of
//! standard input, SIGINT and SIGTERM shut down, in ten seconds at most.
//!
//! Neighbours: none.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf, absolute};
use std::process::{ExitCode, exit};
use std::thread;
use std::time::Duration;

use clap::{Args, Command};
use raddle::protocol::thread::{Warning, WarningSource};
use raddle::server::transport::stdio::{ServerSink, ServerSource};
use raddle::server::{Server, ShutdownTimes};
use raddle::{Options, Raddle};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// For tests, which have no ten seconds: the milliseconds of [`ShutdownTimes`] in their order: `100,900,1000`.
const SHUTDOWN_VARIABLE: &str = "RADDLE_TEST_SHUTDOWN_MS";

/// Serve the protocol on standard input and output, until standard input ends.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct AppServer {
    /// Load this extension in each thread; may be given several times.
    #[arg(short = 'e', long = "extension", value_name = "PATH")]
    extensions: Vec<PathBuf>,
    /// Keep threads in this directory [default: $RADDLE_SESSION_DIR, else the home directory of Raddle].
    #[arg(long, value_name = "DIR")]
    session_dir: Option<PathBuf>,
    /// Print this on standard error.
    #[arg(short, long)]
    help: bool,
}

/// Why it ended with a failure.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Open(#[from] raddle::OpenError),
    #[error("--session-dir: {0}")]
    SessionDir(io::Error),
    #[error("signals cannot be received: {0}")]
    Signals(io::Error),
    #[error(
        "the end took too long: the client did not read the last of the output, or something does not stop"
    )]
    Late,
}

impl AppServer {
    /// Serves until the end. Does not return, but for a help or a failure to start: a read of standard input may hang for
    /// ever, and the runtime would wait for it.
    pub(crate) async fn run(self) -> ExitCode {
        if self.help {
            let help = AppServer::augment_args(Command::new("app-server").bin_name("raddle app-server"))
                .render_long_help();
            let _ = write!(io::stderr(), "{help}");
            return ExitCode::SUCCESS;
        }
        if io::stdin().is_terminal() {
            tell("this speaks a protocol of JSON lines and waits for a client; end it with Ctrl-D");
        }
        match self.serve().await {
            Ok(()) => exit(0),
            Err(failed) => {
                tell(&failed.to_string());
                exit(1)
            }
        }
    }

    async fn serve(self) -> Result<(), Failed> {
        let shutdown = std::env::var(SHUTDOWN_VARIABLE).ok().and_then(|text| shutdown_times(&text));
        let session_dir = self.session_dir.map(absolute).transpose().map_err(Failed::SessionDir)?;
        // Before anything that a signal could cut off.
        let (signalled, signals) = signals().map_err(Failed::Signals)?;
        let options = Options {
            session_dir,
            shutdown,
            standing_warnings: self.extensions.iter().map(|path| refused(path)).collect(),
            ..Options::default()
        };
        let raddle = Raddle::open(options).await?;
        let server = raddle.server();
        let ends_after = shutdown.unwrap_or_default().ends_after;
        let hard_end = hard_end(server.clone(), ends_after);
        let source = ServerSource::new(tokio::io::stdin());
        let sink = ServerSink::new(tokio::io::stdout());
        let stop = async {
            let mut signalled = signalled;
            // A sender that is gone signals nothing.
            if signalled.wait_for(|is_signalled| *is_signalled).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let is_whole = server.serve_alone(source, sink, stop).await;
        signals.abort();
        hard_end.abort();
        if is_whole { Ok(()) } else { Err(Failed::Late) }
    }
}

/// Extensions have no host yet, and none is to be passed over in silence.
fn refused(path: &Path) -> Warning {
    let path = absolute(path).unwrap_or_else(|_| path.to_owned());
    let message = match path.try_exists() {
        Ok(true) => "this version of Raddle cannot load extensions; the extension was refused".to_owned(),
        Ok(false) => "there is no such extension".to_owned(),
        Err(error) => format!("the extension cannot be read: {error}"),
    };
    tracing::warn!(path = %path.display(), "{message}");
    Warning {
        message,
        source: WarningSource::Extension,
        path: Some(path.display().to_string()),
        line: None,
        column: None,
    }
}

/// Ends the process when a shutdown has taken its time, even if nothing of the runtime runs any more.
fn hard_end(server: Server, ends_after: Duration) -> JoinHandle<()> {
    tokio::spawn(async move {
        server.stopping().await;
        let spawned = thread::Builder::new().name("hard end".to_owned()).spawn(move || {
            thread::sleep(ends_after);
            exit(1)
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "nothing will end this process should it hang");
        }
    })
}

/// A watch on the first signal that asks for an end; a second one ends the process at once.
#[cfg(unix)]
fn signals() -> io::Result<(watch::Receiver<bool>, JoinHandle<()>)> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let (sender, signalled) = watch::channel(false);
    let task = tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if sender.send_replace(true) {
                exit(1);
            }
        }
    });
    Ok((signalled, task))
}

/// A watch on the first Ctrl-C; a second one ends the process at once.
#[cfg(not(unix))]
fn signals() -> io::Result<(watch::Receiver<bool>, JoinHandle<()>)> {
    let (sender, signalled) = watch::channel(false);
    let task = tokio::spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() {
            if sender.send_replace(true) {
                exit(1);
            }
        }
    });
    Ok((signalled, task))
}

fn shutdown_times(text: &str) -> Option<ShutdownTimes> {
    let mut times = text.split(',').map(|millis| millis.trim().parse().ok().map(Duration::from_millis));
    let mut next = || times.next().flatten();
    Some(ShutdownTimes { accepted_first: next()?, answers_after: next()?, ends_after: next()? })
}

/// Says something to whoever looks at standard error.
fn tell(text: &str) {
    // When that cannot be written, there is nobody to tell.
    let _ = writeln!(io::stderr(), "raddle app-server: {text}");
}
