//! The store against a model in plain vectors, under random work with restarts and changes of owner.

use proptest::prelude::*;
use raddle_protocol::event::{EventBody, InputsUnqueued, ThreadNamed, UnqueuedReason};
use raddle_protocol::thread::{ApprovalMode, ThreadSettings};
use raddle_protocol::turn::SendStatus;
use raddle_protocol::{Event, ItemKind, ItemStatus, Recorded, ThreadId, TurnId, UnixMillis};
use raddle_store::{Error, Lease, ListQuery, Sent, Store, StoredTurn, ThreadRow};

use crate::support::{
    Script, archived, count, create, fork, home, id, large, of_thread, open, queued, raw, rewound, started,
    until,
};

const THREADS: usize = 3;

/// Threads at a time, forks included.
const THREADS_MAX: usize = 6;

type Key = Option<u8>;

#[derive(Clone, Debug)]
enum Step {
    StartTurn(Key),
    StartQueued,
    EndTurn,
    User,
    StartItem(u32),
    Deltas(u32, u8),
    /// With one of a few texts, some of them large.
    Complete(u32, usize),
    Compact,
    Remove(u32),
    Decide(u32),
    Steer(u32, Key),
    Queue(usize, Key),
    Unqueue,
    Settings(bool),
    Name(Option<u8>),
    Archive(bool),
    Rewind(usize),
    Fork(usize),
    Delete,
    /// Ends a batch here.
    Commit,
    /// Gives the thread to the other store.
    HandOver,
    /// Closes both stores, in mid-turn as it may be, and opens them again.
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
    let item = || 0u32..4;
    let key = || proptest::option::of(0u8..6);
    let step = prop_oneof![
        6 => key().prop_map(Step::StartTurn),
        1 => Just(Step::StartQueued),
        4 => Just(Step::EndTurn),
        2 => Just(Step::User),
        3 => item().prop_map(Step::StartItem),
        6 => (item(), 1u8..6).prop_map(|(item, count)| Step::Deltas(item, count)),
        4 => (item(), 0usize..6).prop_map(|(item, text)| Step::Complete(item, text)),
        1 => Just(Step::Compact),
        2 => item().prop_map(Step::Remove),
        1 => item().prop_map(Step::Decide),
        1 => (item(), key()).prop_map(|(item, key)| Step::Steer(item, key)),
        2 => (0usize..6, key()).prop_map(|(text, key)| Step::Queue(text, key)),
        1 => Just(Step::Unqueue),
        1 => any::<bool>().prop_map(Step::Settings),
        1 => any::<Option<u8>>().prop_map(Step::Name),
        2 => any::<bool>().prop_map(Step::Archive),
        3 => (0usize..8).prop_map(Step::Rewind),
        3 => (0usize..8).prop_map(Step::Fork),
        2 => Just(Step::Delete),
        6 => Just(Step::Commit),
        1 => Just(Step::HandOver),
        1 => Just(Step::Reopen),
    ];
    proptest::collection::vec((0..THREADS_MAX, step), 1..120)
}

fn text(number: usize) -> String {
    if number < 2 { large(number, 70_000) } else { format!("short {number}") }
}

/// What the store must say of one thread.
struct Model {
    row: ThreadRow,
    turns: Vec<StoredTurn>,
    queue: Vec<(String, String)>,
    sends: Vec<Sent>,
    /// Of the turn to come, or of the one that runs.
    script: Script,
    running: bool,
    batch: Vec<Event>,
    /// For names that come once.
    serial: u32,
    owner: usize,
    lease: Lease,
}

impl Model {
    fn new(lease: Lease, owner: usize, row: ThreadRow, turns: Vec<StoredTurn>) -> Self {
        let script = Script::first(row.id.as_str());
        let (queue, sends, batch) = (Vec::new(), Vec::new(), Vec::new());
        let mut model =
            Self { row, turns, queue, sends, script, running: false, batch, serial: 0, owner, lease };
        model.follow(model.turns.len());
        model
    }

    /// The turn to come follows the first `depth` turns.
    fn follow(&mut self, depth: usize) {
        self.serial += 1;
        self.script = Script {
            thread: self.row.id.clone(),
            turn: TurnId::from(format!("{}/{}", self.row.id, self.serial)),
            parent: depth.checked_sub(1).map(|last| self.turns[last].id.clone()),
            depth: depth as u32 + 1,
            at: 100_000 + 1_000 * i64::from(self.serial),
        };
    }

