//! The process under test.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use raddle_tests::{raddle_binary, within};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

/// A machine that has nothing: a home for Raddle and a project, both empty.
pub(crate) struct Machine {
    directory: TempDir,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("project")).unwrap();
        Self { directory }
    }

    /// Where Raddle's home is, and by default the store.
    pub(crate) fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    /// The project: absolute, canonical.
    pub(crate) fn project(&self) -> PathBuf {
        self.directory.path().join("project").canonicalize().unwrap()
    }

    /// The command with these arguments, and an environment in which nothing is configured.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new(raddle_binary());
        command
            .args(arguments)
            .current_dir(self.project())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.directory.path())
            .env("RADDLE_HOME", self.home())
            .kill_on_drop(true);
        command
    }

    /// A server that has had no handshake.
    pub(crate) fn start(&self) -> Server {
        self.start_with::<&str>(&[], &[])
    }

    /// The same with arguments and environment.
    pub(crate) fn start_with<S: AsRef<OsStr>>(
        &self,
        arguments: &[S],
        environment: &[(&str, &str)],
    ) -> Server {
        let mut command = self.command(&["app-server"]);
        command
            .args(arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let complaints = child.stderr.take().unwrap();
        Server { child, input, output, complaints, last_id: 0, seen: Vec::new() }
    }

    /// A server after its handshake.
    pub(crate) async fn ready(&self) -> Server {
        let mut server = self.start();
        server.shake_hands().await;
        server
    }
}

/// A running `raddle app-server`. Dropping it kills the process.
pub(crate) struct Server {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    complaints: ChildStderr,
    last_id: i64,
    /// Notifications and requests of the server that came before an answer.
    seen: Vec<Value>,
}

/// A process that has ended.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// All that it said and that was not read before, with what came while answers were waited for.
    pub(crate) messages: Vec<Value>,
    /// Its standard error.
    pub(crate) complaints: String,
}

impl Ended {
    /// The messages of that method.
    pub(crate) fn of(&self, method: &str) -> Vec<&Value> {
        self.messages.iter().filter(|message| message["method"] == method).collect()
    }

    /// The answer to a request.
    pub(crate) fn answer(&self, id: &Value) -> &Value {
        let mut answers =
            self.messages.iter().filter(|message| message.get("method").is_none() && message["id"] == *id);
        let answer = answers.next().unwrap_or_else(|| panic!("no answer to {id} in {:?}", self.messages));
        assert_eq!(answers.next(), None, "a second answer to {id}");
        answer
    }
}

