//! What a sceptical reviewer found in whole threads, each kind of it kept as a test.

use std::time::Duration;

use raddle::protocol::methods::{ClientRequest, ServerNotification, method};
use raddle::protocol::thread::{
    ThreadCompactParams, ThreadIdParams, ThreadListParams, ThreadReadParams, ThreadStartParams,
    UnsubscribeStatus,
};
use raddle::protocol::turn::{TurnInterruptParams, TurnQueueAddParams, TurnStartParams};
use raddle::protocol::{ErrorCode, ThreadId};
use raddle::{Options, Raddle};
use raddle_tests::{Client, Reply, World, user_texts};

fn named(thread: &ThreadId) -> ThreadIdParams {
    ThreadIdParams::from(thread.clone())
}

async fn is_archived(client: &Client, thread: &ThreadId) -> bool {
    let params = ThreadListParams { archived: Some(true), ..ThreadListParams::default() };
    let page = client.request::<method::ThreadList>(params).await.unwrap();
    page.threads.iter().any(|listed| listed.id == *thread)
}

/// An archive and a start (of another client) at once: whichever comes first, an archived thread runs no turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archived_thread_runs_no_turn() {
    let world = World::with_builtin("echo").await;
    let [client, other] = [world.client().await, world.client().await];
    let mut both = 0;
    for round in 0..100u64 {
        let thread = world.thread(&client).await;
        let archive = client.send(ClientRequest::ThreadArchive(named(&thread))).await;
        // Somewhere in the time that the archive takes.
        let until = std::time::Instant::now() + Duration::from_micros(round * 30);
        while std::time::Instant::now() < until {
            tokio::task::yield_now().await;
        }
        let start = other.send(ClientRequest::TurnStart(TurnStartParams::new(thread.clone(), "Hi"))).await;
        let archived = client.answer_to::<method::ThreadArchive>(&archive).await;
        let started = other.answer_to::<method::TurnStart>(&start).await;
        if let (Ok(_), Ok(started)) = (&archived, &started) {
            // The turn may have been whole before the archive came; then it was told before.
            let at = |wanted: &dyn Fn(&ServerNotification) -> bool| {
                other.notifications(|_| true).iter().position(|told| wanted(told))
            };
            other
                .seen(
                    "the archive",
                    |n| matches!(n, ServerNotification::ThreadArchived(n) if n.thread_id == thread),
                )
                .await;
            let archive =
                at(&|n| matches!(n, ServerNotification::ThreadArchived(n) if n.thread_id == thread));
            let turn = started.turn_id.clone().unwrap();
            other.end(&turn).await;
            let begin = at(&|n| matches!(n, ServerNotification::TurnStarted(n) if n.turn.id == turn));
            both += usize::from(begin > archive);
        }
    }
    assert_eq!(both, 0, "archived, and started all the same");
    world.finish().await;
}

/// The same with a compaction and an input for the queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archived_thread_gets_no_queue() {
    let world = World::with_builtin("echo").await;
    let [client, other] = [world.client().await, world.client().await];
    let (mut queued_too, mut compacted_too) = (0, 0);
    for round in 0..100u64 {
        let thread = world.thread(&client).await;
        if round % 2 == 0 {
            client.run(&thread, "Hello").await;
        }
        let archive = client.send(ClientRequest::ThreadArchive(named(&thread))).await;
        let until = std::time::Instant::now() + Duration::from_micros(round * 30);
        while std::time::Instant::now() < until {
            tokio::task::yield_now().await;
        }
        let id = match round % 2 {
            0 => {
                let params = ThreadCompactParams { thread_id: thread.clone(), instructions: None };
                other.send(ClientRequest::ThreadCompact(params)).await
            }
            _ => {
                other
                    .send(ClientRequest::TurnQueueAdd(TurnQueueAddParams::new(thread.clone(), "later")))
                    .await
            }
        };
        let archived = client.answer_to::<method::ThreadArchive>(&archive).await.is_ok();
        let other_answer = other.answers(&id, 1).await[0].is_ok();
        if archived && other_answer && is_archived(&client, &thread).await {
            // Whatever came first has to be over before the thread is told to be archived.
            client
                .seen(
                    "the archive",
                    |n| matches!(n, ServerNotification::ThreadArchived(n) if n.thread_id == thread),
                )
                .await;
            let told = client.notifications(|n| match n {
                ServerNotification::ThreadArchived(n) => n.thread_id == thread,
                ServerNotification::ThreadTurnCompleted(n) => n.thread_id == thread,
                _ => false,
            });
            let ended_before = told
                .iter()
                .take_while(|n| matches!(&***n, ServerNotification::ThreadTurnCompleted(_)))
                .count();
            match round % 2 {
                0 => compacted_too += usize::from(ended_before < 2),
                _ => queued_too += usize::from(ended_before < 1),
            }
        }
    }
    assert_eq!((compacted_too, queued_too), (0, 0), "(compacted, queued) although archived");
    world.finish().await;
}

/// A thread that nobody has loaded, and on which `later` waits to be said.
async fn unloaded_with_a_queue() -> (World, Client, ThreadId) {
    let mut world = World::start().await;
    let client = world.client().await;
    let (thread, _turn, _gate) = world.half_said(&client).await;
    client.request::<method::TurnQueueAdd>(TurnQueueAddParams::new(thread.clone(), "later")).await.unwrap();
    // A shutdown ends the turn; what waits stays.
    world.raddle().close().await;
    world.reopen().await;
    world.provider().set_default(|_| Reply::says("Later."));
    let client = world.client().await;
    (world, client, thread)
}

