//! `raddle demo`: the main path, in the directory where it stands, with what the machine has.
//!
//! A child process hosts two threads and runs a turn on each at the same time. This process prints what the child's client
//! is sent, kills the child in the middle of a third turn, opens the same store itself, and compares what is saved with
//! what was printed.

mod check;
mod host_process;
mod ledger;
mod model;
mod narrator;
mod prompts;
mod report;
mod screen;

pub(crate) use model::Choice;
pub(crate) use prompts::{COMMAND, Prompts};
pub(crate) use report::{Lane, Report, Reporter, Step};

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use raddle::engine::models::{Models, ModelsConfig};
use raddle::protocol::methods::ServerNotification;
use raddle::protocol::{ModelRef, TurnStatus};
use raddle::{Options, Raddle};
use tempfile::TempDir;
use tokio::time::{Instant, timeout, timeout_at};

use check::{Compared, compare};
use host_process::{HostProcess, ending};
use narrator::{Narrator, usage};
use screen::{Flow, Screen, Style};

/// The story is cut after this many pieces of it, …
const PIECES_BEFORE_CUT: usize = 45;

/// … or after this many characters, for a provider that sends few large pieces.
const CHARS_BEFORE_CUT: usize = 800;

/// How long a killed process may take to be gone, and a store to be opened and read.
const LOCAL_TIME_MAX: Duration = Duration::from_secs(30);

/// Show Raddle at work in this directory: two threads at once, an approval, a kill, and nothing lost.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// The model, as `provider/model`; by default one that the machine has.
    #[arg(long, value_name = "PROVIDER/MODEL")]
    model: Option<ModelRef>,
    /// Where the threads are kept; by default a temporary directory that is removed at the end.
    #[arg(long, value_name = "DIR")]
    home: Option<PathBuf>,
    /// The project to work in; by default the current directory.
    #[arg(long, value_name = "DIR", default_value = ".")]
    project: PathBuf,
    /// How long each step may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 180, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

/// Why the demo did not show what it is to show.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// What was printed and what is known or saved are not the same.
    #[error("what was shown does not hold: {0}")]
    Mismatch(String),
    /// Something that the demo needs is not there.
    #[error("{0}")]
    Setup(String),
    /// The host process failed or ended.
    #[error("the host process {0}")]
    Host(String),
    /// A step took too long.
    #[error("{0}")]
    TimedOut(String),
    /// A turn failed, so the rest was not shown.
    #[error("the turn of thread {0} failed; what to do stands beside it")]
    Turn(Lane),
    /// The screen or the pipe from the host broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Ctrl-C.
    #[error("stopped")]
    Stopped,
}

impl Demo {
    /// Runs the demo. Its last line is `demo: ok`, or else says what went wrong.
    pub(crate) async fn run(self) -> ExitCode {
        let mut narrator = Narrator::new(Screen::stdout());
        let outcome = self.show(&mut narrator).await;
        let (style, verdict, code) = match outcome {
            Ok(()) => (Style::Good, "ok".to_owned(), ExitCode::SUCCESS),
            Err(failure @ Failure::Stopped) => (Style::Plain, failure.to_string(), ExitCode::from(130)),
            Err(failure) => (Style::Bad, format!("failed: {failure}"), ExitCode::FAILURE),
        };
        // A screen that is gone can be told nothing.
        let _ = narrator.screen.line(Style::Plain, "");
        let _ = narrator.screen.line(style, &format!("demo: {verdict}"));
        code
    }

    async fn show<W: Write>(&self, narrator: &mut Narrator<W>) -> Result<(), Failure> {
        let setup = |what: &str, path: &Path, error: io::Error| {
            Failure::Setup(format!("{what} {} cannot be used: {error}", path.display()))
        };
        let project =
            self.project.canonicalize().map_err(|error| setup("the project", &self.project, error))?;
        let home = Home::new(self.home.as_deref()).map_err(|error| {
            setup("the home", self.home.as_deref().unwrap_or(&std::env::temp_dir()), error)
        })?;
        let choice =
            stoppable(async { Choice::make(self.model.clone()).await.map_err(Failure::Setup) }).await?;
        introduce(&mut narrator.screen, &choice, &project, &home)?;

        let mut host = HostProcess::start(home.path(), &project, &choice.model)
            .map_err(|error| Failure::Host(format!("cannot be started: {error}")))?;
        let watched = stoppable(self.watch(narrator, &mut host, &choice.model)).await;
        // Gone before its home is, whatever happened.
        let _ = host.kill().await;
        watched?;

        narrator.screen.heading("3. The same store, opened by another process")?;
        stoppable(verify(narrator, home.path())).await?;
        match &home {
            Home::Kept(path) => narrator
                .screen
                .paragraph(Style::Dim, &format!("\nThe threads stay in {}.", path.display()))?,
            Home::Temporary(_) => {}
        }
        Ok(())
    }

