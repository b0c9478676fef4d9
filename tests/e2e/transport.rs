//! Connections over a transport: `Server::serve` on the two halves of a channel.

use std::io;
use std::time::{Duration, Instant};

use raddle::engine::protocol::rpc::{ClientMessage, ServerMessage};
use raddle::protocol::methods::{ClientNotification, ClientRequest, ClientResponse, ServerNotification};
use raddle::protocol::model::ModelListParams;
use raddle::protocol::server::{
    ClientCapabilities, ClientInfo, DiagnosticsParams, InitializeParams, InitializedParams,
};
use raddle::protocol::thread::ThreadReadParams;
use raddle::protocol::turn::TurnStartParams;
use raddle::protocol::{ErrorCode, ModelRef, RequestId, RpcError, ThreadId};
use raddle::server::ShutdownTimes;
use raddle::server::transport::stdio::{ServerSink, ServerSource};
use raddle::server::transport::{Incoming, MessageSink, MessageSource};
use raddle::{Options, Raddle};
use raddle_tests::{Gate, Reply, Setup, Stuck, World, agent_text, within};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

struct Source(mpsc::Receiver<Incoming>);

impl MessageSource for Source {
    async fn receive(&mut self) -> Option<Incoming> {
        self.0.recv().await
    }
}

/// Hands messages on; a channel without a receiver is a pipe that is broken.
struct Sink(mpsc::Sender<Option<ServerMessage>>);

impl MessageSink for Sink {
    async fn send(&mut self, message: ServerMessage) -> io::Result<()> {
        self.0.send(Some(message)).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    async fn close(&mut self) {
        let _ = self.0.send(None).await;
    }
}

/// The far end of a served connection.
struct Peer {
    input: mpsc::Sender<Incoming>,
    output: mpsc::Receiver<Option<ServerMessage>>,
    served: JoinHandle<()>,
}

impl Peer {
    async fn of(world: &World) -> Self {
        let (input, source) = mpsc::channel(64);
        let (sink, output) = mpsc::channel(64);
        let server = world.raddle().server().clone();
        let served = tokio::spawn(async move { server.serve(Source(source), Sink(sink)).await });
        let mut peer = Self { input, output, served };
        let hello = InitializeParams {
            client_info: ClientInfo { name: "peer".into(), version: "1".into() },
            capabilities: ClientCapabilities::default(),
        };
        peer.request(0, ClientRequest::Initialize(hello)).await;
        assert!(matches!(
            peer.answer().await,
            (Some(RequestId::Number(0)), Ok(ClientResponse::Initialize(_)))
        ));
        let ready = ClientNotification::Initialized(InitializedParams {});
        peer.send(Incoming::Message(ClientMessage::Notification(ready))).await;
        peer
    }

    async fn send(&self, incoming: Incoming) {
        assert!(self.input.send(incoming).await.is_ok(), "the source is gone");
    }

    async fn request(&self, id: i64, request: ClientRequest) {
        self.send(Incoming::Message(ClientMessage::Request { id: RequestId::Number(id), request })).await;
    }

    /// The next message; `None` when the sink was closed.
    async fn next(&mut self) -> Option<ServerMessage> {
        within("a message of the server", String::new, self.output.recv()).await.flatten()
    }

    /// The next answer; notifications before it are dropped.
    async fn answer(&mut self) -> (Option<RequestId>, Result<ClientResponse, RpcError>) {
        loop {
            // A connection that ends before the answer fails the test.
            if let ServerMessage::Response { id, result } = self.next().await.unwrap() {
                return (id, result);
            }
        }
    }
}

fn read(thread: &ThreadId) -> ClientRequest {
    ClientRequest::ThreadRead(ThreadReadParams::newest(thread.clone()))
}

/// At the end of input, what was accepted is answered and what waits is written before `serve` returns. Holds: P4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p4_the_end_of_input_drains_answers() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let peer = Peer::of(&world).await;
    let reader = tokio::spawn(async move {
        for id in 1..=40 {
            let request = match id % 4 {
                0 => ClientRequest::ModelList(ModelListParams {}),
                1 => ClientRequest::ThreadResume(ThreadReadParams::newest(thread.clone())),
                2 => ClientRequest::ServerDiagnostics(DiagnosticsParams {}),
                _ => read(&thread),
            };
            peer.request(id, request).await;
        }
        let Peer { input, mut output, served } = peer;
        drop(input);
        let mut answered = Vec::new();
        while let Some(Some(message)) = output.recv().await {
            if let ServerMessage::Response { id: Some(RequestId::Number(id)), result } = message {
                assert!(result.is_ok());
                answered.push(id);
            }
        }
        within("serve to return", String::new, served).await.unwrap();
        answered.sort_unstable();
        answered
    });
    assert_eq!(reader.await.unwrap(), (1..=40).collect::<Vec<_>>());
    world.finish().await;
}

