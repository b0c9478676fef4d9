//! A model that fails, in all the ways that models and networks do. After each, the thread takes the next turn, and the
//! history that it sends is one that a strict provider takes.

use std::time::Duration;

use raddle::engine::models::{ModelConfig, ReasoningReplay};
use raddle::engine::tools::Effect;
use raddle::engine::{ModelLimits, RetryPolicy};
use raddle::protocol::methods::ServerNotification;
use raddle::protocol::turn::TurnRetryingNotification;
use raddle::protocol::{ItemKind, ItemStatus, ThreadId, TokenCounts, Turn, TurnErrorKind, TurnStatus};
use raddle_tests::{
    Client, Gate, MODEL, Provider, Reply, Says, Setup, World, agent_text, agent_texts, call, calls,
    reasoning_text, sse,
};
use serde_json::{Value, json};

/// A chunk of an answer, as in the cases.
fn chunk(delta: &Value, finish: Option<&str>) -> String {
    let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
    sse::data(&json!({ "id": "c1", "choices": [choice] }).to_string())
}

async fn start() -> (World, Client, ThreadId) {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    (world, client, thread)
}

fn retries(client: &Client) -> Vec<TurnRetryingNotification> {
    client
        .notifications(|_| true)
        .iter()
        .filter_map(|n| match &**n {
            ServerNotification::TurnRetrying(n) => Some(n.clone()),
            _ => None,
        })
        .collect()
}

fn failed(turn: &Turn, kind: TurnErrorKind, words: &str) {
    assert_eq!(turn.summary.status, TurnStatus::Failed, "{turn:#?}");
    let error = turn.summary.error.as_ref().unwrap();
    assert_eq!(error.kind, kind, "{error:?}");
    assert!(error.message.contains(words), "{error:?}");
}

async fn goes_on(world: &World, client: &Client, thread: &ThreadId) {
    world.provider().push(Reply::says("Going on."));
    let turn = client.run(thread, "Go on").await;
    assert_eq!((turn.summary.status, agent_text(&turn).as_str()), (TurnStatus::Completed, "Going on."));
}

/// Case R05 (a), again and again until the attempts are used up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r05_a_cut_stream_is_failed_and_its_text_kept() {
    let (world, client, thread) = start().await;
    for _ in 0..3 {
        let body = chunk(&json!({ "content": "The answer is" }), None);
        world.provider().push(Reply::stream().until_close().send(body).cut());
    }
    let turn = client.run(&thread, "What is it?").await;
    failed(&turn, TurnErrorKind::Network, "before the reply was finished");
    assert_eq!(agent_texts(&turn), ["The answer is"]);
    assert_eq!(turn.items.last().unwrap().status, ItemStatus::Failed);
    let attempts: Vec<_> = retries(&client).iter().map(|n| (n.attempt, n.max_attempts)).collect();
    assert_eq!(attempts, [(2, 3), (3, 3)]);
    goes_on(&world, &client, &thread).await;
    world.finish().await;
}

/// Case R05 (b): a half-written call is no call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r05_b_half_a_call_is_not_run() {
    let write = Says::with_effect(Effect::Mutating, "write", &[], None, "written");
    let world = Setup::default().with_tools([write as _]).start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    for end in ["close", "close", "chunk"] {
        let call = json!({ "tool_calls": [{ "index": 0, "id": "call_w", "type": "function",
            "function": { "name": "write", "arguments": "{\"path\":\"a.txt\",\"cont" } }] });
        let reply = Reply::stream().send(chunk(&call, None));
        world.provider().push(if end == "close" { reply.until_close().cut() } else { reply.cut() });
    }
    let turn = client.run(&thread, "Write").await;
    failed(&turn, TurnErrorKind::Network, "");
    assert!(calls(&turn).is_empty());
    assert!(!world.project().join("a.txt").exists());
    goes_on(&world, &client, &thread).await;
    world.finish().await;
}