    fn send(&mut self, key: Key, status: SendStatus, turn_id: Option<&TurnId>, queue_id: Option<&str>) {
        let Some(key) = key.map(|key| key.to_string()) else { return };
        if self.sends.iter().all(|sent| sent.key != key) {
            let (turn_id, queue_id) = (turn_id.cloned(), queue_id.map(str::to_owned));
            self.sends.push(Sent { key, status, turn_id, queue_id });
        }
    }

    fn start(&mut self, queue_id: Option<&str>, key: Key) {
        let script = self.script.clone();
        self.batch.push(script.start_of(queue_id, key.map(|key| key.to_string()).as_deref()));
        self.send(key, SendStatus::Started, Some(&script.turn), None);
        self.running = true;
    }

    fn take(&mut self, step: Step) {
        let script = self.script.clone();
        match step {
            Step::StartTurn(key) if !self.running => self.start(None, key),
            Step::StartQueued if !self.running && !self.queue.is_empty() => {
                let (id, _) = self.queue.remove(0);
                self.start(Some(&id), None);
            }
            Step::Queue(number, key) => {
                self.serial += 1;
                let (id, text) = (format!("q{}", self.serial), text(number));
                self.batch.push(queued(&id, &text, key.map(|key| key.to_string()).as_deref()));
                self.send(key, SendStatus::Queued, None, Some(&id));
                self.queue.push((id, text));
            }
            Step::Unqueue => {
                let ids = self.queue.drain(..).map(|(id, _)| id).collect();
                let unqueued = InputsUnqueued { ids, reason: UnqueuedReason::Interrupted };
                self.batch.push(of_thread(EventBody::InputsUnqueued(unqueued)));
            }
            Step::Settings(ask) => {
                let approval_mode = if ask { ApprovalMode::Ask } else { ApprovalMode::FullAccess };
                let settings = ThreadSettings { approval_mode, ..ThreadSettings::default() };
                self.row.settings = settings.clone();
                self.batch.push(of_thread(EventBody::SettingsUpdated(settings)));
            }
            Step::Name(name) => {
                let name = name.map(|name| name.to_string());
                self.row.name.clone_from(&name);
                self.batch.push(of_thread(EventBody::NameUpdated(ThreadNamed { name })));
            }
            Step::Archive(put_away) => {
                self.row.archived = put_away;
                self.batch.push(archived(put_away));
            }
            _ if !self.running => {}
            Step::EndTurn => {
                self.batch.push(script.end());
                self.running = false;
                self.serial += 1;
                let turn = TurnId::from(format!("{}/{}", self.row.id, self.serial));
                self.script = Script { turn, ..script.next() };
            }
            Step::User => self.batch.push(script.user(9, &format!("words of {}", script.turn))),
            Step::StartItem(item) => self.batch.push(script.message_start(item)),
            Step::Deltas(item, count) => {
                (0..count).for_each(|_| self.batch.push(script.delta(item, "piece ")))
            }
            Step::Complete(item, number) => self.batch.push(script.called(item, &text(number))),
            Step::Compact => self.batch.push(script.compaction(8, ItemStatus::Completed)),
            Step::Remove(item) => self.batch.push(script.removed(item)),
            Step::Decide(item) => self.batch.push(script.decided(item)),
            Step::Steer(item, key) => {
                self.batch.push(script.steer(item, "more", key.map(|key| key.to_string()).as_deref()));
                self.send(key, SendStatus::Steered, Some(&script.turn), None);
            }
            _ => {}
        }
    }

    async fn commit(&mut self, stores: &[Store; 2]) {
        if self.batch.is_empty() {
            return;
        }
        let events = std::mem::take(&mut self.batch);
        let appended = stores[self.owner].append(&self.lease, events).await.unwrap();
        assert_eq!(appended.first_seq, self.row.last_seq + 1);
        for (at, shown) in &appended.shown {
            assert_eq!(*shown, shrunk(&appended.events[*at]));
            assert_ne!(*shown, appended.events[*at]);
        }
        for (seq, event) in (appended.first_seq..).zip(appended.events) {
            self.record(Recorded { seq, event });
        }
    }

    fn set_head(&mut self) {
        self.row.head = self.turns.last().map(|turn| turn.id.clone());
        self.row.depth = self.turns.len() as u32;
        self.row.head_ended = self.turns.last().is_none_or(|turn| turn.ended);
    }

