//! Which payload references were given out, where their bytes are, and when each was last used. Pure: the time comes from
//! outside.
//!
//! Neighbours: none.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use raddle_protocol::limits::PAYLOAD_EXPIRES_AFTER_MS;
use raddle_protocol::payload::PayloadReference;
use raddle_protocol::{ThreadId, TurnId};

/// References that can be read at the same time; of more, the one unused for longest expires early. Ours.
pub const PAYLOAD_REFERENCES_MAX: usize = 16_384;

/// Bytes of payloads that are in memory since the store has them nowhere as they are; at more, those unused for longest
/// go. What can be had from the store again is then had from there. Ours.
pub const PAYLOAD_MEMORY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A saved turn, as the thread that it was read from leads to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SavedTurn {
    pub(crate) thread_id: ThreadId,
    pub(crate) turn_id: TurnId,
}

/// A reference that goes to a client, and what is known of where its bytes are. The store is asked in any case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) reference: PayloadReference,
    /// The bytes themselves, where nothing else has them.
    pub(crate) bytes: Option<Vec<u8>>,
    /// The turn that it comes out of when it is rendered again.
    pub(crate) turn: Option<SavedTurn>,
    /// Whether it stands for items, in which further references may stand.
    pub(crate) holds_items: bool,
}

impl Given {
    /// A reference to what the store has as it is.
    pub(crate) fn stored(reference: PayloadReference) -> Self {
        Self { reference, bytes: None, turn: None, holds_items: false }
    }
}

/// Where the bytes of a reference are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) memory: Option<Arc<Vec<u8>>>,
    pub(crate) turn: Option<SavedTurn>,
    pub(crate) holds_items: bool,
}

/// The bounds of a registry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) references: usize,
    pub(crate) memory_bytes: usize,
    pub(crate) expires_after: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            references: PAYLOAD_REFERENCES_MAX,
            memory_bytes: PAYLOAD_MEMORY_BYTES_MAX,
            expires_after: Duration::from_millis(PAYLOAD_EXPIRES_AFTER_MS),
        }
    }
}

/// The references that live.
#[derive(Default)]
pub(crate) struct Registry {
    bounds: Bounds,
    entries: HashMap<Arc<str>, Entry>,
    /// By their last use, oldest first. A use is a number, so that no two are the same.
    by_use: BTreeMap<u64, Arc<str>>,
    /// Those of them that have their bytes in memory.
    in_memory: BTreeMap<u64, Arc<str>>,
    uses: u64,
    memory_bytes: usize,
    bytes: u64,
}

struct Entry {
    bytes: u64,
    used: u64,
    used_at: Instant,
    memory: Option<Arc<Vec<u8>>>,
    turn: Option<SavedTurn>,
    holds_items: bool,
}

impl Registry {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { bounds, ..Self::default() }
    }

    /// Notes that a reference goes to a client; one that is known is used by that.
    pub(crate) fn give(&mut self, given: Given, now: Instant) {
        self.expire(now);
        let Given { reference, bytes, turn, holds_items } = given;
        if !is_id(&reference.id) {
            return;
        }
        match self.entries.get_mut(reference.id.as_str()) {
            Some(known) => {
                known.turn = turn.or(known.turn.take());
                known.holds_items |= holds_items;
            }
            None => {
                while self.entries.len() >= self.bounds.references.max(1) {
                    self.remove_oldest();
                }
                let id: Arc<str> = reference.id.as_str().into();
                let (used, bytes) = (self.next_use(), reference.bytes);
                self.by_use.insert(used, id.clone());
                self.entries.insert(id, Entry { bytes, used, used_at: now, memory: None, turn, holds_items });
                self.bytes += bytes;
            }
        }
        self.touch(&reference.id, now);
        if let Some(bytes) = bytes {
            self.keep(&reference.id, bytes);
        }
    }

    /// Where a reference's bytes are, which uses it; `None` for one that is not known, or expired.
    pub(crate) fn find(&mut self, id: &str, now: Instant) -> Option<Found> {
        self.expire(now);
        self.touch(id, now);
        let entry = self.entries.get(id)?;
        Some(Found { memory: entry.memory.clone(), turn: entry.turn.clone(), holds_items: entry.holds_items })
    }

    /// A reference's bytes are nowhere any more.
    pub(crate) fn forget(&mut self, id: &str) {
        let Some(entry) = self.entries.remove(id) else { return };
        self.by_use.remove(&entry.used);
        self.in_memory.remove(&entry.used);
        self.memory_bytes -= entry.memory.map_or(0, |memory| memory.len());
        self.bytes -= entry.bytes;
    }

    /// How many references live, and the bytes that they stand for.
    pub(crate) fn live(&mut self, now: Instant) -> (u64, u64) {
        self.expire(now);
        (self.entries.len() as u64, self.bytes)
    }

    fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    fn touch(&mut self, id: &str, now: Instant) {
        let used = self.next_use();
        let Some(entry) = self.entries.get_mut(id) else { return };
        let before = std::mem::replace(&mut entry.used, used);
        entry.used_at = now;
        for order in [&mut self.by_use, &mut self.in_memory] {
            if let Some(id) = order.remove(&before) {
                order.insert(used, id);
            }
        }
    }

    /// Keeps bytes in memory, and so perhaps others no longer. What alone is more than the bound is not kept.
    fn keep(&mut self, id: &str, bytes: Vec<u8>) {
        let Some((id, entry)) = self.entries.get_key_value(id) else { return };
        if entry.memory.is_some() || bytes.len() > self.bounds.memory_bytes {
            return;
        }
        let id = id.clone();
        while self.memory_bytes + bytes.len() > self.bounds.memory_bytes
            && let Some((_, oldest)) = self.in_memory.pop_first()
        {
            if let Some(memory) = self.entries.get_mut(&oldest).and_then(|entry| entry.memory.take()) {
                self.memory_bytes -= memory.len();
            }
        }
        self.memory_bytes += bytes.len();
        if let Some(entry) = self.entries.get_mut(&id) {
            self.in_memory.insert(entry.used, id);
            entry.memory = Some(Arc::new(bytes));
        }
    }

    fn expire(&mut self, now: Instant) {
        while let Some((_, oldest)) = self.by_use.first_key_value()
            && self
                .entries
                .get(oldest)
                .is_none_or(|entry| now.saturating_duration_since(entry.used_at) >= self.bounds.expires_after)
        {
            self.remove_oldest();
        }
    }

    fn remove_oldest(&mut self) {
        if let Some((_, oldest)) = self.by_use.pop_first() {
            self.forget(&oldest);
        }
    }
}

