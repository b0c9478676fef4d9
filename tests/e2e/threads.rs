//! What can be done to a whole thread: started with an id of one's own, named, put away, deleted, forked, rewound.

use raddle::Raddle;
use raddle::protocol::methods::{ClientRequest, ServerNotification, method};
use raddle::protocol::thread::{
    ApprovalMode, Thread, ThreadCompactParams, ThreadForkParams, ThreadIdParams, ThreadListParams,
    ThreadNameSetParams, ThreadReadParams, ThreadRewindParams, ThreadSettingsUpdateParams, ThreadStartParams,
    ThreadStatus, UnsubscribeStatus,
};
use raddle::protocol::turn::{
    SendMode, TurnQueueAddParams, TurnQueueRemoveParams, TurnSendParams, TurnStartParams,
};
use raddle::protocol::{ErrorCode, ModelRef, RpcError, ThreadId, TurnId};
use raddle_tests::{Client, Gate, Reply, Setup, World, agent_text, user_texts};

fn named(thread: &ThreadId) -> ThreadIdParams {
    ThreadIdParams::from(thread.clone())
}

async fn archive(client: &Client, thread: &ThreadId) {
    client.request::<method::ThreadArchive>(named(thread)).await.unwrap();
}

async fn fork_at(client: &Client, thread: &ThreadId, turn: Option<&TurnId>) -> Result<Thread, RpcError> {
    let params = ThreadForkParams {
        thread_id: thread.clone(),
        turn_id: turn.cloned(),
        new_thread_id: None,
        replace: false,
    };
    client.request::<method::ThreadFork>(params).await.map(|forked| forked.thread)
}

async fn rewind(client: &Client, thread: &ThreadId, turn: &TurnId) -> Result<(), RpcError> {
    let params = ThreadRewindParams { thread_id: thread.clone(), turn_id: turn.clone() };
    client.request::<method::ThreadRewind>(params).await.map(drop)
}

async fn list(client: &Client, archived: bool) -> Vec<ThreadId> {
    let params = ThreadListParams { archived: Some(archived), ..ThreadListParams::default() };
    let page = client.request::<method::ThreadList>(params).await.unwrap();
    page.threads.into_iter().map(|thread| thread.id).collect()
}

