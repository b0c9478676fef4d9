//! What the store costs on this machine, against the budgets of the design: run it by hand, in release mode.
//!
//! ```sh
//! cargo run --release -p raddle-store --example timing [one] [flood] [paced] [many] [long] [lists] [delete]
//! ```

#![expect(clippy::unwrap_used, reason = "a measurement that fails has nothing to say")]
#![expect(clippy::print_stdout, reason = "printing is what it is for")]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use raddle_protocol::event::{Delta, LoggedItem, ThreadArchived, ThreadStarted, TurnEnded, TurnStarted};
use raddle_protocol::thread::ThreadSettings;
use raddle_protocol::{
    Event, EventBody, Item, ItemId, ItemKind, ItemStatus, ModelRef, ThreadId, TokenCounts, TokenUsage,
    TurnId, TurnStatus, TurnSummary, UnixMillis,
};
use raddle_store::{Lease, ListQuery, Store, StoreOptions};

const NOW: UnixMillis = UnixMillis(1_790_000_000_000);

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let want = |name: &str| wanted.is_empty() || wanted.iter().any(|word| word == name);
    runtime.block_on(async {
        if want("one") {
            one_thread().await;
        }
        if want("flood") {
            flood(20, 500).await;
            flood(1_000, 200).await;
        }
        if want("paced") {
            paced(1, 200).await;
            paced(20, 200).await;
            paced(1_000, 200).await;
        }
        if want("many") {
            many_threads(10_000).await;
        }
        if want("long") {
            long_thread(10_000).await;
        }
        if want("lists") {
            lists(100_000).await;
        }
        if want("delete") {
            deletion(100_000).await;
        }
    });
}

/// A delta and a barrier at a time, each awaited.
async fn one_thread() {
    const ROUNDS: u32 = 20_000;
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions::new(home.path())).unwrap();
    let (lease, turn) = begin(&store).await;
    let cpu = Cpu::now();
    let started = Instant::now();
    let mut slowest = Duration::ZERO;
    for _ in 0..ROUNDS {
        let one = Instant::now();
        store.append(&lease, vec![delta(&turn)]).await.unwrap();
        slowest = slowest.max(one.elapsed());
    }
    let (wall, cpu) = (started.elapsed() / ROUNDS, cpu.since() / ROUNDS);
    println!("a delta at a time: {wall:?} to the answer, {cpu:?} CPU, slowest {slowest:?}");
    let completed = Instant::now();
    store.append(&lease, vec![message(&turn, &"word ".repeat(ROUNDS as usize / 10))]).await.unwrap();
    println!("completing an item of {ROUNDS} deltas: {:?}", completed.elapsed());
    let started = Instant::now();
    for _ in 0..500 {
        let settings = EventBody::SettingsUpdated(ThreadSettings::default());
        store.append(&lease, vec![Event { turn_id: None, at: NOW, body: settings }]).await.unwrap();
    }
    println!("a barrier at a time: {:?}", started.elapsed() / 500);
    println!("{:?}", store.counters());
    store.close().await;
}

/// Many threads that stream as fast as they can, each its own task.
async fn flood(threads: u32, deltas: u32) {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions::new(home.path())).unwrap();
    let mut begun = Vec::new();
    for _ in 0..threads {
        begun.push(begin(&store).await);
    }
    let before = store.counters();
    let cpu = Cpu::now();
    let started = Instant::now();
    let tasks: Vec<_> = begun
        .into_iter()
        .map(|(lease, turn)| {
            let store = store.clone();
            tokio::spawn(async move {
                for _ in 0..deltas {
                    store.append(&lease, vec![delta(&turn)]).await.unwrap();
                }
                let streamed = Instant::now();
                store.append(&lease, vec![message(&turn, &"word ".repeat(deltas as usize))]).await.unwrap();
                streamed.elapsed()
            })
        })
        .collect();
    let mut slowest = Duration::ZERO;
    for task in tasks {
        slowest = slowest.max(task.await.unwrap());
    }
    let all = threads * deltas;
    let (wall, cpu) = (started.elapsed(), cpu.since());
    let commits = store.counters().commits - before.commits;
    println!(
        "{threads} threads flood {deltas} deltas each: {wall:?} in all, {:?} a delta, {:?} CPU a delta, \
         {:.1} deltas a commit, {} checkpoints, slowest completion {slowest:?}",
        wall / all,
        cpu / all,
        f64::from(all) / commits as f64,
        store.counters().checkpoints,
    );
    store.close().await;
}

