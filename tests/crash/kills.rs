//! Two hundred deaths. Holds: P1, P3, P5. Case: R15.
//!
//! A victim streams turns, runs commands, is steered, stopped and told other settings, and dies by SIGKILL when its test
//! has read a line whose number chance picked; so the moment depends on what happened, not on a clock. Then the home is
//! opened again, and all that the victim's client had seen must be there. The same home lives on, so that later lives
//! stand on the ruins of earlier ones.
//!
//! Neighbours: dice, host, life, plan, reopened, witness.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use raddle::protocol::fold::INTERRUPTED_CALL_OUTPUT;
use raddle::protocol::methods::{ServerNotification, method};
use raddle::protocol::thread::{Thread, ThreadStartParams};
use raddle::protocol::{ItemKind, ItemStatus, ModelRef, ThreadId, Turn, TurnStatus};
use raddle_fakes::Provider;
use tempfile::TempDir;
use tokio::task::{JoinHandle, JoinSet};

use crate::dice::Dice;
use crate::host::{Host, Seen, Setup};
use crate::life::{Blow, Death, live};
use crate::plan::{EFFECTS, calls_with_effects, effects, follow_plans};
use crate::reopened::Reopened;
use crate::witness::{Witness, as_shown, difference, is_sent_as};

const HOMES: u64 = 10;
const LIVES_OF_A_HOME: u64 = 20;

/// Homes in which somebody lives and dies at the same time.
const HOMES_AT_ONCE: usize = 3;

/// Of so many homes one has a process that survives.
const HOMES_A_SURVIVOR: u64 = 3;

/// Bytes of the WAL from which the store writes it back: deaths beyond it come during that, or just before or after.
const LONG_WAL_BYTES: u64 = raddle_store::WAL_PAGES_IDLE as u64 * 4096;

/// What became of the lives, to see that chance struck everywhere.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    lives: u32,
    /// Turns that ran when their process was killed, by what they were at.
    in_text: u32,
    in_call: u32,
    in_approval: u32,
    between: u32,
    /// Killed before they were open.
    unopened: u32,
    /// Killed with requests that had no answer.
    unanswered: u32,
    /// Of these, starts of threads.
    threads_unanswered: u32,
    /// Killed with a WAL that is long enough to be written back.
    long_wals: u32,
    /// Calls that recovery had to close.
    calls_closed: u32,
    turns: u32,
    lines: usize,
    turns_of_survivors: usize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_p3_p5_two_hundred_kills() {
    let dice = Dice::from_environment();
    let mut homes = JoinSet::new();
    let mut tally = Tally::default();
    let mut next = 0;
    while next < HOMES || !homes.is_empty() {
        while next < HOMES && homes.len() < HOMES_AT_ONCE {
            homes.spawn(home(next, dice.part(next)));
            next += 1;
        }
        match homes.join_next().await {
            Some(Ok(Ok(of_home))) => tally.add(of_home),
            Some(Ok(Err(fault))) => panic!("{fault}"),
            Some(Err(failed)) => std::panic::resume_unwind(failed.into_panic()),
            None => {}
        }
    }
    println!("{tally:?}");
    assert_eq!(u64::from(tally.lives), HOMES * LIVES_OF_A_HOME);
    let hit = [
        tally.in_text,
        tally.in_call,
        tally.in_approval,
        tally.between,
        tally.unopened,
        tally.long_wals,
        tally.threads_unanswered,
    ];
    assert!(hit.iter().all(|count| *count > 0), "chance left something out: {tally:?}");
}

async fn home(number: u64, dice: Dice) -> Result<Tally, String> {
    let mut home = Home::new(dice).await;
    let survivor = if number.is_multiple_of(HOMES_A_SURVIVOR) {
        let survivor = Survivor::start(&home.setup, &home.project).await;
        home.of_others.push(survivor.thread.clone());
        Some(survivor)
    } else {
        None
    };
    for life in 0..LIVES_OF_A_HOME {
        home.live_and_die().await.map_err(|fault| format!("home {number}, life {life}: {fault}"))?;
    }
    if let Some(survivor) = survivor {
        let turns =
            survivor.end().await.map_err(|fault| format!("the survivor of home {number}: {fault}"))?;
        home.tally.turns_of_survivors += turns;
    }
    Ok(home.tally)
}

/// A process on the same home, with a thread of its own, that goes on while others die beside it.
struct Survivor {
    thread: ThreadId,
    stop: Arc<AtomicBool>,
    living: JoinHandle<Host>,
}

impl Survivor {
    async fn start(setup: &Setup, project: &Path) -> Self {
        let mut host = Host::start(setup).await;
        let params = ThreadStartParams {
            cwd: project.display().to_string(),
            model: Some(ModelRef::new("builtin", "script")),
            ..ThreadStartParams::default()
        };
        let started = host.ask::<method::ThreadStart>(params).await.expect("a thread starts");
        let (thread, stop) = (started.thread.id, Arc::new(AtomicBool::new(false)));
        let living = tokio::spawn({
            let (thread, stop) = (thread.clone(), stop.clone());
            async move {
                while !stop.load(Ordering::Relaxed) {
                    let turn = host.start_turn(&thread, "script:\nrepeat 200 every=3ms bytes=20").await;
                    host.turn_ended(&turn).await;
                }
                host
            }
        });
        Self { thread, stop, living }
    }

