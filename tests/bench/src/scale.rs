//! Very many threads and very long ones. Cases: R38.
//!
//! The store is filled through its own door, since no client could say so much in a minute; it is measured through a client.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raddle::Client;
use raddle::engine::store::{Lease, Store, StoreOptions};
use raddle::protocol::event::{EventBody, LoggedItem, ThreadArchived, ThreadStarted, TurnEnded, TurnStarted};
use raddle::protocol::methods::{ServerNotification, method};
use raddle::protocol::thread::{
    ThreadForkParams, ThreadIdParams, ThreadListParams, ThreadReadParams, ThreadStartParams,
};
use raddle::protocol::turn::TurnStartParams;
use raddle::protocol::{
    Event, Item, ItemKind, ItemStatus, ThreadId, TokenUsage, TurnId, TurnStatus, TurnSummary, UnixMillis,
};

use crate::Failure;
use crate::host;
use crate::report::{Report, median};

const THREADS: usize = 50_000;
const LONG_THREADS: usize = 3;
/// Of ten items each.
const LONG_TURNS: u32 = 10_000;
/// Of a tool call, so that the long threads have 300 MB of it.
const OUTPUT_BYTES: usize = 1_250;
const CALLS_PER_TURN: u32 = 8;
const DIRECTORIES: usize = 5;
const ARCHIVED_OF_TEN: usize = 1;
const AT_ONCE: usize = 256;
const RUNS: usize = 9;
const LISTS_AT_ONCE: usize = 20;

pub(crate) fn measure(report: &mut Report) -> Result<(), Failure> {
    let home = tempfile::tempdir()?;
    eprintln!("bench: making {THREADS} threads of 10 items and {LONG_THREADS} of 100,000");
    host::runtime()?.block_on(fill(home.path()))?;
    host::runtime()?.block_on(lists(report, home.path()))?;
    host::runtime()?.block_on(long_threads(report, home.path()))?;
    let [open, read, after] = crate::memory::in_child(&["scale", &home.path().display().to_string()])?[..]
    else {
        return Err("a child printed no figures".into());
    };
    report.add("scale_rss_read_mib", (read - open) / (1024.0 * 1024.0));
    report.add("scale_rss_after_mib", (after - open) / (1024.0 * 1024.0));
    Ok(())
}

fn long_id(number: usize) -> ThreadId {
    ThreadId::from(format!("long {number}"))
}

async fn fill(home: &Path) -> Result<(), Failure> {
    let store = Store::open(StoreOptions::new(home))?;
    for first in (0..THREADS).step_by(AT_ONCE) {
        let mut tasks = tokio::task::JoinSet::new();
        for number in first..(first + AT_ONCE).min(THREADS) {
            tasks.spawn(short_thread(store.clone(), number));
        }
        while let Some(made) = tasks.join_next().await {
            made??;
        }
    }
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..LONG_THREADS {
        tasks.spawn(long_thread(store.clone(), number));
    }
    while let Some(made) = tasks.join_next().await {
        made??;
    }
    store.close().await;
    Ok(())
}

async fn short_thread(store: Store, number: usize) -> Result<(), Failure> {
    let id = ThreadId::from(format!("short {number}"));
    let lease = create(&store, &id, number % DIRECTORIES).await?;
    let turn = Made { thread: id, number: 1, at: 1_000_000 + number as i64 * 1_000 };
    let mut events = turn.events(&format!("Question {number} about needle {}", number % 1_000), None);
    if number % 10 < ARCHIVED_OF_TEN {
        let archived = EventBody::Archived(ThreadArchived { archived: true });
        events.push(Event { turn_id: None, at: UnixMillis(turn.at), body: archived });
    }
    store.append(&lease, events).await?;
    store.release(&lease).await?;
    Ok(())
}

async fn long_thread(store: Store, number: usize) -> Result<(), Failure> {
    let id = long_id(number);
    let lease = create(&store, &id, 0).await?;
    let mut parent = None;
    for number in 1..=LONG_TURNS {
        let turn = Made { thread: id.clone(), number, at: 100_000_000 + i64::from(number) * 1_000 };
        store.append(&lease, turn.events("Go on", parent)).await?;
        parent = Some(turn.id());
    }
    store.release(&lease).await?;
    Ok(())
}

