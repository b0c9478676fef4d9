//! What the models of a crash test say and do: many small deltas, thinking, calls with effects, failures.
//!
//! A plan is its seed. The same plan is a script for `builtin/script`, and a series of replies of the fake provider.
//!
//! Neighbours: dice.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::path::Path;

use parking_lot::Mutex;
use raddle::protocol::{Item, ItemKind, Turn};
use raddle_fakes::{Provider, Reply};
use serde_json::{Value, json};

use crate::dice::Dice;

/// Where commands leave their marks, in the project directory.
pub(crate) const EFFECTS: &str = "effects.log";

/// What the fake provider answers to any other prompt.
pub(crate) const PLAIN_ANSWER: &str = "all right";

/// Replies of a plan at most.
const REPLIES_MAX: u64 = 3;

/// One turn of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    seed: u64,
}

struct Planned {
    thoughts: Vec<String>,
    words: Vec<String>,
    calls: Vec<(String, &'static str, Value)>,
    /// The first attempt breaks off behind what is said.
    breaks: bool,
    /// The script says much at a time.
    heavy: bool,
}

impl Plan {
    pub(crate) fn new(dice: &mut Dice) -> Self {
        Self { seed: dice.roll(u64::MAX) }
    }

    /// The prompt that makes the fake provider follow the plan.
    pub(crate) fn prompt(self) -> String {
        format!("plan:{}", self.seed)
    }

    /// The prompt that makes `builtin/script` follow it. Its deltas come at the pace of a fast model.
    pub(crate) fn script(self) -> String {
        let mut script = "script:\n".to_owned();
        for number in 0..self.replies() {
            if number > 0 {
                script.push_str("---\n");
            }
            let reply = self.reply(number);
            // A script without statements would be none.
            script.push_str("text \"Well, \"\n");
            let _ = writeln!(script, "repeat {} every=1ms as=reasoning \"ö \"", reply.thoughts.len());
            let bytes = if reply.heavy { 6_000 } else { 8 };
            let _ = writeln!(script, "repeat {} every=1ms bytes={bytes}", 2 * reply.words.len());
            if reply.breaks {
                script.push_str("fail 1 network retryable after=5ms it broke off\n");
            }
            for piece in &reply.words {
                let _ = writeln!(script, "text {}", Value::from(piece.as_str()));
            }
            for (id, tool, input) in &reply.calls {
                let _ = writeln!(script, "call {tool}#{id} {input}");
            }
        }
        script
    }

    fn replies(self) -> u64 {
        1 + self.dice(u64::MAX).roll(REPLIES_MAX)
    }

    fn dice(self, part: u64) -> Dice {
        Dice::of_seed(self.seed).part(part)
    }

    fn reply(self, number: u64) -> Planned {
        let mut dice = self.dice(number);
        let last = number + 1 == self.replies();
        let mut pieces = |word: &str, most: u64| -> Vec<String> {
            let count = dice.roll(most + 1);
            (0..count).map(|piece| format!("{word} {piece} ö\n")).collect()
        };
        let (thoughts, words) = (pieces("thought", 20), pieces("word", 60));
        let calls = if last { 0 } else { 1 + dice.roll(3) };
        let calls = (0..calls).map(|call| {
            let mark = format!("effect-{:x}-{number}-{call}", self.seed);
            let id = format!("call-{:x}-{number}-{call}", self.seed);
            let leave = format!("echo {mark} >> {EFFECTS}");
            let command = match dice.roll(5) {
                0 => return (id, "ls", json!({ "path": "." })),
                1 => format!("for i in 1 2 3 4 5 6; do echo line $i; sleep 0.005; done; {leave}"),
                2 => format!("{leave}; sleep 0.03; echo failed; exit 3"),
                _ => leave,
            };
            (id, "bash", json!({ "command": command }))
        });
        let calls = calls.collect();
        let (breaks, heavy) = (dice.chance(15), dice.chance(15));
        Planned { thoughts, words, calls, breaks, heavy }
    }

    fn played(self, number: u64, first_attempt: bool) -> Reply {
        if number >= self.replies() {
            return Reply::says(PLAIN_ANSWER);
        }
        let planned = self.reply(number);
        let mut reply = planned.thoughts.iter().fold(Reply::stream(), |reply, piece| reply.reasoning(piece));
        reply = planned.words.iter().fold(reply, |reply, piece| reply.text(piece));
        if planned.breaks && first_attempt {
            return reply.cut();
        }
        for (index, (id, tool, input)) in planned.calls.iter().enumerate() {
            reply = reply.tool_call(index, id, tool, &input.to_string());
        }
        if planned.calls.is_empty() {
            // A reply must say something.
            return reply.text("the end").stop();
        }
        reply.finish("tool_calls").usage(10, 5).done()
    }
}

/// Makes a provider follow the plans in its prompts. A reply breaks off once at most.
pub(crate) fn follow_plans(provider: &Provider) {
    let broken = Mutex::new(HashSet::new());
    provider.set_default(move |body| {
        let messages = body["messages"].as_array().map_or(&[] as &[Value], Vec::as_slice);
        let text = |message: &Value| message["content"].as_str().unwrap_or_default().to_owned();
        let asked = |message: &Value| message["role"] == "user" && !text(message).starts_with(STEER);
        let Some(at) = messages.iter().rposition(asked) else { return Reply::says(PLAIN_ANSWER) };
        let Some(seed) = text(&messages[at]).strip_prefix("plan:").and_then(|seed| seed.parse().ok()) else {
            return Reply::says(PLAIN_ANSWER);
        };
        let number = messages[at..].iter().filter(|message| message["role"] == "assistant").count() as u64;
        Plan { seed }.played(number, broken.lock().insert((seed, number)))
    });
}

/// How the text of a steer begins.
pub(crate) const STEER: &str = "by the way";

/// The marks that commands left, and how often each.
pub(crate) fn effects(project: &Path) -> BTreeMap<String, u32> {
    let log = std::fs::read_to_string(project.join(EFFECTS)).unwrap_or_default();
    let mut marks = BTreeMap::new();
    for mark in log.lines() {
        *marks.entry(mark.to_owned()).or_default() += 1;
    }
    marks
}

/// The calls of some turns that would leave a mark, by it.
pub(crate) fn calls_with_effects(turns: &[Turn]) -> impl Iterator<Item = (&str, &Item)> {
    turns.iter().flat_map(|turn| &turn.items).filter_map(|item| {
        let ItemKind::ToolCall { input, .. } = &item.kind else { return None };
        let command = input["command"].as_str()?;
        let mark = command.split(' ').find(|word| word.starts_with("effect-"))?;
        Some((mark, item))
    })
}
