//! Requests to a thread: what each needs before the machine may see it.
//!
//! Neighbours: clock, driver, error, replies, subscriber, thread, turn.

use std::sync::Arc;

use raddle_protocol::event::{EventBody, InputQueued, ThreadArchived, ThreadNamed, ThreadRewound};
use raddle_protocol::methods::ServerNotification;
use raddle_protocol::thread::{
    Thread, ThreadReplacedNotification, ThreadSettings, ThreadSettingsUpdateParams,
};
use raddle_protocol::turn::TurnInterruptParams;
use raddle_protocol::{Event, TokenUsage, TurnId};

use super::Driver;
use super::admission::Purpose;
use super::replies::{Pending, StartAnswer};
use crate::clock;
use crate::error::Error;
use crate::subscriber::{Answer, ConnectionId, Subscriber};
use crate::thread::{Attach, AttachReading, Change, Live, Message, Start};
use crate::turn::{Append, Command, Input, Outcome, Reply, Token};

/// Where the branch is to end.
pub(super) struct Rewinding {
    pub(super) turn_id: TurnId,
    pub(super) depth: u32,
    pub(super) usage: TokenUsage,
}

impl Driver {
    pub(super) fn message(&mut self, message: Message) {
        let loads_stale = matches!(&message, Message::Attach(attach) if self.is_stale(attach));
        match message {
            Message::StartTurn { start, subscriber, answer } => {
                let answer = StartAnswer::Start { answer, request_id: start.request_id.clone() };
                self.start_turn(Purpose::Start { start, subscriber, answer });
            }
            Message::Send { start, mode, subscriber, answer } => self.send(*start, mode, subscriber, answer),
            Message::Steer { expected, said, answer } => {
                let token = self.wait_for(Pending::Steer(answer));
                self.step(Input::Steer { token, expected, said });
            }
            Message::Compact { instructions, answer } => {
                self.start_turn(Purpose::Compact { instructions, answer });
            }
            Message::Change(change) => self.change(change),
            Message::Attach(attach) => self.attach(attach),
            // Taken by the loop itself, since it reads.
            Message::AttachReading(_) => {}
            Message::Detach { connection, answer } => self.detach(connection, answer),
            Message::Replace { thread, subscribers } => {
                let _ = subscribers.send(self.replace(*thread));
            }
            Message::Adopt(subscribers) => {
                subscribers.into_iter().for_each(|subscriber| self.subscribe_viewer(subscriber));
            }
            Message::Decided { item_id, ask, connection, answer } => {
                self.approval_answered(item_id, ask, connection, answer);
            }
            Message::Shutdown => self.shut_down(),
        }
        if !loads_stale {
            self.queue_held_until = None;
        }
    }

    pub(super) fn queue_input(&mut self, token: Token, start: Start, idempotency_key: Option<String>) {
        let queued = InputQueued {
            id: TurnId::generate().as_str().to_owned(),
            input: start.said.input,
            request_id: start.request_id,
            client_message_id: start.said.client_message_id,
            idempotency_key,
        };
        self.step(Input::Queue { token, queued: Box::new(queued) });
    }

    /// A change of the thread itself, of its queue, or the stop of its turn. On a thread whose log must be read again first, that comes first.
    pub(super) fn change(&mut self, change: Change) {
        // An interrupt that names a turn means that turn, not a start that has none yet.
        if let Change::Interrupt { params: TurnInterruptParams { turn_id: None, .. }, .. } = &change {
            self.interrupt_admission();
        }
        if self.broken {
            return self.admit_change(change);
        }
        match change {
            Change::Settings { params, answer } => self.update_settings(params, answer),
            Change::Queue { start, answer } => {
                let token = self.wait_for(Pending::Queue(answer));
                self.queue_input(token, *start, None);
            }
            Change::Unqueue { queue_id, answer } => {
                let token = self.wait_for(Pending::Unqueue(answer));
                self.step(Input::Unqueue { token, queue_id });
            }
            Change::Rename { name, answer } => {
                self.record(EventBody::NameUpdated(ThreadNamed { name }), Pending::Change(answer));
            }
            Change::Archive { answer } => self.start_turn(Purpose::Archive { answer }),
            Change::Rewind { turn_id, answer } => self.start_turn(Purpose::Rewind { turn_id, answer }),
            Change::Interrupt { params, answer } => {
                let token = self.wait_for(Pending::Interrupt(answer));
                self.step(Input::Interrupt { token, turn_id: params.turn_id });
            }
        }
    }

    pub(super) fn archive(&mut self, answer: Answer<()>) {
        if self.machine.next_queued().is_some() {
            // Its turn is only waiting to start.
            return answer.send(Err(Error::Busy(self.id.clone())));
        }
        self.archiving = true;
        self.record(EventBody::Archived(ThreadArchived { archived: true }), Pending::Archive(answer));
    }

