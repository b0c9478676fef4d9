//! Approvals: who is asked, what is done with the answer, and what happens without one. What ran is proven by a file.

use raddle::protocol::approval::{Decision, RequestApprovalResult};
use raddle::protocol::limits::DECLINE_MESSAGE_CHARS_MAX;
use raddle::protocol::methods::{ServerNotification, method};
use raddle::protocol::thread::{ApprovalMode, ThreadStatus, WaitingOn};
use raddle::protocol::{ErrorCode, ItemStatus, RequestId, RpcError, ThreadId, TurnId, TurnStatus};
use raddle_tests::{Client, Gate, Reply, Setup, World, agent_text, call, calls};
use serde_json::json;

const TOUCH: &str = "touch x; echo once >> count";

fn touch(id: &str) -> Reply {
    Reply::calls(&[(id, "bash", json!({ "command": TOUCH }))])
}

/// How often the command has run.
fn times_run(world: &World) -> usize {
    std::fs::read_to_string(world.project().join("count")).map_or(0, |text| text.lines().count())
}

/// A world whose model wants to run a command in a thread that asks first.
async fn asking() -> (World, Client, ThreadId, TurnId) {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread_with(&client, ApprovalMode::Ask).await;
    world.provider().push(touch("c"));
    let turn = client.start(&thread, "Touch x").await;
    (world, client, thread, turn)
}

