//! History: pages, cursors, lists, resuming in the middle of a turn, several clients, unloading.

use std::slice::from_ref;
use std::time::Duration;

use raddle::Raddle;
use raddle::protocol::methods::{Audience, Direction, METHODS, method};
use raddle::protocol::server::DiagnosticsParams;
use raddle::protocol::thread::{
    ApprovalMode, ThreadListParams, ThreadListResult, ThreadReadParams, ThreadSettingsUpdateParams,
    ThreadStartParams, ThreadStatus,
};
use raddle::protocol::turn::TurnStartParams;
use raddle::protocol::{ErrorCode, RpcError, ThreadId, TurnId, TurnStatus};
use raddle_tests::{Client, Gate, Reply, Setup, Stuck, World, agent_text, calls, user_texts, within};
use serde_json::json;

/// A thread of that many short turns.
async fn long_thread(world: &World, client: &Client, turns: usize) -> ThreadId {
    let thread = world.thread(client).await;
    for at in 0..turns {
        world.provider().push(Reply::says(&format!("answer {at}")));
        client.run(&thread, &format!("turn {at}")).await;
    }
    thread
}

fn page(thread: &ThreadId, cursor: Option<&str>, limit: Option<u32>) -> ThreadReadParams {
    ThreadReadParams { thread_id: thread.clone(), cursor: cursor.map(str::to_owned), limit }
}

