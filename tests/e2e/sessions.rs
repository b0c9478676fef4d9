//! Random sessions: several clients that join, leave, lag and resume at random cursors while they start, steer, queue,
//! interrupt, compact, rewind and fork. Whatever happens, watching equals reading. Holds: P4, P5, P8.
//!
//! What is compared stands in [`World::finish`]: the fold of each client's notifications, the fold of its resumes and what
//! followed them, and the history as it is read in pages of several sizes, before and after a restart.

use raddle::protocol::methods::method;
use raddle::protocol::thread::{
    ApprovalMode, ThreadCompactParams, ThreadForkParams, ThreadIdParams, ThreadReadParams,
    ThreadRewindParams, ThreadStatus,
};
use raddle::protocol::turn::{
    SendMode, TurnInterruptParams, TurnQueueAddParams, TurnQueueRemoveParams, TurnSendParams, TurnStartParams,
};
use raddle::protocol::{ErrorCode, RpcError, ThreadId};
use raddle_tests::{Client, Reply, World};
use serde_json::{Value, json};

/// Sessions of one run of the test; `RADDLE_SESSIONS` asks for more.
const SESSIONS: u64 = 12;

/// Things that happen in one session.
const STEPS: usize = 70;

/// A small generator of our own (SplitMix64), so that a seed says the same on every machine.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % sides as u64) as usize
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.roll(from.len())]
    }
}

/// What the model answers: a function of what it was asked, so that it needs no script.
fn answer(body: &Value) -> Reply {
    let last = body["messages"].as_array().and_then(|messages| messages.last()).cloned().unwrap_or_default();
    if last["role"] == "tool" {
        return Reply::says("The tool has answered.");
    }
    let text = last["content"].as_str().unwrap_or_default();
    let kind = text.bytes().fold(0_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(byte)));
    match kind % 7 {
        0 => Reply::says("Short."),
        1 => Reply::text_deltas(200),
        2 => Reply::stream().reasoning("Let me ").reasoning("think.").text("Thought.").usage(9, 4).stop(),
        3 => Reply::calls(&[
            ("same-id", "ls", json!({ "path": "." })),
            ("", "ls", json!({ "path": "nowhere" })),
        ]),
        4 => Reply::stream().text("Cut ").cut(),
        5 => Reply::error(400, "bad", "the model does not like this"),
        _ => Reply::text_deltas(20),
    }
}

struct Session {
    world: World,
    dice: Dice,
    clients: Vec<Client>,
    threads: Vec<ThreadId>,
    cursors: Vec<(ThreadId, String)>,
    said: usize,
}

impl Session {
    async fn begin(seed: u64) -> Self {
        let world = World::start().await;
        world.provider().set_default(answer);
        let first = world.client().await;
        let threads =
            vec![world.thread_with(&first, ApprovalMode::FullAccess).await, world.thread(&first).await];
        Self { world, dice: Dice(seed), clients: vec![first], threads, cursors: Vec::new(), said: 0 }
    }

    fn text(&mut self) -> String {
        self.said += 1;
        format!("input {} {}", self.said, self.dice.roll(1_000))
    }

    async fn step(&mut self) {
        let client = self.dice.pick(&self.clients).clone();
        let thread = self.dice.pick(&self.threads).clone();
        let outcome = match self.dice.roll(18) {
            0 if self.clients.len() < 6 => {
                self.clients.push(self.world.client().await);
                Ok(())
            }
            1 if self.clients.len() > 2 => {
                let gone = self.clients.swap_remove(self.dice.roll(self.clients.len()));
                gone.read_on();
                gone.close().await;
                Ok(())
            }
            2 => {
                client.stop_reading();
                Ok(())
            }
            3..=5 => {
                self.clients.iter().for_each(Client::read_on);
                Ok(())
            }
            6 => self.resume(&client, &thread).await,
            7 => self.read(&client, &thread).await,
            8 | 9 => {
                let text = self.text();
                reading(&client);
                let params = TurnStartParams::new(thread, text);
                client.request::<method::TurnStart>(params).await.map(drop)
            }
            10 | 11 => {
                let start = TurnStartParams::new(thread, self.text());
                let mode = *self.dice.pick(&[SendMode::Auto, SendMode::Steer, SendMode::Queue]);
                let key = (self.dice.roll(3) == 0).then(|| format!("key {}", self.dice.roll(4)));
                reading(&client);
                let params = TurnSendParams { start, mode, idempotency_key: key };
                client.request::<method::TurnSend>(params).await.map(drop)
            }
            12 => self.queue(&client, thread).await,
            13 if self.dice.roll(3) == 0 => {
                reading(&client);
                let params = TurnInterruptParams { thread_id: thread, turn_id: None };
                client.request::<method::TurnInterrupt>(params).await.map(drop)
            }
            14 if self.dice.roll(2) == 0 => {
                reading(&client);
                client.request::<method::ThreadUnsubscribe>(ThreadIdParams::from(thread)).await.map(drop)
            }
            15 if self.dice.roll(3) == 0 => {
                reading(&client);
                let params = ThreadCompactParams { thread_id: thread, instructions: None };
                client.request::<method::ThreadCompact>(params).await.map(drop)
            }
            16 => self.fork(&client, &thread).await,
            17 => self.settle(&client, &thread).await,
            _ => Ok(()),
        };
        if let Err(error) = outcome {
            // Refusals that the moment explains; anything else is a fault.
            let explained = matches!(
                error.code,
                ErrorCode::TurnInProgress | ErrorCode::TurnMismatch | ErrorCode::InvalidCursor
            ) || matches!(error.reason(), Some("unknownTurn" | "turnNotEnded" | "queueFull"));
            assert!(explained, "{error:?}");
        }
    }

