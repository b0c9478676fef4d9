//! The demo's story as it happens: what the host reports becomes lines on the screen and entries in the ledger.
//!
//! Neighbours: ledger, prompts, report, screen.

use std::io::Write;

use raddle::protocol::approval::{Decision, RequestApprovalParams};
use raddle::protocol::methods::ServerNotification;
use raddle::protocol::turn::TurnRetryingNotification;
use raddle::protocol::{
    Item, ItemId, ItemKind, ItemStatus, Text, TokenUsage, TurnError, TurnErrorKind, TurnStatus, TurnSummary,
};
use serde_json::Value;

use super::Failure;
use super::ledger::{Ledger, written};
use super::prompts::without_script;
use super::report::Lane;
use super::screen::{Screen, Style};

/// Lines of a tool's output that are shown; the others are counted.
const OUTPUT_LINES_SHOWN: usize = 6;

/// Characters of a tool's input that are shown.
const INPUT_CHARS_SHOWN: usize = 200;

/// Tells what happens.
pub(crate) struct Narrator<W> {
    /// Where it is told.
    pub(crate) screen: Screen<W>,
    /// What was told.
    pub(crate) ledger: Ledger,
}

impl<W: Write> Narrator<W> {
    /// Nothing was told yet.
    pub(crate) fn new(screen: Screen<W>) -> Self {
        Self { screen, ledger: Ledger::default() }
    }

    /// Tells what a client was sent.
    ///
    /// # Errors
    /// When it does not fit what came before, or the screen cannot be written.
    pub(crate) fn notification(&mut self, notification: &ServerNotification) -> Result<(), Failure> {
        use ServerNotification as N;
        let known = self.is_known(notification);
        self.ledger.take(notification).map_err(Failure::Mismatch)?;
        match notification {
            N::ItemStarted(n) | N::ItemCompleted(n) => match self.ledger.lane(&n.thread_id) {
                Some(lane) => self.item(lane, &n.item, !known),
                None => Ok(()),
            },
            N::ItemAgentMessageDelta(n) => match self.ledger.lane(&n.thread_id) {
                Some(lane) => self.text(lane, &n.item_id, Style::Plain, &n.delta),
                None => Ok(()),
            },
            N::ItemReasoningDelta(n) => match self.ledger.lane(&n.thread_id) {
                Some(lane) => self.text(lane, &n.item_id, Style::Dim, &n.delta),
                None => Ok(()),
            },
            N::ItemRemoved(n) => {
                self.remark(self.ledger.lane(&n.thread_id), "this reply broke off and is withdrawn")
            }
            N::TurnRetrying(n) => self.remark(self.ledger.lane(&n.thread_id), &retrying(n)),
            N::TurnCompleted(n) => match self.ledger.lane(&n.thread_id) {
                Some(lane) => self.turn_ended(lane, &n.turn),
                None => Ok(()),
            },
            N::Warning(n) => {
                let lane = n.thread_id.as_ref().and_then(|id| self.ledger.lane(id));
                self.remark(lane, &n.warning.message)
            }
            N::Error(n) => {
                let lane = n.thread_id.as_ref().and_then(|id| self.ledger.lane(id));
                self.remark(lane, &format!("{}: {}", n.code, n.message))
            }
            // Told by others already, or of no interest here.
            _ => Ok(()),
        }
    }

    /// Tells that a tool call was decided on.
    ///
    /// # Errors
    /// When the screen cannot be written.
    pub(crate) fn approval(
        &mut self,
        ask: &RequestApprovalParams,
        decision: Decision,
    ) -> Result<(), Failure> {
        let Some(lane) = self.ledger.lane(&ask.thread_id) else { return Ok(()) };
        let (style, said) = match decision {
            Decision::Accept => (Style::Good, "accept, this once"),
            _ => (Style::Bad, "decline, it allows its own command alone"),
        };
        let question = format!("approval: may {} run this? The demo answers: {said}", ask.tool_name);
        Ok(self.screen.note(lane, style, "  ? ", &question)?)
    }

    fn is_known(&self, notification: &ServerNotification) -> bool {
        match notification {
            ServerNotification::ItemStarted(n) | ServerNotification::ItemCompleted(n) => self
                .ledger
                .lane(&n.thread_id)
                .is_some_and(|lane| self.ledger.of(lane).item(&n.turn_id, &n.item.id).is_some()),
            _ => false,
        }
    }

    fn item(&mut self, lane: Lane, item: &Item, is_new: bool) -> Result<(), Failure> {
        let is_over = item.status != ItemStatus::InProgress;
        match &item.kind {
            ItemKind::UserMessage { text, .. } if is_new => {
                let (words, scripted) = without_script(text.as_str());
                let script = if scripted { " (and a script of what to answer)" } else { "" };
                self.screen.note(lane, Style::Bold, "you: ", &format!("{words}{script}"))?;
            }
            // No prompt of the demo brings about the last two.
            ItemKind::UserMessage { .. } | ItemKind::Compaction { .. } | ItemKind::Extension { .. } => {}
            ItemKind::ToolCall { tool_name, input, output, is_error, .. } => {
                if is_new {
                    self.screen.note(lane, Style::Bold, "  > ", &call(tool_name, input))?;
                }
                if is_over {
                    self.output(lane, output.as_ref().map_or("", Text::as_str), *is_error)?;
                }
            }
            ItemKind::AgentMessage { .. } => self.rest(lane, item, Style::Plain, is_over)?,
            ItemKind::Reasoning { .. } => self.rest(lane, item, Style::Dim, is_over)?,
        }
        Ok(())
    }

