//! What the tests share: stores in temporary homes, and events with as little to say as possible.

use std::path::Path;

use raddle_protocol::event::{ApprovalDecided, Delta, LoggedItem, ThreadStarted, TurnEnded, TurnStarted};
use raddle_protocol::thread::ThreadSettings;
use raddle_protocol::{
    Event, EventBody, Item, ItemId, ItemKind, ItemStatus, ThreadId, TokenUsage, TurnId, TurnStatus,
    TurnSummary, UnixMillis,
};
use raddle_store::{DATABASE_FILE, Lease, Store, StoreOptions, StoredTurn};
use tempfile::TempDir;

pub(crate) fn home() -> TempDir {
    tempfile::tempdir().unwrap()
}

pub(crate) fn open(home: &Path) -> Store {
    Store::open(StoreOptions::new(home)).unwrap()
}

/// A connection past the store.
pub(crate) fn raw(home: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open(home.join(DATABASE_FILE)).unwrap()
}

pub(crate) fn events_of(turn: &StoredTurn) -> Vec<Event> {
    turn.events.iter().map(|recorded| recorded.event.clone()).collect()
}

pub(crate) fn id(name: &str) -> ThreadId {
    ThreadId::from(name)
}

pub(crate) fn started() -> ThreadStarted {
    ThreadStarted {
        cwd: "/home/someone/project".to_owned(),
        name: None,
        forked_from_id: None,
        forked_at: None,
        settings: ThreadSettings::default(),
    }
}

pub(crate) async fn create(store: &Store, name: &str) -> Lease {
    store.create_thread(id(name), UnixMillis(1_000), started()).await.unwrap()
}

/// A turn's events, made one after the other.
#[derive(Clone)]
pub(crate) struct Script {
    pub(crate) thread: ThreadId,
    pub(crate) turn: TurnId,
    pub(crate) parent: Option<TurnId>,
    pub(crate) depth: u32,
    pub(crate) at: i64,
}

impl Script {
    pub(crate) fn first(thread: &str) -> Self {
        Self {
            thread: id(thread),
            turn: TurnId::from(format!("{thread}/1")),
            parent: None,
            depth: 1,
            at: 2_000,
        }
    }

    /// The turn after this one.
    pub(crate) fn next(&self) -> Self {
        Self {
            turn: TurnId::from(format!("{}/{}", self.thread, self.depth + 1)),
            parent: Some(self.turn.clone()),
            depth: self.depth + 1,
            at: self.at + 1_000,
            ..self.clone()
        }
    }

    pub(crate) fn event(&self, body: EventBody) -> Event {
        Event { turn_id: Some(self.turn.clone()), at: UnixMillis(self.at), body }
    }

    fn summary(&self, status: TurnStatus) -> TurnSummary {
        TurnSummary {
            id: self.turn.clone(),
            thread_id: self.thread.clone(),
            status,
            started_at: UnixMillis(self.at),
            completed_at: (status != TurnStatus::InProgress).then_some(UnixMillis(self.at)),
            error: None,
            usage: None,
        }
    }

    pub(crate) fn start(&self) -> Event {
        self.event(EventBody::TurnStarted(TurnStarted {
            turn: self.summary(TurnStatus::InProgress),
            parent: self.parent.clone(),
            depth: self.depth,
            request_id: None,
            queue_id: None,
            idempotency_key: None,
        }))
    }

    pub(crate) fn end(&self) -> Event {
        self.event(EventBody::TurnCompleted(TurnEnded {
            turn: self.summary(TurnStatus::Completed),
            thread_usage: TokenUsage::default(),
            request_id: None,
        }))
    }

    pub(crate) fn item_id(&self, ordinal: u32) -> ItemId {
        ItemId::from(format!("{}.{ordinal}", self.depth))
    }

    fn item(&self, ordinal: u32, kind: ItemKind, status: ItemStatus) -> LoggedItem {
        let item = Item {
            id: self.item_id(ordinal),
            kind,
            status,
            index: Some(ordinal),
            parent_item_id: None,
            started_at: Some(UnixMillis(self.at)),
            completed_at: (status == ItemStatus::Completed).then_some(UnixMillis(self.at)),
        };
        LoggedItem { item, origin: None }
    }

    pub(crate) fn user(&self, ordinal: u32, text: &str) -> Event {
        let kind = ItemKind::UserMessage { text: text.into(), images: Vec::new(), client_message_id: None };
        self.event(EventBody::ItemCompleted(self.item(ordinal, kind, ItemStatus::Completed)))
    }

    pub(crate) fn message_start(&self, ordinal: u32) -> Event {
        let kind = ItemKind::AgentMessage { text: "".into() };
        self.event(EventBody::ItemStarted(self.item(ordinal, kind, ItemStatus::InProgress)))
    }

    pub(crate) fn message(&self, ordinal: u32, text: &str) -> Event {
        let kind = ItemKind::AgentMessage { text: text.into() };
        self.event(EventBody::ItemCompleted(self.item(ordinal, kind, ItemStatus::Completed)))
    }

    pub(crate) fn delta(&self, ordinal: u32, text: &str) -> Event {
        let item_id = self.item_id(ordinal);
        self.event(EventBody::AgentMessageDelta(Delta { item_id, delta: text.to_owned() }))
    }

    pub(crate) fn decided(&self, ordinal: u32) -> Event {
        let item_id = self.item_id(ordinal);
        self.event(EventBody::ApprovalDecided(ApprovalDecided { item_id, decision: None, message: None }))
    }

    pub(crate) fn removed(&self, ordinal: u32) -> Event {
        self.event(EventBody::ItemRemoved(self.item_id(ordinal)))
    }

    /// A whole turn: one question, one answer.
    pub(crate) fn whole(&self, question: &str, answer: &str) -> Vec<Event> {
        vec![self.start(), self.user(0, question), self.message(1, answer), self.end()]
    }
}