    /// Steps 1 and 2: watches the host until it has been killed and its last word was read.
    async fn watch<W: Write>(
        &self,
        narrator: &mut Narrator<W>,
        host: &mut HostProcess,
        model: &ModelRef,
    ) -> Result<(), Failure> {
        let patience = Duration::from_secs(self.timeout);
        let mut deadline = Instant::now() + patience;
        let mut story = None;
        loop {
            let report = match timeout_at(deadline, host.next()).await {
                Err(_) => return Err(self.too_slow(narrator, model)),
                Ok(report) => report?,
            };
            match report {
                None => {
                    let status = host.kill().await?;
                    return Err(Failure::Host(format!("ended {}, which nobody asked for", ending(status))));
                }
                Some(Report::Step { step: Step::Together }) => {
                    narrator
                        .screen
                        .heading("1. Two threads in one process, a turn on each at the same time")?;
                }
                Some(Report::Step { step: Step::Story }) => {
                    after_together(narrator)?;
                    narrator.screen.heading("2. A long turn on thread A, and a kill in the middle of it")?;
                    narrator.screen.flow(Flow::Words);
                    story = Some(Story::default());
                    deadline = Instant::now() + patience;
                }
                // The model was faster; what is saved is worth a look even so.
                Some(Report::Finished) => return kill(narrator, host).await,
                Some(report) => {
                    if let Some(story) = &mut story {
                        story.count(&report);
                    }
                    tell(narrator, report)?;
                }
            }
            if story.as_ref().is_some_and(Story::is_long_enough) {
                return kill(narrator, host).await;
            }
        }
    }

    fn too_slow<W: Write>(&self, narrator: &Narrator<W>, model: &ModelRef) -> Failure {
        let running: Vec<String> = narrator.ledger.running().iter().map(Lane::to_string).collect();
        let what = match running.as_slice() {
            [] => "the host process was not ready".to_owned(),
            [one] => format!("the turn of thread {one} had not ended"),
            more => format!("the turns of threads {} had not ended", more.join(" and ")),
        };
        Failure::TimedOut(format!(
            "after {} s {what}. The model {model} is slow or silent: try another with --model, or give it longer with \
             --timeout",
            self.timeout
        ))
    }
}

/// Gives up when Ctrl-C is pressed. The host is in a process group of its own, so it is not stopped by the same key but by us.
async fn stoppable<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::select! {
        outcome = work => outcome,
        _ = tokio::signal::ctrl_c() => Err(Failure::Stopped),
    }
}

/// Where the threads are kept.
enum Home {
    /// Where the user wants them.
    Kept(PathBuf),
    /// Until the demo ends.
    Temporary(TempDir),
}

impl Home {
    fn new(wanted: Option<&Path>) -> io::Result<Self> {
        match wanted {
            Some(path) => std::path::absolute(path).map(Self::Kept),
            None => tempfile::Builder::new().prefix("raddle-demo-").tempdir().map(Self::Temporary),
        }
    }

    fn path(&self) -> &Path {
        match self {
            Self::Kept(path) => path,
            Self::Temporary(directory) => directory.path(),
        }
    }
}

/// How much of the story was seen.
#[derive(Debug, Default)]
struct Story {
    pieces: usize,
    chars: usize,
}

impl Story {
    fn count(&mut self, report: &Report) {
        if let Some(ServerNotification::ItemAgentMessageDelta(delta)) = notification(report) {
            self.pieces += 1;
            self.chars += delta.delta.chars().count();
        }
    }

    fn is_long_enough(&self) -> bool {
        self.pieces >= PIECES_BEFORE_CUT || self.chars >= CHARS_BEFORE_CUT
    }
}

fn introduce<W: Write>(
    screen: &mut Screen<W>,
    choice: &Choice,
    project: &Path,
    home: &Home,
) -> Result<(), Failure> {
    screen.line(
        Style::Bold,
        &format!("Raddle {}: threads of LLM agents, in one process", env!("CARGO_PKG_VERSION")),
    )?;
    screen.line(Style::Plain, "")?;
    screen.fact("model", &format!("{}\n{}", choice.model, choice.reason))?;
    screen.fact("project", &project.display().to_string())?;
    let fate = match home {
        Home::Kept(_) => "it stays there",
        Home::Temporary(_) => "for this demo alone, removed at its end",
    };
    screen.fact("store", &format!("{}\n{fate}", home.path().display()))?;
    Ok(())
}

/// What a report says, if it is about a notification that this version knows.
fn notification(report: &Report) -> Option<ServerNotification> {
    match report {
        Report::Notification { method, params } => ServerNotification::decode(method, params.clone()).ok(),
        _ => None,
    }
}

/// Tells what happened, and remembers that it was told.
fn tell<W: Write>(narrator: &mut Narrator<W>, report: Report) -> Result<(), Failure> {
    match report {
        Report::Thread { lane, id } => {
            narrator.ledger.name(lane, id);
            Ok(())
        }
        Report::Notification { method, params } => {
            let notification = ServerNotification::decode(&method, params).map_err(|error| {
                Failure::Host(format!("sent a notification that cannot be read: {error}"))
            })?;
            narrator.notification(&notification)
        }
        Report::Approval { ask, decision } => narrator.approval(&ask, decision),
        Report::Failed { message } => Err(Failure::Host(format!("failed: {message}"))),
        // The steps are for the one who watches.
        Report::Step { .. } | Report::Finished => Ok(()),
    }
}

