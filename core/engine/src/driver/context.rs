//! What the model of the next turn is to know: the branch, from its last summary on.
//!
//! Neighbours: driver, error, prompt, shared.

use std::collections::HashSet;

use raddle_models::{Message as ModelMessage, ResolvedModel};
use raddle_protocol::event::LoggedItem;
use raddle_protocol::{Item, ItemId, ItemKind, ItemStatus, ModelRef, ThreadId};

use crate::error::Error;
use crate::prompt;
use crate::shared::Shared;

/// The branch as its model is to see it: read when the first turn of a load starts, and kept from turn to turn.
pub(super) struct TurnContext {
    pub(super) model: ResolvedModel,
    pub(super) history: Vec<ModelMessage>,
    /// Ids of the history's calls.
    pub(super) used_call_ids: HashSet<ItemId>,
    /// Bytes of the history's texts.
    pub(super) bytes: usize,
    /// How many messages the history begins with that only sum up what came before.
    summaries: usize,
}

/// Bytes of history that are kept between turns; a longer one is read again at each start.
pub(super) const KEPT_HISTORY_BYTES_MAX: usize = 4 * 1024 * 1024;

impl TurnContext {
    fn new(model: ResolvedModel) -> Self {
        Self { model, history: Vec::new(), used_call_ids: HashSet::new(), bytes: 0, summaries: 0 }
    }

    /// Adds a turn that has ended.
    pub(super) fn add(&mut self, items: &[LoggedItem]) {
        if items.iter().any(|logged| is_summary(&logged.item)) {
            self.history.clear();
            self.bytes = 0;
            self.summaries = 1;
        }
        self.history.extend(prompt::messages(items, &self.model.name()));
        for LoggedItem { item, .. } in items {
            self.bytes += item.text_bytes();
            if matches!(item.kind, ItemKind::ToolCall { .. }) {
                self.used_call_ids.insert(item.id.clone());
            }
        }
    }
}

impl TurnContext {
    /// Whether anything was said since the last summary.
    pub(super) fn has_news(&self) -> bool {
        self.history.len() > self.summaries
    }
}

/// Whether the model knows only this of what came before it.
fn is_summary(item: &Item) -> bool {
    matches!(item.kind, ItemKind::Compaction { .. }) && item.status == ItemStatus::Completed
}

/// The model of the next turn, and what was said before it: what was kept, if it was kept for this model.
pub(super) async fn context(
    shared: &Shared,
    id: &ThreadId,
    model: Option<ModelRef>,
    kept: Option<TurnContext>,
    has_history: bool,
) -> Result<TurnContext, Error> {
    let model = shared.resolve(model.as_ref()).await?;
    if let Some(kept) = kept.filter(|kept| kept.model.name() == model.name()) {
        return Ok(TurnContext { model, ..kept });
    }
    let mut context = TurnContext::new(model);
    if has_history {
        for turn in shared.store.context(id).await? {
            context.add(&prompt::final_items(&turn.events));
        }
    }
    Ok(context)
}
