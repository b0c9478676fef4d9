//! What the first soak turned up, settled since.

use std::time::Duration;

use raddle::protocol::ErrorCode;
use raddle::protocol::approval::Decision;
use raddle::protocol::methods::{ClientRequest, method};
use raddle::protocol::thread::{ApprovalMode, ThreadStatus};
use raddle::protocol::turn::{StartStatus, TurnInterruptParams, TurnStartParams};
use raddle_tests::{Gate, Reply, Setup, World, agent_text, user_texts};
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_viewer_does_not_take_the_initiators_questions() {
    let world = World::start().await;
    let [one, viewer] = [world.client().await, world.client().await];
    let thread = world.thread_with(&one, ApprovalMode::Ask).await;
    let gate = Gate::new();
    let command = json!({ "command": "touch x" }).to_string();
    world.provider().push(
        Reply::stream()
            .text("Hm.")
            .wait(&gate)
            .tool_call(0, "c", "bash", &command)
            .finish("tool_calls")
            .done(),
    );
    world.provider().push(Reply::says("Done."));
    let turn = one.start(&thread, "Touch x").await;
    one.turn_until(&turn, "text", |turn| agent_text(turn) == "Hm.").await;
    viewer.answer_nothing();
    viewer.resume(&thread).await;
    gate.open();
    let ask = one.asked(0).await;
    assert!(viewer.asks().is_empty(), "the viewer was asked first");
    one.decide(&ask, Decision::Accept).await;
    one.end(&turn).await;
    viewer.end(&turn).await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everybody_is_told_of_loads_and_unloads() {
    let world = Setup { unload_after: Some(Duration::from_millis(5)), ..Setup::default() }.start().await;
    let [client, sidebar] = [world.client().await, world.client().await];
    let thread = world.thread(&client).await;
    client.close().await;
    sidebar
        .view_until("notLoaded", |view| {
            (view.status(&thread) == Some(&ThreadStatus::NotLoaded)).then_some(())
        })
        .await;
    let back = world.client().await;
    back.resume(&thread).await;
    sidebar
        .view_until("idle", |view| (view.status(&thread) == Some(&ThreadStatus::Idle)).then_some(()))
        .await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_steer_that_never_reached_the_model_stays_readable() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::stream().text("Half").hang());
    let turn = client.start(&thread, "Hi").await;
    client.turn_until(&turn, "text", |turn| agent_text(turn) == "Half").await;
    client.steer(&thread, &turn, "Also this").await.unwrap();
    client.interrupt(&thread, None).await.unwrap();
    let ended = client.end(&turn).await;
    assert_eq!(user_texts(&ended), ["Hi", "Also this"]);
    world.finish().await;
}

/// A start, an interrupt and the next start, sent without waiting for an answer: the second turn follows the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_p4_starts_and_interrupts_back_to_back() {
    let world = World::with_builtin("echo").await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let start = |text: &str| ClientRequest::TurnStart(TurnStartParams::new(thread.clone(), text));
    for round in 0..100 {
        let stop = TurnInterruptParams { thread_id: thread.clone(), turn_id: None };
        let first = client.send(start(&format!("first {round}"))).await;
        let interrupt = client.send(ClientRequest::TurnInterrupt(stop)).await;
        let second = client.send(start(&format!("second {round}"))).await;
        let first = client.answer_to::<method::TurnStart>(&first).await.unwrap();
        assert!(matches!(first.status, StartStatus::Started | StartStatus::Cancelled));
        client.answer_to::<method::TurnInterrupt>(&interrupt).await.unwrap();
        match client.answer_to::<method::TurnStart>(&second).await {
            Ok(second) => drop(client.end(&second.turn_id.unwrap()).await),
            // The interrupt overtook the first start's way in, and found nothing to stop.
            Err(error) => assert_eq!(error.code, ErrorCode::TurnInProgress),
        }
        if let Some(turn) = first.turn_id {
            client.end(&turn).await;
        }
    }
    world.finish().await;
}

/// A model that gives its calls the same id in every turn gets items of different ids.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_ids_are_unique_on_the_branch() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let mut ids = std::collections::HashSet::new();
    for _ in 0..3 {
        world.provider().push(Reply::calls(&[("call_1", "ls", json!({ "path": "." }))]));
        world.provider().push(Reply::says("Done."));
        let ended = client.run(&thread, "Look").await;
        ids.extend(ended.items.into_iter().map(|item| item.id));
    }
    assert_eq!(ids.len(), 9, "{ids:?}");
    world.finish().await;
}