fn said(turns: &[raddle::protocol::Turn]) -> Vec<String> {
    turns.iter().flat_map(user_texts).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_are_anchored_to_their_branch() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = long_thread(&world, &client, 7).await;
    let read = async |cursor: Option<&str>| {
        client.request::<method::ThreadRead>(page(&thread, cursor, Some(3))).await.unwrap()
    };
    let first = read(None).await;
    assert_eq!(said(&first.turns), ["turn 4", "turn 5", "turn 6"]);
    let cursor = first.next_cursor.unwrap();
    // What is appended does not shift what the cursor stands for.
    world.provider().push(Reply::says("answer 7"));
    client.run(&thread, "turn 7").await;
    let second = read(Some(&cursor)).await;
    assert_eq!(said(&second.turns), ["turn 1", "turn 2", "turn 3"]);
    let last = read(second.next_cursor.as_deref()).await;
    assert_eq!((said(&last.turns), last.next_cursor), (vec!["turn 0".to_owned()], None));
    assert_eq!(read(Some(&cursor)).await.turns, second.turns, "a cursor can be used again");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cursors_survive_a_restart() {
    let mut world = World::start().await;
    let client = world.client().await;
    let thread = long_thread(&world, &client, 4).await;
    let read = client.request::<method::ThreadRead>(page(&thread, None, Some(2))).await.unwrap();
    world.reopen().await;
    let client = world.client().await;
    let older = page(&thread, read.next_cursor.as_deref(), Some(2));
    let older = client.request::<method::ThreadRead>(older).await.unwrap();
    assert_eq!(said(&older.turns), ["turn 0", "turn 1"]);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_holds_fifty_turns_at_most() {
    let world = World::with_builtin("echo").await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    for at in 0..53 {
        client.run(&thread, &format!("turn {at}")).await;
    }
    let newest = client.read(&thread).await;
    assert_eq!((newest.turns.len(), said(&newest.turns)[0].as_str()), (50, "turn 3"));
    assert!(newest.next_cursor.is_some());
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cursors_that_do_not_belong_are_refused() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = long_thread(&world, &client, 3).await;
    let other = long_thread(&world, &client, 3).await;
    let good = client.request::<method::ThreadRead>(page(&thread, None, Some(1))).await.unwrap();
    let good = good.next_cursor.unwrap();
    let list = ThreadListParams { limit: Some(1), ..ThreadListParams::default() };
    let of_list = client.request::<method::ThreadList>(list).await.unwrap().next_cursor.unwrap();
    let mut tampered = good.clone();
    tampered.replace_range(good.len() - 1.., if good.ends_with('0') { "1" } else { "0" });
    let reader = world.client().await;
    for (thread, cursor) in [
        (&thread, ""),
        (&thread, "nonsense"),
        (&thread, "é😀"),
        (&thread, tampered.as_str()),
        (&thread, of_list.as_str()),
        (&other, good.as_str()),
    ] {
        let params = page(thread, Some(cursor), None);
        let read = reader.request::<method::ThreadRead>(params.clone()).await.unwrap_err();
        assert_eq!(read.code, ErrorCode::InvalidCursor, "{cursor}");
        let resumed = reader.request::<method::ThreadResume>(params).await.unwrap_err();
        assert_eq!(resumed.code, ErrorCode::InvalidCursor, "{cursor}");
    }
    // An invalid cursor subscribes nobody.
    world.provider().push(Reply::says("answer 3"));
    let turn = client.run(&thread, "turn 3").await;
    reader.view_until("the turn to end", |view| view.told(&turn.summary.id).map(|_| ())).await;
    assert!(reader.view(|view| view.turns(&thread).is_empty()));
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_out_of_range_are_refused() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = long_thread(&world, &client, 1).await;
    for limit in [0, 51, u32::MAX] {
        let params = page(&thread, None, Some(limit));
        let read = client.request::<method::ThreadRead>(params.clone()).await.unwrap_err();
        let resumed = client.request::<method::ThreadResume>(params).await.unwrap_err();
        assert_eq!(
            (read.code, resumed.code),
            (ErrorCode::InvalidParams, ErrorCode::InvalidParams),
            "{limit}"
        );
    }
    for limit in [0, 201, u32::MAX] {
        let params = ThreadListParams { limit: Some(limit), ..ThreadListParams::default() };
        let listed = client.request::<method::ThreadList>(params).await.unwrap_err();
        assert_eq!(listed.code, ErrorCode::InvalidParams, "{limit}");
    }
    for limit in [1, 50] {
        client.request::<method::ThreadRead>(page(&thread, None, Some(limit))).await.unwrap();
    }
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_that_is_not_there() {
    let world = World::start().await;
    let client = world.client().await;
    for id in [ThreadId::generate(), ThreadId::from(""), ThreadId::from("../../etc/passwd\0'; --")] {
        let settings = ThreadSettingsUpdateParams {
            thread_id: id.clone(),
            model: None,
            approval_mode: None,
            instructions: None,
        };
        let errors: Vec<RpcError> = vec![
            client.request::<method::ThreadRead>(page(&id, None, None)).await.unwrap_err(),
            client.request::<method::ThreadResume>(page(&id, None, None)).await.unwrap_err(),
            client.request::<method::TurnStart>(TurnStartParams::new(id.clone(), "Hi")).await.unwrap_err(),
            client.request::<method::ThreadSettingsUpdate>(settings).await.unwrap_err(),
            client.steer(&id, &TurnId::generate(), "x").await.unwrap_err(),
            client.interrupt(&id, None).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.code, ErrorCode::ThreadNotFound, "{error}");
        }
    }
    world.finish().await;
}

/// An id that was given out can be used, from the same process or the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r18_an_empty_thread_is_durable() {
    let mut world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let created = client.read(&thread).await.thread;
    world.reopen().await;
    let client = world.client().await;
    let listed = client.request::<method::ThreadList>(ThreadListParams::default()).await.unwrap();
    assert_eq!(listed.threads.iter().map(|t| &t.id).collect::<Vec<_>>(), [&thread]);
    assert_eq!(listed.threads[0].status, ThreadStatus::NotLoaded);
    let read = client.read(&thread).await;
    assert_eq!((read.turns.len(), read.next_cursor), (0, None));
    assert_eq!((&read.thread.cwd, &read.thread.created_at), (&created.cwd, &created.created_at));
    assert_eq!(client.read(&thread).await.thread.status, ThreadStatus::NotLoaded, "reading loads nothing");
    let resumed = client.resume(&thread).await;
    assert_eq!((resumed.turns.len(), resumed.thread.status), (0, ThreadStatus::Idle));
    world.provider().push(Reply::says("Hello."));
    client.run(&thread, "Hi").await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_loads_what_is_not_loaded() {
    let mut world = World::start().await;
    let client = world.client().await;
    let thread = long_thread(&world, &client, 1).await;
    world.reopen().await;
    let client = world.client().await;
    world.provider().push(Reply::says("answer 1"));
    // It subscribes, too: the harness compares what was seen.
    let turn = client.run(&thread, "turn 1").await;
    assert_eq!(agent_text(&turn), "answer 1");
    assert_eq!(world.provider().request(1).await.messages().len(), 4);
    world.finish().await;
}

/// Clients that resume at one moment after another of a turn, with tools and thinking in it: what each was handed, and
/// what followed it, is the turn. Holds: P5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_resumed_at_every_step_of_a_turn() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = long_thread(&world, &client, 2).await;
    let gates: Vec<Gate> = (0..8).map(|_| Gate::new()).collect();
    world.provider().push(
        Reply::stream()
            .wait(&gates[0])
            .reasoning("Let me ")
            .wait(&gates[1])
            .reasoning("see.")
            .text("Looking")
            .wait(&gates[2])
            .text(" now.")
            .tool_call(0, "c1", "ls", "{}")
            .tool_call(1, "c2", "bash", r#"{"command":"echo one; echo two"}"#)
            .wait(&gates[3])
            .finish("tool_calls")
            .usage(10, 5)
            .done(),
    );
    world.provider().push(Reply::stream().wait(&gates[4]).text("Half").wait(&gates[5]).cut());
    world
        .provider()
        .push(Reply::stream().wait(&gates[6]).text("Whole").wait(&gates[7]).text(" answer.").stop());
    let turn = client.start(&thread, "Look").await;
    let mut late = Vec::new();
    for gate in &gates {
        gate.reached().await;
        for _ in 0..2 {
            let newcomer = world.client().await;
            let resumed = newcomer.resume(&thread).await;
            assert_eq!(said(&resumed.turns), ["turn 0", "turn 1"]);
            let running = resumed.running_turn.unwrap();
            assert_eq!((&running.summary.id, running.summary.status), (&turn, TurnStatus::InProgress));
            assert!(matches!(resumed.thread.status, ThreadStatus::Active { .. }));
            late.push(newcomer);
        }
        // A read shows the turn, too, as it runs.
        let read = client.read(&thread).await;
        assert_eq!(read.turns.last().unwrap().summary.status, TurnStatus::InProgress);
        gate.open();
    }
    let ended = client.end(&turn).await;
    assert_eq!(calls(&ended).len(), 2);
    for newcomer in late {
        assert_eq!(newcomer.end(&turn).await, ended, "{}", newcomer.transcript());
    }
    world.finish().await;
}

/// The same without gates: clients come and go while deltas flow as fast as they can. Holds: P5, P8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_resumed_while_deltas_flow() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    for _ in 0..3 {
        world.provider().push(Reply::text_deltas(3_000));
        let turn = client.start(&thread, "Go").await;
        let newcomers = async {
            let mut newcomers = Vec::new();
            for at in 0..15 {
                let newcomer = world.client().await;
                newcomer.resume(&thread).await;
                if at % 5 == 4 {
                    newcomer.close().await;
                }
                newcomers.push(newcomer);
            }
            newcomers
        };
        let (ended, newcomers) = tokio::join!(client.end(&turn), newcomers);
        for newcomer in newcomers.iter().filter(|newcomer| !newcomer.is_ended()) {
            let seen = newcomer.view(|view| view.turn(&turn).cloned()).unwrap();
            // Whoever came after the end has it from the page.
            let seen =
                if seen.summary.status == TurnStatus::InProgress { newcomer.end(&turn).await } else { seen };
            assert_eq!(seen, ended);
            newcomer.close().await;
        }
    }
    world.finish().await;
}

