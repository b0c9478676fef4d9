//! Running one command: start, watch, drain or stop.
//!
//! Neighbours: context, error, process.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Pid;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};

use crate::context::ToolContext;
use crate::error::ToolError;
use crate::process::{Call, MARK_VARIABLE};

use super::DRAIN_GRACE;
use super::capture::Capture;

/// How many bytes are read at a time.
const READ_BYTES: usize = 64 * 1024;

/// How many bytes are read at the end without waiting. A pipe holds no more of what was written before the
/// shell ended, so nothing of it is lost; an endless writer does not keep the call.
const LAST_BYTES_MAX: usize = 1024 * 1024;

/// How long a call waits for a shell that was sent SIGKILL. A process that hangs in the kernel outlives that;
/// the call does not.
const REAP_TIME_MAX: Duration = Duration::from_secs(1);

/// What commands find in their environment, beside what the host has in its own: no pager and no prompt waits
/// for a person, and nothing draws on a screen that is not there.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("TERM", "dumb"),
    ("PAGER", "cat"),
    ("GIT_PAGER", "cat"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_EDITOR", "true"),
];

/// The programs that run commands.
#[derive(Debug)]
pub(super) struct Shell {
    program: PathBuf,
    /// Gives the shell a session of its own. Then it has no terminal that it could stop and wait at.
    setsid: Option<PathBuf>,
}

impl Shell {
    /// Looks for `bash`, else `sh`, in `PATH` and where they usually are.
    pub(super) fn find() -> Self {
        let program = find_program("bash").or_else(|| find_program("sh"));
        Self { program: program.unwrap_or_else(|| PathBuf::from("/bin/sh")), setsid: find_program("setsid") }
    }

