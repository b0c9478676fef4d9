//! Two things at once, many times: whatever comes first, everybody is told the same and nothing happens twice or by half.

use raddle::Raddle;
use raddle::protocol::approval::Decision;
use raddle::protocol::methods::{ClientRequest, ServerNotification, method};
use raddle::protocol::rpc::ServerMessage;
use raddle::protocol::thread::{ApprovalMode, ThreadStartParams};
use raddle::protocol::turn::TurnStartParams;
use raddle::protocol::{ErrorCode, ItemStatus, ThreadId, TurnStatus};
use raddle_tests::{Client, Reply, World, agent_text, call, user_texts};
use serde_json::json;

/// Whoever reads while turns begin and end sees them run or ended, never as cut off. Holds: P5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_a_read_never_takes_a_living_turn_for_a_dead_one() {
    let world = World::with_builtin("echo").await;
    let [client, reader, late] = [world.client().await, world.client().await, world.client().await];
    let thread = world.thread(&client).await;
    let turns = async {
        for at in 0..150 {
            client.run(&thread, &format!("turn {at}")).await;
        }
    };
    let check = |turns: &[raddle::protocol::Turn]| {
        for turn in turns {
            let status = turn.summary.status;
            assert!(matches!(status, TurnStatus::InProgress | TurnStatus::Completed), "{turn:#?}");
        }
        let ids: std::collections::HashSet<_> = turns.iter().map(|turn| &turn.summary.id).collect();
        assert_eq!(ids.len(), turns.len(), "a turn is there twice");
    };
    let reads = async {
        loop {
            check(&reader.read(&thread).await.turns);
        }
    };
    let resumes = async {
        loop {
            let resumed = late.resume(&thread).await;
            check(&resumed.turns.iter().chain(&resumed.running_turn).cloned().collect::<Vec<_>>());
        }
    };
    tokio::select! {
        () = turns => {}
        () = reads => {}
        () = resumes => {}
    }
    world.finish().await;
}

/// A steer that was accepted is in its turn, one that was refused is nowhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steers_race_with_the_end_of_turns() {
    let world = World::start().await;
    world.provider().set_default(|_| Reply::text_deltas(3));
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..60 {
        let turn = client.start(&thread, "Go").await;
        if round % 2 == 0 {
            client.turn_until(&turn, "some text", |turn| !agent_text(turn).is_empty()).await;
        }
        let steered = client.steer(&thread, &turn, "Further").await;
        let ended = client.end(&turn).await;
        assert_eq!(ended.summary.status, TurnStatus::Completed);
        match steered {
            Ok(()) => {
                accepted += 1;
                assert_eq!(user_texts(&ended), ["Go", "Further"]);
            }
            Err(error) => {
                refused += 1;
                assert_eq!(error.code, ErrorCode::TurnMismatch);
                assert_eq!(user_texts(&ended), ["Go"]);
            }
        }
    }
    assert_eq!(accepted + refused, 60);
    world.finish().await;
}

/// An acceptance and an interrupt at once: what is told of the call is what happened. Holds: P3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p3_an_acceptance_races_with_an_interrupt() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread_with(&client, ApprovalMode::Ask).await;
    for round in 0..25 {
        let file = format!("file-{round}");
        let command = format!("echo once >> {file}");
        world.provider().push(Reply::calls(&[(&format!("c{round}"), "bash", json!({ "command": command }))]));
        let turn = client.start(&thread, "Touch").await;
        let ask = client.asked(round).await;
        // The model may come to be asked again before the interrupt arrives.
        world.provider().set_default(|_| Reply::says("Done."));
        let (interrupted, ()) =
            tokio::join!(client.interrupt(&thread, Some(&turn)), client.decide(&ask, Decision::Accept));
        let ended = client.end(&turn).await;
        match interrupted {
            Ok(()) => {}
            // It came after the end.
            Err(error) => assert_eq!(error.code, ErrorCode::TurnMismatch),
        }
        let (item, output) = call(&ended, &format!("c{round}"));
        let runs = std::fs::read_to_string(world.project().join(&file)).unwrap_or_default();
        match item.status {
            ItemStatus::Completed => assert_eq!(runs, "once\n"),
            ItemStatus::Interrupted if output.starts_with("not run") => assert_eq!(runs, "", "{output}"),
            ItemStatus::Interrupted => assert!(runs.is_empty() || runs == "once\n"),
            other => panic!("{other:?}: {output}"),
        }
    }
    world.finish().await;
}

/// The client that is asked leaves while it answers: the call runs once or not at all, and the turn ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p3_an_answer_races_with_its_client_leaving() {
    let world = World::start().await;
    let watcher = world.client().await;
    let thread = world.thread_with(&watcher, ApprovalMode::Ask).await;
    watcher.answer_nothing();
    for round in 0..25 {
        let file = format!("file-{round}");
        let command = format!("echo once >> {file}");
        world.provider().push(Reply::calls(&[(&format!("c{round}"), "bash", json!({ "command": command }))]));
        world.provider().push(Reply::says("Done."));
        let client = world.client().await;
        let turn = client.start(&thread, "Touch").await;
        let ask = client.asked(0).await;
        tokio::join!(client.decide(&ask, Decision::Accept), client.close());
        let ended = watcher.end(&turn).await;
        assert_eq!(ended.summary.status, TurnStatus::Completed);
        let (item, _) = call(&ended, &format!("c{round}"));
        let runs = std::fs::read_to_string(world.project().join(&file)).unwrap_or_default();
        match item.status {
            ItemStatus::Completed => assert_eq!(runs, "once\n"),
            ItemStatus::Declined => assert_eq!(runs, ""),
            other => panic!("{other:?}"),
        }
    }
    world.finish().await;
}

