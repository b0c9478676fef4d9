//! Requests to a thread: what each needs before the machine may see it, and how each is answered.
//!
//! Neighbours: clock, driver, error, subscriber, thread, turn.

use std::sync::Arc;

use raddle_protocol::Event;
use raddle_protocol::RpcError;
use raddle_protocol::event::EventBody;
use raddle_protocol::limits::{CLIENT_MESSAGE_ID_CHARS_MAX, INPUT_TEXT_BYTES_MAX};
use raddle_protocol::thread::{ThreadSettings, ThreadSettingsUpdateParams};
use raddle_protocol::turn::{StartStatus, TurnStartResult, TurnSteerParams, TurnSteerResult};

use super::Driver;
use crate::clock;
use crate::error::Error;
use crate::subscriber::{Answer, Subscriber};
use crate::thread::{Attach, AttachReading, Live, Message};
use crate::turn::{Append, Command, Input, Outcome, Reply, Token};

/// A request whose answer the machine, or a commit, will give.
pub(super) enum Pending {
    Start { answer: Answer<TurnStartResult>, request_id: Option<String> },
    Steer(Answer<TurnSteerResult>),
    Interrupt(Answer<()>),
    Settings { answer: Answer<ThreadSettings>, settings: ThreadSettings },
}

impl Pending {
    pub(super) fn fail(self, error: RpcError) {
        let error = Error::Broken(error);
        match self {
            Self::Start { answer, .. } => answer.send(Err(error)),
            Self::Steer(answer) => answer.send(Err(error)),
            Self::Interrupt(answer) => answer.send(Err(error)),
            Self::Settings { answer, .. } => answer.send(Err(error)),
        }
    }
}

impl Driver {
    pub(super) fn message(&mut self, message: Message) {
        match message {
            Message::StartTurn { params, subscriber, answer } => self.start_turn(params, subscriber, answer),
            Message::Steer { params, answer } => self.steer(params, answer),
            Message::Interrupt { params, answer } => {
                // One that names a turn means that turn, not a start that has none yet.
                if params.turn_id.is_none() {
                    self.interrupt_admission();
                }
                let token = self.wait_for(Pending::Interrupt(answer));
                self.step(Input::Interrupt { token, turn_id: params.turn_id });
            }
            Message::UpdateSettings { params, answer } => self.update_settings(params, answer),
            Message::Attach(attach) => self.attach(attach),
            // Taken by the loop itself, since it reads.
            Message::AttachReading(_) => {}
            Message::Detach(connection) => {
                self.subscribers.retain(|subscriber| subscriber.id() != connection);
                self.migrate_approvals(connection);
            }
            Message::Decided { item_id, ask, connection, answer } => {
                self.approval_answered(item_id, ask, connection, answer);
            }
            Message::Shutdown => self.shut_down(),
        }
    }

    fn steer(&mut self, params: TurnSteerParams, answer: Answer<TurnSteerResult>) {
        if let Err(error) = check_input(&params.text, params.client_message_id.as_deref()) {
            return answer.send(Err(error));
        }
        let token = self.wait_for(Pending::Steer(answer));
        self.step(Input::Steer {
            token,
            expected: params.expected_turn_id,
            text: params.text,
            client_message_id: params.client_message_id,
        });
    }

    pub(super) fn update_settings(
        &mut self,
        params: ThreadSettingsUpdateParams,
        answer: Answer<ThreadSettings>,
    ) {
        if self.broken {
            return self.admit_settings(params, answer);
        }
        let mut settings = self.newest_settings();
        if let Some(model) = params.model {
            settings.model = Some(model);
        }
        if let Some(mode) = params.approval_mode {
            settings.approval_mode = mode;
        }
        let token = self.wait_for(Pending::Settings { answer, settings: settings.clone() });
        let event = Event { turn_id: None, at: clock::now(), body: EventBody::SettingsUpdated(settings) };
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

    /// Subscribes and hands out the live state, in one step: what is notified after it is exactly what follows it.
    fn attach(&mut self, attach: Attach) {
        if attach.expected_head.as_ref().is_some_and(|expected| expected != &self.ended_head) {
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
            queue: self.machine.queue(),
            usage: self.machine.usage(),
        }
    }

    pub(super) fn wait_for(&mut self, pending: Pending) -> Token {
        self.last_token += 1;
        let token = Token(self.last_token);
        self.pending.insert(token, pending);
        token
    }

    pub(super) fn answer(&mut self, reply: Reply) {
        let Some(pending) = self.pending.remove(&reply.token) else { return };
        let (refused, turn_id) = match reply.outcome {
            Outcome::Refused(refusal) => (Some(refusal), None),
            Outcome::Started(id) | Outcome::Steered(id) => (None, Some(id)),
            Outcome::Recorded | Outcome::Interrupted => (None, None),
        };
        match pending {
            Pending::Start { answer, request_id } => answer.send(match refused {
                Some(refusal) => Err(refusal.into()),
                None => Ok(self.start_result(StartStatus::Started, turn_id, request_id)),
            }),
            Pending::Steer(answer) => answer.send(match (refused, turn_id) {
                (Some(refusal), _) => Err(refusal.into()),
                (None, Some(turn_id)) => Ok(TurnSteerResult { turn_id }),
                (None, None) => Err(Error::Abandoned),
            }),
            Pending::Interrupt(answer) => answer.send(refused.map_or(Ok(()), |refusal| Err(refusal.into()))),
            Pending::Settings { answer, settings } => answer.send(Ok(settings)),
        }
    }

    pub(super) fn start_result(
        &self,
        status: StartStatus,
        turn_id: Option<raddle_protocol::TurnId>,
        request_id: Option<String>,
    ) -> TurnStartResult {
        TurnStartResult { status, thread_id: self.id.clone(), turn_id, request_id }
    }
}

/// Refuses an input that cannot start or steer a turn.
pub(super) fn check_input(text: &str, client_message_id: Option<&str>) -> Result<(), Error> {
    if text.trim().is_empty() {
        return Err(Error::invalid("`text` is empty: say something"));
    }
    if text.len() > INPUT_TEXT_BYTES_MAX {
        return Err(Error::invalid(format!(
            "`text` has {} bytes; at most {INPUT_TEXT_BYTES_MAX} are taken: put it into a file",
            text.len()
        )));
    }
    if let Some(id) = client_message_id
        && (id.is_empty() || id.chars().count() > CLIENT_MESSAGE_ID_CHARS_MAX)
    {
        return Err(Error::invalid(format!(
            "`clientMessageId` must have 1 to {CLIENT_MESSAGE_ID_CHARS_MAX} characters"
        )));
    }
    Ok(())
}
