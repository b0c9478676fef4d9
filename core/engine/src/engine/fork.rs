//! Forks: a new thread that shares the history of another up to a turn.
//!
//! Neighbours: error, history, input, shared, subscriber, thread.

use std::sync::Arc;

use raddle_protocol::event::{EventBody, ThreadStarted};
use raddle_protocol::limits::{THREAD_NAME_CHARS_MAX, cut_chars};
use raddle_protocol::methods::ServerNotification;
use raddle_protocol::thread::{Thread, ThreadForkParams, ThreadNotification, ThreadStatus};
use raddle_protocol::{ThreadId, TurnId};
use raddle_store::{Error as StoreError, StoredTurn, ThreadRow};
use tokio::sync::oneshot;

use super::Engine;
use crate::error::Error;
use crate::input;
use crate::subscriber::{Answer, Subscriber};
use crate::thread::Message;

/// What a fork's name ends with. Source: the app-server documentation, "Threads and turns".
const SUFFIX: &str = " (fork)";

impl Engine {
    /// Makes a durable fork, owned and loaded, with `subscriber` subscribed; tells everybody, then answers.
    pub async fn fork(
        &self,
        params: ThreadForkParams,
        subscriber: Arc<dyn Subscriber>,
        answer: Answer<Thread>,
    ) {
        let (source, replace) = (params.thread_id.clone(), params.replace);
        match self.create_fork(params, subscriber).await {
            Ok(thread) => {
                let announced = ThreadNotification { thread: thread.clone() };
                self.shared.hub.broadcast(ServerNotification::ThreadStarted(announced));
                answer.send(Ok(thread.clone()));
                if replace {
                    self.move_subscribers(&source, thread).await;
                }
            }
            Err(error) => answer.send(Err(error)),
        }
    }

    async fn create_fork(
        &self,
        params: ThreadForkParams,
        subscriber: Arc<dyn Subscriber>,
    ) -> Result<Thread, Error> {
        if self.shared.is_stopping() {
            return Err(Error::ShuttingDown);
        }
        let id = input::new_thread_id(params.new_thread_id)?;
        let source = params.thread_id;
        if params.replace && self.is_active(&source) {
            return Err(Error::Busy(source));
        }
        let (row, forked_at) = self.place_of_fork(&source, params.turn_id).await?;
        let base = row.name.as_ref().or(row.title.as_ref());
        let name = base.map(|name| {
            let room = THREAD_NAME_CHARS_MAX.saturating_sub(SUFFIX.len());
            format!("{}{SUFFIX}", cut_chars(name, room))
        });
        let started = ThreadStarted {
            cwd: row.cwd,
            name,
            forked_from_id: Some(source),
            forked_at,
            settings: row.settings,
        };
        self.shared.create(&id, started, subscriber).await?;
        Ok(self.shared.describe(self.shared.store.thread(&id).await?))
    }

    /// The source and the last turn of it that the fork is to have. A running turn is not part of a fork; one that a crash
    /// cut off is closed first, if its thread can be had.
    async fn place_of_fork(
        &self,
        source: &ThreadId,
        wanted: Option<TurnId>,
    ) -> Result<(ThreadRow, Option<TurnId>), Error> {
        let store = &self.shared.store;
        let mut row = store.thread(source).await?;
        if !row.head_ended && !self.is_active(source) {
            match self.shared.load(source).await {
                Ok(_) => row = store.thread(source).await?,
                // It runs elsewhere, or cannot be loaded: then it is not part of the fork.
                Err(Error::Store(StoreError::LockedElsewhere { .. }) | Error::Archived(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let at = match wanted {
            Some(turn_id) => {
                let turn =
                    store.turn(source, &turn_id).await?.ok_or_else(|| Error::unknown_turn(&turn_id))?;
                if !turn.ended {
                    let message = format!("turn `{turn_id}` has not ended; fork at an earlier one, or wait");
                    return Err(Error::InvalidParams { message, reason: Some("turnNotEnded") });
                }
                Some(turn_id)
            }
            None if row.head_ended => row.head.clone(),
            None => match &row.head {
                Some(head) => store.turn(source, head).await?.as_ref().and_then(parent_of),
                None => None,
            },
        };
        Ok((row, at))
    }

    fn is_active(&self, id: &ThreadId) -> bool {
        self.shared
            .loaded(id)
            .is_some_and(|handle| matches!(handle.glance.lock().status, ThreadStatus::Active { .. }))
    }

    /// Brings everybody who subscribes to `source` over to `thread`.
    async fn move_subscribers(&self, source: &ThreadId, thread: Thread) {
        let Some(handle) = self.shared.loaded(source) else { return };
        let (subscribers, moved) = oneshot::channel();
        let id = thread.id.clone();
        let replace = Message::Replace { thread: Box::new(thread), subscribers };
        if handle.send(replace).await.is_ok()
            && let Ok(subscribers) = moved.await
        {
            self.shared.deliver(&id, Message::Adopt(subscribers)).await;
        }
    }
}

fn parent_of(turn: &StoredTurn) -> Option<TurnId> {
    match &turn.events.first()?.event.body {
        EventBody::TurnStarted(started) => started.parent.clone(),
        _ => None,
    }
}