/// Between the steps: what the threads used, and what a model left out.
fn after_together<W: Write>(narrator: &mut Narrator<W>) -> Result<(), Failure> {
    narrator.screen.line(Style::Plain, "")?;
    for lane in Lane::ALL {
        let shown = narrator.ledger.of(lane);
        let used = shown.usage.as_ref().map_or("none reported".to_owned(), usage);
        let silent = if shown.has_called() || narrator.ledger.failure().is_some() {
            ""
        } else {
            "; the model called no tool, so there was none to show"
        };
        narrator.screen.paragraph(Style::Plain, &format!("usage of thread {lane}: {used}{silent}"))?;
    }
    check_failures(narrator)
}

/// Kills the host, and reads what it had still sent: that was shown to its client, so it counts.
async fn kill<W: Write>(narrator: &mut Narrator<W>, host: &mut HostProcess) -> Result<(), Failure> {
    let process = host.id().map_or("the host".to_owned(), |id| format!("process {id}"));
    let slow = |_| Failure::TimedOut("the killed process did not go away".to_owned());
    let status = timeout(LOCAL_TIME_MAX, host.kill()).await.map_err(slow)??;
    while let Some(report) = timeout(LOCAL_TIME_MAX, host.next()).await.map_err(slow)?? {
        tell(narrator, report)?;
    }
    narrator.screen.line(Style::Plain, "")?;
    let when = if narrator.ledger.running().is_empty() {
        "after the model was done, which was faster than the kill,"
    } else {
        "in mid-sentence"
    };
    let remark =
        format!("{process} was killed {when} and ended {}: no farewell, no clean-up.", ending(status));
    narrator.screen.paragraph(Style::Bad, &remark)?;
    check_failures(narrator)
}

fn check_failures<W: Write>(narrator: &Narrator<W>) -> Result<(), Failure> {
    match narrator.ledger.failure() {
        Some((lane, _)) => Err(Failure::Turn(lane)),
        None => Ok(()),
    }
}

/// Step 3: reads the threads, and compares them with what was shown.
async fn verify<W: Write>(narrator: &mut Narrator<W>, home: &Path) -> Result<(), Failure> {
    let read = timeout(LOCAL_TIME_MAX, read_all(narrator, home)).await;
    let all = read.map_err(|_| {
        Failure::TimedOut(format!("the store could not be read within {} s", LOCAL_TIME_MAX.as_secs()))
    })??;
    table(&mut narrator.screen, &all)?;
    for compared in &all {
        if let Some(cut) = compared.cut {
            let reads = match cut.status {
                TurnStatus::Interrupted => "`interrupted`",
                TurnStatus::Completed => "`completed`, for it ended in the instant of the kill",
                TurnStatus::InProgress | TurnStatus::Failed => "wrong",
            };
            let remark = format!(
                "\nThe turn of thread {} that was cut reads {reads}, with all {} characters that were printed of it.",
                compared.lane, cut.chars_shown
            );
            narrator.screen.paragraph(Style::Plain, &remark)?;
        }
    }
    let problems: Vec<&str> =
        all.iter().flat_map(|compared| &compared.problems).map(String::as_str).collect();
    if problems.is_empty() { Ok(()) } else { Err(Failure::Mismatch(problems.join("; "))) }
}

async fn read_all<W: Write>(narrator: &Narrator<W>, home: &Path) -> Result<Vec<Compared>, Failure> {
    let unreadable =
        |error: &dyn std::error::Error| Failure::Setup(format!("the store cannot be read: {error}"));
    // Reading needs no model.
    let models = Models::new(ModelsConfig::default());
    let options = Options { models: Some(models), ..Options::in_home(home) };
    let raddle = Raddle::open(options).await.map_err(|error| unreadable(&error))?;
    let client =
        raddle.client("raddle demo", env!("CARGO_PKG_VERSION")).await.map_err(|error| unreadable(&error))?;
    let mut all = Vec::new();
    for lane in Lane::ALL {
        let compared = compare(&client, lane, narrator.ledger.of(lane)).await;
        all.push(compared.map_err(|error| unreadable(&error))?);
    }
    raddle.close().await;
    Ok(all)
}

fn table<W: Write>(screen: &mut Screen<W>, all: &[Compared]) -> Result<(), Failure> {
    screen.line(Style::Plain, "What the dead process had sent, and what `thread/read` finds:")?;
    screen.line(Style::Plain, "")?;
    let head = "thread   turns   items   characters sent   characters found";
    screen.line(Style::Bold, &format!("  {head}"))?;
    for row in all {
        let same = if row.problems.is_empty() { "all there" } else { "NOT THE SAME" };
        let style = if row.problems.is_empty() { Style::Good } else { Style::Bad };
        let text = format!(
            "  {:<6} {:>7} {:>7} {:>17} {:>18}   {same}",
            row.lane.to_string(),
            row.turns,
            row.items,
            row.chars_shown,
            row.chars_found
        );
        screen.line(style, &text)?;
    }
    Ok(())
}
