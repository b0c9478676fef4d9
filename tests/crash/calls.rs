//! A process that dies while a tool runs, or while a person is asked about one.
//!
//! Neighbours: host, plan.

use raddle::protocol::approval::Decision;
use raddle::protocol::fold::INTERRUPTED_CALL_OUTPUT;
use raddle::protocol::methods::ServerNotification;
use raddle::protocol::thread::{ApprovalMode, ThreadStatus};
use raddle::protocol::{Item, ItemKind, ItemStatus, Turn, TurnStatus};
use raddle_fakes::{Provider, Reply, Request};
use serde_json::json;

use crate::host::{Host, Seen, Setup};
use crate::plan::effects;

/// The exact input of the case, and one that shows that it has begun and what it did.
#[tokio::test]
async fn r16_p3_a_call_that_a_crash_cut_off_is_reported_and_not_run_again() {
    for command in ["sleep 30", "echo once >> effects.log; echo started; sleep 30"] {
        let speaks = command.contains("echo");
        let directory = tempfile::tempdir().expect("a directory");
        let provider = Provider::start().await;
        let setup = Setup::new(directory.path().join("home")).with_provider(provider.base_url());
        provider.push(Reply::calls(&[("call_1", "bash", json!({ "command": command }))]));

        let mut host = Host::start(&setup).await;
        let thread = host.start_thread(directory.path(), ApprovalMode::FullAccess).await;
        host.start_turn(&thread, "wait").await;
        host.until("the call to begin", |seen| match seen {
            Seen::Told(ServerNotification::ItemToolCallOutputDelta(n)) if speaks => {
                (n.delta == "started\n").then_some(())
            }
            Seen::Told(ServerNotification::ItemStarted(n)) if !speaks => is_call(&n.item).then_some(()),
            _ => None,
        })
        .await;
        host.kill().await;

        let mut host = Host::start(&setup).await;
        let resumed = host.resume(&thread).await.expect("the thread is free");
        assert_eq!(resumed.thread.status, ThreadStatus::Idle);
        assert_eq!(resumed.running_turn, None);
        let [turn] = resumed.turns.as_slice() else { panic!("one turn: {resumed:#?}") };
        assert_eq!(turn.summary.status, TurnStatus::Interrupted);
        let (status, output) = the_call(turn);
        assert_eq!(status, ItemStatus::Interrupted);
        let printed = if speaks { "started\n" } else { "" };
        assert_eq!(output, format!("{printed}{INTERRUPTED_CALL_OUTPUT}"), "and what it had printed is kept");

        provider.push(Reply::says("Where were we?"));
        let next = host.run(&thread, "go on").await;
        assert_eq!(next.summary.status, TurnStatus::Completed);
        assert_result_follows_call(&provider.request(1).await, &output);
        assert_eq!(provider.requests().len(), 2, "nothing is asked by itself");
        if speaks {
            assert_eq!(effects(directory.path()).into_iter().collect::<Vec<_>>(), [("once".to_owned(), 1)]);
        }
        host.close().await;
    }
}

/// Case R26, part (d).
#[tokio::test]
async fn r26_p3_an_approval_dies_with_its_process() {
    let directory = tempfile::tempdir().expect("a directory");
    let provider = Provider::start().await;
    let setup = Setup::new(directory.path().join("home")).with_provider(provider.base_url());
    provider.push(Reply::calls(&[("call_1", "bash", json!({ "command": "touch x" }))]));

    let mut host = Host::start(&setup).await;
    let thread = host.start_thread(directory.path(), ApprovalMode::Ask).await;
    host.start_turn(&thread, "touch it").await;
    let asked = host
        .until("the approval", |seen| match seen {
            Seen::Asked { id, params } => {
                assert_eq!((params.tool_name.as_str(), params.item_id.as_str()), ("bash", "call_1"));
                Some(id.clone())
            }
            _ => None,
        })
        .await;
    host.kill().await;

    let mut host = Host::start(&setup).await;
    let resumed = host.resume(&thread).await.expect("the thread is free");
    let [turn] = resumed.turns.as_slice() else { panic!("one turn: {resumed:#?}") };
    assert_eq!(turn.summary.status, TurnStatus::Interrupted);
    assert_eq!(the_call(turn).0, ItemStatus::Interrupted);
    assert_eq!(resumed.thread.status, ThreadStatus::Idle, "nobody is waited for");

    host.decide(&asked, Decision::Accept).await;
    provider.push(Reply::says("Then not."));
    let next = host.run(&thread, "go on").await;
    assert_eq!(next.summary.status, TurnStatus::Completed);
    assert_result_follows_call(&provider.request(1).await, INTERRUPTED_CALL_OUTPUT);
    let seen = host.close().await;
    assert!(!seen.iter().any(|line| matches!(line, Seen::Asked { .. })), "the request is gone");
    assert!(!directory.path().join("x").exists(), "the late answer grants nothing");
}

fn is_call(item: &Item) -> bool {
    matches!(item.kind, ItemKind::ToolCall { .. })
}

fn the_call(turn: &Turn) -> (ItemStatus, String) {
    let call = turn.items.iter().find(|item| is_call(item));
    match call {
        Some(Item { kind: ItemKind::ToolCall { output: Some(output), .. }, status, .. }) => {
            (*status, output.to_string())
        }
        other => panic!("the turn has no call with a result: {other:?}"),
    }
}

/// The provider has checked the order already; this looks at what it was told.
fn assert_result_follows_call(request: &std::sync::Arc<Request>, output: &str) {
    let messages = request.messages();
    let at = messages.iter().position(|message| message["tool_calls"][0]["id"] == "call_1");
    let result = &messages[at.expect("the call is told") + 1];
    assert_eq!(
        (&result["role"], &result["tool_call_id"], &result["content"]),
        (&json!("tool"), &json!("call_1"), &json!(output))
    );
}
