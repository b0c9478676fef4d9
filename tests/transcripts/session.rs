//! One session with the real `raddle app-server`, written down as it goes over the pipes.

use std::path::PathBuf;
use std::process::Stdio;

use raddle_tests::{Names, raddle_binary, within};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// A session, and what was said in it.
pub(crate) struct Session {
    directory: TempDir,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    last_id: i64,
    lines: Vec<String>,
    /// A delta that the next one of its item may continue: how a text is cut is chance.
    delta: Option<Value>,
    names: Names,
}

impl Session {
    /// A process that nobody has spoken to.
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("project")).unwrap();
        let mut child = Command::new(raddle_binary())
            .arg("app-server")
            .current_dir(directory.path())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", directory.path())
            .env("RADDLE_HOME", directory.path().join("home"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            directory,
            child,
            input,
            output,
            last_id: 0,
            lines: Vec::new(),
            delta: None,
            names: Names::default(),
        }
    }

    /// A process after its handshake, which is not written down.
    pub(crate) async fn ready() -> Self {
        let mut session = Self::start();
        session.ask("initialize", json!({ "clientInfo": { "name": "example", "version": "1.0" } })).await;
        session.tell("initialized", json!({})).await;
        session.lines.clear();
        session
    }

    pub(crate) fn project(&self) -> PathBuf {
        self.directory.path().join("project").canonicalize().unwrap()
    }

    /// A remark for the reader.
    pub(crate) fn note(&mut self, text: &str) {
        self.flush();
        self.lines.push(format!("\n{text}\n"));
    }

    /// Writes a line as it is.
    pub(crate) async fn write(&mut self, line: &str) {
        self.flush();
        let shown = match serde_json::from_str::<Value>(line) {
            Ok(mut message) => {
                self.normalise(None, &mut message);
                message.to_string()
            }
            Err(_) => line.to_owned(),
        };
        self.lines.push(format!("    → {shown}"));
        let input = self.input.as_mut().unwrap();
        input.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        input.flush().await.unwrap();
    }

    pub(crate) async fn tell(&mut self, method: &str, params: Value) {
        self.write(&json!({ "method": method, "params": params }).to_string()).await;
    }

    /// Sends a request and reads on until its answer, which is given back whole.
    pub(crate) async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let id = json!(self.last_id);
        self.write(&json!({ "id": id, "method": method, "params": params }).to_string()).await;
        self.until(|message| message.get("method").is_none() && message["id"] == id).await
    }

    /// The result of a request.
    pub(crate) async fn request(&mut self, method: &str, params: Value) -> Value {
        let mut answer = self.ask(method, params).await;
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].take()
    }

    /// A new thread of a built-in model.
    pub(crate) async fn thread(&mut self, model: &str, mode: &str) -> Value {
        let params = json!({ "cwd": self.project(), "approvalMode": mode, "model": { "provider": "builtin", "id": model } });
        self.request("thread/start", params).await["thread"]["id"].take()
    }

    /// Reads on until a message of that method.
    pub(crate) async fn seen(&mut self, method: &str) -> Value {
        self.until(|message| message["method"] == method).await
    }

    /// Reads on until the thread is idle.
    pub(crate) async fn idle(&mut self) {
        self.until(|message| message["params"]["status"]["type"] == "idle").await;
    }

    /// Runs a turn to its end.
    pub(crate) async fn run(&mut self, thread: &Value, text: &str) -> Value {
        let turn = self.request("turn/start", json!({ "threadId": thread, "text": text })).await;
        self.idle().await;
        turn["turnId"].clone()
    }

    /// Reads on until a message that is wanted; all are written down.
    pub(crate) async fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let mut line = String::new();
            let reading = self.output.read_line(&mut line);
            let read = within("a message of the server", String::new, reading).await.unwrap();
            assert!(read > 0, "the server ended:\n{}", self.lines.join("\n"));
            let message: Value = serde_json::from_str(&line).unwrap();
            self.take_down(&message);
            if wanted(&message) {
                return message;
            }
        }
    }

    /// The next message, not written down.
    pub(crate) async fn quietly(&mut self) -> Value {
        let mut line = String::new();
        let reading = self.output.read_line(&mut line);
        assert!(within("a message of the server", String::new, reading).await.unwrap() > 0);
        serde_json::from_str(&line).unwrap()
    }

    /// Sends a request; its answer is not written down.
    pub(crate) async fn ask_quietly(&mut self, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let id = json!(self.last_id);
        self.write(&json!({ "id": id, "method": method, "params": params }).to_string()).await;
        loop {
            let message = self.quietly().await;
            if message["id"] == id {
                return message;
            }
        }
    }

    /// Writes a message down that was read quietly.
    pub(crate) fn show(&mut self, message: &Value) {
        self.take_down(message);
    }

    /// Closes the input, and writes down all that comes until the process ends.
    pub(crate) async fn close(&mut self) {
        self.flush();
        self.input = None;
        loop {
            let mut line = String::new();
            let reading = self.output.read_line(&mut line);
            if within("the end of output", String::new, reading).await.unwrap() == 0 {
                break;
            }
            self.take_down(&serde_json::from_str(&line).unwrap());
        }
        let status = within("the end of the process", String::new, self.child.wait()).await.unwrap();
        assert!(status.success(), "{status}");
    }

    fn take_down(&mut self, message: &Value) {
        if let Some(known) = &mut self.delta
            && known["method"] == message["method"]
            && known["params"]["itemId"] == message["params"]["itemId"]
        {
            let more = message["params"]["delta"].as_str().unwrap_or_default();
            let whole = format!("{}{more}", known["params"]["delta"].as_str().unwrap_or_default());
            known["params"]["delta"] = json!(whole);
            return;
        }
        self.flush();
        if message["params"].get("delta").is_some() {
            self.delta = Some(message.clone());
            return;
        }
        self.push(message.clone());
    }

    fn flush(&mut self) {
        if let Some(delta) = self.delta.take() {
            self.push(delta);
        }
    }

    fn push(&mut self, mut message: Value) {
        self.normalise(None, &mut message);
        self.lines.push(format!("    ← {message}"));
    }

    fn normalise(&mut self, key: Option<&str>, value: &mut Value) {
        const TIMES: [&str; 4] = ["startedAt", "completedAt", "createdAt", "updatedAt"];
        match value {
            Value::Object(fields) => {
                for (key, value) in fields.iter_mut() {
                    self.normalise(Some(key), value);
                }
            }
            Value::Array(values) => values.iter_mut().for_each(|value| self.normalise(key, value)),
            Value::Number(_) | Value::String(_) if key.is_some_and(|key| TIMES.contains(&key)) => {
                *value = json!("<time>");
            }
            Value::String(text) => match key {
                Some("version") if *text == env!("CARGO_PKG_VERSION") => *text = "<version>".to_owned(),
                Some("os" | "arch" | "homeDir") => *text = format!("<{}>", key.unwrap_or_default()),
                _ => *text = self.without_chance(text),
            },
            _ => {}
        }
    }

    /// A text with names in the place of ids, cursors, hashes and paths.
    fn without_chance(&mut self, text: &str) -> String {
        let is_hex =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        let is_cursor =
            text.len() > 40 && (text.starts_with("h1") || text.starts_with("l1") || text.starts_with("l2"));
        if is_cursor {
            return self.names.of("cursor", text);
        }
        if text.len() == 64 && is_hex(text) {
            return self.names.of("payload", text);
        }
        let project = self.project().display().to_string();
        let text = text.replace(&project, "/project");
        let mut out = String::new();
        let mut rest = text.as_str();
        while let Some(at) = rest.char_indices().map(|(at, _)| at).find(|at| is_uuid(&rest[*at..])) {
            out.push_str(&rest[..at]);
            let name = self.names.of("id", &rest[at..at + 36]);
            out.push_str(&name);
            rest = &rest[at + 36..];
        }
        out + rest
    }

    /// Compares the session with its page in `docs/transcripts`, or writes it with `UPDATE_GOLDEN=1`.
    pub(crate) fn check(mut self, name: &str, title: &str, about: &str) {
        self.flush();
        let text = format!("# {title}\n\n{about}\n\n{}\n", self.lines.join("\n"));
        let page =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/transcripts").join(format!("{name}.md"));
        if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
            std::fs::write(&page, text).unwrap();
            return;
        }
        let known = std::fs::read_to_string(&page)
            .unwrap_or_else(|error| panic!("{name}.md: {error}; run with UPDATE_GOLDEN=1 to make it"));
        let different = known.lines().zip(text.lines()).find(|(known, seen)| known != seen);
        if let Some((known, seen)) = different {
            panic!("{name}.md differs:\n  page: {known}\n  seen: {seen}");
        }
        assert_eq!(known.lines().count(), text.lines().count(), "{name}.md has another length");
    }
}

fn is_uuid(text: &str) -> bool {
    text.len() >= 36
        && text.bytes().take(36).enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
        })
}
