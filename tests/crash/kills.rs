//! Two hundred deaths. Holds: P1, P3, P5. Case: R15.
//!
//! A victim streams turns, runs commands, is steered, stopped and told other settings, and dies by SIGKILL when its test
//! has read a line whose number chance picked; so the moment depends on what happened, not on a clock. Then the home is
//! opened again, and all that the victim's client had seen must be there. The same home lives on, so that later lives
//! stand on the ruins of earlier ones.
//!
//! Neighbours: dice, host, plan, reopened, witness.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use raddle::protocol::approval::Decision;
use raddle::protocol::fold::INTERRUPTED_CALL_OUTPUT;
use raddle::protocol::methods::{ServerNotification, method};
use raddle::protocol::thread::{
    ApprovalMode, ThreadReadParams, ThreadResumeResult, ThreadSettings, ThreadSettingsUpdateParams,
    ThreadStartParams,
};
use raddle::protocol::turn::{TurnInterruptParams, TurnStartParams, TurnSteerParams};
use raddle::protocol::{ItemKind, ItemStatus, ModelRef, ThreadId, Turn, TurnId, TurnStatus};
use raddle_fakes::Provider;
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::dice::Dice;
use crate::host::{Host, Seen, Setup};
use crate::plan::{EFFECTS, Plan, STEER, calls_with_effects, effects, follow_plans};
use crate::reopened::{Reopened, fake_model};
use crate::witness::{Asked, Witness};

const HOMES: u64 = 10;
const LIVES_OF_A_HOME: u64 = 20;

/// Homes in which somebody lives and dies at the same time.
const HOMES_AT_ONCE: usize = 3;

/// Threads of a home at most, apart from those whose start was never answered.
const THREADS_MAX: usize = 4;

/// What became of the lives, to see that chance struck everywhere.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    lives: u32,
    /// Killed while a turn was running, by what it was at.
    in_text: u32,
    in_call: u32,
    in_approval: u32,
    between: u32,
    /// Killed with requests that had no answer.
    unanswered: u32,
    /// Of these, starts of threads.
    threads_unanswered: u32,
    /// Calls that recovery had to close.
    calls_closed: u32,
    turns: u32,
    lines: u32,
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
    let hit = [tally.in_text, tally.in_call, tally.in_approval, tally.between, tally.threads_unanswered];
    assert!(hit.iter().all(|count| *count > 0), "chance left something out: {tally:?}");
}

async fn home(number: u64, dice: Dice) -> Result<Tally, String> {
    let mut home = Home::new(dice).await;
    for life in 0..LIVES_OF_A_HOME {
        home.live_and_die().await.map_err(|fault| format!("home {number}, life {life}: {fault}"))?;
    }
    Ok(home.tally)
}