/// Resuming again on the same connection: the snapshot replaces what was known, and nothing is told twice after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_a_client_may_resume_again_and_again() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::text_deltas(2_000));
    let turn = client.start(&thread, "Go").await;
    for _ in 0..20 {
        client.resume(&thread).await;
    }
    client.end(&turn).await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resume_with_an_old_cursor_still_has_the_running_turn() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = long_thread(&world, &client, 3).await;
    let first = client.request::<method::ThreadRead>(page(&thread, None, Some(1))).await.unwrap();
    let gate = Gate::new();
    world.provider().push(Reply::stream().text("Half").wait(&gate).stop());
    let turn = client.start(&thread, "turn 3").await;
    client.turn_until(&turn, "half an answer", |turn| agent_text(turn) == "Half").await;
    let reader = world.client().await;
    let params = page(&thread, first.next_cursor.as_deref(), Some(1));
    let resumed = reader.request::<method::ThreadResume>(params).await.unwrap();
    assert_eq!(said(&resumed.turns), ["turn 1"]);
    assert_eq!(agent_text(&resumed.running_turn.unwrap()), "Half");
    gate.open();
    reader.end(&turn).await;
    world.finish().await;
}

/// The running turn takes its place on the page, and the cursor behind it leads to the one before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_one_while_a_turn_runs() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::says("Zero."));
    client.run(&thread, "turn 0").await;
    let gate = Gate::new();
    world.provider().push(Reply::stream().text("Half").wait(&gate).stop());
    let turn = client.start(&thread, "turn 1").await;
    client.turn_until(&turn, "text", |turn| agent_text(turn) == "Half").await;
    let reader = world.client().await;
    let params = page(&thread, None, Some(1));
    let resumed = reader.request::<method::ThreadResume>(params.clone()).await.unwrap();
    assert!(resumed.turns.is_empty() && resumed.running_turn.is_some());
    let older = ThreadReadParams { cursor: resumed.next_cursor, ..params };
    let older = reader.request::<method::ThreadRead>(older).await.unwrap();
    assert_eq!(user_texts(&older.turns[0]), ["turn 0"]);
    gate.open();
    reader.end(&turn).await;
    world.finish().await;
}