/// Many threads at 50 deltas a second each, for as long as the deltas last.
async fn paced(threads: u32, deltas: u32) {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions::new(home.path())).unwrap();
    let mut begun = Vec::new();
    for _ in 0..threads {
        begun.push(begin(&store).await);
    }
    let cpu = Cpu::now();
    let tasks: Vec<_> = (0..)
        .zip(begun)
        .map(|(index, (lease, turn))| {
            let store = store.clone();
            tokio::spawn(async move {
                let pace = Duration::from_millis(20);
                let first = tokio::time::Instant::now() + pace * index / threads;
                let mut ticks = tokio::time::interval_at(first, pace);
                let mut waits = Vec::with_capacity(deltas as usize);
                for _ in 0..deltas {
                    let due = ticks.tick().await;
                    store.append(&lease, vec![delta(&turn)]).await.unwrap();
                    waits.push(due.elapsed());
                }
                waits
            })
        })
        .collect();
    let mut waits = Vec::new();
    for task in tasks {
        waits.extend(task.await.unwrap());
    }
    let cpu = cpu.since() / (threads * deltas);
    waits.sort_unstable();
    let at = |share: f64| waits[((waits.len() - 1) as f64 * share) as usize];
    println!(
        "{threads} threads paced at 50 a second: {cpu:?} CPU a delta with the timers, from due to durable p50 {:?}, \
         p99 {:?}, max {:?}",
        at(0.5),
        at(0.99),
        at(1.0)
    );
    store.close().await;
}

/// Opening, listing and bytes of a home with many threads of one short turn.
async fn many_threads(count: u32) {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions::new(home.path())).unwrap();
    let empty = bytes_in(home.path());
    let making = (0..64).map(|part| {
        let store = store.clone();
        tokio::spawn(async move {
            for _ in (part..count).step_by(64) {
                let (lease, turn) = begin(&store).await;
                for _ in 0..40 {
                    store.append(&lease, vec![delta(&turn)]).await.unwrap();
                }
                let usage = EventBody::TokenUsageUpdated(TokenUsage::default());
                let usage = Event { turn_id: Some(turn.clone()), at: NOW, body: usage };
                store.append(&lease, vec![message(&turn, &"word ".repeat(40)), usage]).await.unwrap();
                store.append(&lease, vec![end(&lease, &turn)]).await.unwrap();
                store.release(&lease).await.unwrap();
            }
        })
    });
    for task in making.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    store.close().await;
    let each = (bytes_in(home.path()) - empty) / u64::from(count);
    println!("{count} threads of one short turn: {each} bytes each");
    let mut opened = Vec::new();
    for _ in 0..20 {
        let started = Instant::now();
        let store = Store::open(StoreOptions::new(home.path())).unwrap();
        let open = started.elapsed();
        let first = store.list(ListQuery::default()).await.unwrap();
        let listed = started.elapsed() - open;
        let started = Instant::now();
        store.list(ListQuery { cursor: first.next_cursor, ..ListQuery::default() }).await.unwrap();
        let again = started.elapsed();
        let started = Instant::now();
        let search = Some("nowhere to be found".to_owned());
        store.list(ListQuery { search, ..ListQuery::default() }).await.unwrap();
        opened.push((open, listed, again, started.elapsed()));
        store.close().await;
    }
    opened.sort_unstable();
    let (open, listed, again, search) = opened[opened.len() / 2];
    println!("open {open:?}, first list page {listed:?}, second {again:?}, a search without hits {search:?}");
}