    /// Ends it; gives the number of its turns.
    ///
    /// # Errors
    /// When anything had happened to it.
    async fn end(self) -> Result<usize, String> {
        self.stop.store(true, Ordering::Relaxed);
        let mut host = self.living.await.map_err(|failed| failed.to_string())?;
        let watched = Witness::of(host.seen(), &HashMap::new());
        let watched = watched.turns(&self.thread);
        let read = host.read(&self.thread).await;
        let newest = &watched[watched.len() - read.turns.len()..];
        let as_watched = newest.iter().zip(&read.turns).all(|(watched, read)| is_sent_as(read, watched));
        if !as_watched || newest.iter().any(|turn| turn.summary.status != TurnStatus::Completed) {
            return Err(difference(newest, &read.turns));
        }
        let seen = host.close().await;
        match seen.iter().find(|line| matches!(line, Seen::Told(ServerNotification::Error(_)))) {
            None => Ok(watched.len()),
            Some(error) => Err(format!("it met an error: {error:?}")),
        }
    }
}

struct Home {
    dice: Dice,
    _directory: TempDir,
    setup: Setup,
    project: PathBuf,
    provider: Provider,
    /// Threads of somebody who lives.
    of_others: Vec<ThreadId>,
    /// The histories as they were read last.
    known: BTreeMap<ThreadId, Vec<Turn>>,
    tally: Tally,
}

