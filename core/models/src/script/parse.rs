//! The text of a script becomes steps.
//!
//! Neighbours: error, event.

use std::time::Duration;

use raddle_protocol::{TokenCounts, TurnErrorKind};
use serde_json::value::RawValue;

use crate::error::ModelError;
use crate::event::{FinishReason, ToolCall};

/// Bytes that a message with a script may have; a longer one is refused.
pub(super) const SCRIPT_BYTES_MAX: usize = 1024 * 1024;

/// Deltas that one `repeat` may make; more are refused.
pub(super) const REPEAT_MAX: u64 = 10_000_000;

/// Bytes that one generated delta may have; more are refused.
pub(super) const REPEAT_BYTES_MAX: u64 = 64 * 1024;

/// The longest `wait`, `every` and `after`; longer ones are refused.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(3600);

/// A whole script.
#[derive(Debug)]
pub(super) struct Script {
    /// The steps of each reply.
    pub(super) replies: Vec<Vec<Step>>,
}

/// One statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Text(String),
    Words(String),
    Reasoning(String),
    Signature(String),
    Call(ToolCall),
    Result,
    Usage(TokenCounts),
    Repeat(Repeat),
    Wait(Duration),
    Ping,
    Hang,
    /// Fails as long as the attempt is at most `attempts`; always when that is absent.
    Fail {
        attempts: Option<u32>,
        fault: Fault,
    },
    Cut(CutHow),
    Finish(FinishReason),
}

/// How a cut shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CutHow {
    /// As the error that a cut connection gives.
    AsError,
    /// The stream just ends, as one from a faulty adapter would.
    Silently,
}

/// An error to fail with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) kind: TurnErrorKind,
    pub(super) retryable: bool,
    pub(super) retry_after: Option<Duration>,
    pub(super) message: String,
}

/// Many deltas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Repeat {
    pub(super) count: u64,
    pub(super) every: Duration,
    pub(super) bytes: usize,
    pub(super) reasoning: bool,
    /// The same text each time; numbers when absent.
    pub(super) text: Option<String>,
}

/// Reads the script in a message; nothing when it holds none.
///
/// # Errors
///
/// [`ModelError::Script`], with the place in the message.
pub(super) fn parse(message: &str) -> Result<Option<Script>, ModelError> {
    let Some(start) = find(message) else { return Ok(None) };
    let mut parser = Parser { message, at: start, end: fence(message, start) };
    if message.len() > SCRIPT_BYTES_MAX {
        return Err(
            parser.error(start, format!("a message with a script may have at most {SCRIPT_BYTES_MAX} bytes"))
        );
    }
    parser.script().map(Some)
}

/// Where the script begins: behind the first `script:` that begins a line.
fn find(message: &str) -> Option<usize> {
    const MARK: &str = "script:";
    let mut at = 0;
    for line in message.split_inclusive('\n') {
        let text = line.trim_start();
        if text.starts_with(MARK) {
            return Some(at + line.len() - text.len() + MARK.len());
        }
        at += line.len();
    }
    None
}

/// Where it ends: at a line that closes a code block, else with the message.
fn fence(message: &str, start: usize) -> usize {
    let mut at = start;
    for line in message[start..].split_inclusive('\n') {
        if at > start && line.trim() == "```" {
            return at;
        }
        at += line.len();
    }
    message.len()
}

struct Parser<'a> {
    message: &'a str,
    at: usize,
    end: usize,
}

type Parsed<T> = Result<T, ModelError>;

impl<'a> Parser<'a> {
    fn script(&mut self) -> Parsed<Script> {
        let mut replies = vec![Vec::new()];
        let mut closed_by: Option<&str> = None;
        let mut statements = 0_usize;
        loop {
            self.skip_to_statement();
            let start = self.at;
            let name = self.word();
            if name.is_empty() {
                break;
            }
            statements += 1;
            if name == "---" {
                self.end_of_statement()?;
                replies.push(Vec::new());
                closed_by = None;
                continue;
            }
            if let Some(closer) = closed_by {
                return Err(self.error(
                    start,
                    format!("nothing can follow `{closer}` in a reply; `---` begins the next"),
                ));
            }
            let step = self.statement(name, start)?;
            self.end_of_statement()?;
            let closes = matches!(
                step,
                Step::Hang | Step::Cut(_) | Step::Finish(_) | Step::Fail { attempts: None, .. }
            );
            closed_by = closes.then_some(name);
            if let Some(reply) = replies.last_mut() {
                reply.push(step);
            }
        }
        if statements == 0 {
            return Err(self.error(self.at, "a statement is expected, for example `text Hello`".to_owned()));
        }
        Ok(Script { replies })
    }

