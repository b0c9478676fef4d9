//! Steering and interrupting, at every stage of a turn.

use std::path::Path;

use raddle::engine::RetryPolicy;
use raddle::engine::turn::STEERS_WAITING_MAX;
use raddle::protocol::methods::{ClientRequest, ServerNotification, method};
use raddle::protocol::turn::{
    StartStatus, TurnInterruptParams, TurnInterruptResult, TurnStartParams, TurnSteerParams,
};
use raddle::protocol::{ErrorCode, ItemKind, ItemStatus, ThreadId, TurnId, TurnStatus};
use raddle_tests::{
    Client, Ending, Gate, Latch, Reply, Says, Setup, Stuck, World, agent_text, agent_texts, call, calls,
    user_texts,
};
use serde_json::json;

/// What waited to be steered, as `turn/queue/updated` told it.
fn queues(client: &Client) -> Vec<Vec<String>> {
    client
        .notifications(|_| true)
        .iter()
        .filter_map(|n| match &**n {
            ServerNotification::TurnQueueUpdated(n) => {
                Some(n.queue.steering.iter().map(ToString::to_string).collect())
            }
            _ => None,
        })
        .collect()
}

/// The thread still works, and the provider takes its history.
async fn goes_on(world: &World, client: &Client, thread: &ThreadId) {
    world.provider().push(Reply::says("Going on."));
    let turn = client.run(thread, "Go on").await;
    assert_eq!((turn.summary.status, agent_text(&turn).as_str()), (TurnStatus::Completed, "Going on."));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_steer_during_the_last_reply_asks_the_model_once_more() {
    let world = World::start().await;
    let client = world.client().await;
    let (thread, turn, gate) = world.half_said(&client).await;
    client.steer(&thread, &turn, "Also this").await.unwrap();
    client.steer(&thread, &turn, "And that").await.unwrap();
    assert_eq!(client.resume(&thread).await.queue.steering, ["Also this", "And that"]);
    world.provider().push(Reply::says("This and that."));
    gate.open();
    let turn = client.end(&turn).await;
    assert_eq!(turn.summary.status, TurnStatus::Completed);
    assert_eq!(user_texts(&turn), ["Hi", "Also this", "And that"]);
    assert_eq!(agent_texts(&turn), ["Half and whole.", "This and that."]);
    let kinds: Vec<_> = turn.items.iter().map(|item| item.kind.type_name()).collect();
    assert_eq!(kinds, ["userMessage", "agentMessage", "userMessage", "userMessage", "agentMessage"]);
    let request = world.provider().request(1).await;
    let said: Vec<_> = request.messages()[1..].iter().map(|m| m["content"].as_str().unwrap()).collect();
    assert_eq!(said, ["Hi", "Half and whole.", "Also this", "And that"]);
    assert_eq!(queues(&client), [vec!["Also this"], vec!["Also this", "And that"], vec![]]);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_steer_while_tools_run_follows_their_results() {
    let latch = Latch::new();
    let world =
        Setup::default().with_tools([Says::tool("says", &[], Some(&latch), "said") as _]).start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::calls(&[("c", "says", json!({}))]));
    let turn = client.start(&thread, "Say").await;
    latch.reached().await;
    let params = TurnSteerParams {
        thread_id: thread.clone(),
        expected_turn_id: turn.clone(),
        text: "Louder".into(),
        images: Vec::new(),
        client_message_id: Some("steer-1".into()),
    };
    client.request::<method::TurnSteer>(params).await.unwrap();
    world.provider().push(Reply::says("SAID."));
    latch.open();
    let turn = client.end(&turn).await;
    let request = world.provider().request(1).await;
    let roles: Vec<_> = request.messages().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "user"]);
    let steer = turn.items.iter().rfind(|item| matches!(item.kind, ItemKind::UserMessage { .. })).unwrap();
    let ItemKind::UserMessage { text, client_message_id, .. } = &steer.kind else { unreachable!() };
    assert_eq!((text.as_str(), client_message_id.as_deref()), ("Louder", Some("steer-1")));
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_steer_must_name_the_running_turn() {
    let world = World::start().await;
    let client = world.client().await;
    let idle = world.thread(&client).await;
    let stale = client.steer(&idle, &TurnId::generate(), "x").await.unwrap_err();
    assert_eq!(stale.code, ErrorCode::TurnMismatch);
    let (thread, turn, gate) = world.half_said(&client).await;
    let stale = client.steer(&thread, &TurnId::generate(), "x").await.unwrap_err();
    assert_eq!(stale.code, ErrorCode::TurnMismatch);
    assert_eq!(stale.data.unwrap()["runningTurnId"], turn.as_str());
    let empty = client.steer(&thread, &turn, " \n").await.unwrap_err();
    assert_eq!(empty.code, ErrorCode::InvalidParams);
    gate.open();
    let ended = client.end(&turn).await;
    assert_eq!(user_texts(&ended), ["Hi"]);
    let late = client.steer(&thread, &turn, "x").await.unwrap_err();
    assert_eq!(late.code, ErrorCode::TurnMismatch);
    goes_on(&world, &client, &thread).await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_steers_that_wait_are_bounded() {
    let world = World::start().await;
    let client = world.client().await;
    let (thread, turn, gate) = world.half_said(&client).await;
    for at in 0..STEERS_WAITING_MAX {
        client.steer(&thread, &turn, &format!("steer {at}")).await.unwrap();
    }
    let refused = client.steer(&thread, &turn, "one more").await.unwrap_err();
    assert_eq!((refused.code.clone(), refused.reason()), (ErrorCode::InvalidParams, Some("tooManySteers")));
    world.provider().push(Reply::says("All of them."));
    gate.open();
    let turn = client.end(&turn).await;
    assert_eq!(user_texts(&turn).len(), STEERS_WAITING_MAX + 1);
    world.finish().await;
}

/// Steers that the model has not seen end with their turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_drops_what_waited() {
    let world = World::start().await;
    let client = world.client().await;
    let (thread, turn, _gate) = world.half_said(&client).await;
    client.steer(&thread, &turn, "Never mind").await.unwrap();
    client.interrupt(&thread, None).await.unwrap();
    let ended = client.end(&turn).await;
    assert_eq!(ended.summary.status, TurnStatus::Interrupted);
    client
        .seen("the queue to be empty", |n| match n {
            ServerNotification::TurnQueueUpdated(n) => n.queue.steering.is_empty(),
            _ => false,
        })
        .await;
    goes_on(&world, &client, &thread).await;
    let request = world.provider().request(1).await;
    assert!(request.messages().iter().all(|message| message["content"] != "Never mind"));
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_before_the_first_delta() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::stream().hang());
    let turn = client.start(&thread, "Hi").await;
    world.provider().request(0).await;
    client.interrupt(&thread, Some(&turn)).await.unwrap();
    let ended = client.end(&turn).await;
    assert_eq!((ended.summary.status, ended.items.len()), (TurnStatus::Interrupted, 1));
    assert_eq!(ended.summary.error, None);
    assert!(ended.summary.completed_at.is_some());
    world.provider().disconnected(0).await;
    goes_on(&world, &client, &thread).await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_in_the_middle_of_a_text() {
    let world = World::start().await;
    let client = world.client().await;
    let (thread, turn, _gate) = world.half_said(&client).await;
    client.interrupt(&thread, None).await.unwrap();
    let ended = client.end(&turn).await;
    assert_eq!((ended.summary.status, agent_text(&ended).as_str()), (TurnStatus::Interrupted, "Half"));
    assert_eq!(ended.items.last().unwrap().status, ItemStatus::Interrupted);
    assert_eq!(world.provider().ended(0).await, Ending::ClientLeft);
    goes_on(&world, &client, &thread).await;
    let request = world.provider().request(1).await;
    let said: Vec<_> = request.messages()[1..].iter().map(|m| m["content"].as_str().unwrap()).collect();
    assert_eq!(said, ["Hi", "Half", "Go on"]);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_in_a_pause_between_attempts() {
    let retry = RetryPolicy { attempts_max: 3, delay_first_ms: 600_000, delay_max_ms: 600_000 };
    let world = Setup { retry, ..Setup::default() }.start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::error(503, "overloaded", "try later"));
    let turn = client.start(&thread, "Hi").await;
    client.seen("a retry", |n| matches!(n, ServerNotification::TurnRetrying(_))).await;
    client.interrupt(&thread, None).await.unwrap();
    let ended = client.end(&turn).await;
    assert_eq!((ended.summary.status, ended.summary.error), (TurnStatus::Interrupted, None));
    goes_on(&world, &client, &thread).await;
    world.finish().await;
}