struct Home {
    dice: Dice,
    _directory: TempDir,
    setup: Setup,
    project: PathBuf,
    provider: Provider,
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
        let (known, tally) = (BTreeMap::new(), Tally::default());
        Self { dice, _directory: directory, setup, project, provider, known, tally }
    }

    async fn live_and_die(&mut self) -> Result<(), String> {
        let life = Life::begin(self).await;
        let death = life.live().await?;
        self.count(&death);
        let thread = death.thread.clone();
        self.reopen(&death.witness, thread).await
    }

    fn count(&mut self, death: &Death) {
        let tally = &mut self.tally;
        tally.lives += 1;
        tally.lines += u32::try_from(death.lines).unwrap_or(u32::MAX);
        tally.unanswered += u32::from(death.unanswered);
        tally.threads_unanswered += u32::from(death.thread_unanswered);
        let Some(turn) = death.witness.running() else { return };
        let open = turn.items.iter().rfind(|item| item.status == ItemStatus::InProgress);
        *match open.map(|item| &item.kind) {
            Some(ItemKind::ToolCall { .. }) if death.approval_open => &mut tally.in_approval,
            Some(ItemKind::ToolCall { .. }) => &mut tally.in_call,
            Some(_) => &mut tally.in_text,
            None => &mut tally.between,
        } += 1;
    }

    /// Looks at what the dead left, and goes on with it.
    async fn reopen(&mut self, witness: &Witness, thread: Option<ThreadId>) -> Result<(), String> {
        let reopened = Reopened::open(&self.setup.home, Some(self.provider.base_url())).await;
        let listed: Vec<ThreadId> = reopened.threads().await.into_iter().map(|thread| thread.id).collect();
        if let Some(lost) = witness.threads().chain(self.known.keys()).find(|id| !listed.contains(id)) {
            return Err(format!("thread {lost} is not listed"));
        }
        for id in &listed {
            let turns = self.check(&reopened, witness, id).await.map_err(|fault| format!("{id}: {fault}"))?;
            self.known.insert(id.clone(), turns);
        }
        let thread = thread.or_else(|| listed.first().cloned());
        if let Some(id) = thread {
            self.go_on(&reopened, &id).await.map_err(|fault| format!("{id}: {fault}"))?;
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
        let (_, again) = reopened.read(id, limit).await;
        // P5: what recovery wrote is what a reader saw without it.
        if again != read {
            return Err(format!("before resuming it read as\n{read:#?}\nafter as\n{again:#?}"));
        }
        if !read.ends_with(&resumed.turns) || resumed.running_turn.is_some() {
            return Err(format!("it reads as\n{read:#?}\nand resumes as\n{resumed:#?}"));
        }
        let before = self.known.get(id).map_or(&[] as &[Turn], Vec::as_slice);
        if !read.starts_with(before) {
            return Err(format!("it was\n{before:#?}\nand is\n{read:#?}"));
        }
        for (turn, item) in witness.compare(&thread, &read)? {
            if !reopened.was_removed(id, &turn, &item).await {
                return Err(format!("item {item} of turn {turn} was shown and is gone:\n{read:#?}"));
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
        if read[..read.len() - 1] != before || read.last() != Some(&told) {
            return Err(format!("after\n{before:#?}\ncame\n{told:#?}\nand it reads as\n{read:#?}"));
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
            closed += u32::from(output.ends_with(INTERRUPTED_CALL_OUTPUT));
        }
    }
    Ok(closed)
}

/// How a victim is killed.
#[derive(Clone, Copy, Debug)]
enum Blow {
    /// When the last line was read.
    AtOnce,
    /// When some more bytes were read.
    AfterBytes(u64),
    /// When one more request was sent, and its answer looked for so many times.
    AfterRequest(u64),
}

/// A victim that lives, and what was asked of it.
struct Life<'a> {
    home: &'a mut Home,
    host: Host,
    asked: HashMap<i64, Asked>,
    /// Threads whose histories were asked for.
    resumed: HashMap<i64, ThreadId>,
    thread: Option<ThreadId>,
    settings: ThreadSettings,
    turn: Option<TurnId>,
    steers: u32,
    /// An approval was left open.
    approval_open: bool,
}

/// What is left of it.
struct Death {
    witness: Witness,
    thread: Option<ThreadId>,
    lines: usize,
    unanswered: bool,
    thread_unanswered: bool,
    approval_open: bool,
}

impl<'a> Life<'a> {
    async fn begin(home: &'a mut Home) -> Self {
        let host = Host::start(&home.setup).await;
        Self {
            home,
            host,
            asked: HashMap::new(),
            resumed: HashMap::new(),
            thread: None,
            settings: ThreadSettings::default(),
            turn: None,
            steers: 0,
            approval_open: false,
        }
    }

    async fn live(mut self) -> Result<Death, String> {
        let dice = &mut self.home.dice;
        let lines = if dice.chance(25) { 1 + dice.roll(12) } else { 1 + dice.roll(300) };
        let blow = match dice.roll(10) {
            0..5 => Blow::AtOnce,
            5..7 => Blow::AfterBytes(1 + dice.roll(3_000)),
            _ => Blow::AfterRequest(dice.roll(500)),
        };
        self.open_a_thread().await;
        for _ in 0..lines {
            let seen = self.host.next().await.ok_or("the victim died by itself")?;
            self.react(&seen).await?;
            if self.approval_open {
                break;
            }
        }
        match blow {
            Blow::AtOnce => {}
            Blow::AfterBytes(most) => self.host.sip(most).await,
            Blow::AfterRequest(looks) => {
                self.ask_something().await;
                for _ in 0..looks {
                    self.host.sip(64).await;
                }
            }
        }
        let seen = self.host.kill().await;
        if let Some(error) = seen.iter().find(|line| matches!(line, Seen::Told(ServerNotification::Error(_))))
        {
            return Err(format!("the victim met an error: {error:?}"));
        }
        let answered =
            |id: &i64| seen.iter().any(|line| matches!(line, Seen::Answer { id: known, .. } if known == id));
        let mut open = self.asked.iter().filter(|(id, _)| !answered(id)).map(|(_, asked)| asked);
        let witness = Witness::of(&seen, &self.asked);
        Ok(Death {
            unanswered: open.clone().next().is_some(),
            thread_unanswered: open.any(|asked| matches!(asked, Asked::StartThread)),
            witness,
            thread: self.thread,
            lines: seen.len(),
            approval_open: self.approval_open,
        })
    }

    /// Goes on with a thread, or starts one.
    async fn open_a_thread(&mut self) {
        let ids: Vec<ThreadId> = self.home.known.keys().cloned().collect();
        if ids.is_empty() || (ids.len() < THREADS_MAX && self.home.dice.chance(25)) {
            return self.start_thread().await;
        }
        let id = self.home.dice.pick(&ids).clone();
        let request = self.host.send::<method::ThreadResume>(ThreadReadParams::newest(id.clone())).await;
        self.asked.insert(request, Asked::Other);
        self.resumed.insert(request, id);
    }

    async fn start_thread(&mut self) {
        let params = ThreadStartParams {
            cwd: self.home.project.display().to_string(),
            approval_mode: Some(self.pick_mode()),
            model: Some(self.pick_model()),
            name: None,
        };
        let request = self.host.send::<method::ThreadStart>(params).await;
        self.asked.insert(request, Asked::StartThread);
    }

    async fn start_turn(&mut self) {
        let Some(thread_id) = self.thread.clone() else { return };
        let plan = Plan::new(&mut self.home.dice);
        let scripted = self.settings.model.as_ref().is_some_and(|model| model.provider == "builtin");
        let text = if scripted { plan.script() } else { plan.prompt() };
        let params = TurnStartParams {
            client_message_id: self.home.dice.chance(50).then(|| "mine".to_owned()),
            ..TurnStartParams::new(thread_id, text.clone())
        };
        let request = self.host.send::<method::TurnStart>(params).await;
        self.asked.insert(request, Asked::StartTurn { text });
    }

    async fn steer(&mut self) {
        let (Some(thread_id), Some(turn_id)) = (self.thread.clone(), self.turn.clone()) else { return };
        self.steers += 1;
        let text = format!("{STEER}, number {} of turn {turn_id}", self.steers);
        let params = TurnSteerParams {
            thread_id,
            expected_turn_id: turn_id,
            text: text.clone(),
            client_message_id: None,
        };
        let request = self.host.send::<method::TurnSteer>(params).await;
        self.asked.insert(request, Asked::Steer { text });
    }

    async fn interrupt(&mut self) {
        let Some(thread_id) = self.thread.clone() else { return };
        let params = TurnInterruptParams { thread_id, turn_id: self.turn.clone() };
        let request = self.host.send::<method::TurnInterrupt>(params).await;
        self.asked.insert(request, Asked::Other);
    }

    async fn change_settings(&mut self) {
        let Some(thread_id) = self.thread.clone() else { return };
        self.settings = ThreadSettings { model: Some(self.pick_model()), approval_mode: self.pick_mode() };
        let params = ThreadSettingsUpdateParams {
            thread_id: thread_id.clone(),
            model: self.settings.model.clone(),
            approval_mode: Some(self.settings.approval_mode),
        };
        let request = self.host.send::<method::ThreadSettingsUpdate>(params).await;
        self.asked.insert(request, Asked::Settings { thread_id, settings: self.settings.clone() });
    }

    fn pick_model(&mut self) -> ModelRef {
        if self.home.dice.chance(50) { ModelRef::new("builtin", "script") } else { fake_model() }
    }

    fn pick_mode(&mut self) -> ApprovalMode {
        if self.home.dice.chance(25) { ApprovalMode::Ask } else { ApprovalMode::FullAccess }
    }

    /// The request that the victim may not live to answer.
    async fn ask_something(&mut self) {
        let running = self.turn.is_some();
        match self.home.dice.roll(4) {
            0 => self.start_thread().await,
            1 if running => self.steer().await,
            2 if running => self.interrupt().await,
            1 | 2 => self.start_turn().await,
            _ => self.change_settings().await,
        }
    }

    async fn react(&mut self, seen: &Seen) -> Result<(), String> {
        match seen {
            Seen::Answer { id, result } => self.answered(*id, result.clone()).await?,
            Seen::Asked { id, .. } => match self.home.dice.roll(10) {
                0..6 => self.host.decide(id, Decision::Accept).await,
                6..8 => self.host.decide(id, Decision::Decline).await,
                _ => self.approval_open = true,
            },
            Seen::Told(ServerNotification::TurnCompleted(n)) if self.turn.as_ref() == Some(&n.turn.id) => {
                self.turn = None;
                if self.home.dice.chance(30) {
                    self.change_settings().await;
                }
                self.start_turn().await;
            }
            Seen::Told(_) if self.turn.is_some() => match self.home.dice.roll(200) {
                0..6 => self.steer().await,
                6..9 => self.change_settings().await,
                9 => self.interrupt().await,
                _ => {}
            },
            Seen::Told(_) => {}
        }
        Ok(())
    }

    async fn answered(
        &mut self,
        id: i64,
        result: Result<serde_json::Value, raddle::protocol::RpcError>,
    ) -> Result<(), String> {
        let result = match (result, self.asked.get(&id)) {
            (Ok(result), _) => result,
            // It came when its turn had ended.
            (Err(error), Some(Asked::Steer { .. })) if error.code.as_str() == "turnMismatch" => return Ok(()),
            (Err(error), Some(Asked::Other)) if error.code.as_str() == "turnMismatch" => return Ok(()),
            (Err(error), asked) => return Err(format!("{asked:?} was refused: {error}")),
        };
        if let Some(thread_id) = self.resumed.get(&id) {
            let resumed: ThreadResumeResult =
                serde_json::from_value(result).map_err(|error| error.to_string())?;
            let known = &self.home.known[thread_id];
            if !known.ends_with(&resumed.turns) || resumed.running_turn.is_some() {
                return Err(format!("another process read\n{known:#?}\nit resumes as\n{resumed:#?}"));
            }
            self.thread = Some(thread_id.clone());
            self.settings = resumed.thread.settings;
            self.start_turn().await;
            return Ok(());
        }
        match self.asked.get(&id) {
            Some(Asked::StartThread) => {
                self.thread = result["thread"]["id"].as_str().map(ThreadId::from);
                self.settings = serde_json::from_value(result["thread"]["settings"].clone())
                    .map_err(|error| error.to_string())?;
                self.start_turn().await;
            }
            Some(Asked::StartTurn { .. }) => self.turn = result["turnId"].as_str().map(TurnId::from),
            _ => {}
        }
        Ok(())
    }
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.lives += other.lives;
        self.in_text += other.in_text;
        self.in_call += other.in_call;
        self.in_approval += other.in_approval;
        self.between += other.between;
        self.unanswered += other.unanswered;
        self.threads_unanswered += other.threads_unanswered;
        self.calls_closed += other.calls_closed;
        self.turns += other.turns;
        self.lines += other.lines;
    }
}
