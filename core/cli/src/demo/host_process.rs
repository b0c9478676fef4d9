//! The host process as its parent sees it: started, listened to, killed.
//!
//! Neighbours: report.

use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use raddle::protocol::ModelRef;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::report::Report;

/// A running `raddle demo-host`. Dropping it kills the process.
pub(crate) struct HostProcess {
    child: Child,
    reports: BufReader<ChildStdout>,
    /// The line that is being read.
    line: Vec<u8>,
    /// As long as this is open, the host knows that its parent lives.
    _stdin: Option<ChildStdin>,
}

impl HostProcess {
    /// Starts the host.
    ///
    /// # Errors
    /// When this program cannot be started a second time.
    pub(crate) fn start(home: &Path, project: &Path, model: &ModelRef) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        // Ctrl-C is for the parent, who then ends the host.
        #[cfg(unix)]
        command.process_group(0);
        let mut child = command
            .arg("demo-host")
            .arg("--home")
            .arg(home)
            .arg("--project")
            .arg(project)
            .arg("--model")
            .arg(model.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("the host has no output"))?;
        let stdin = child.stdin.take();
        Ok(Self { child, reports: BufReader::new(stdout), line: Vec::new(), _stdin: stdin })
    }

    /// The host's process id, while it runs.
    pub(crate) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// The next report; `None` when the host is gone. A last line without an end is none: the host died while it wrote.
    ///
    /// # Errors
    /// When the pipe cannot be read, or holds something else than reports.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Report>> {
        // What was read of a line stays in `line` when the future is dropped.
        self.reports.read_until(b'\n', &mut self.line).await?;
        if self.line.last() != Some(&b'\n') {
            return Ok(None);
        }
        let report = serde_json::from_slice(&self.line)?;
        self.line.clear();
        Ok(Some(report))
    }

    /// Kills the process, on Unix with SIGKILL, and waits until it is gone. What it wrote can still be read.
    ///
    /// # Errors
    /// When the process cannot be waited for.
    pub(crate) async fn kill(&mut self) -> io::Result<ExitStatus> {
        // It may be gone already, which the status tells.
        let _ = self.child.start_kill();
        self.child.wait().await
    }
}

/// How a process ended, in words.
pub(crate) fn ending(status: ExitStatus) -> String {
    #[cfg(unix)]
    {
        use std::os::unix::process::ExitStatusExt as _;
        if let Some(signal) = status.signal() {
            return format!("by signal {signal}");
        }
    }
    match status.code() {
        Some(code) => format!("with exit code {code}"),
        None => "without an exit code".to_owned(),
    }
}