/// Whether a process runs; one that has ended and was not yet waited for does not.
fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    stat.is_ok_and(|stat| {
        stat.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with(['Z', 'X']))
    })
}

/// A command that says who it and its child are, and then waits for ever.
const WAITS: &str = "sleep 1000 & child=$!; echo $$ $child; wait";

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_while_a_command_runs() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::calls(&[
        ("c1", "bash", json!({ "command": WAITS })),
        ("c2", "bash", json!({ "command": "touch never" })),
    ]));
    let turn = client.start(&thread, "Wait").await;
    let running = client
        .turn_until(&turn, "the command's output", |turn| {
            calls(turn).iter().any(|item| match &item.kind {
                ItemKind::ToolCall { output: Some(output), .. } => output.as_str().ends_with('\n'),
                _ => false,
            })
        })
        .await;
    let output = call(&running, "c1").1;
    let pids: Vec<&str> = output.split_whitespace().collect();
    assert!(pids.len() == 2 && pids.iter().all(|pid| is_running(pid)), "{output}");
    client.interrupt(&thread, None).await.unwrap();
    let ended = client.end(&turn).await;
    assert_eq!(ended.summary.status, TurnStatus::Interrupted);
    let (item, output) = call(&ended, "c1");
    assert_eq!(item.status, ItemStatus::Interrupted);
    assert!(output.contains(pids[0]), "what it had written stays: {output}");
    assert_eq!(call(&ended, "c2").0.status, ItemStatus::Interrupted);
    for pid in pids {
        assert!(!is_running(pid), "process {pid} is left");
    }
    assert!(!world.project().join("never").exists());
    goes_on(&world, &client, &thread).await;
    world.finish().await;
}