/// Pages of a thread with many turns.
async fn long_thread(turns: u32) {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions::new(home.path())).unwrap();
    let id = ThreadId::generate();
    let lease = store.create_thread(id.clone(), NOW, thread_started()).await.unwrap();
    let mut parent = None;
    for depth in 1..=turns {
        let turn = TurnId::generate();
        let mut events = vec![start(&lease, &turn, parent, depth), user(&turn)];
        events.extend([message(&turn, &"word ".repeat(40)), end(&lease, &turn)]);
        store.append(&lease, events).await.unwrap();
        parent = Some(turn);
    }
    let started = Instant::now();
    let mut page = store.page(&id, None, 50).await.unwrap();
    println!("{turns} turns: newest page {:?}", started.elapsed());
    let mut slowest = Duration::ZERO;
    while let Some(cursor) = page.next_cursor {
        let started = Instant::now();
        page = store.page(&id, Some(&cursor), 50).await.unwrap();
        slowest = slowest.max(started.elapsed());
    }
    println!("slowest page of all {slowest:?}");
    let started = Instant::now();
    assert_eq!(store.branch(&id).await.unwrap().len(), turns as usize);
    println!("the whole branch {:?}", started.elapsed());
    let header = ThreadStarted { forked_from_id: Some(id), forked_at: parent, ..thread_started() };
    let started = Instant::now();
    store.create_thread(ThreadId::generate(), NOW, header).await.unwrap();
    println!("a fork of it {:?}", started.elapsed());
    store.close().await;
}

/// The pages of a long list.
async fn lists(count: u32) {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions::new(home.path())).unwrap();
    let making = (0..64).map(|part| {
        let store = store.clone();
        tokio::spawn(async move {
            for _ in (part..count).step_by(64) {
                store.create_thread(ThreadId::generate(), NOW, thread_started()).await.unwrap();
            }
        })
    });
    for task in making.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let mut taken = Vec::new();
    for _ in 0..20 {
        let started = Instant::now();
        let first = store.list(ListQuery::default()).await.unwrap();
        let listed = started.elapsed();
        store.list(ListQuery { cursor: first.next_cursor, ..ListQuery::default() }).await.unwrap();
        taken.push((listed, started.elapsed() - listed));
    }
    taken.sort_unstable();
    let (first, next) = taken[taken.len() / 2];
    println!("{count} threads: first list page {first:?}, the next at once {next:?}");
    store.close().await;
}

