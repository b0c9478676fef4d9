//! The queue of a thread, and the one request that starts, steers or queues.

use raddle::engine::models::ModelConfig;
use raddle::protocol::methods::{ClientRequest, ServerNotification, method};
use raddle::protocol::thread::{ThreadSettingsUpdateParams, ThreadStatus};
use raddle::protocol::turn::{
    SendMode, SendStatus, TurnQueueAddParams, TurnQueueRemoveParams, TurnSendParams, TurnSendResult,
    TurnStartParams,
};
use raddle::protocol::{ErrorCode, ItemKind, ModelRef, RpcError, ThreadId, Turn, TurnStatus};
use raddle_tests::{Client, Gate, MODEL, PROVIDER, Reply, Setup, World, agent_text, user_texts};

async fn add(client: &Client, thread: &ThreadId, text: &str) -> String {
    client
        .request::<method::TurnQueueAdd>(TurnQueueAddParams::new(thread.clone(), text))
        .await
        .unwrap()
        .queue_id
}

async fn remove(client: &Client, thread: &ThreadId, queue_id: &str) -> bool {
    let params = TurnQueueRemoveParams { thread_id: thread.clone(), queue_id: queue_id.to_owned() };
    client.request::<method::TurnQueueRemove>(params).await.unwrap().removed
}

fn to_send(thread: &ThreadId, text: &str, mode: SendMode, key: Option<&str>) -> TurnSendParams {
    let start = TurnStartParams {
        request_id: Some(format!("token of {text}")),
        ..TurnStartParams::new(thread.clone(), text)
    };
    TurnSendParams { start, mode, idempotency_key: key.map(str::to_owned) }
}

async fn send(
    client: &Client,
    thread: &ThreadId,
    text: &str,
    mode: SendMode,
    key: Option<&str>,
) -> Result<TurnSendResult, RpcError> {
    client.request::<method::TurnSend>(to_send(thread, text, mode, key)).await
}

/// What waited for turns of their own, as `turn/queue/updated` told it.
fn queues(client: &Client) -> Vec<Vec<String>> {
    client
        .notifications(|_| true)
        .iter()
        .filter_map(|n| match &**n {
            ServerNotification::TurnQueueUpdated(n) => {
                Some(n.queue.follow_up.iter().map(|queued| queued.text.to_string()).collect())
            }
            _ => None,
        })
        .collect()
}