async fn ask(world: &World, client: &Client, thread: &ThreadId, text: &str) -> TurnId {
    world.provider().push(Reply::says(&format!("Answer to {text}")));
    client.run(thread, text).await.summary.id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_starts_with_the_callers_id_and_settings() {
    let world = World::start().await;
    let client = world.client().await;
    let params = ThreadStartParams {
        cwd: world.cwd(),
        thread_id: Some("my thread/7".into()),
        approval_mode: Some(ApprovalMode::FullAccess),
        instructions: Some("Answer in verse.".to_owned()),
        name: Some("  Weaving  ".to_owned()),
        ..ThreadStartParams::default()
    };
    let thread = client.request::<method::ThreadStart>(params.clone()).await.unwrap().thread;
    assert_eq!(thread.id.as_str(), "my thread/7");
    assert_eq!(
        (thread.name.as_deref(), thread.settings.approval_mode),
        (Some("Weaving"), ApprovalMode::FullAccess)
    );
    // Loaded or not, the id is taken.
    let again = client.request::<method::ThreadStart>(params.clone()).await.unwrap_err();
    assert_eq!((&again.code, again.reason()), (&ErrorCode::InvalidParams, Some("threadExists")));
    world.provider().push(Reply::says("Verse."));
    client.run(&thread.id, "Hi").await;
    let system = world.provider().request(0).await.messages()[0]["content"].as_str().unwrap().to_owned();
    assert!(system.ends_with("Answer in verse."), "{system}");
    for bad in ["", " a", "a\n", &"x".repeat(129)] {
        let params = ThreadStartParams { thread_id: Some(bad.into()), ..params.clone() };
        let refused = client.request::<method::ThreadStart>(params).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidParams, "{bad:?}");
    }
    // Instructions can be taken away again.
    let update = ThreadSettingsUpdateParams {
        instructions: Some(String::new()),
        ..ThreadSettingsUpdateParams::new(thread.id.clone())
    };
    let settings = client.request::<method::ThreadSettingsUpdate>(update).await.unwrap().settings;
    assert_eq!(settings.instructions, None);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r18_an_id_that_was_given_out_can_be_used_for_everything() {
    let mut world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.reopen().await;
    let client = world.client().await;
    assert_eq!(list(&client, false).await, std::slice::from_ref(&thread));
    assert!(client.read(&thread).await.turns.is_empty());
    assert!(client.resume(&thread).await.turns.is_empty());
    let fork = fork_at(&client, &thread, None).await.unwrap();
    assert_eq!((fork.forked_from_id, fork.name), (Some(thread.clone()), None), "there is no name to derive");
    archive(&client, &thread).await;
    client.request::<method::ThreadDelete>(named(&thread)).await.unwrap();
    assert_eq!(
        client.request::<method::ThreadRead>(ThreadReadParams::newest(thread)).await.unwrap_err().code,
        ErrorCode::ThreadNotFound
    );
    ask(&world, &client, &fork.id, "go on").await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_told_to_everybody_loaded_or_not() {
    let world = Setup { unload_after: Some(std::time::Duration::ZERO), ..Setup::default() }.start().await;
    let client = world.client().await;
    let other = world.client().await;
    let thread = world.thread(&client).await;
    let name =
        |name: Option<&str>| ThreadNameSetParams { thread_id: thread.clone(), name: name.map(str::to_owned) };
    client.request::<method::ThreadNameSet>(name(Some("Loaded"))).await.unwrap();
    client.request::<method::ThreadUnsubscribe>(named(&thread)).await.unwrap();
    other
        .view_until("the thread to be unloaded", |view| {
            (view.status(&thread) == Some(&ThreadStatus::NotLoaded)).then_some(())
        })
        .await;
    client.request::<method::ThreadNameSet>(name(Some("Unloaded"))).await.unwrap();
    assert_eq!(client.read(&thread).await.thread.name.as_deref(), Some("Unloaded"));
    assert_eq!(client.read(&thread).await.thread.status, ThreadStatus::NotLoaded, "a name needs no load");
    client.request::<method::ThreadNameSet>(name(Some(" "))).await.unwrap();
    assert_eq!(client.read(&thread).await.thread.name, None);
    other
        .seen(
            "the name to be gone",
            |n| matches!(n, ServerNotification::ThreadNameUpdated(n) if n.name.is_none()),
        )
        .await;
    let told: Vec<_> = other
        .notifications(|_| true)
        .iter()
        .filter_map(|n| match &**n {
            ServerNotification::ThreadNameUpdated(n) => Some(n.name.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(told, [Some("Loaded".to_owned()), Some("Unloaded".to_owned()), None]);
    let long = client.request::<method::ThreadNameSet>(name(Some(&"x".repeat(201)))).await.unwrap_err();
    assert_eq!(long.code, ErrorCode::InvalidParams);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archived_thread_can_be_read_and_nothing_else() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let turn = ask(&world, &client, &thread, "one").await;
    archive(&client, &thread).await;
    archive(&client, &thread).await;
    client.seen("the archival", |n| matches!(n, ServerNotification::ThreadArchived(_))).await;
    assert_eq!(list(&client, false).await, []);
    assert_eq!(list(&client, true).await, std::slice::from_ref(&thread));
    let read = client.read(&thread).await;
    assert!(read.thread.archived);
    assert_eq!(read.turns[0].summary.id, turn);
    let refused = client.start_refused(&thread, "two").await;
    assert_eq!((&refused.code, refused.reason()), (&ErrorCode::InvalidParams, Some("archived")));
    let refused =
        client.request::<method::ThreadResume>(ThreadReadParams::newest(thread.clone())).await.unwrap_err();
    assert_eq!((&refused.code, refused.reason()), (&ErrorCode::InvalidParams, Some("archived")));
    let fork = fork_at(&client, &thread, None).await.unwrap();
    assert!(!fork.archived);
    client.request::<method::ThreadUnarchive>(named(&thread)).await.unwrap();
    client.request::<method::ThreadUnarchive>(named(&thread)).await.unwrap();
    client.seen("the thread to be back", |n| matches!(n, ServerNotification::ThreadUnarchived(_))).await;
    assert_eq!(client.notifications(|n| matches!(n, ServerNotification::ThreadUnarchived(_))).len(), 1);
    assert_eq!(client.notifications(|n| matches!(n, ServerNotification::ThreadArchived(_))).len(), 1);
    ask(&world, &client, &thread, "two").await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_that_are_sent_at_once_happen_one_after_the_other() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    ask(&world, &client, &thread, "one").await;
    for round in 0..20 {
        let name = ThreadNameSetParams { thread_id: thread.clone(), name: Some(format!("round {round}")) };
        let settings = ThreadSettingsUpdateParams {
            approval_mode: Some(ApprovalMode::FullAccess),
            ..ThreadSettingsUpdateParams::new(thread.clone())
        };
        let named_id = client.send(ClientRequest::ThreadNameSet(name)).await;
        let set = client.send(ClientRequest::ThreadSettingsUpdate(settings)).await;
        let archived = client.send(ClientRequest::ThreadArchive(named(&thread))).await;
        let back = client.send(ClientRequest::ThreadUnarchive(named(&thread))).await;
        client.answer_to::<method::ThreadNameSet>(&named_id).await.unwrap();
        client.answer_to::<method::ThreadSettingsUpdate>(&set).await.unwrap();
        client.answer_to::<method::ThreadArchive>(&archived).await.unwrap();
        client.answer_to::<method::ThreadUnarchive>(&back).await.unwrap();
    }
    let read = client.read(&thread).await.thread;
    assert_eq!((read.name.as_deref(), read.archived), (Some("round 19"), false));
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_thread_is_neither_archived_nor_deleted() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let gate = Gate::new();
    world.provider().push(Reply::stream().text("Half").wait(&gate).text(" whole").stop());
    let turn = client.start(&thread, "Hi").await;
    let busy = client.request::<method::ThreadArchive>(named(&thread)).await.unwrap_err();
    assert_eq!(busy.code, ErrorCode::TurnInProgress);
    let busy = client.request::<method::ThreadDelete>(named(&thread)).await.unwrap_err();
    assert_eq!(busy.code, ErrorCode::TurnInProgress);
    let busy = rewind(&client, &thread, &turn).await.unwrap_err();
    assert_eq!(busy.code, ErrorCode::TurnInProgress);
    gate.open();
    assert_eq!(agent_text(&client.end(&turn).await), "Half whole", "the subscription is still there");
    let refused = client.request::<method::ThreadDelete>(named(&thread)).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::ThreadNotArchived);
    ask(&world, &client, &thread, "again").await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_thread_is_gone_and_its_forks_stay() {
    let mut world = World::start().await;
    let client = world.client().await;
    let other = world.client().await;
    let thread = world.thread(&client).await;
    let first = ask(&world, &client, &thread, "one").await;
    ask(&world, &client, &thread, "two").await;
    let fork = fork_at(&client, &thread, Some(&first)).await.unwrap().id;
    archive(&client, &thread).await;
    client.request::<method::ThreadDelete>(named(&thread)).await.unwrap();
    other
        .seen("the deletion", |n| matches!(n, ServerNotification::ThreadDeleted(n) if n.thread_id == thread))
        .await;
    for gone in [
        client.request::<method::ThreadRead>(ThreadReadParams::newest(thread.clone())).await.map(drop),
        client.request::<method::ThreadResume>(ThreadReadParams::newest(thread.clone())).await.map(drop),
        client.request::<method::ThreadUnarchive>(named(&thread)).await.map(drop),
        client.request::<method::ThreadDelete>(named(&thread)).await.map(drop),
        client.request::<method::ThreadUnsubscribe>(named(&thread)).await.map(drop),
    ] {
        assert_eq!(gone.unwrap_err().code, ErrorCode::ThreadNotFound);
    }
    assert_eq!(list(&client, true).await, []);
    world.reopen().await;
    let client = world.client().await;
    let turns = client.resume(&fork).await.turns;
    assert_eq!((turns.len(), &turns[0].summary.id), (1, &first));
    assert_eq!(turns[0].summary.thread_id, thread, "it was run by a thread that is no more");
    ask(&world, &client, &fork, "on").await;
    let request = world.provider().request(2).await;
    assert_eq!(request.messages().len(), 4, "system, one, its answer, on");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_shares_turns_and_goes_its_own_way() {
    let world = World::start().await;
    let client = world.client().await;
    let watcher = world.client().await;
    let thread = world.thread(&client).await;
    let first = ask(&world, &client, &thread, "one").await;
    let second = ask(&world, &client, &thread, "two").await;
    let fork = fork_at(&client, &thread, Some(&first)).await.unwrap();
    assert_eq!(fork.name.as_deref(), Some("one (fork)"), "the derived title of the source");
    assert_eq!(fork.forked_from_id.as_ref(), Some(&thread));
    watcher.view_until("the fork to be told", |view| view.is_started(&fork.id).then_some(())).await;
    let third = ask(&world, &client, &fork.id, "three").await;
    let ids = |turns: &[raddle::protocol::Turn]| {
        turns.iter().map(|turn| turn.summary.id.clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&client.read(&fork.id).await.turns), [first.clone(), third]);
    assert_eq!(ids(&client.read(&thread).await.turns), [first, second.clone()]);
    let head = fork_at(&client, &thread, None).await.unwrap();
    assert_eq!(ids(&client.read(&head.id).await.turns).last(), Some(&second));
    let usage = client.resume(&head.id).await.usage;
    assert_eq!(usage, client.resume(&thread).await.usage, "a fork begins with the totals of its branch");
    let unknown = fork_at(&client, &thread, Some(&"nothing".into())).await.unwrap_err();
    assert_eq!((&unknown.code, unknown.reason()), (&ErrorCode::InvalidParams, Some("unknownTurn")));
    let foreign = fork_at(&client, &fork.id, Some(&second)).await.unwrap_err();
    assert_eq!(foreign.reason(), Some("unknownTurn"), "a turn of another branch");
    // Named, the name counts; and a fork of a fork says so twice.
    let again = fork_at(&client, &fork.id, None).await.unwrap();
    assert_eq!(again.name.as_deref(), Some("one (fork) (fork)"));
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_turn_is_not_part_of_a_fork() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let first = ask(&world, &client, &thread, "one").await;
    let gate = Gate::new();
    world.provider().push(Reply::stream().text("Half").wait(&gate).text(" whole").stop());
    let running = client.start(&thread, "two").await;
    client.turn_until(&running, "half", |turn| agent_text(turn) == "Half").await;
    let fork = fork_at(&client, &thread, None).await.unwrap();
    let turns = client.read(&fork.id).await.turns;
    assert_eq!((turns.len(), &turns[0].summary.id), (1, &first));
    let refused = fork_at(&client, &thread, Some(&running)).await.unwrap_err();
    assert_eq!(refused.reason(), Some("turnNotEnded"));
    let busy =
        ThreadForkParams { thread_id: thread.clone(), turn_id: None, new_thread_id: None, replace: true };
    let busy = client.request::<method::ThreadFork>(busy).await.unwrap_err();
    assert_eq!(busy.code, ErrorCode::TurnInProgress);
    gate.open();
    client.end(&running).await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_that_replaces_takes_everybody_along() {
    let world = World::start().await;
    let client = world.client().await;
    let watcher = world.client().await;
    let thread = world.thread(&client).await;
    let first = ask(&world, &client, &thread, "one").await;
    ask(&world, &client, &thread, "two").await;
    watcher.resume(&thread).await;
    let params = ThreadForkParams {
        thread_id: thread.clone(),
        turn_id: Some(first),
        new_thread_id: Some("redone".into()),
        replace: true,
    };
    let fork = client.request::<method::ThreadFork>(params).await.unwrap().thread;
    assert_eq!(fork.id.as_str(), "redone");
    let replaced = watcher.seen("to be moved", |n| matches!(n, ServerNotification::ThreadReplaced(_))).await;
    let ServerNotification::ThreadReplaced(replaced) = &*replaced else { unreachable!() };
    assert_eq!((&replaced.thread_id, &replaced.thread.id), (&thread, &fork.id));
    watcher.resume(&fork.id).await;
    world.provider().push(Reply::says("Two, better."));
    let turn = client.start(&fork.id, "two, again").await;
    client.end(&turn).await;
    assert_eq!(agent_text(&watcher.end(&turn).await), "Two, better.");
    // Nobody watches the old one any more.
    let gone = client.request::<method::ThreadUnsubscribe>(named(&thread)).await.unwrap();
    assert_eq!(gone.status, UnsubscribeStatus::NotSubscribed);
    let there = watcher.request::<method::ThreadUnsubscribe>(named(&fork.id)).await.unwrap();
    assert_eq!(there.status, UnsubscribeStatus::Unsubscribed);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rewind_takes_later_turns_off_the_branch() {
    let mut world = World::start().await;
    let client = world.client().await;
    let watcher = world.client().await;
    let thread = world.thread(&client).await;
    watcher.resume(&thread).await;
    let first = ask(&world, &client, &thread, "one").await;
    let usage = client.resume(&thread).await.usage;
    let second = ask(&world, &client, &thread, "two").await;
    ask(&world, &client, &thread, "three").await;
    let params = ThreadReadParams { limit: Some(1), ..ThreadReadParams::newest(thread.clone()) };
    let cursor = client.request::<method::ThreadRead>(params).await.unwrap().next_cursor.unwrap();
    rewind(&client, &thread, &first).await.unwrap();
    watcher
        .seen("the rewind", |n| matches!(n, ServerNotification::ThreadRewound(n) if n.usage == usage))
        .await;
    let read = client.read(&thread).await;
    assert_eq!((read.turns.len(), &read.turns[0].summary.id), (1, &first));
    assert_eq!(client.resume(&thread).await.usage, usage);
    let diverged = ThreadReadParams { cursor: Some(cursor), ..ThreadReadParams::newest(thread.clone()) };
    let diverged = client.request::<method::ThreadRead>(diverged).await.unwrap_err();
    assert_eq!(diverged.code, ErrorCode::InvalidCursor, "its turn left the branch");
    let gone = rewind(&client, &thread, &second).await.unwrap_err();
    assert_eq!((&gone.code, gone.reason()), (&ErrorCode::InvalidParams, Some("unknownTurn")));
    // To where it is already: nothing to do.
    rewind(&client, &thread, &first).await.unwrap();
    assert_eq!(watcher.notifications(|n| matches!(n, ServerNotification::ThreadRewound(_))).len(), 1);
    world.provider().push(Reply::says("Instead."));
    let turn = client.run(&thread, "instead").await;
    assert_eq!(user_texts(&turn), ["instead"]);
    let request = world.provider().request(3).await;
    let said: Vec<_> =
        request.messages()[1..].iter().map(|m| m["content"].as_str().unwrap().to_owned()).collect();
    assert_eq!(said, ["one", "Answer to one", "instead"]);
    world.reopen().await;
    let client = world.client().await;
    // On a thread that is not loaded, too: here it is where it was.
    rewind(&client, &thread, &turn.summary.id).await.unwrap();
    assert_eq!(client.resume(&thread).await.turns.len(), 2);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unsubscribed_client_hears_no_more_of_the_thread() {
    let world = World::start().await;
    let client = world.client().await;
    let other = world.client().await;
    let thread = world.thread(&client).await;
    other.resume(&thread).await;
    let ended = other.request::<method::ThreadUnsubscribe>(named(&thread)).await.unwrap();
    assert_eq!(ended.status, UnsubscribeStatus::Unsubscribed);
    let again = other.request::<method::ThreadUnsubscribe>(named(&thread)).await.unwrap();
    assert_eq!(again.status, UnsubscribeStatus::NotSubscribed);
    let turn = ask(&world, &client, &thread, "one").await;
    other.view_until("the turn to be told", |view| view.told(&turn).cloned()).await;
    assert!(other.notifications(|n| matches!(n, ServerNotification::TurnStarted(_))).is_empty());
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_beside_a_change_of_an_unloaded_thread_waits_for_it() {
    let world = Setup { unload_after: Some(std::time::Duration::ZERO), ..Setup::default() }.start().await;
    let client = world.client().await;
    let others = [world.client().await, world.client().await];
    let thread = world.thread(&client).await;
    for round in 0..20 {
        client.request::<method::ThreadUnsubscribe>(named(&thread)).await.unwrap();
        let name = ThreadNameSetParams { thread_id: thread.clone(), name: Some(format!("round {round}")) };
        let (renamed, resumed, settings) = tokio::join!(
            client.request::<method::ThreadNameSet>(name),
            others[0].request::<method::ThreadResume>(ThreadReadParams::newest(thread.clone())),
            others[1].request::<method::ThreadSettingsUpdate>(ThreadSettingsUpdateParams {
                model: Some(ModelRef::new("builtin", "echo")),
                ..ThreadSettingsUpdateParams::new(thread.clone())
            }),
        );
        renamed.unwrap();
        resumed.unwrap();
        settings.unwrap();
        client.run(&thread, &format!("round {round}")).await;
        others[0].request::<method::ThreadUnsubscribe>(named(&thread)).await.unwrap();
    }
    assert_eq!(client.read(&thread).await.thread.name.as_deref(), Some("round 19"));
    world.finish().await;
}

/// One of each request that needs a thread's ownership.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_a_thread_of_another_process_can_be_read_and_forked_and_nothing_else() {
    let world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let turn = ask(&world, &client, &thread, "one").await;
    let second = Raddle::open(world.options()).await.unwrap();
    let stranger = world.client_of(second.server()).await;
    let start = || TurnStartParams::new(thread.clone(), "mine");
    let queue = TurnQueueAddParams::new(thread.clone(), "mine");
    let unqueue = TurnQueueRemoveParams { thread_id: thread.clone(), queue_id: "q".to_owned() };
    let send = TurnSendParams { start: start(), mode: SendMode::Auto, idempotency_key: None };
    let name = ThreadNameSetParams { thread_id: thread.clone(), name: Some("mine".to_owned()) };
    let compact = ThreadCompactParams { thread_id: thread.clone(), instructions: None };
    for refused in [
        stranger.request::<method::ThreadResume>(ThreadReadParams::newest(thread.clone())).await.map(drop),
        stranger
            .request::<method::ThreadSettingsUpdate>(ThreadSettingsUpdateParams::new(thread.clone()))
            .await
            .map(drop),
        stranger.request::<method::ThreadNameSet>(name).await.map(drop),
        stranger.request::<method::ThreadArchive>(named(&thread)).await.map(drop),
        stranger.request::<method::ThreadUnarchive>(named(&thread)).await.map(drop),
        stranger.request::<method::ThreadDelete>(named(&thread)).await.map(drop),
        stranger.request::<method::ThreadCompact>(compact).await.map(drop),
        rewind(&stranger, &thread, &turn).await,
        stranger.request::<method::TurnStart>(start()).await.map(drop),
        stranger.request::<method::TurnSend>(send).await.map(drop),
        stranger.request::<method::TurnQueueAdd>(queue).await.map(drop),
        stranger.request::<method::TurnQueueRemove>(unqueue).await.map(drop),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.code, ErrorCode::ThreadLockedElsewhere);
        assert_eq!(error.data.unwrap()["pid"], std::process::id());
    }
    let steer = stranger.steer(&thread, &turn, "mine").await.unwrap_err();
    assert_eq!(steer.code, ErrorCode::TurnMismatch, "nothing of it runs in this process");
    assert_eq!(stranger.read(&thread).await.turns.len(), 1);
    let fork = fork_at(&stranger, &thread, None).await.unwrap();
    assert_eq!(stranger.read(&fork.id).await.turns.len(), 1);
    // Once it is let go, anybody may have it.
    archive(&client, &thread).await;
    stranger.request::<method::ThreadUnarchive>(named(&thread)).await.unwrap();
    world.provider().push(Reply::says("Two."));
    stranger.run(&thread, "two").await;
    stranger.close().await;
    second.close().await;
    world.finish().await;
}