    pub(super) fn name(&self) -> String {
        let name = self.program.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Starts the shell. Its output, standard and error, goes into one pipe, so their order is kept.
    fn start(&self, script: &str, cx: &ToolContext, mark: OsString) -> io::Result<(Child, pipe::Receiver)> {
        let (reader, writer) = io::pipe()?;
        let output = pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?;
        let mut command = match &self.setsid {
            // Started as it is here, setsid becomes the shell instead of forking: the number stays the same.
            Some(setsid) => {
                let mut command = Command::new(setsid);
                command.arg(&self.program);
                command
            }
            None => {
                let mut command = Command::new(&self.program);
                command.process_group(0);
                command
            }
        };
        // A script that begins with a dash would be taken for an option.
        let space = if script.starts_with(['-', '+']) { " " } else { "" };
        command
            .arg("-c")
            .arg(format!("{space}{script}"))
            .current_dir(&cx.cwd)
            .envs(ENVIRONMENT.iter().copied())
            .env(MARK_VARIABLE, mark)
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .kill_on_drop(true);
        for name in cx.hidden_env.iter() {
            command.env_remove(name);
        }
        // The command holds our copies of the pipe's other end, and is dropped here.
        Ok((command.spawn()?, output))
    }
}

fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/bin", "/usr/bin", "/usr/local/bin"].map(PathBuf::from);
    let directories = std::env::split_paths(&path).filter(|directory| directory.is_absolute());
    directories.chain(usual).map(|directory| directory.join(name)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;

    std::fs::metadata(path)
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// How a command ended.
#[derive(Debug)]
pub(super) enum End {
    /// The shell ended, with this status if the system gave it.
    Exited {
        status: Option<ExitStatus>,
        /// The processes that it is known to have left running.
        left: Vec<Pid>,
        /// Some process still holds the output, known or not.
        holds_output: bool,
        /// To leave them running, those of an older call had to be ended.
        ended_older: bool,
    },
    Cancelled,
    TimedOut,
}

/// Runs `script`, and returns what it wrote and how it ended.
pub(super) async fn run(
    shell: &Shell,
    script: &str,
    limit: Duration,
    cx: ToolContext,
) -> Result<(String, End), ToolError> {
    if cx.cancel.is_cancelled() {
        return Err(ToolError::cancelled());
    }
    let mut call = cx.processes.begin();
    let (child, output) = shell.start(script, &cx, call.mark()).map_err(|source| {
        if cx.cwd.is_dir() {
            ToolError::io(format!("start {}", shell.program.display()), source)
        } else {
            ToolError::failed(format!("the working directory {} does not exist", cx.cwd.display()))
        }
    })?;
    let number = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    if let Some(number) = number {
        call.started(number);
    }
    let mut running = Running {
        child,
        output: Some(output),
        capture: Capture::new(cx.sink.clone()),
        buffer: vec![0; READ_BYTES],
    };

    let watched = tokio::select! {
        biased;
        () = cx.cancel.cancelled() => Watched::Cancelled,
        () = tokio::time::sleep(limit) => Watched::TimedOut,
        status = running.watch() => Watched::Exited(status),
    };
    let end = match watched {
        Watched::Exited(status) => {
            call.shell_is_gone();
            running.drain().await;
            let left = call.left_running(running.output.is_some()).await;
            // Asked again: who held the output may just have ended.
            running.take_last_bytes();
            let holds_output = running.output.is_some();
            let ended_older = if left.is_empty() && !holds_output {
                call.settle();
                false
            } else {
                call.leave(running.output.take()).await
            };
            End::Exited { status, left, holds_output, ended_older }
        }
        stopped => {
            running.stop(&call).await;
            call.settle();
            match stopped {
                Watched::Cancelled => End::Cancelled,
                _ => End::TimedOut,
            }
        }
    };
    Ok((running.capture.finish(), end))
}

enum Watched {
    Exited(Option<ExitStatus>),
    Cancelled,
    TimedOut,
}

struct Running {
    child: Child,
    /// Nothing once all its other ends are closed.
    output: Option<pipe::Receiver>,
    capture: Capture,
    buffer: Vec<u8>,
}

impl Running {
    /// Takes output until the shell ends. Whether the output is closed does not matter: a child in the
    /// background may hold it open, and a shell may close it early.
    ///
    /// Cancel safe: what was read is in the capture.
    async fn watch(&mut self) -> Option<ExitStatus> {
        loop {
            tokio::select! {
                biased;
                status = self.child.wait() => return exit_status(status),
                () = self.capture.send(), if self.capture.is_pending() => {}
                read = read(&mut self.output, &mut self.buffer), if self.capture.has_room() => {
                    self.took(read);
                }
            }
        }
    }

    /// Takes what was written before the shell ended, and waits [`DRAIN_GRACE`] for what its last children
    /// still write.
    async fn drain(&mut self) {
        self.take_last_bytes();
        self.capture.try_send();
        let mut grace = pin!(tokio::time::sleep(DRAIN_GRACE));
        while self.output.is_some() {
            tokio::select! {
                biased;
                () = &mut grace => break,
                read = read(&mut self.output, &mut self.buffer) => self.took(read),
            }
            self.capture.try_send();
        }
        self.take_last_bytes();
    }

    /// Ends the call's processes, and takes what they write while they end.
    async fn stop(&mut self, call: &Call) {
        let mut ending = pin!(call.end());
        let mut is_waited_for = false;
        loop {
            tokio::select! {
                biased;
                () = &mut ending => break,
                _ = self.child.wait(), if !is_waited_for => {
                    is_waited_for = true;
                    call.shell_is_gone();
                }
                read = read(&mut self.output, &mut self.buffer) => self.took(read),
            }
            self.capture.try_send();
        }
        if !is_waited_for {
            match tokio::time::timeout(REAP_TIME_MAX, self.child.wait()).await {
                Ok(_) => call.shell_is_gone(),
                Err(_) => tracing::warn!("a shell outlives SIGKILL; going on without it"),
            }
        }
        self.take_last_bytes();
    }

    fn took(&mut self, read: io::Result<usize>) {
        match read {
            Ok(read) if read > 0 => self.capture.take(&self.buffer[..read]),
            _ => self.output = None,
        }
    }

    /// Takes what is in the pipe now, without waiting. Asks the pipe itself, for the runtime may not have heard
    /// yet that there is something.
    fn take_last_bytes(&mut self) {
        let mut left = LAST_BYTES_MAX;
        while left > 0
            && let Some(output) = &self.output
        {
            match rustix::io::read(output, &mut self.buffer) {
                Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::INTR) => {}
                Ok(read) if read > 0 => {
                    left = left.saturating_sub(read);
                    self.took(Ok(read));
                }
                _ => self.output = None,
            }
        }
    }
}

/// Reads from the output, or waits for ever once it is closed. Cancel safe.
async fn read(output: &mut Option<pipe::Receiver>, buffer: &mut [u8]) -> io::Result<usize> {
    match output {
        Some(output) => output.read(buffer).await,
        None => std::future::pending().await,
    }
}

fn exit_status(waited: io::Result<ExitStatus>) -> Option<ExitStatus> {
    // A host that ignores SIGCHLD takes the status away. The command has ended all the same.
    waited.map_err(|error| tracing::warn!(%error, "a shell's exit status is lost")).ok()
}
