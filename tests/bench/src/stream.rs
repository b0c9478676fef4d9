//! Streams: how fast, how late, and at what cost in CPU a delta reaches the client, committed first.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use parking_lot::Mutex;
use raddle::protocol::ThreadId;
use raddle::protocol::methods::{ServerNotification, method};
use raddle::protocol::server::DiagnosticsParams;
use raddle::protocol::thread::ThreadStartParams;
use raddle::protocol::turn::TurnStartParams;
use raddle::{Client, Raddle};
use raddle_fakes::monotonic_nanos;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::sync::Notify;

use crate::host;
use crate::report::{Report, median, quantile};
use crate::{Failure, Only};

const THREADS: usize = 20;
const FLOOD_DELTAS: usize = 500;
const TURN_DELTAS: usize = 2_000;
const PACED_DELTAS: usize = 250;
const PACED_RATE: usize = 50;
const CROWD_THREADS: usize = 1_000;
const CROWD_DELTAS: usize = 200;

pub(crate) fn measure(
    report: &mut Report,
    port: u16,
    runs: usize,
    wanted: impl Fn(Only) -> bool,
) -> Result<(), Failure> {
    raise_file_limit();
    let home = tempfile::tempdir()?;
    host::runtime()?.block_on(async {
        let raddle = host::open(home.path(), Some(port)).await?;
        let bench = Bench::new(&raddle, home.path().display().to_string()).await?;
        // The first run pays for connections and page faults; it is not counted.
        bench.run(1, "deltas=200").await?;
        if wanted(Only::Flood) {
            flood(report, &bench, runs).await?;
        }
        if wanted(Only::Paced) {
            paced(report, &bench).await?;
        }
        if wanted(Only::Crowd) {
            crowd(report, &bench).await?;
        }
        raddle.close().await;
        Ok(())
    })
}

async fn flood(report: &mut Report, bench: &Bench, runs: usize) -> Result<(), Failure> {
    let mut turn = Vec::new();
    for _ in 0..runs {
        turn.push(bench.run(1, &format!("deltas={TURN_DELTAS}")).await?);
    }
    report.add("turn_2000_ms", median(turn.iter().map(|run| run.total_ms).collect()));
    report.add("turn_first_delta_ms", median(turn.iter().map(|run| run.first_deltas_ms).collect()));

    let mut flood = Vec::new();
    for _ in 0..runs {
        flood.push(bench.run(THREADS, &format!("deltas={FLOOD_DELTAS}")).await?);
    }
    let deltas = (THREADS * FLOOD_DELTAS) as f64;
    report.add("flood_20x500_ms", median(flood.iter().map(|run| run.total_ms).collect()));
    report.add("flood_first_deltas_ms", median(flood.iter().map(|run| run.first_deltas_ms).collect()));
    report.add("delta_cpu_us_flood", median(flood.iter().map(|run| run.cpu_us / deltas).collect()));
    Ok(())
}

async fn paced(report: &mut Report, bench: &Bench) -> Result<(), Failure> {
    let mut paced = bench.run(THREADS, &format!("deltas={PACED_DELTAS} rate={PACED_RATE}")).await?;
    let deltas = (THREADS * PACED_DELTAS) as f64;
    report.add("delta_p50_ms", quantile(&mut paced.latencies_ms, 0.5));
    report.add("delta_p99_ms", quantile(&mut paced.latencies_ms, 0.99));
    report.add("delta_cpu_us_paced", paced.cpu_us / deltas);
    report.add("syncs_per_1000_deltas", paced.syncs as f64 / deltas * 1e3);
    Ok(())
}

async fn crowd(report: &mut Report, bench: &Bench) -> Result<(), Failure> {
    let mut crowd = bench.run(CROWD_THREADS, &format!("deltas={CROWD_DELTAS} rate={PACED_RATE}")).await?;
    let deltas = (CROWD_THREADS * CROWD_DELTAS) as f64;
    report.add("crowd_1000_p99_ms", quantile(&mut crowd.latencies_ms, 0.99));
    report.add("crowd_1000_lost_deltas", deltas - crowd.latencies_ms.len() as f64);
    report.add("crowd_1000_cpu_us", crowd.cpu_us / deltas);
    Ok(())
}

