//! Turns: what a client is told, in which order, and what is kept of it.

use raddle::engine::models::ModelConfig;
use raddle::protocol::methods::{ClientResponse, ServerNotification, method};
use raddle::protocol::model::ModelListParams;
use raddle::protocol::rpc::ServerMessage;
use raddle::protocol::server::DiagnosticsParams;
use raddle::protocol::thread::{ApprovalMode, ThreadSettingsUpdateParams, ThreadStartParams, ThreadStatus};
use raddle::protocol::turn::{StartStatus, TurnStartParams};
use raddle::protocol::{ItemKind, ItemStatus, ModelRef, TokenCounts, TurnStatus};
use raddle_tests::{
    Gate, Golden, MODEL, PROVIDER, Reply, Setup, World, agent_text, agent_texts, call, reasoning_text, sse,
    user_texts,
};
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_turn_as_documented() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let gate = Gate::new();
    world.provider().push(Reply::stream().text("Hel").wait(&gate).text("lo.").stop());
    let turn = client.start(&thread, "Hi").await;
    client.turn_until(&turn, "the first delta", |turn| agent_text(turn) == "Hel").await;
    gate.open();
    let turn = client.end(&turn).await;
    client.idle(&thread).await;

    assert_eq!(
        client.methods(),
        [
            "thread/started",
            "turn/started",
            "item/started",
            "item/completed",
            "thread/status/changed",
            "item/started",
            "item/agentMessage/delta",
            "item/completed",
            "thread/tokenUsage/updated",
            "turn/completed",
            "thread/turn/completed",
            "thread/status/changed",
        ]
    );
    Golden::of(&client.notifications(|_| true), &[(&world.cwd(), "<project>")]).check("plain_turn");
    assert_eq!(turn.summary.status, TurnStatus::Completed);
    assert!(turn.summary.completed_at >= Some(turn.summary.started_at));
    assert!(
        turn.items.iter().all(|item| item.completed_at.is_some() && item.status == ItemStatus::Completed)
    );
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_with_a_tool_as_documented() {
    let world = World::start().await;
    std::fs::write(world.project().join("notes.txt"), "one\n").unwrap();
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::calls(&[("call_a", "ls", json!({ "path": "." }))]));
    world.provider().push(Reply::says("One file."));
    client.run(&thread, "What is here?").await;
    client.idle(&thread).await;
    Golden::of(&client.notifications(|_| true), &[(&world.cwd(), "<project>")]).check("tool_turn");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_with_a_retry_as_documented() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::stream().until_close().text("Par").cut());
    world.provider().push(Reply::says("Whole."));
    let turn = client.run(&thread, "Hi").await;
    client.idle(&thread).await;
    assert_eq!(agent_texts(&turn), ["Whole."]);
    Golden::of(&client.notifications(|_| true), &[(&world.cwd(), "<project>")]).check("retry_turn");
    world.finish().await;
}

