//! The store against a model in plain maps, under random work with restarts and changes of owner.

use std::collections::BTreeMap;

use proptest::prelude::*;
use raddle_protocol::thread::{ApprovalMode, ThreadSettings};
use raddle_protocol::{Event, EventBody, Recorded, TurnId, UnixMillis};
use raddle_store::{Lease, ListQuery, Store, StoredTurn, ThreadRow};

use crate::support::{Script, create, home, id, open, started};

const THREADS: u8 = 3;

#[derive(Clone, Debug)]
enum Step {
    StartTurn,
    EndTurn,
    User,
    StartItem(u32),
    Deltas(u32, u8),
    Complete(u32),
    Remove(u32),
    Decide(u32),
    Settings(bool),
    /// Ends a batch here.
    Commit,
    /// Gives the thread to the other store.
    HandOver,
    /// Closes both stores, in mid-turn as it may be, and opens them again.
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<(u8, Step)>> {
    let item = || 0u32..4;
    let step = prop_oneof![
        3 => Just(Step::StartTurn),
        2 => Just(Step::EndTurn),
        2 => Just(Step::User),
        3 => item().prop_map(Step::StartItem),
        6 => (item(), 1u8..6).prop_map(|(item, count)| Step::Deltas(item, count)),
        4 => item().prop_map(Step::Complete),
        2 => item().prop_map(Step::Remove),
        1 => item().prop_map(Step::Decide),
        1 => any::<bool>().prop_map(Step::Settings),
        6 => Just(Step::Commit),
        1 => Just(Step::HandOver),
        1 => Just(Step::Reopen),
    ];
    proptest::collection::vec((0..THREADS, step), 1..120)
}

/// What the store must say of one thread.
struct Model {
    row: ThreadRow,
    turns: Vec<StoredTurn>,
    /// Of the turn to come, or of the one that runs.
    script: Script,
    running: bool,
    batch: Vec<Event>,
    owner: usize,
    lease: Lease,
}

impl Model {
    fn push(&mut self, event: Event) {
        self.batch.push(event);
    }

    fn take(&mut self, step: &Step) {
        let script = self.script.clone();
        match step {
            Step::StartTurn if !self.running => {
                self.push(script.start());
                self.running = true;
            }
            Step::Settings(ask) => {
                let approval_mode = if *ask { ApprovalMode::Ask } else { ApprovalMode::FullAccess };
                let settings = ThreadSettings { approval_mode, ..ThreadSettings::default() };
                self.row.settings = settings.clone();
                let body = EventBody::SettingsUpdated(settings);
                self.push(Event { turn_id: None, at: UnixMillis(1), body });
            }
            _ if !self.running => {}
            Step::EndTurn => {
                self.push(script.end());
                self.running = false;
                self.script = script.next();
            }
            Step::User => self.push(script.user(9, &format!("words of {}", script.turn))),
            Step::StartItem(item) => self.push(script.message_start(*item)),
            Step::Deltas(item, count) => (0..*count).for_each(|_| self.push(script.delta(*item, "piece "))),
            Step::Complete(item) => self.push(script.message(*item, "whole")),
            Step::Remove(item) => self.push(script.removed(*item)),
            Step::Decide(item) => self.push(script.decided(*item)),
            Step::StartTurn | Step::Commit | Step::HandOver | Step::Reopen => {}
        }
    }

    async fn commit(&mut self, stores: &[Store; 2]) {
        if self.batch.is_empty() {
            return;
        }
        let events = std::mem::take(&mut self.batch);
        let appended = stores[self.owner].append(&self.lease, events).await.unwrap();
        assert_eq!(appended.first_seq, self.row.last_seq + 1);
        for (seq, event) in (appended.first_seq..).zip(appended.events) {
            self.record(Recorded { seq, event });
        }
    }

