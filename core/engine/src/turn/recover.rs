//! What a crash left open is closed before anything new is written.
//!
//! Neighbours: none.

use raddle_protocol::event::{EventBody, TurnEnded};
use raddle_protocol::fold::unfinished;
use raddle_protocol::{Event, Recorded, TokenUsage, Turn, TurnStatus};

/// The events that end a turn which a crash cut off; none for a turn that has its end.
///
/// `before` are the branch's totals before this turn. No tool runs again: a call without a result is closed as
/// interrupted, and that is what the model is told (P3). The turn gets no completion time, since nobody saw its
/// end; and reading it before gave the same as reading it after (P5).
pub fn recover(events: &[Recorded], before: TokenUsage) -> Vec<Event> {
    let (Some(mut turn), Some(last)) = (Turn::live(events), events.last()) else { return Vec::new() };
    if turn.summary.status != TurnStatus::InProgress {
        return Vec::new();
    }
    let event = |body| Event { turn_id: Some(turn.summary.id.clone()), at: last.event.at, body };
    let mut closing: Vec<Event> =
        unfinished(events).into_iter().map(|logged| event(EventBody::ItemCompleted(logged))).collect();
    let totals = events.iter().rev().find_map(|recorded| match &recorded.event.body {
        EventBody::TokenUsageUpdated(usage) => Some(*usage),
        _ => None,
    });
    let ended = event(EventBody::TurnCompleted(TurnEnded {
        turn: {
            turn.summary.status = TurnStatus::Interrupted;
            turn.summary.clone()
        },
        thread_usage: totals.unwrap_or(before),
        request_id: None,
    }));
    closing.push(ended);
    closing
}
