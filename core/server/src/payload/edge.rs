//! Bringing what goes to a client down to its size: items, turns and queues over their bound get references. Pure.
//!
//! Neighbours: registry.

use raddle_protocol::limits::INLINE_BYTES_MAX;
use raddle_protocol::payload::{Items, Payload, PayloadReference, Text};
use raddle_protocol::turn::Queue;
use raddle_protocol::{ThreadId, Turn, TurnStatus};

use super::registry::{Given, SavedTurn};
use crate::transport::envelope::written_len;

/// Bytes that a character takes at most where JSON escapes it.
const ESCAPED: usize = 6;

/// A turn in its size, and the references that go out with it.
#[derive(Debug)]
pub(crate) struct ShrunkTurn {
    pub(crate) turn: Turn,
    /// Its bytes as they are written.
    pub(crate) bytes: usize,
    pub(crate) given: Vec<Given>,
    /// Set for a turn that can be rendered again: then its bytes need not be in memory.
    saved: Option<SavedTurn>,
}

impl ShrunkTurn {
    /// Shrinks the items of a turn that was read from a thread, then the turn.
    pub(crate) fn new(thread_id: &ThreadId, turn: Turn) -> Self {
        // One that runs is another one when it is next read.
        let saved = (turn.summary.status != TurnStatus::InProgress)
            .then(|| SavedTurn { thread_id: thread_id.clone(), turn_id: turn.summary.id.clone() });
        let mut shrunk = Self { turn, bytes: 0, given: Vec::new(), saved };
        shrunk.shrink_items();
        shrunk.bytes = written_len(&shrunk.turn);
        if shrunk.bytes > INLINE_BYTES_MAX {
            shrunk.refer_items();
        }
        shrunk
    }

    /// As [`new`](Self::new), for a turn whose references were given out before: with the bytes that they stand for.
    pub(crate) fn rendered_again(saved: SavedTurn, turn: Turn) -> Vec<Given> {
        let mut shrunk = Self { turn, bytes: 0, given: Vec::new(), saved: None };
        shrunk.shrink_items();
        // Also of a smaller turn: a response may have been too large with its items.
        shrunk.refer_items();
        for given in &mut shrunk.given {
            given.turn = Some(saved.clone());
        }
        shrunk.given
    }

    fn shrink_items(&mut self) {
        for at in 0..self.turn.items.len() {
            let item = &mut self.turn.items[at];
            let mut taken = Vec::new();
            item.shrink_whole(INLINE_BYTES_MAX, |reference, payload| taken.push((reference, payload)));
            let stored = item.references();
            for (reference, payload) in taken {
                self.take(reference, payload, false);
            }
            let new: Vec<_> = stored.into_iter().filter(|reference| !self.has(reference)).collect();
            self.given.extend(new.into_iter().map(Given::stored));
        }
    }

    /// Puts a reference in the place of the items.
    pub(crate) fn refer_items(&mut self) {
        if self.turn.items.reference().is_some() {
            return;
        }
        let payload = Payload::json(&self.turn.items);
        let reference = payload.reference();
        self.turn.items = Items::referenced(reference.clone());
        self.bytes = written_len(&self.turn);
        self.take(reference, payload, true);
    }

    fn take(&mut self, reference: PayloadReference, payload: Payload, holds_items: bool) {
        let turn = self.saved.clone();
        let bytes = turn.is_none().then_some(payload.bytes);
        self.given.push(Given { reference, bytes, turn, holds_items });
    }

    fn has(&self, reference: &PayloadReference) -> bool {
        self.given.iter().any(|given| given.reference.id == reference.id)
    }
}

/// Puts references in the place of a queue's largest texts, until it has at most [`INLINE_BYTES_MAX`] bytes as JSON.
pub(crate) fn shrink_queue(queue: &mut Queue) -> Vec<Given> {
    if is_small(queue) {
        return Vec::new();
    }
    let mut size = written_len(queue);
    let texts = queue.steering.iter_mut().chain(queue.follow_up.iter_mut().map(|input| &mut input.text));
    let mut sized: Vec<(usize, &mut Text)> = texts.map(|text| (written_len(text), text)).collect();
    sized.sort_by_key(|(size, _)| std::cmp::Reverse(*size));
    let mut given = Vec::new();
    for (text_size, text) in sized {
        if size <= INLINE_BYTES_MAX {
            break;
        }
        let Some(whole) = text.whole() else { continue };
        let payload = Payload::text(whole);
        let reference = payload.reference();
        let reference_size = written_len(&reference);
        if text_size <= reference_size {
            break;
        }
        size = size - text_size + reference_size;
        *text = Text::referenced(reference.clone());
        given.push(Given { bytes: Some(payload.bytes), ..Given::stored(reference) });
    }
    given.extend(stored_texts(queue, &given));
    given
}

/// Whether a queue is as good as certainly in its size, without measuring it, and has no references.
pub(crate) fn is_small(queue: &Queue) -> bool {
    /// All but the text of an input.
    const INPUT: usize = 256;
    let of = |text: &Text| match text.whole() {
        Some(whole) => whole.len() * ESCAPED + INPUT,
        None => INLINE_BYTES_MAX,
    };
    let bytes: usize = texts(queue).map(of).sum();
    bytes < INLINE_BYTES_MAX
}

