//! Opening, and what a thread takes on disk.

use std::path::Path;
use std::time::Instant;

use raddle::protocol::methods::{ServerNotification, method};
use raddle::protocol::server::{ClientCapabilities, ClientInfo};
use raddle::protocol::thread::ThreadStartParams;
use raddle::protocol::turn::TurnStartParams;
use raddle::{Client, SpawnOptions};

use crate::Failure;
use crate::host;
use crate::report::{Report, median};

const OPENS: usize = 9;
const THREADS: usize = 10_000;
const THREADS_WITH_A_TURN: usize = 200;
/// Threads that are created side by side, so that they share syncs.
const AT_ONCE: usize = 64;

pub(crate) fn measure(report: &mut Report, server: Option<&Path>) -> Result<(), Failure> {
    let empty = tempfile::tempdir()?;
    let mut times = Vec::new();
    for run in 0..OPENS {
        times.push(open_and_initialize(&empty.path().join(run.to_string()))?);
    }
    report.add("open_empty_ms", median(times));

    let full = tempfile::tempdir()?;
    eprintln!("bench: making {THREADS} threads");
    host::runtime()?.block_on(make_threads(full.path(), THREADS))?;
    let mut times = Vec::new();
    for _ in 0..OPENS {
        times.push(open_and_initialize(full.path())?);
    }
    report.add("open_10k_ms", median(times));
    if let Some(server) = server {
        let times: Result<Vec<f64>, Failure> =
            (0..OPENS).map(|_| open_as_child(server, full.path())).collect();
        report.add("open_10k_stdio_ms", median(times?));
    }

    let short = tempfile::tempdir()?;
    let bytes = host::runtime()?.block_on(short_turns(short.path()))?;
    report.add("store_bytes_per_thread", bytes as f64 / THREADS_WITH_A_TURN as f64);
    Ok(())
}

/// From nothing to an answered `initialize`, the runtime excluded.
fn open_and_initialize(home: &Path) -> Result<f64, Failure> {
    host::runtime()?.block_on(async {
        let began = Instant::now();
        let raddle = host::open(home, None).await?;
        let client = raddle.client("bench", "1").await?;
        let took = began.elapsed();
        drop(client);
        raddle.close().await;
        Ok(took.as_secs_f64() * 1e3)
    })
}

/// From the start of a child process to its answered `initialize`.
fn open_as_child(server: &Path, home: &Path) -> Result<f64, Failure> {
    host::runtime()?.block_on(async {
        let mut command = tokio::process::Command::new(server);
        command.arg("app-server").env("RADDLE_HOME", home);
        let info = ClientInfo { name: "bench".to_owned(), version: "1".to_owned() };
        let began = Instant::now();
        let client =
            Client::spawn(command, SpawnOptions::default(), info, ClientCapabilities::default()).await?;
        let took = began.elapsed();
        client.shutdown().await;
        Ok(took.as_secs_f64() * 1e3)
    })
}

async fn make_threads(home: &Path, threads: usize) -> Result<(), Failure> {
    let raddle = host::open(home, None).await?;
    let client = std::sync::Arc::new(raddle.client("bench", "1").await?);
    let cwd = home.display().to_string();
    for _ in 0..threads.div_ceil(AT_ONCE) {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..AT_ONCE {
            let params = ThreadStartParams { cwd: cwd.clone(), ..Default::default() };
            let client = client.clone();
            tasks.spawn(async move { client.request::<method::ThreadStart>(params).await });
        }
        while let Some(started) = tasks.join_next().await {
            started??;
        }
    }
    raddle.close().await;
    Ok(())
}

/// Bytes of a store whose threads have one short turn each.
async fn short_turns(home: &Path) -> Result<u64, Failure> {
    let raddle = host::open(home, None).await?;
    let client = raddle.client("bench", "1").await?;
    let mut notifications = client.notifications();
    for _ in 0..THREADS_WITH_A_TURN {
        let params = ThreadStartParams { cwd: home.display().to_string(), ..Default::default() };
        let thread = client.request::<method::ThreadStart>(params).await?.thread;
        let turn = TurnStartParams::new(thread.id, "What is a raddle, in a few words?");
        client.request::<method::TurnStart>(turn).await?;
        while let Some(notification) = notifications.next().await {
            if matches!(notification, ServerNotification::TurnCompleted(_)) {
                break;
            }
        }
    }
    raddle.close().await;
    Ok(std::fs::metadata(home.join("raddle.db"))?.len())
}
