//! The typed client over either link: in process, and over lines of JSON. One code drives both.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use raddle::protocol::approval::{Decision, RequestApprovalResult};
use raddle::protocol::methods::{ServerAnswer, ServerNotification, ServerRequest, method};
use raddle::protocol::model::ModelListParams;
use raddle::protocol::server::{ClientCapabilities, ClientInfo};
use raddle::protocol::thread::{ApprovalMode, ThreadReadParams, ThreadStartParams};
use raddle::protocol::turn::{TurnInterruptParams, TurnStartParams};
use raddle::protocol::{RequestId, RpcError, ThreadId, TurnStatus};
use raddle::server::transport::stdio::{ServerSink, ServerSource};
use raddle::{Answered, Client, ClientError, Notifications};
use raddle_tests::{Reply, World, agent_text, call, within};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, duplex, split};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

fn info() -> ClientInfo {
    ClientInfo { name: "links".into(), version: "1.0".into() }
}

/// A client over bytes, on a pipe that holds little, and what serves it.
async fn over_bytes(world: &World, opt_out: &[&str]) -> (Client, JoinHandle<()>) {
    let (near, far) = duplex(1_000);
    let server = world.raddle().server().clone();
    let (reader, writer) = split(far);
    let served = tokio::spawn(async move {
        server.serve(ServerSource::new(reader), ServerSink::new(writer)).await;
    });
    let (reader, writer) = split(near);
    let opt_out_notifications = opt_out.iter().map(|method| (*method).to_owned()).collect();
    let capabilities = ClientCapabilities { opt_out_notifications };
    (Client::over(reader, writer, info(), capabilities).await.unwrap(), served)
}

async fn until(notifications: &mut Notifications, method: &str) -> ServerNotification {
    within(method, String::new, async {
        loop {
            let notification = notifications.next().await.unwrap();
            if notification.method() == method {
                return notification;
            }
        }
    })
    .await
}

async fn thread(world: &World, client: &Client, mode: ApprovalMode) -> ThreadId {
    let params = ThreadStartParams { cwd: world.cwd(), approval_mode: Some(mode), ..Default::default() };
    client.request::<method::ThreadStart>(params).await.unwrap().thread.id
}

async fn start(client: &Client, thread: &ThreadId) {
    client.request::<method::TurnStart>(TurnStartParams::new(thread.clone(), "Hi")).await.unwrap();
}