    fn statement(&mut self, name: &str, start: usize) -> Parsed<Step> {
        Ok(match name {
            "text" => Step::Text(self.text()?),
            "words" => Step::Words(self.text()?),
            "reasoning" => Step::Reasoning(self.text()?),
            "signature" => Step::Signature(self.text()?),
            "call" => Step::Call(self.call()?),
            "result" => Step::Result,
            "usage" => Step::Usage(self.usage()?),
            "repeat" => Step::Repeat(self.repeat()?),
            "wait" => {
                let at = self.skip_spaces();
                let word = self.word();
                Step::Wait(self.duration(at, word)?)
            }
            "ping" => Step::Ping,
            "hang" => Step::Hang,
            "error" => Step::Fail { attempts: None, fault: self.fault()? },
            "fail" => {
                let at = self.skip_spaces();
                let word = self.word();
                let attempts = self.number(at, word, 1, u64::from(u32::MAX), "a number of attempts")?;
                Step::Fail {
                    attempts: Some(u32::try_from(attempts).unwrap_or(u32::MAX)),
                    fault: self.fault()?,
                }
            }
            "cut" => Step::Cut(self.choice(&[("silently", CutHow::Silently)])?.unwrap_or(CutHow::AsError)),
            "finish" => self.finish()?,
            _ => {
                let known = "text, words, reasoning, signature, call, result, usage, repeat, wait, ping, hang, error, \
                             fail, cut, finish or `---`";
                return Err(self.error(start, format!("`{name}` is no statement; expected {known}")));
            }
        })
    }

    fn call(&mut self) -> Parsed<ToolCall> {
        let at = self.skip_spaces();
        let word = self.word();
        let (name, id) = match word.split_once('#') {
            Some((name, id)) => (name, Some(id)),
            None => (word, None),
        };
        if name.is_empty() || id == Some("") {
            return Err(self.error(at, "a tool's name is expected, or `name#id`".to_owned()));
        }
        let mut call = ToolCall { id: id.map(str::to_owned), name: name.to_owned(), ..ToolCall::default() };
        self.skip_spaces();
        if self.rest().starts_with('{') {
            call.arguments = self.json::<&RawValue>("the call's input")?.get().to_owned();
        } else if self.choice(&[("raw", ())])?.is_some() {
            call.arguments = self.text()?;
            return Ok(call);
        } else {
            call.arguments = "{}".to_owned();
        }
        if let Some((_, signature)) = self.option(&["signature"])? {
            call.signature = Some(signature.to_owned());
        }
        Ok(call)
    }

    fn usage(&mut self) -> Parsed<TokenCounts> {
        let mut counts = TokenCounts::default();
        let mut given = false;
        let start = self.skip_spaces();
        while let Some((name, value)) = self.option(&["input", "output", "cacheRead", "cacheWrite"])? {
            let number = self.number(self.at - value.len(), value, 0, u64::MAX / 8, "a number of tokens")?;
            given = true;
            match name {
                "input" => counts.input = number,
                "output" => counts.output = number,
                "cacheRead" => counts.cache_read = number,
                _ => counts.cache_write = number,
            }
        }
        if given {
            Ok(counts)
        } else {
            Err(self.error(start, "counts are expected, for example `input=10 output=2`".to_owned()))
        }
    }