/// Everybody hears of a new thread before anything of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_is_told_before_its_turns() {
    let world = World::with_builtin("echo").await;
    let [client, other] = [world.client().await, world.client().await];
    for _ in 0..100 {
        let params = ThreadStartParams { cwd: world.cwd(), ..ThreadStartParams::default() };
        let thread = client.request::<method::ThreadStart>(params).await.unwrap().thread.id;
        client.run(&thread, "Hi").await;
    }
    let about = |notification: &ServerNotification| -> Option<(ThreadId, bool)> {
        Some(match notification {
            ServerNotification::ThreadStarted(n) => (n.thread.id.clone(), true),
            ServerNotification::ThreadStatusChanged(n) => (n.thread_id.clone(), false),
            ServerNotification::TurnStarted(n) => (n.thread_id.clone(), false),
            _ => return None,
        })
    };
    for client in [&client, &other] {
        let mut known = std::collections::HashSet::new();
        for message in client.messages() {
            let ServerMessage::Notification(notification) = message else { continue };
            match about(&notification) {
                Some((thread, true)) => assert!(known.insert(thread)),
                Some((thread, false)) => {
                    assert!(known.contains(&thread), "{} before thread/started", notification.method());
                }
                None => {}
            }
        }
    }
    world.finish().await;
}

/// What a client has seen, another process can read. Holds: P1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_what_is_seen_is_committed() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let second = Raddle::open(world.options()).await.unwrap();
    let stranger = world.client_of(second.server()).await;
    world.provider().push(Reply::text_deltas(3_000));
    let turn = client.start(&thread, "Go").await;
    loop {
        let (seen, status) = client
            .view_until("the turn", |view| {
                let turn = view.turn(&turn)?;
                Some((agent_text(turn), turn.summary.status))
            })
            .await;
        let read = stranger.read(&thread).await.turns.pop().unwrap();
        assert!(agent_text(&read).starts_with(&seen), "{} bytes seen", seen.len());
        assert_eq!(read.summary.id, turn);
        if status != TurnStatus::InProgress {
            assert_eq!(read.summary.status, TurnStatus::Completed);
            break;
        }
    }
    stranger.close().await;
    second.close().await;
    world.finish().await;
}

/// Requests about one thread on one connection run in the order in which they came.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_about_a_thread_keep_their_order() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    for _ in 0..20 {
        world.provider().push(Reply::stream().text("Half").hang());
        let start = TurnStartParams::new(thread.clone(), "Hi");
        let interrupt =
            raddle::protocol::turn::TurnInterruptParams { thread_id: thread.clone(), turn_id: None };
        // Sent without waiting: the interrupt is behind the start, so it stops that turn or cancels it.
        let started = client.send(ClientRequest::TurnStart(start)).await;
        let interrupted = client.send(ClientRequest::TurnInterrupt(interrupt)).await;
        client.answer_to::<method::TurnInterrupt>(&interrupted).await.unwrap();
        let answer = client.answer_to::<method::TurnStart>(&started).await.unwrap();
        if let Some(turn) = answer.turn_id {
            assert_eq!(client.end(&turn).await.summary.status, TurnStatus::Interrupted);
        }
        // Cancelled before the model was asked: the reply is for the next round.
        while world.provider().queued() > 0 {
            let turn = client.start(&thread, "Take it").await;
            client.turn_until(&turn, "half an answer", |turn| agent_text(turn) == "Half").await;
            client.interrupt(&thread, None).await.unwrap();
            client.end(&turn).await;
        }
    }
    world.finish().await;
}

/// Many threads at once, each with a tool and a text, from several clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_threads_do_not_mix() {
    let world = World::start().await;
    world.provider().set_default(|body| {
        let messages = body["messages"].as_array().unwrap();
        let said = messages.iter().rfind(|m| m["role"] == "user").unwrap()["content"].as_str().unwrap();
        match messages.last().unwrap()["role"].as_str() {
            Some("tool") => {
                let result = messages.last().unwrap()["content"].as_str().unwrap();
                Reply::stream().text(&format!("{said} got ")).text(result).stop()
            }
            _ => {
                let command = format!("echo {said}");
                Reply::stream()
                    .text("Asking. ")
                    .tool_call(0, "call_1", "bash", &json!({ "command": command }).to_string())
                    .finish("tool_calls")
                    .done()
            }
        }
    });
    let clients: Vec<Client> = [world.client().await, world.client().await].into();
    let mut running = Vec::new();
    for at in 0..30 {
        let client = &clients[at % 2];
        let thread = world.thread(client).await;
        let turn = client.start(&thread, &format!("thread-{at}")).await;
        running.push((client, turn, format!("Asking. thread-{at} got thread-{at}\n")));
    }
    for (client, turn, wanted) in running {
        assert_eq!(agent_text(&client.end(&turn).await), wanted);
    }
    world.finish().await;
}