/// The start that comes right behind an interrupt waits for the old turn's end and runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_right_after_an_interrupt_runs() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    for attempt in ["text", "tool"] {
        match attempt {
            "text" => world.provider().push(Reply::stream().text("Half").hang()),
            _ => world.provider().push(Reply::calls(&[("c", "bash", json!({ "command": WAITS }))])),
        }
        let turn = client.start(&thread, "Hi").await;
        client
            .turn_until(&turn, "the turn to do something", |turn| {
                turn.items.iter().any(|item| match &item.kind {
                    ItemKind::AgentMessage { text } => !text.is_empty(),
                    ItemKind::ToolCall { output, .. } => output.is_some(),
                    _ => false,
                })
            })
            .await;
        world.provider().push(Reply::says("Next."));
        let interrupt = TurnInterruptParams { thread_id: thread.clone(), turn_id: Some(turn.clone()) };
        let interrupted = client.send(ClientRequest::TurnInterrupt(interrupt)).await;
        let start = TurnStartParams::new(thread.clone(), "Next");
        let started = client.send(ClientRequest::TurnStart(start)).await;
        let answer = client.answer_to::<method::TurnInterrupt>(&interrupted).await;
        assert_eq!(answer.unwrap(), TurnInterruptResult {});
        let next = client.answer_to::<method::TurnStart>(&started).await.unwrap().turn_id.unwrap();
        assert_eq!(client.end(&turn).await.summary.status, TurnStatus::Interrupted);
        assert_eq!(client.end(&next).await.summary.status, TurnStatus::Completed);
    }
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_of_nothing() {
    let mut world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    client.interrupt(&thread, None).await.unwrap();
    let named = client.interrupt(&thread, Some(&TurnId::generate())).await.unwrap_err();
    assert_eq!(named.code, ErrorCode::TurnMismatch);
    world.provider().push(Reply::says("Hello."));
    let turn = client.run(&thread, "Hi").await;
    let over = client.interrupt(&thread, Some(&turn.summary.id)).await.unwrap_err();
    assert_eq!(over.code, ErrorCode::TurnMismatch);
    client.interrupt(&thread, None).await.unwrap();

    world.reopen().await;
    let client = world.client().await;
    client.interrupt(&thread, None).await.unwrap();
    let named = client.interrupt(&thread, Some(&turn.summary.id)).await.unwrap_err();
    assert_eq!(named.code, ErrorCode::TurnMismatch);
    let nobody = client.interrupt(&ThreadId::generate(), None).await.unwrap_err();
    assert_eq!(nobody.code, ErrorCode::ThreadNotFound);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_of_another_turn_stops_nothing() {
    let world = World::start().await;
    let client = world.client().await;
    let (thread, turn, gate) = world.half_said(&client).await;
    let stale = client.interrupt(&thread, Some(&TurnId::generate())).await.unwrap_err();
    assert_eq!(stale.code, ErrorCode::TurnMismatch);
    gate.open();
    assert_eq!(client.end(&turn).await.summary.status, TurnStatus::Completed);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_start_while_a_turn_runs_is_refused() {
    let world = World::start().await;
    let [one, two] = [world.client().await, world.client().await];
    let (thread, turn, gate) = world.half_said(&one).await;
    two.resume(&thread).await;
    for client in [&one, &two] {
        let refused = client.start_refused(&thread, "Me too").await;
        assert_eq!(refused.code, ErrorCode::TurnInProgress);
        assert_eq!(refused.data.unwrap()["turnId"], turn.as_str());
    }
    gate.open();
    assert_eq!(user_texts(&one.end(&turn).await), ["Hi"]);
    goes_on(&world, &two, &thread).await;
    world.finish().await;
}

/// Two clients that start at once: one turn runs, the other start is refused, and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r46_of_two_starts_at_once_one_runs() {
    let world = World::start().await;
    world.provider().set_default(|_| Reply::says("Hello."));
    let [one, two] = [world.client().await, world.client().await];
    let thread = world.thread(&one).await;
    two.resume(&thread).await;
    for _ in 0..10 {
        let params = || ClientRequest::TurnStart(TurnStartParams::new(thread.clone(), "Hi"));
        let (first, second) = tokio::join!(one.send(params()), two.send(params()));
        let (first, second) = tokio::join!(
            one.answer_to::<method::TurnStart>(&first),
            two.answer_to::<method::TurnStart>(&second)
        );
        let mut started = 0;
        for answer in [first, second] {
            match answer {
                Ok(answer) => {
                    started += 1;
                    let turn = answer.turn_id.unwrap();
                    one.end(&turn).await;
                    two.end(&turn).await;
                }
                Err(error) => assert_eq!(error.code, ErrorCode::TurnInProgress),
            }
        }
        assert!(started > 0);
    }
    world.finish().await;
}

/// A start whose model is still being looked up can be cancelled, and launches nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_is_not_accepted_yet_is_cancelled() {
    let world = Setup { models: Vec::new(), ..Setup::default() }.start().await;
    let gate = Gate::new();
    world.provider().set_models(Reply::stream().wait(&gate).cut());
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let params =
        TurnStartParams { request_id: Some("token".into()), ..TurnStartParams::new(thread.clone(), "Hi") };
    let start = client.send(ClientRequest::TurnStart(params)).await;
    world.provider().list_request(0).await;
    let refused = client.start_refused(&thread, "Me too").await;
    assert_eq!(refused.code, ErrorCode::TurnInProgress);
    client.interrupt(&thread, None).await.unwrap();
    let answer = client.answer_to::<method::TurnStart>(&start).await.unwrap();
    assert_eq!((answer.status, answer.turn_id), (StartStatus::Cancelled, None));
    assert_eq!(answer.request_id.as_deref(), Some("token"));
    gate.open();
    world.provider().set_models(Reply::models(&["fake-model"]));
    goes_on(&world, &client, &thread).await;
    assert_eq!(world.provider().requests().len(), 1);
    world.finish().await;
}

