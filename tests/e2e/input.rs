//! Bad input, handshakes, opt-outs, and clients that read too slowly.

use raddle::protocol::limits::{CLIENT_MESSAGE_ID_CHARS_MAX, OPT_OUT_NOTIFICATIONS_MAX};
use raddle::protocol::methods::{
    ClientNotification, ClientRequest, ClientResponse, ServerNotification, method,
};
use raddle::protocol::model::ModelListParams;
use raddle::protocol::rpc::ClientMessage;
use raddle::protocol::server::{DiagnosticsParams, InitializedParams};
use raddle::protocol::thread::{
    ThreadListParams, ThreadReadParams, ThreadSettingsUpdateParams, ThreadStartParams,
};
use raddle::protocol::turn::TurnStartParams;
use raddle::protocol::{ErrorCode, ModelRef, RequestId, RpcError, TurnStatus};
use raddle_tests::{Client, Gate, PROVIDER, Reply, Setup, World, agent_text};

async fn refused_start(client: &Client, params: ThreadStartParams) -> RpcError {
    client.request::<method::ThreadStart>(params).await.unwrap_err()
}

/// An unknown ref is refused where it is named, and nothing is created or changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_models_are_refused() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    for (provider, id, reason) in [
        (PROVIDER, "no-such-model", "unknownModel"),
        ("builtin", "nothing", "unknownModel"),
        ("nobody", "gpt", "unknownProvider"),
        ("", "", "unknownProvider"),
    ] {
        let model = Some(ModelRef::new(provider, id));
        let params = ThreadStartParams { cwd: world.cwd(), model: model.clone(), ..Default::default() };
        let start = refused_start(&client, params).await;
        let update = ThreadSettingsUpdateParams {
            thread_id: thread.clone(),
            model,
            approval_mode: None,
            instructions: None,
        };
        let update = client.request::<method::ThreadSettingsUpdate>(update).await.unwrap_err();
        for error in [start, update] {
            assert_eq!((&error.code, error.reason()), (&ErrorCode::InvalidParams, Some(reason)), "{error}");
        }
    }
    let listed = client.request::<method::ThreadList>(ThreadListParams::default()).await.unwrap();
    assert_eq!(listed.threads.len(), 1);
    assert_eq!(listed.threads[0].settings.model, None);
    world.finish().await;
}

/// A thread whose model is gone since keeps its history, and refuses a turn until it has another model.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_is_gone_since() {
    let mut world = World::start().await;
    let client = world.client().await;
    let params = ThreadStartParams {
        cwd: world.cwd(),
        model: Some(ModelRef::new(PROVIDER, "fake-model")),
        ..Default::default()
    };
    let thread = client.request::<method::ThreadStart>(params).await.unwrap().thread.id;
    world.provider().push(Reply::says("Hello."));
    client.run(&thread, "Hi").await;
    let models = vec![raddle::engine::models::ModelConfig::new("new-model")];
    let default_model = Some(ModelRef::new(PROVIDER, "new-model"));
    world.reopen_as(Setup { models, default_model, ..Setup::default() }).await;
    let client = world.client().await;
    let refused = client.start_refused(&thread, "Hi").await;
    assert_eq!((&refused.code, refused.reason()), (&ErrorCode::InvalidParams, Some("unknownModel")));
    let update = ThreadSettingsUpdateParams {
        thread_id: thread.clone(),
        model: Some(ModelRef::new(PROVIDER, "new-model")),
        approval_mode: None,
        instructions: None,
    };
    client.request::<method::ThreadSettingsUpdate>(update).await.unwrap();
    world.provider().push(Reply::says("Hello again."));
    client.run(&thread, "Hi").await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_must_be_absolute_and_there() {
    let world = World::start().await;
    let client = world.client().await;
    let file = world.project().join("file");
    std::fs::write(&file, "").unwrap();
    let missing = world.project().join("missing");
    for cwd in [
        "",
        ".",
        "project",
        "../x",
        "~",
        &file.display().to_string(),
        &missing.display().to_string(),
        "/a\0b",
    ] {
        let params = ThreadStartParams { cwd: cwd.to_owned(), ..Default::default() };
        assert_eq!(refused_start(&client, params).await.code, ErrorCode::InvalidParams, "{cwd:?}");
    }
    // Aliases of a directory are that directory.
    let link = world.project().join("link");
    std::os::unix::fs::symlink(world.project(), &link).unwrap();
    let params = ThreadStartParams { cwd: format!("{}/./link/..", link.display()), ..Default::default() };
    let thread = client.request::<method::ThreadStart>(params).await.unwrap().thread;
    assert_eq!(thread.cwd, world.project().parent().unwrap().display().to_string());
    let params = ThreadStartParams { cwd: link.display().to_string(), ..Default::default() };
    let thread = client.request::<method::ThreadStart>(params).await.unwrap().thread;
    assert_eq!(thread.cwd, world.cwd());
    world.finish().await;
}