/// The answer comes before what follows from it, and does not wait for the turn's end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_is_answered_before_its_turn_is_told() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let gate = Gate::new();
    world.provider().push(Reply::stream().wait(&gate).text("Hi.").stop());
    let turn = client.start(&thread, "Hi").await;
    gate.open();
    client.end(&turn).await;
    let messages = client.messages();
    let answer = messages.iter().position(|message| {
        matches!(message, ServerMessage::Response { result: Ok(ClientResponse::TurnStart(_)), .. })
    });
    let started = messages.iter().position(|message| match message {
        ServerMessage::Notification(n) => matches!(**n, ServerNotification::TurnStarted(_)),
        _ => false,
    });
    assert!(answer.unwrap() < started.unwrap());
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_threads_stream_at_once() {
    let world = World::start().await;
    let client = world.client().await;
    let [one, two] = [world.thread(&client).await, world.thread(&client).await];
    let gates: Vec<Gate> = (0..6).map(|_| Gate::new()).collect();
    let script = |name: &str, gates: &[Gate]| {
        let reply = gates
            .iter()
            .enumerate()
            .fold(Reply::stream(), |reply, (at, gate)| reply.text(&format!("{name}{at} ")).wait(gate));
        reply.text("end").stop()
    };
    world.provider().push(script("a", &gates[..3]));
    let first = client.start(&one, "Hi").await;
    world.provider().request(0).await;
    world.provider().push(script("b", &gates[3..]));
    let second = client.start(&two, "Hi").await;
    // Each goes one step further only after the other has, so neither waits for the other's end.
    for step in 0..3 {
        for (turn, name, offset) in [(&first, "a", 0), (&second, "b", 3)] {
            let said: String = (0..=step).map(|at| format!("{name}{at} ")).collect();
            client.turn_until(turn, &said, |turn| agent_text(turn) == said).await;
            if step < 2 {
                gates[offset + step].open();
            }
        }
    }
    gates[2].open();
    gates[5].open();
    assert_eq!(agent_text(&client.end(&first).await), "a0 a1 a2 end");
    assert_eq!(agent_text(&client.end(&second).await), "b0 b1 b2 end");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reasoning_and_text_are_items_apart() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(
        Reply::stream()
            .reasoning("Hm, ")
            .reasoning("well.")
            .text("So: ")
            .text("yes.")
            .reasoning("Really?")
            .stop(),
    );
    let turn = client.run(&thread, "Hi").await;
    let kinds: Vec<_> = turn.items.iter().map(|item| (item.kind.type_name(), item.index)).collect();
    assert_eq!(
        kinds,
        [("userMessage", Some(0)), ("reasoning", Some(1)), ("agentMessage", Some(2)), ("reasoning", Some(3))]
    );
    assert_eq!(reasoning_text(&turn), "Hm, well.Really?");
    assert_eq!(agent_text(&turn), "So: yes.");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_of_nothing_is_a_turn_of_nothing() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::stream().stop());
    let turn = client.run(&thread, "Hi").await;
    assert_eq!(turn.summary.status, TurnStatus::Completed);
    assert_eq!(turn.items.len(), 1);
    // The next request must not hold an empty message; the provider refuses one.
    world.provider().push(Reply::says("Now I speak."));
    client.run(&thread, "And now?").await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_adds_up_over_replies_and_turns() {
    let mut world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let cached = json!({ "id": "c", "choices": [], "usage": {
        "prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": { "cached_tokens": 60 } } });
    world.provider().push(
        Reply::stream()
            .tool_call(0, "call_a", "ls", "{}")
            .finish("tool_calls")
            .send(sse::data(&cached.to_string()))
            .done(),
    );
    world.provider().push(Reply::stream().text("Nothing.").finish("stop").usage(120, 3).done());
    let turn = client.run(&thread, "What is here?").await;
    let usage = turn.summary.usage.unwrap();
    assert_eq!(usage.counts, TokenCounts { input: 160, output: 10, cache_read: 60, cache_write: 0 });
    // 160 at 1 dollar a million, 10 at 10, 60 at half a dollar.
    assert!((usage.cost - 290e-6).abs() < 1e-12, "{usage:?}");
    assert_eq!((usage.context_tokens, usage.context_window), (Some(123), 1_000));
    let told = client.notifications(|n| matches!(n, ServerNotification::ThreadTokenUsageUpdated(_)));
    assert_eq!(told.len(), 2, "once a reply");

    world.provider().push(Reply::stream().text("Hi.").finish("stop").usage(200, 1).done());
    let turn = client.run(&thread, "Hi").await;
    let own = turn.summary.usage.unwrap();
    assert_eq!(own.counts, TokenCounts { input: 200, output: 1, ..TokenCounts::default() });
    let total = client.view(|view| view.usage(&thread)).unwrap();
    assert_eq!(total.counts, TokenCounts { input: 360, output: 11, cache_read: 60, cache_write: 0 });
    assert_eq!(total.context_tokens, Some(201));

    world.reopen().await;
    let client = world.client().await;
    assert_eq!(client.resume(&thread).await.usage, total, "totals survive a restart");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_without_counts_costs_nothing() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::stream().text("Hi.").finish("stop").done());
    let turn = client.run(&thread, "Hi").await;
    assert_eq!(turn.summary.usage.unwrap().counts, TokenCounts::default());
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_tokens_are_echoed_and_not_kept() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::says("Hello."));
    let params = TurnStartParams {
        request_id: Some("client-start-1".into()),
        client_message_id: Some("optimistic-1".into()),
        ..TurnStartParams::new(thread.clone(), "Hi")
    };
    let answer = client.request::<method::TurnStart>(params).await.unwrap();
    assert_eq!(answer.status, StartStatus::Started);
    assert_eq!((answer.thread_id, answer.request_id.as_deref()), (thread.clone(), Some("client-start-1")));
    let turn = client.end(&answer.turn_id.unwrap()).await;
    let token = |item: &raddle::protocol::Item| match &item.kind {
        ItemKind::UserMessage { client_message_id, .. } => client_message_id.clone(),
        _ => None,
    };
    assert_eq!(token(&turn.items[0]).as_deref(), Some("optimistic-1"));
    let started = client.seen("turn/started", |n| matches!(n, ServerNotification::TurnStarted(_))).await;
    assert_eq!(started.params().unwrap()["requestId"], "client-start-1");
    let read = client.read(&thread).await;
    assert_eq!(token(&read.turns[0].items[0]), None);
    assert!(!serde_json::to_string(&read).unwrap().contains("optimistic"));
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_change_for_the_turns_to_come() {
    let setup = Setup::default();
    let models = [setup.models.clone(), vec![ModelConfig::new("other-model")]].concat();
    let mut world = Setup { models, ..setup }.start().await;
    let client = world.client().await;
    let thread = world.thread_with(&client, ApprovalMode::Ask).await;
    let gate = Gate::new();
    world.provider().push(Reply::stream().text("One.").wait(&gate).stop());
    let turn = client.start(&thread, "Hi").await;
    world.provider().request(0).await;
    let other = ModelRef::new(PROVIDER, "other-model");
    let update = ThreadSettingsUpdateParams {
        thread_id: thread.clone(),
        model: Some(other.clone()),
        approval_mode: None,
        instructions: None,
    };
    // In the middle of a turn: it changes nothing about that turn.
    let changed = client.request::<method::ThreadSettingsUpdate>(update).await.unwrap().settings;
    assert_eq!((changed.model.as_ref(), changed.approval_mode), (Some(&other), ApprovalMode::Ask));
    gate.open();
    client.end(&turn).await;
    let update = ThreadSettingsUpdateParams {
        thread_id: thread.clone(),
        model: None,
        approval_mode: Some(ApprovalMode::FullAccess),
        instructions: None,
    };
    let changed = client.request::<method::ThreadSettingsUpdate>(update).await.unwrap().settings;
    assert_eq!((changed.model.as_ref(), changed.approval_mode), (Some(&other), ApprovalMode::FullAccess));

    world.provider().push(Reply::calls(&[("call_a", "bash", json!({ "command": "echo ran" }))]));
    world.provider().push(Reply::says("Two."));
    let turn = client.run(&thread, "Again").await;
    assert_eq!(call(&turn, "call_a").1, "ran\n", "full access asks nobody");
    assert!(client.asks().is_empty());
    let models: Vec<_> =
        world.provider().requests().iter().map(|request| request.body()["model"].clone()).collect();
    assert_eq!(models, [json!(MODEL), json!("other-model"), json!("other-model")]);

    world.reopen().await;
    let client = world.client().await;
    assert_eq!(client.read(&thread).await.thread.settings, changed);
    world.provider().push(Reply::says("Three."));
    client.run(&thread, "And after a restart?").await;
    assert_eq!(world.provider().request(3).await.body()["model"], "other-model");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_without_a_model_takes_the_default() {
    let world = World::with_builtin("echo").await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    assert_eq!(client.read(&thread).await.thread.settings.model, None);
    assert_eq!(agent_text(&client.run(&thread, "echo me, é 😀").await), "echo me, é 😀");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_prompt_says_where_it_is_and_what_was_said() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    for (say, answer) in [("First", "One."), ("Second", "Two.")] {
        world.provider().push(Reply::says(answer));
        client.run(&thread, say).await;
    }
    let request = world.provider().request(1).await;
    let messages = request.messages();
    assert_eq!(messages[0]["role"], "system");
    assert!(messages[0]["content"].as_str().unwrap().contains(&world.cwd()));
    assert_eq!(
        messages[1..],
        [
            json!({ "role": "user", "content": "First" }),
            json!({ "role": "assistant", "content": "One." }),
            json!({ "role": "user", "content": "Second" }),
        ]
    );
    let tools: Vec<_> = request.body()["tools"].as_array().unwrap().iter().collect();
    let names: Vec<_> = tools.iter().map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["bash", "ls", "read"]);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_title_comes_from_the_first_message() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    assert_eq!(client.read(&thread).await.thread.title, None);
    let long = "é".repeat(100);
    world.provider().push(Reply::says("Hm."));
    client.run(&thread, &long).await;
    world.provider().push(Reply::says("Hm."));
    client.run(&thread, "Another").await;
    let read = client.read(&thread).await.thread;
    assert_eq!(read.title.as_deref(), Some(&*"é".repeat(80)));
    assert_eq!(read.name, None);

    let params =
        ThreadStartParams { cwd: world.cwd(), name: Some("Weaving".into()), ..ThreadStartParams::default() };
    let named = client.request::<method::ThreadStart>(params).await.unwrap().thread;
    assert_eq!(named.name.as_deref(), Some("Weaving"));
    assert_eq!(named.status, ThreadStatus::Idle);
    assert_eq!((named.cwd, named.archived), (world.cwd(), false));
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_are_listed() {
    let world = World::start().await;
    let client = world.client().await;
    let models = client.request::<method::ModelList>(ModelListParams {}).await.unwrap().models;
    let refs: Vec<_> = models.iter().map(|model| format!("{}/{}", model.provider, model.id)).collect();
    assert_eq!(refs, ["builtin/echo", "builtin/script", "fake/fake-model"]);
    assert_eq!(models[2].context_window, 1_000);
    assert_eq!(models[2].thinking_levels, ["off"]);
    assert_eq!(models[2].cost.unwrap().output, 10.0);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_of_a_provider_without_any_are_asked_for() {
    let world = Setup { models: Vec::new(), ..Setup::default() }.start().await;
    world.provider().set_models(Reply::models(&["fake-model", "found-model"]));
    let client = world.client().await;
    let models = client.request::<method::ModelList>(ModelListParams {}).await.unwrap().models;
    let ids: Vec<_> =
        models.iter().filter(|model| model.provider == PROVIDER).map(|model| &*model.id).collect();
    assert_eq!(ids, ["fake-model", "found-model"]);
    let thread = world.thread(&client).await;
    world.provider().push(Reply::says("Found."));
    client.run(&thread, "Hi").await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn diagnostics_count_the_process() {
    let world = World::start().await;
    let client = world.client().await;
    let other = world.client().await;
    let diagnose = async || client.request::<method::ServerDiagnostics>(DiagnosticsParams {}).await.unwrap();
    let before = diagnose().await;
    assert_eq!((before.loaded_threads, before.connections, before.dropped_connections), (0, 2, 0));
    let thread = world.thread(&client).await;
    world.provider().push(Reply::says("Hello."));
    client.run(&thread, "Hi").await;
    other.close().await;
    let after = diagnose().await;
    assert_eq!((after.loaded_threads, after.loading_threads, after.connections), (1, 0, 1));
    assert!(after.commits > before.commits && after.syncs > before.syncs && after.events > before.events);
    assert!(after.uptime_ms >= before.uptime_ms);
    assert_eq!(after.queue_depth, 0);
    if cfg!(target_os = "linux") {
        assert!(after.rss_bytes > 1_000_000);
    }
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_many_turns_of_two_thousand_deltas_lose_nothing() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let whole: String = (0..2_000).map(|at| format!("w{at} ")).collect();
    for _ in 0..3 {
        world.provider().push(Reply::text_deltas(2_000));
        let turn = client.run(&thread, "Go").await;
        assert_eq!(agent_text(&turn), whole);
        assert_eq!(user_texts(&turn), ["Go"]);
    }
    world.finish().await;
}

/// The scripted model drives a whole turn without a provider.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scripted_model_needs_no_provider() {
    let world = World::with_builtin("script").await;
    std::fs::write(world.project().join("a.txt"), "alpha").unwrap();
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let script = "script: reasoning Hm. ;; text Looking. ;; call read#c {\"path\":\"a.txt\"} ;; usage input=7 output=3 \
                  ;; --- ;; fail 1 provider overloaded ;; text Found: ;; result";
    let turn = client.run(&thread, script).await;
    assert_eq!(turn.summary.status, TurnStatus::Completed);
    assert_eq!(reasoning_text(&turn), "Hm.");
    assert_eq!(call(&turn, "c").1, "alpha");
    assert!(agent_text(&turn).ends_with("alpha"), "{}", agent_text(&turn));
    assert_eq!(client.notifications(|n| matches!(n, ServerNotification::TurnRetrying(_))).len(), 1);
    assert!(world.provider().requests().is_empty());
    world.finish().await;
}