/// Two that subscribe see the same; one that does not is told what a list of threads needs, and no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_subscribes_sees_all_and_others_the_sidebar() {
    let world = World::start().await;
    let [one, two, other] = [world.client().await, world.client().await, world.client().await];
    let thread = world.thread(&one).await;
    two.resume(&thread).await;
    world.provider().push(Reply::calls(&[("c", "bash", json!({ "command": "echo hi" }))]));
    world.provider().push(Reply::says("Said."));
    let turn = one.run(&thread, "Say hi").await;
    assert_eq!(two.end(&turn.summary.id).await, turn);
    world.provider().push(Reply::says("Again."));
    let second = two.run(&thread, "Again").await;
    assert_eq!(one.end(&second.summary.id).await, second);
    for client in [&one, &two, &other] {
        client.idle(&thread).await;
        client.view_until("thread/started", |view| view.is_started(&thread).then_some(())).await;
    }

    let everyone: Vec<_> = METHODS
        .iter()
        .filter(|row| row.direction == Direction::ServerNotification(Audience::Everyone))
        .map(|row| row.name)
        .collect();
    let seen = other.methods();
    assert!(seen.iter().all(|name| everyone.contains(name)), "{seen:?}");
    assert_eq!(seen.iter().filter(|name| **name == "thread/turn/completed").count(), 2);
    assert_eq!(seen.iter().filter(|name| **name == "thread/started").count(), 1);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_goes_on_without_a_viewer() {
    let world = World::start().await;
    let [client, other] = [world.client().await, world.client().await];
    let thread = world.thread(&client).await;
    let gate = Gate::new();
    world.provider().push(Reply::stream().text("Half").wait(&gate).text(" and whole.").stop());
    let turn = client.start(&thread, "Hi").await;
    client.turn_until(&turn, "half an answer", |turn| agent_text(turn) == "Half").await;
    client.close().await;
    gate.open();
    other.view_until("the turn to end", |view| view.told(&turn).map(|_| ())).await;
    let read = other.read(&thread).await;
    assert_eq!(read.turns[0].summary.status, TurnStatus::Completed);
    assert_eq!(agent_text(&read.turns[0]), "Half and whole.");
    world.finish().await;
}

