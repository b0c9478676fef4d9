//! Tools: what runs, at the same time or in order, and what the model and the clients are told of it.

use raddle::engine::tools::{Effect, OUTPUT_BYTES_MAX};
use raddle::engine::turn::CALLS_PER_REPLY_MAX;
use raddle::protocol::methods::ServerNotification;
use raddle::protocol::{ItemKind, ItemStatus, TurnStatus};
use raddle_tests::{Latch, Meeting, Panics, Reply, Says, Setup, World, agent_text, call, calls, sse};
use serde_json::{Value, json};

/// What the model was told of a call in a request.
fn result_of<'a>(messages: &'a [Value], id: &str) -> &'a str {
    let results: Vec<_> = messages.iter().filter(|message| message["tool_call_id"] == id).collect();
    assert_eq!(results.len(), 1, "results of {id}");
    results[0]["content"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_ls_and_bash_work_through_a_turn() {
    let world = World::start().await;
    std::fs::write(world.project().join("a.txt"), "alpha\nbeta\n").unwrap();
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(
        Reply::stream()
            .text("Looking.")
            .tool_call(0, "call_r", "read", r#"{"path":"a.txt","offset":2}"#)
            .finish("tool_calls")
            .usage(10, 5)
            .done(),
    );
    world.provider().push(Reply::calls(&[("call_l", "ls", json!({}))]));
    world.provider().push(Reply::calls(&[(
        "call_b",
        "bash",
        json!({ "command": "pwd; wc -l < a.txt; exit 3" }),
    )]));
    world.provider().push(Reply::says("Done."));
    let turn = client.run(&thread, "Look around").await;
    assert_eq!(agent_text(&turn), "Looking.Done.");

    let (item, output) = call(&turn, "call_r");
    assert_eq!((item.status, output.as_str()), (ItemStatus::Completed, "beta\n"));
    assert_eq!(call(&turn, "call_l").1, "a.txt\n");
    let (item, output) = call(&turn, "call_b");
    assert!(output.starts_with(&world.cwd()) && output.as_str().ends_with("[exit code 3]"), "{output}");
    let ItemKind::ToolCall { tool_name, input, is_error, .. } = &item.kind else { panic!("{item:?}") };
    assert_eq!((tool_name.as_str(), *is_error, item.status), ("bash", true, ItemStatus::Failed));
    assert_eq!(input["command"], "pwd; wc -l < a.txt; exit 3");

    // The request that follows a reply holds its text, its call as the model wrote it, and the result.
    let request = world.provider().request(1).await;
    let [.., said, result] = request.messages() else { panic!("too few messages") };
    assert_eq!((&said["role"], &said["content"]), (&json!("assistant"), &json!("Looking.")));
    assert_eq!(said["tool_calls"][0]["id"], "call_r");
    assert_eq!(said["tool_calls"][0]["function"]["arguments"], r#"{"path":"a.txt","offset":2}"#);
    assert_eq!((&result["role"], &result["content"]), (&json!("tool"), &json!("beta\n")));
    let last = world.provider().request(3).await;
    for (id, text) in [("call_r", "beta\n"), ("call_l", "a.txt\n"), ("call_b", output.as_str())] {
        assert_eq!(result_of(last.messages(), id), text);
    }
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_only_calls_run_at_the_same_time() {
    let world = Setup::default().with_tools([Meeting::of(3) as _]).start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let meet = |n: u32| json!({ "n": n });
    world.provider().push(Reply::calls(&[
        ("a", "meet", meet(1)),
        ("b", "meet", meet(2)),
        ("c", "meet", meet(3)),
    ]));
    world.provider().push(Reply::says("All met."));
    let turn = client.run(&thread, "Meet").await;
    assert_eq!(turn.summary.status, TurnStatus::Completed);
    // Whichever ended first, the order is the model's.
    assert_eq!(
        calls(&turn).iter().map(|item| item.id.as_str().to_owned()).collect::<Vec<_>>(),
        ["a", "b", "c"]
    );
    let request = world.provider().request(1).await;
    let results: Vec<_> = request.messages().iter().filter(|m| m["role"] == "tool").collect();
    let contents: Vec<_> = results.iter().map(|m| m["content"].as_str().unwrap()).collect();
    assert_eq!(contents, [r#"met {"n":1}"#, r#"met {"n":2}"#, r#"met {"n":3}"#]);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_change_things_run_in_order() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let bash = |command: &str| json!({ "command": command });
    world.provider().push(Reply::calls(&[
        ("c1", "bash", bash("echo one >> log; [ -e two ] && echo early; true")),
        ("c2", "read", json!({ "path": "log" })),
        ("c3", "bash", bash("touch two; echo two >> log")),
        ("c4", "read", json!({ "path": "log" })),
    ]));
    world.provider().push(Reply::says("Done."));
    let turn = client.run(&thread, "Write").await;
    assert_eq!(call(&turn, "c1").1, "[no output]");
    assert_eq!(call(&turn, "c2").1, "one\n");
    assert_eq!(call(&turn, "c4").1, "one\ntwo\n");
    world.finish().await;
}

/// A call that does not make sense is told to the model, which goes on. Holds: P6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p6_calls_that_make_no_sense_are_not_run() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(
        Reply::stream()
            .tool_call(0, "c_unknown", "teleport", r#"{"to":"mars"}"#)
            .tool_call(1, "c_broken", "bash", r#"{"command":"touch broken"#)
            .tool_call(2, "c_list", "bash", r#"["touch list"]"#)
            .tool_call(3, "c_text", "bash", r#""touch text""#)
            .tool_call(4, "c_none", "ls", "")
            .tool_call(5, "c_wrong", "bash", r#"{"cmd":"touch wrong"}"#)
            .tool_call(6, "c_missing", "read", r#"{"path":"nowhere.txt"}"#)
            .finish("tool_calls")
            .done(),
    );
    world.provider().push(Reply::says("I see."));
    let turn = client.run(&thread, "Go").await;
    assert_eq!(turn.summary.status, TurnStatus::Completed);
    let told = |id: &str, words: &str| {
        let (item, output) = call(&turn, id);
        assert_eq!(item.status, ItemStatus::Failed, "{id}: {output}");
        assert!(output.contains(words), "{id}: {output}");
    };
    told("c_unknown", "no tool `teleport`");
    told("c_unknown", "bash, ls, read");
    told("c_broken", "not a JSON object");
    told("c_list", "not a JSON object");
    told("c_text", "not a JSON object");
    told("c_wrong", "command");
    told("c_missing", "no such file");
    // No arguments at all are those of a tool that needs none.
    assert_eq!(call(&turn, "c_none").0.status, ItemStatus::Completed);
    assert_eq!(std::fs::read_dir(world.project()).unwrap().count(), 0, "something ran");
    let ItemKind::ToolCall { input, .. } = &call(&turn, "c_broken").0.kind else { panic!("no call") };
    assert_eq!(input, &json!(r#"{"command":"touch broken"#), "what is no JSON is shown as it came");
    let request = world.provider().request(1).await;
    for message in request.messages() {
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let arguments = call["function"]["arguments"].as_str().unwrap();
            assert!(serde_json::from_str::<Value>(arguments).unwrap().is_object(), "{arguments}");
        }
    }
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_calls_over_the_limit_are_told_to_the_model() {
    let world = Setup::default().with_tools([Says::tool("count", &[], None, "ran") as _]).start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let ids: Vec<String> = (0..CALLS_PER_REPLY_MAX + 6).map(|at| format!("c{at}")).collect();
    let wanted: Vec<_> = ids.iter().map(|id| (id.as_str(), "count", json!({}))).collect();
    world.provider().push(Reply::calls(&wanted));
    world.provider().push(Reply::says("Too many."));
    let turn = client.run(&thread, "Many").await;
    for (at, id) in ids.iter().enumerate() {
        let (item, output) = call(&turn, id);
        if at < CALLS_PER_REPLY_MAX {
            assert_eq!((item.status, output.as_str()), (ItemStatus::Completed, "ran"));
        } else {
            assert_eq!(item.status, ItemStatus::Failed);
            assert!(output.contains("at most 64 calls"), "{output}");
        }
    }
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p9_a_tool_that_panics_costs_its_call_alone() {
    let world = Setup::default().with_tools([Panics::tool() as _, Meeting::of(1) as _]).start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::calls(&[("bad", "panics", json!({})), ("good", "meet", json!({}))]));
    world.provider().push(Reply::says("Ouch."));
    let turn = client.run(&thread, "Go").await;
    assert_eq!(turn.summary.status, TurnStatus::Completed);
    let (item, output) = call(&turn, "bad");
    assert_eq!(item.status, ItemStatus::Failed);
    assert!(output.contains("unexpected"), "{output}");
    assert_eq!(call(&turn, "good").1, "met {}");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_is_seen_while_a_tool_runs_and_replaced_by_its_result() {
    let latch = Latch::new();
    let tool = Says::tool("says", &["one\n", "two\n"], Some(&latch), "the result");
    let world = Setup::default().with_tools([tool as _]).start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::calls(&[("c", "says", json!({}))]));
    world.provider().push(Reply::says("Done."));
    let turn = client.start(&thread, "Say").await;
    let running = client
        .turn_until(&turn, "the tool's output", |turn| {
            calls(turn).iter().any(|item| {
                matches!(&item.kind, ItemKind::ToolCall { output: Some(output), .. } if output == "one\ntwo\n")
            })
        })
        .await;
    assert_eq!(call(&running, "c").0.status, ItemStatus::InProgress);
    latch.open();
    let turn = client.end(&turn).await;
    assert_eq!(call(&turn, "c").1, "the result");
    assert_eq!(result_of(world.provider().request(1).await.messages(), "c"), "the result");
    world.finish().await;
}

/// A pipe in the project that a command waits at, and the test opens by writing to it.
async fn open_pipe(world: &World, name: &str) {
    let path = world.project().join(name);
    tokio::task::spawn_blocking(move || std::fs::write(path, "go\n")).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r01_a_commands_output_is_live_and_whole_characters() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    // The accent is cut in two by a pause in which the rest is not there yet.
    let command = r"mkfifo gate; printf 'caf\303'; echo waiting >&2; cat gate > /dev/null; printf '\251 \360\237'; printf '\230\200 ok\n'";
    world.provider().push(Reply::calls(&[("c", "bash", json!({ "command": command }))]));
    world.provider().push(Reply::says("Done."));
    let turn = client.start(&thread, "Print").await;
    client
        .turn_until(&turn, "the first half", |turn| {
            calls(turn).iter().any(|item| match &item.kind {
                ItemKind::ToolCall { output: Some(output), .. } => output.as_str().contains("waiting"),
                _ => false,
            })
        })
        .await;
    open_pipe(&world, "gate").await;
    let turn = client.end(&turn).await;
    // What stands between the halves makes them invalid on their own; nothing else may be replaced.
    let (_, output) = call(&turn, "c");
    assert!(output.starts_with("caf") && output.as_str().ends_with("😀 ok\n"), "{output:?}");
    let deltas = client.notifications(|n| matches!(n, ServerNotification::ItemToolCallOutputDelta(_)));
    assert!(deltas.len() >= 2);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_large_output_is_cut_with_a_note() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let command = "for i in $(seq 1 60000); do echo \"line $i of many\"; done";
    world.provider().push(Reply::calls(&[("c", "bash", json!({ "command": command }))]));
    world.provider().push(Reply::says("Much."));
    let turn = client.run(&thread, "Print").await;
    let (item, output) = call(&turn, "c");
    assert_eq!(item.status, ItemStatus::Completed);
    assert!(output.len() < OUTPUT_BYTES_MAX + 1_000, "{}", output.len());
    assert!(output.starts_with("line 1 of many\n") && output.as_str().ends_with("line 60000 of many\n"));
    assert!(output.contains("left out"));
    assert_eq!(result_of(world.provider().request(1).await.messages(), "c"), output);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r22_odd_characters_in_output_survive() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let command = r"printf 'a\342\200\250b\342\200\251c\302\205d\re\000f\033[1m'";
    world.provider().push(Reply::calls(&[("c", "bash", json!({ "command": command }))]));
    world.provider().push(Reply::says("Odd: \u{2028}\u{0}\u{85}"));
    let turn = client.run(&thread, "Odd \u{2029} too").await;
    let odd = "a\u{2028}b\u{2029}c\u{85}d\re\0f\u{1b}[1m";
    assert_eq!(call(&turn, "c").1, odd);
    assert_eq!(agent_text(&turn), "Odd: \u{2028}\u{0}\u{85}");
    assert_eq!(result_of(world.provider().request(1).await.messages(), "c"), odd);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r24_a_child_in_the_background_does_not_keep_the_call() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::calls(&[("c", "bash", json!({ "command": "sleep 600 & echo done" }))]));
    world.provider().push(Reply::says("Done."));
    let turn = client.run(&thread, "Go").await;
    let (item, output) = call(&turn, "c");
    assert_eq!(item.status, ItemStatus::Completed);
    assert!(output.starts_with("done\n") && output.contains("left running"), "{output}");
    world.finish().await;
}

/// A model that uses one id again, in a reply and in a later turn, gets an item each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_with_one_id_stay_apart() {
    let world = World::start().await;
    for name in ["a", "b", "c", "d"] {
        std::fs::write(world.project().join(name), name).unwrap();
    }
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let read = |path: &str| json!({ "path": path });
    world.provider().push(Reply::calls(&[("call_1", "read", read("a")), ("call_1", "read", read("b"))]));
    world.provider().push(Reply::calls(&[("call_1", "read", read("c"))]));
    world.provider().push(Reply::says("One."));
    let turn = client.run(&thread, "Read").await;
    let outputs = |turn: &raddle::protocol::Turn| -> Vec<String> {
        calls(turn).iter().map(|item| call(turn, item.id.as_str()).1).collect()
    };
    assert_eq!(outputs(&turn), ["a", "b", "c"]);
    world.provider().push(Reply::calls(&[("call_1", "read", read("d"))]));
    world.provider().push(Reply::says("Two."));
    let again = client.run(&thread, "Read more").await;
    assert_eq!(outputs(&again), ["d"]);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_in_pieces_is_one_call() {
    let world = World::start().await;
    std::fs::write(world.project().join("a.txt"), "alpha").unwrap();
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(
        Reply::stream()
            .tool_call(0, "c", "read", "")
            .send(sse::tool_arguments(0, r#"{"pa"#))
            .send(sse::tool_arguments(0, r#"th":"a.txt"}"#))
            .finish("tool_calls")
            .done(),
    );
    world.provider().push(Reply::says("alpha it is"));
    let turn = client.run(&thread, "Read").await;
    assert_eq!(calls(&turn).len(), 1);
    assert_eq!(call(&turn, "c").1, "alpha");
    world.finish().await;
}

/// Tools that change things never run side by side, even when the first takes its time. Holds: P3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p3_a_second_change_waits_for_the_first() {
    let latch = Latch::new();
    let slow = Says::with_effect(Effect::Mutating, "slow", &["working"], Some(&latch), "first");
    let world = Setup::default().with_tools([slow as _]).start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::calls(&[
        ("c1", "slow", json!({})),
        ("c2", "bash", json!({ "command": "touch second" })),
    ]));
    world.provider().push(Reply::says("Done."));
    let turn = client.start(&thread, "Go").await;
    latch.reached().await;
    // Both calls are durable and told before the first one runs.
    let running = client.turn_until(&turn, "both calls", |turn| calls(turn).len() == 2).await;
    assert_eq!(call(&running, "c2").0.status, ItemStatus::InProgress);
    assert!(!world.project().join("second").exists());
    latch.open();
    let turn = client.end(&turn).await;
    assert_eq!((call(&turn, "c1").1, call(&turn, "c2").1), ("first".into(), "[no output]".into()));
    assert!(world.project().join("second").exists());
    world.finish().await;
}
