//! Large values: references in their place, and the bytes that they stand for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use raddle::ClientError;
use raddle::engine::tools::Effect;
use raddle::protocol::fold::Change;
use raddle::protocol::limits::{
    INLINE_BYTES_MAX, INPUT_TEXT_BYTES_MAX, PAYLOAD_CHUNK_BYTES_MAX, PAYLOAD_EXPIRES_AFTER_MS,
    QUEUED_INPUTS_MAX, RESPONSE_BYTES_MAX,
};
use raddle::protocol::methods::{ServerNotification, method};
use raddle::protocol::payload::{
    Payload, PayloadReadParams, PayloadReadResult, PayloadReference, json_len, reference_in,
};
use raddle::protocol::server::{ClientCapabilities, ClientInfo, DiagnosticsParams};
use raddle::protocol::thread::{
    ApprovalMode, ThreadIdParams, ThreadListParams, ThreadReadParams, ThreadStartParams,
};
use raddle::protocol::turn::{ImageInput, TurnQueueAddParams, TurnStartParams};
use raddle::protocol::{ErrorCode, ItemKind, RpcError, ThreadId, Turn};
use raddle::server::transport::stdio::{ServerSink, ServerSource};
use raddle::server::{Clock, ServerOptions};
use raddle_tests::{Client, Gate, Reply, Says, Setup, World, agent_text, call, user_texts, within};
use serde_json::json;
use tokio::io::AsyncReadExt as _;

/// A world whose model may call `say`, which prints this.
async fn world_that_says(output: &str) -> World {
    Setup::default().with_tools([Says::tool("say", &[], None, output) as _]).start().await
}

/// Characters of one, two, three and four bytes, so that hardly a chunk ends between two of them.
fn text_of(bytes: usize) -> String {
    let mut text: String = ["a", "é", "€", "😀"].into_iter().cycle().take(bytes / 5 * 2).collect();
    text.push_str(&"z".repeat(bytes - text.len()));
    text
}

async fn chunk(client: &Client, id: &str, offset: u64) -> Result<PayloadReadResult, RpcError> {
    client.request::<method::PayloadRead>(PayloadReadParams { id: id.to_owned(), offset }).await
}

async fn is_unknown(client: &Client, id: &str) -> bool {
    match chunk(client, id, 0).await {
        Ok(_) => false,
        Err(error) => {
            assert_eq!((&error.code, error.reason()), (&ErrorCode::InvalidParams, Some("unknownPayload")));
            true
        }
    }
}

/// The reference in the place of the first user message's text.
fn said(turn: &Turn) -> PayloadReference {
    let text = match &turn.items[0].kind {
        ItemKind::UserMessage { text, .. } => text.reference(),
        _ => None,
    };
    text.unwrap().clone()
}

/// A typed client of the same server over a pipe.
async fn client_over_a_pipe(world: &World) -> raddle::Client {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let (reader, writer) = tokio::io::split(far);
    let server = world.raddle().server().clone();
    tokio::spawn(async move { server.serve(ServerSource::new(reader), ServerSink::new(writer)).await });
    let (reader, writer) = tokio::io::split(near);
    let info = ClientInfo { name: "pipe".into(), version: "1".into() };
    raddle::Client::over(reader, writer, info, ClientCapabilities::default()).await.unwrap()
}

async fn last_turn(client: &raddle::Client, thread: &ThreadId) -> Turn {
    let params = ThreadReadParams { limit: Some(1), ..ThreadReadParams::newest(thread.clone()) };
    client.request::<method::ThreadRead>(params).await.unwrap().turns.pop().unwrap()
}