/// What a host does in a day.
async fn a_day(world: &World, client: &Client) {
    let mut notifications = client.notifications();
    client.on_request(|_| async { Ok(RequestApprovalResult::new(Decision::Accept).into()) });
    let thread = thread(world, client, ApprovalMode::Ask).await;
    let file = world.project().join("touched");
    world.provider().push(Reply::calls(&[("c", "bash", json!({ "command": "touch touched" }))]));
    world.provider().push(Reply::text_deltas(500));
    start(client, &thread).await;
    let mut text = String::new();
    within("the turn to end", String::new, async {
        loop {
            match notifications.next().await.unwrap() {
                ServerNotification::ItemAgentMessageDelta(delta) => text.push_str(&delta.delta),
                ServerNotification::TurnCompleted(_) => break,
                _ => {}
            }
        }
    })
    .await;
    assert!(file.exists());
    std::fs::remove_file(file).unwrap();
    let read = client.request::<method::ThreadRead>(ThreadReadParams::newest(thread.clone())).await.unwrap();
    assert_eq!(agent_text(&read.turns[0]), text);
    assert!(!call(&read.turns[0], "c").0.id.as_str().is_empty());
    let missing = client.request::<method::ThreadRead>(ThreadReadParams::newest("none".into())).await;
    assert_eq!(missing.unwrap_err().code().unwrap().as_str(), "threadNotFound");
    // More requests at once than may run at once.
    let many = join_all((0..600).map(|_| client.request::<method::ModelList>(ModelListParams {}))).await;
    assert!(many.iter().all(|answer| *answer == many[0] && answer.is_ok()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_code_drives_either_link() {
    let world = World::start().await;
    let in_process = world.raddle().client("links", "1.0").await.unwrap();
    a_day(&world, &in_process).await;
    let (remote, served) = over_bytes(&world, &[]).await;
    assert_eq!(remote.initialized(), in_process.initialized());
    a_day(&world, &remote).await;
    for client in [&in_process, &remote] {
        client.shutdown().await;
        assert!(client.is_closed());
        let late = client.request::<method::ModelList>(ModelListParams {}).await;
        assert_eq!(late, Err(ClientError::Closed));
    }
    within("serve to return", String::new, served).await.unwrap();
    world.finish().await;
}

/// Requests that are answered later, by their ids; and answers that come too late for anything.
async fn answers_later(world: &World, client: &Client) {
    let (sender, mut asks) = mpsc::channel::<(RequestId, ServerRequest)>(8);
    client.on_open_request(move |id, request| sender.try_send((id, request)).unwrap());
    let mut notifications = client.notifications();
    let thread = thread(world, client, ApprovalMode::Ask).await;
    let answer =
        |decision| -> Result<ServerAnswer, RpcError> { Ok(RequestApprovalResult::new(decision).into()) };
    for decision in [Decision::Accept, Decision::Decline] {
        world.provider().push(Reply::calls(&[("c", "bash", json!({ "command": "touch touched" }))]));
        world.provider().push(Reply::says("Done."));
        start(client, &thread).await;
        let (id, _) = within("a question", String::new, asks.recv()).await.unwrap();
        assert_eq!(client.respond(&RequestId::Number(4_711), answer(Decision::Accept)).await, Answered::Late);
        assert_eq!(client.respond(&id, answer(decision)).await, Answered::Taken);
        assert_eq!(client.respond(&id, answer(Decision::Accept)).await, Answered::Late);
        until(&mut notifications, "turn/completed").await;
        let file = world.project().join("touched");
        assert_eq!(file.exists(), decision == Decision::Accept);
        let _ = std::fs::remove_file(file);
    }
    // One that is withdrawn.
    world.provider().push(Reply::calls(&[("c", "bash", json!({ "command": "touch touched" }))]));
    start(client, &thread).await;
    let (id, _) = within("a question", String::new, asks.recv()).await.unwrap();
    let interrupt = TurnInterruptParams { thread_id: thread.clone(), turn_id: None };
    client.request::<method::TurnInterrupt>(interrupt).await.unwrap();
    let cancelled = until(&mut notifications, "serverRequest/cancelled").await;
    assert_eq!(cancelled.params().unwrap()["id"], json!(id));
    assert_eq!(client.respond(&id, answer(Decision::Accept)).await, Answered::Late);
    until(&mut notifications, "turn/completed").await;
    assert!(!world.project().join("touched").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p6_requests_are_answered_later_by_their_ids() {
    let world = World::start().await;
    answers_later(&world, &world.raddle().client("links", "1.0").await.unwrap()).await;
    let (remote, _served) = over_bytes(&world, &[]).await;
    answers_later(&world, &remote).await;
    remote.shutdown().await;
    world.finish().await;
}

/// A callback that panics refuses its request, over either link. Holds: P9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p9_a_taker_that_panics_refuses() {
    let world = World::start().await;
    let in_process = world.raddle().client("links", "1.0").await.unwrap();
    let (remote, _served) = over_bytes(&world, &[]).await;
    for client in [in_process, remote] {
        client.on_open_request(|_, _| panic!("a test wants this"));
        let mut notifications = client.notifications();
        let thread = thread(&world, &client, ApprovalMode::Ask).await;
        world.provider().push(Reply::calls(&[("c", "bash", json!({ "command": "touch touched" }))]));
        world.provider().push(Reply::says("Done."));
        start(&client, &thread).await;
        until(&mut notifications, "turn/completed").await;
        assert!(!world.project().join("touched").exists());
        client.shutdown().await;
    }
    world.finish().await;
}

/// A client over bytes that is dropped ends its connection, and the turn that it began goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_client_ends_its_connection() {
    let world = World::start().await;
    let watcher = world.client().await;
    let (client, served) = over_bytes(&world, &["thread/started"]).await;
    let thread = thread(&world, &client, ApprovalMode::FullAccess).await;
    let gate = raddle_tests::Gate::new();
    world.provider().push(Reply::stream().text("Half").wait(&gate).text(" and whole.").stop());
    start(&client, &thread).await;
    drop(client);
    within("serve to return", String::new, served).await.unwrap();
    gate.open();
    watcher.idle(&thread).await;
    let read = watcher.read(&thread).await;
    assert_eq!(read.turns[0].summary.status, TurnStatus::Completed);
    world.finish().await;
}

/// The far end of a client, spoken by hand.
struct Far(BufReader<DuplexStream>);

impl Far {
    async fn read(&mut self) -> Option<Value> {
        let mut line = String::new();
        within("a line of the client", String::new, self.0.read_line(&mut line)).await.unwrap();
        (!line.is_empty()).then(|| serde_json::from_str(&line).unwrap())
    }

    async fn write(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).await.unwrap();
    }

    /// A client that has met this far end.
    async fn meet() -> (Client, Self) {
        let (near, far) = duplex(1 << 16);
        let mut far = Self(BufReader::new(far));
        let (reader, writer) = split(near);
        let client = Client::over(reader, writer, info(), ClientCapabilities::default());
        let hello = async {
            let request = far.read().await.unwrap();
            assert_eq!((&request["method"], request.get("jsonrpc")), (&json!("initialize"), None));
            let platform = json!({ "os": "plan9", "arch": "vax", "homeDir": "", "moon": "full" });
            let server = json!({ "name": "other", "version": "9", "edition": "deluxe" });
            let result = json!({ "serverInfo": server, "platform": platform });
            far.write(&format!("{}\r\n", json!({ "jsonrpc": "2.0", "id": request["id"], "result": result })))
                .await;
            assert_eq!(far.read().await.unwrap(), json!({ "method": "initialized", "params": {} }));
        };
        let (client, ()) = tokio::join!(client, hello);
        (client.unwrap(), far)
    }
}

/// What a client cannot read is skipped, or fails the one request that it answers; the connection goes on.
#[tokio::test]
async fn a_newer_server_does_not_break_the_client() {
    let (client, mut far) = Far::meet().await;
    let heard = Arc::new(AtomicUsize::new(0));
    let _registration = client.on_notification({
        let heard = heard.clone();
        move |_| {
            heard.fetch_add(1, Ordering::Relaxed);
        }
    });
    let list = || client.request::<method::ModelList>(ModelListParams {});
    let answering = async {
        let first = far.read().await.unwrap();
        for noise in [
            "nonsense\n".to_owned(),
            "\u{FEFF}\n\n".to_owned(),
            format!("{}\n", json!({ "method": "thread/teleported", "params": {} })),
            format!("{}\n", json!({ "method": "warning", "params": { "message": "m", "source": "stars" } })),
            format!("{}\n", json!({ "id": 4_711, "result": {} })),
            format!("{}\n", json!({ "id": null, "error": { "code": "parseError", "message": "what?" } })),
            format!("{}\n", json!({ "method": "warning", "params": { "message": "m", "source": "server" } })),
        ] {
            far.write(&noise).await;
        }
        far.write(&format!("{}\n", json!({ "id": first["id"], "result": { "models": "many" } }))).await;
    };
    let (unreadable, ()) = tokio::join!(list(), answering);
    assert!(
        matches!(&unreadable, Err(ClientError::UnreadableResult { method: "model/list", .. })),
        "{unreadable:?}"
    );
    let answering = async {
        let second = far.read().await.unwrap();
        // A request that the client does not know is refused, and so is one that it knows and nobody answers.
        far.write(&format!("{}\n", json!({ "id": "q", "method": "item/dance", "params": {} }))).await;
        let refused = far.read().await.unwrap();
        assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!("q"), &json!("methodNotFound")));
        let error = json!({ "code": "fromTheFuture", "message": "m", "data": { "more": [1] } });
        far.write(&format!("{}\n", json!({ "id": second["id"], "error": error }))).await;
    };
    let (failed, ()) = tokio::join!(list(), answering);
    let Err(ClientError::Server(error)) = failed else { panic!("{failed:?}") };
    assert_eq!((error.code.as_str(), error.data), ("fromTheFuture", Some(json!({ "more": [1] }))));
    assert_eq!(heard.load(Ordering::Relaxed), 1);

    // The far end goes: what waits fails, and the client knows.
    let ending = async {
        far.read().await.unwrap();
        drop(far);
    };
    let (closed, ()) = tokio::join!(list(), ending);
    assert_eq!(closed, Err(ClientError::Closed));
    client.shutdown().await;
    assert!(client.is_closed());
}

/// A connect over bytes that fails, or is given up, leaves no task behind. Holds: P7.
#[tokio::test]
async fn p7_connects_that_fail_leave_no_tasks() {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    {
        // Nobody answers.
        let (near, _far) = duplex(64);
        let (reader, writer) = split(near);
        let connecting = Client::over(reader, writer, info(), ClientCapabilities::default());
        assert!(futures_util::FutureExt::now_or_never(connecting).is_none());
    }
    let (near, far) = duplex(64);
    drop(far);
    let (reader, writer) = split(near);
    let closed = Client::over(reader, writer, info(), ClientCapabilities::default()).await;
    assert_eq!(closed.err(), Some(ClientError::Closed));
    within("the tasks to end", String::new, async {
        while tasks() > before {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
