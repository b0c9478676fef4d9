//! Reading saved history: pages of turns as a reader sees them, beside what this process knows of the thread.
//!
//! Neighbours: error, shared.

use raddle_protocol::event::EventBody;
use raddle_protocol::thread::{Thread, ThreadStatus};
use raddle_protocol::{ThreadId, Turn, TurnId};
use raddle_store::{StoredTurn, ThreadRow};

use crate::error::Error;
use crate::shared::Shared;

/// A page of saved history.
#[derive(Debug)]
pub struct History {
    /// The thread.
    pub thread: Thread,
    /// The page's turns, oldest first; one that runs in this process is `inProgress`.
    pub turns: Vec<Turn>,
    /// For the page before.
    pub next_cursor: Option<String>,
    /// The last turn of the branch that has ended.
    pub ended_head: Option<TurnId>,
}

impl Shared {
    /// Reads a page without loading, owning or writing anything.
    pub(crate) async fn read_history(
        &self,
        id: &ThreadId,
        cursor: Option<&str>,
        limit: u32,
    ) -> Result<History, Error> {
        let (page, living) = loop {
            // Asked before the page is read: then a turn that begins or ends meanwhile is not taken for a dead one.
            let living = self.is_living(id);
            let page = self.store.page(id, cursor, limit).await?;
            let is_open = page.turns.last().is_some_and(|turn| !turn.ended);
            if living || !is_open || !self.is_living(id) {
                break (page, living);
            }
        };
        let row = self.store.thread(id).await?;
        let ended_head = page.turns.last().and_then(ended_head);
        let turns = page.turns.iter().filter_map(|turn| fold(turn, living)).collect();
        Ok(History { thread: self.describe(row), turns, next_cursor: page.next_cursor, ended_head })
    }

    /// Reads one turn of the branch as it is saved.
    pub(crate) async fn read_turn(&self, id: &ThreadId, turn: &TurnId) -> Result<Option<Turn>, Error> {
        let living = self.is_living(id);
        let stored = self.store.turn(id, turn).await?;
        Ok(stored.and_then(|stored| fold(&stored, living)))
    }

    /// Whether a turn without an end runs here. Loading closes what a crash left open, so in a loaded thread it does,
    /// unless its log cannot be written any more.
    fn is_living(&self, id: &ThreadId) -> bool {
        self.loaded(id)
            .is_some_and(|handle| !matches!(handle.glance.lock().status, ThreadStatus::SystemError { .. }))
    }

    /// A row with what this process knows of the thread.
    pub(crate) fn describe(&self, row: ThreadRow) -> Thread {
        let loaded = self.loaded(&row.id);
        let status = match loaded {
            Some(handle) => handle.glance.lock().status.clone(),
            None => match self.failed.lock().get(&row.id) {
                Some(message) => ThreadStatus::SystemError { message: message.clone() },
                None => ThreadStatus::NotLoaded,
            },
        };
        Thread {
            id: row.id,
            cwd: row.cwd,
            name: row.name,
            title: row.title,
            created_at: row.created_at.to_iso(),
            updated_at: row.updated_at.to_iso(),
            forked_from_id: row.forked_from_id,
            archived: row.archived,
            status,
            settings: row.settings,
        }
    }
}

/// The last ended turn of a branch whose newest turn is this: itself, or the one before it while it runs.
fn ended_head(newest: &StoredTurn) -> Option<TurnId> {
    if newest.ended {
        return Some(newest.id.clone());
    }
    match &newest.events.first()?.event.body {
        EventBody::TurnStarted(started) => started.parent.clone(),
        _ => None,
    }
}

/// A saved turn as a reader sees it; one that runs here stays `inProgress`.
fn fold(turn: &StoredTurn, living: bool) -> Option<Turn> {
    if living { Turn::live(&turn.events) } else { Turn::saved(&turn.events) }
}