/// A project that is removed later: reading and talking go on, tools say what is wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_is_gone_since() {
    let world = World::start().await;
    let client = world.client().await;
    let directory = world.project().join("short-lived");
    std::fs::create_dir(&directory).unwrap();
    let params = ThreadStartParams {
        cwd: directory.display().to_string(),
        approval_mode: Some(raddle::protocol::thread::ApprovalMode::FullAccess),
        ..Default::default()
    };
    let thread = client.request::<method::ThreadStart>(params).await.unwrap().thread.id;
    std::fs::remove_dir(&directory).unwrap();
    world.provider().push(Reply::calls(&[("c", "bash", serde_json::json!({ "command": "pwd" }))]));
    world.provider().push(Reply::says("It is gone."));
    let turn = client.run(&thread, "Where are we?").await;
    assert_eq!(turn.summary.status, TurnStatus::Completed);
    assert!(raddle_tests::call(&turn, "c").1.contains("does not exist"));
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inputs_that_say_nothing_or_have_bad_tokens() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    for text in ["", " ", "\n\t \u{2003}"] {
        assert_eq!(client.start_refused(&thread, text).await.code, ErrorCode::InvalidParams, "{text:?}");
    }
    let with_token = |token: String| TurnStartParams {
        client_message_id: Some(token),
        ..TurnStartParams::new(thread.clone(), "Hi")
    };
    for token in [String::new(), "x".repeat(CLIENT_MESSAGE_ID_CHARS_MAX + 1)] {
        let error = client.request::<method::TurnStart>(with_token(token)).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidParams);
    }
    // Characters count, not bytes.
    world.provider().push(Reply::says("Hello."));
    let longest = with_token("😀".repeat(CLIENT_MESSAGE_ID_CHARS_MAX));
    let turn = client.request::<method::TurnStart>(longest).await.unwrap().turn_id.unwrap();
    client.end(&turn).await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_works_before_the_handshake() {
    let world = World::start().await;
    let client = world.raw_client();
    let models = async || client.request::<method::ModelList>(ModelListParams {}).await;
    let read = || ThreadReadParams::newest("some-thread".into());
    assert_eq!(models().await.unwrap_err().code, ErrorCode::NotInitialized);
    let refused = client.request::<method::ThreadRead>(read()).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotInitialized);
    // Too early to mean anything.
    client.initialized().await;
    assert_eq!(models().await.unwrap_err().code, ErrorCode::NotInitialized);
    let hello = client.request::<method::Initialize>(client.greeting(&[])).await.unwrap();
    assert_eq!(hello.server_info.name, "raddle");
    assert!(!hello.server_info.version.is_empty());
    if cfg!(target_os = "linux") {
        assert_eq!(hello.platform.os, "linux");
    }
    assert_eq!(models().await.unwrap_err().code, ErrorCode::NotInitialized);
    let again = client.request::<method::Initialize>(client.greeting(&[])).await.unwrap_err();
    assert_eq!(again.code, ErrorCode::InvalidRequest);
    client.initialized().await;
    models().await.unwrap();
    let again = client.request::<method::Initialize>(client.greeting(&[])).await.unwrap_err();
    assert_eq!(again.code, ErrorCode::InvalidRequest);
    client.initialized().await;
    models().await.unwrap();
    let refused = client.request::<method::ThreadRead>(read()).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::ThreadNotFound);
    world.finish().await;
}