    /// What an item holds and no delta brought, for example when its provider sent it whole.
    fn rest(&mut self, lane: Lane, item: &Item, style: Style, is_over: bool) -> Result<(), Failure> {
        let printed = self.ledger.of(lane).printed.get(&item.id).cloned().unwrap_or_default();
        let text = written(item);
        match text.strip_prefix(&printed) {
            Some("") => {}
            Some(rest) => self.text(lane, &item.id, style, rest)?,
            None => {
                return Err(Failure::Mismatch(format!(
                    "thread {lane}: item {} holds {} characters now, which do not begin with the {} that were \
                     streamed",
                    item.id,
                    text.chars().count(),
                    printed.chars().count()
                )));
            }
        }
        if is_over {
            self.screen.end_line(lane)?;
        }
        Ok(())
    }

    fn text(&mut self, lane: Lane, item: &ItemId, style: Style, text: &str) -> Result<(), Failure> {
        self.ledger.print(lane, item, text);
        Ok(self.screen.say(lane, style, text)?)
    }

    fn output(&mut self, lane: Lane, output: &str, is_error: bool) -> Result<(), Failure> {
        let style = if is_error { Style::Bad } else { Style::Dim };
        let mut lines = output.lines();
        for line in lines.by_ref().take(OUTPUT_LINES_SHOWN) {
            self.screen.quote(lane, style, line)?;
        }
        match lines.count() {
            0 => Ok(()),
            1 => Ok(self.screen.quote(lane, style, "… and one more line")?),
            more => Ok(self.screen.quote(lane, style, &format!("… and {more} more lines"))?),
        }
    }

    fn turn_ended(&mut self, lane: Lane, turn: &TurnSummary) -> Result<(), Failure> {
        match turn.status {
            TurnStatus::Failed => {
                let unknown =
                    TurnError { message: "no reason was given".to_owned(), kind: TurnErrorKind::Other };
                let error = turn.error.as_ref().unwrap_or(&unknown);
                self.screen.note(lane, Style::Bad, "  x ", &format!("the turn failed: {}", error.message))?;
                self.screen.note(lane, Style::Bad, "    ", advice(error.kind))?;
            }
            TurnStatus::Completed | TurnStatus::Interrupted | TurnStatus::InProgress => {
                let used = turn.usage.as_ref().map_or("no usage reported".to_owned(), usage);
                let word = match turn.status {
                    TurnStatus::Completed => "done",
                    _ => "stopped",
                };
                self.screen.note(lane, Style::Good, "  = ", &format!("{word}; {used}"))?;
            }
        }
        Ok(())
    }

    fn remark(&mut self, lane: Option<Lane>, text: &str) -> Result<(), Failure> {
        match lane {
            Some(lane) => self.screen.note(lane, Style::Dim, "  ! ", text)?,
            None => self.screen.paragraph(Style::Dim, text)?,
        }
        Ok(())
    }
}

/// Tokens in and out, and what they cost where that is known.
pub(crate) fn usage(usage: &TokenUsage) -> String {
    let counts = &usage.counts;
    let cost = if usage.cost > 0.0 { format!(", {:.4} US dollars", usage.cost) } else { String::new() };
    format!("{} tokens in, {} out{cost}", counts.prompt(), counts.output)
}

fn retrying(n: &TurnRetryingNotification) -> String {
    format!(
        "{}; asked again in {:.1} s, attempt {} of {}",
        n.error.message,
        n.delay_ms as f64 / 1000.0,
        n.attempt,
        n.max_attempts
    )
}

/// What one can do about a failed turn.
fn advice(kind: TurnErrorKind) -> &'static str {
    match kind {
        TurnErrorKind::Auth => {
            "Look at OPENAI_API_KEY, and whether OPENAI_BASE_URL is the provider that gave it."
        }
        TurnErrorKind::RateLimit => {
            "Wait a while, look at the account's quota, or take another model with --model."
        }
        TurnErrorKind::ContextOverflow => "Take a model with a longer context with --model.",
        TurnErrorKind::Network => {
            "Look whether the provider can be reached from here and OPENAI_BASE_URL is right. `--model \
             builtin/script` needs no network."
        }
        TurnErrorKind::Provider => {
            "The provider failed by itself: try again later, or another model with --model."
        }
        TurnErrorKind::Other => "RADDLE_LOG=debug tells more. `--model builtin/script` needs no provider.",
    }
}

/// A tool call on one line; a command as it would be typed.
fn call(tool: &str, input: &Value) -> String {
    let input = match input.get("command").and_then(Value::as_str) {
        Some(command) => command.to_owned(),
        None => input.to_string(),
    };
    format!("{tool} {}", cut(&input, INPUT_CHARS_SHOWN))
}

fn cut(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((at, _)) => format!("{} …", &text[..at]),
        None => text.to_owned(),
    }
}
