//! The typed client that a Rust host uses: `raddle::Client`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::StreamExt;
use parking_lot::Mutex;
use raddle::protocol::approval::{Decision, RequestApprovalResult};
use raddle::protocol::methods::{ServerAnswer, ServerNotification, ServerRequest, method};
use raddle::protocol::model::ModelListParams;
use raddle::protocol::thread::{ApprovalMode, ThreadReadParams, ThreadStartParams};
use raddle::protocol::turn::TurnStartParams;
use raddle::protocol::{ErrorCode, ThreadId, Turn, TurnId, TurnStatus};
use raddle::{Client, ClientError, Notifications};
use raddle_tests::{Reply, World, agent_text, call, within};
use serde_json::json;

async fn thread(world: &World, client: &Client, mode: ApprovalMode) -> ThreadId {
    let params = ThreadStartParams { cwd: world.cwd(), approval_mode: Some(mode), ..Default::default() };
    client.request::<method::ThreadStart>(params).await.unwrap().thread.id
}

async fn start(client: &Client, thread: &ThreadId) -> TurnId {
    let params = TurnStartParams::new(thread.clone(), "Hi");
    client.request::<method::TurnStart>(params).await.unwrap().turn_id.unwrap()
}

async fn ended(notifications: &mut Notifications) {
    within("the turn to end", String::new, async {
        while !matches!(notifications.next().await, Some(ServerNotification::ThreadTurnCompleted(_))) {}
    })
    .await;
}