/// Nobody is told anything before its handshake is complete.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_without_a_handshake_hears_nothing() {
    let world = World::start().await;
    let silent = world.raw_client();
    let half = world.raw_client();
    half.request::<method::Initialize>(half.greeting(&[])).await.unwrap();
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::says("Hello."));
    client.run(&thread, "Hi").await;
    assert!(silent.methods().is_empty() && half.methods().is_empty());
    world.finish().await;
}

/// A second request with an id that still runs is refused, and the first goes on. Holds: P4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p4_an_id_that_still_runs_is_refused() {
    for id in [RequestId::String("same".into()), RequestId::Number(i64::MIN)] {
        let world = Setup { models: Vec::new(), ..Setup::default() }.start().await;
        let gate = Gate::new();
        let models = r#"{"data":[{"id":"fake-model"}]}"#;
        world.provider().set_models(Reply::stream().wait(&gate).send(models));
        let client = world.client().await;
        // Listing waits for the provider, so the first request runs until the gate is opened.
        client.send_as(id.clone(), ClientRequest::ModelList(ModelListParams {})).await;
        world.provider().list_request(0).await;
        let diagnose = || ClientRequest::ServerDiagnostics(DiagnosticsParams {});
        client.send_as(id.clone(), diagnose()).await;
        let refused = client.answers(&id, 1).await;
        assert_eq!(refused[0].as_ref().unwrap_err().code, ErrorCode::InvalidRequest);
        gate.open();
        assert!(matches!(client.answers(&id, 2).await[1], Ok(ClientResponse::ModelList(_))));
        // An id whose answer has come is free again.
        client.send_as(id.clone(), diagnose()).await;
        assert!(matches!(client.answers(&id, 3).await[2], Ok(ClientResponse::ServerDiagnostics(_))));
        world.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opted_out_is_not_told() {
    let world = World::start().await;
    let out = ["item/agentMessage/delta", "thread/status/changed", "no/such/thing"];
    let client = world.client_without(&out).await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::text_deltas(50));
    let turn = client.run(&thread, "Go").await;
    assert!(agent_text(&turn).ends_with("w49 "), "the whole item still comes");
    let seen = client.methods();
    assert!(seen.contains(&"item/completed") && seen.contains(&"turn/completed"));
    assert!(out.iter().all(|name| !seen.contains(name)), "{seen:?}");
    world.finish().await;
}