/// Each kind of large value stands elsewhere, and comes back as it was, for whoever reads it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_values_come_back_as_they_were() {
    let output = text_of(300_000);
    let world = world_that_says(&output).await;
    let [client, beside] = [world.client().await, world.client().await];
    let thread = world.thread(&client).await;
    beside.resume(&thread).await;
    let text = text_of(INPUT_TEXT_BYTES_MAX);
    let mut picture = b"\x89PNG\r\n\x1a\n".to_vec();
    picture.extend((0..300_000_u32).map(|at| (at * 7 % 251) as u8));
    let input = json!({ "text": text_of(200_000) });
    world.provider().push(Reply::calls(&[("c", "say", input.clone())]));
    world.provider().push(Reply::says("Done."));
    let image = ImageInput::Inline { mime_type: "image/png".into(), data: BASE64_STANDARD.encode(&picture) };
    let params =
        TurnStartParams { images: vec![image], ..TurnStartParams::new(thread.clone(), text.as_str()) };
    let id = client.request::<method::TurnStart>(params).await.unwrap().turn_id.unwrap();
    let turn = client.end(&id).await;

    let ItemKind::UserMessage { images, .. } = &turn.items[0].kind else { panic!() };
    let image = images[0].data.reference().unwrap();
    assert_eq!((image.mime_type.as_str(), image.bytes), ("image/png", picture.len() as u64));
    assert_eq!(client.payload(image).await.unwrap(), picture);
    assert_eq!(client.payload(&said(&turn)).await.unwrap(), text.as_bytes());
    assert_eq!(said(&turn).mime_type, "text/plain");
    let ItemKind::ToolCall { input: shown, output: printed, .. } = &turn.items[1].kind else { panic!() };
    assert_eq!(reference_in(shown).unwrap().mime_type, "application/json");
    assert_eq!(printed.as_ref().unwrap().reference().unwrap().bytes, output.len() as u64);
    assert!(turn.items.iter().all(|item| json_len(item) <= INLINE_BYTES_MAX));

    // The model was sent everything itself.
    let request = world.provider().request(1).await;
    assert!(request.messages().iter().any(|message| message["content"] == json!(output)));

    let whole = client.resolve(turn.clone()).await;
    assert_eq!(user_texts(&whole), [text]);
    assert_eq!(call(&whole, "c").1, output);
    let ItemKind::ToolCall { input: written, .. } = &call(&whole, "c").0.kind else { panic!() };
    assert_eq!(written, &input);
    assert_eq!(beside.resolve(beside.end(&id).await).await, whole);

    // The typed client resolves the same, in process and over bytes.
    for typed in [world.raddle().client("test", "1").await.unwrap(), client_over_a_pipe(&world).await] {
        let read = last_turn(&typed, &thread).await;
        assert_eq!(typed.resolve_turn(read).await.unwrap(), whole);
        let mut reader = typed.read_payload(image);
        let mut head = [0; 8];
        reader.read_exact(&mut head).await.unwrap();
        assert_eq!(head, picture[..8]);
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, picture[8..]);
        let refused = typed.payload_bytes(image, 1_000).await.unwrap_err();
        assert!(matches!(refused, ClientError::PayloadTooLarge { bytes_max: 1_000, .. }));
        let forged = PayloadReference { id: "0".repeat(64), ..image.clone() };
        let failed = typed.read_payload(&forged).read_to_end(&mut Vec::new()).await.unwrap_err();
        let source = failed.get_ref().unwrap().downcast_ref::<ClientError>().unwrap();
        assert_eq!(source.reason(), Some("unknownPayload"));
        assert_eq!(
            typed.payload_bytes(&forged, u64::MAX).await.unwrap_err().reason(),
            Some("unknownPayload")
        );
        typed.shutdown().await;
    }
    world.finish().await;
}

/// A turn of many items of a middle size refers to all of them, and its items are rendered again whenever they are read:
/// with or without room in memory. Holds: P7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_many_items_are_one_reference() {
    let output = text_of(30_000);
    let world = world_that_says(&output).await;
    let tight = world.server_with(ServerOptions { payload_memory_bytes_max: 0, ..ServerOptions::default() });
    let [roomy, tight] = [world.client().await, world.client_of(&tight).await];
    let thread = world.thread(&roomy).await;
    let large = text_of(100_000);
    for at in 0..6 {
        let input = if at == 3 { json!({ "text": large }) } else { json!({}) };
        world.provider().push(Reply::calls(&[(format!("c{at}").as_str(), "say", input)]));
    }
    world.provider().push(Reply::says("Done."));
    let watched = roomy.run(&thread, "Go").await;
    assert_eq!((watched.items.len(), watched.items.reference()), (8, None));
    for client in [&roomy, &tight] {
        let [turn] = client.read(&thread).await.turns.try_into().unwrap();
        assert!(json_len(&turn) < 1_000);
        let reference = turn.items.reference().unwrap().clone();
        assert_eq!(reference.mime_type, "application/json");
        assert!(reference.bytes > 180_000);
        // Twice, since reading must not use anything up.
        for _ in 0..2 {
            let whole = client.resolve(turn.clone()).await;
            assert_eq!(whole.items.len(), 8);
            assert_eq!(call(&whole, "c5").1, output);
        }
    }
    tight.close().await;
    world.finish().await;
}

