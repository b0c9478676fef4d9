//! A victim from outside: its pipes, its life and its death.
//!
//! Neighbours: none.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use raddle::protocol::approval::{Decision, RequestApprovalParams, RequestApprovalResult};
use raddle::protocol::methods::{Method, ServerNotification, method};
use raddle::protocol::thread::{
    ApprovalMode, ThreadReadParams, ThreadReadResult, ThreadResumeResult, ThreadStartParams,
};
use raddle::protocol::turn::TurnStartParams;
use raddle::protocol::{RequestId, RpcError, ThreadId, Turn, TurnId};
use rustix::process::{Pid, Signal, WaitOptions};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// How long a test waits for a line that never comes before it fails and says so. Nothing waits this long in a test
/// that passes.
const LINE_WAIT_MAX: Duration = Duration::from_secs(60);

/// Lines that a failed test shows.
const LINES_SHOWN: usize = 30;

/// What a process of a test carries in its environment, so that its children are found when it is dead.
const FAMILY: &str = "RADDLE_CRASH_FAMILY";

/// How to start a victim.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Where its store lies.
    pub(crate) home: PathBuf,
    /// The fake provider; none: the built-in models only.
    pub(crate) provider: Option<String>,
    /// How often it shows that it moves, and how long it watches one that does not.
    pub(crate) beats: Option<(Duration, Duration)>,
    /// What starts it, for a victim that is not to have all that this process may do.
    pub(crate) through: Vec<String>,
}

impl Setup {
    pub(crate) fn new(home: impl Into<PathBuf>) -> Self {
        Self { home: home.into(), provider: None, beats: None, through: Vec::new() }
    }

    pub(crate) fn with_provider(self, base_url: String) -> Self {
        Self { provider: Some(base_url), ..self }
    }
}

/// One line of a victim: something that its client has seen.
#[derive(Clone, Debug)]
pub(crate) enum Seen {
    /// The answer to a request.
    Answer { id: i64, result: Result<Value, RpcError> },
    /// A notification.
    Told(ServerNotification),
    /// A request of the server.
    Asked { id: RequestId, params: RequestApprovalParams },
}

/// A victim that lives.
pub(crate) struct Host {
    child: Child,
    pid: Pid,
    family: String,
    /// Gone once it was told to end.
    input: Option<ChildStdin>,
    output: ChildStdout,
    /// Bytes that were read and not taken as lines.
    bytes: Vec<u8>,
    is_open: bool,
    last_id: i64,
    seen: Vec<Seen>,
}

impl Host {
    /// Starts a victim and waits until it is open.
    pub(crate) async fn start(setup: &Setup) -> Self {
        Self::try_start(setup).await.unwrap_or_else(|refused| panic!("the victim was refused: {refused}"))
    }

    /// Starts a victim and waits until it is open.
    ///
    /// # Errors
    /// What Raddle says when it cannot be opened.
    pub(crate) async fn try_start(setup: &Setup) -> Result<Self, RpcError> {
        let mut host = Self::spawn(setup);
        host.opened().await?;
        Ok(host)
    }

