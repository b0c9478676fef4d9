//! A server as a child process: started, listened to, ended.
//!
//! Neighbours: error.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use raddle_server::transport::lines::{Line, LineSplitter};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use crate::client::FAR_END_AFTER;
use crate::error::ClientError;

/// Bytes of a line of a child's standard error that is logged; a longer line is dropped.
const LOG_LINE_BYTES_MAX: usize = 8 * 1024;

/// How a server's process is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpawnOptions {
    /// What becomes of its standard error.
    pub stderr: ServerStderr,
    /// How long it may take to end once its input is closed; then it is killed.
    pub ends_after: Duration,
}

impl Default for SpawnOptions {
    fn default() -> Self {
        Self { stderr: ServerStderr::Logged, ends_after: FAR_END_AFTER }
    }
}

/// What becomes of the standard error of a server's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerStderr {
    /// Each line is an event of `tracing`, of level `INFO` and target `raddle::server_process`. A line of more than
    /// 8 KiB is dropped.
    Logged,
    /// It goes where this process's does.
    Inherited,
    /// It goes nowhere.
    Dropped,
}

/// A running process. Dropping it kills the process.
pub(crate) struct ServerProcess {
    child: Child,
    logging: Option<JoinHandle<()>>,
}

impl ServerProcess {
    /// Starts it, and returns it with what it says and what it hears.
    pub(crate) fn start(
        mut command: Command,
        stderr: ServerStderr,
    ) -> Result<(Self, ChildStdout, ChildStdin), ClientError> {
        let stderr = match stderr {
            ServerStderr::Logged => Stdio::piped(),
            ServerStderr::Inherited => Stdio::inherit(),
            ServerStderr::Dropped => Stdio::null(),
        };
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr).kill_on_drop(true);
        let failed =
            |error: std::io::Error| ClientError::Spawn { kind: error.kind(), message: error.to_string() };
        let mut child = command.spawn().map_err(failed)?;
        let (Some(stdout), Some(stdin)) = (child.stdout.take(), child.stdin.take()) else {
            return Err(failed(std::io::Error::other("the process has no standard streams")));
        };
        let process = child.id().unwrap_or_default();
        let logging = child.stderr.take().map(|stderr| tokio::spawn(log(stderr, process)));
        Ok((Self { child, logging }, stdout, stdin))
    }

    pub(crate) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits for its end, and kills it if that does not come in time.
    pub(crate) async fn end(mut self, ends_at: Instant) -> Option<ExitStatus> {
        let status = match timeout_at(ends_at, self.child.wait()).await {
            Ok(status) => status,
            Err(_) => {
                tracing::warn!(process = self.child.id(), "the server did not end in time and is killed");
                // It may be gone by now, which the status tells.
                let _ = self.child.start_kill();
                self.child.wait().await
            }
        };
        if let Ok(status) = &status
            && !status.success()
        {
            tracing::warn!(%status, "the server ended with a failure");
        }
        // Its last lines; a process that it left behind may keep the pipe open.
        if let Some(logging) = &mut self.logging {
            let _ = timeout_at(ends_at, logging).await;
        }
        status.ok()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        if let Some(logging) = &self.logging {
            logging.abort();
        }
    }
}

async fn log(stderr: ChildStderr, process: u32) {
    each_line(stderr, |line| {
        tracing::info!(target: "raddle::server_process", process, "{line}");
    })
    .await;
}

async fn each_line(mut reader: impl AsyncRead + Unpin, mut told: impl FnMut(&str)) {
    let mut splitter = LineSplitter::new(LOG_LINE_BYTES_MAX);
    let mut chunk = vec![0; LOG_LINE_BYTES_MAX];
    let mut has_ended = false;
    while !has_ended {
        match reader.read(&mut chunk).await {
            Ok(count) if count > 0 => splitter.push(&chunk[..count]),
            _ => {
                splitter.finish();
                has_ended = true;
            }
        }
        while let Some(line) = splitter.next_line() {
            match line {
                Line::Text(text) => told(&String::from_utf8_lossy(text)),
                Line::TooLong => told("(a line that is too long)"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn p7_a_line_that_is_too_long_for_the_log_is_not_kept() {
        let text = [b"one\n".to_vec(), vec![b'x'; 3 * LOG_LINE_BYTES_MAX], b"\nla\xFFst".to_vec()].concat();
        let mut lines = Vec::new();
        each_line(text.as_slice(), |line| lines.push(line.to_owned())).await;
        assert_eq!(lines, ["one", "(a line that is too long)", "la\u{FFFD}st"]);
    }
}
