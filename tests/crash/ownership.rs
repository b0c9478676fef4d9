//! Two processes on one home. Holds: P2. Case: R46.
//!
//! Neighbours: host, witness.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use raddle::protocol::methods::{ServerNotification, method};
use raddle::protocol::thread::{ApprovalMode, ThreadResumeResult, ThreadStartParams, ThreadStatus};
use raddle::protocol::turn::TurnStartParams;
use raddle::protocol::{
    ErrorCode, ItemKind, ModelRef, Recorded, RpcError, ThreadId, Turn, TurnId, TurnStatus,
};
use raddle_fakes::{Gate, Provider, Reply};
use raddle_store::{Store, StoreOptions};
use serde_json::json;
use tempfile::TempDir;

use crate::host::{Host, Seen, Setup};
use crate::witness::{Witness, user_texts};

/// How soon the threads of a dead process can be used.
const TAKEOVER_FROM_DEAD_MAX: Duration = Duration::from_secs(1);

/// How long a test tries to take over from a process that stands still.
const TAKEOVER_TRIED_MAX: Duration = Duration::from_secs(30);

/// Threads of [`p2_fifty_threads_of_two_processes_do_not_meet`] that each process has.
const THREADS_EACH: usize = 25;

/// A home and a model for it.
struct Place {
    directory: TempDir,
    provider: Provider,
    setup: Setup,
}

impl Place {
    async fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let provider = Provider::start().await;
        let setup = Setup::new(directory.path().join("home")).with_provider(provider.base_url());
        Self { directory, provider, setup }
    }

    /// A thread whose tools ask nobody.
    async fn thread(&self, host: &mut Host) -> ThreadId {
        host.start_thread(self.directory.path(), ApprovalMode::FullAccess).await
    }

    /// The rows of a thread's turns as they are on disk, and the number of its last event.
    async fn log(&self, id: &ThreadId) -> (Vec<Recorded>, u64) {
        let store = Store::open(StoreOptions::new(&self.setup.home)).expect("the store opens");
        let branch = store.branch(id).await.expect("the thread can be read");
        let last_seq = store.thread(id).await.expect("the thread can be read").last_seq;
        store.close().await;
        (branch.into_iter().flat_map(|turn| turn.events).collect(), last_seq)
    }
}

#[track_caller]
fn assert_locked<T: std::fmt::Debug>(result: Result<T, RpcError>, owner: u32) {
    let error = result.expect_err("the thread belongs to another process");
    assert_eq!(error.code, ErrorCode::ThreadLockedElsewhere);
    assert_eq!(error.data, Some(json!({ "pid": owner })));
}