/// What the model was told of the call `c` in the last request.
async fn told(world: &World) -> String {
    let last = world.provider().requests().len() - 1;
    let request = world.provider().request(last).await;
    let result = request.messages().iter().find(|message| message["tool_call_id"] == "c").unwrap();
    result["content"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepted_it_runs_once() {
    let (world, client, thread, turn) = asking().await;
    let ask = client.asked(0).await;
    assert_eq!((&ask.params.thread_id, &ask.params.turn_id), (&thread, &turn));
    assert_eq!((ask.params.item_id.as_str(), &*ask.params.tool_name), ("c", "bash"));
    assert_eq!(ask.params.input, json!({ "command": TOUCH }));
    assert_eq!(ask.params.decisions, [Decision::Accept, Decision::Decline, Decision::Cancel]);
    let waiting = ThreadStatus::Active { waiting_on: vec![WaitingOn::Approval] };
    client
        .view_until("the thread to wait", |view| (view.status(&thread) == Some(&waiting)).then_some(()))
        .await;
    assert_eq!(client.read(&thread).await.thread.status, waiting);
    assert_eq!(times_run(&world), 0);

    world.provider().push(Reply::says("Touched."));
    client.decide(&ask, Decision::Accept).await;
    let turn = client.end(&turn).await;
    assert_eq!(turn.summary.status, TurnStatus::Completed);
    assert_eq!(call(&turn, "c").0.status, ItemStatus::Completed);
    assert_eq!(times_run(&world), 1);
    client.idle(&thread).await;
    assert_eq!(client.asks().len(), 1);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn declined_the_model_is_told_why_and_goes_on() {
    let (world, client, _, turn) = asking().await;
    let ask = client.asked(0).await;
    world.provider().push(Reply::says("As you wish."));
    let answer =
        RequestApprovalResult { decision: Decision::Decline, message: Some("Use y instead é".into()) };
    client.respond(&ask.id, Ok(answer)).await;
    let turn = client.end(&turn).await;
    assert_eq!(turn.summary.status, TurnStatus::Completed);
    assert_eq!(agent_text(&turn), "As you wish.");
    assert_eq!(call(&turn, "c").0.status, ItemStatus::Declined);
    assert!(told(&world).await.contains("Use y instead é"));
    assert_eq!(times_run(&world), 0);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_a_long_decline_is_cut_on_a_character() {
    let (world, client, _, turn) = asking().await;
    let ask = client.asked(0).await;
    world.provider().push(Reply::says("Long."));
    let answer = RequestApprovalResult {
        decision: Decision::Decline,
        message: Some("é".repeat(DECLINE_MESSAGE_CHARS_MAX + 5)),
    };
    client.respond(&ask.id, Ok(answer)).await;
    client.end(&turn).await;
    let said = told(&world).await;
    assert_eq!(said.chars().filter(|c| *c == 'é').count(), DECLINE_MESSAGE_CHARS_MAX);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_the_turn_ends_interrupted() {
    let (world, client, thread, turn) = asking().await;
    let ask = client.asked(0).await;
    client.decide(&ask, Decision::Cancel).await;
    let turn = client.end(&turn).await;
    assert_eq!(turn.summary.status, TurnStatus::Interrupted);
    assert_eq!(call(&turn, "c").0.status, ItemStatus::Declined);
    assert_eq!((times_run(&world), world.provider().requests().len()), (0, 1));
    world.provider().push(Reply::says("Something else then."));
    client.run(&thread, "Do something else").await;
    assert!(told(&world).await.contains("cancelled"));
    world.finish().await;
}

/// What was not offered never grants anything. Holds: P6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p6_a_decision_that_was_not_offered_declines() {
    for decision in [Decision::AcceptForSession, Decision::AcceptPrefixForSession] {
        let (world, client, thread, turn) = asking().await;
        let ask = client.asked(0).await;
        world.provider().push(Reply::says("Well."));
        client.decide(&ask, decision).await;
        let turn = client.end(&turn).await;
        assert_eq!(turn.summary.status, TurnStatus::Completed);
        assert_eq!(call(&turn, "c").0.status, ItemStatus::Declined);
        assert_eq!(times_run(&world), 0);
        // Nor does it grant anything to the next call.
        world.provider().push(touch("c2"));
        let turn = client.start(&thread, "Again").await;
        world.provider().push(Reply::says("Well."));
        client.decide(&client.asked(1).await, Decision::Decline).await;
        client.end(&turn).await;
        assert_eq!(times_run(&world), 0);
        world.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r26_with_nobody_to_answer_the_call_is_blocked_and_the_turn_goes_on() {
    let world = World::start().await;
    let client = world.client().await;
    client.answer_nothing();
    let thread = world.thread_with(&client, ApprovalMode::Ask).await;
    world.provider().push(touch("c"));
    world.provider().push(Reply::says("Nobody there."));
    let turn = client.run(&thread, "Touch x").await;
    assert_eq!((turn.summary.status, agent_text(&turn).as_str()), (TurnStatus::Completed, "Nobody there."));
    assert_eq!(call(&turn, "c").0.status, ItemStatus::Declined);
    assert!(told(&world).await.contains("nobody could give one"));
    assert_eq!((times_run(&world), client.asks().len()), (0, 1));
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r26_with_nobody_subscribed_nobody_is_asked_then_or_later() {
    let world = World::start().await;
    let client = world.client().await;
    let bystander = world.client().await;
    let thread = world.thread_with(&client, ApprovalMode::Ask).await;
    let gate = Gate::new();
    let command = json!({ "command": TOUCH }).to_string();
    let reply = Reply::stream().text("Hm.").wait(&gate).tool_call(0, "c", "bash", &command);
    world.provider().push(reply.finish("tool_calls").done());
    world.provider().push(Reply::says("Nobody there."));
    let turn = client.start(&thread, "Touch x").await;
    world.provider().request(0).await;
    client.close().await;
    gate.open();
    bystander.view_until("the turn to end", |view| view.told(&turn).map(|_| ())).await;
    let late = world.client().await;
    let resumed = late.resume(&thread).await;
    assert_eq!(resumed.turns[0].summary.status, TurnStatus::Completed);
    assert_eq!(call(&resumed.turns[0], "c").0.status, ItemStatus::Declined);
    assert!(late.asks().is_empty() && bystander.asks().is_empty());
    assert_eq!(times_run(&world), 0);
    world.finish().await;
}

/// The most recent initiator is asked, and nobody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_one_who_started_the_turn_is_asked() {
    let world = World::start().await;
    let [one, two] = [world.client().await, world.client().await];
    let thread = world.thread_with(&one, ApprovalMode::Ask).await;
    two.resume(&thread).await;
    // Number two has resumed last, and is asked less than once.
    world.provider().push(touch("c"));
    let turn = one.start(&thread, "Touch x").await;
    let ask = one.asked(0).await;
    world.provider().push(Reply::says("One."));
    one.decide(&ask, Decision::Accept).await;
    one.end(&turn).await;
    assert!(two.asks().is_empty());

    world.provider().push(touch("c2"));
    let turn = two.start(&thread, "Touch x").await;
    let ask = two.asked(0).await;
    world.provider().push(Reply::says("Two."));
    two.decide(&ask, Decision::Accept).await;
    two.end(&turn).await;
    one.end(&turn).await;
    assert_eq!((one.asks().len(), two.asks().len(), times_run(&world)), (1, 1, 2));
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r26_a_question_moves_to_the_next_client_when_its_client_leaves() {
    let (world, one, thread, turn) = asking().await;
    let two = world.client().await;
    one.asked(0).await;
    let resumed = two.resume(&thread).await;
    let waiting = ThreadStatus::Active { waiting_on: vec![WaitingOn::Approval] };
    assert_eq!(resumed.thread.status, waiting);
    assert_eq!(calls(resumed.running_turn.as_ref().unwrap()).len(), 1);
    one.close().await;
    let ask = two.asked(0).await;
    assert_eq!(ask.params.item_id.as_str(), "c");
    world.provider().push(Reply::says("Touched."));
    two.decide(&ask, Decision::Accept).await;
    two.end(&turn).await;
    assert_eq!((times_run(&world), two.asks().len()), (1, 1));
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_moves_on_when_its_client_unsubscribes() {
    let (world, one, thread, turn) = asking().await;
    let two = world.client().await;
    let first = one.asked(0).await;
    two.resume(&thread).await;
    one.request::<method::ThreadUnsubscribe>(thread.clone().into()).await.unwrap();
    let cancelled = one
        .seen(
            "the question to be withdrawn",
            |n| matches!(n, ServerNotification::ServerRequestCancelled(n) if n.id == first.id),
        )
        .await;
    let ServerNotification::ServerRequestCancelled(cancelled) = &*cancelled else { unreachable!() };
    assert!(cancelled.reason.contains("subscription"));
    let ask = two.asked(0).await;
    // A late answer of the one who left grants nothing.
    one.decide(&first, Decision::Accept).await;
    world.provider().push(Reply::says("Then not."));
    two.decide(&ask, Decision::Decline).await;
    assert_eq!(call(&two.end(&turn).await, "c").0.status, ItemStatus::Declined);
    assert_eq!(times_run(&world), 0);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r26_a_question_moves_on_when_its_client_cannot_answer() {
    let world = World::start().await;
    let [one, two] = [world.client().await, world.client().await];
    let thread = world.thread_with(&one, ApprovalMode::Ask).await;
    two.resume(&thread).await;
    one.answer_nothing();
    world.provider().push(touch("c"));
    let turn = one.start(&thread, "Touch x").await;
    let ask = two.asked(0).await;
    world.provider().push(Reply::says("Touched."));
    two.decide(&ask, Decision::Accept).await;
    one.end(&turn).await;
    two.end(&turn).await;
    assert_eq!((times_run(&world), one.asks().len(), two.asks().len()), (1, 1, 1));
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r26_when_the_last_client_leaves_the_call_is_blocked_and_no_ghost_remains() {
    let (world, one, thread, turn) = asking().await;
    let bystander = world.client().await;
    one.asked(0).await;
    world.provider().push(Reply::says("Nobody there."));
    one.close().await;
    bystander.view_until("the turn to end", |view| view.told(&turn).map(|_| ())).await;
    let late = world.client().await;
    let resumed = late.resume(&thread).await;
    assert_eq!(call(&resumed.turns[0], "c").0.status, ItemStatus::Declined);
    assert_eq!(agent_text(&resumed.turns[0]), "Nobody there.");
    assert!(late.asks().is_empty());
    assert_eq!(times_run(&world), 0);
    world.finish().await;
}

/// Case R26 (c).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r26_an_interrupt_withdraws_the_question_and_a_late_answer_does_nothing() {
    let (world, client, thread, turn) = asking().await;
    let ask = client.asked(0).await;
    client.interrupt(&thread, Some(&turn)).await.unwrap();
    let ended = client.end(&turn).await;
    assert_eq!(ended.summary.status, TurnStatus::Interrupted);
    assert_eq!(call(&ended, "c").0.status, ItemStatus::Interrupted);
    let cancelled = client
        .seen("the question to be withdrawn", |n| matches!(n, ServerNotification::ServerRequestCancelled(_)))
        .await;
    let ServerNotification::ServerRequestCancelled(cancelled) = &*cancelled else { unreachable!() };
    assert_eq!(cancelled.id, ask.id);
    assert!(!cancelled.reason.is_empty());
    client.decide(&ask, Decision::Accept).await;
    world.provider().push(Reply::says("Going on."));
    client.run(&thread, "Go on").await;
    assert_eq!(times_run(&world), 0);
    assert!(told(&world).await.contains("interrupted"));
    assert_eq!(client.asks().len(), 1);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_to_no_question_and_second_answers_do_nothing() {
    let (world, client, _, turn) = asking().await;
    let ask = client.asked(0).await;
    let accept = || Ok(RequestApprovalResult::new(Decision::Accept));
    for id in [RequestId::Number(77), RequestId::Number(-1), RequestId::String("1".into())] {
        client.respond(&id, accept()).await;
    }
    let other = world.client().await;
    // Its id is right, its connection is not.
    other.respond(&ask.id, accept()).await;
    world.provider().push(Reply::says("Declined."));
    client.decide(&ask, Decision::Decline).await;
    client.decide(&ask, Decision::Accept).await;
    let turn = client.end(&turn).await;
    assert_eq!(call(&turn, "c").0.status, ItemStatus::Declined);
    assert_eq!(times_run(&world), 0);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_only_looks_asks_nobody() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread_with(&client, ApprovalMode::Ask).await;
    std::fs::write(world.project().join("a.txt"), "alpha").unwrap();
    world.provider().push(Reply::calls(&[("r", "read", json!({ "path": "a.txt" })), ("l", "ls", json!({}))]));
    world.provider().push(Reply::says("Seen."));
    let turn = client.run(&thread, "Look").await;
    assert_eq!(call(&turn, "r").1, "alpha");
    assert!(client.asks().is_empty());
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auto_edit_still_asks_for_a_shell() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread_with(&client, ApprovalMode::AutoEdit).await;
    client.answer_with(|_| Ok(RequestApprovalResult::new(Decision::Decline)));
    world.provider().push(touch("c"));
    world.provider().push(Reply::says("Well."));
    client.run(&thread, "Touch x").await;
    assert_eq!((client.asks().len(), times_run(&world)), (1, 0));
    world.finish().await;
}

/// One question at a time, and the next only once the call before has run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_calls_are_asked_for_one_after_the_other() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread_with(&client, ApprovalMode::Ask).await;
    let bash = |command: &str| json!({ "command": command });
    world.provider().push(Reply::calls(&[
        ("c1", "bash", bash("echo one >> log")),
        ("c2", "bash", bash("echo two >> log")),
        ("c3", "bash", bash("echo three >> log")),
    ]));
    let turn = client.start(&thread, "Write").await;
    let log = || std::fs::read_to_string(world.project().join("log")).unwrap_or_default();
    let first = client.asked(0).await;
    assert_eq!((first.params.item_id.as_str(), client.asks().len()), ("c1", 1));
    client.decide(&first, Decision::Accept).await;
    let second = client.asked(1).await;
    assert_eq!((second.params.item_id.as_str(), log().as_str()), ("c2", "one\n"));
    client.decide(&second, Decision::Decline).await;
    let third = client.asked(2).await;
    assert_eq!(third.params.item_id.as_str(), "c3");
    world.provider().push(Reply::says("Written."));
    client.decide(&third, Decision::Accept).await;
    let turn = client.end(&turn).await;
    assert_eq!(log(), "one\nthree\n");
    let statuses: Vec<_> = calls(&turn).iter().map(|item| item.status).collect();
    assert_eq!(statuses, [ItemStatus::Completed, ItemStatus::Declined, ItemStatus::Completed]);
    world.finish().await;
}

/// Cancelling the first of several calls runs none of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelling_one_call_stops_those_behind_it() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread_with(&client, ApprovalMode::Ask).await;
    world.provider().push(Reply::calls(&[
        ("c", "bash", json!({ "command": TOUCH })),
        ("c2", "bash", json!({ "command": TOUCH })),
    ]));
    let turn = client.start(&thread, "Touch x twice").await;
    client.decide(&client.asked(0).await, Decision::Cancel).await;
    let turn = client.end(&turn).await;
    assert_eq!(turn.summary.status, TurnStatus::Interrupted);
    assert_eq!(call(&turn, "c2").0.status, ItemStatus::Interrupted);
    assert_eq!((client.asks().len(), times_run(&world)), (1, 0));
    world.provider().push(Reply::says("Well."));
    client.run(&thread, "Go on").await;
    world.finish().await;
}

/// An answer that is an error counts as no answer, whatever the error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p6_an_error_for_an_answer_grants_nothing() {
    let (world, client, _, turn) = asking().await;
    let ask = client.asked(0).await;
    world.provider().push(Reply::says("Nobody there."));
    client.respond(&ask.id, Err(RpcError::new(ErrorCode::Internal, "the dialog crashed"))).await;
    let turn = client.end(&turn).await;
    assert_eq!(call(&turn, "c").0.status, ItemStatus::Declined);
    assert_eq!(times_run(&world), 0);
    world.finish().await;
}

/// Steering while a question is open reaches the model behind the call's result.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_steer_while_asking_waits_for_the_answer() {
    let (world, client, thread, turn) = asking().await;
    let ask = client.asked(0).await;
    client.steer(&thread, &turn, "And be quick").await.unwrap();
    world.provider().push(Reply::says("Quick."));
    client.decide(&ask, Decision::Accept).await;
    client.end(&turn).await;
    let request = world.provider().request(1).await;
    let [.., result, steer] = request.messages() else { panic!("too few messages") };
    assert_eq!((&result["role"], &steer["role"]), (&json!("tool"), &json!("user")));
    assert_eq!(steer["content"], "And be quick");
    world.finish().await;
}

/// A grant is for one call: the next one asks again, in the same turn and in another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepting_once_is_accepting_once() {
    let world = Setup::default().start().await;
    let client = world.client().await;
    let thread = world.thread_with(&client, ApprovalMode::Ask).await;
    client.answer_with(|_| Ok(RequestApprovalResult::new(Decision::Accept)));
    for round in 0..2 {
        world.provider().push(touch(&format!("a{round}")));
        world.provider().push(touch(&format!("b{round}")));
        world.provider().push(Reply::says("Done."));
        client.run(&thread, "Touch x twice").await;
    }
    assert_eq!((client.asks().len(), times_run(&world)), (4, 4));
    let ids: std::collections::HashSet<_> = client.asks().into_iter().map(|ask| ask.id).collect();
    assert_eq!(ids.len(), 4, "ids of the server's requests are used once");
    world.finish().await;
}