/// A turn goes on when the one who started it has gone; the end of input alone does not stop it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_outlives_the_connection_that_began_it() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let mut peer = Peer::of(&world).await;
    let gate = Gate::new();
    world.provider().push(Reply::stream().text("Half").wait(&gate).text(" and whole.").stop());
    peer.request(1, ClientRequest::TurnStart(TurnStartParams::new(thread.clone(), "Hi"))).await;
    let (_, answer) = peer.answer().await;
    let Ok(ClientResponse::TurnStart(started)) = answer else { panic!("{answer:?}") };
    let turn = started.turn_id.unwrap();
    client.turn_until(&turn, "half an answer", |turn| agent_text(turn) == "Half").await;
    let Peer { input, output, served } = peer;
    drop((input, output));
    within("serve to return", String::new, served).await.unwrap();
    gate.open();
    assert_eq!(agent_text(&client.end(&turn).await), "Half and whole.");
    world.finish().await;
}

/// What cannot be read is answered, with its id where that could be read, and the next message works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r22_what_cannot_be_read_is_answered_and_the_next_works() {
    let world = World::start().await;
    let mut peer = Peer::of(&world).await;
    let parse = RpcError::new(ErrorCode::ParseError, "that is no JSON");
    peer.send(Incoming::Malformed { id: None, error: parse.clone() }).await;
    assert_eq!(peer.answer().await, (None, Err(parse)));
    let missing = RpcError::new(ErrorCode::MethodNotFound, "there is no such method");
    let id = RequestId::String("x".into());
    peer.send(Incoming::Malformed { id: Some(id.clone()), error: missing.clone() }).await;
    assert_eq!(peer.answer().await, (Some(id), Err(missing)));
    peer.request(3, ClientRequest::ModelList(ModelListParams {})).await;
    assert!(matches!(peer.answer().await, (Some(RequestId::Number(3)), Ok(ClientResponse::ModelList(_)))));
    drop(peer.input);
    within("serve to return", String::new, peer.served).await.unwrap();
    world.finish().await;
}

/// A pipe that breaks ends its connection, whatever its other half does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_pipe_ends_its_connection() {
    let world = World::start().await;
    let client = world.client().await;
    let mut peer = Peer::of(&world).await;
    let thread = world.thread(&client).await;
    peer.request(1, ClientRequest::ThreadResume(ThreadReadParams::newest(thread.clone()))).await;
    peer.answer().await.1.unwrap();
    let Peer { input, output, served } = peer;
    drop(output);
    world.provider().push(Reply::says("Hello."));
    client.run(&thread, "Hi").await;
    within("serve to return", String::new, served).await.unwrap();
    drop(input);
    let now = client
        .request::<raddle::protocol::methods::method::ServerDiagnostics>(DiagnosticsParams {})
        .await
        .unwrap();
    assert_eq!(now.connections, 1);
    world.finish().await;
}

/// The engine's close ends served connections, too, after their last message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_ends_what_is_served() {
    let mut world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let mut peer = Peer::of(&world).await;
    world.provider().push(Reply::stream().text("Half").hang());
    peer.request(1, ClientRequest::TurnStart(TurnStartParams::new(thread.clone(), "Hi"))).await;
    peer.answer().await.1.unwrap();
    client
        .view_until("half an answer", |view| {
            view.turns(&thread).last().filter(|turn| agent_text(turn) == "Half").map(|_| ())
        })
        .await;
    world.reopen().await;
    let mut last = Vec::new();
    while let Some(message) = peer.next().await {
        if let ServerMessage::Notification(notification) = message {
            last.push(notification);
        }
    }
    assert!(last.iter().any(|n| matches!(**n, ServerNotification::TurnCompleted(_))));
    within("serve to return", String::new, peer.served).await.unwrap();
    world.finish().await;
}

/// A client that does not read, at a pipe that is full: its connection ends at the outbox's bound, although a write of it
/// waits for ever. Holds: P7, P8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_a_full_pipe_does_not_outlive_the_outbox() {
    let world = World::start().await;
    let client = world.client().await;
    let server = world.server_with_outbox_bound(64 * 1024);
    let (near, far) = tokio::io::duplex(256);
    let (reader, writer) = tokio::io::split(far);
    let served = tokio::spawn(async move {
        server.serve(ServerSource::new(reader), ServerSink::new(writer)).await;
    });
    let (unread, mut input) = tokio::io::split(near);
    let hello = json!({ "clientInfo": { "name": "n", "version": "v" } });
    let mut lines = format!("{}\n", json!({ "id": 0, "method": "initialize", "params": hello }));
    lines.push_str("{\"method\":\"initialized\"}\n");
    for id in 1..=1_000 {
        lines.push_str(&format!("{}\n", json!({ "id": id, "method": "model/list" })));
    }
    // The pipe breaks when the connection ends.
    let _ = input.write_all(lines.as_bytes()).await;
    within("serve to return", String::new, served).await.unwrap();
    drop(unread);
    let thread = world.thread(&client).await;
    world.provider().push(Reply::says("Hello."));
    client.run(&thread, "Hi").await;
    world.finish().await;
}

