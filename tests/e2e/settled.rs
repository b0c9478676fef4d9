//! What the soak and a sceptical reviewer turned up, settled since.

use std::collections::HashSet;
use std::time::Duration;

use raddle::engine::{Answer, Attach, Error, History, Live};
use raddle::protocol::approval::Decision;
use raddle::protocol::limits::INPUT_TEXT_BYTES_MAX;
use raddle::protocol::methods::{ClientRequest, method};
use raddle::protocol::thread::{ApprovalMode, ThreadListParams, ThreadStartParams, ThreadStatus};
use raddle::protocol::turn::{StartStatus, TurnInterruptParams, TurnStartParams};
use raddle::protocol::{ErrorCode, TurnStatus};
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
    let mut ids = HashSet::new();
    for _ in 0..3 {
        world.provider().push(Reply::calls(&[("call_1", "ls", json!({ "path": "." }))]));
        world.provider().push(Reply::says("Done."));
        let ended = client.run(&thread, "Look").await;
        ids.extend(ended.items.into_iter().map(|item| item.id));
    }
    assert_eq!(ids.len(), 9, "{ids:?}");
    world.finish().await;
}

/// Whoever finds a thread before its creator has the answer meets the one task that it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_a_thread_is_loaded_once_while_it_is_created() {
    let world = World::with_builtin("echo").await;
    let [creator, eager] = [world.client().await, world.client().await];
    let mut known = HashSet::new();
    for _ in 0..60 {
        let cwd = world.project().display().to_string();
        let params = ThreadStartParams { cwd, ..Default::default() };
        let start = creator.send(ClientRequest::ThreadStart(params)).await;
        let found = loop {
            let params = ThreadListParams { limit: Some(200), ..Default::default() };
            let list = eager.request::<method::ThreadList>(params).await.unwrap();
            if let Some(new) = list.threads.into_iter().find(|thread| known.insert(thread.id.clone())) {
                break new.id;
            }
        };
        eager.resume(&found).await;
        let thread = creator.answer_to::<method::ThreadStart>(&start).await.unwrap().thread.id;
        assert_eq!(thread, found);
        let turn = creator.start(&thread, "hello").await;
        assert_eq!(creator.end(&turn).await.summary.status, TurnStatus::Completed);
        eager.end(&turn).await;
    }
    world.finish().await;
}

/// A provider's call id in the form of our own ids takes no other item's place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_a_call_id_is_never_taken_for_a_message() {
    let world = World::with_builtin("script").await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let script = r#"script: call ls#1.0 {"path":"."} ;; call ls#1.1 {"path":"."} ;; --- ;; text Done."#;
    let ended = client.run(&thread, script).await;
    assert_eq!(user_texts(&ended).len(), 1);
    assert_eq!(agent_text(&ended), "Done.");
    assert_eq!(ended.items.len(), 4, "{ended:?}");
    world.finish().await;
}

/// An interrupt that names another turn leaves a start alone that is on its way in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_of_another_turn_cancels_no_start() {
    let world = World::with_builtin("echo").await;
    let [one, other] = [world.client().await, world.client().await];
    let thread = world.thread(&one).await;
    for round in 0..50 {
        let text = format!("hello {round}");
        let start = one.send(ClientRequest::TurnStart(TurnStartParams::new(thread.clone(), text))).await;
        let refused = other.interrupt(&thread, Some(&"not this one".into())).await;
        assert_eq!(refused.unwrap_err().code, ErrorCode::TurnMismatch);
        let started = one.answer_to::<method::TurnStart>(&start).await.unwrap();
        assert_eq!(started.status, StartStatus::Started);
        one.end(&started.turn_id.unwrap()).await;
    }
    world.finish().await;
}

/// Pages end early rather than grow past what a connection takes, and every turn can still be read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_pages_are_bounded_in_bytes() {
    let world = World::with_builtin("script").await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    // Some are large enough to be referred to, and many are not.
    let lengths = [400_000, 60_000, 50_000, 3_000_000].into_iter().chain(std::iter::repeat_n(55_000, 21));
    let said: Vec<_> = lengths.map(|length| format!("{}\nscript: text ok", "x".repeat(length))).collect();
    for text in &said {
        client.run(&thread, text).await;
    }
    let page = client.read(&thread).await;
    assert!((10..25).contains(&page.turns.len()), "{} turns", page.turns.len());
    assert!(page.next_cursor.is_some());
    // Both are measured by the harness.
    let resumed = world.client().await.resume(&thread).await;
    assert!((10..25).contains(&resumed.turns.len()), "{} turns", resumed.turns.len());
    let all = client.read_all(&thread, 50).await;
    assert!(all.iter().flat_map(user_texts).eq(said), "turns are missing, or not whole");
    let refused = client.start_refused(&thread, &"x".repeat(INPUT_TEXT_BYTES_MAX + 1)).await;
    assert_eq!(refused.code, ErrorCode::InvalidParams);
    world.finish().await;
}

/// A page that a turn's end has outdated subscribes nobody; the reader reads again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_an_outdated_page_subscribes_nobody() {
    let world = World::with_builtin("echo").await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let turn = client.run(&thread, "hello").await;
    let viewer = world.client().await;
    for (expected, fits) in [(None, false), (Some("another".into()), false), (Some(turn.summary.id), true)] {
        let (told, hear) = tokio::sync::oneshot::channel();
        let deliver = Answer::new(move |live: Result<Live, Error>| {
            let _ = told.send(live.map(drop));
        });
        let subscriber = viewer.connection().clone();
        let attach = Attach { subscriber, expected_head: Some(expected), deliver };
        world.raddle().server().engine().attach(&thread, attach).await;
        match hear.await.unwrap() {
            Ok(()) => assert!(fits),
            Err(Error::StaleHistory) => assert!(!fits),
            Err(error) => panic!("{error}"),
        }
    }
    world.finish().await;
}

/// The page that a thread reads itself is always current, and the running turn is not on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_a_thread_reads_its_own_page() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::says("One."));
    let first = client.run(&thread, "one").await;
    let gate = Gate::new();
    world.provider().push(Reply::stream().text("Two").wait(&gate).text(".").stop());
    let running = client.start(&thread, "two").await;
    client.turn_until(&running, "text", |turn| agent_text(turn) == "Two").await;
    // Not a client of the world: it would miss the response that a resume has.
    let viewer = world.raddle().server().connect();
    let (told, hear) = tokio::sync::oneshot::channel();
    let deliver = Answer::new(move |read: Result<(History, Live), Error>| {
        let _ = told.send(read);
    });
    let subscriber = viewer.clone();
    world.raddle().server().engine().attach_reading(&thread, None, None, subscriber, deliver).await;
    let (history, live) = hear.await.unwrap().unwrap();
    assert_eq!(history.turns, [first]);
    assert_eq!(agent_text(&live.running_turn.unwrap()), "Two");
    gate.open();
    client.end(&running).await;
    world.finish().await;
}