    pub(super) fn rewind(&mut self, rewinding: Rewinding, answer: Answer<TokenUsage>) {
        let event = EventBody::Rewound(ThreadRewound { turn_id: rewinding.turn_id.clone() });
        let usage = rewinding.usage;
        self.rewinding = Some(rewinding);
        self.record(event, Pending::Rewind { answer, usage });
    }

    fn update_settings(&mut self, params: ThreadSettingsUpdateParams, answer: Answer<ThreadSettings>) {
        let mut settings = self.newest_settings();
        if let Some(model) = params.model {
            settings.model = Some(model);
        }
        if let Some(mode) = params.approval_mode {
            settings.approval_mode = mode;
        }
        if let Some(instructions) = params.instructions {
            settings.instructions = Some(instructions).filter(|text| !text.trim().is_empty());
        }
        let event = EventBody::SettingsUpdated(settings.clone());
        self.record(event, Pending::Settings { answer, settings });
    }

    /// Appends what concerns the thread and no turn of it.
    fn record(&mut self, body: EventBody, pending: Pending) {
        let token = self.wait_for(pending);
        let event = Event { turn_id: None, at: clock::now(), body };
        let reply = Some(Reply { token, outcome: Outcome::Recorded });
        self.pipeline.extend([Command::Append(Append { event, reply })]);
    }

    /// The settings with all changes that are on their way to the disk.
    pub(super) fn newest_settings(&self) -> ThreadSettings {
        let newest = self.pending.iter().filter_map(|(token, pending)| match pending {
            Pending::Settings { settings, .. } => Some((token.0, settings)),
            _ => None,
        });
        newest.max_by_key(|(token, _)| *token).map_or_else(|| self.settings.clone(), |(_, s)| s.clone())
    }

    fn is_stale(&self, attach: &Attach) -> bool {
        attach.expected_head.as_ref().is_some_and(|expected| expected != &self.ended_head)
    }

    /// Subscribes and hands out the live state, in one step: what is notified after it is exactly what follows it.
    fn attach(&mut self, attach: Attach) {
        if self.is_stale(&attach) {
            return attach.deliver.send(Err(Error::StaleHistory));
        }
        self.subscribe_viewer(attach.subscriber);
        attach.deliver.send(Ok(self.live()));
    }

    /// The same with the page read here, where no turn can end meanwhile.
    pub(super) async fn attach_reading(&mut self, attach: AttachReading) {
        let read = self.shared.read_history(&self.id, attach.cursor.as_deref(), attach.limit).await;
        let mut history = match read {
            Ok(history) => history,
            Err(error) => return attach.deliver.send(Err(error)),
        };
        // A commit may have ended the running turn on the disk that nobody has been told of yet: it is still running.
        let running = self.running.as_ref().map(|running| running.turn.summary.id.clone());
        history.turns.retain(|turn| Some(&turn.summary.id) != running.as_ref());
        self.subscribe_viewer(attach.subscriber);
        attach.deliver.send(Ok((history, self.live())));
        self.queue_held_until = None;
    }

    fn detach(&mut self, connection: ConnectionId, answer: Option<Answer<bool>>) {
        let before = self.subscribers.len();
        self.subscribers.retain(|subscriber| subscriber.id() != connection);
        let subscribed = self.subscribers.len() < before;
        self.migrate_approvals(connection);
        if let Some(answer) = answer {
            answer.send(Ok(subscribed));
        }
    }

    /// Gives everybody who subscribes over to another thread.
    fn replace(&mut self, thread: Thread) -> Vec<Arc<dyn Subscriber>> {
        let subscribers = std::mem::take(&mut self.subscribers);
        for subscriber in &subscribers {
            self.migrate_approvals(subscriber.id());
            subscriber.follow(&thread.id);
        }
        let thread_id = self.id.clone();
        let replaced =
            Arc::new(ServerNotification::ThreadReplaced(ThreadReplacedNotification { thread_id, thread }));
        subscribers.iter().for_each(|subscriber| subscriber.notify(&replaced));
        subscribers
    }

    /// Subscribes who watches, after all others: they are asked last, after those who started something.
    fn subscribe_viewer(&mut self, subscriber: Arc<dyn Subscriber>) {
        if !self.subscribers.iter().any(|known| known.id() == subscriber.id()) {
            self.subscribers.push(subscriber);
        }
    }

    /// Subscribes who starts a turn, before all others: questions go to the most recent initiator first.
    pub(super) fn subscribe_initiator(&mut self, subscriber: Arc<dyn Subscriber>) {
        self.subscribers.retain(|known| known.id() != subscriber.id());
        self.subscribers.insert(0, subscriber);
    }

    fn live(&self) -> Live {
        Live {
            status: self.glance.lock().status.clone(),
            settings: self.settings.clone(),
            running_turn: self.running.as_ref().map(|running| running.turn.clone()),
            queue: self.shown_queue.clone(),
            usage: self.usage,
        }
    }
}
