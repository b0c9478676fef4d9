//! One life of a victim: what it is asked, and how it dies.
//!
//! Neighbours: dice, host, plan, reopened, witness.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use raddle::protocol::approval::Decision;
use raddle::protocol::fold::Change;
use raddle::protocol::methods::{ServerNotification, method};
use raddle::protocol::thread::{
    ApprovalMode, Thread, ThreadReadParams, ThreadResumeResult, ThreadSettings, ThreadSettingsUpdateParams,
    ThreadStartParams,
};
use raddle::protocol::turn::{TurnInterruptParams, TurnStartParams, TurnStartResult, TurnSteerParams};
use raddle::protocol::{ErrorCode, ModelRef, RpcError, ThreadId, Turn, TurnId};
use serde_json::Value;

use crate::dice::Dice;
use crate::host::{Host, Seen, Setup};
use crate::plan::{Plan, STEER};
use crate::reopened::fake_model;
use crate::witness::{Asked, Witness, difference, is_sent_as};

/// Threads that a life may start in a home; beyond, it goes on with those that are there.
const THREADS_MAX: usize = 4;

/// How a victim is killed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Blow {
    /// Before it is open: when this file of its home is there, and its first line was looked for so many times.
    Opening { file: &'static str, looks: u64 },
    /// When so many lines were read.
    AtOnce { lines: u64 },
    /// When some more bytes were read.
    AfterBytes { lines: u64, bytes: u64 },
    /// When one more request was sent, and its answer looked for so many times.
    AfterRequest { lines: u64, looks: u64 },
    /// While it closes in good order.
    Closing { lines: u64, looks: u64 },
}

impl Blow {
    pub(crate) fn roll(dice: &mut Dice) -> Self {
        let lines = if dice.chance(25) { 1 + dice.roll(12) } else { 1 + dice.roll(300) };
        match dice.roll(20) {
            0 => Self::opening(dice),
            1..10 => Self::AtOnce { lines },
            10..13 => Self::AfterBytes { lines, bytes: 1 + dice.roll(3_000) },
            13..18 => Self::AfterRequest { lines, looks: dice.roll(500) },
            _ => Self::Closing { lines, looks: dice.roll(2_000) },
        }
    }

    pub(crate) fn opening(dice: &mut Dice) -> Self {
        // In the order in which they are made.
        let files = ["", "raddle.db", "owners", "raddle.db-wal"];
        let (file, most) = (files[dice.below(files.len())], 1 << dice.roll(13));
        Self::Opening { file, looks: dice.roll(most) }
    }
}

/// What is left of a life.
pub(crate) struct Death {
    /// What was shown in it.
    pub(crate) witness: Witness,
    /// The threads that it used.
    pub(crate) threads: Vec<ThreadId>,
    pub(crate) lines: usize,
    /// Whether it had been open.
    pub(crate) opened: bool,
    /// Whether a request had no answer, and whether one of these would have started a thread.
    pub(crate) unanswered: bool,
    pub(crate) thread_unanswered: bool,
    /// Whether an approval was left open.
    pub(crate) approval_open: bool,
}

/// A victim that lives, and what was asked of it.
struct Life<'a> {
    dice: &'a mut Dice,
    project: &'a Path,
    known: &'a BTreeMap<ThreadId, Vec<Turn>>,
    host: Host,
    asked: HashMap<i64, Asked>,
    /// Threads whose histories were asked for.
    resumed: HashMap<i64, ThreadId>,
    /// The threads in use.
    threads: BTreeMap<ThreadId, InUse>,
    steers: u32,
    approval_open: bool,
}

#[derive(Clone, Debug, Default)]
struct InUse {
    settings: ThreadSettings,
    turn: Option<TurnId>,
}

/// Lives in a home with these histories, until the blow.
///
/// # Errors
/// When the victim refuses what it must take, shows another history than the known one, or dies by itself.
pub(crate) async fn live(
    dice: &mut Dice,
    setup: &Setup,
    project: &Path,
    known: &BTreeMap<ThreadId, Vec<Turn>>,
    blow: Blow,
) -> Result<Death, String> {
    let mut host = Host::spawn(setup);
    if let Blow::Opening { file, looks } = blow {
        let file = setup.home.join(file);
        let mut looks = looks;
        while looks > 0 && host.sip(64).await && !host.has_line() {
            looks -= u64::from(file.exists());
        }
    } else {
        host.opened().await.map_err(|refused| format!("the victim was refused: {refused}"))?;
    }
    let mut life = Life {
        dice,
        project,
        known,
        host,
        asked: HashMap::new(),
        resumed: HashMap::new(),
        threads: BTreeMap::new(),
        steers: 0,
        approval_open: false,
    };
    match blow {
        Blow::Opening { .. } => {}
        Blow::AtOnce { lines } => life.go_on(lines).await?,
        Blow::AfterBytes { lines, bytes } => {
            life.go_on(lines).await?;
            let _ = life.host.sip(bytes).await;
        }
        Blow::AfterRequest { lines, looks } => {
            life.go_on(lines).await?;
            life.ask_something().await;
            life.look(looks).await;
        }
        Blow::Closing { lines, looks } => {
            life.go_on(lines).await?;
            life.host.hang_up();
            life.look(looks).await;
        }
    }
    life.die().await
}