/// What others notice of the deletion of a long thread.
async fn deletion(items: u32) {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions::new(home.path())).unwrap();
    let (lease, turn) = begin(&store).await;
    for batch in 0..items / 1_000 {
        let message = |number: u32| {
            let kind = ItemKind::AgentMessage { text: "word ".repeat(200).into() };
            let id = (batch * 1_000 + number).to_string();
            event(&turn, EventBody::ItemCompleted(item(&id, kind, ItemStatus::Completed)))
        };
        store.append(&lease, (0..1_000).map(message).collect()).await.unwrap();
    }
    let body = EventBody::Archived(ThreadArchived { archived: true });
    store.append(&lease, vec![end(&lease, &turn), Event { turn_id: None, at: NOW, body }]).await.unwrap();
    let (other, turn) = begin(&store).await;
    let started = Instant::now();
    store.delete_thread(&lease).await.unwrap();
    let deleted = started.elapsed();
    let mut waits = Vec::new();
    while started.elapsed() < Duration::from_secs(5) {
        let one = Instant::now();
        store.append(&other, vec![delta(&turn)]).await.unwrap();
        waits.push(one.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    waits.sort_unstable();
    println!(
        "a thread of {items} items is deleted in {deleted:?}; a delta a millisecond beside it: p50 {:?}, p99 {:?}, max {:?}",
        waits[waits.len() / 2],
        waits[waits.len() * 99 / 100],
        waits[waits.len() - 1],
    );
    store.close().await;
}

fn thread_started() -> ThreadStarted {
    let settings =
        ThreadSettings { model: Some(ModelRef::new("builtin", "echo")), ..ThreadSettings::default() };
    ThreadStarted {
        cwd: "/home/somebody/src/project".to_owned(),
        name: None,
        forked_from_id: None,
        forked_at: None,
        settings,
    }
}

async fn begin(store: &Store) -> (Lease, TurnId) {
    let lease = store.create_thread(ThreadId::generate(), NOW, thread_started()).await.unwrap();
    let turn = TurnId::generate();
    let events = vec![start(&lease, &turn, None, 1), user(&turn), message_start(&turn)];
    store.append(&lease, events).await.unwrap();
    (lease, turn)
}

fn event(turn: &TurnId, body: EventBody) -> Event {
    Event { turn_id: Some(turn.clone()), at: NOW, body }
}

fn summary(lease: &Lease, turn: &TurnId, status: TurnStatus) -> TurnSummary {
    TurnSummary {
        id: turn.clone(),
        thread_id: lease.thread_id().clone(),
        status,
        started_at: NOW,
        completed_at: (status == TurnStatus::Completed).then_some(NOW),
        error: None,
        usage: None,
    }
}

fn start(lease: &Lease, turn: &TurnId, parent: Option<TurnId>, depth: u32) -> Event {
    let turn_summary = summary(lease, turn, TurnStatus::InProgress);
    event(
        turn,
        EventBody::TurnStarted(TurnStarted {
            turn: turn_summary,
            parent,
            depth,
            request_id: None,
            queue_id: None,
            idempotency_key: None,
        }),
    )
}

fn end(lease: &Lease, turn: &TurnId) -> Event {
    let counts = TokenCounts { input: 1_200, output: 80, ..TokenCounts::default() };
    let usage = TokenUsage { counts, cost: 0.001, context_tokens: Some(1_280), context_window: 200_000 };
    let turn_summary = TurnSummary { usage: Some(usage), ..summary(lease, turn, TurnStatus::Completed) };
    event(
        turn,
        EventBody::TurnCompleted(TurnEnded { turn: turn_summary, thread_usage: usage, request_id: None }),
    )
}

fn item(ordinal: &str, kind: ItemKind, status: ItemStatus) -> LoggedItem {
    let item = Item {
        id: ItemId::from(ordinal),
        kind,
        status,
        index: Some(0),
        parent_item_id: None,
        started_at: Some(NOW),
        completed_at: Some(NOW),
    };
    LoggedItem { item, origin: None }
}

fn user(turn: &TurnId) -> Event {
    let text = "Please explain what this repository does and where to begin reading.".to_owned();
    let kind = ItemKind::UserMessage { text: text.into(), images: Vec::new(), client_message_id: None };
    event(turn, EventBody::ItemCompleted(item("1.0", kind, ItemStatus::Completed)))
}

fn message_start(turn: &TurnId) -> Event {
    let kind = ItemKind::AgentMessage { text: "".into() };
    event(turn, EventBody::ItemStarted(item("1.1", kind, ItemStatus::InProgress)))
}

fn message(turn: &TurnId, text: &str) -> Event {
    let kind = ItemKind::AgentMessage { text: text.into() };
    event(turn, EventBody::ItemCompleted(item("1.1", kind, ItemStatus::Completed)))
}

fn delta(turn: &TurnId) -> Event {
    let delta = Delta { item_id: ItemId::from("1.1"), delta: "word ".to_owned() };
    event(turn, EventBody::AgentMessageDelta(delta))
}

fn bytes_in(home: &Path) -> u64 {
    fs::read_dir(home).unwrap().flatten().filter_map(|entry| entry.metadata().ok()).map(|m| m.len()).sum()
}

/// CPU time of this process's threads so far; zero where the system does not tell.
struct Cpu(Duration);

impl Cpu {
    fn now() -> Self {
        // Nanoseconds on a core are the first field; the ticks of `stat` are too coarse for what is measured here.
        let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let spent = threads.filter_map(|thread| {
            let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        });
        Self(Duration::from_nanos(spent.sum()))
    }

    fn since(&self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }
}