/// Opting out filters notifications alone, never questions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_cannot_be_opted_out_of() {
    let world = World::start().await;
    let client = world.client_without(&["item/toolCall/requestApproval"]).await;
    let thread = world.thread_with(&client, raddle::protocol::thread::ApprovalMode::Ask).await;
    world.provider().push(Reply::calls(&[("c", "bash", serde_json::json!({ "command": "touch x" }))]));
    let turn = client.start(&thread, "Touch x").await;
    let ask = client.asked(0).await;
    world.provider().push(Reply::says("No, then."));
    client.decide(&ask, raddle::protocol::approval::Decision::Decline).await;
    client.end(&turn).await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_opt_outs_are_bounded() {
    let world = World::start().await;
    let client = world.raw_client();
    let names: Vec<String> = (0..=OPT_OUT_NOTIFICATIONS_MAX).map(|at| format!("name/{at}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let refused = client.request::<method::Initialize>(client.greeting(&names)).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidParams);
    // It may try again with fewer.
    client.initialize(&names[1..]).await;
    client.request::<method::ModelList>(ModelListParams {}).await.unwrap();
    world.finish().await;
}

/// A client that does not read while much is said gets few, large deltas, and loses nothing. Holds: P8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p8_a_slow_client_gets_merged_deltas() {
    let world = World::start().await;
    let [quick, slow] = [world.client().await, world.client().await];
    let thread = world.thread(&quick).await;
    slow.resume(&thread).await;
    let gate = Gate::new();
    let reply = (0..2_000).fold(Reply::stream(), |reply, at| {
        let reply = reply.text(&format!("w{at} "));
        if at == 0 { reply.wait(&gate) } else { reply }
    });
    world.provider().push(reply.stop());
    let turn = quick.start(&thread, "Go").await;
    slow.turn_until(&turn, "the first delta", |turn| agent_text(turn) == "w0 ").await;
    slow.stop_reading();
    gate.open();
    let whole = quick.end(&turn).await;
    slow.read_on();
    assert_eq!(slow.end(&turn).await, whole);
    let deltas = slow.notifications(|n| matches!(n, ServerNotification::ItemAgentMessageDelta(_)));
    // One was read before, one may have been on its way, and the rest waited together.
    assert!(deltas.len() <= 3, "{} deltas", deltas.len());
    assert!(agent_text(&whole).ends_with("w1999 "));
    world.finish().await;
}

/// Past its bound a connection ends; the turn, and everybody else, go on. Holds: P7, P8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_p8_a_client_that_does_not_read_is_dropped() {
    let world = World::start().await;
    let server = world.server_with_outbox_bound(64 * 1024);
    let quick = world.client().await;
    let slow = world.client_of(&server).await;
    let beside = world.client_of(&server).await;
    let thread = world.thread(&quick).await;
    slow.resume(&thread).await;
    slow.stop_reading();
    world.provider().push(Reply::stream().text(&"x".repeat(200_000)).text("end").stop());
    let turn = quick.start(&thread, "Go").await;
    let ended = quick.end(&turn).await;
    assert!(agent_text(&quick.resolve(ended).await).ends_with("xend"));
    assert!(slow.connection().has_overflowed());
    slow.read_on();
    slow.ended().await;
    // The other connection of the same server lives, and the server has counted.
    let now = beside.request::<method::ServerDiagnostics>(DiagnosticsParams {}).await.unwrap();
    assert_eq!(now.dropped_connections, 1);
    // The thread is no longer watched by the one that is gone, and works.
    world.provider().push(Reply::says("Going on."));
    quick.run(&thread, "Go on").await;
    // It may come back and has missed nothing; a page of all turns would again be more than its bound.
    let back = world.client_of(&server).await;
    let params = ThreadReadParams { limit: Some(1), ..ThreadReadParams::newest(thread.clone()) };
    let resumed = back.request::<method::ThreadResume>(params).await.unwrap();
    assert_eq!(agent_text(&resumed.turns[0]), "Going on.");
    back.close().await;
    beside.close().await;
    world.finish().await;
}

/// What a client says to a connection that is closed is dropped without harm.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn talking_to_a_closed_connection() {
    let world = World::start().await;
    let client = world.client().await;
    client.close().await;
    assert!(client.try_request::<method::ModelList>(ModelListParams {}).await.is_err());
    let ready = ClientNotification::Initialized(InitializedParams {});
    client.connection().receive(ClientMessage::Notification(ready)).await;
    client.close().await;
    world.finish().await;
}

/// Hundreds of requests at once, more than may run at a time, are all answered. Holds: P4, P7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p4_p7_many_requests_at_once() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::says("Hello."));
    client.run(&thread, "Hi").await;
    let mut sent = Vec::new();
    for at in 0..1_000 {
        let params = ThreadReadParams::newest(thread.clone());
        let request = match at % 3 {
            0 => ClientRequest::ThreadRead(params),
            1 => ClientRequest::ThreadResume(params),
            _ => ClientRequest::ServerDiagnostics(DiagnosticsParams {}),
        };
        sent.push(client.send(request).await);
    }
    for id in sent {
        assert!(client.answers(&id, 1).await[0].is_ok());
    }
    world.finish().await;
}