impl Life<'_> {
    async fn die(self) -> Result<Death, String> {
        let opened = self.host.is_open() || self.host.has_line();
        let seen = self.host.kill().await;
        if let Some(error) = seen.iter().find(|line| matches!(line, Seen::Told(ServerNotification::Error(_))))
        {
            return Err(format!("the victim met an error: {error:?}"));
        }
        let answered =
            |id: &i64| seen.iter().any(|line| matches!(line, Seen::Answer { id: known, .. } if known == id));
        let mut open = self.asked.iter().filter(|(id, _)| !answered(id)).map(|(_, asked)| asked);
        let unanswered = open.clone().next().is_some();
        let thread_unanswered = open.any(|asked| matches!(asked, Asked::StartThread));
        Ok(Death {
            witness: Witness::of(&seen, &self.asked),
            threads: self.threads.into_keys().collect(),
            lines: seen.len(),
            opened,
            unanswered,
            thread_unanswered,
            approval_open: self.approval_open,
        })
    }

    /// Opens threads and keeps them busy for so many lines, or until an approval is left open.
    async fn go_on(&mut self, lines: u64) -> Result<(), String> {
        let mut closed: Vec<ThreadId> = self.known.keys().cloned().collect();
        for _ in 0..[1, 1, 1, 2, 2, 3][self.dice.below(6)] {
            if closed.is_empty() || (self.known.len() < THREADS_MAX && self.dice.chance(25)) {
                self.start_thread().await;
            } else {
                let id = closed.swap_remove(self.dice.below(closed.len()));
                self.resume(id).await;
            }
        }
        for _ in 0..lines {
            let seen = self.host.next().await.ok_or("the victim died by itself")?;
            self.react(&seen).await?;
            if self.approval_open {
                break;
            }
        }
        Ok(())
    }

    async fn look(&mut self, times: u64) {
        for _ in 0..times {
            let _ = self.host.sip(64).await;
        }
    }

    async fn start_thread(&mut self) {
        let params = ThreadStartParams {
            cwd: self.project.display().to_string(),
            approval_mode: Some(self.pick_mode()),
            model: Some(self.pick_model()),
            ..ThreadStartParams::default()
        };
        let request = self.host.send::<method::ThreadStart>(params).await;
        self.asked.insert(request, Asked::StartThread);
    }

    async fn resume(&mut self, id: ThreadId) {
        let request = self.host.send::<method::ThreadResume>(ThreadReadParams::newest(id.clone())).await;
        self.asked.insert(request, Asked::Other);
        self.resumed.insert(request, id);
    }

    async fn start_turn(&mut self, thread_id: ThreadId) {
        let plan = Plan::new(self.dice);
        let model = self.threads.get(&thread_id).and_then(|thread| thread.settings.model.as_ref());
        let scripted = model.is_some_and(|model| model.provider == "builtin");
        let text = if scripted { plan.script() } else { plan.prompt() };
        let params = TurnStartParams {
            client_message_id: self.dice.chance(50).then(|| "mine".to_owned()),
            ..TurnStartParams::new(thread_id, text.clone())
        };
        let request = self.host.send::<method::TurnStart>(params).await;
        self.asked.insert(request, Asked::StartTurn { text });
    }

    async fn steer(&mut self, thread_id: ThreadId, turn_id: TurnId) {
        self.steers += 1;
        let text = format!("{STEER}, number {} of turn {turn_id}", self.steers);
        let params = TurnSteerParams {
            thread_id,
            expected_turn_id: turn_id,
            text: text.clone(),
            images: Vec::new(),
            client_message_id: None,
        };
        let request = self.host.send::<method::TurnSteer>(params).await;
        self.asked.insert(request, Asked::Steer { text });
    }

    async fn interrupt(&mut self, thread_id: ThreadId, turn_id: TurnId) {
        let params = TurnInterruptParams { thread_id, turn_id: Some(turn_id) };
        let request = self.host.send::<method::TurnInterrupt>(params).await;
        self.asked.insert(request, Asked::Other);
    }

    async fn change_settings(&mut self, thread_id: ThreadId) {
        let settings = ThreadSettings {
            model: Some(self.pick_model()),
            approval_mode: self.pick_mode(),
            instructions: None,
        };
        let params = ThreadSettingsUpdateParams {
            thread_id: thread_id.clone(),
            model: settings.model.clone(),
            approval_mode: Some(settings.approval_mode),
            instructions: None,
        };
        let request = self.host.send::<method::ThreadSettingsUpdate>(params).await;
        self.threads.entry(thread_id.clone()).or_default().settings = settings.clone();
        self.asked.insert(request, Asked::Settings { thread_id, settings });
    }

    fn pick_model(&mut self) -> ModelRef {
        if self.dice.chance(50) { ModelRef::new("builtin", "script") } else { fake_model() }
    }

    fn pick_mode(&mut self) -> ApprovalMode {
        if self.dice.chance(25) { ApprovalMode::Ask } else { ApprovalMode::FullAccess }
    }

    /// The request that the victim may not live to answer.
    async fn ask_something(&mut self) {
        let ids: Vec<ThreadId> = self.threads.keys().cloned().collect();
        if ids.is_empty() || self.dice.chance(25) {
            return self.start_thread().await;
        }
        let id = ids[self.dice.below(ids.len())].clone();
        match (self.dice.roll(3), self.threads[&id].turn.clone()) {
            (0, Some(turn)) => self.steer(id, turn).await,
            (1, Some(turn)) => self.interrupt(id, turn).await,
            (0 | 1, None) => self.start_turn(id).await,
            _ => self.change_settings(id).await,
        }
    }

    async fn react(&mut self, seen: &Seen) -> Result<(), String> {
        match seen {
            Seen::Answer { id, result } => return self.answered(*id, result.clone()).await,
            Seen::Asked { id, .. } => match self.dice.roll(10) {
                0..6 => self.host.decide(id, Decision::Accept).await,
                6..8 => self.host.decide(id, Decision::Decline).await,
                _ => self.approval_open = true,
            },
            Seen::Told(ServerNotification::TurnCompleted(n)) => {
                if let Some(thread) = self.threads.get_mut(&n.thread_id) {
                    thread.turn = None;
                }
                if self.dice.chance(30) {
                    self.change_settings(n.thread_id.clone()).await;
                }
                self.start_turn(n.thread_id.clone()).await;
            }
            Seen::Told(notification) => {
                let Some((thread_id, turn_id, _)) = Change::of_notification(notification) else {
                    return Ok(());
                };
                let (thread_id, turn_id) = (thread_id.clone(), turn_id.clone());
                match self.dice.roll(200) {
                    0..6 => self.steer(thread_id, turn_id).await,
                    6..9 => self.change_settings(thread_id).await,
                    9 => self.interrupt(thread_id, turn_id).await,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    async fn answered(&mut self, id: i64, result: Result<Value, RpcError>) -> Result<(), String> {
        let asked = self.asked.get(&id);
        let result = match result {
            Ok(result) => result,
            // A steer or an interrupt that came when its turn had ended.
            Err(error) if matches!(asked, Some(Asked::Steer { .. } | Asked::Other)) && is_late(&error) => {
                return Ok(());
            }
            Err(error) => return Err(format!("{asked:?} was refused: {error}")),
        };
        match asked {
            Some(Asked::StartThread) => {
                let thread: Thread = serde_json::from_value(result["thread"].clone()).map_err(unreadable)?;
                self.threads.insert(thread.id.clone(), InUse { settings: thread.settings, turn: None });
                self.start_turn(thread.id).await;
            }
            Some(Asked::StartTurn { .. }) => {
                let started: TurnStartResult = serde_json::from_value(result).map_err(unreadable)?;
                if let Some(thread) = self.threads.get_mut(&started.thread_id) {
                    thread.turn = started.turn_id;
                }
            }
            _ => {
                let Some(thread_id) = self.resumed.get(&id).cloned() else { return Ok(()) };
                let resumed: ThreadResumeResult = serde_json::from_value(result).map_err(unreadable)?;
                let known = &self.known[&thread_id];
                let newest = &known[known.len().saturating_sub(resumed.turns.len())..];
                let as_read = newest.iter().zip(&resumed.turns).all(|(known, sent)| is_sent_as(sent, known));
                if !as_read || resumed.running_turn.is_some() {
                    let how = difference(newest, &resumed.turns);
                    return Err(format!("{thread_id} resumes as another process did not read it: {how}"));
                }
                self.threads
                    .insert(thread_id.clone(), InUse { settings: resumed.thread.settings, turn: None });
                self.start_turn(thread_id).await;
            }
        }
        Ok(())
    }
}

fn is_late(error: &RpcError) -> bool {
    error.code == ErrorCode::TurnMismatch
}

fn unreadable(error: serde_json::Error) -> String {
    format!("an answer cannot be read: {error}")
}