async fn last_turn(client: &Client, thread: &ThreadId) -> Turn {
    let params = ThreadReadParams::newest(thread.clone());
    client.request::<method::ThreadRead>(params).await.unwrap().turns.pop().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callbacks_and_streams_get_the_same() {
    let world = World::start().await;
    let client = world.raddle().client("face", "1.0").await.unwrap();
    assert_eq!(client.initialized().server_info.name, "raddle");
    let heard = Arc::new(Mutex::new(Vec::new()));
    let registration = client.on_notification({
        let heard = heard.clone();
        move |notification| heard.lock().push(notification.method())
    });
    let mut stream = client.notifications();
    let thread = thread(&world, &client, ApprovalMode::FullAccess).await;
    world.provider().push(Reply::says("Hello."));
    start(&client, &thread).await;
    let mut streamed = Vec::new();
    within("the turn to end", String::new, async {
        while let Some(notification) = StreamExt::next(&mut stream).await {
            streamed.push(notification.method());
            if let ServerNotification::ThreadTurnCompleted(_) = notification {
                break;
            }
        }
    })
    .await;
    assert_eq!(heard.lock()[..streamed.len()], streamed);
    assert_eq!(agent_text(&last_turn(&client, &thread).await), "Hello.");

    // A registration that is dropped hears nothing more.
    drop(registration);
    let before = heard.lock().len();
    world.provider().push(Reply::says("Again."));
    start(&client, &thread).await;
    ended(&mut stream).await;
    assert_eq!(heard.lock().len(), before);
    client.shutdown().await;
    assert!(client.is_closed());
    within("the stream to end", String::new, async { while stream.next().await.is_some() {} }).await;
    assert!(!stream.has_overflowed());
    world.finish().await;
}

/// A callback that panics costs that one call. Holds: P9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p9_a_callback_that_panics_costs_that_call() {
    let world = World::start().await;
    let client = world.raddle().client("face", "1.0").await.unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let _registration = client.on_notification({
        let calls = calls.clone();
        move |_| {
            calls.fetch_add(1, Ordering::Relaxed);
            panic!("this callback always panics, and a test wants it to");
        }
    });
    let mut stream = client.notifications();
    let thread = thread(&world, &client, ApprovalMode::FullAccess).await;
    world.provider().push(Reply::says("Hello."));
    start(&client, &thread).await;
    ended(&mut stream).await;
    assert!(calls.load(Ordering::Relaxed) >= 5);
    assert_eq!(last_turn(&client, &thread).await.summary.status, TurnStatus::Completed);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_answers_questions() {
    let world = World::start().await;
    let client = world.raddle().client("face", "1.0").await.unwrap();
    client.on_request(|request| async move {
        let ServerRequest::ItemToolCallRequestApproval(params) = request;
        assert_eq!(params.tool_name, "bash");
        Ok(ServerAnswer::from(RequestApprovalResult::new(Decision::Accept)))
    });
    let mut stream = client.notifications();
    let thread = thread(&world, &client, ApprovalMode::Ask).await;
    world.provider().push(Reply::calls(&[("c", "bash", json!({ "command": "echo ran" }))]));
    world.provider().push(Reply::says("Done."));
    start(&client, &thread).await;
    ended(&mut stream).await;
    assert_eq!(call(&last_turn(&client, &thread).await, "c").1, "ran\n");
    world.finish().await;
}

/// Without a handler, or with one that panics, what is asked about is blocked. Holds: P6, P9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p6_p9_a_handler_that_fails_grants_nothing() {
    let world = World::start().await;
    let client = world.raddle().client("face", "1.0").await.unwrap();
    let mut stream = client.notifications();
    let thread = thread(&world, &client, ApprovalMode::Ask).await;
    for with_handler in [false, true] {
        if with_handler {
            client.on_request(|_| async { panic!("this handler always panics, and a test wants it to") });
        }
        world.provider().push(Reply::calls(&[("c", "bash", json!({ "command": "touch x" }))]));
        world.provider().push(Reply::says("Blocked."));
        start(&client, &thread).await;
        ended(&mut stream).await;
        let turn = last_turn(&client, &thread).await;
        assert_eq!((turn.summary.status, agent_text(&turn).as_str()), (TurnStatus::Completed, "Blocked."));
    }
    assert!(!world.project().join("x").exists());
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_come_as_they_were_sent() {
    let mut world = World::start().await;
    let client = world.raddle().client("face", "1.0").await.unwrap();
    let params = ThreadReadParams::newest(ThreadId::from("nobody"));
    let error = client.request::<method::ThreadRead>(params).await.unwrap_err();
    assert_eq!(error.code(), Some(&ErrorCode::ThreadNotFound));
    let params = ThreadStartParams {
        cwd: world.cwd(),
        model: Some(raddle::protocol::ModelRef::new("nobody", "x")),
        ..Default::default()
    };
    let error = client.request::<method::ThreadStart>(params).await.unwrap_err();
    assert_eq!(error.reason(), Some("unknownProvider"));
    world.reopen().await;
    let error = client.request::<method::ModelList>(ModelListParams {}).await.unwrap_err();
    assert_eq!(error, ClientError::Closed);
    world.finish().await;
}

/// A client that is dropped closes its connection; its turns go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_client_is_gone() {
    let world = World::start().await;
    let watcher = world.client().await;
    let client = world.raddle().client("face", "1.0").await.unwrap();
    let thread = thread(&world, &client, ApprovalMode::FullAccess).await;
    let gate = raddle_tests::Gate::new();
    world.provider().push(Reply::stream().wait(&gate).text("Alone.").stop());
    let turn = start(&client, &thread).await;
    world.provider().request(0).await;
    // A request that nobody waits for any more is carried out all the same.
    drop(client.request::<method::ModelList>(ModelListParams {}));
    drop(client);
    let params = raddle::protocol::server::DiagnosticsParams {};
    let connections = watcher.request::<method::ServerDiagnostics>(params).await.unwrap().connections;
    assert_eq!(connections, 1);
    gate.open();
    watcher.view_until("the turn to end", |view| view.told(&turn).map(|_| ())).await;
    assert_eq!(agent_text(&watcher.read(&thread).await.turns[0]), "Alone.");
    world.finish().await;
}