/// A tool that does not stop is given up after five seconds, and its turn ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p9_a_tool_that_never_stops_is_given_up() {
    let world = Setup::default().with_tools([Stuck::tool() as _]).start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::calls(&[("c", "stuck", json!({}))]));
    let turn = client.start(&thread, "Hang").await;
    client.turn_until(&turn, "the call", |turn| calls(turn).len() == 1).await;
    client.interrupt(&thread, None).await.unwrap();
    // Accepted again while it settles, and waits with it.
    client.interrupt(&thread, None).await.unwrap();
    let ended = client.end(&turn).await;
    assert_eq!(ended.summary.status, TurnStatus::Interrupted);
    let (item, output) = call(&ended, "c");
    assert_eq!(item.status, ItemStatus::Interrupted);
    assert!(output.contains("abandoned"), "{output}");
    goes_on(&world, &client, &thread).await;
    world.finish().await;
}

/// Interrupts that race with the natural end of turns: each turn ends once, in one way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p4_interrupts_race_with_the_end_of_turns() {
    let world = World::start().await;
    world.provider().set_default(|_| Reply::text_deltas(20));
    let client = world.client().await;
    let thread = world.thread(&client).await;
    for round in 0..30 {
        let turn = client.start(&thread, "Go").await;
        if round % 3 != 0 {
            client.turn_until(&turn, "some text", |turn| !agent_text(turn).is_empty()).await;
        }
        client.interrupt(&thread, None).await.unwrap();
        let status = client.end(&turn).await.summary.status;
        assert!(matches!(status, TurnStatus::Interrupted | TurnStatus::Completed), "{status:?}");
    }
    world.finish().await;
}