    fn repeat(&mut self) -> Parsed<Repeat> {
        let at = self.skip_spaces();
        let word = self.word();
        let count = self.number(at, word, 0, REPEAT_MAX, "a number of deltas")?;
        let mut repeat = Repeat { count, every: Duration::ZERO, bytes: 0, reasoning: false, text: None };
        while let Some((name, value)) = self.option(&["every", "bytes", "as"])? {
            let at = self.at - value.len();
            match name {
                "every" => repeat.every = self.duration(at, value)?,
                "bytes" => {
                    let bytes = self.number(at, value, 1, REPEAT_BYTES_MAX, "a number of bytes")?;
                    repeat.bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                }
                _ => {
                    repeat.reasoning = match value {
                        "text" => false,
                        "reasoning" => true,
                        _ => return Err(self.error(at, "expected `as=text` or `as=reasoning`".to_owned())),
                    }
                }
            }
        }
        self.skip_spaces();
        if !self.at_statement_end() {
            repeat.text = Some(self.text()?);
        }
        Ok(repeat)
    }

    fn fault(&mut self) -> Parsed<Fault> {
        const KINDS: [(&str, TurnErrorKind); 6] = [
            ("auth", TurnErrorKind::Auth),
            ("rateLimit", TurnErrorKind::RateLimit),
            ("contextOverflow", TurnErrorKind::ContextOverflow),
            ("network", TurnErrorKind::Network),
            ("provider", TurnErrorKind::Provider),
            ("other", TurnErrorKind::Other),
        ];
        let at = self.skip_spaces();
        let Some(kind) = self.choice(&KINDS)? else {
            let known = "auth, rateLimit, contextOverflow, network, provider or other";
            return Err(self.error(at, format!("a kind of error is expected: {known}")));
        };
        let passing =
            matches!(kind, TurnErrorKind::RateLimit | TurnErrorKind::Network | TurnErrorKind::Provider);
        let retryable = self.choice(&[("retryable", true), ("final", false)])?.unwrap_or(passing);
        let retry_after = match self.option(&["after"])? {
            Some((_, value)) => Some(self.duration(self.at - value.len(), value)?),
            None => None,
        };
        self.skip_spaces();
        let message = if self.at_statement_end() { "the script says so".to_owned() } else { self.text()? };
        Ok(Fault { kind, retryable, retry_after, message })
    }

    fn finish(&mut self) -> Parsed<Step> {
        const REASONS: [(&str, FinishReason); 5] = [
            ("stop", FinishReason::Stop),
            ("toolCalls", FinishReason::ToolCalls),
            ("length", FinishReason::Length),
            ("contentFilter", FinishReason::ContentFilter),
            ("unknown", FinishReason::Unknown),
        ];
        let at = self.skip_spaces();
        self.choice(&REASONS)?.map(Step::Finish).ok_or_else(|| {
            self.error(
                at,
                "a reason is expected: stop, toolCalls, length, contentFilter or unknown".to_owned(),
            )
        })
    }

    /// A text: a JSON string, which may hold anything, or the rest of the statement without the space around it.
    fn text(&mut self) -> Parsed<String> {
        let at = self.skip_spaces();
        if self.rest().starts_with('"') {
            return self.json("the text");
        }
        let rest = self.rest();
        let line = rest.find('\n').unwrap_or(rest.len());
        let end = rest[..line].find(";;").unwrap_or(line);
        self.at += end;
        match rest[..end].trim_end() {
            "" => Err(self.error(at, "a text is expected".to_owned())),
            text => Ok(text.to_owned()),
        }
    }