async fn list(client: &Client, params: ThreadListParams) -> ThreadListResult {
    client.request::<method::ThreadList>(params).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_are_listed_newest_activity_first() {
    let world = World::start().await;
    let client = world.client().await;
    let mut threads = Vec::new();
    for at in 0..5 {
        let thread = world.thread(&client).await;
        world.provider().push(Reply::says("Hm."));
        client.run(&thread, &format!("Thread number {at}")).await;
        threads.push(thread);
    }
    world.provider().push(Reply::says("Hm."));
    client.run(&threads[1], "Once more").await;
    let ids = |result: &ThreadListResult| result.threads.iter().map(|t| t.id.clone()).collect::<Vec<_>>();
    let order = [1, 4, 3, 2, 0].map(|at: usize| threads[at].clone());
    let all = list(&client, ThreadListParams::default()).await;
    assert_eq!((ids(&all), all.next_cursor), (order.to_vec(), None));

    // In pages, while another thread moves to the front.
    let first = list(&client, ThreadListParams { limit: Some(2), ..ThreadListParams::default() }).await;
    assert_eq!(ids(&first), order[..2]);
    world.provider().push(Reply::says("Hm."));
    client.run(&threads[4], "To the front").await;
    let params =
        ThreadListParams { limit: Some(2), cursor: first.next_cursor.clone(), ..ThreadListParams::default() };
    let second = list(&client, params.clone()).await;
    assert_eq!(ids(&second), order[2..4]);
    let last = ThreadListParams { cursor: second.next_cursor, ..params.clone() };
    let last = list(&client, last).await;
    assert_eq!((ids(&last), last.next_cursor), (order[4..].to_vec(), None));

    for wrong in [
        ThreadListParams { search: Some("number".into()), ..params.clone() },
        ThreadListParams { cwd: Some(world.cwd()), ..params.clone() },
        ThreadListParams { archived: Some(true), ..params.clone() },
        ThreadListParams { cursor: Some("nonsense".into()), ..params.clone() },
    ] {
        let error = client.request::<method::ThreadList>(wrong).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidCursor);
    }
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_are_filtered() {
    let world = World::start().await;
    let client = world.client().await;
    let elsewhere = world.project().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let here = world.thread(&client).await;
    let start = async |cwd: &std::path::Path, name: &str| {
        let params = ThreadStartParams {
            cwd: cwd.display().to_string(),
            name: Some(name.to_owned()),
            ..ThreadStartParams::default()
        };
        client.request::<method::ThreadStart>(params).await.unwrap().thread.id
    };
    let there = start(&elsewhere, "Weaving É").await;
    let ids = async |params: ThreadListParams| -> Vec<ThreadId> {
        list(&client, params).await.threads.into_iter().map(|thread| thread.id).collect()
    };
    let of = |cwd: String| ThreadListParams { cwd: Some(cwd), ..ThreadListParams::default() };
    assert_eq!(ids(of(world.cwd())).await, from_ref(&here));
    // Another name of the same directory finds the same threads.
    assert_eq!(ids(of(format!("{}/../elsewhere/.", elsewhere.display()))).await, from_ref(&there));
    assert_eq!(ids(of("/nowhere/at/all".into())).await, []);
    let search =
        |text: &str| ThreadListParams { search: Some(text.to_owned()), ..ThreadListParams::default() };
    assert_eq!(ids(search("WEAV")).await, from_ref(&there));
    assert_eq!(ids(search("ng é")).await, [there]);
    assert_eq!(ids(search("%")).await, []);
    world.provider().push(Reply::says("Hm."));
    client.run(&here, "A title to be found").await;
    assert_eq!(ids(search("to be f")).await, [here]);
    let archived = ThreadListParams { archived: Some(true), ..ThreadListParams::default() };
    assert_eq!(ids(archived).await, []);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_says_what_threads_do() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let status = async || list(&client, ThreadListParams::default()).await.threads[0].status.clone();
    assert_eq!(status().await, ThreadStatus::Idle);
    let gate = Gate::new();
    world.provider().push(Reply::stream().wait(&gate).text("Hm.").stop());
    let turn = client.start(&thread, "Hi").await;
    world.provider().request(0).await;
    assert_eq!(status().await, ThreadStatus::Active { waiting_on: vec![] });
    gate.open();
    client.end(&turn).await;
    client.idle(&thread).await;
    assert_eq!(status().await, ThreadStatus::Idle);
    world.finish().await;
}

/// Asks again and again until no thread is loaded. Nothing tells of an unload, so there is nothing else to wait for.
async fn unloaded(client: &Client) {
    let asking = async {
        loop {
            let now = client.request::<method::ServerDiagnostics>(DiagnosticsParams {}).await.unwrap();
            if now.loaded_threads + now.loading_threads == 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    within("all threads to unload", || client.transcript(), asking).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_thread_unloads_and_loads_again() {
    let world = Setup { unload_after: Some(Duration::from_millis(5)), ..Setup::default() }.start().await;
    let [client, other] = [world.client().await, world.client().await];
    let thread = long_thread(&world, &client, 2).await;
    client.close().await;
    unloaded(&other).await;
    let read = other.read(&thread).await;
    assert_eq!((read.thread.status, read.turns.len()), (ThreadStatus::NotLoaded, 2));
    let resumed = other.resume(&thread).await;
    assert_eq!((resumed.thread.status, resumed.turns), (ThreadStatus::Idle, read.turns));
    world.provider().push(Reply::says("answer 2"));
    other.run(&thread, "turn 2").await;
    world.finish().await;
}

/// A thread with a subscriber or with work stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watched_or_busy_thread_stays_loaded() {
    let world = Setup { unload_after: Some(Duration::from_millis(5)), ..Setup::default() }.start().await;
    let [client, other] = [world.client().await, world.client().await];
    let [watched, busy] = [world.thread(&other).await, world.thread(&client).await];
    let gate = Gate::new();
    world.provider().push(Reply::stream().text("Half").wait(&gate).stop());
    let turn = client.start(&busy, "Hi").await;
    client.turn_until(&turn, "half an answer", |turn| agent_text(turn) == "Half").await;
    // Its thread would go before these two, if it went.
    let passing = world.client().await;
    let gone = world.thread(&passing).await;
    passing.close().await;
    client.close().await;
    within("the third thread to unload", String::new, async {
        while other.read(&gone).await.thread.status != ThreadStatus::NotLoaded {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(other.read(&watched).await.thread.status, ThreadStatus::Idle);
    assert_eq!(other.read(&busy).await.thread.status, ThreadStatus::Active { waiting_on: vec![] });
    gate.open();
    other.view_until("the turn to end", |view| view.told(&turn).map(|_| ())).await;
    world.finish().await;
}

/// Loads that meet an unload on its way: the thread can always be used. Holds: P2, P4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_loads_race_with_unloads() {
    let world = Setup { unload_after: Some(Duration::from_micros(200)), ..Setup::default() }.start().await;
    world.provider().set_default(|_| Reply::says("Hello."));
    let client = world.client().await;
    let thread = long_thread(&world, &client, 1).await;
    client.close().await;
    for _ in 0..60 {
        let passing = world.client().await;
        let turn = passing.run(&thread, "Hi").await;
        assert_eq!(turn.summary.status, TurnStatus::Completed);
        passing.close().await;
    }
    // Settings subscribe nobody, so each change finds the thread just loaded, just going, or gone.
    let [one, two] = [world.client().await, world.client().await];
    let change = async |client: &Client, mode| {
        let settings = ThreadSettingsUpdateParams {
            thread_id: thread.clone(),
            model: None,
            approval_mode: Some(mode),
            instructions: None,
        };
        let changed = client.request::<method::ThreadSettingsUpdate>(settings).await;
        assert_eq!(changed.unwrap().settings.approval_mode, mode);
    };
    for _ in 0..150 {
        tokio::join!(change(&one, ApprovalMode::Ask), change(&two, ApprovalMode::Ask));
        change(&one, ApprovalMode::AutoEdit).await;
        change(&two, ApprovalMode::FullAccess).await;
    }
    world.finish().await;
}

/// What a command left running goes with its thread.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r24_processes_end_with_their_thread() {
    let world = Setup { unload_after: Some(Duration::from_millis(5)), ..Setup::default() }.start().await;
    let [client, other] = [world.client().await, world.client().await];
    let thread = world.thread(&client).await;
    let command = "setsid sleep 7654 > /dev/null 2>&1 & echo $!";
    world.provider().push(Reply::calls(&[("c", "bash", json!({ "command": command }))]));
    world.provider().push(Reply::says("It sleeps."));
    let turn = client.run(&thread, "Start it").await;
    let output = raddle_tests::call(&turn, "c").1;
    let stat = format!("/proc/{}/stat", output.lines().next().unwrap());
    let is_running = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z"));
    assert!(is_running(), "{output}");
    client.close().await;
    unloaded(&other).await;
    assert!(!is_running(), "{output}");
    world.finish().await;
}

/// A tool that never stops keeps neither its thread from unloading nor the process from closing. Holds: P9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p9_a_thread_with_a_stuck_tool_unloads() {
    let setup = Setup { unload_after: Some(Duration::from_millis(5)), ..Setup::default() };
    let world = setup.with_tools([Stuck::tool() as _]).start().await;
    let [client, other] = [world.client().await, world.client().await];
    let thread = world.thread(&client).await;
    world.provider().push(Reply::calls(&[("c", "stuck", json!({}))]));
    let turn = client.start(&thread, "Hang").await;
    client.turn_until(&turn, "the call", |turn| calls(turn).len() == 1).await;
    client.interrupt(&thread, None).await.unwrap();
    client.end(&turn).await;
    client.close().await;
    unloaded(&other).await;
    world.finish().await;
}

/// A second engine on the same home, by another name of it: the first one's threads can be read there, not used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r46_p2_a_thread_has_one_owner() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = long_thread(&world, &client, 1).await;
    let alias = world.home().parent().unwrap().join("alias");
    std::os::unix::fs::symlink(world.home(), &alias).unwrap();
    let options = raddle::Options { home: Some(alias.join(".")), ..world.options() };
    let second = Raddle::open(options).await.unwrap();
    let stranger = world.client_of(second.server()).await;
    let read = stranger.read(&thread).await;
    assert_eq!((read.turns.len(), read.thread.status), (1, ThreadStatus::NotLoaded));
    let settings = ThreadSettingsUpdateParams {
        thread_id: thread.clone(),
        model: None,
        approval_mode: None,
        instructions: None,
    };
    for error in [
        stranger.request::<method::ThreadResume>(page(&thread, None, None)).await.unwrap_err(),
        stranger.start_refused(&thread, "Mine").await,
        stranger.request::<method::ThreadSettingsUpdate>(settings).await.unwrap_err(),
    ] {
        assert_eq!(error.code, ErrorCode::ThreadLockedElsewhere);
        assert_eq!(error.data.unwrap()["pid"], std::process::id());
    }
    // Its own threads work beside them, in the same database.
    let own = world.thread(&stranger).await;
    world.provider().push(Reply::says("Mine."));
    stranger.run(&own, "Hi").await;
    let mine = client.request::<method::ThreadResume>(page(&own, None, None)).await.unwrap_err();
    assert_eq!(mine.code, ErrorCode::ThreadLockedElsewhere);
    stranger.close().await;
    second.close().await;
    assert_eq!(client.resume(&own).await.turns.len(), 1, "what was given back can be taken");
    world.finish().await;
}
