//! Closing: in the middle of things, with requests open; and homes that cannot be opened.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use raddle::protocol::approval::Decision;
use raddle::protocol::methods::{ClientRequest, ServerNotification, method};
use raddle::protocol::model::ModelListParams;
use raddle::protocol::thread::ApprovalMode;
use raddle::protocol::turn::TurnStartParams;
use raddle::protocol::{ErrorCode, ItemKind, ItemStatus, TurnStatus};
use raddle::{OpenError, Options, Raddle};
use raddle_tests::{Closed, Gate, Reply, Setup, World, agent_text, call, calls};
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_in_the_middle_of_a_text() {
    let mut world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    world.provider().push(Reply::stream().reasoning("Hm.").text("Half").hang());
    let turn = client.start(&thread, "Hi").await;
    client.turn_until(&turn, "half an answer", |turn| agent_text(turn) == "Half").await;
    world.reopen().await;
    // The client was told the end before its connection ended.
    let ended = client.view(|view| view.turn(&turn).cloned()).unwrap();
    assert_eq!((ended.summary.status, agent_text(&ended).as_str()), (TurnStatus::Interrupted, "Half"));
    assert!(ended.summary.completed_at.is_some(), "an end was written");
    assert_eq!(ended.items.last().unwrap().status, ItemStatus::Interrupted);
    world.provider().disconnected(0).await;

    let client = world.client().await;
    assert_eq!(client.read(&thread).await.turns, std::slice::from_ref(&ended));
    assert_eq!(client.resume(&thread).await.turns, [ended]);
    world.provider().push(Reply::says("Going on."));
    client.run(&thread, "Go on").await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_while_a_command_runs() {
    let mut world = World::start().await;
    let client = world.client().await;
    let thread = world.thread(&client).await;
    let command = "echo $$; sleep 1000 & wait";
    world.provider().push(Reply::calls(&[
        ("c1", "bash", json!({ "command": command })),
        ("c2", "bash", json!({ "command": "touch never" })),
    ]));
    let turn = client.start(&thread, "Wait").await;
    let running = client
        .turn_until(&turn, "the command's output", |turn| {
            calls(turn).iter().any(|item| match &item.kind {
                ItemKind::ToolCall { output: Some(output), .. } => output.as_str().ends_with('\n'),
                _ => false,
            })
        })
        .await;
    let pid = call(&running, "c1").1.trim().to_owned();
    world.reopen().await;
    if cfg!(target_os = "linux") {
        let stat = std::fs::read_to_string(Path::new("/proc").join(&pid).join("stat"));
        assert!(stat.is_err() || stat.unwrap().contains(") Z"), "process {pid} is left");
    }
    let client = world.client().await;
    let turns = client.resume(&thread).await.turns;
    assert_eq!(turns[0].summary.status, TurnStatus::Interrupted);
    assert_eq!(call(&turns[0], "c1").0.status, ItemStatus::Interrupted);
    assert_eq!(call(&turns[0], "c2").0.status, ItemStatus::Interrupted);
    assert!(!world.project().join("never").exists());
    // Every call has its result in the next request; the provider refuses anything else.
    world.provider().push(Reply::says("Going on."));
    client.run(&thread, "Go on").await;
    world.finish().await;
}

/// Case R26 (d), without the kill: the question is gone with its process, and an old answer decides nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r26_closed_while_a_question_is_open() {
    let mut world = World::start().await;
    let client = world.client().await;
    let thread = world.thread_with(&client, ApprovalMode::Ask).await;
    world.provider().push(Reply::calls(&[("c", "bash", json!({ "command": "touch x" }))]));
    let turn = client.start(&thread, "Touch x").await;
    let ask = client.asked(0).await;
    world.reopen().await;
    let ended = client.view(|view| view.turn(&turn).cloned()).unwrap();
    assert_eq!(ended.summary.status, TurnStatus::Interrupted);
    let withdrawn = client.notifications(|n| matches!(n, ServerNotification::ServerRequestCancelled(_)));
    assert_eq!(withdrawn.len(), 1);

    let client = world.client().await;
    let resumed = client.resume(&thread).await;
    assert_eq!(call(&resumed.turns[0], "c").0.status, ItemStatus::Interrupted);
    client.decide(&ask, Decision::Accept).await;
    world.provider().push(Reply::says("Going on."));
    client.run(&thread, "Go on").await;
    assert!(client.asks().is_empty());
    assert!(!world.project().join("x").exists());
    world.finish().await;
}

/// Requests that are open when the engine closes are answered; what comes later is refused. Holds: P4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p4_open_requests_are_answered_at_the_close() {
    let mut world = Setup { models: Vec::new(), ..Setup::default() }.start().await;
    let gate = Gate::new();
    world.provider().set_models(Reply::stream().wait(&gate).cut());
    let client = world.client().await;
    let thread = world.thread(&client).await;
    // A start that still looks for its model, one behind it, and a list that waits for the same provider.
    let start = || ClientRequest::TurnStart(TurnStartParams::new(thread.clone(), "Hi"));
    let open = [
        client.send(start()).await,
        client.send(start()).await,
        client.send(ClientRequest::ModelList(ModelListParams {})).await,
    ];
    world.provider().list_request(0).await;
    world.reopen().await;
    for (at, id) in open.iter().enumerate() {
        let answers = client.answers(id, 1).await;
        let code = answers[0].as_ref().unwrap_err().code.clone();
        // The second start is refused for the first one's sake, if it came to that.
        assert!(code == ErrorCode::ShuttingDown || at == 1 && code == ErrorCode::TurnInProgress, "{code}");
    }
    assert_eq!(client.try_request::<method::ModelList>(ModelListParams {}).await.unwrap_err(), Closed);
    gate.open();
    world.provider().set_models(Reply::models(&["fake-model"]));
    let client = world.client().await;
    world.provider().push(Reply::says("Hello."));
    client.run(&thread, "Hi").await;
    world.finish().await;
}