impl Home {
    async fn new(dice: Dice) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let project = directory.path().join("project");
        std::fs::create_dir(&project).expect("a directory");
        let provider = Provider::start().await;
        follow_plans(&provider);
        let setup = Setup::new(directory.path().join("home")).with_provider(provider.base_url());
        Self {
            dice,
            _directory: directory,
            setup,
            project,
            provider,
            of_others: Vec::new(),
            known: BTreeMap::new(),
            tally: Tally::default(),
        }
    }

    async fn live_and_die(&mut self) -> Result<(), String> {
        // Half of the homes are not even made in peace.
        let blow = match self.tally.lives {
            0 if self.dice.chance(60) => Blow::opening(&mut self.dice),
            _ => Blow::roll(&mut self.dice),
        };
        let life = live(&mut self.dice, &self.setup, &self.project, &self.known, blow);
        let death = life.await.map_err(|fault| format!("{blow:?}: {fault}"))?;
        self.count(&death);
        self.reopen(&death).await.map_err(|fault| format!("{blow:?}: {fault}"))
    }

    fn count(&mut self, death: &Death) {
        let tally = &mut self.tally;
        tally.lives += 1;
        tally.lines += death.lines;
        let wal = std::fs::metadata(self.setup.home.join("raddle.db-wal"));
        tally.long_wals += u32::from(wal.is_ok_and(|wal| wal.len() >= LONG_WAL_BYTES));
        tally.unopened += u32::from(!death.opened);
        tally.unanswered += u32::from(death.unanswered);
        tally.threads_unanswered += u32::from(death.thread_unanswered);
        for turn in death.witness.running() {
            let open = turn.items.iter().rfind(|item| item.status == ItemStatus::InProgress);
            *match open.map(|item| &item.kind) {
                Some(ItemKind::ToolCall { .. }) if death.approval_open => &mut tally.in_approval,
                Some(ItemKind::ToolCall { .. }) => &mut tally.in_call,
                Some(_) => &mut tally.in_text,
                None => &mut tally.between,
            } += 1;
        }
    }

    /// Looks at what the dead left, and goes on with it.
    async fn reopen(&mut self, death: &Death) -> Result<(), String> {
        let witness = &death.witness;
        let reopened = Reopened::open(&self.setup.home, Some(self.provider.base_url())).await;
        let mut listed: Vec<ThreadId> =
            reopened.threads().await.into_iter().map(|thread| thread.id).collect();
        listed.retain(|id| !self.of_others.contains(id));
        if let Some(lost) = witness.threads().chain(self.known.keys()).find(|id| !listed.contains(id)) {
            return Err(format!("thread {lost} is not listed"));
        }
        for id in &listed {
            let turns = self.check(&reopened, witness, id).await.map_err(|fault| format!("{id}: {fault}"))?;
            self.known.insert(id.clone(), turns);
        }
        if let Some(id) = death.threads.first().or(listed.first()) {
            self.go_on(&reopened, id).await.map_err(|fault| format!("{id}: {fault}"))?;
        }
        reopened.close().await;
        self.check_effects()
    }

    async fn check(
        &mut self,
        reopened: &Reopened,
        witness: &Witness,
        id: &ThreadId,
    ) -> Result<Vec<Turn>, String> {
        let limit = 1 + u32::try_from(self.dice.roll(9)).unwrap_or_default();
        let (thread, read) = reopened.read(id, limit).await;
        let resumed = reopened.resume(id).await;
        let (header, again) = reopened.read(id, limit).await;
        // The time at which something was last said in it is told exactly only by the end that recovery writes.
        let later = header.updated_at >= thread.updated_at;
        let header =
            Thread { status: thread.status.clone(), updated_at: thread.updated_at.clone(), ..header };
        if header != thread || !later {
            return Err(format!("resuming changed {thread:?} into {header:?}"));
        }
        // P5: what recovery wrote is what a reader saw without it.
        if again != read {
            return Err(format!("resuming changed it: {}", difference(&read, &again)));
        }
        if let Some(shown) = witness.usage(id)
            && (resumed.usage.counts.input < shown.counts.input
                || resumed.usage.counts.output < shown.counts.output)
        {
            return Err(format!("{shown:?} were shown as used, {:?} are stored", resumed.usage));
        }
        let newest = &read[read.len().saturating_sub(resumed.turns.len())..];
        if resumed.turns != newest || resumed.running_turn.is_some() {
            return Err(format!("it resumes in another way: {}", difference(newest, &resumed.turns)));
        }
        let before = self.known.get(id).map_or(&[] as &[Turn], Vec::as_slice);
        if !read.starts_with(before) {
            return Err(format!("what was there before has changed: {}", difference(before, &read)));
        }
        for (turn, item) in witness.compare(&thread, &read)? {
            if !reopened.was_removed(id, &turn, &item).await {
                return Err(format!("item {item} of turn {turn} was shown and is gone"));
            }
        }
        for turn in &read[before.len()..] {
            self.tally.turns += 1;
            self.tally.calls_closed += check_turn(turn)?;
        }
        Ok(read)
    }

    /// One more turn runs, and the provider is asked in a way that it accepts.
    async fn go_on(&mut self, reopened: &Reopened, id: &ThreadId) -> Result<(), String> {
        reopened.use_fake_model(id).await;
        let told = reopened.run(id, "go on").await;
        let faults = self.provider.take_faults();
        if !faults.is_empty() {
            return Err(format!("the provider was asked badly: {faults:?}"));
        }
        if told.summary.status != TurnStatus::Completed {
            return Err(format!("the next turn did not complete: {told:#?}"));
        }
        let (_, read) = reopened.read(id, 50).await;
        let before = self.known.insert(id.clone(), read.clone()).unwrap_or_default();
        // P5: watching the new turn was reading it.
        if read[..read.len() - 1] != before || read.last().map(as_shown) != Some(told.clone()) {
            let watched: Vec<Turn> = before.into_iter().chain([told]).collect();
            return Err(format!("watching was not reading: {}", difference(&watched, &read)));
        }
        Ok(())
    }

    /// P3: nothing was done twice, and nothing without a call in the log.
    fn check_effects(&self) -> Result<(), String> {
        let calls: HashMap<&str, _> =
            self.known.values().flat_map(|turns| calls_with_effects(turns)).collect();
        let effects = effects(&self.project);
        for (mark, times) in &effects {
            match calls.get(mark.as_str()) {
                Some(_) if *times == 1 => {}
                Some(call) => return Err(format!("{times} times `{mark}` in {EFFECTS}: {call:?}")),
                None => return Err(format!("`{mark}` is in {EFFECTS}, and no call is in the log")),
            }
        }
        for (mark, call) in calls {
            let ran = matches!(call.status, ItemStatus::Completed | ItemStatus::Failed);
            if ran && !effects.contains_key(mark) {
                return Err(format!("`{mark}` is not in {EFFECTS}: {call:?}"));
            }
            if call.status == ItemStatus::Declined && effects.contains_key(mark) {
                return Err(format!("`{mark}` is in {EFFECTS} although it was declined: {call:?}"));
            }
        }
        Ok(())
    }
}

/// What holds for every turn of a thread in which nothing runs; gives the number of calls that recovery closed.
fn check_turn(turn: &Turn) -> Result<u32, String> {
    let mut closed = 0;
    let open = turn.items.iter().any(|item| item.status == ItemStatus::InProgress);
    if open || turn.summary.status == TurnStatus::InProgress {
        return Err(format!("something is still going on in {turn:#?}"));
    }
    for item in &turn.items {
        let ItemKind::ToolCall { output, is_error, .. } = &item.kind else { continue };
        let Some(output) = output else { return Err(format!("a call has no result: {item:#?}")) };
        if item.status == ItemStatus::Interrupted {
            if !is_error {
                return Err(format!("an interrupted call counts as a success: {item:#?}"));
            }
            closed += u32::from(output.as_str().ends_with(INTERRUPTED_CALL_OUTPUT));
        }
    }
    Ok(closed)
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.lives += other.lives;
        self.in_text += other.in_text;
        self.in_call += other.in_call;
        self.in_approval += other.in_approval;
        self.between += other.between;
        self.unopened += other.unopened;
        self.unanswered += other.unanswered;
        self.threads_unanswered += other.threads_unanswered;
        self.calls_closed += other.calls_closed;
        self.turns += other.turns;
        self.lines += other.lines;
        self.long_wals += other.long_wals;
        self.turns_of_survivors += other.turns_of_survivors;
    }
}