/// What an interrupt drops it drops whether the thread is loaded or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_of_an_unloaded_thread_drops_its_queue() {
    let (world, client, thread) = unloaded_with_a_queue().await;
    client
        .request::<method::TurnInterrupt>(TurnInterruptParams { thread_id: thread.clone(), turn_id: None })
        .await
        .unwrap();
    let resumed = client.resume(&thread).await;
    assert!(resumed.queue.follow_up.is_empty(), "the interrupt said `{{}}`, and the queue is still there");
    client.run(&thread, "Now").await;
    let turns = client.read_all(&thread, 50).await;
    assert!(!turns.iter().any(|turn| user_texts(turn) == ["later"]), "a dropped input ran");
    world.finish().await;
}

/// One that archives an unloaded thread with a queue is told the same as one that archives a loaded one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unloaded_thread_with_a_queue_is_not_archived() {
    let (world, client, thread) = unloaded_with_a_queue().await;
    let refused = client.request::<method::ThreadArchive>(named(&thread)).await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::TurnInProgress);
    world.finish().await;
}

/// Whoever wants to stop a turn of another process is told that it is another's, not that all is well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_a_turn_of_another_process_is_not_interrupted_without_a_word() {
    let world = World::start().await;
    let client = world.client().await;
    let (thread, turn, _gate) = world.half_said(&client).await;
    let second = Raddle::open(world.options()).await.unwrap();
    let stranger = world.client_of(second.server()).await;
    for turn_id in [None, Some(&turn)] {
        let refused = stranger.interrupt(&thread, turn_id).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::ThreadLockedElsewhere);
    }
    let refused = stranger.steer(&thread, &turn, "Mine").await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::ThreadLockedElsewhere);
    let gone = stranger.request::<method::ThreadUnsubscribe>(named(&thread)).await;
    assert_eq!(gone.unwrap().status, UnsubscribeStatus::NotSubscribed);
    client.interrupt(&thread, Some(&turn)).await.unwrap();
    client.end(&turn).await;
    stranger.close().await;
    second.close().await;
    world.finish().await;
}

/// What a model nests too deeply is not run, and its thread can be read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_deeply_nested_arguments_leave_the_thread_readable() {
    let mut world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    for depth in [60, 63, 64, 100, 126] {
        let deep = format!("{{\"path\":\".\",\"x\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        let call = Reply::stream().tool_call(0, &"c".repeat(5_000), "ls", &deep).finish("tool_calls").done();
        world.provider().push(call);
        world.provider().push(Reply::says("Well."));
        client.run(&thread, "Look").await;
    }
    let turns = client.read_all(&thread, 50).await;
    assert_eq!(turns.len(), 5);
    assert!(turns.iter().flat_map(|turn| &turn.items).all(|item| item.id.as_str().len() < 256));
    world.reopen().await;
    assert_eq!(world.client().await.resume(&thread).await.turns.len(), 5);
    world.finish().await;
}

/// Texts that a client chooses are bounded, and errors repeat only so much of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_tokens_and_errors_are_bounded() {
    let world = World::with_builtin("echo").await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let long =
        TurnStartParams { request_id: Some("r".repeat(1_025)), ..TurnStartParams::new(thread.clone(), "Hi") };
    assert_eq!(client.request::<method::TurnStart>(long).await.unwrap_err().code, ErrorCode::InvalidParams);
    let nobody = ThreadId::from("t".repeat(100_000));
    let unknown = client.request::<method::ThreadUnarchive>(named(&nobody)).await.unwrap_err();
    assert_eq!(unknown.code, ErrorCode::ThreadNotFound);
    assert!(unknown.message.len() <= 4_000, "{} bytes", unknown.message.len());
    world.finish().await;
}

/// A load that fails gives back the ownership that it took first: another process may at least put the thread away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_a_load_that_fails_keeps_no_thread() {
    let world = World::with_builtin("echo").await;
    let broken = world.home().with_file_name("broken");
    let options = || Options { home: Some(broken.clone()), ..world.options() };
    let first = Raddle::open(options()).await.unwrap();
    let client = first.client("first", "1").await.unwrap();
    let params = ThreadStartParams { cwd: world.cwd(), ..ThreadStartParams::default() };
    let thread = client.request::<method::ThreadStart>(params).await.unwrap().thread.id;
    let mut told = client.notifications();
    client.request::<method::TurnStart>(TurnStartParams::new(thread.clone(), "Hi")).await.unwrap();
    while !matches!(told.next().await, Some(ServerNotification::TurnCompleted(_))) {}
    first.close().await;
    let database = rusqlite::Connection::open(broken.join("raddle.db")).unwrap();
    let end = raddle::protocol::EventKind::TurnCompleted as u8;
    assert_eq!(database.execute("UPDATE event SET body = x'00' WHERE kind = ?1", [end]).unwrap(), 1);
    drop(database);
    let [first, second] = [Raddle::open(options()).await.unwrap(), Raddle::open(options()).await.unwrap()];
    let resume = ThreadReadParams::newest(thread.clone());
    let failed =
        first.client("one", "1").await.unwrap().request::<method::ThreadResume>(resume).await.unwrap_err();
    assert_eq!((failed.code(), failed.reason()), (Some(&ErrorCode::Internal), Some("corrupt")));
    second.client("two", "1").await.unwrap().request::<method::ThreadArchive>(named(&thread)).await.unwrap();
    first.close().await;
    second.close().await;
    world.finish().await;
}
