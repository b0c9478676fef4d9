//! Who is asked for an approval, and what happens when they leave.
//!
//! The most recent initiator is asked first. When nobody is left to ask, the call is blocked (P6).
//!
//! Neighbours: driver, subscriber, thread, turn.

use std::collections::HashMap;
use std::sync::Arc;

use raddle_protocol::approval::{Decision, RequestApprovalParams, RequestApprovalResult};
use raddle_protocol::methods::{ServerAnswer, ServerRequest};
use raddle_protocol::{ItemId, ItemKind, ThreadId};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use super::Driver;
use crate::subscriber::{AskId, ConnectionId, Subscriber};
use crate::thread::Message;
use crate::turn::Input;

/// The approvals that are open in a thread.
pub(super) struct Approvals {
    thread_id: ThreadId,
    open: HashMap<ItemId, Open>,
}

struct Open {
    params: RequestApprovalParams,
    asked: Option<(Arc<dyn Subscriber>, AskId)>,
    /// Connections that were asked and could not answer.
    unable: Vec<ConnectionId>,
}

impl Approvals {
    pub(super) fn new(thread_id: ThreadId) -> Self {
        Self { thread_id, open: HashMap::new() }
    }

    pub(super) fn withdraw(&mut self, item_id: &ItemId, reason: &str) {
        if let Some(Open { asked: Some((subscriber, ask)), .. }) = self.open.remove(item_id) {
            subscriber.withdraw(ask, reason);
        }
    }

    pub(super) fn withdraw_all(&mut self, reason: &str) {
        for (_, open) in self.open.drain() {
            if let Some((subscriber, ask)) = open.asked {
                subscriber.withdraw(ask, reason);
            }
        }
    }
}

impl Driver {
    pub(super) fn ask(&mut self, item_id: ItemId, tool_name: String, input: Value, decisions: Vec<Decision>) {
        let Some(turn_id) = self.machine.running_turn().cloned() else { return };
        // A large input is asked about by its reference, as the item shows it.
        let shown = self.running.as_ref().and_then(|running| {
            let item = running.turn.items.iter().rev().find(|item| item.id == item_id)?;
            match &item.kind {
                ItemKind::ToolCall { input, .. } => Some(input.clone()),
                _ => None,
            }
        });
        let params = RequestApprovalParams {
            thread_id: self.approvals.thread_id.clone(),
            turn_id,
            item_id: item_id.clone(),
            tool_name,
            input: shown.unwrap_or(input),
            decisions,
            reason: None,
            prefix: None,
        };
        self.approvals.open.insert(item_id.clone(), Open { params, asked: None, unable: Vec::new() });
        self.ask_next(&item_id);
    }

    /// Asks the next subscriber; tells the machine when there is none.
    fn ask_next(&mut self, item_id: &ItemId) {
        let Some(open) = self.approvals.open.get_mut(item_id) else { return };
        let next = self.subscribers.iter().find(|subscriber| !open.unable.contains(&subscriber.id()));
        let Some(subscriber) = next.cloned() else {
            self.approvals.open.remove(item_id);
            self.step(Input::Decided { item_id: item_id.clone(), decision: None, message: None });
            return;
        };
        let request = ServerRequest::ItemToolCallRequestApproval(open.params.clone());
        let answers = Answers {
            inbox: self.own_inbox.clone(),
            tasks: self.shared.tasks.clone(),
            runtime: self.shared.runtime.clone(),
            connection: subscriber.id(),
            item_id: item_id.clone(),
        };
        // The id is known only after the call, the answer comes only through the inbox: no race between them.
        let (id_tx, id_rx) = tokio::sync::oneshot::channel();
        let ask = subscriber.ask(
            request,
            Box::new(move |answer| {
                answers.pass_on(
                    id_rx,
                    answer.ok().map(|ServerAnswer::ItemToolCallRequestApproval(result)| result),
                )
            }),
        );
        let _ = id_tx.send(ask);
        open.asked = Some((subscriber, ask));
    }

    pub(super) fn approval_answered(
        &mut self,
        item_id: ItemId,
        ask: AskId,
        connection: ConnectionId,
        answer: Option<RequestApprovalResult>,
    ) {
        let current = self.approvals.open.get_mut(&item_id).filter(|open| {
            open.asked.as_ref().is_some_and(|(asked, id)| asked.id() == connection && *id == ask)
        });
        let Some(open) = current else {
            tracing::info!(thread = %self.id, item = %item_id, "a late answer to an approval was ignored");
            return;
        };
        match answer {
            Some(result) => {
                self.approvals.open.remove(&item_id);
                self.step(Input::Decided {
                    item_id,
                    decision: Some(result.decision),
                    message: result.message,
                });
            }
            None => {
                open.unable.push(connection);
                open.asked = None;
                self.ask_next(&item_id);
            }
        }
    }

    /// Moves what a leaving subscriber was asked to another one.
    pub(super) fn migrate_approvals(&mut self, leaving: ConnectionId) {
        let mut moved = Vec::new();
        for (item_id, open) in &mut self.approvals.open {
            if let Some((subscriber, ask)) = open.asked.take_if(|(subscriber, _)| subscriber.id() == leaving)
            {
                subscriber.withdraw(ask, "the subscription ended");
                moved.push(item_id.clone());
            }
        }
        for item_id in moved {
            self.ask_next(&item_id);
        }
    }
}

/// Brings an answer back to the thread's task.
struct Answers {
    inbox: mpsc::WeakSender<Message>,
    tasks: TaskTracker,
    runtime: Handle,
    connection: ConnectionId,
    item_id: ItemId,
}

impl Answers {
    fn pass_on(self, id: tokio::sync::oneshot::Receiver<AskId>, answer: Option<RequestApprovalResult>) {
        let Some(inbox) = self.inbox.upgrade() else { return };
        let (item_id, connection) = (self.item_id, self.connection);
        // Called from the connection's side, which must not wait and may be on any thread: a short task carries the
        // answer over.
        let carry = async move {
            let Ok(ask) = id.await else { return };
            let _ = inbox.send(Message::Decided { item_id, ask, connection, answer }).await;
        };
        self.tasks.spawn_on(carry, &self.runtime);
    }
}
