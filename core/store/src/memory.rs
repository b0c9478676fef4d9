//! What the writer remembers of the threads that it wrote.
//!
//! All of it can be read again from the tables, and is, whenever a transaction failed or the thread changed
//! hands.
//!
//! Neighbours: event, owner, piece, turn.

use std::collections::HashMap;

use raddle_protocol::{ItemId, TurnId};
use rusqlite::Connection;

use crate::event;
use crate::owner::Lease;
use crate::piece::{self, Replaced};
use crate::turn::{self, TurnRow};

/// What the writer remembers of a thread, so that a delta costs one row and no reading.
pub(crate) struct Memory {
    pub(crate) epoch: i64,
    pub(crate) next_seq: u64,
    pub(crate) head: Option<Head>,
    pub(crate) titled: bool,
    /// The first piece of the head that may count. Read with each check of the lease, since whoever sweeps
    /// the pieces may have moved ours.
    pub(crate) pieces_from: Option<i64>,
}

pub(crate) struct Head {
    pub(crate) id: TurnId,
    pub(crate) key: i64,
    pub(crate) depth: u32,
    pub(crate) ended: bool,
    /// The items of the turn while it runs: as many as it has, and gone when it ends.
    pub(crate) items: HashMap<ItemId, Remains>,
    /// How many of them may have pieces.
    pub(crate) in_pieces: usize,
}

/// What there is of an item.
pub(crate) struct Remains {
    /// The first event that is still there of it: where deleting begins when it completes.
    pub(crate) first_seq: u64,
    /// Whether some of it may be in table `piece`.
    pub(crate) pieces: bool,
}

/// The turn that an event belongs to.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) turn: i64,
    /// Where the turn begins, if it is not the newest one, of which more is remembered.
    pub(crate) first_seq: Option<u64>,
}

impl Head {
    /// Notes a piece of an item.
    pub(crate) fn add_piece(&mut self, item: &ItemId, seq: u64) {
        match self.items.get_mut(item) {
            Some(remains) if remains.pieces => {}
            Some(remains) => {
                remains.pieces = true;
                self.in_pieces += 1;
            }
            None => {
                self.items.insert(item.clone(), Remains { first_seq: seq, pieces: true });
                self.in_pieces += 1;
            }
        }
    }

    /// Forgets what there was of an item; tells where it began.
    pub(crate) fn take(&mut self, item: &ItemId) -> Option<u64> {
        let remains = self.items.remove(item)?;
        self.in_pieces -= usize::from(remains.pieces);
        Some(remains.first_seq)
    }
}

impl Memory {
    /// Reads again what the writer would remember.
    pub(crate) fn load(
        connection: &Connection,
        lease: &Lease,
        pieces_from: Option<i64>,
    ) -> rusqlite::Result<Self> {
        let (titled, head): (bool, Option<i64>) = connection
            .prepare_cached("SELECT title IS NOT NULL, head FROM thread WHERE key = ?1")?
            .query_row([lease.key], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let head = match head {
            Some(key) => {
                Some(Head::load(connection, lease.key, turn::by_key(connection, key)?, pieces_from)?)
            }
            None => None,
        };
        let next_seq = event::last_seq(connection, lease.key, pieces_from)? + 1;
        Ok(Self { epoch: lease.epoch, next_seq, head, titled, pieces_from })
    }

    /// The head, if the event that is placed at `place` belongs to it.
    pub(crate) fn head_at(&mut self, place: Option<Place>) -> Option<&mut Head> {
        self.head.as_mut().filter(|head| place.is_some_and(|place| place.turn == head.key))
    }

    /// Moves what is left of the head's pieces to where the events of a turn stay for good.
    pub(crate) fn settle(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        if let (Some(head), Some(_)) = (&self.head, self.pieces_from) {
            piece::settle(connection, &turn::by_key(connection, head.key)?)?;
            self.pieces_from = None;
        }
        Ok(())
    }
}

impl Head {
    /// A turn to which nothing more is added.
    pub(crate) fn finished(row: TurnRow) -> Self {
        Self { id: row.id, key: row.key, depth: row.depth, ended: true, items: HashMap::new(), in_pieces: 0 }
    }

    fn load(
        connection: &Connection,
        thread: i64,
        row: TurnRow,
        pieces_from: Option<i64>,
    ) -> rusqlite::Result<Self> {
        let mut items: HashMap<ItemId, Remains> = HashMap::new();
        // In a fork the head can be a turn that another thread ran; nobody adds to it here.
        let ended = row.ended || row.thread != thread;
        if !ended {
            let mut replaced = Replaced::default();
            for stub in event::stubs(connection, &row)? {
                if stub.replaces() {
                    replaced.note(&stub.item, stub.seq);
                    items.remove(&stub.item);
                }
                // What is decided or steered stays when the item completes, and a removal leaves nothing.
                if matches!(stub.kind, 4..=8) {
                    let remains = Remains { first_seq: stub.seq, pieces: false };
                    items.entry(stub.item).or_insert(remains);
                }
            }
            if let Some(from) = pieces_from {
                for stub in piece::stubs(connection, &row, from, &replaced)? {
                    let remains = Remains { first_seq: stub.seq, pieces: true };
                    items.entry(stub.item).or_insert(remains).pieces = true;
                }
            }
        }
        let in_pieces = items.values().filter(|remains| remains.pieces).count();
        Ok(Self { id: row.id, key: row.key, depth: row.depth, ended, items, in_pieces })
    }
}