/// At its bound a shutdown answers whatever is still open, and no late result is a second answer; threads that do not
/// end keep nobody. Holds: P4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p4_a_shutdown_answers_in_time_whatever_the_engine_does() {
    let world =
        Setup { models: Vec::new(), ..Setup::default() }.with_tools([Stuck::tool() as _]).start().await;
    let gate = Gate::new();
    world.provider().set_models(Reply::stream().wait(&gate).cut());
    let home = tempfile::tempdir().unwrap();
    let times = ShutdownTimes {
        accepted_first: Duration::from_millis(50),
        answers_after: Duration::from_millis(300),
        ends_after: Duration::from_millis(600),
    };
    // A tool that does not stop keeps its thread for five seconds.
    let options = Options {
        shutdown: Some(times),
        default_model: Some(ModelRef::new("builtin", "script")),
        home: Some(home.path().to_owned()),
        ..world.options()
    };
    let raddle = Raddle::open(options).await.unwrap();
    let server = raddle.server().clone();
    let (near, far) = tokio::io::duplex(1 << 20);
    let (reader, writer) = tokio::io::split(far);
    let serving = tokio::spawn(async move {
        let (source, sink) = (ServerSource::new(reader), ServerSink::new(writer));
        server.serve_alone(source, sink, std::future::pending()).await
    });
    let (output, mut input) = tokio::io::split(near);
    let mut output = BufReader::new(output).lines();
    let write = |message: serde_json::Value| format!("{message}\n");
    let hello = json!({ "clientInfo": { "name": "n", "version": "v" } });
    input
        .write_all(write(json!({ "id": 0, "method": "initialize", "params": hello })).as_bytes())
        .await
        .unwrap();
    input.write_all(write(json!({ "method": "initialized" })).as_bytes()).await.unwrap();
    let params = json!({ "cwd": world.cwd(), "approvalMode": "fullAccess" });
    input
        .write_all(write(json!({ "id": 1, "method": "thread/start", "params": params })).as_bytes())
        .await
        .unwrap();
    let mut thread = json!(null);
    while thread.is_null() {
        let line = within("the thread", String::new, output.next_line()).await.unwrap().unwrap();
        let message: serde_json::Value = serde_json::from_str(&line).unwrap();
        thread = message["result"]["thread"]["id"].clone();
    }
    let params = json!({ "threadId": thread, "text": "script: call stuck {} ;; --- ;; text Done." });
    input
        .write_all(write(json!({ "id": 2, "method": "turn/start", "params": params })).as_bytes())
        .await
        .unwrap();
    loop {
        let line = within("the call", String::new, output.next_line()).await.unwrap().unwrap();
        if line.contains("item/started") && line.contains("toolCall") {
            break;
        }
    }
    // Requests that hang: a list that waits for a provider, and a start that waits for the turn to settle.
    let interrupt = json!({ "threadId": thread });
    let again = json!({ "threadId": thread, "text": "Again" });
    for message in [
        json!({ "id": 3, "method": "model/list" }),
        json!({ "id": 4, "method": "turn/interrupt", "params": interrupt }),
        json!({ "id": 5, "method": "turn/start", "params": again }),
    ] {
        input.write_all(write(message).as_bytes()).await.unwrap();
    }
    input.shutdown().await.unwrap();
    let begun = Instant::now();
    let mut answers = std::collections::BTreeMap::new();
    while let Some(line) = within("the end of output", String::new, output.next_line()).await.unwrap() {
        let message: serde_json::Value = serde_json::from_str(&line).unwrap();
        if message.get("method").is_none() {
            let id = message["id"].as_i64().unwrap();
            assert!(answers.insert(id, message).is_none(), "a second answer: {line}");
        }
    }
    assert!(within("serve to return", String::new, serving).await.unwrap(), "all was written");
    let took = begun.elapsed();
    assert!(took >= times.answers_after && took < Duration::from_secs(4), "{took:?}");
    for id in [3, 5] {
        assert_eq!(answers[&id]["error"]["code"], "shuttingDown", "{answers:?}");
    }
    assert!(answers[&4].get("result").is_some());
    gate.open();
    world.provider().set_models(Reply::models(&["fake-model"]));
    world.finish().await;
}