/// Whoever comes to a running turn gets references, and what follows goes on behind them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_deltas_go_on_behind_a_reference() {
    // One long text; then so much else that the items themselves are a reference.
    for calls in [0, 4] {
        let world = world_that_says(&text_of(30_000)).await;
        let client = world.client().await;
        let thread = world.thread(&client).await;
        for at in 0..calls {
            world.provider().push(Reply::calls(&[(format!("c{at}").as_str(), "say", json!({}))]));
        }
        let gate = Gate::new();
        let begun = text_of(200_000);
        world.provider().push(Reply::stream().text(&begun).wait(&gate).text(" and").text(" the end.").stop());
        let id = client.start(&thread, "Go").await;
        client.turn_until(&id, "the text", |turn| agent_text(turn) == begun).await;

        let viewer = world.client().await;
        let typed = world.raddle().client("typed", "1").await.unwrap();
        let mut notifications = typed.notifications();
        viewer.resume(&thread).await;
        let resumed =
            typed.request::<method::ThreadResume>(ThreadReadParams::newest(thread.clone())).await.unwrap();
        let running = resumed.running_turn.unwrap();
        assert!(json_len(&running) <= INLINE_BYTES_MAX);
        assert_eq!(running.items.reference().is_some(), calls > 0);
        // Deltas go behind a text's reference; items that are one have to be read first.
        let mut turn = match calls {
            0 => running,
            _ => typed.resolve_turn(running).await.unwrap(),
        };
        gate.open();
        within("the end", String::new, async {
            while let Some(notification) = notifications.next().await {
                let change = match &notification {
                    // The fold of deltas alone is to be the end.
                    ServerNotification::ItemCompleted(_) => continue,
                    notification => Change::of_notification(notification),
                };
                if let Some((_, _, change)) = change {
                    turn.apply(change).unwrap();
                }
                if matches!(notification, ServerNotification::TurnCompleted(_)) {
                    break;
                }
            }
        })
        .await;
        if calls == 0 {
            turn = typed.resolve_turn(turn).await.unwrap();
        }
        assert_eq!(agent_text(&turn), format!("{begun} and the end."));
        client.end(&id).await;
        viewer.end(&id).await;
        typed.shutdown().await;
        world.finish().await;
    }
}

/// Chunks are cut at bytes, wherever one begins, and the end is where it is said to be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_and_offsets() {
    let world = World::with_builtin("echo").await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    // A two-byte character lies across each border.
    let text = format!("a{}", "é".repeat(PAYLOAD_CHUNK_BYTES_MAX));
    let reference = said(&client.run(&thread, &text).await);
    let total = text.len() as u64;
    for offset in [0, 1, 2, PAYLOAD_CHUNK_BYTES_MAX as u64, total - 1, total] {
        let read = chunk(&client, &reference.id, offset).await.unwrap();
        let data = BASE64_STANDARD.decode(&read.data).unwrap();
        let rest = &text.as_bytes()[offset as usize..];
        assert_eq!(data, rest[..rest.len().min(PAYLOAD_CHUNK_BYTES_MAX)]);
        let end = offset + data.len() as u64;
        assert_eq!((read.eof, read.next_offset), (end == total, (end < total).then_some(end)));
    }
    for offset in [total + 1, u64::MAX] {
        let refused = chunk(&client, &reference.id, offset).await.unwrap_err();
        assert_eq!((&refused.code, refused.reason()), (&ErrorCode::InvalidParams, None), "{refused}");
    }
    client.payload(&reference).await.unwrap();
    world.finish().await;
}

/// An id leads to what was given out, and nowhere else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_that_were_not_given_out_are_unknown() {
    let world = World::with_builtin("echo").await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let reference = said(&client.run(&thread, &text_of(100_000)).await);
    std::fs::write(world.home().join("a".repeat(64)), "secret").unwrap();
    let database = world.home().join("raddle.db").display().to_string();
    let long = "a".repeat(1_000_000);
    for id in [
        "",
        ".",
        "../../etc/passwd",
        "/etc/passwd",
        "file:///etc/passwd",
        &database,
        &"a".repeat(64),
        &reference.id.to_uppercase(),
        &reference.id[..63],
        &format!("{}\0", reference.id),
        &format!(" {}", reference.id),
        "%",
        "' OR 1=1 --",
        &long,
    ] {
        assert!(is_unknown(&client, id).await, "{id:?}");
    }
    let error = chunk(&client, &long, 0).await.unwrap_err();
    assert!(error.message.len() < 500 && error.message.contains("read the thread again"), "{error}");
    // What this server has not given out it does not read, though the store has it.
    let other = world.client_of(&world.server_with(ServerOptions::default())).await;
    assert!(is_unknown(&other, &reference.id).await);
    other.read(&thread).await;
    other.payload(&reference).await.unwrap();
    other.close().await;
    world.finish().await;
}