/// Whether this can be an id at all: a SHA-256 in small hexadecimal digits.
fn is_id(id: &str) -> bool {
    id.len() == 64 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use raddle_protocol::payload::Payload;

    use super::*;

    const EXPIRES_AFTER: Duration = Duration::from_secs(10);

    fn registry(references: usize, memory_bytes: usize) -> Registry {
        Registry::new(Bounds { references, memory_bytes, expires_after: EXPIRES_AFTER })
    }

    fn given(text: &str) -> Given {
        let payload = Payload::text(text);
        Given { bytes: Some(payload.bytes.clone()), ..Given::stored(payload.reference()) }
    }

    fn id(text: &str) -> String {
        Payload::text(text).reference().id
    }

    #[test]
    fn a_use_puts_the_end_off() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut registry = registry(10, 1_000);
        registry.give(given("a"), at(0));
        registry.give(given("bb"), at(1));
        assert!(registry.find(&id("a"), at(9)).is_some());
        assert_eq!(registry.live(at(10)), (2, 3));
        assert_eq!(registry.live(at(11)), (1, 1));
        assert!(registry.find(&id("bb"), at(11)).is_none());
        // Giving it out again is a use as well.
        registry.give(Given { bytes: None, ..given("a") }, at(18));
        assert_eq!(registry.find(&id("a"), at(27)).unwrap().memory.unwrap().as_slice(), b"a");
        assert!(registry.find(&id("a"), at(37)).is_none());
        assert_eq!((registry.live(at(37)), registry.memory_bytes), ((0, 0), 0));
    }

    #[test]
    fn what_is_no_id_is_not_registered() {
        let now = Instant::now();
        let mut registry = registry(10, 1_000);
        for forged in ["", "../../etc/passwd", &id("a")[1..], &id("a").to_uppercase()] {
            let reference = PayloadReference { id: forged.to_owned(), bytes: 1, mime_type: "x".to_owned() };
            registry.give(Given::stored(reference), now);
            assert!(registry.find(forged, now).is_none());
        }
    }

    #[test]
    fn bytes_that_alone_are_too_many_are_not_kept() {
        let now = Instant::now();
        let mut registry = registry(10, 4);
        registry.give(given("abcd"), now);
        registry.give(given("abcde"), now);
        assert!(registry.find(&id("abcde"), now).unwrap().memory.is_none());
        assert!(registry.find(&id("abcd"), now).unwrap().memory.is_some());
    }

    proptest! {
        /// Whatever happens, the bounds hold, the counts are right, and what was used last is there. Holds: P7.
        #[test]
        fn p7_the_bounds_hold(steps in prop::collection::vec((0_u8..12, 0_u8..3, 0_u64..4), 1..200)) {
            let mut now = Instant::now();
            let mut registry = registry(5, 20);
            for (number, action, seconds) in steps {
                now += Duration::from_secs(seconds);
                let text = "x".repeat(usize::from(number));
                match action {
                    0 => registry.give(given(&text), now),
                    1 => drop(registry.find(&id(&text), now)),
                    _ => registry.forget(&id(&text)),
                }
                if action == 0 {
                    prop_assert!(registry.entries[id(&text).as_str()].memory.is_some());
                }
                prop_assert!(registry.entries.len() <= 5 && registry.memory_bytes <= 20);
                let in_memory: Vec<_> = registry.entries.values().filter_map(|entry| entry.memory.as_ref()).collect();
                prop_assert_eq!(in_memory.len(), registry.in_memory.len());
                prop_assert_eq!(in_memory.iter().map(|memory| memory.len()).sum::<usize>(), registry.memory_bytes);
                prop_assert_eq!(registry.entries.values().map(|entry| entry.bytes).sum::<u64>(), registry.bytes);
                prop_assert_eq!(registry.by_use.len(), registry.entries.len());
            }
        }
    }
}
