//! The example runs as its README says.

#![expect(clippy::unwrap_used, reason = "a test says what it needs by failing without it")]

use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// How long a chat may take. Nothing takes this long in a test that passes.
const CHAT_MAX: Duration = Duration::from_secs(60);

/// Types `input` into a chat with `model`, and gives what it printed.
async fn chat(model: &str, input: &str) -> String {
    let home = tempfile::tempdir().unwrap();
    let project = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_raddle-example"))
        .arg(model)
        .current_dir(project.path())
        .env("RADDLE_HOME", home.path())
        .env_remove("OPENAI_API_KEY")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).await.unwrap();
    drop(stdin);
    let output = tokio::time::timeout(CHAT_MAX, child.wait_with_output()).await.unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(home.path().join("raddle.db").is_file());
    text
}

#[tokio::test]
async fn what_is_typed_is_answered() {
    let text = chat("builtin/echo", "Hello, thread!\n\nAnd again.\n").await;
    assert!(text.contains("> Hello, thread!\n> > And again.\n> \n"), "{text}");
}

#[tokio::test]
async fn a_command_runs_only_after_a_yes() {
    let script =
        "script: call bash {\"command\":\"echo it\\\"\\\"ran\"} ;; --- ;; text The model saw: ;; result";
    let yes = chat("builtin/script", &format!("{script}\ny\n")).await;
    assert!(yes.contains("may bash run with"), "{yes}");
    assert!(yes.contains("[bash] itran\nThe model saw:itran"), "{yes}");
    let no = chat("builtin/script", &format!("{script}\nperhaps\n")).await;
    assert!(no.contains("may bash run with") && !no.contains("itran"), "{no}");
    assert!(no.contains("declined"), "{no}");
    let nobody = chat("builtin/script", script).await;
    assert!(nobody.contains("may bash run with") && !nobody.contains("itran"), "{nobody}");
}

#[tokio::test]
async fn a_failing_turn_does_not_end_the_chat() {
    let text =
        chat("builtin/script", "script: error auth final no such key\nscript: text Still here.\n").await;
    assert!(text.contains("the turn failed: no such key"), "{text}");
    assert!(text.contains("Still here."), "{text}");
}
