//! What a host relies on: what dropping does, which runtime things run on, what commands inherit.

use std::time::Duration;

use futures_util::FutureExt;
use raddle::engine::models::{Models, ModelsConfig};
use raddle::protocol::methods::{ServerNotification, method};
use raddle::protocol::model::ModelListParams;
use raddle::protocol::thread::{ApprovalMode, ThreadReadParams, ThreadStartParams};
use raddle::protocol::turn::TurnStartParams;
use raddle::protocol::{ModelRef, TurnStatus};
use raddle::{ClientError, Options, Raddle};

fn options(home: &std::path::Path) -> Options {
    Options {
        models: Some(Models::new(ModelsConfig::default())),
        default_model: Some(ModelRef::new("builtin", "script")),
        ..Options::in_home(home)
    }
}

/// Everything is dropped outside of the runtime, in mid-turn, with an approval open.
#[test]
fn p9_dropping_outside_of_the_runtime_closes_threads_and_harms_nobody() {
    let home = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (raddle, client, thread_id) = runtime.block_on(async {
        let raddle = Raddle::open(options(home.path())).await.unwrap();
        let client = raddle.client("test", "1").await.unwrap();
        client.on_request(|_| std::future::pending());
        let mut notifications = client.notifications();
        let cwd = home.path().display().to_string();
        let params = ThreadStartParams { cwd, ..Default::default() };
        let thread = client.request::<method::ThreadStart>(params).await.unwrap().thread;
        let text = r#"script: text Before. ;; call bash {"command":"echo never"}"#;
        client.request::<method::TurnStart>(TurnStartParams::new(thread.id.clone(), text)).await.unwrap();
        let asked = async {
            while let Some(notification) = notifications.next().await {
                if let ServerNotification::ItemStarted(started) = notification
                    && started.item.kind.type_name() == "toolCall"
                {
                    break;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(10), asked).await.unwrap();
        (raddle, client, thread.id)
    });
    drop(client);
    drop(raddle);
    // The threads close on the runtime's own time; the store is free once they have.
    runtime.block_on(async {
        let raddle = Raddle::open(options(home.path())).await.unwrap();
        let client = raddle.client("test", "1").await.unwrap();
        let resume = || client.request::<method::ThreadResume>(ThreadReadParams::newest(thread_id.clone()));
        let resumed = loop {
            match resume().await {
                Ok(resumed) => break resumed,
                // The old engine has not let go yet.
                Err(ClientError::Server(error)) if error.code.as_str() == "threadLockedElsewhere" => {
                    tokio::task::yield_now().await;
                }
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!(resumed.turns.len(), 1);
        assert_eq!(resumed.turns[0].summary.status, TurnStatus::Interrupted);
        raddle.close().await;
    });
}

#[tokio::test]
async fn p4_requests_on_a_closed_connection_are_answered() {
    let home = tempfile::tempdir().unwrap();
    let raddle = Raddle::open(options(home.path())).await.unwrap();
    let client = raddle.client("test", "1").await.unwrap();
    raddle.close().await;
    let refused = client.request::<method::ModelList>(ModelListParams {}).await;
    assert_eq!(refused, Err(ClientError::Closed));
    client.shutdown().await;
    assert!(client.is_closed());
}

/// A host that makes a runtime for each call keeps its threads all the same: they run where the engine was opened.
#[test]
fn p9_threads_outlive_the_runtime_of_a_call() {
    let home = tempfile::tempdir().unwrap();
    let main = tokio::runtime::Runtime::new().unwrap();
    let raddle = main.block_on(Raddle::open(options(home.path()))).unwrap();
    let per_call = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = per_call().block_on(raddle.client("test", "1")).unwrap();
    let mut notifications = client.notifications();
    let cwd = home.path().display().to_string();
    let params = ThreadStartParams { cwd, ..Default::default() };
    let thread = per_call().block_on(client.request::<method::ThreadStart>(params)).unwrap().thread;
    let turn = TurnStartParams::new(thread.id, "script: repeat 20 every=2ms ;; text end");
    per_call().block_on(client.request::<method::TurnStart>(turn)).unwrap();
    let status = per_call().block_on(async {
        loop {
            if let ServerNotification::TurnCompleted(ended) = notifications.next().await.unwrap() {
                break ended.turn.status;
            }
        }
    });
    assert_eq!(status, TurnStatus::Completed);
    main.block_on(raddle.close());
}

/// A connect that is given up, or refused, leaves nothing behind.
#[tokio::test]
async fn p7_abandoned_connects_leave_no_tasks() {
    let home = tempfile::tempdir().unwrap();
    let raddle = Raddle::open(options(home.path())).await.unwrap();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for polls in 0..40 {
        let mut connecting = Box::pin(raddle.client("test", "1"));
        for _ in 0..polls % 4 {
            let _ = (&mut connecting).now_or_never();
        }
        drop(connecting);
    }
    for _ in 0..10_000 {
        if tasks() <= before {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert!(tasks() <= before, "{} tasks are left", tasks() - before);
    raddle.close().await;
    assert!(raddle.client("test", "1").await.is_err());
}

/// Commands that a model asks for do not see what the host hides.
#[tokio::test]
async fn p6_hidden_variables_do_not_reach_commands() {
    let home = tempfile::tempdir().unwrap();
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some(), "run this through cargo");
    let options = Options { hidden_env: vec!["CARGO_MANIFEST_DIR".into()], ..options(home.path()) };
    let raddle = Raddle::open(options).await.unwrap();
    let client = raddle.client("test", "1").await.unwrap();
    let mut notifications = client.notifications();
    let cwd = home.path().display().to_string();
    let params =
        ThreadStartParams { cwd, approval_mode: Some(ApprovalMode::FullAccess), ..Default::default() };
    let thread = client.request::<method::ThreadStart>(params).await.unwrap().thread;
    let script = r#"script: call bash {"command":"echo [$CARGO_MANIFEST_DIR] [${CARGO_PKG_NAME:+seen}]"} ;; --- ;; result"#;
    client.request::<method::TurnStart>(TurnStartParams::new(thread.id, script)).await.unwrap();
    let mut text = String::new();
    while let Some(notification) = notifications.next().await {
        match notification {
            ServerNotification::ItemAgentMessageDelta(delta) => text.push_str(&delta.delta),
            ServerNotification::TurnCompleted(_) => break,
            _ => {}
        }
    }
    assert!(text.contains("[] [seen]"), "{text}");
    raddle.close().await;
}