    fn record(&mut self, recorded: Recorded) {
        self.row.last_seq = recorded.seq;
        let at = recorded.event.at;
        if recorded.event.turn_id.is_none() {
            if let EventBody::Rewound(rewound) = &recorded.event.body {
                let to = self.turns.iter().position(|turn| turn.id == rewound.turn_id).unwrap();
                self.turns.truncate(to + 1);
                self.set_head();
            }
            return;
        }
        match &recorded.event.body {
            EventBody::TurnStarted(begun) => {
                self.row.updated_at = at;
                self.turns.push(StoredTurn {
                    id: begun.turn.id.clone(),
                    thread_id: self.row.id.clone(),
                    depth: begun.depth,
                    ended: false,
                    events: Vec::new(),
                });
            }
            EventBody::TurnCompleted(_) => {
                self.row.updated_at = at;
                self.turns.last_mut().unwrap().ended = true;
            }
            EventBody::ItemCompleted(_) | EventBody::ItemRemoved(_) => {
                let item = recorded.event.body.item_id();
                self.turns.last_mut().unwrap().events.retain(|old| {
                    old.event.body.item_id() != item
                        || matches!(
                            old.event.body,
                            EventBody::ApprovalDecided(_)
                                | EventBody::ItemRemoved(_)
                                | EventBody::SteerAccepted(_)
                        )
                });
            }
            _ => {}
        }
        if let EventBody::ItemCompleted(logged) = &recorded.event.body
            && let ItemKind::UserMessage { text, .. } = &logged.item.kind
        {
            self.row.title.get_or_insert_with(|| text.as_str().to_owned());
        }
        self.turns.last_mut().unwrap().events.push(recorded);
        self.set_head();
    }

    async fn check(&self, store: &Store, limit: u32) {
        let thread = &self.row.id;
        assert_eq!(store.thread(thread).await.unwrap(), self.row);
        assert!(store.branch(thread).await.unwrap() == self.turns);
        assert!(store.head_turn(thread).await.unwrap().as_ref() == self.turns.last());
        let compacted = self.turns.iter().rposition(|turn| {
            let compaction = |item: &ItemKind| matches!(item, ItemKind::Compaction { .. });
            turn.events.iter().any(|recorded| {
                matches!(&recorded.event.body, EventBody::ItemCompleted(logged) if compaction(&logged.item.kind))
            })
        });
        assert!(store.context(thread).await.unwrap() == self.turns[compacted.unwrap_or_default()..]);
        let queue = store.queue(thread).await.unwrap();
        let queue: Vec<_> =
            queue.into_iter().map(|input| (input.id, input.input.text.into_string())).collect();
        assert!(queue == self.queue);
        assert_eq!(store.sends(thread).await.unwrap(), self.sends);
        let mut page = store.page(thread, None, limit).await.unwrap();
        let mut read = page.turns;
        while let Some(cursor) = page.next_cursor {
            page = store.page(thread, Some(&cursor), limit).await.unwrap();
            assert!(page.turns.len() <= limit as usize);
            read.splice(0..0, page.turns);
        }
        let mut shown = self.turns.clone();
        shown
            .iter_mut()
            .flat_map(|turn| &mut turn.events)
            .for_each(|recorded| recorded.event = shrunk(&recorded.event));
        assert_eq!(read, shown);
    }
}

fn shrunk(event: &Event) -> Event {
    let body = event.body.shrunk(|_, _| {}).unwrap_or_else(|| event.body.clone());
    Event { body, ..event.clone() }
}

fn new_row(name: &str) -> ThreadRow {
    ThreadRow {
        id: id(name),
        cwd: started().cwd,
        name: None,
        title: None,
        created_at: UnixMillis(1_000),
        updated_at: UnixMillis(1_000),
        archived: false,
        forked_from_id: None,
        settings: ThreadSettings::default(),
        head: None,
        depth: 0,
        last_seq: 1,
        head_ended: true,
    }
}

/// All threads, in the order of their making, and those that are gone.
struct World {
    home: tempfile::TempDir,
    stores: [Store; 2],
    models: Vec<Model>,
    gone: Vec<ThreadId>,
    forks: u32,
}

impl World {
    async fn new() -> Self {
        let home = home();
        let stores = [open(home.path()), open(home.path())];
        let mut models = Vec::new();
        for number in 0..THREADS {
            let name = format!("t{number}");
            let lease = create(&stores[0], &name).await;
            models.push(Model::new(lease, 0, new_row(&name), Vec::new()));
        }
        Self { home, stores, models, gone: Vec::new(), forks: 0 }
    }

