//! The typed client, driving a child process.

use std::time::Duration;

use raddle::protocol::approval::{Decision, RequestApprovalResult};
use raddle::protocol::methods::{ServerNotification, ServerRequest, method};
use raddle::protocol::server::{ClientCapabilities, ClientInfo, DiagnosticsParams};
use raddle::protocol::thread::{ApprovalMode, ThreadReadParams, ThreadStartParams};
use raddle::protocol::turn::TurnStartParams;
use raddle::protocol::{ErrorCode, ItemKind, ModelRef, ThreadId};
use raddle::{Client, ClientError, ServerStderr, SpawnOptions};
use raddle_tests::within;

use crate::process::Machine;

fn info() -> ClientInfo {
    ClientInfo { name: "test".into(), version: "1.0".into() }
}

async fn spawn(machine: &Machine, options: SpawnOptions) -> Client {
    let command = machine.command(&["app-server"]);
    Client::spawn(command, options, info(), ClientCapabilities::default()).await.unwrap()
}

async fn thread(client: &Client, machine: &Machine) -> ThreadId {
    let params = ThreadStartParams {
        cwd: machine.project().display().to_string(),
        approval_mode: Some(ApprovalMode::Ask),
        model: Some(ModelRef::new("builtin", "script")),
        ..ThreadStartParams::default()
    };
    client.request::<method::ThreadStart>(params).await.unwrap().thread.id
}

#[tokio::test]
async fn a_whole_turn_with_an_approval_in_a_child() {
    let machine = Machine::new();
    let client = spawn(&machine, SpawnOptions::default()).await;
    assert_eq!(client.initialized().server_info.name, "raddle");
    assert!(client.process_id().is_some());
    let mut notifications = client.notifications();
    client.on_request(|request| async move {
        match request {
            ServerRequest::ItemToolCallRequestApproval(ask) => {
                assert_eq!(ask.tool_name, "bash");
                Ok(RequestApprovalResult::new(Decision::Accept).into())
            }
        }
    });
    let thread = thread(&client, &machine).await;
    let text = r#"script: call bash {"command":"echo hello"} ;; --- ;; text Done."#;
    client.request::<method::TurnStart>(TurnStartParams::new(thread.clone(), text)).await.unwrap();
    within("the turn to end", String::new, async {
        while !matches!(notifications.next().await, Some(ServerNotification::TurnCompleted(_))) {}
    })
    .await;
    let read = client.request::<method::ThreadRead>(ThreadReadParams::newest(thread)).await.unwrap();
    let output = read.turns[0].items.iter().find_map(|item| match &item.kind {
        ItemKind::ToolCall { output, .. } => output.clone(),
        _ => None,
    });
    assert!(output.unwrap().as_str().contains("hello"));
    let missing = client.request::<method::ThreadRead>(ThreadReadParams::newest("none".into())).await;
    assert_eq!(missing.unwrap_err().code(), Some(&ErrorCode::ThreadNotFound));

    client.shutdown().await;
    assert!(client.is_closed());
    assert!(client.exit_status().unwrap().success());
    assert_eq!(client.process_id(), None);
    let late = client.request::<method::ServerDiagnostics>(DiagnosticsParams {}).await;
    assert_eq!(late, Err(ClientError::Closed));
}

/// In mid-turn, too, a child that is shut down ends by itself and saves the turn's end.
#[tokio::test]
async fn shutting_down_a_child_in_mid_turn() {
    let machine = Machine::new();
    let options = SpawnOptions { stderr: ServerStderr::Inherited, ..SpawnOptions::default() };
    let client = spawn(&machine, options).await;
    let mut notifications = client.notifications();
    let thread = thread(&client, &machine).await;
    let turn = TurnStartParams::new(thread.clone(), "script: text Half ;; hang");
    client.request::<method::TurnStart>(turn).await.unwrap();
    client.shutdown().await;
    assert!(client.exit_status().unwrap().success());
    let mut was_told = false;
    while let Some(notification) = notifications.next().await {
        was_told |= matches!(notification, ServerNotification::TurnCompleted(_));
    }
    assert!(was_told, "the last notifications were handed on");
}

#[cfg(unix)]
#[tokio::test]
async fn a_dropped_client_kills_its_child() {
    let machine = Machine::new();
    let options = SpawnOptions { stderr: ServerStderr::Dropped, ..SpawnOptions::default() };
    let client = spawn(&machine, options).await;
    let pid = rustix::process::Pid::from_raw(client.process_id().unwrap().try_into().unwrap()).unwrap();
    drop(client);
    within("the child to be gone", String::new, async {
        // The runtime reaps it, some time after it was killed.
        while rustix::process::test_kill_process(pid).is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// A child that does not end with its input is killed when its time is over.
#[cfg(unix)]
#[tokio::test]
async fn a_child_that_does_not_end_is_killed() {
    let mut command = tokio::process::Command::new("sh");
    let stubborn = r#"read line; printf '%s\n' "$ANSWER"; while true; do sleep 0.01; done"#;
    command.args(["-c", stubborn]).env("ANSWER", r#"{"id":1,"result":{"serverInfo":{"name":"sh","version":"0"},"platform":{"os":"linux","arch":"x64","homeDir":""}}}"#);
    let options = SpawnOptions { ends_after: Duration::from_millis(200), ..SpawnOptions::default() };
    let client = Client::spawn(command, options, info(), ClientCapabilities::default()).await.unwrap();
    within("the shutdown", String::new, client.shutdown()).await;
    assert_eq!(client.exit_status().unwrap().code(), None, "a signal ended it");
}

#[tokio::test]
async fn a_child_that_is_none_is_an_error() {
    let spawned =
        |command| Client::spawn(command, SpawnOptions::default(), info(), ClientCapabilities::default());
    let missing = spawned(tokio::process::Command::new("no-such-program-of-raddle")).await;
    assert!(matches!(missing.err(), Some(ClientError::Spawn { kind: std::io::ErrorKind::NotFound, .. })));
    let machine = Machine::new();
    let help = machine.command(&["app-server", "--help"]);
    let ended = within("the child's end to be noticed", String::new, spawned(help)).await;
    assert_eq!(ended.err(), Some(ClientError::Closed));
}
