//! Commits, and what follows one: the answer first, then the notifications.
//!
//! Neighbours: driver, subscriber.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use raddle_protocol::event::EventBody;
use raddle_protocol::fold::Change;
use raddle_protocol::methods::ServerNotification;
use raddle_protocol::thread::ThreadRewoundNotification;
use raddle_protocol::turn::TurnNotification;
use raddle_protocol::{Event, Turn};
use raddle_store::{Appended, Lease, Store};

use super::{Driver, KEPT_HISTORY_BYTES_MAX, Running};

pub(super) type CommitFuture = Pin<Box<dyn Future<Output = Result<Appended, raddle_store::Error>> + Send>>;

pub(super) fn begin(store: &Store, lease: &Lease, events: Vec<Event>) -> CommitFuture {
    let (store, lease) = (store.clone(), lease.clone());
    Box::pin(async move { store.append(&lease, events).await })
}

/// Waits for the commit under way; for ever when there is none.
pub(super) async fn done(commit: &mut Option<CommitFuture>) -> Result<Appended, raddle_store::Error> {
    match commit {
        Some(future) => {
            let result = future.await;
            *commit = None;
            result
        }
        None => std::future::pending().await,
    }
}

impl Driver {
    pub(super) fn committed(&mut self, result: Result<Appended, raddle_store::Error>) {
        let Appended { events, shown, .. } = match result {
            Ok(appended) => appended,
            Err(error) => return self.break_down(&error),
        };
        let mut shown = shown.into_iter().peekable();
        for (at, append) in self.pipeline.committed(events).enumerate() {
            // Clients are shown references in the place of large values, the model is sent the values themselves.
            let shrunk = shown.next_if(|(index, _)| *index == at).map(|(_, event)| event);
            let seen = shrunk.as_ref().unwrap_or(&append.event);
            self.remember(&append.event, seen);
            if let Some(reply) = append.reply {
                self.answer(reply);
            }
            self.fan_out(seen);
        }
    }

    /// Keeps the committed state in step: what a subscriber gets as a snapshot, and what the model is sent.
    fn remember(&mut self, event: &Event, seen: &Event) {
        match &event.body {
            EventBody::TokenUsageUpdated(usage) => self.usage = *usage,
            EventBody::TurnStarted(started) => {
                self.head = Some(started.turn.id.clone());
                self.depth = started.depth;
                self.running = Some(Running { turn: Turn::new(started.turn.clone()), items: Vec::new() });
            }
            EventBody::TurnCompleted(ended) => {
                self.ended_head = Some(ended.turn.id.clone());
                self.usage = ended.thread_usage;
                if let (Some(running), Some(context)) = (self.running.take(), &mut self.context) {
                    context.add(&running.items);
                }
                // The history is for the next turn, unless it is too much to sit on.
                self.context.take_if(|context| context.bytes > KEPT_HISTORY_BYTES_MAX);
            }
            EventBody::SettingsUpdated(settings) => self.settings = settings.clone(),
            EventBody::Rewound(_) => self.rewound(),
            // An archived thread is on the disk only: from here on nobody reaches this task, and who tries waits for its end.
            EventBody::Archived(_) => {
                self.stopping = true;
                self.inbox.close();
            }
            EventBody::ItemCompleted(logged) => {
                if let Some(running) = &mut self.running {
                    running.items.push(logged.clone());
                    // Calls end in any order; the model is sent its own, the same in this turn and in later ones.
                    running.items.sort_by_key(|known| known.item.index);
                }
            }
            EventBody::ItemRemoved(item_id) => {
                if let Some(running) = &mut self.running {
                    running.items.retain(|logged| &logged.item.id != item_id);
                }
            }
            _ => {}
        }
        if let (Some(running), Some(change)) = (&mut self.running, Change::of_event(seen))
            && let Err(error) = running.turn.apply(change)
        {
            tracing::error!(thread = %self.id, %error, "an event does not fit the running turn");
        }
    }

    /// The branch ends elsewhere now.
    fn rewound(&mut self) {
        let Some(rewinding) = self.rewinding.take() else { return };
        self.head = Some(rewinding.turn_id.clone());
        self.ended_head = Some(rewinding.turn_id.clone());
        self.depth = rewinding.depth;
        self.usage = rewinding.usage;
        self.machine.set_usage(rewinding.usage);
        self.context = None;
    }

    fn fan_out(&self, event: &Event) {
        if !self.subscribers.is_empty() {
            if let Some(opening) = event.opening(&self.id) {
                self.notify(opening);
            }
            if let Some(notification) = event.notification(&self.id) {
                let notification = Arc::new(notification);
                for subscriber in &self.subscribers {
                    subscriber.notify(&notification);
                }
            }
        }
        match &event.body {
            EventBody::TurnCompleted(ended) => {
                self.shared.hub.broadcast(ServerNotification::ThreadTurnCompleted(TurnNotification {
                    thread_id: self.id.clone(),
                    turn: ended.turn.clone(),
                    request_id: ended.request_id.clone(),
                }));
            }
            EventBody::Rewound(rewound) => {
                self.notify(ServerNotification::ThreadRewound(ThreadRewoundNotification {
                    thread_id: self.id.clone(),
                    turn_id: rewound.turn_id.clone(),
                    usage: self.usage,
                }));
            }
            // Told when the thread is unloaded.
            EventBody::Archived(_) => {}
            _ => self.shared.tell_everybody(&self.id, &event.body),
        }
    }
}
