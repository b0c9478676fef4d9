//! Requests that change a thread without a turn, or with one that only sums up.
//!
//! A name, the archive and a deletion need no load: on a thread that is not loaded they take its ownership for the change
//! alone. On a loaded one they go through its task, in order with everything else.
//!
//! Neighbours: clock, error, input, shared, subscriber, thread, turn.

use raddle_protocol::event::{ThreadArchived, ThreadNamed};
use raddle_protocol::methods::ServerNotification;
use raddle_protocol::thread::{
    ThreadCompactParams, ThreadCompactResult, ThreadIdNotification, ThreadNameSetParams, ThreadRewindParams,
    ThreadSettings, ThreadSettingsUpdateParams, ThreadStatus,
};
use raddle_protocol::{Event, EventBody, ThreadId, TokenUsage};

use super::Engine;
use crate::clock;
use crate::error::Error;
use crate::input;
use crate::shared::Visit;
use crate::subscriber::Answer;
use crate::thread::{Change, Message};

impl Engine {
    /// Changes settings for the turns to come, loading the thread if need be.
    pub async fn update_settings(
        &self,
        mut params: ThreadSettingsUpdateParams,
        answer: Answer<ThreadSettings>,
    ) {
        if let Err(error) = self.check_model(params.model.as_ref()).await {
            return answer.send(Err(error));
        }
        // An empty text is meant here: it takes the instructions away.
        if let Some(instructions) = params.instructions.take() {
            match input::instructions(Some(instructions)) {
                Ok(checked) => params.instructions = Some(checked.unwrap_or_default()),
                Err(error) => return answer.send(Err(error)),
            }
        }
        let id = params.thread_id.clone();
        let change = Change::Settings { params, answer };
        self.shared.deliver(&id, Message::Change(change)).await;
    }

    /// Names a thread, or takes its name away.
    pub async fn rename(&self, params: ThreadNameSetParams, answer: Answer<()>) {
        let name = match input::thread_name(params.name) {
            Ok(name) => name,
            Err(error) => return answer.send(Err(error)),
        };
        let named = EventBody::NameUpdated(ThreadNamed { name: name.clone() });
        let visited = self.append_unloaded(&params.thread_id, named, |_| Ok(true)).await;
        self.after_visit(&params.thread_id, visited, answer, |answer| Change::Rename { name, answer }).await;
    }

    /// Puts an idle thread away: it is unloaded, and cannot be loaded until it is taken out again.
    pub async fn archive(&self, id: &ThreadId, answer: Answer<()>) {
        let archived = EventBody::Archived(ThreadArchived { archived: true });
        let visited = match self.shared.store.queue(id).await {
            // A turn is only waiting for the next load.
            Ok(queue) if !queue.is_empty() && self.shared.loaded(id).is_none() => {
                Err(Error::Busy(id.clone()))
            }
            Ok(_) => self.append_unloaded(id, archived, |archived| Ok(!archived)).await,
            Err(error) => Err(error.into()),
        };
        self.after_visit(id, visited, answer, |answer| Change::Archive { answer }).await;
    }

    /// Takes a thread out of the archive.
    pub async fn unarchive(&self, id: &ThreadId, answer: Answer<()>) {
        let archived = EventBody::Archived(ThreadArchived { archived: false });
        match self.append_unloaded(id, archived, Ok).await {
            Ok(Visit::Done(said)) => {
                answer.send(Ok(()));
                self.tell(id, said);
            }
            // A loaded thread is not archived.
            Ok(Visit::Loaded(_)) => answer.send(Ok(())),
            Err(error) => answer.send(Err(error)),
        }
    }

    /// Removes an archived thread for good.
    pub async fn delete(&self, id: &ThreadId, answer: Answer<()>) {
        let store = self.shared.store.clone();
        let deleted =
            self.shared.visit(id, |lease| async move { Ok(store.delete_thread(&lease).await?) }).await;
        match deleted {
            Ok(Visit::Done(())) => {
                self.shared.failed.lock().remove(id);
                answer.send(Ok(()));
                let thread_id = id.clone();
                self.shared
                    .hub
                    .broadcast(ServerNotification::ThreadDeleted(ThreadIdNotification { thread_id }));
            }
            // It is loaded, and so it is not archived; the thread and its subscriptions stay as they are.
            Ok(Visit::Loaded(handle)) => {
                let status = handle.glance.lock().status.clone();
                answer.send(Err(match status {
                    ThreadStatus::Active { .. } => Error::Busy(id.clone()),
                    _ => Error::NotArchived(id.clone()),
                }));
            }
            Err(error) => answer.send(Err(error)),
        }
    }

    /// Takes the turns after one off the branch, loading the thread if need be; answers with the totals there.
    pub async fn rewind(&self, params: ThreadRewindParams, answer: Answer<TokenUsage>) {
        let ThreadRewindParams { thread_id, turn_id } = params;
        let change = Change::Rewind { turn_id, answer };
        self.shared.deliver(&thread_id, Message::Change(change)).await;
    }

    /// Has the model sum up the conversation, loading the thread if need be; the answer does not wait for the summary.
    pub async fn compact(&self, params: ThreadCompactParams, answer: Answer<ThreadCompactResult>) {
        match input::instructions(params.instructions) {
            Ok(instructions) => {
                let message = Message::Compact { instructions, answer };
                self.shared.deliver(&params.thread_id, message).await;
            }
            Err(error) => answer.send(Err(error)),
        }
    }

    /// Appends an event to a thread that is not loaded, if that makes a difference to it: `differs` is told whether the
    /// thread is archived. Gives back the event that was appended.
    async fn append_unloaded(
        &self,
        id: &ThreadId,
        body: EventBody,
        differs: impl FnOnce(bool) -> Result<bool, Error> + Send,
    ) -> Result<Visit<Option<EventBody>>, Error> {
        let store = self.shared.store.clone();
        self.shared
            .visit(id, |lease| async move {
                let row = store.thread(lease.thread_id()).await?;
                if !differs(row.archived)? {
                    return Ok(None);
                }
                let event = Event { turn_id: None, at: clock::now(), body: body.clone() };
                store.append(&lease, vec![event]).await?;
                Ok(Some(body))
            })
            .await
    }

    /// Answers a change of an unloaded thread, or hands it to the loaded one.
    async fn after_visit(
        &self,
        id: &ThreadId,
        visited: Result<Visit<Option<EventBody>>, Error>,
        answer: Answer<()>,
        change: impl FnOnce(Answer<()>) -> Change,
    ) {
        match visited {
            Ok(Visit::Done(said)) => {
                answer.send(Ok(()));
                self.tell(id, said);
            }
            Ok(Visit::Loaded(_)) => self.shared.deliver(id, Message::Change(change(answer))).await,
            Err(error) => answer.send(Err(error)),
        }
    }

    fn tell(&self, id: &ThreadId, said: Option<EventBody>) {
        if let Some(body) = said {
            self.shared.tell_everybody(id, &body);
        }
    }
}
