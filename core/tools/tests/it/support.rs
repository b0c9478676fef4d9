//! What the tests share: a directory of their own, and waiting for processes without sleeping.

use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use raddle_tools::{OutputSink, ToolContext, ToolError, ToolOutput, Toolbox};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc::Receiver;

/// How long anything in a test may take before it counts as hanging.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits, but not for ever.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what} hangs"))
}

/// A directory of its own, and a context in it.
pub(crate) struct World {
    pub(crate) cx: ToolContext,
    tools: Toolbox,
    directory: TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        let directory = TempDir::new().expect("a directory");
        Self { cx: ToolContext::new(directory.path()), tools: Toolbox::builtin(), directory }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).expect("writes");
    }

    pub(crate) async fn run(&self, tool: &str, input: Value) -> Result<ToolOutput, ToolError> {
        let tool = self.tools.get(tool).expect("a built-in tool");
        soon("a call", tool.run(input, self.cx.clone())).await
    }

    /// The text of a call that must go well.
    pub(crate) async fn text(&self, tool: &str, input: Value) -> String {
        let output = self.run(tool, input).await.expect("goes well");
        assert!(!output.is_error, "{}", output.text);
        output.text
    }

    /// What a model is told of a call that must fail.
    pub(crate) async fn refusal(&self, tool: &str, input: Value) -> String {
        self.run(tool, input).await.expect_err("fails").to_string()
    }

    pub(crate) async fn bash(&self, command: &str) -> ToolOutput {
        self.run("bash", json!({ "command": command })).await.expect("runs")
    }

    /// From now on live output comes out of the receiver.
    pub(crate) fn watch(&mut self, capacity: usize) -> Receiver<String> {
        let (sink, pieces) = OutputSink::channel(capacity);
        self.cx.sink = sink;
        pieces
    }
}

/// Takes pieces until all of them together end in `end`.
pub(crate) async fn until(pieces: &mut Receiver<String>, end: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(end) {
        let piece = soon("live output", pieces.recv()).await;
        text += &piece.unwrap_or_else(|| panic!("live output ended with {text:?}, before {end:?}"));
    }
    text
}

#[cfg(unix)]
pub(crate) fn make_fifo(path: &Path) {
    let status = std::process::Command::new("mkfifo").arg(path).status().expect("mkfifo runs");
    assert!(status.success());
}

/// A pipe that processes of a command hold open. It ends when the last of them is gone, whoever it was.
#[cfg(unix)]
pub(crate) struct Lifeline {
    reader: tokio::net::unix::pipe::Receiver,
    path: PathBuf,
}

#[cfg(unix)]
impl Lifeline {
    pub(crate) fn new(world: &World, name: &str) -> Self {
        let path = world.path(name);
        make_fifo(&path);
        let reader = tokio::net::unix::pipe::OpenOptions::new().open_receiver(&path).expect("opens");
        Self { reader, path }
    }

    /// The command, run so that all its processes hold the pipe.
    pub(crate) fn hold(&self, command: &str) -> String {
        format!("exec 9>'{}'; {command}", self.path.display())
    }

    /// Whether a process holds the pipe. To be asked only after one has opened it.
    pub(crate) fn is_held(&self) -> bool {
        match self.reader.try_read(&mut [0]) {
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
            Ok(read) => read > 0,
        }
    }

    /// Waits until the last process that holds the pipe is gone.
    pub(crate) async fn wait_for_end(mut self) {
        use tokio::io::AsyncReadExt as _;

        let mut rest = Vec::new();
        soon("a process", self.reader.read_to_end(&mut rest)).await.expect("reads");
    }
}

/// A gate that a command waits at, with `read _ < name`, until the test opens it.
#[cfg(unix)]
pub(crate) struct Gate(tokio::net::unix::pipe::Sender);

#[cfg(unix)]
impl Gate {
    pub(crate) fn new(world: &World, name: &str) -> Self {
        let path = world.path(name);
        make_fifo(&path);
        // Held open for reading too, so that it can be opened before the command comes to it.
        let sender = tokio::net::unix::pipe::OpenOptions::new().read_write(true).open_sender(path);
        Self(sender.expect("opens"))
    }

    pub(crate) fn open(&self) {
        self.0.try_write(b"go\n").expect("writes");
    }
}

#[cfg(unix)]
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