fn texts(queue: &Queue) -> impl Iterator<Item = &Text> {
    queue.steering.iter().chain(queue.follow_up.iter().map(|input| &input.text))
}

/// References that a queue came with.
fn stored_texts(queue: &Queue, taken: &[Given]) -> Vec<Given> {
    let references = texts(queue).filter_map(Text::reference);
    let stored = references.filter(|reference| taken.iter().all(|given| given.reference.id != reference.id));
    stored.cloned().map(Given::stored).collect()
}

#[cfg(test)]
mod tests {
    use raddle_protocol::turn::QueuedInput;
    use raddle_protocol::{Item, ItemKind, ItemStatus, TurnSummary, UnixMillis};

    use super::*;

    fn item(at: u32, text: String) -> Item {
        Item {
            id: format!("1.{at}").as_str().into(),
            kind: ItemKind::AgentMessage { text: text.into() },
            status: ItemStatus::Completed,
            index: Some(at),
            parent_item_id: None,
            started_at: None,
            completed_at: None,
        }
    }

    fn turn(status: TurnStatus, items: Vec<Item>) -> Turn {
        let summary = TurnSummary {
            id: "u".into(),
            thread_id: "t".into(),
            status,
            started_at: UnixMillis(0),
            completed_at: None,
            error: None,
            usage: None,
        };
        Turn { summary, items: items.into() }
    }

    #[test]
    fn a_small_turn_stays_as_it_is() {
        let small = turn(TurnStatus::Completed, vec![item(0, "x".repeat(INLINE_BYTES_MAX / 2))]);
        let shrunk = ShrunkTurn::new(&"t".into(), small.clone());
        assert_eq!((shrunk.bytes, shrunk.given), (written_len(&small), Vec::new()));
        assert_eq!(shrunk.turn, small);
    }

    #[test]
    fn an_open_item_and_then_the_items_are_referenced() {
        for (status, in_memory) in [(TurnStatus::InProgress, true), (TurnStatus::Interrupted, false)] {
            let many: Vec<_> =
                (1..5).map(|at| item(at, format!("{at}").repeat(INLINE_BYTES_MAX / 3))).collect();
            let large = "x".repeat(INLINE_BYTES_MAX);
            let items = std::iter::once(item(0, large.clone())).chain(many).collect();
            let whole = turn(status, items);
            let shrunk = ShrunkTurn::new(&"t".into(), whole.clone());
            assert!(shrunk.bytes < 1_000 && shrunk.bytes == written_len(&shrunk.turn));
            let [text, items] = shrunk.given.as_slice() else { panic!("{:?}", shrunk.given) };
            assert_eq!(text.reference, Payload::text(large).reference());
            assert_eq!(shrunk.turn.items.reference(), Some(&items.reference));
            assert!(items.holds_items && !text.holds_items);
            for given in [text, items] {
                assert_eq!((given.bytes.is_some(), given.turn.is_none()), (in_memory, in_memory));
            }
            // Rendering it again gives the same references, now with their bytes.
            let saved = SavedTurn { thread_id: "t".into(), turn_id: "u".into() };
            let again = ShrunkTurn::rendered_again(saved, whole);
            assert_eq!(
                again.iter().map(|given| &given.reference).collect::<Vec<_>>(),
                [&text.reference, &items.reference]
            );
            assert!(
                again.iter().all(|given| given.bytes.as_ref().unwrap().len() as u64 == given.reference.bytes)
            );
        }
    }

    /// What counts is what a client over bytes gets: separators of lines are escaped there.
    #[test]
    fn a_turn_is_measured_as_it_is_written() {
        let text = "\u{85}".repeat(INLINE_BYTES_MAX / 4);
        let shrunk = ShrunkTurn::new(&"t".into(), turn(TurnStatus::Completed, vec![item(0, text)]));
        assert!(shrunk.turn.items.reference().is_some());
    }

    #[test]
    fn a_full_queue_of_large_texts_fits() {
        let input = |at: usize, text: String| QueuedInput { id: format!("queue-{at}"), text: text.into() };
        let mut queue = Queue {
            steering: (0..64).map(|at| Text::from(format!("s{at} ").repeat(20_000))).collect(),
            follow_up: (0..64).map(|at| input(at, "\u{1}".repeat(2_000 + at))).collect(),
        };
        let given = shrink_queue(&mut queue);
        assert!(written_len(&queue) <= INLINE_BYTES_MAX, "{}", written_len(&queue));
        assert!(given.len() > 64);
        assert_eq!(given[0].bytes.as_ref().unwrap().len() as u64, given[0].reference.bytes);
        // A queue that comes with references gives them out.
        assert_eq!(shrink_queue(&mut queue).len(), given.len());

        let mut queue =
            Queue { steering: vec!["Be quick".into()], follow_up: vec![input(0, "And then".into())] };
        let before = queue.clone();
        assert!(is_small(&queue) && shrink_queue(&mut queue).is_empty());
        assert_eq!(queue, before);
    }
}