/// A reference lives for half an hour after its last use; reading the thread again gives it anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_references_expire() {
    let world = World::with_builtin("echo").await;
    let (begun, passed) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let clock = {
        let passed = passed.clone();
        Clock::new(move || begun + Duration::from_millis(passed.load(Ordering::SeqCst)))
    };
    let server = world.server_with(ServerOptions { clock, ..ServerOptions::default() });
    let client = world.client_of(&server).await;
    let thread = world.thread(&world.client().await).await;
    client.resume(&thread).await;
    let live = async || {
        let now = client.request::<method::ServerDiagnostics>(DiagnosticsParams {}).await.unwrap();
        (now.payload_files, now.payload_bytes)
    };
    assert_eq!(live().await, (0, 0));
    let turn = client.run(&thread, &text_of(100_000)).await;
    client.run(&thread, &text_of(120_000)).await;
    let reference = said(&turn);
    // The echo of a text is the same payload.
    assert_eq!(live().await, (2, 220_000));
    let wait = |ms| passed.fetch_add(ms, Ordering::SeqCst);
    for _ in 0..3 {
        wait(PAYLOAD_EXPIRES_AFTER_MS - 1);
        chunk(&client, &reference.id, 50_000).await.unwrap();
    }
    assert_eq!(live().await.0, 1, "the other one was not used");
    wait(PAYLOAD_EXPIRES_AFTER_MS);
    assert!(is_unknown(&client, &reference.id).await);
    assert_eq!(live().await, (0, 0));
    client.read(&thread).await;
    assert_eq!(
        client.payload(&reference).await.unwrap(),
        user_texts(&client.resolve(turn).await)[0].as_bytes()
    );
    client.close().await;
    world.finish().await;
}

