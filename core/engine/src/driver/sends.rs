//! Sends with a key: the same key is the same send, however often it comes.
//!
//! Neighbours: driver, error, replies, requests, subscriber, thread, turn.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use raddle_protocol::limits::SEND_KEYS_MAX;
use raddle_protocol::turn::{SendMode, SendStatus, TurnSendResult};
use raddle_protocol::{RpcError, ThreadId, TurnId};
use raddle_store::Sent;

use super::Driver;
use super::admission::Purpose;
use super::replies::{Pending, StartAnswer};
use crate::error::Error;
use crate::subscriber::{Answer, Subscriber};
use crate::thread::Start;
use crate::turn::{Input, Refusal};

/// One who waits for a send, with the token that is echoed to them.
type Waiter = (Answer<TurnSendResult>, Option<String>);

/// Who waits for a send: the one that came first, and those that came with the same key before it was answered.
pub(super) struct SendAnswer {
    key: Option<String>,
    waiters: Arc<Mutex<Vec<Waiter>>>,
}

impl SendAnswer {
    /// Tells all what became of it.
    pub(super) fn tell(self, result: TurnSendResult) {
        for (answer, request_id) in self.take() {
            answer.send(Ok(TurnSendResult { request_id, ..result.clone() }));
        }
    }

    /// Tells all what the same send did before.
    pub(super) fn tell_again(self, id: &ThreadId, sent: Sent) {
        let Sent { status, turn_id, queue_id, .. } = sent;
        self.tell(TurnSendResult { status, thread_id: id.clone(), turn_id, queue_id, request_id: None });
    }

    pub(super) fn fail(self, error: Error) {
        let error = RpcError::from(error);
        for (answer, _) in self.take() {
            answer.send(Err(Error::Broken(error.clone())));
        }
    }

    fn take(&self) -> Vec<Waiter> {
        std::mem::take(&mut *self.waiters.lock())
    }
}

/// The sends of a thread that have a key: the newest ones that were accepted, and those on their way.
pub(super) struct Sends {
    accepted: VecDeque<Sent>,
    /// Their waiters are gone once they are answered.
    under_way: HashMap<String, Weak<Mutex<Vec<Waiter>>>>,
}

impl Sends {
    pub(super) fn new(accepted: Vec<Sent>) -> Self {
        Self { accepted: accepted.into(), under_way: HashMap::new() }
    }

    /// Takes in a send; `None` when it is one that came before, which answers it too.
    fn admit(&mut self, id: &ThreadId, key: Option<String>, waiter: Waiter) -> Option<SendAnswer> {
        let Some(key) = key else {
            return Some(SendAnswer { key: None, waiters: Arc::new(Mutex::new(vec![waiter])) });
        };
        if let Some(sent) = self.accepted.iter().find(|sent| sent.key == key) {
            let (answer, request_id) = waiter;
            let Sent { status, turn_id, queue_id, .. } = sent.clone();
            answer.send(Ok(TurnSendResult { status, thread_id: id.clone(), turn_id, queue_id, request_id }));
            return None;
        }
        if let Some(waiters) = self.under_way.get(&key).and_then(Weak::upgrade) {
            waiters.lock().push(waiter);
            return None;
        }
        self.under_way.retain(|_, waiters| waiters.strong_count() > 0);
        let waiters = Arc::new(Mutex::new(vec![waiter]));
        self.under_way.insert(key.clone(), Arc::downgrade(&waiters));
        Some(SendAnswer { key: Some(key), waiters })
    }

    /// Learns what the log has of accepted sends, which others may have written; those on their way stay.
    pub(super) fn reload(&mut self, accepted: Vec<Sent>) {
        self.accepted = accepted.into();
    }

    /// What a send did that came before, as far as the log tells by now.
    pub(super) fn known(&self, send: &SendAnswer) -> Option<Sent> {
        let key = send.key.as_ref()?;
        self.accepted.iter().find(|sent| sent.key == *key).cloned()
    }

    /// Remembers what an accepted send did.
    pub(super) fn settle(
        &mut self,
        send: &SendAnswer,
        status: SendStatus,
        turn_id: Option<TurnId>,
        queue_id: Option<String>,
    ) {
        let Some(key) = send.key.clone() else { return };
        if self.accepted.len() >= SEND_KEYS_MAX {
            self.accepted.pop_front();
        }
        self.accepted.push_back(Sent { key, status, turn_id, queue_id });
    }
}

impl Driver {
    /// Starts, steers or queues, whichever fits the thread as it is now. Subscribes only who starts a turn: whoever came in
    /// the middle of one would be told of items without their turn, and resumes instead.
    pub(super) fn send(
        &mut self,
        mut start: Start,
        mode: SendMode,
        subscriber: Arc<dyn Subscriber>,
        answer: Answer<TurnSendResult>,
    ) {
        let key = start.said.idempotency_key.clone();
        let waiter = (answer, start.request_id.clone());
        let Some(send) = self.sends.admit(&self.id, key, waiter) else {
            return;
        };
        let is_free = !self.machine.is_running() && self.admission.is_none() && self.waiting.is_none();
        if is_free && self.machine.next_queued().is_none() {
            let answer = StartAnswer::Send(send);
            return self.start_turn(Purpose::Start {
                start: Box::new(start),
                subscriber: Some(subscriber),
                answer,
            });
        }
        match (mode, self.machine.steerable_turn().cloned()) {
            (SendMode::Auto | SendMode::Steer, Some(expected)) => {
                let token = self.wait_for(Pending::Send(send));
                self.step(Input::Steer { token, expected, said: Box::new(start.said) });
            }
            (SendMode::Auto | SendMode::Queue, _) => {
                let key = start.said.idempotency_key.take();
                let token = self.wait_for(Pending::Send(send));
                self.queue_input(token, start, key);
            }
            (SendMode::Steer, None) => {
                let running = self.machine.running_turn().cloned();
                send.fail(Refusal::TurnMismatch { running }.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p7_of_too_many_keys_the_oldest_is_forgotten() {
        let mut sends = Sends::new(Vec::new());
        let send = |at: usize| SendAnswer { key: Some(at.to_string()), waiters: Arc::default() };
        for at in 0..=SEND_KEYS_MAX {
            sends.settle(&send(at), SendStatus::Queued, None, Some(at.to_string()));
        }
        assert_eq!(sends.known(&send(0)), None);
        for at in [1, SEND_KEYS_MAX] {
            assert_eq!(sends.known(&send(at)).and_then(|sent| sent.queue_id), Some(at.to_string()));
        }
    }
}