    /// Starts a victim; nothing of it has run yet.
    pub(crate) fn spawn(setup: &Setup) -> Self {
        static LAST_FAMILY: AtomicU64 = AtomicU64::new(0);
        let number = LAST_FAMILY.fetch_add(1, Ordering::Relaxed);
        let family = format!("{}-{number}", std::process::id());
        let argument = json!({
            "home": setup.home,
            "provider": setup.provider,
            "heartbeatMs": setup.beats.map(|(heartbeat, _)| heartbeat.as_millis() as u64),
            "takeoverMs": setup.beats.map(|(_, takeover)| takeover.as_millis() as u64),
        });
        let victim = std::iter::once(env!("CARGO_BIN_EXE_victim"));
        let mut words = setup.through.iter().map(String::as_str).chain(victim);
        let mut child = Command::new(words.next().expect("a program"))
            .args(words)
            .arg(argument.to_string())
            .env(FAMILY, &family)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .expect("the victim starts");
        let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)).expect("a number");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("a pipe"));
        let (bytes, seen) = (Vec::new(), Vec::new());
        Self { child, pid, family, input, output, bytes, is_open: false, last_id: 0, seen }
    }

    /// Waits until it is open, which is its first line.
    ///
    /// # Errors
    /// What Raddle says when it cannot be opened.
    pub(crate) async fn opened(&mut self) -> Result<(), RpcError> {
        let mut first = self.line().await.expect("a first line");
        match serde_json::from_value(first["refused"].take()) {
            Ok(refused) => Err(refused),
            Err(_) => {
                assert_eq!(first["opened"], self.pid(), "the first line is {first}");
                self.is_open = true;
                Ok(())
            }
        }
    }

    /// Whether it was seen to be open.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether a whole line was read and not taken.
    pub(crate) fn has_line(&self) -> bool {
        self.bytes.contains(&b'\n')
    }

    /// Its number, as the system and other processes know it.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// All lines that were read.
    pub(crate) fn seen(&self) -> &[Seen] {
        &self.seen
    }

    /// Sends a request without waiting for its answer; gives its id.
    pub(crate) async fn send<M: Method>(&mut self, params: M::Params) -> i64 {
        self.last_id += 1;
        let id = self.last_id;
        self.write(&json!({ "id": id, "method": M::NAME, "params": params })).await;
        id
    }

    /// Answers an approval.
    pub(crate) async fn decide(&mut self, id: &RequestId, decision: Decision) {
        self.write(&json!({ "id": id, "result": RequestApprovalResult::new(decision) })).await;
    }

    async fn write(&mut self, line: &Value) {
        let mut bytes = line.to_string().into_bytes();
        bytes.push(b'\n');
        let input = self.input.as_mut().expect("a pipe");
        input.write_all(&bytes).await.expect("the victim takes input");
    }

    /// Sends a request and reads on until its answer.
    pub(crate) async fn ask<M: Method>(&mut self, params: M::Params) -> Result<M::Result, RpcError> {
        let wanted = self.send::<M>(params).await;
        self.answer::<M>(wanted).await
    }

    /// Reads on until the answer to a request that was sent.
    pub(crate) async fn answer<M: Method>(&mut self, wanted: i64) -> Result<M::Result, RpcError> {
        let result = self
            .until(M::NAME, |seen| match seen {
                Seen::Answer { id, result } if *id == wanted => Some(result.clone()),
                _ => None,
            })
            .await;
        result.map(|value| serde_json::from_value(value).expect("the result of a method"))
    }

    /// Reads on until a line that `wanted` likes, and gives what it made of it.
    pub(crate) async fn until<T>(&mut self, what: &str, wanted: impl Fn(&Seen) -> Option<T>) -> T {
        loop {
            let Some(seen) = self.next().await else {
                panic!("the victim ended before {what}; it said last:\n{}", self.last_lines());
            };
            if let Some(found) = wanted(&seen) {
                return found;
            }
        }
    }

    /// Reads on until the end of a turn.
    pub(crate) async fn turn_ended(&mut self, turn_id: &TurnId) {
        self.until("the end of a turn", |seen| match seen {
            Seen::Told(ServerNotification::TurnCompleted(n)) if &n.turn.id == turn_id => Some(()),
            _ => None,
        })
        .await;
    }

    /// Reads the next line; none when the victim has ended.
    pub(crate) async fn next(&mut self) -> Option<Seen> {
        let seen = read_line(self.line().await?);
        self.seen.push(seen.clone());
        Some(seen)
    }

    async fn line(&mut self) -> Option<Value> {
        loop {
            if let Some(line) = self.whole_line() {
                return Some(line);
            }
            let read = tokio::time::timeout(LINE_WAIT_MAX, self.output.read_buf(&mut self.bytes)).await;
            match read.map(|read| read.expect("output can be read")) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(_) => panic!("the victim says nothing more; it said last:\n{}", self.last_lines()),
            }
        }
    }

    fn whole_line(&mut self) -> Option<Value> {
        let end = self.bytes.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.bytes.drain(..=end).collect();
        Some(serde_json::from_slice(&line).expect("a line is JSON"))
    }

    /// Takes what is in the pipe, at most `most` bytes, without waiting for any. They stay part of the next lines.
    /// False once the victim has closed its end.
    pub(crate) async fn sip(&mut self, most: u64) -> bool {
        let mut sip = (&mut self.output).take(most);
        tokio::select! {
            biased;
            read = sip.read_buf(&mut self.bytes) => read.expect("output can be read") > 0,
            () = tokio::task::yield_now() => true,
        }
    }

    fn last_lines(&self) -> String {
        let from = self.seen.len().saturating_sub(LINES_SHOWN);
        self.seen[from..].iter().map(|seen| format!("{seen:?}\n")).collect()
    }

    /// Kills it with SIGKILL and reads what it had written by then. A last line that is not whole does not count: its
    /// end may never have been written.
    pub(crate) async fn kill(mut self) -> Vec<Seen> {
        rustix::process::kill_process(self.pid, Signal::KILL).expect("the victim can be killed");
        self.child.wait().await.expect("the victim dies");
        if !self.is_open && self.line().await.is_some() {
            self.is_open = true;
        }
        while self.next().await.is_some() {}
        std::mem::take(&mut self.seen)
    }

    /// Stops it with SIGSTOP, and waits until all of it stands still.
    pub(crate) async fn freeze(&self) {
        rustix::process::kill_process(self.pid, Signal::STOP).expect("the victim can be stopped");
        let pid = self.pid;
        let stopped = tokio::task::spawn_blocking(move || {
            rustix::process::waitpid(Some(pid), WaitOptions::UNTRACED).expect("the victim is ours")
        });
        let (_, status) = stopped.await.expect("waiting does not fail").expect("it did not end");
        assert!(status.stopped(), "the victim should have stopped: {status:?}");
    }

    /// Lets it go on after [`freeze`](Self::freeze).
    pub(crate) fn thaw(&self) {
        rustix::process::kill_process(self.pid, Signal::CONT).expect("the victim can go on");
    }

    /// Tells it to end in good order.
    pub(crate) fn hang_up(&mut self) {
        self.input = None;
    }

    /// Ends it in good order, and reads its last lines.
    pub(crate) async fn close(mut self) -> Vec<Seen> {
        self.hang_up();
        while self.next().await.is_some() {}
        let status = self.child.wait().await.expect("the victim ends");
        assert!(status.success(), "the victim ended with {status}");
        std::mem::take(&mut self.seen)
    }
}