/// The ended turns that a client has seen in which this was said first.
async fn turn_of(client: &Client, thread: &ThreadId, text: &str) -> Turn {
    client
        .view_until(&format!("the turn of {text:?} to end"), |view| {
            let turns = view.turns(thread).iter();
            let mut turns = turns.filter(|turn| turn.summary.status != TurnStatus::InProgress);
            turns.find(|turn| user_texts(turn).first().is_some_and(|said| said == text)).cloned()
        })
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_inputs_start_turns_of_their_own_oldest_first() {
    let world = World::start().await;
    let client = world.client().await;
    let (thread, turn, gate) = world.half_said(&client).await;
    let tokens = TurnQueueAddParams {
        request_id: Some("token".to_owned()),
        client_message_id: Some("optimistic".to_owned()),
        ..TurnQueueAddParams::new(thread.clone(), "first")
    };
    let first = client.request::<method::TurnQueueAdd>(tokens).await.unwrap().queue_id;
    let second = add(&client, &thread, "second").await;
    let third = add(&client, &thread, "third").await;
    assert!(remove(&client, &thread, &second).await);
    assert!(!remove(&client, &thread, &second).await, "it was removed before");
    assert!(!remove(&client, &thread, "nothing").await);
    let queue = client.resume(&thread).await.queue.follow_up;
    let ids: Vec<_> = queue.iter().map(|queued| queued.id.clone()).collect();
    assert_eq!(ids, [first.clone(), third]);
    world.provider().push(Reply::says("First."));
    world.provider().push(Reply::says("Third."));
    gate.open();
    client.end(&turn).await;
    let turn = turn_of(&client, &thread, "first").await;
    let ItemKind::UserMessage { client_message_id, .. } = &turn.items[0].kind else { unreachable!() };
    assert_eq!(client_message_id.as_deref(), Some("optimistic"));
    let started = client
        .seen(
            "the start",
            |n| matches!(n, ServerNotification::TurnStarted(n) if n.turn.id == turn.summary.id),
        )
        .await;
    let ServerNotification::TurnStarted(started) = &*started else { unreachable!() };
    assert_eq!(started.request_id.as_deref(), Some("token"));
    assert_eq!(agent_text(&turn_of(&client, &thread, "third").await), "Third.");
    assert!(!remove(&client, &thread, &first).await, "it has started");
    let told = queues(&client);
    let told: Vec<Vec<&str>> = told.iter().map(|texts| texts.iter().map(String::as_str).collect()).collect();
    let expected: [&[&str]; 6] = [
        &["first"],
        &["first", "second"],
        &["first", "second", "third"],
        &["first", "third"],
        &["third"],
        &[],
    ];
    assert_eq!(told, expected);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_an_idle_thread_a_queued_input_starts_at_once() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::says("At once."));
    add(&client, &thread, "now").await;
    assert_eq!(agent_text(&turn_of(&client, &thread, "now").await), "At once.");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_drops_what_waits() {
    let world = World::start().await;
    let client = world.client().await;
    let (thread, turn, _gate) = world.half_said(&client).await;
    add(&client, &thread, "one").await;
    add(&client, &thread, "two").await;
    client.interrupt(&thread, None).await.unwrap();
    assert_eq!(client.end(&turn).await.summary.status, TurnStatus::Interrupted);
    client.idle(&thread).await;
    assert!(client.resume(&thread).await.queue.follow_up.is_empty());
    assert_eq!(queues(&client).last().unwrap().len(), 0);
    world.provider().push(Reply::says("On."));
    client.run(&thread, "on").await;
    assert_eq!(client.read(&thread).await.turns.len(), 2, "nothing of the queue has started");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_queue_survives_a_restart_and_goes_on_after_the_load_was_answered() {
    let mut world = World::start().await;
    let client = world.client().await;
    let (thread, _turn, _gate) = world.half_said(&client).await;
    add(&client, &thread, "one").await;
    let two = add(&client, &thread, "two").await;
    add(&client, &thread, "three").await;
    world.reopen().await;
    let client = world.client().await;
    // Taking one back is possible before anything starts.
    assert!(remove(&client, &thread, &two).await);
    let first = world.client().await;
    world.provider().push(Reply::says("One."));
    world.provider().push(Reply::says("Three."));
    first.resume(&thread).await;
    assert_eq!(agent_text(&turn_of(&first, &thread, "three").await), "Three.");
    let turns = first.read(&thread).await.turns;
    assert_eq!(
        turns.iter().map(|turn| user_texts(turn).concat()).collect::<Vec<_>>(),
        ["Hi", "one", "three"]
    );
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resume_that_loads_a_thread_shows_its_queue_before_it_goes_on() {
    let mut world = World::start().await;
    let client = world.client().await;
    let (thread, _turn, _gate) = world.half_said(&client).await;
    add(&client, &thread, "one").await;
    world.reopen().await;
    let client = world.client().await;
    world.provider().push(Reply::says("One."));
    let resumed = client.resume(&thread).await;
    assert_eq!(resumed.queue.follow_up[0].text, "one");
    assert_eq!((resumed.running_turn, resumed.thread.status), (None, ThreadStatus::Idle));
    turn_of(&client, &thread, "one").await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queued_input_that_cannot_start_is_dropped_with_an_error_and_the_next_one_starts() {
    let other = ModelConfig::new("other");
    let setup = Setup::default();
    let both = Setup { models: [setup.models.clone(), vec![other]].concat(), ..setup.clone() };
    let mut world = both.start().await;
    let client = world.client().await;
    let (thread, _turn, _gate) = world.half_said(&client).await;
    let update = |model: &str| ThreadSettingsUpdateParams {
        model: Some(ModelRef::new(PROVIDER, model)),
        ..ThreadSettingsUpdateParams::new(thread.clone())
    };
    client.request::<method::ThreadSettingsUpdate>(update("other")).await.unwrap();
    let bad = add(&client, &thread, "bad").await;
    // The model is gone when the input is to start.
    world.reopen_as(setup).await;
    let client = world.client().await;
    client.resume(&thread).await;
    let error = client.seen("the error", |n| matches!(n, ServerNotification::Error(_))).await;
    let ServerNotification::Error(error) = &*error else { unreachable!() };
    assert_eq!((&error.code, error.thread_id.as_ref()), (&ErrorCode::InvalidParams, Some(&thread)));
    assert_eq!(error.data.as_ref().unwrap()["queueId"], bad);
    assert!(queues(&client).last().unwrap().is_empty());
    client.request::<method::ThreadSettingsUpdate>(update(MODEL)).await.unwrap();
    world.provider().push(Reply::says("Good."));
    add(&client, &thread, "good").await;
    assert_eq!(agent_text(&turn_of(&client, &thread, "good").await), "Good.");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_a_queue_is_bounded() {
    let world = World::start().await;
    let client = world.client().await;
    let (thread, turn, _gate) = world.half_said(&client).await;
    for number in 0..raddle::protocol::limits::QUEUED_INPUTS_MAX {
        add(&client, &thread, &format!("input {number}")).await;
    }
    let full = client
        .request::<method::TurnQueueAdd>(TurnQueueAddParams::new(thread.clone(), "one more"))
        .await
        .unwrap_err();
    assert_eq!((&full.code, full.reason()), (&ErrorCode::InvalidParams, Some("queueFull")));
    client.interrupt(&thread, None).await.unwrap();
    client.end(&turn).await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_a_queue_is_bounded_in_bytes_too() {
    use raddle::protocol::limits::{INPUT_TEXT_BYTES_MAX, QUEUED_BYTES_MAX};
    let world = World::start().await;
    let client = world.client().await;
    let (thread, turn, _gate) = world.half_said(&client).await;
    let large = "x".repeat(INPUT_TEXT_BYTES_MAX);
    for _ in 0..QUEUED_BYTES_MAX / INPUT_TEXT_BYTES_MAX {
        add(&client, &thread, &large).await;
    }
    let full = client
        .request::<method::TurnQueueAdd>(TurnQueueAddParams::new(thread.clone(), "one more"))
        .await
        .unwrap_err();
    assert_eq!((&full.code, full.reason()), (&ErrorCode::InvalidParams, Some("queueFull")));
    client.interrupt(&thread, None).await.unwrap();
    client.end(&turn).await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_send_starts_steers_or_queues() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let gate = Gate::new();
    world.provider().push(Reply::stream().text("Half").wait(&gate).text(" whole").stop());
    let started = send(&client, &thread, "start", SendMode::Auto, None).await.unwrap();
    assert_eq!(
        (started.status, started.request_id.as_deref()),
        (SendStatus::Started, Some("token of start"))
    );
    let turn = started.turn_id.unwrap();
    client.turn_until(&turn, "half an answer", |turn| agent_text(turn) == "Half").await;
    let steered = send(&client, &thread, "steer", SendMode::Auto, None).await.unwrap();
    assert_eq!((steered.status, steered.turn_id.as_ref()), (SendStatus::Steered, Some(&turn)));
    let steered = send(&client, &thread, "steer too", SendMode::Steer, None).await.unwrap();
    assert_eq!(steered.status, SendStatus::Steered);
    let queued = send(&client, &thread, "queue", SendMode::Queue, None).await.unwrap();
    assert_eq!((queued.status, queued.turn_id), (SendStatus::Queued, None));
    assert_eq!(client.resume(&thread).await.queue.follow_up[0].id, queued.queue_id.unwrap());
    world.provider().push(Reply::says("Steered."));
    world.provider().push(Reply::says("Queued."));
    gate.open();
    assert_eq!(user_texts(&client.end(&turn).await), ["start", "steer", "steer too"]);
    assert_eq!(agent_text(&turn_of(&client, &thread, "queue").await), "Queued.");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_makes_a_send_happen_once() {
    let mut world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::says("Once."));
    // Side by side: the requests of one connection and of another.
    let other = world.client().await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(
            client.send(ClientRequest::TurnSend(to_send(&thread, "once", SendMode::Auto, Some("k1")))).await,
        );
    }
    let elsewhere = send(&other, &thread, "something else", SendMode::Queue, Some("k1")).await.unwrap();
    for id in ids {
        let same = client.answer_to::<method::TurnSend>(&id).await.unwrap();
        assert_eq!((same.status, &same.turn_id), (SendStatus::Started, &elsewhere.turn_id));
    }
    assert_eq!(elsewhere.request_id.as_deref(), Some("token of something else"), "each gets its own token");
    let turn = elsewhere.turn_id.clone().unwrap();
    client.view_until("the turn to end", |view| view.told(&turn).cloned()).await;
    // In a later life of the process, too.
    world.reopen().await;
    let client = world.client().await;
    let again = send(&client, &thread, "once", SendMode::Auto, Some("k1")).await.unwrap();
    assert_eq!((again.status, again.turn_id), (SendStatus::Started, elsewhere.turn_id));
    assert_eq!(client.read(&thread).await.turns.len(), 1);
    for bad in ["", &"k".repeat(129)] {
        let refused = send(&client, &thread, "x", SendMode::Auto, Some(bad)).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidParams);
    }
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_a_send_that_was_refused_can_be_used_again() {
    let world = World::start().await;
    let client = world.client().await;
    let (thread, turn, gate) = world.half_said(&client).await;
    for number in 0..raddle::engine::turn::STEERS_WAITING_MAX {
        client.steer(&thread, &turn, &format!("steer {number}")).await.unwrap();
    }
    let refused = send(&client, &thread, "late", SendMode::Steer, Some("k")).await.unwrap_err();
    assert_eq!(refused.reason(), Some("tooManySteers"));
    let queued = send(&client, &thread, "late", SendMode::Queue, Some("k")).await.unwrap();
    assert_eq!(queued.status, SendStatus::Queued);
    world.provider().push(Reply::says("All of it."));
    world.provider().push(Reply::says("Late."));
    gate.open();
    turn_of(&client, &thread, "late").await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_send_does_not_overtake_what_waited_before_a_restart() {
    let mut world = World::start().await;
    let client = world.client().await;
    let (thread, _turn, _gate) = world.half_said(&client).await;
    add(&client, &thread, "first").await;
    world.reopen().await;
    let client = world.client().await;
    world.provider().push(Reply::says("First."));
    world.provider().push(Reply::says("Second."));
    // It is what loads the thread, and the queue waits until it is answered.
    let sent = send(&client, &thread, "second", SendMode::Auto, None).await.unwrap();
    assert_eq!(sent.status, SendStatus::Queued);
    client.resume(&thread).await;
    turn_of(&client, &thread, "second").await;
    let turns = client.read(&thread).await.turns;
    assert_eq!(
        turns.iter().map(|turn| user_texts(turn).concat()).collect::<Vec<_>>(),
        ["Hi", "first", "second"]
    );
    world.finish().await;
}