fn text(turn: &Turn) -> String {
    let texts = turn.items.iter().filter_map(|item| match &item.kind {
        ItemKind::AgentMessage { text } => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

/// Starts a turn of which one piece is shown, and the rest waits for the gate.
async fn half_a_turn(place: &Place, host: &mut Host, thread: &ThreadId) -> (TurnId, Gate) {
    let gate = Gate::new();
    place.provider.push(Reply::stream().text("early ").wait(&gate).text("late").stop());
    let turn = host.start_turn(thread, "speak").await;
    host.until("the early text", |seen| match seen {
        Seen::Told(ServerNotification::ItemAgentMessageDelta(n)) => (n.delta == "early ").then_some(()),
        _ => None,
    })
    .await;
    (turn, gate)
}

/// Parts (b) and (d).
#[tokio::test]
async fn p2_r46_a_thread_has_one_owner_until_it_dies() {
    let place = Place::new().await;
    let mut first = Host::start(&place.setup).await;
    let mut second = Host::start(&place.setup).await;
    let thread = place.thread(&mut first).await;
    let (turn, _gate) = half_a_turn(&place, &mut first, &thread).await;

    let owner = first.pid();
    assert_locked(second.resume(&thread).await, owner);
    let start = TurnStartParams::new(thread.clone(), "mine");
    assert_locked(second.ask::<method::TurnStart>(start).await, owner);
    assert_eq!(second.read(&thread).await.turns.len(), 1, "reading needs no owner");

    first.kill().await;
    let since = Instant::now();
    let resumed = second.resume(&thread).await.expect("the owner is dead");
    let took = since.elapsed();
    println!("took over from a dead owner in {took:?}");
    assert!(took < TAKEOVER_FROM_DEAD_MAX, "it took {took:?}");
    let [stored] = resumed.turns.as_slice() else { panic!("one turn: {resumed:#?}") };
    assert_eq!((&stored.summary.id, stored.summary.status), (&turn, TurnStatus::Interrupted));
    assert_eq!(text(stored), "early ");
    place.provider.push(Reply::says("mine now"));
    assert_eq!(text(&second.run(&thread, "go on").await), "mine now");
    second.close().await;
}

/// Part (c). The owner stands still in the middle of a turn; what its model says meanwhile must not get into the log.
#[tokio::test]
async fn p2_r46_a_frozen_owner_is_taken_over_and_cannot_write_when_it_thaws() {
    let place = Place::new().await;
    let beats = Some((Duration::from_millis(50), Duration::from_millis(300)));
    let setup = Setup { beats, ..place.setup.clone() };
    let mut first = Host::start(&setup).await;
    let mut second = Host::start(&setup).await;
    let thread = place.thread(&mut first).await;
    let other = place.thread(&mut first).await;
    let (turn, gate) = half_a_turn(&place, &mut first, &thread).await;

    first.freeze().await;
    gate.open();
    let (resumed, refused) = take_over(&mut second, &thread, first.pid()).await;
    assert!(refused > 0, "it must be watched first");
    let [stored] = resumed.turns.as_slice() else { panic!("one turn: {resumed:#?}") };
    assert_eq!((&stored.summary.id, stored.summary.status), (&turn, TurnStatus::Interrupted));
    assert_eq!(text(stored), "early ");
    place.provider.push(Reply::says("mine now"));
    assert_eq!(text(&second.run(&thread, "go on").await), "mine now");

    let before = place.log(&thread).await;
    let history = second.read(&thread).await.turns;
    first.thaw();
    let error = first
        .until("the error", |seen| match seen {
            Seen::Told(ServerNotification::Error(error)) => Some(error.clone()),
            _ => None,
        })
        .await;
    assert_eq!((error.code, error.thread_id), (ErrorCode::ThreadLockedElsewhere, Some(thread.clone())));
    first
        .until("the status", |seen| match seen {
            Seen::Told(ServerNotification::ThreadStatusChanged(n)) if n.thread_id == thread => {
                matches!(n.status, ThreadStatus::SystemError { .. }).then_some(())
            }
            _ => None,
        })
        .await;
    assert_eq!(place.log(&thread).await, before, "not one event of the old owner");
    assert_eq!(first.read(&thread).await.turns, history, "it reads what the new owner reads");
    let start = TurnStartParams::new(thread.clone(), "still me?");
    assert_locked(first.ask::<method::TurnStart>(start).await, second.pid());
    let told = first.seen().iter().filter(|seen| match seen {
        Seen::Told(ServerNotification::ItemAgentMessageDelta(n)) => n.delta.contains("late"),
        Seen::Told(ServerNotification::TurnCompleted(n)) => n.turn.id == turn,
        _ => false,
    });
    assert_eq!(told.count(), 0, "what was not written was not shown");

    // Both go on: one with its other thread, one with what it took.
    place.provider.push(Reply::says("I have others"));
    assert_eq!(text(&first.run(&other, "go on").await), "I have others");
    place.provider.push(Reply::says("undisturbed"));
    assert_eq!(text(&second.run(&thread, "go on").await), "undisturbed");
    let (log, _) = place.log(&thread).await;
    assert!(log.is_sorted_by(|one, next| one.seq < next.seq), "numbers rise");
    let newer = log.iter().find(|row| row.seq > before.1).expect("the newest turn");
    assert_eq!(newer.seq, before.1 + 1, "and go on without a gap");
    first.close().await;
    second.close().await;
}

/// Tries on each refusal until the thread can be had; gives the number of refusals.
async fn take_over(host: &mut Host, thread: &ThreadId, owner: u32) -> (ThreadResumeResult, u32) {
    let since = Instant::now();
    let mut refused = 0;
    loop {
        match host.resume(thread).await {
            Ok(resumed) => {
                println!("took over from a frozen owner in {:?}, after {refused} refusals", since.elapsed());
                return (resumed, refused);
            }
            refusal => assert_locked(refusal, owner),
        }
        refused += 1;
        assert!(since.elapsed() < TAKEOVER_TRIED_MAX, "refused {refused} times");
    }
}

/// Part (e).
#[tokio::test]
async fn p2_r46_aliases_of_a_home_are_one_home() {
    let place = Place::new().await;
    let mut first = Host::start(&place.setup).await;
    let thread = place.thread(&mut first).await;
    let link = place.directory.path().join("link");
    std::os::unix::fs::symlink(&place.setup.home, &link).expect("a link can be made");
    let base = place.directory.path().display().to_string();
    let aliases =
        [link, PathBuf::from(format!("{base}/./home")), PathBuf::from(format!("{base}/home/../home/"))];
    for home in aliases {
        let mut second = Host::start(&Setup { home, ..place.setup.clone() }).await;
        assert_locked(second.resume(&thread).await, first.pid());
        second.close().await;
    }
    place.provider.push(Reply::says("still mine"));
    assert_eq!(text(&first.run(&thread, "go on").await), "still mine");
    first.close().await;
}

/// Part (f).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_r46_fifty_threads_of_two_processes_do_not_meet() {
    let place = Place::new().await;
    let words: String = (1..=40).map(|number| format!("{number} ")).collect();
    let script = "script:\nrepeat 40 every=2ms";
    let (mut first, mut second) = (Host::start(&place.setup).await, Host::start(&place.setup).await);
    let (of_first, of_second) =
        tokio::join!(speak_in_all(&place, &mut first, script), speak_in_all(&place, &mut second, script));
    for thread in &of_first {
        assert_locked(second.resume(thread).await, first.pid());
    }
    for thread in &of_second {
        assert_locked(first.resume(thread).await, second.pid());
    }
    for thread in of_first.iter().chain(&of_second) {
        let (one, other) = (first.read(thread).await.turns, second.read(thread).await.turns);
        assert_eq!(one, other);
        let [turn] = one.as_slice() else { panic!("one turn: {one:#?}") };
        assert_eq!((turn.summary.status, text(turn)), (TurnStatus::Completed, words.clone()));
        let (log, last_seq) = place.log(thread).await;
        assert!(log.is_sorted_by(|one, next| one.seq < next.seq));
        assert_eq!(log.last().map(|row| row.seq), Some(last_seq));
    }
    first.kill().await;
    let since = Instant::now();
    for thread in &of_first {
        assert_eq!(second.resume(thread).await.expect("its owner is dead").turns.len(), 1);
    }
    println!("took over {THREADS_EACH} threads in {:?}", since.elapsed());
    second.close().await;
}

/// Starts the threads of one process and a turn in each at once, and waits for all of them.
async fn speak_in_all(place: &Place, host: &mut Host, script: &str) -> Vec<ThreadId> {
    let mut threads = Vec::new();
    for _ in 0..THREADS_EACH {
        let params = ThreadStartParams {
            cwd: place.directory.path().display().to_string(),
            model: Some(ModelRef::new("builtin", "script")),
            ..ThreadStartParams::default()
        };
        threads.push(host.ask::<method::ThreadStart>(params).await.expect("a thread starts").thread.id);
    }
    for thread in &threads {
        host.send::<method::TurnStart>(TurnStartParams::new(thread.clone(), script)).await;
    }
    let mut running = threads.clone();
    while !running.is_empty() {
        let ended = host
            .until("the end of a turn", |seen| match seen {
                Seen::Told(ServerNotification::TurnCompleted(n)) => Some(n.thread_id.clone()),
                Seen::Answer { result: Err(error), .. } => panic!("refused: {error}"),
                _ => None,
            })
            .await;
        running.retain(|thread| *thread != ended);
    }
    threads
}

/// Two processes, each of which soon notices when the other stands still.
async fn two_owners(place: &Place) -> (Host, Host) {
    let beats = Some((Duration::from_millis(50), Duration::from_millis(300)));
    let setup = Setup { beats, ..place.setup.clone() };
    (Host::start(&setup).await, Host::start(&setup).await)
}

/// Freezes the first in the middle of a turn, and lets the second take the thread over; gives the turn.
async fn lose(place: &Place, first: &mut Host, second: &mut Host, thread: &ThreadId) -> TurnId {
    let (turn, gate) = half_a_turn(place, first, thread).await;
    first.freeze().await;
    gate.open();
    take_over(second, thread, first.pid()).await;
    turn
}

/// A frozen owner in the middle of a turn, and the process that took its thread over.
async fn taken_over(place: &Place) -> (Host, Host, ThreadId) {
    let (mut first, mut second) = two_owners(place).await;
    let thread = place.thread(&mut first).await;
    lose(place, &mut first, &mut second, &thread).await;
    (first, second, thread)
}

/// The owner of before, once it has learnt that the thread is no longer its own.
async fn thawed(mut first: Host, thread: &ThreadId) -> Host {
    first.thaw();
    first
        .until("the status", |seen| match seen {
            Seen::Told(ServerNotification::ThreadStatusChanged(n)) if n.thread_id == *thread => {
                matches!(n.status, ThreadStatus::SystemError { .. }).then_some(())
            }
            _ => None,
        })
        .await;
    first
}

/// A send whose key the thread's next owner took down is not done again by the old one, once it has the thread back.
#[tokio::test]
async fn p2_an_owner_that_gets_its_thread_back_knows_what_was_sent_meanwhile() {
    use raddle::protocol::turn::{SendMode, TurnSendParams};
    let place = Place::new().await;
    let (first, mut second, thread) = taken_over(&place).await;
    let send = TurnSendParams {
        start: TurnStartParams::new(thread.clone(), "deploy"),
        mode: SendMode::Auto,
        idempotency_key: Some("key".to_owned()),
    };
    place.provider.push(Reply::says("deployed"));
    let sent = second.ask::<method::TurnSend>(send.clone()).await.expect("it is mine");
    second.turn_ended(sent.turn_id.as_ref().expect("a turn")).await;
    second.close().await;
    let mut first = thawed(first, &thread).await;
    place.provider.push(Reply::says("deployed AGAIN"));
    let again = first.ask::<method::TurnSend>(send).await.expect("nobody owns it");

    assert_eq!(again.turn_id, sent.turn_id, "the same key is the same send");
    first.close().await;
}

/// The settings of the next owner hold for the turn that brings the thread back.
#[tokio::test]
async fn p2_an_owner_that_gets_its_thread_back_uses_the_model_that_was_set_meanwhile() {
    use raddle::protocol::thread::ThreadSettingsUpdateParams;
    let place = Place::new().await;
    let (first, mut second, thread) = taken_over(&place).await;
    let echo = ThreadSettingsUpdateParams {
        model: Some(ModelRef::new("builtin", "echo")),
        ..ThreadSettingsUpdateParams::new(thread.clone())
    };
    second.ask::<method::ThreadSettingsUpdate>(echo).await.expect("it is mine");
    second.close().await;
    let mut first = thawed(first, &thread).await;
    place.provider.push(Reply::says("from the old model"));
    let turn = first.start_turn(&thread, "from echo").await;
    first.turn_ended(&turn).await;
    let turns = first.read(&thread).await.turns;
    assert_eq!(text(turns.last().expect("the turn")), "from echo");
    first.close().await;
}

/// An interrupt drops what waits for a thread that cannot go on as it does on any other.
#[tokio::test]
async fn an_interrupt_of_a_broken_thread_drops_its_queue() {
    use raddle::protocol::turn::{TurnInterruptParams, TurnQueueAddParams};
    let place = Place::new().await;
    let (first, mut second, thread) = taken_over(&place).await;
    // Its gate never opens: the shutdown ends the turn, and what waits behind it stays.
    let (_turn, _gate) = half_a_turn(&place, &mut second, &thread).await;
    let later = TurnQueueAddParams::new(thread.clone(), "later");
    second.ask::<method::TurnQueueAdd>(later).await.expect("it is mine");
    second.close().await;
    let mut first = thawed(first, &thread).await;
    place.provider.set_default(|_| Reply::says("said"));
    let interrupt = TurnInterruptParams { thread_id: thread.clone(), turn_id: None };
    first.ask::<method::TurnInterrupt>(interrupt).await.expect("nobody owns it");
    let resumed = first.resume(&thread).await.expect("mine");
    assert!(resumed.queue.follow_up.is_empty(), "{:?}", resumed.queue);
    assert_eq!(resumed.thread.status, ThreadStatus::Idle);
    first.run(&thread, "now").await;
    let read = first.read(&thread).await.turns;
    let said: Vec<_> = read.iter().flat_map(user_texts).collect();
    assert_eq!(said, ["speak", "speak", "now"]);
    first.close().await;
}

/// A thread that cannot go on still tells the totals of its branch.
#[tokio::test]
async fn a_broken_thread_tells_its_usage() {
    let place = Place::new().await;
    let (mut first, mut second) = two_owners(&place).await;
    let thread = place.thread(&mut first).await;
    place.provider.push(Reply::says("one"));
    first.run(&thread, "count").await;
    let before = first.resume(&thread).await.expect("mine").usage;
    assert!(before.counts.output > 0);
    lose(&place, &mut first, &mut second, &thread).await;
    let mut first = thawed(first, &thread).await;
    let after = first.resume(&thread).await.expect("it is still in memory");
    assert_eq!(after.usage, before);
    second.close().await;
    first.close().await;
}

/// Who watched a turn that was lost with the ownership is told of its end when the thread goes on, as a reader finds it.
#[tokio::test]
async fn p5_a_watcher_is_told_the_end_of_the_turn_that_broke() {
    let place = Place::new().await;
    let (mut first, mut second) = two_owners(&place).await;
    let thread = place.thread(&mut first).await;
    let turn = lose(&place, &mut first, &mut second, &thread).await;
    second.close().await;
    let mut first = thawed(first, &thread).await;
    place.provider.push(Reply::says("next"));
    let next = first.start_turn(&thread, "go on").await;
    first.turn_ended(&next).await;
    let read = first.read(&thread).await.turns;
    let watched = Witness::of(first.seen(), &HashMap::new());
    let watched = watched.turns(&thread);
    assert_eq!(watched, read);
    assert_eq!(read[0].summary.id, turn);
    let told = |seen: &&Seen| matches!(seen, Seen::Told(ServerNotification::ThreadTurnCompleted(n)) if n.turn.id == turn);
    assert_eq!(first.seen().iter().filter(told).count(), 1, "everybody is told once");
    first.close().await;
}