impl Drop for Host {
    /// Whatever became of the test, nobody of the family outlives it.
    fn drop(&mut self) {
        // Only while it is not waited for: after that the number may be another process's.
        if self.child.id().is_some() {
            let _ = rustix::process::kill_process(self.pid, Signal::KILL);
        }
        end_family(&self.family);
    }
}

/// What clients ask most.
impl Host {
    /// Starts a thread in `cwd` whose tools ask nobody, or as `mode` says.
    pub(crate) async fn start_thread(&mut self, cwd: &std::path::Path, mode: ApprovalMode) -> ThreadId {
        let params = ThreadStartParams {
            cwd: cwd.display().to_string(),
            approval_mode: Some(mode),
            ..ThreadStartParams::default()
        };
        self.ask::<method::ThreadStart>(params).await.expect("a thread starts").thread.id
    }

    /// Starts a turn.
    pub(crate) async fn start_turn(&mut self, thread_id: &ThreadId, text: &str) -> TurnId {
        let params = TurnStartParams::new(thread_id.clone(), text);
        let started = self.ask::<method::TurnStart>(params).await.expect("a turn starts");
        started.turn_id.expect("a turn that started has an id")
    }

    /// Loads a thread.
    pub(crate) async fn resume(&mut self, thread_id: &ThreadId) -> Result<ThreadResumeResult, RpcError> {
        self.ask::<method::ThreadResume>(ThreadReadParams::newest(thread_id.clone())).await
    }

    /// Reads a thread's newest page.
    pub(crate) async fn read(&mut self, thread_id: &ThreadId) -> ThreadReadResult {
        let params = ThreadReadParams::newest(thread_id.clone());
        self.ask::<method::ThreadRead>(params).await.expect("a thread can be read")
    }

    /// Runs a turn to its end, and reads it.
    pub(crate) async fn run(&mut self, thread_id: &ThreadId, text: &str) -> Turn {
        let turn_id = self.start_turn(thread_id, text).await;
        self.turn_ended(&turn_id).await;
        let read = self.read(thread_id).await;
        read.turns.into_iter().find(|turn| turn.summary.id == turn_id).expect("the turn is in the history")
    }
}

fn read_line(mut line: Value) -> Seen {
    let id = line["id"].take();
    match line["method"].as_str() {
        Some(method) if id.is_null() => Seen::Told(
            ServerNotification::decode(method, line["params"].clone())
                .expect("a notification of the protocol"),
        ),
        Some(_) => Seen::Asked {
            id: serde_json::from_value(id).expect("an id"),
            params: serde_json::from_value(line["params"].take()).expect("the params of an approval"),
        },
        None => Seen::Answer {
            id: id.as_i64().expect("our ids are numbers"),
            result: match line["error"].take() {
                Value::Null => Ok(line["result"].take()),
                error => Err(serde_json::from_value(error).expect("an error")),
            },
        },
    }
}

/// Ends what the processes of a family have left running: their commands run in sessions of their own. They are known
/// by their environment, where the system shows it.
fn end_family(family: &str) {
    let mark = format!("{FAMILY}={family}");
    // A process that is just being started can escape one look, never two.
    for _ in 0..2 {
        let Ok(processes) = std::fs::read_dir("/proc") else { return };
        for process in processes.flatten() {
            let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
            if environment.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes())
                && let Some(pid) = Pid::from_raw(pid)
            {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
    }
}