    fn record(&mut self, recorded: Recorded) {
        self.row.last_seq = recorded.seq;
        let at = recorded.event.at;
        match &recorded.event.body {
            EventBody::SettingsUpdated(_) => return,
            EventBody::TurnStarted(begun) => {
                let turn_id: TurnId = begun.turn.id.clone();
                self.row.head = Some(turn_id.clone());
                self.row.depth += 1;
                self.row.head_ended = false;
                self.row.updated_at = at;
                self.turns.push(StoredTurn {
                    id: turn_id,
                    thread_id: self.row.id.clone(),
                    depth: self.row.depth,
                    ended: false,
                    events: Vec::new(),
                });
            }
            EventBody::TurnCompleted(_) => {
                self.row.head_ended = true;
                self.row.updated_at = at;
                self.turns.last_mut().unwrap().ended = true;
            }
            EventBody::ItemCompleted(_) | EventBody::ItemRemoved(_) => {
                let item = recorded.event.body.item_id();
                self.turns.last_mut().unwrap().events.retain(|old| {
                    old.event.body.item_id() != item
                        || matches!(old.event.body, EventBody::ApprovalDecided(_) | EventBody::ItemRemoved(_))
                });
                if recorded.event == self.script_user(&recorded.event) && self.row.title.is_none() {
                    self.row.title = Some(format!("words of {}", self.turns.last().unwrap().id));
                }
            }
            _ => {}
        }
        self.turns.last_mut().unwrap().events.push(recorded);
    }

    /// The user message that the event's turn would have, to tell one from other items.
    fn script_user(&self, event: &Event) -> Event {
        let turn = self.turns.last().unwrap();
        let script =
            Script { turn: turn.id.clone(), depth: turn.depth, at: event.at.0, ..self.script.clone() };
        script.user(9, &format!("words of {}", turn.id))
    }

    async fn check(&self, store: &Store, limit: u32) {
        let thread = &self.row.id;
        assert_eq!(store.thread(thread).await.unwrap(), self.row);
        assert_eq!(store.branch(thread).await.unwrap(), self.turns);
        assert_eq!(store.head_turn(thread).await.unwrap().as_ref(), self.turns.last());
        let mut page = store.page(thread, None, limit).await.unwrap();
        let mut read = page.turns;
        while let Some(cursor) = page.next_cursor {
            page = store.page(thread, Some(&cursor), limit).await.unwrap();
            assert!(page.turns.len() <= limit as usize);
            read.splice(0..0, page.turns);
        }
        assert_eq!(read, self.turns);
    }
}

async fn run(steps: Vec<(u8, Step)>, limit: u32) {
    let home = home();
    let mut stores = [open(home.path()), open(home.path())];
    let mut models = BTreeMap::new();
    for number in 0..THREADS {
        let name = format!("t{number}");
        let lease = create(&stores[0], &name).await;
        let row = ThreadRow {
            id: id(&name),
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
        };
        let (turns, batch, script) = (Vec::new(), Vec::new(), Script::first(&name));
        models.insert(number, Model { row, turns, script, running: false, batch, owner: 0, lease });
    }
    for (number, step) in steps {
        match step {
            Step::Reopen => {
                for model in models.values_mut() {
                    model.commit(&stores).await;
                }
                drop(stores);
                stores = [open(home.path()), open(home.path())];
                for model in models.values_mut() {
                    model.lease = stores[model.owner].acquire(&model.row.id).await.unwrap();
                    model.check(&stores[1 - model.owner], limit).await;
                }
            }
            Step::HandOver => {
                let model = models.get_mut(&number).unwrap();
                model.commit(&stores).await;
                stores[model.owner].release(&model.lease).await.unwrap();
                model.owner = 1 - model.owner;
                model.lease = stores[model.owner].acquire(&model.row.id).await.unwrap();
            }
            Step::Commit => models.get_mut(&number).unwrap().commit(&stores).await,
            step => models.get_mut(&number).unwrap().take(&step),
        }
    }
    for model in models.values_mut() {
        model.commit(&stores).await;
        model.check(&stores[0], limit).await;
    }
    let listed = stores[1].list(ListQuery::default()).await.unwrap().threads;
    let mut rows: Vec<_> = models.into_values().map(|model| model.row).collect();
    rows.reverse();
    rows.sort_by_key(|row| std::cmp::Reverse(row.updated_at));
    assert_eq!(listed, rows);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn p5_the_store_agrees_with_a_model_in_plain_maps(
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
