//! Summing a conversation up. Cases: R21.

use raddle::protocol::methods::method;
use raddle::protocol::thread::{CompactStatus, ThreadCompactParams, ThreadCompactResult, ThreadRewindParams};
use raddle::protocol::turn::{SendMode, SendStatus, TurnSendParams, TurnStartParams};
use raddle::protocol::{ErrorCode, ItemKind, ItemStatus, RpcError, ThreadId, Turn, TurnStatus};
use raddle_tests::{Client, Gate, Reply, World, agent_text};
use serde_json::json;

async fn compact(
    client: &Client,
    thread: &ThreadId,
    instructions: Option<&str>,
) -> Result<ThreadCompactResult, RpcError> {
    let params =
        ThreadCompactParams { thread_id: thread.clone(), instructions: instructions.map(str::to_owned) };
    client.request::<method::ThreadCompact>(params).await
}

fn summary(turn: &Turn) -> (&str, ItemStatus) {
    let item = &turn.items[0];
    let ItemKind::Compaction { text } = &item.kind else { unreachable!("{item:?}") };
    (text.whole().unwrap(), item.status)
}

/// The texts that a model was sent, the system prompt left out.
async fn sent(world: &World, number: usize) -> Vec<String> {
    let request = world.provider().request(number).await;
    request.messages()[1..].iter().map(|m| m["content"].as_str().unwrap_or("").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_compaction_the_model_knows_the_summary_and_readers_know_all() {
    let mut world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::calls(&[("c", "ls", json!({ "path": "." }))]));
    world.provider().push(Reply::says("There is nothing."));
    client.run(&thread, "What is here?").await;
    world.provider().push(Reply::stream().text("They asked. ").text("Nothing is here.").usage(40, 4).stop());
    let started = compact(&client, &thread, Some("the file names")).await.unwrap();
    assert_eq!(started.status, CompactStatus::Started);
    let turn = client.end(&started.turn_id.unwrap()).await;
    assert_eq!(turn.summary.status, TurnStatus::Completed);
    assert_eq!(summary(&turn), ("They asked. Nothing is here.", ItemStatus::Completed));
    let asked = sent(&world, 2).await;
    assert!(asked.last().unwrap().contains("the file names"));
    assert!(world.provider().request(2).await.body()["tools"].as_array().is_none_or(Vec::is_empty));
    // Its cost counts, and how much of the window is taken is unknown until the next reply.
    let usage = client.resume(&thread).await.usage;
    assert_eq!((usage.context_tokens, usage.counts.output >= 4), (None, true));
    world.reopen().await;
    let client = world.client().await;
    world.provider().push(Reply::says("On."));
    client.run(&thread, "Go on").await;
    let told = sent(&world, 3).await;
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("Nothing is here.") && told[1] == "Go on");
    assert_eq!(client.read(&thread).await.turns.len(), 3, "the history stays as it is");
    // Without a restart in between, the same.
    world.provider().push(Reply::says("And on."));
    client.run(&thread, "And on").await;
    assert_eq!(sent(&world, 4).await.len(), 4);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r21_a_compaction_that_frees_nothing_does_nothing() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    assert_eq!(compact(&client, &thread, None).await.unwrap().status, CompactStatus::NothingToCompact);
    world.provider().push(Reply::says("Hello."));
    client.run(&thread, "Hi").await;
    world.provider().push(Reply::says("They greeted."));
    let started = compact(&client, &thread, None).await.unwrap();
    client.end(&started.turn_id.unwrap()).await;
    let again = compact(&client, &thread, None).await.unwrap();
    assert_eq!((again.status, again.turn_id), (CompactStatus::NothingToCompact, None));
    world.provider().push(Reply::says("Still here."));
    assert_eq!(agent_text(&client.run(&thread, "Still there?").await), "Still here.");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r21_what_comes_while_a_compaction_runs_is_queued_or_refused_and_never_lost() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::says("Hello."));
    client.run(&thread, "Hi").await;
    let gate = Gate::new();
    world.provider().push(Reply::stream().text("They ").wait(&gate).text("greeted.").stop());
    let turn = compact(&client, &thread, None).await.unwrap().turn_id.unwrap();
    world.provider().request(1).await;
    assert_eq!(client.start_refused(&thread, "now").await.code, ErrorCode::TurnInProgress);
    let steer = client.steer(&thread, &turn, "now").await.unwrap_err();
    assert_eq!((&steer.code, steer.reason()), (&ErrorCode::InvalidParams, Some("notSteerable")));
    assert_eq!(compact(&client, &thread, None).await.unwrap_err().code, ErrorCode::TurnInProgress);
    let start = TurnStartParams::new(thread.clone(), "later");
    let params = TurnSendParams { start, mode: SendMode::Auto, idempotency_key: None };
    let sent_later = client.request::<method::TurnSend>(params).await.unwrap();
    assert_eq!(sent_later.status, SendStatus::Queued);
    world.provider().push(Reply::says("Later."));
    gate.open();
    client.end(&turn).await;
    client
        .view_until("the queued turn", |view| {
            view.turns(&thread).iter().find(|turn| agent_text(turn) == "Later.").cloned()
        })
        .await;
    client.idle(&thread).await;
    let told = sent(&world, 2).await;
    assert!(told[0].contains("They greeted.") && told[1] == "later", "{told:?}");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r21_a_compaction_that_fails_leaves_everything_as_it_was() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::says("Hello."));
    client.run(&thread, "Hi").await;
    // Refused, empty, interrupted: three ways to fail.
    world.provider().push(Reply::error(400, "bad", "no"));
    let failed = compact(&client, &thread, None).await.unwrap().turn_id.unwrap();
    let failed = client.end(&failed).await;
    assert_eq!((failed.summary.status, summary(&failed)), (TurnStatus::Failed, ("", ItemStatus::Failed)));
    world.provider().push(Reply::says("  "));
    let empty = compact(&client, &thread, None).await.unwrap().turn_id.unwrap();
    assert_eq!(client.end(&empty).await.summary.status, TurnStatus::Failed);
    let gate = Gate::new();
    world.provider().push(Reply::stream().text("Half").wait(&gate).stop());
    let stopped = compact(&client, &thread, None).await.unwrap().turn_id.unwrap();
    world.provider().request(3).await;
    client.interrupt(&thread, Some(&stopped)).await.unwrap();
    let stopped = client.end(&stopped).await;
    assert_eq!(
        (stopped.summary.status, summary(&stopped).1),
        (TurnStatus::Interrupted, ItemStatus::Interrupted)
    );
    world.provider().push(Reply::says("On."));
    client.run(&thread, "Go on").await;
    assert_eq!(sent(&world, 4).await, ["Hi", "Hello.", "Go on"]);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_summary_is_tried_again_and_a_rewind_brings_the_whole_back() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::says("Hello."));
    let first = client.run(&thread, "Hi").await.summary.id;
    world.provider().push(Reply::stream().text("Lost ").cut());
    world.provider().push(Reply::says("Kept."));
    let turn = compact(&client, &thread, None).await.unwrap().turn_id.unwrap();
    assert_eq!(summary(&client.end(&turn).await).0, "Kept.");
    let params = ThreadRewindParams { thread_id: thread.clone(), turn_id: first };
    client.request::<method::ThreadRewind>(params).await.unwrap();
    world.provider().push(Reply::says("On."));
    client.run(&thread, "Go on").await;
    assert_eq!(sent(&world, 3).await, ["Hi", "Hello.", "Go on"]);
    world.finish().await;
}