/// Case R05 (c): no reason was given, but an end was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r05_c_an_end_without_a_reason_is_an_end() {
    let (world, client, thread) = start().await;
    let usage = json!({ "id": "c1", "choices": [],
        "usage": { "prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11 } });
    world.provider().push(
        Reply::stream()
            .until_close()
            .send(chunk(&json!({ "content": "Done." }), None))
            .send(sse::data(&usage.to_string()))
            .done(),
    );
    let turn = client.run(&thread, "Do it").await;
    assert_eq!((turn.summary.status, agent_text(&turn).as_str()), (TurnStatus::Completed, "Done."));
    let counts = turn.summary.usage.unwrap().counts;
    assert_eq!(counts, TokenCounts { input: 9, output: 2, ..TokenCounts::default() });
    assert!(retries(&client).is_empty());
    goes_on(&world, &client, &thread).await;
    world.finish().await;
}

/// Case R06 (a): an error in an empty stream is never an empty success.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r06_a_an_error_in_the_stream_is_an_error() {
    let (world, client, thread) = start().await;
    for _ in 0..3 {
        let body =
            r#"{"id":"c1","choices":[],"error":{"code":502,"message":"upstream worker limit reached"}}"#;
        world.provider().push(Reply::stream().send(sse::data(body)).done());
    }
    let turn = client.run(&thread, "Hi").await;
    failed(&turn, TurnErrorKind::Provider, "upstream worker limit reached");
    assert!(turn.summary.error.as_ref().unwrap().message.contains("502"));
    assert_eq!((turn.items.len(), retries(&client).len()), (1, 2));
    goes_on(&world, &client, &thread).await;
    world.finish().await;
}

/// Case R06 (b): a used-up quota does not come back by asking again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r06_b_a_quota_error_in_the_stream_keeps_the_text() {
    let (world, client, thread) = start().await;
    let error = r#"{"error":{"message":"quota exceeded","type":"insufficient_quota","code":"server_error"}}"#;
    world
        .provider()
        .push(Reply::stream().send(chunk(&json!({ "content": "Part" }), None)).send(sse::data(error)));
    let turn = client.run(&thread, "Hi").await;
    failed(&turn, TurnErrorKind::RateLimit, "quota exceeded");
    assert!(turn.summary.error.as_ref().unwrap().message.contains("server_error"));
    assert_eq!(agent_text(&turn), "Part");
    assert_eq!(turn.items.last().unwrap().status, ItemStatus::Failed);
    assert!(retries(&client).is_empty());
    goes_on(&world, &client, &thread).await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r01_characters_cut_between_chunks_are_whole() {
    let (world, client, thread) = start().await;
    let body = [
        chunk(&json!({ "role": "assistant", "content": "café 😀 ok" }), None),
        chunk(&json!({}), Some("stop")),
        sse::done(),
    ]
    .concat();
    let bytes = body.as_bytes();
    let at = |needle: &str, inside: usize| body.find(needle).unwrap() + inside;
    let (first, second) = (at("é", 1), at("😀", 2));
    world.provider().push(Reply::pieces([
        bytes[..first].to_vec(),
        bytes[first..second].to_vec(),
        bytes[second..].to_vec(),
    ]));
    world.provider().push(Reply::one_byte_at_a_time(bytes.to_vec()));
    for _ in 0..2 {
        assert_eq!(agent_text(&client.run(&thread, "Say it").await), "café 😀 ok");
    }
    let deltas = client.notifications(|n| matches!(n, ServerNotification::ItemAgentMessageDelta(_)));
    for delta in deltas {
        assert!(!delta.params().unwrap().to_string().contains('\u{FFFD}'));
    }
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r03_signs_of_life_are_no_content() {
    let (world, client, thread) = start().await;
    let body = [
        ":\n\n: PROCESSING\n\nid: 7\n",
        &chunk(&json!({ "content": "A" }), None),
        ": ping\n\ndata:\n\nevent: ping\ndata: {}\n\nretry: 3000\n\n",
        &chunk(&json!({ "content": "B" }), Some("stop")),
        &sse::done(),
    ]
    .concat();
    world.provider().push(Reply::stream().send(body.clone()));
    world.provider().push(Reply::one_byte_at_a_time(body));
    for _ in 0..2 {
        let turn = client.run(&thread, "Hi").await;
        assert_eq!((turn.summary.status, agent_texts(&turn)), (TurnStatus::Completed, vec!["AB".into()]));
    }
    assert!(retries(&client).is_empty());
    world.finish().await;
}

/// Case R09: calls without an id, without an index, with a late name, counted from 1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r09_calls_with_parts_missing_are_one_call_each() {
    let (world, client, thread) = start().await;
    std::fs::write(world.project().join("here.txt"), "").unwrap();
    let calls_in = |call: Value| chunk(&json!({ "tool_calls": [call] }), None);
    let cases = [
        [
            calls_in(json!({ "index": 0, "function": { "name": "ls", "arguments": "{\"pa" } })),
            calls_in(json!({ "index": 0, "function": { "arguments": "th\":\".\"}" } })),
        ],
        [
            calls_in(
                json!({ "id": "call_x", "type": "function", "function": { "arguments": "{\"path\":" } }),
            ),
            calls_in(json!({ "id": "call_x", "function": { "name": "ls", "arguments": "\".\"}" } })),
        ],
        [
            calls_in(json!({ "index": 1, "id": "call_y", "type": "function",
                "function": { "name": "ls", "arguments": "" } })),
            calls_in(json!({ "index": 1, "id": null,
                "function": { "name": null, "arguments": "{\"path\":\".\"}" } })),
        ],
    ];
    let mut ids = Vec::new();
    // Twice, so that a made-up id would be made up again.
    for [first, second] in cases.iter().chain(&cases[..1]) {
        world
            .provider()
            .push(Reply::stream().send(first.clone()).send(second.clone()).finish("tool_calls").done());
        world.provider().push(Reply::says("Listed."));
        let turn = client.run(&thread, "List").await;
        let made = calls(&turn);
        assert_eq!(made.len(), 1, "{turn:#?}");
        let ItemKind::ToolCall { tool_name, input, output, .. } = &made[0].kind else { unreachable!() };
        assert_eq!((tool_name.as_str(), input), ("ls", &json!({ "path": "." })));
        assert_eq!(output.as_ref().unwrap(), "here.txt\n");
        ids.push(made[0].id.clone());
        let last = world.provider().requests().len() - 1;
        let request = world.provider().request(last).await;
        let [.., said, result] = request.messages() else { panic!("too few messages") };
        assert_eq!(said["tool_calls"][0]["id"], made[0].id.as_str());
        assert_eq!(result["tool_call_id"], made[0].id.as_str());
    }
    assert_eq!((ids[1].as_str(), ids[2].as_str()), ("call_x", "call_y"));
    assert_ne!(ids[0], ids[3], "made-up ids are unique in the thread");
    world.finish().await;
}

/// Case R11: thinking under two names is one text, and goes back with the call for a model that needs it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r11_thinking_is_kept_apart_and_sent_back_with_its_call() {
    let quiet =
        ModelConfig { reasoning_replay: Some(ReasoningReplay::Never), ..ModelConfig::new("quiet-model") };
    let mut setup = Setup::default();
    setup.models.push(quiet);
    let mut world = setup.start().await;
    let thinks = || {
        let call = json!({ "content": null, "tool_calls": [{ "index": 0, "id": "call_a", "type": "function",
            "function": { "name": "ls", "arguments": "{\"path\":\".\"}" } }] });
        Reply::stream()
            .send(chunk(
                &json!({ "role": "assistant", "content": "", "reasoning": "Need ", "reasoning_content": "Need " }),
                None,
            ))
            .send(chunk(&json!({ "reasoning_content": "a listing." }), None))
            .send(chunk(&call, Some("tool_calls")))
            .done()
    };
    let thought = |body: &Value| -> Vec<Value> {
        let messages = body["messages"].as_array().unwrap().iter();
        messages.filter(|m| m["tool_calls"].is_array()).map(|m| m["reasoning_content"].clone()).collect()
    };
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(thinks());
    world.provider().push_with(move |body| {
        if thought(body) == [json!("Need a listing.")] {
            Reply::says("Nothing here.")
        } else {
            Reply::error(400, "invalid_request_error", "reasoning_content must be passed back")
        }
    });
    let turn = client.run(&thread, "What is here?").await;
    assert_eq!((turn.summary.status, agent_text(&turn).as_str()), (TurnStatus::Completed, "Nothing here."));
    assert_eq!(reasoning_text(&turn), "Need a listing.");

    world.reopen().await;
    let client = world.client().await;
    let resumed = client.resume(&thread).await;
    assert_eq!(reasoning_text(&resumed.turns[0]), "Need a listing.");
    goes_on(&world, &client, &thread).await;
    let request = world.provider().request(2).await;
    assert_eq!(thought(request.body()), [json!("Need a listing.")], "after a restart, too");

    // A model that is set to take none gets none.
    let update = raddle::protocol::thread::ThreadSettingsUpdateParams {
        thread_id: thread.clone(),
        model: Some(raddle::protocol::ModelRef::new(raddle_tests::PROVIDER, "quiet-model")),
        approval_mode: None,
        instructions: None,
    };
    client.request::<raddle::protocol::methods::method::ThreadSettingsUpdate>(update).await.unwrap();
    goes_on(&world, &client, &thread).await;
    assert_eq!(thought(world.provider().request(3).await.body()), [Value::Null]);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_limit_is_waited_for_as_long_as_it_says() {
    let (world, client, thread) = start().await;
    let limit = || Reply::error(429, "rate_limit_exceeded", "slow down");
    world.provider().push(limit().header("Retry-After", "0.05"));
    world.provider().push(Reply::says("Now."));
    let turn = client.run(&thread, "Hi").await;
    assert_eq!((turn.summary.status, agent_text(&turn).as_str()), (TurnStatus::Completed, "Now."));
    let [retry] = &*retries(&client) else { panic!("one retry") };
    assert_eq!((retry.attempt, retry.delay_ms, retry.error.kind), (2, 50, TurnErrorKind::RateLimit));
    assert!(retry.error.message.contains("slow down"));

    // Longer than anybody is ready to wait: the turn fails at once, and says so.
    world.provider().push(limit().header("Retry-After", "86400"));
    let turn = client.run(&thread, "Hi again").await;
    failed(&turn, TurnErrorKind::RateLimit, "slow down");
    assert_eq!(retries(&client).len(), 1);
    goes_on(&world, &client, &thread).await;
    world.finish().await;
}

/// A reply that fails half-way is withdrawn whole: text, thinking and calls, and the last attempt alone stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retried_reply_leaves_nothing_behind() {
    let (world, client, thread) = start().await;
    let partial = || Reply::stream().reasoning("Hm.").text("Par").tool_call(0, "c", "ls", "{}");
    world.provider().push(partial().send(sse::data(r#"{"error":{"message":"overloaded","code":503}}"#)));
    world.provider().push(Reply::stream().text("Another").cut());
    world.provider().push(Reply::stream().reasoning("Well.").text("Whole.").stop());
    let turn = client.run(&thread, "Hi").await;
    assert_eq!(turn.summary.status, TurnStatus::Completed);
    assert_eq!((reasoning_text(&turn), agent_texts(&turn)), ("Well.".into(), vec!["Whole.".into()]));
    assert!(calls(&turn).is_empty());
    let indexes: Vec<_> = turn.items.iter().map(|item| item.index.unwrap()).collect();
    assert_eq!(indexes, [0, 1, 2], "indexes have no holes");
    let removed = client.notifications(|n| matches!(n, ServerNotification::ItemRemoved(_)));
    assert_eq!(removed.len(), 3);
    assert_eq!(world.provider().request(2).await.messages().len(), 2, "partial replies are not sent back");
    goes_on(&world, &client, &thread).await;
    world.finish().await;
}

/// A later reply of a turn fails: what came before it in the turn stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_after_tools_runs_no_tool_again() {
    let (world, client, thread) = start().await;
    world.provider().push(Reply::calls(&[("c", "bash", json!({ "command": "echo ran >> log; cat log" }))]));
    world.provider().push(Reply::error(500, "server_error", "oops"));
    world.provider().push(Reply::stream().text("Par").cut());
    world.provider().push(Reply::says("Done."));
    let turn = client.run(&thread, "Run").await;
    assert_eq!(turn.summary.status, TurnStatus::Completed);
    assert_eq!((call(&turn, "c").1.as_str(), agent_text(&turn).as_str()), ("ran\n", "Done."));
    assert_eq!(std::fs::read_to_string(world.project().join("log")).unwrap(), "ran\n");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_that_asking_again_cannot_mend_are_not_retried() {
    let (world, client, thread) = start().await;
    let cases = [
        (Reply::error(401, "invalid_api_key", "bad key"), TurnErrorKind::Auth, "bad key"),
        (Reply::error(403, "forbidden", "not yours"), TurnErrorKind::Auth, "not yours"),
        (
            Reply::error(400, "context_length_exceeded", "maximum context length is 8"),
            TurnErrorKind::ContextOverflow,
            "maximum context",
        ),
        (Reply::error(400, "invalid_request_error", "bad tool schema"), TurnErrorKind::Provider, "bad tool"),
        (Reply::error(402, "payment", "Insufficient Balance"), TurnErrorKind::RateLimit, "Balance"),
    ];
    for (at, (reply, kind, words)) in cases.into_iter().enumerate() {
        world.provider().push(reply);
        let turn = client.run(&thread, "Hi").await;
        failed(&turn, kind, words);
        assert_eq!(world.provider().requests().len(), at + 1);
    }
    assert!(retries(&client).is_empty());
    goes_on(&world, &client, &thread).await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retries_end() {
    let (world, client, thread) = start().await;
    for at in 0..3 {
        world.provider().push(Reply::error(503, "overloaded", &format!("overloaded {at}")));
    }
    let turn = client.run(&thread, "Hi").await;
    failed(&turn, TurnErrorKind::Provider, "overloaded 2");
    let delays: Vec<_> = retries(&client).iter().map(|n| n.delay_ms).collect();
    assert_eq!(delays, [2, 4], "each pause is twice as long");
    assert_eq!(world.provider().requests().len(), 3);
    goes_on(&world, &client, &thread).await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_is_not_there() {
    let gone = Provider::start().await;
    let endpoint = gone.base_url();
    gone.stop().await;
    let mut world = Setup { endpoint: Some(endpoint.clone()), ..Setup::default() }.start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let turn = client.run(&thread, "Hi").await;
    let address = endpoint.trim_start_matches("http://").trim_end_matches("/v1").to_owned();
    failed(&turn, TurnErrorKind::Network, &address);
    assert_eq!(retries(&client).len(), 2);
    world.reopen_as(Setup::default()).await;
    let client = world.client().await;
    goes_on(&world, &client, &thread).await;
    world.finish().await;
}

/// A model that says nothing for too long is given up, before its first word or after.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_model_is_given_up() {
    let limit = Duration::from_millis(200);
    let model_limits = Some(ModelLimits { first_event: limit, idle: limit });
    let mut world = Setup { model_limits, ..Setup::default() }.start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::stream().hang());
    let turn = client.run(&thread, "Hi").await;
    failed(&turn, TurnErrorKind::Network, "said nothing for 200 ms");
    world.provider().disconnected(0).await;
    world.provider().push(Reply::stream().text("Half").hang());
    let turn = client.run(&thread, "Hi").await;
    failed(&turn, TurnErrorKind::Network, "said nothing");
    assert_eq!(agent_text(&turn), "Half");
    assert_eq!(turn.items.last().unwrap().status, ItemStatus::Failed);
    assert!(retries(&client).is_empty());
    world.reopen_as(Setup::default()).await;
    let client = world.client().await;
    goes_on(&world, &client, &thread).await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reasons_for_an_end() {
    let (world, client, thread) = start().await;
    world.provider().push(Reply::stream().text("Too long to").finish("length").usage(1, 1).done());
    let turn = client.run(&thread, "Hi").await;
    assert_eq!((turn.summary.status, agent_text(&turn).as_str()), (TurnStatus::Completed, "Too long to"));
    world.provider().push(Reply::stream().text("I will not").finish("content_filter").usage(1, 1).done());
    let turn = client.run(&thread, "Hi").await;
    failed(&turn, TurnErrorKind::Provider, "content filter");
    assert_eq!(agent_text(&turn), "I will not");
    // A call that the limit cut is told to the model, never run.
    world
        .provider()
        .push(Reply::stream().tool_call(0, "c", "bash", r#"{"command":"touch x"#).finish("length").done());
    world.provider().push(Reply::says("Shorter, then."));
    let turn = client.run(&thread, "Hi").await;
    assert_eq!(call(&turn, "c").0.status, ItemStatus::Failed);
    assert!(!world.project().join("x").exists());
    goes_on(&world, &client, &thread).await;
    world.finish().await;
}

/// A connection that breaks hard, in the middle of a text and before any.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_connection_is_retried() {
    let (world, client, thread) = start().await;
    let gate = Gate::new();
    world.provider().push(Reply::stream().text("Half").wait(&gate).reset());
    world.provider().push(Reply::stream().reset());
    world.provider().push(Reply::says("Whole."));
    let turn = client.start(&thread, "Hi").await;
    client.turn_until(&turn, "half an answer", |turn| agent_text(turn) == "Half").await;
    gate.open();
    let turn = client.end(&turn).await;
    assert_eq!((turn.summary.status, agent_texts(&turn)), (TurnStatus::Completed, vec!["Whole.".into()]));
    assert!(retries(&client).iter().all(|n| n.error.kind == TurnErrorKind::Network));
    world.finish().await;
}

/// A failure's message is bounded, on a character's border.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_a_long_error_is_cut() {
    let (world, client, thread) = start().await;
    world.provider().push(Reply::error(400, "x", &"é".repeat(10_000)));
    let turn = client.run(&thread, "Hi").await;
    assert_eq!(turn.summary.error.unwrap().message.chars().count(), 2_000);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_attempt_means_one() {
    let retry = RetryPolicy { attempts_max: 1, delay_first_ms: 1, delay_max_ms: 1 };
    let world = Setup { retry, ..Setup::default() }.start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::error(503, "overloaded", "busy"));
    failed(&client.run(&thread, "Hi").await, TurnErrorKind::Provider, "busy");
    assert!(retries(&client).is_empty());
    assert_eq!(world.provider().request(0).await.body()["model"], MODEL);
    world.finish().await;
}

/// Servers that give the wrong reason for an end: the calls count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r09_calls_run_whatever_the_reason_says() {
    let (world, client, thread) = start().await;
    for reason in ["stop", "function_call", "end_turn"] {
        world.provider().push(Reply::stream().tool_call(0, reason, "ls", "{}").finish(reason).done());
        world.provider().push(Reply::says("Listed."));
        let turn = client.run(&thread, "List").await;
        assert_eq!(call(&turn, reason).0.status, ItemStatus::Completed, "{reason}");
    }
    world.finish().await;
}

/// A steer during a pause between attempts waits for the attempt that succeeds, and follows it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_steer_between_attempts() {
    let (world, client, thread) = start().await;
    let gate = Gate::new();
    world.provider().push(Reply::error(429, "rate_limit", "slow down").header("Retry-After", "0.3"));
    world.provider().push(Reply::stream().wait(&gate).text("One.").stop());
    world.provider().push(Reply::says("Two."));
    let turn = client.start(&thread, "Hi").await;
    client.seen("a retry", |n| matches!(n, ServerNotification::TurnRetrying(_))).await;
    client.steer(&thread, &turn, "And this").await.unwrap();
    gate.open();
    let turn = client.end(&turn).await;
    assert_eq!(agent_texts(&turn), ["One.", "Two."]);
    assert_eq!(world.provider().request(1).await.messages().len(), 2, "the retry is the same request");
    world.finish().await;
}

/// A turn that fails while steers wait ends all the same, and what waited is gone from the queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_with_steers_waiting() {
    let (world, client, thread) = start().await;
    let gate = Gate::new();
    let error = r#"{"error":{"message":"no","code":"invalid_request_error"}}"#;
    world.provider().push(Reply::stream().text("Half").wait(&gate).send(sse::data(error)));
    let turn = client.start(&thread, "Hi").await;
    client.turn_until(&turn, "half an answer", |turn| agent_text(turn) == "Half").await;
    client.steer(&thread, &turn, "And this").await.unwrap();
    gate.open();
    failed(&client.end(&turn).await, TurnErrorKind::Provider, "no");
    client
        .seen("the queue to be empty", |n| match n {
            ServerNotification::TurnQueueUpdated(n) => n.queue.steering.is_empty(),
            _ => false,
        })
        .await;
    goes_on(&world, &client, &thread).await;
    world.finish().await;
}
