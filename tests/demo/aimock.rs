//! Against aimock, a model server that other people wrote; `tests/aimock/README.md` says what it answers.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};

use crate::command::Machine;

/// How long the server may take to say where it listens.
const START_MAX: Duration = Duration::from_secs(30);

/// A running aimock. Dropping it stops it, also when a test fails: it is killed, and its standard input ends.
struct Aimock {
    port: u16,
    _child: Child,
    _stdin: ChildStdin,
}

impl Aimock {
    async fn start() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("aimock");
        assert!(
            folder.join("node_modules").is_dir(),
            "tests/aimock has no node_modules: run `cargo xtask test`, which installs them"
        );
        let mut child = Command::new("node")
            .args(["start.mjs", "--until-stdin-ends"])
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("Node.js can be run; `cargo xtask test` says which one is needed");
        let stdin = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = tokio::time::timeout(START_MAX, lines.next_line())
            .await
            .expect("aimock says where it listens")
            .unwrap()
            .expect("aimock runs");
        let port = line.strip_prefix("listening ").and_then(|port| port.parse().ok());
        Self { port: port.unwrap_or_else(|| panic!("aimock said `{line}`")), _child: child, _stdin: stdin }
    }
}

#[tokio::test]
async fn p1_the_demo_works_over_http_and_loses_nothing() {
    let aimock = Aimock::start().await;
    let base = format!("http://127.0.0.1:{}/v1", aimock.port);
    let key = "sk-demo-key-of-the-test";
    let run = Machine::new().demo(&[], &[("OPENAI_BASE_URL", &base), ("OPENAI_API_KEY", key)]).await;
    run.succeeded_with_a_cut();
    run.has("openai/");
    run.has("OPENAI_API_KEY and OPENAI_BASE_URL are set");
    assert!(!run.text.contains(key), "{}", run.text);

    let together = run.step(1);
    for line in [
        "A │   > ls {\"path\":\".\"}",
        "A │     README.md",
        "changed nothing",
        "B │   > bash echo hello from the demo",
        "B │   ? approval: may bash run this? The demo answers: accept",
        "B │     hello from the demo",
        "decided on by you",
        "usage of thread A: ",
        "usage of thread B: ",
    ] {
        assert!(together.contains(line), "`{line}` is not in\n{together}");
    }
    assert!(!together.contains("none reported"), "{together}");
    assert!(run.step(2).contains("A │ A hand loom wants its threads in order"), "{}", run.text);
}
