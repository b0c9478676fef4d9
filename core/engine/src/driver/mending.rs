//! A thread whose log could not be written: how it is given up, and how it comes back.
//!
//! Neighbours: driver, error, thread, turn.

use raddle_protocol::methods::ServerNotification;
use raddle_protocol::server::ErrorNotification;
use raddle_protocol::thread::ThreadStatus;
use raddle_protocol::turn::{ItemNotification, ItemRemovedNotification, TurnNotification};
use raddle_protocol::{Item, ItemStatus, Turn, TurnStatus};
use raddle_store::StoredTurn;

use super::{Driver, Loaded};
use crate::error::Error;
use crate::turn::Machine;

impl Driver {
    /// Gives the thread up until it is loaded again: what was running is stopped, what waited is answered.
    pub(super) fn break_down(&mut self, error: &raddle_store::Error) {
        tracing::error!(thread = %self.id, error = %error, "the thread's log cannot be written");
        let rpc = crate::edge::store_error(error);
        self.notify(ServerNotification::Error(ErrorNotification {
            thread_id: Some(self.id.clone()),
            code: rpc.code.clone(),
            message: rpc.message.clone(),
            data: rpc.data.clone(),
        }));
        self.model = None;
        self.timer = None;
        self.tools.abandon_all();
        self.approvals.withdraw_all("the thread cannot go on");
        self.pipeline.abandon();
        if let Some(waiting) = self.waiting.take() {
            waiting.fail(Error::Broken(rpc.clone()));
        }
        for (_, pending) in self.pending.drain() {
            pending.fail(rpc.clone());
        }
        self.rewinding = None;
        self.archiving = false;
        // What waits in the queue is read again with the log.
        self.machine = Machine::new(self.id.clone(), self.shared.options.retry, self.usage, []);
        if let Some(running) = self.running.take() {
            self.broken_turn = Some(running.turn);
        }
        self.context = None;
        self.broken = true;
        self.set_status(ThreadStatus::SystemError { message: rpc.message });
    }

    /// The thread's log can be written again.
    pub(super) fn mend(&mut self, loaded: Loaded, broken_turn: Option<StoredTurn>) {
        self.machine = Machine::new(self.id.clone(), self.shared.options.retry, loaded.usage, loaded.queue);
        self.shown_queue = self.machine.queue();
        self.sends.reload(loaded.sends);
        self.lease = loaded.lease;
        self.settings = loaded.settings;
        self.head = loaded.head;
        self.ended_head = self.head.clone();
        self.depth = loaded.depth;
        self.usage = loaded.usage;
        self.broken = false;
        self.tell_the_end(broken_turn);
        self.set_status(ThreadStatus::Idle);
    }

    /// Tells how the turn ended that ran when the thread broke down: by recovery, or by whoever had the thread meanwhile. Its
    /// watchers are told whatever they do not know of it, so that for them it is what a reader finds.
    fn tell_the_end(&mut self, stored: Option<StoredTurn>) {
        let Some(known) = self.broken_turn.take() else { return };
        let turn = stored.and_then(|stored| Turn::saved(&stored.events)).unwrap_or_else(|| {
            // It left the branch.
            let mut turn = known.clone();
            turn.summary.status = TurnStatus::Interrupted;
            turn
        });
        let (thread_id, turn_id) = (self.id.clone(), turn.summary.id.clone());
        let told =
            |item: Item| ItemNotification { thread_id: thread_id.clone(), turn_id: turn_id.clone(), item };
        for gone in known.items.iter().filter(|item| !turn.items.iter().any(|kept| kept.id == item.id)) {
            self.notify(ServerNotification::ItemRemoved(ItemRemovedNotification {
                thread_id: thread_id.clone(),
                turn_id: turn_id.clone(),
                item_id: gone.id.clone(),
            }));
        }
        for item in &turn.items {
            match known.items.iter().find(|known| known.id == item.id) {
                Some(known) if known.without_client_token().as_ref().unwrap_or(known) == item => continue,
                Some(_) => {}
                None => {
                    let begun = Item { status: ItemStatus::InProgress, completed_at: None, ..item.clone() };
                    self.notify(ServerNotification::ItemStarted(told(begun)));
                }
            }
            self.notify(ServerNotification::ItemCompleted(told(item.clone())));
        }
        let ended = TurnNotification { thread_id: self.id.clone(), turn: turn.summary, request_id: None };
        self.notify(ServerNotification::TurnCompleted(ended.clone()));
        self.shared.hub.broadcast(ServerNotification::ThreadTurnCompleted(ended));
    }
}