async fn create(store: &Store, id: &ThreadId, directory: usize) -> Result<Lease, Failure> {
    let started = ThreadStarted {
        cwd: format!("/projects/{directory}"),
        name: None,
        forked_from_id: None,
        forked_at: None,
        settings: Default::default(),
    };
    Ok(store.create_thread(id.clone(), UnixMillis(1_000), started).await?)
}

/// A turn of ten items, as the engine would have written it.
struct Made {
    thread: ThreadId,
    number: u32,
    at: i64,
}

impl Made {
    fn id(&self) -> TurnId {
        TurnId::from(format!("{} {}", self.thread, self.number))
    }

    fn event(&self, body: EventBody) -> Event {
        Event { turn_id: Some(self.id()), at: UnixMillis(self.at), body }
    }

    fn summary(&self, status: TurnStatus) -> TurnSummary {
        TurnSummary {
            id: self.id(),
            thread_id: self.thread.clone(),
            status,
            started_at: UnixMillis(self.at),
            completed_at: (status != TurnStatus::InProgress).then_some(UnixMillis(self.at)),
            error: None,
            usage: None,
        }
    }

    fn events(&self, text: &str, parent: Option<TurnId>) -> Vec<Event> {
        let said = ItemKind::UserMessage { text: text.into(), images: Vec::new(), client_message_id: None };
        let calls = (0..CALLS_PER_TURN).map(|call| ItemKind::ToolCall {
            tool_name: "read".into(),
            input: serde_json::json!({ "path": format!("src/file{call}.rs") }),
            output: Some("x".repeat(OUTPUT_BYTES).into()),
            is_error: false,
            file_changes: Vec::new(),
        });
        let answered = ItemKind::AgentMessage { text: "That is what is in there.".into() };
        let kinds = std::iter::once(said).chain(calls).chain([answered]);
        let items = (0..).zip(kinds).map(|(index, kind)| Item {
            id: format!("{}.{index}", self.number).into(),
            kind,
            status: ItemStatus::Completed,
            index: Some(index),
            parent_item_id: None,
            started_at: None,
            completed_at: Some(UnixMillis(self.at)),
        });
        let started = TurnStarted {
            turn: self.summary(TurnStatus::InProgress),
            parent,
            depth: self.number,
            request_id: None,
            queue_id: None,
            idempotency_key: None,
        };
        let ended = TurnEnded {
            turn: self.summary(TurnStatus::Completed),
            thread_usage: TokenUsage::default(),
            request_id: None,
        };
        let items = items.map(|item| EventBody::ItemCompleted(LoggedItem { item, origin: None }));
        let bodies = std::iter::once(EventBody::TurnStarted(started))
            .chain(items)
            .chain([EventBody::TurnCompleted(ended)]);
        bodies.map(|body| self.event(body)).collect()
    }
}