    /// A JSON value, which may go over several lines.
    fn json<T: serde::Deserialize<'a>>(&mut self, what: &str) -> Parsed<T> {
        let rest = self.rest();
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<T>();
        match values.next() {
            Some(Ok(value)) => {
                self.at += values.byte_offset();
                Ok(value)
            }
            failed => {
                let (line, column, why) = match &failed {
                    Some(Err(error)) => (error.line(), error.column(), error.to_string()),
                    _ => (1, 1, "it is not there".to_owned()),
                };
                let before: usize =
                    rest.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
                let at = self.at + before + column.saturating_sub(1);
                // Serde counts from where the value begins, which would only mislead beside the real place.
                let why = why.split(" at line ").next().unwrap_or_default().to_owned();
                Err(self.error(at.min(self.end), format!("{what} is not valid JSON: {why}")))
            }
        }
    }

    /// One of some words, or none of them.
    fn choice<T: Copy>(&mut self, words: &[(&str, T)]) -> Parsed<Option<T>> {
        self.skip_spaces();
        let word = self.peek_word();
        let found = words.iter().find(|(known, _)| *known == word);
        if found.is_some() {
            self.at += word.len();
        }
        Ok(found.map(|(_, value)| *value))
    }

    /// An option `name=value` with one of the names, or nothing. A value must be there.
    fn option(&mut self, names: &[&'static str]) -> Parsed<Option<(&'static str, &'a str)>> {
        let at = self.skip_spaces();
        let word = self.peek_word();
        let Some((name, value)) = word.split_once('=') else { return Ok(None) };
        let Some(name) = names.iter().find(|known| **known == name) else { return Ok(None) };
        if value.is_empty() {
            return Err(self.error(at, format!("`{name}=` wants a value behind it, without a space")));
        }
        self.at += word.len();
        Ok(Some((name, value)))
    }

    fn duration(&self, at: usize, word: &str) -> Parsed<Duration> {
        let unit = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
        let (digits, unit) = word.split_at(unit);
        let millis = match unit {
            "ms" => Some(1),
            "s" => Some(1_000),
            "m" => Some(60_000),
            _ => None,
        };
        let duration =
            digits.parse::<u64>().ok().zip(millis).and_then(|(count, unit)| count.checked_mul(unit));
        match duration.map(Duration::from_millis) {
            Some(duration) if duration <= WAIT_MAX => Ok(duration),
            Some(_) => Err(self.error(at, format!("the longest time is {} s", WAIT_MAX.as_secs()))),
            None => Err(self.error(at, "a time is expected, for example `250ms`, `2s` or `1m`".to_owned())),
        }
    }

    fn number(&self, at: usize, word: &str, least: u64, most: u64, what: &str) -> Parsed<u64> {
        match word.parse::<u64>() {
            Ok(number) if (least..=most).contains(&number) => Ok(number),
            Ok(_) => Err(self.error(at, format!("{what} from {least} to {most} is expected"))),
            Err(_) => Err(self.error(at, format!("{what} is expected"))),
        }
    }

    fn rest(&self) -> &'a str {
        &self.message[self.at..self.end]
    }

    /// The word at hand: up to a space, a line end or `;;`.
    fn peek_word(&self) -> &'a str {
        let rest = self.rest();
        let space = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let end = rest[..space].find(";;").unwrap_or(space);
        &rest[..end]
    }

    fn word(&mut self) -> &'a str {
        let word = self.peek_word();
        self.at += word.len();
        word
    }

    /// Skips spaces within a line; gives the place behind them.
    fn skip_spaces(&mut self) -> usize {
        let rest = self.rest();
        self.at += rest.find(|c: char| c == '\n' || !c.is_whitespace()).unwrap_or(rest.len());
        self.at
    }

    /// Skips what lies between statements: space, line ends, `;;` and comments.
    fn skip_to_statement(&mut self) {
        loop {
            let rest = self.rest();
            self.at += rest.len() - rest.trim_start().len();
            let rest = self.rest();
            if rest.starts_with(";;") {
                self.at += 2;
            } else if rest.starts_with('#') {
                let line = rest.find('\n').unwrap_or(rest.len());
                self.at += rest[..line].find(";;").unwrap_or(line);
            } else {
                return;
            }
        }
    }

    fn at_statement_end(&self) -> bool {
        let rest = self.rest();
        rest.is_empty() || rest.starts_with('\n') || rest.starts_with(";;")
    }

    fn end_of_statement(&mut self) -> Parsed<()> {
        let at = self.skip_spaces();
        if self.at_statement_end() {
            return Ok(());
        }
        let word = self.peek_word().to_owned();
        Err(self.error(
            at,
            format!("`{word}` is not expected here; `;;` or a new line begins the next statement"),
        ))
    }

    fn error(&self, at: usize, message: String) -> ModelError {
        let at =
            (0..=at.min(self.message.len())).rev().find(|at| self.message.is_char_boundary(*at)).unwrap_or(0);
        let before = &self.message[..at];
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        ModelError::Script {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            message,
        }
    }
}