/// Closing is quick and complete with many threads in the middle of things.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_threads_are_closed_at_once() {
    let mut world = World::start().await;
    world.provider().set_default(|_| Reply::stream().text("Half").hang());
    let client = world.client().await;
    let mut turns = Vec::new();
    for _ in 0..20 {
        let thread = world.thread(&client).await;
        let turn = client.start(&thread, "Hi").await;
        turns.push((thread, turn));
    }
    for (_, turn) in &turns {
        client.turn_until(turn, "half an answer", |turn| agent_text(turn) == "Half").await;
    }
    world.reopen().await;
    let reader = world.client().await;
    for (thread, turn) in &turns {
        let read = reader.read(thread).await.turns;
        assert_eq!(read[0].summary.status, TurnStatus::Interrupted);
        assert_eq!(client.view(|view| view.turn(turn).cloned()).unwrap(), read[0]);
    }
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_twice_and_talking_after() {
    let mut world = World::start().await;
    let client = world.client().await;
    let raddle = world.raddle().clone();
    raddle.close().await;
    raddle.close().await;
    client.ended().await;
    let error = raddle.client("late", "1.0").await.err().unwrap();
    assert!(
        error.code() == Some(&ErrorCode::ShuttingDown) || error == raddle::ClientError::Closed,
        "{error}"
    );
    world.reopen().await;
    world.finish().await;
}

async fn refused(home: &Path) -> OpenError {
    let models = raddle::engine::models::Models::new(Default::default());
    let opened = Raddle::open(Options { models: Some(models), ..Options::in_home(home) }).await;
    let error = opened.err().unwrap();
    assert_eq!(*error.code(), ErrorCode::Internal);
    error
}

/// Everything in a directory, to see that nothing has changed.
fn contents(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .map(|path| (path.display().to_string(), std::fs::read(&path).unwrap()))
        .collect();
    files.sort();
    files
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn homes_that_cannot_be_opened_are_left_as_they_are() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    std::fs::write(&file, "not a directory").unwrap();
    assert_eq!(refused(&file).await.reason(), Some("notWritable"));
    assert_eq!(refused(&file.join("below")).await.reason(), Some("notWritable"));

    let home = place.path().join("garbage");
    std::fs::create_dir(&home).unwrap();
    std::fs::write(home.join("raddle.db"), "this is no database, and it is long enough to tell".repeat(20))
        .unwrap();
    let before = contents(&home);
    assert_eq!(refused(&home).await.reason(), Some("notADatabase"));
    assert_eq!(contents(&home), before);

    let home = place.path().join("directory");
    std::fs::create_dir_all(home.join("raddle.db")).unwrap();
    assert_eq!(refused(&home).await.reason(), Some("notADatabase"));
}

/// A home with a database that an engine has made.
async fn made(home: &Path) {
    let models = raddle::engine::models::Models::new(Default::default());
    let raddle = Raddle::open(Options { models: Some(models), ..Options::in_home(home) }).await.unwrap();
    raddle.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r46_a_hard_linked_database_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let home = place.path().join("home");
    made(&home).await;
    let before = contents(&home);
    std::fs::hard_link(home.join("raddle.db"), place.path().join("second-name.db")).unwrap();
    let error = refused(&home).await;
    assert_eq!(error.reason(), Some("hardLinked"));
    assert!(error.to_string().contains("hard link"), "{error}");
    assert_eq!(contents(&home), before);
    std::fs::remove_file(place.path().join("second-name.db")).unwrap();
    made(&home).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_of_a_newer_version_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let home = place.path().join("home");
    made(&home).await;
    // The version of the schema is the big-endian number at byte 60 of a SQLite file.
    let mut database = std::fs::OpenOptions::new().write(true).open(home.join("raddle.db")).unwrap();
    database.seek(SeekFrom::Start(60)).unwrap();
    database.write_all(&9_999_u32.to_be_bytes()).unwrap();
    drop(database);
    let before = contents(&home);
    let error = refused(&home).await;
    assert_eq!(error.reason(), Some("newerSchema"));
    assert!(error.to_string().contains("update"), "{error}");
    let database =
        |files: &[(String, Vec<u8>)]| files.iter().find(|(name, _)| name.ends_with(".db")).cloned();
    assert_eq!(database(&contents(&home)), database(&before));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r49_a_database_of_another_program_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let home = place.path().join("home");
    made(&home).await;
    // Its application's number is at byte 68.
    let path = home.join("raddle.db");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[68..72].copy_from_slice(b"else");
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(refused(&home).await.reason(), Some("notADatabase"));
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}
