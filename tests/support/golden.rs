//! Golden transcripts: what a client is told, with ids and times made the same in every run.
//!
//! Neighbours: none.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use raddle::protocol::methods::ServerNotification;
use serde_json::{Value, json};

/// Names for ids, which differ from run to run.
#[derive(Default)]
pub struct Names {
    known: HashMap<String, String>,
    counts: HashMap<&'static str, u32>,
}

impl Names {
    /// A name for an id: the same for the same id, numbered in the order of appearance.
    pub fn of(&mut self, kind: &'static str, id: &str) -> String {
        if let Some(name) = self.known.get(id) {
            return name.clone();
        }
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        let name = format!("<{kind}-{count}>");
        self.known.insert(id.to_owned(), name.clone());
        name
    }
}

/// A sequence of notifications that is kept as `tests/golden/<name>.jsonl`, a line each: `{"method":…,"params":…}`.
///
/// With `UPDATE_GOLDEN=1` in the environment the file is written anew instead of compared.
pub struct Golden {
    names: Names,
    replaced: Vec<(String, String)>,
    lines: Vec<String>,
}

impl Golden {
    /// The transcript of these notifications. `replaced` are texts that differ from run to run and what stands for them,
    /// such as the project's directory.
    pub fn of(notifications: &[Arc<ServerNotification>], replaced: &[(&str, &str)]) -> Self {
        let replaced = replaced.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned())).collect();
        let mut golden = Self { names: Names::default(), replaced, lines: Vec::new() };
        for notification in notifications {
            let mut params = notification.params().unwrap();
            golden.normalise(None, &mut params);
            golden.lines.push(json!({ "method": notification.method(), "params": params }).to_string());
        }
        golden
    }

    /// Compares it with its file.
    ///
    /// # Panics
    /// When they differ, or the file cannot be used.
    pub fn check(&self, name: &str) {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(format!("{name}.jsonl"));
        let text = self.lines.join("\n") + "\n";
        if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
            std::fs::write(&path, text).unwrap();
            return;
        }
        let known = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{name}.jsonl: {error}; run with UPDATE_GOLDEN=1 to make it"));
        if known == text {
            return;
        }
        let known: Vec<&str> = known.lines().collect();
        let at = (0..known.len().max(self.lines.len()))
            .find(|at| known.get(*at).copied() != self.lines.get(*at).map(String::as_str))
            .unwrap_or(0);
        panic!(
            "{name}.jsonl differs in line {}:\n  file: {}\n  seen: {}\nall that was seen:\n{text}",
            at + 1,
            known.get(at).copied().unwrap_or("(none)"),
            self.lines.get(at).map_or("(none)", String::as_str),
        );
    }

    fn normalise(&mut self, key: Option<&str>, value: &mut Value) {
        match value {
            Value::Object(fields) => {
                let is_thread = fields.contains_key("cwd");
                let is_turn = fields.contains_key("startedAt") && fields.contains_key("threadId");
                for (key, value) in fields.iter_mut() {
                    let kind = match key.as_str() {
                        "threadId" => Some("thread"),
                        "turnId" => Some("turn"),
                        "id" if is_thread => Some("thread"),
                        "id" if is_turn => Some("turn"),
                        _ => None,
                    };
                    match (kind, &value) {
                        (Some(kind), Value::String(id)) => *value = Value::String(self.names.of(kind, id)),
                        _ => self.normalise(Some(key), value),
                    }
                }
            }
            Value::Array(values) => values.iter_mut().for_each(|value| self.normalise(key, value)),
            Value::Number(_) | Value::String(_)
                if key.is_some_and(|key| {
                    ["startedAt", "completedAt", "createdAt", "updatedAt"].contains(&key)
                }) =>
            {
                *value = json!("<time>");
            }
            Value::String(text) => {
                for (from, to) in &self.replaced {
                    *text = text.replace(from.as_str(), to);
                }
            }
            _ => {}
        }
    }
}