impl Server {
    /// Writes bytes as they are.
    pub(crate) async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_write(bytes.as_ref()).await.unwrap();
    }

    async fn try_write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let input = self.input.as_mut().unwrap();
        within("the server to read", String::new, async {
            input.write_all(bytes).await?;
            input.flush().await
        })
        .await
    }

    /// The next message; `None` at the end of output. Whatever a line is, it is one message in one line.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        let mut line = Vec::new();
        let reading = self.output.read_until(b'\n', &mut line);
        within("a message of the server", String::new, reading).await.unwrap();
        if line.is_empty() {
            return None;
        }
        assert_eq!(line.pop(), Some(b'\n'), "the last line has no end");
        let line = String::from_utf8(line).unwrap();
        let splits = |c: char| matches!(c, '\r' | '\u{85}' | '\u{2028}' | '\u{2029}');
        assert!(!line.contains(splits), "a line that others take for two: {line}");
        let message: Value = serde_json::from_str(&line).unwrap();
        let members = message.as_object().unwrap();
        let known = ["id", "method", "params", "result", "error"];
        assert!(members.keys().all(|name| known.contains(&name.as_str())), "{line}");
        assert!(
            members.contains_key("method") || members.contains_key("result") != members.contains_key("error")
        );
        Some(message)
    }

    /// The next message of that method; those before it are remembered.
    pub(crate) async fn until(&mut self, method: &str) -> Value {
        loop {
            let Some(message) = self.next().await else { panic!("no {method} in {:?}", self.seen) };
            if message["method"] == method {
                return message;
            }
            self.seen.push(message);
        }
    }

    /// The next answer; messages before it are remembered.
    pub(crate) async fn answer(&mut self) -> Value {
        loop {
            let Some(message) = self.next().await else { panic!("no answer in {:?}", self.seen) };
            if message.get("method").is_none() {
                return message;
            }
            self.seen.push(message);
        }
    }

    /// Sends a request and returns its id.
    pub(crate) async fn send(&mut self, method: &str, params: Value) -> Value {
        self.try_send(method, params).await.unwrap()
    }

    /// The same to a process that may have ended.
    pub(crate) async fn try_send(&mut self, method: &str, params: Value) -> io::Result<Value> {
        self.last_id += 1;
        let id = json!(self.last_id);
        let request = json!({ "id": id, "method": method, "params": params });
        self.try_write(format!("{request}\n").as_bytes()).await?;
        Ok(id)
    }

    /// Sends a request and returns its answer, whatever that is.
    pub(crate) async fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params).await;
        let answer = self.answer().await;
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    /// Sends a request and returns its result.
    pub(crate) async fn request(&mut self, method: &str, params: Value) -> Value {
        let mut answer = self.ask(method, params).await;
        assert_eq!(answer.get("error"), None, "{method}");
        answer["result"].take()
    }

    pub(crate) async fn shake_hands(&mut self) {
        let client = json!({ "clientInfo": { "name": "test", "version": "1.0" } });
        self.request("initialize", client).await;
        self.write("{\"method\":\"initialized\",\"params\":{}}\n").await;
    }

    /// A new thread with full access.
    pub(crate) async fn thread(&mut self, machine: &Machine, model: &str) -> Value {
        let params = json!({ "cwd": machine.project(), "approvalMode": "fullAccess", "model": { "provider": "builtin", "id": model } });
        self.request("thread/start", params).await["thread"]["id"].take()
    }

    /// Starts a turn and waits for its first text.
    pub(crate) async fn turn_with_text(&mut self, thread: &Value, text: &str) {
        self.request("turn/start", json!({ "threadId": thread, "text": text })).await;
        self.until("item/agentMessage/delta").await;
    }

    pub(crate) fn close_input(&mut self) {
        self.input = None;
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id().unwrap()
    }

    #[cfg(unix)]
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let id = rustix::process::Pid::from_raw(self.id().try_into().unwrap()).unwrap();
        rustix::process::kill_process(id, signal).unwrap();
    }

    /// Reads what is left, and waits for the process.
    pub(crate) async fn ended(mut self) -> Ended {
        while let Some(message) = self.next().await {
            self.seen.push(message);
        }
        let status = within("the process to end", String::new, self.child.wait()).await.unwrap();
        let mut complaints = String::new();
        self.complaints.read_to_string(&mut complaints).await.unwrap();
        Ended { status, messages: self.seen, complaints }
    }

    /// Closes the input, reads what is left, and sees that all went well.
    pub(crate) async fn finish(mut self) -> Ended {
        self.close_input();
        let ended = self.ended().await;
        assert!(ended.status.success(), "{:?}: {}", ended.status, ended.complaints);
        ended
    }

    /// Waits until the next message has begun to come, and reads no more of it than fits a buffer.
    pub(crate) async fn begins_to_answer(&mut self) {
        let beginning = within("output of the server", String::new, self.output.fill_buf()).await.unwrap();
        assert!(!beginning.is_empty());
    }

    /// Closes the reading end of the output, and waits for the process; its input stays open.
    pub(crate) async fn ended_without_output(self) -> ExitStatus {
        let Self { mut child, input, output, .. } = self;
        drop(output);
        // Waiting through the child would close the input first, were it still the child's.
        let status = within("the process to end", String::new, child.wait()).await.unwrap();
        drop(input);
        status
    }

    /// Waits for the process without reading, for at most that long.
    pub(crate) async fn ended_unread(&mut self, most: Duration) -> ExitStatus {
        self.ended_within(most).await.expect("the process still runs")
    }

    /// How the process ended, if it does so by then. Nothing is read.
    pub(crate) async fn ended_within(&mut self, most: Duration) -> Option<ExitStatus> {
        tokio::time::timeout(most, self.child.wait()).await.ok().map(Result::unwrap)
    }
}

/// The files in a directory.
pub(crate) fn files(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