struct Bench {
    client: Client,
    cwd: String,
    seen: Arc<Seen>,
    _watching: raddle::Registration,
}

#[derive(Default)]
struct Seen {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    firsts: std::collections::HashMap<ThreadId, Instant>,
    latencies_ms: Vec<f64>,
    ended: usize,
    failed: Option<String>,
}

struct Run {
    total_ms: f64,
    /// Until the last of the threads had its first delta.
    first_deltas_ms: f64,
    latencies_ms: Vec<f64>,
    cpu_us: f64,
    syncs: u64,
}

impl Bench {
    async fn new(raddle: &Raddle, cwd: String) -> Result<Self, Failure> {
        let client = raddle.client("bench", "1").await?;
        let seen = Arc::new(Seen::default());
        let watching = client.on_notification({
            let seen = seen.clone();
            move |notification| seen.see(notification)
        });
        Ok(Self { client, cwd, seen, _watching: watching })
    }

    /// Runs a turn on each of so many new threads at the same time.
    async fn run(&self, threads: usize, text: &str) -> Result<Run, Failure> {
        let mut ids = Vec::new();
        for _ in 0..threads {
            let params = ThreadStartParams { cwd: self.cwd.clone(), ..Default::default() };
            ids.push(self.client.request::<method::ThreadStart>(params).await?.thread.id);
        }
        *self.seen.state.lock() = State::default();
        let syncs = self.syncs().await?;
        let cpu = cpu_time();
        let began = Instant::now();
        let starts = ids
            .iter()
            .map(|id| self.client.request::<method::TurnStart>(TurnStartParams::new(id.clone(), text)));
        for started in join_all(starts).await {
            started?;
        }
        loop {
            let changed = self.seen.changed.notified();
            {
                let state = self.seen.state.lock();
                if let Some(error) = &state.failed {
                    return Err(format!("a turn failed: {error}").into());
                }
                if state.ended == threads {
                    break;
                }
            }
            changed.await;
        }
        let total_ms = began.elapsed().as_secs_f64() * 1e3;
        let cpu_us = (cpu_time() - cpu).as_secs_f64() * 1e6;
        let syncs = self.syncs().await? - syncs;
        let state = std::mem::take(&mut *self.seen.state.lock());
        let last_first = state.firsts.values().max().copied().unwrap_or(began);
        Ok(Run {
            total_ms,
            first_deltas_ms: (last_first - began).as_secs_f64() * 1e3,
            latencies_ms: state.latencies_ms,
            cpu_us,
            syncs,
        })
    }

    async fn syncs(&self) -> Result<u64, Failure> {
        Ok(self.client.request::<method::ServerDiagnostics>(DiagnosticsParams {}).await?.syncs)
    }
}

impl Seen {
    fn see(&self, notification: &ServerNotification) {
        match notification {
            ServerNotification::ItemAgentMessageDelta(delta) => {
                let now = monotonic_nanos();
                let mut state = self.state.lock();
                if !state.firsts.contains_key(&delta.thread_id) {
                    state.firsts.insert(delta.thread_id.clone(), Instant::now());
                }
                for written in
                    delta.delta.split_ascii_whitespace().filter_map(|word| word.parse::<u64>().ok())
                {
                    state.latencies_ms.push(now.saturating_sub(written) as f64 / 1e6);
                }
            }
            ServerNotification::TurnCompleted(ended) => {
                let mut state = self.state.lock();
                state.ended += 1;
                if let Some(error) = &ended.turn.error {
                    state.failed = Some(error.message.clone());
                }
                self.changed.notify_one();
            }
            _ => {}
        }
    }
}

/// CPU time of this process, user and system.
fn cpu_time() -> Duration {
    // The clock of the process is exact; the times of `getrusage` are in ticks on some systems.
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// A thousand streams need a thousand open files, more than many shells allow by default.
fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where it may not be raised, the crowd fails with a clear error.
    let _ = setrlimit(Resource::Nofile, limit);
}
