//! A process that dies while inputs wait: what was acknowledged is there, in its order, and runs once.
//!
//! Neighbours: host.

use raddle::protocol::methods::{ServerNotification, method};
use raddle::protocol::thread::{ApprovalMode, ThreadIdParams};
use raddle::protocol::turn::{
    SendMode, SendStatus, TurnQueueAddParams, TurnQueueRemoveParams, TurnSendParams, TurnStartParams,
};
use raddle::protocol::{ItemKind, ThreadId, Turn, TurnStatus};
use raddle_fakes::{Provider, Reply};

use crate::host::{Host, Seen, Setup};

async fn add(host: &mut Host, thread: &ThreadId, text: &str) -> String {
    let params = TurnQueueAddParams::new(thread.clone(), text);
    host.ask::<method::TurnQueueAdd>(params).await.expect("there is room").queue_id
}

fn send(thread: &ThreadId, text: &str) -> TurnSendParams {
    let start = TurnStartParams::new(thread.clone(), text);
    TurnSendParams { start, mode: SendMode::Queue, idempotency_key: Some("the key".to_owned()) }
}

fn said(turn: &Turn) -> String {
    match &turn.items[0].kind {
        ItemKind::UserMessage { text, .. } => text.to_string(),
        other => panic!("a turn begins with what was said, not with {other:?}"),
    }
}

/// P1 for the queue: each change of it is a barrier, so no kill takes one back, and none runs twice.
#[tokio::test]
async fn p1_p3_the_queue_survives_a_kill_and_each_input_runs_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let provider = Provider::start().await;
    let setup = Setup::new(directory.path().join("home")).with_provider(provider.base_url());
    provider.push(Reply::stream().text("Half").hang());

    let mut host = Host::start(&setup).await;
    let thread = host.start_thread(directory.path(), ApprovalMode::FullAccess).await;
    host.start_turn(&thread, "first").await;
    host.until("half an answer", |seen| {
        matches!(seen, Seen::Told(ServerNotification::ItemAgentMessageDelta(_))).then_some(())
    })
    .await;
    add(&mut host, &thread, "second").await;
    let gone = add(&mut host, &thread, "taken back").await;
    let queued = host.ask::<method::TurnSend>(send(&thread, "third")).await.expect("it is queued");
    assert_eq!(queued.status, SendStatus::Queued);
    let params = TurnQueueRemoveParams { thread_id: thread.clone(), queue_id: gone };
    assert!(host.ask::<method::TurnQueueRemove>(params).await.expect("it waits").removed);
    host.kill().await;

    // Killed again while the second one runs: the third still waits, and the second is not run again.
    provider.push(Reply::stream().text("Half").hang());
    let mut host = Host::start(&setup).await;
    let resumed = host.resume(&thread).await.expect("the thread is free");
    let waiting: Vec<_> = resumed.queue.follow_up.iter().map(|queued| queued.text.to_string()).collect();
    assert_eq!(waiting, ["second", "third"]);
    host.until("the second to say something", |seen| {
        matches!(seen, Seen::Told(ServerNotification::ItemAgentMessageDelta(_))).then_some(())
    })
    .await;
    // A retry after a lost answer is no second send.
    let again = host.ask::<method::TurnSend>(send(&thread, "third")).await.expect("it is the same send");
    assert_eq!((again.status, &again.queue_id), (SendStatus::Queued, &queued.queue_id));
    host.kill().await;

    provider.push(Reply::says("Third."));
    let mut host = Host::start(&setup).await;
    let resumed = host.resume(&thread).await.expect("the thread is free");
    assert_eq!(resumed.turns.iter().map(said).collect::<Vec<_>>(), ["first", "second"]);
    assert!(resumed.turns.iter().all(|turn| turn.summary.status == TurnStatus::Interrupted));
    host.until("the third to end", |seen| {
        matches!(seen, Seen::Told(ServerNotification::TurnCompleted(_))).then_some(())
    })
    .await;
    let turns = host.read(&thread).await.turns;
    assert_eq!(turns.iter().map(said).collect::<Vec<_>>(), ["first", "second", "third"]);
    assert_eq!(provider.requests().len(), 3);
    host.close().await;
}

/// What a killed process had put away, named or deleted stays so.
#[tokio::test]
async fn p1_changes_of_whole_threads_survive_a_kill() {
    let directory = tempfile::tempdir().expect("a directory");
    let setup = Setup::new(directory.path().join("home"));
    let mut host = Host::start(&setup).await;
    let archived = host.start_thread(directory.path(), ApprovalMode::Ask).await;
    let deleted = host.start_thread(directory.path(), ApprovalMode::Ask).await;
    for thread in [&archived, &deleted] {
        host.ask::<method::ThreadArchive>(ThreadIdParams::from(thread.clone())).await.expect("it is idle");
    }
    host.ask::<method::ThreadDelete>(ThreadIdParams::from(deleted.clone())).await.expect("it is archived");
    host.kill().await;

    let mut host = Host::start(&setup).await;
    assert!(host.read(&archived).await.thread.archived);
    let gone = host.resume(&deleted).await.expect_err("it was deleted");
    assert_eq!(gone.code.as_str(), "threadNotFound");
    let put_away = host.resume(&archived).await.expect_err("it is archived");
    assert_eq!(put_away.reason(), Some("archived"));
    host.close().await;
}