    async fn take(&mut self, number: usize, step: Step, limit: u32) {
        if let Step::Reopen = step {
            return self.reopen(limit).await;
        }
        if self.models.is_empty() {
            return;
        }
        let at = number % self.models.len();
        let (model, stores) = (&mut self.models[at], &self.stores);
        match step {
            Step::Commit => model.commit(stores).await,
            Step::HandOver => {
                model.commit(stores).await;
                stores[model.owner].release(&model.lease).await.unwrap();
                model.owner = 1 - model.owner;
                model.lease = stores[model.owner].acquire(&model.row.id).await.unwrap();
            }
            Step::Rewind(to) => {
                model.commit(stores).await;
                if !model.running && !model.turns.is_empty() {
                    let to = to % model.turns.len();
                    model.batch.push(rewound(&model.turns[to].id));
                    model.follow(to + 1);
                }
            }
            Step::Fork(to) => self.fork(at, to).await,
            Step::Delete => {
                model.commit(stores).await;
                let deleted = stores[model.owner].delete_thread(&model.lease).await;
                if model.row.archived {
                    deleted.unwrap();
                    self.gone.push(self.models.remove(at).row.id);
                } else {
                    assert!(matches!(deleted, Err(Error::NotArchived { .. })), "{deleted:?}");
                }
            }
            step => model.take(step),
        }
    }

    async fn fork(&mut self, at: usize, to: usize) {
        let (source, stores) = (&mut self.models[at], &self.stores);
        source.commit(stores).await;
        let ended = source.turns.iter().filter(|turn| turn.ended).count();
        if ended == 0 || self.models.len() == THREADS_MAX {
            return;
        }
        self.forks += 1;
        let source = &self.models[at];
        let name = format!("f{}", self.forks);
        let turns = source.turns[..=to % ended].to_vec();
        let last = turns.last().unwrap().id.clone();
        let lease = fork(&stores[source.owner], &name, source.row.id.as_str(), &last).await.unwrap();
        let row = ThreadRow {
            title: source.row.title.clone(),
            created_at: UnixMillis(60_000),
            updated_at: UnixMillis(60_000),
            forked_from_id: Some(source.row.id.clone()),
            ..new_row(&name)
        };
        let mut model = Model::new(lease, source.owner, row, turns);
        model.set_head();
        self.models.push(model);
    }

    async fn reopen(&mut self, limit: u32) {
        for model in &mut self.models {
            model.commit(&self.stores).await;
        }
        let path = self.home.path();
        // Both are closed first: the one that has the threads gives them back.
        for store in &self.stores {
            store.clone().close().await;
        }
        self.stores = [open(path), open(path)];
        for model in &mut self.models {
            model.lease = self.stores[model.owner].acquire(&model.row.id).await.unwrap();
            model.check(&self.stores[1 - model.owner], limit).await;
        }
    }

    /// Everything is as the models say, and what nobody reaches is gone.
    async fn check(mut self, limit: u32) {
        for model in &mut self.models {
            model.commit(&self.stores).await;
            model.check(&self.stores[0], limit).await;
        }
        for id in &self.gone {
            assert!(matches!(self.stores[0].thread(id).await, Err(Error::ThreadNotFound { .. })));
        }
        for archived in [false, true] {
            let query = ListQuery { archived, ..ListQuery::default() };
            let listed = self.stores[1].list(query).await.unwrap().threads;
            let rows = self.models.iter().map(|model| model.row.clone());
            let mut rows: Vec<_> = rows.filter(|row| row.archived == archived).collect();
            rows.reverse();
            rows.sort_by_key(|row| std::cmp::Reverse(row.updated_at));
            assert_eq!(listed, rows);
        }
        let home = self.home.path();
        let wrong: i64 = raw(home)
            .query_row(
                "SELECT count(*) FROM turn t WHERE uses != (SELECT count(*) FROM turn c WHERE c.parent = t.key)
                     + (SELECT count(*) FROM thread h WHERE h.head = t.key)",
                [],
                |row| row.get(0),
            )
            .unwrap();
        assert_eq!(wrong, 0, "turns whose uses are miscounted");
        for model in &mut self.models {
            model.batch.push(archived(true));
            model.commit(&self.stores).await;
            self.stores[model.owner].delete_thread(&model.lease).await.unwrap();
        }
        let tables =
            ["event", "turn", "deleted", "queue", "send", "blob", "blob_part", "blob_use", "owner", "thread"];
        until("nothing is left", || tables.iter().all(|table| count(home, table) == 0)).await;
    }
}

async fn run(steps: Vec<(usize, Step)>, limit: u32) {
    let mut world = World::new().await;
    for (number, step) in steps {
        world.take(number, step, limit).await;
    }
    world.check(limit).await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn p5_the_store_agrees_with_a_model_in_plain_vectors(
        steps in steps(), limit in 1u32..5, threaded: bool,
    ) {
        // With threads to spare, small batches are committed by their callers, else by the writer.
        let mut runtime = match threaded {
            true => tokio::runtime::Builder::new_multi_thread(),
            false => tokio::runtime::Builder::new_current_thread(),
        };
        runtime.worker_threads(1).build().unwrap().block_on(run(steps, limit));
    }
}