/// With its thread, a payload goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn references_of_a_deleted_thread() {
    let world = world_that_says(&text_of(40_000)).await;
    // The harness does not look for the turns of one that has opted out of something.
    let client = world.client_without(&["thread/archived"]).await;
    let thread = world.thread(&client).await;
    for at in 0..3 {
        world.provider().push(Reply::calls(&[(format!("c{at}").as_str(), "say", json!({}))]));
    }
    world.provider().push(Reply::says("Done."));
    let turn = client.run(&thread, &text_of(100_000)).await;
    let reader = world.client().await;
    let items = reader.read(&thread).await.turns[0].items.reference().unwrap().clone();
    let text = said(&turn);
    reader.payload(&text).await.unwrap();
    client.close().await;
    let gone = ThreadIdParams::from(thread.clone());
    reader.request::<method::ThreadArchive>(gone.clone()).await.unwrap();
    reader.request::<method::ThreadDelete>(gone).await.unwrap();
    for id in [&text.id, &items.id] {
        within("the payload to go", String::new, async {
            while !is_unknown(&reader, id).await {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
    world.finish().await;
}

/// What a model writes in the form of a reference is a value like any other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_reference_is_a_value() {
    let world = world_that_says("Said.").await;
    let [client, asked] = [world.client().await, world.client().await];
    let secret = said(&{
        let other = world.thread(&client).await;
        world.provider().push(Reply::says("Kept."));
        client.run(&other, &text_of(100_000)).await
    });
    for id in ["../../etc/passwd".to_owned(), "0".repeat(64), secret.id.clone()] {
        let thread = world.thread(&asked).await;
        let forged = json!({ "type": "payloadReference", "id": id, "bytes": 3, "mimeType": "text/plain" });
        world.provider().push(Reply::calls(&[("c", "say", forged.clone())]));
        world.provider().push(Reply::says("Done."));
        let turn = asked.run(&thread, "Go").await;
        let ItemKind::ToolCall { input, .. } = &turn.items[1].kind else { panic!() };
        let reference = reference_in(input).unwrap();
        assert_eq!(reference, Payload::json(&forged).reference());
        if id != secret.id {
            assert!(is_unknown(&asked, &id).await);
        }
        let typed = world.raddle().client("typed", "1").await.unwrap();
        for whole in
            [asked.resolve(turn).await, typed.resolve_turn(last_turn(&typed, &thread).await).await.unwrap()]
        {
            let ItemKind::ToolCall { input, .. } = &call(&whole, "c").0.kind else { panic!() };
            assert_eq!(input, &forged);
        }
        typed.shutdown().await;
    }
    world.finish().await;
}

/// An approval asks about a large input by its reference, which can be read at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_refer_to_large_inputs() {
    let tool = Says::with_effect(Effect::Mutating, "write_it", &[], None, "Written.");
    let world = Setup::default().with_tools([tool as _]).start().await;
    let client = world.client().await;
    let thread = world.thread_with(&client, ApprovalMode::Ask).await;
    let input = json!({ "text": text_of(100_000) });
    world.provider().push(Reply::calls(&[("c", "write_it", input.clone())]));
    world.provider().push(Reply::says("Done."));
    let id = client.start(&thread, "Write").await;
    let ask = client.asked(0).await;
    let reference = reference_in(&ask.params.input).unwrap();
    assert_eq!(client.payload(&reference).await.unwrap(), serde_json::to_vec(&input).unwrap());
    client.decide(&ask, raddle::protocol::approval::Decision::Accept).await;
    client.end(&id).await;
    world.finish().await;
}

/// A full queue of large inputs breaks neither what is told of it nor a resume. Holds: P7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_a_queue_of_large_inputs() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::stream().text("Half").hang());
    let running = client.start(&thread, "Go").await;
    client.turn_until(&running, "text", |turn| agent_text(turn) == "Half").await;
    let steer = text_of(90_000);
    client.steer(&thread, &running, &steer).await.unwrap();
    let texts: Vec<String> = (0..QUEUED_INPUTS_MAX)
        .map(|at| format!("{at} {}", text_of(if at % 2 == 0 { 100_000 } else { 40_000 })))
        .collect();
    for text in &texts {
        let params = TurnQueueAddParams {
            thread_id: thread.clone(),
            text: text.clone(),
            images: Vec::new(),
            request_id: None,
            client_message_id: None,
        };
        client.request::<method::TurnQueueAdd>(params).await.unwrap();
    }
    let told = client
        .seen("all that is queued", |n| match n {
            ServerNotification::TurnQueueUpdated(n) => n.queue.follow_up.len() == texts.len(),
            _ => false,
        })
        .await;
    let ServerNotification::TurnQueueUpdated(told) = &*told else { panic!() };
    assert!(json_len(&told.queue) <= INLINE_BYTES_MAX);
    let viewer = world.client().await;
    let resumed = viewer.resume(&thread).await;
    assert_eq!(resumed.queue, told.queue);
    assert!(resumed.running_turn.is_some() && json_len(&resumed) < RESPONSE_BYTES_MAX / 4);
    for (client, input, text) in
        [(&client, 0, &texts[0]), (&viewer, 63, &texts[63]), (&viewer, 62, &texts[62])]
    {
        match resumed.queue.follow_up[input].text.reference() {
            Some(reference) => assert_eq!(client.payload(reference).await.unwrap(), text.as_bytes()),
            None => assert_eq!(&resumed.queue.follow_up[input].text, text),
        }
    }
    let reference = resumed.queue.steering[0].reference().unwrap();
    assert_eq!(viewer.payload(reference).await.unwrap(), steer.as_bytes());
    client.interrupt(&thread, None).await.unwrap();
    client.end(&running).await;
    world.finish().await;
}

/// A list of threads with long instructions ends early, and goes on where it ended. Holds: P7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_list_pages_are_bounded_in_bytes() {
    let world = World::with_builtin("echo").await;
    let client = world.client().await;
    let mut started = Vec::new();
    for _ in 0..40 {
        let params = ThreadStartParams {
            cwd: world.cwd(),
            instructions: Some("\u{1}".repeat(10_000)),
            ..ThreadStartParams::default()
        };
        started.push(client.request::<method::ThreadStart>(params).await.unwrap().thread.id);
    }
    let (mut listed, mut pages) = (Vec::new(), 0);
    let mut params = ThreadListParams::default();
    loop {
        let page = client.request::<method::ThreadList>(params.clone()).await.unwrap();
        assert!(json_len(&page) <= RESPONSE_BYTES_MAX && !page.threads.is_empty());
        listed.extend(page.threads.into_iter().map(|thread| thread.id));
        pages += 1;
        match page.next_cursor {
            Some(cursor) => params.cursor = Some(cursor),
            None => break,
        }
    }
    assert!((3..6).contains(&pages), "{pages} pages");
    started.sort();
    listed.sort();
    assert_eq!(listed, started);
    world.finish().await;
}