    /// Subscribes, at the newest page or at an older one.
    async fn resume(&mut self, client: &Client, thread: &ThreadId) -> Result<(), RpcError> {
        reading(client);
        let cursors: Vec<_> =
            self.cursors.iter().filter(|(of, _)| of == thread).map(|(_, c)| c.clone()).collect();
        let cursor = match cursors.is_empty() || self.dice.roll(2) == 0 {
            true => None,
            false => Some(self.dice.pick(&cursors).clone()),
        };
        let params = ThreadReadParams { thread_id: thread.clone(), cursor, limit: None };
        client.request::<method::ThreadResume>(params).await.map(drop)
    }

    async fn read(&mut self, client: &Client, thread: &ThreadId) -> Result<(), RpcError> {
        reading(client);
        let limit = Some(1 + self.dice.roll(3) as u32);
        let params = ThreadReadParams { limit, ..ThreadReadParams::newest(thread.clone()) };
        let page = client.request::<method::ThreadRead>(params).await?;
        self.cursors.extend(page.next_cursor.map(|cursor| (thread.clone(), cursor)));
        Ok(())
    }

    async fn queue(&mut self, client: &Client, thread_id: ThreadId) -> Result<(), RpcError> {
        reading(client);
        let params = TurnQueueAddParams {
            thread_id: thread_id.clone(),
            text: self.text(),
            images: Vec::new(),
            request_id: None,
            client_message_id: Some("token".to_owned()),
        };
        let queue_id = client.request::<method::TurnQueueAdd>(params).await?.queue_id;
        if self.dice.roll(3) == 0 {
            let params = TurnQueueRemoveParams { thread_id, queue_id };
            client.request::<method::TurnQueueRemove>(params).await?;
        }
        Ok(())
    }

    async fn fork(&mut self, client: &Client, thread: &ThreadId) -> Result<(), RpcError> {
        reading(client);
        let turns = client.read(thread).await.turns;
        let turn_id = match turns.is_empty() || self.dice.roll(2) == 0 {
            true => None,
            false => Some(self.dice.pick(&turns).summary.id.clone()),
        };
        let params = ThreadForkParams {
            thread_id: thread.clone(),
            turn_id,
            new_thread_id: None,
            replace: self.dice.roll(4) == 0,
        };
        let fork = client.request::<method::ThreadFork>(params).await?.thread;
        if self.threads.len() < 5 {
            self.threads.push(fork.id);
        }
        Ok(())
    }

    /// Waits until the thread is idle, and perhaps takes turns off its branch.
    async fn settle(&mut self, client: &Client, thread: &ThreadId) -> Result<(), RpcError> {
        reading(client);
        client
            .view_until("the thread to be idle", |view| {
                let idle = view
                    .status(thread)
                    .is_none_or(|status| *status != ThreadStatus::Active { waiting_on: Vec::new() });
                idle.then_some(())
            })
            .await;
        // One that left has folded turns that a rewind takes off the branch behind its back: only those who stay may see one.
        let turns = client.read(thread).await.turns;
        if turns.is_empty() || self.dice.roll(3) > 0 || self.world.has_ended_clients() {
            return Ok(());
        }
        for client in &self.clients {
            client.read_on();
            client.request::<method::ThreadResume>(ThreadReadParams::newest(thread.clone())).await?;
        }
        let turn_id = self.dice.pick(&turns).summary.id.clone();
        let params = ThreadRewindParams { thread_id: thread.clone(), turn_id };
        client.request::<method::ThreadRewind>(params).await.map(drop)
    }
}

/// A client that waits for an answer reads.
fn reading(client: &Client) {
    client.read_on();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_watching_equals_reading_in_random_sessions() {
    let sessions = std::env::var("RADDLE_SESSIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(SESSIONS);
    let first = std::env::var("RADDLE_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    for seed in first..first + sessions {
        println!("session with RADDLE_SEED={seed}");
        let mut session = Session::begin(seed).await;
        for _ in 0..STEPS {
            session.step().await;
        }
        for client in &session.clients {
            client.read_on();
        }
        session.world.finish().await;
    }
}