/// Milliseconds that a request takes, the middle of several.
async fn timed<T, F: Future<Output = Result<T, raddle::ClientError>>>(
    runs: usize,
    mut request: impl FnMut() -> F,
) -> Result<f64, Failure> {
    let mut times = Vec::new();
    for _ in 0..runs {
        let began = Instant::now();
        request().await?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    Ok(median(times))
}

async fn lists(report: &mut Report, home: &Path) -> Result<(), Failure> {
    let began = Instant::now();
    let raddle = host::open(home, None).await?;
    let client = Arc::new(raddle.client("bench", "1").await?);
    let all = ThreadListParams::default();
    let first = client.request::<method::ThreadList>(all.clone()).await?;
    report.add("scale_open_and_list_ms", began.elapsed().as_secs_f64() * 1e3);
    let of = |change: fn(&mut ThreadListParams)| {
        let mut params = ThreadListParams::default();
        change(&mut params);
        params
    };
    let next = ThreadListParams { cursor: first.next_cursor, ..all.clone() };
    for (name, params) in [
        ("scale_list_ms", all.clone()),
        ("scale_list_next_ms", next),
        ("scale_list_cwd_ms", of(|params| params.cwd = Some("/projects/3".to_owned()))),
        ("scale_list_archived_ms", of(|params| params.archived = Some(true))),
        ("scale_list_search_ms", of(|params| params.search = Some("needle 777".to_owned()))),
    ] {
        let took = timed(RUNS, || client.request::<method::ThreadList>(params.clone())).await?;
        report.add(name, took);
    }
    lists_beside_a_turn(report, &client, home).await?;
    raddle.close().await;
    Ok(())
}

/// Lists side by side, again and again, while a turn streams: what both cost then.
async fn lists_beside_a_turn(report: &mut Report, client: &Arc<Client>, home: &Path) -> Result<(), Failure> {
    let params = ThreadStartParams { cwd: home.display().to_string(), ..Default::default() };
    let thread = client.request::<method::ThreadStart>(params).await?.thread.id;
    let mut notifications = client.notifications();
    let mut gaps = Vec::new();
    for busy in [false, true] {
        let mut tasks = tokio::task::JoinSet::new();
        let began = Instant::now();
        if busy {
            for _ in 0..LISTS_AT_ONCE {
                let client = client.clone();
                tasks.spawn(async move { client.request::<method::ThreadList>(Default::default()).await });
            }
        }
        let text = "word ".repeat(400);
        client.request::<method::TurnStart>(TurnStartParams::new(thread.clone(), text)).await?;
        let (mut last, mut worst) = (Instant::now(), Duration::ZERO);
        while let Some(notification) = notifications.next().await {
            worst = worst.max(last.elapsed());
            last = Instant::now();
            if matches!(notification, ServerNotification::TurnCompleted(_)) {
                break;
            }
        }
        gaps.push(worst.as_secs_f64() * 1e3);
        while let Some(listed) = tasks.join_next().await {
            listed??;
        }
        if busy {
            report.add("scale_20_lists_and_a_turn_ms", began.elapsed().as_secs_f64() * 1e3);
        }
    }
    report.add("scale_worst_gap_alone_ms", gaps[0]);
    report.add("scale_worst_gap_beside_lists_ms", gaps[1]);
    Ok(())
}

async fn long_threads(report: &mut Report, home: &Path) -> Result<(), Failure> {
    let raddle = host::open(home, None).await?;
    let client = raddle.client("bench", "1").await?;
    let newest = ThreadReadParams::newest(long_id(0));
    let first = client.request::<method::ThreadRead>(newest.clone()).await?;
    let next = ThreadReadParams { cursor: first.next_cursor, ..newest.clone() };
    let one = ThreadReadParams { limit: Some(1), ..newest.clone() };
    report.add("scale_read_ms", timed(RUNS, || client.request::<method::ThreadRead>(newest.clone())).await?);
    report
        .add("scale_read_next_ms", timed(RUNS, || client.request::<method::ThreadRead>(next.clone())).await?);
    let began = Instant::now();
    client.request::<method::ThreadResume>(ThreadReadParams { thread_id: long_id(1), ..one.clone() }).await?;
    report.add("scale_resume_cold_ms", began.elapsed().as_secs_f64() * 1e3);
    report.add(
        "scale_resume_ms",
        timed(RUNS, || client.request::<method::ThreadResume>(newest.clone())).await?,
    );
    report.add(
        "scale_resume_one_turn_ms",
        timed(RUNS, || client.request::<method::ThreadResume>(one.clone())).await?,
    );
    let fork = ThreadForkParams { thread_id: long_id(0), turn_id: None, new_thread_id: None, replace: false };
    report.add("scale_fork_ms", timed(RUNS, || client.request::<method::ThreadFork>(fork.clone())).await?);
    raddle.close().await;
    Ok(())
}

/// Prints the resident memory after opening, after reading and resuming the long threads, and after leaving them, in bytes.
pub(crate) fn print_memory(home: &Path) -> Result<(), Failure> {
    host::runtime()?.block_on(async {
        let raddle = host::open(home, None).await?;
        let client = raddle.client("bench", "1").await?;
        client.request::<method::ThreadList>(ThreadListParams::default()).await?;
        println!("{}", crate::memory::rss()?);
        for number in 0..LONG_THREADS {
            let mut params = ThreadReadParams::newest(long_id(number));
            client.request::<method::ThreadResume>(params.clone()).await?;
            for _ in 0..20 {
                let page = client.request::<method::ThreadRead>(params.clone()).await?;
                params.cursor = page.next_cursor;
            }
        }
        println!("{}", crate::memory::rss()?);
        for number in 0..LONG_THREADS {
            client.request::<method::ThreadUnsubscribe>(ThreadIdParams::from(long_id(number))).await?;
        }
        println!("{}", crate::memory::rss()?);
        raddle.close().await;
        Ok(())
    })
}
