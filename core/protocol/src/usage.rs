//! Token counts and what they cost.
//!
//! Neighbours: ids.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{ThreadId, TurnId};

/// Tokens of one reply, as its provider counted them.
///
/// `input` excludes cached tokens: `input + cache_read + cache_write` is the whole prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenCounts {
    /// Prompt tokens that no cache had.
    pub input: u64,
    /// Tokens that the model wrote.
    pub output: u64,
    /// Prompt tokens read from a cache.
    pub cache_read: u64,
    /// Prompt tokens written to a cache.
    pub cache_write: u64,
}

impl TokenCounts {
    /// The whole prompt.
    pub fn prompt(&self) -> u64 {
        self.input.saturating_add(self.cache_read).saturating_add(self.cache_write)
    }
}

/// Tokens and cost, summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenUsage {
    /// The sums.
    #[serde(flatten)]
    pub counts: TokenCounts,
    /// US dollars; zero where no price is known.
    pub cost: f64,
    /// Tokens that the conversation takes in the model's window now; absent when unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u64>,
    /// The model's window; zero when unknown.
    pub context_window: u64,
}

impl TokenUsage {
    /// Adds one reply: sums grow, the context values become those of the reply.
    pub fn add_reply(&mut self, counts: TokenCounts, cost: f64, context_window: u64) {
        let sum = &mut self.counts;
        sum.input = sum.input.saturating_add(counts.input);
        sum.output = sum.output.saturating_add(counts.output);
        sum.cache_read = sum.cache_read.saturating_add(counts.cache_read);
        sum.cache_write = sum.cache_write.saturating_add(counts.cache_write);
        self.cost += cost;
        self.context_tokens = Some(counts.prompt().saturating_add(counts.output));
        self.context_window = context_window;
    }
}

/// `thread/tokenUsage/updated`: after every finished reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenUsageUpdatedNotification {
    /// The thread.
    pub thread_id: ThreadId,
    /// The turn that the reply belongs to.
    pub turn_id: TurnId,
    /// The thread's totals so far.
    pub usage: TokenUsage,
}
