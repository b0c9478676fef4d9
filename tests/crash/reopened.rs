//! A home that is opened again, in the test's own process.
//!
//! Neighbours: none.

use std::path::{Path, PathBuf};

use raddle::engine::models::{ModelConfig, Models, ModelsConfig, ProviderConfig};
use raddle::protocol::fold::Change;
use raddle::protocol::methods::{ServerNotification, method};
use raddle::protocol::thread::{
    ApprovalMode, Thread, ThreadListParams, ThreadReadParams, ThreadResumeResult, ThreadSettingsUpdateParams,
};
use raddle::protocol::turn::TurnStartParams;
use raddle::protocol::{EventBody, ItemId, ModelRef, ThreadId, Turn, TurnId};
use raddle::{Client, Options, Raddle};
use raddle_store::{Store, StoreOptions};

/// An engine on a home that had another one before.
pub(crate) struct Reopened {
    home: PathBuf,
    raddle: Raddle,
    client: Client,
}

impl Reopened {
    /// Opens `home`; models are the built-in ones and those of the fake provider, which is the default if there is one.
    pub(crate) async fn open(home: &Path, provider: Option<String>) -> Self {
        let default_model = provider.is_some().then(fake_model);
        let providers = provider.map(|base_url| ProviderConfig {
            models: vec![ModelConfig::new("fake-model")],
            ..ProviderConfig::new("fake", base_url)
        });
        let config = ModelsConfig { providers: providers.into_iter().collect(), ..ModelsConfig::default() };
        let options = Options { models: Some(Models::new(config)), default_model, ..Options::in_home(home) };
        let raddle = Raddle::open(options).await.expect("a home opens after a crash");
        let client = raddle.client("reopened", "1").await.expect("a client connects");
        Self { home: home.to_owned(), raddle, client }
    }

    /// All threads that are listed.
    pub(crate) async fn threads(&self) -> Vec<Thread> {
        let mut threads = Vec::new();
        let mut cursor = None;
        loop {
            let params = ThreadListParams { cursor, limit: Some(7), ..ThreadListParams::default() };
            let page =
                self.client.request::<method::ThreadList>(params).await.expect("threads can be listed");
            threads.extend(page.threads);
            cursor = page.next_cursor;
            if cursor.is_none() {
                return threads;
            }
        }
    }

    /// A thread with its whole history, in pages of `limit` turns.
    pub(crate) async fn read(&self, id: &ThreadId, limit: u32) -> (Thread, Vec<Turn>) {
        let mut turns = Vec::new();
        let mut params = ThreadReadParams { limit: Some(limit), ..ThreadReadParams::newest(id.clone()) };
        loop {
            let page = self.client.request::<method::ThreadRead>(params.clone()).await;
            let page = page.expect("a thread can be read");
            turns.splice(0..0, self.whole(page.turns).await);
            params.cursor = page.next_cursor;
            if params.cursor.is_none() {
                return (page.thread, turns);
            }
        }
    }

    /// Loads a thread; the newest page has its newest turns.
    pub(crate) async fn resume(&self, id: &ThreadId) -> ThreadResumeResult {
        let params = ThreadReadParams::newest(id.clone());
        let resumed = self.client.request::<method::ThreadResume>(params).await;
        let resumed = resumed.expect("a thread can be resumed");
        ThreadResumeResult { turns: self.whole(resumed.turns.clone()).await, ..resumed }
    }

    /// The turns with all values that the server has put references for.
    async fn whole(&self, turns: Vec<Turn>) -> Vec<Turn> {
        let mut whole = Vec::new();
        for turn in turns {
            whole.push(self.client.resolve_turn(turn).await.expect("what was referred to is there"));
        }
        whole
    }

    /// Makes the fake provider's model that of a thread, and lets its tools run.
    pub(crate) async fn use_fake_model(&self, id: &ThreadId) {
        let params = ThreadSettingsUpdateParams {
            thread_id: id.clone(),
            model: Some(fake_model()),
            approval_mode: Some(ApprovalMode::FullAccess),
            instructions: None,
        };
        self.client.request::<method::ThreadSettingsUpdate>(params).await.expect("settings can be changed");
    }

    /// Runs a turn to its end; gives the fold of what was told about it.
    pub(crate) async fn run(&self, id: &ThreadId, text: &str) -> Turn {
        let mut notifications = self.client.notifications();
        let params = TurnStartParams::new(id.clone(), text);
        let started = self.client.request::<method::TurnStart>(params).await.expect("a turn can be started");
        let turn_id = started.turn_id.expect("a turn that started has an id");
        let mut folded: Option<Turn> = None;
        loop {
            let told = notifications.next().await.expect("the turn ends");
            if let ServerNotification::TurnStarted(n) = &told
                && n.turn.id == turn_id
            {
                folded = Some(Turn::new(n.turn.clone()));
            } else if let Some((_, of, change)) = Change::of_notification(&told)
                && of == &turn_id
            {
                let turn = folded.as_mut().expect("a turn begins before anything else of it");
                turn.apply(change).expect("what is told fits what was told before");
            }
            if let (ServerNotification::TurnCompleted(n), Some(turn)) = (told, &folded)
                && n.turn.id == turn_id
            {
                return turn.clone();
            }
        }
    }

    /// Whether the log says that an item was withdrawn.
    pub(crate) async fn was_removed(&self, thread: &ThreadId, turn: &TurnId, item: &ItemId) -> bool {
        let store = Store::open(StoreOptions::new(&self.home)).expect("the store opens");
        let stored =
            store.turn(thread, turn).await.expect("the thread can be read").expect("it has the turn");
        store.close().await;
        stored.events.iter().any(
            |recorded| matches!(&recorded.event.body, EventBody::ItemRemoved(removed) if removed == item),
        )
    }

    /// Closes the engine in good order.
    pub(crate) async fn close(self) {
        self.raddle.close().await;
    }
}

pub(crate) fn fake_model() -> ModelRef {
    ModelRef::new("fake", "fake-model")
}
