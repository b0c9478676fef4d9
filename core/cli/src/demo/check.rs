//! Whether everything that was shown is saved.
//!
//! Neighbours: ledger, report.

use raddle::protocol::methods::method;
use raddle::protocol::thread::ThreadReadParams;
use raddle::protocol::{Item, ItemStatus, ThreadId, Turn, TurnStatus};
use raddle::{Client, ClientError};

use super::ledger::{Shown, written};
use super::report::Lane;

/// A thread, compared.
#[derive(Debug)]
pub(crate) struct Compared {
    /// Which of the two.
    pub(crate) lane: Lane,
    /// Turns that are saved.
    pub(crate) turns: usize,
    /// Items that are saved.
    pub(crate) items: usize,
    /// Characters by the model and its tools that were shown.
    pub(crate) chars_shown: usize,
    /// Characters by the model and its tools that are saved.
    pub(crate) chars_found: usize,
    /// What does not fit, a sentence each.
    pub(crate) problems: Vec<String>,
    /// The turn that was cut.
    pub(crate) cut: Option<Cut>,
}

/// A turn of which no end was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// How it reads now.
    pub(crate) status: TurnStatus,
    /// Characters of it that were shown.
    pub(crate) chars_shown: usize,
}

/// Reads a thread and compares it with what was shown of it.
///
/// # Errors
/// When the thread cannot be read.
pub(crate) async fn compare(client: &Client, lane: Lane, shown: &Shown) -> Result<Compared, ClientError> {
    let saved = match &shown.id {
        Some(id) => read(client, id).await?,
        None => Vec::new(),
    };
    Ok(compared(lane, shown, &saved))
}

/// All turns of a thread, oldest first.
async fn read(client: &Client, id: &ThreadId) -> Result<Vec<Turn>, ClientError> {
    let mut params = ThreadReadParams::newest(id.clone());
    let mut turns = Vec::new();
    loop {
        let mut page = client.request::<method::ThreadRead>(params.clone()).await?;
        page.turns.append(&mut turns);
        turns = page.turns;
        params.cursor = page.next_cursor;
        if params.cursor.is_none() {
            return Ok(turns);
        }
    }
}

fn compared(lane: Lane, shown: &Shown, saved: &[Turn]) -> Compared {
    let mut problems = Vec::new();
    let mut cut = None;
    for turn in &shown.turns {
        let id = &turn.summary.id;
        let Some(found) = saved.iter().find(|found| &found.summary.id == id) else {
            problems.push(format!("thread {lane}: the turn `{id}` is not there"));
            continue;
        };
        let before = problems.len();
        if turn.summary.status == TurnStatus::InProgress {
            cut = Some(Cut { status: found.summary.status, chars_shown: chars([turn]) });
            compare_cut(turn, found, &mut problems);
        } else {
            compare_ended(turn, found, &mut problems);
        }
        for problem in &mut problems[before..] {
            *problem = format!("thread {lane}, turn `{id}`: {problem}");
        }
    }
    let items = || saved.iter().flat_map(|turn| &turn.items);
    for (id, text) in &shown.printed {
        // The item of a turn that is not there is no second problem.
        if let Some(item) = items().find(|item| &item.id == id)
            && !written(item).starts_with(text)
        {
            problems.push(format!("thread {lane}: the item `{id}` holds another text than was printed"));
        }
    }
    Compared {
        lane,
        turns: saved.len(),
        items: items().count(),
        chars_shown: chars(&shown.turns),
        chars_found: chars(saved),
        problems,
        cut,
    }
}

/// An ended turn is saved exactly as it was shown.
fn compare_ended(shown: &Turn, found: &Turn, problems: &mut Vec<String>) {
    if shown.summary != found.summary {
        let (shown, found) = (&shown.summary, &found.summary);
        problems.push(format!("it was {shown:?} and is {found:?}"));
    }
    for item in &shown.items {
        compare_item(item, found, problems);
    }
    if found.items.len() > shown.items.len() {
        problems.push(format!(
            "it has {} items, of which {} were shown",
            found.items.len(),
            shown.items.len()
        ));
    }
}

/// Of a turn that was cut, more may be saved than was shown, and nothing less. What was going on is interrupted now.
fn compare_cut(shown: &Turn, found: &Turn, problems: &mut Vec<String>) {
    match found.summary.status {
        // It may have ended in the instant between its last shown word and the kill.
        TurnStatus::Interrupted | TurnStatus::Completed => {}
        status => problems.push(format!("it was cut and is {status:?}")),
    }
    for item in &shown.items {
        if item.status != ItemStatus::InProgress {
            compare_item(item, found, problems);
            continue;
        }
        match found.items.iter().find(|saved| saved.id == item.id) {
            None => problems.push(format!("the item `{}` is not there", item.id)),
            Some(saved) if !written(saved).starts_with(written(item)) => problems.push(format!(
                "the item `{}` had {} characters and holds others now",
                item.id,
                written(item).chars().count()
            )),
            Some(saved) if saved.status == ItemStatus::InProgress => {
                problems.push(format!("the item `{}` still reads as going on", item.id));
            }
            Some(_) => {}
        }
    }
}

fn compare_item(item: &Item, found: &Turn, problems: &mut Vec<String>) {
    match found.items.iter().find(|saved| saved.id == item.id) {
        None => problems.push(format!("the item `{}` is not there", item.id)),
        Some(saved) if saved != item => {
            problems.push(format!("the item `{}` was {item:?} and is {saved:?}", item.id));
        }
        Some(_) => {}
    }
}

fn chars<'a>(turns: impl IntoIterator<Item = &'a Turn>) -> usize {
    turns.into_iter().flat_map(|turn| &turn.items).map(|item| written(item).chars().count()).sum()
}

#[cfg(test)]
mod tests {
    use raddle::protocol::{ItemId, ItemKind, TurnSummary, UnixMillis};

    use super::*;

    fn turn(status: TurnStatus, item_status: ItemStatus, text: &str) -> Turn {
        let summary = TurnSummary {
            id: "t".into(),
            thread_id: "x".into(),
            status,
            started_at: UnixMillis(1),
            completed_at: None,
            error: None,
            usage: None,
        };
        let item = Item {
            id: "0.1".into(),
            kind: ItemKind::AgentMessage { text: text.into() },
            status: item_status,
            index: Some(1),
            parent_item_id: None,
            started_at: None,
            completed_at: None,
        };
        Turn { summary, items: vec![item].into() }
    }

    fn shown(turn: Turn) -> Shown {
        let text = written(&turn.items[0]).to_owned();
        let printed = [(ItemId::from("0.1"), text)].into();
        Shown { id: Some("x".into()), turns: vec![turn], printed, usage: None }
    }

    #[test]
    fn a_cut_turn_may_hold_more_than_was_shown() {
        let shown = shown(turn(TurnStatus::InProgress, ItemStatus::InProgress, "once up"));
        let saved = turn(TurnStatus::Interrupted, ItemStatus::Interrupted, "once upon");
        let compared = compared(Lane::A, &shown, &[saved]);
        assert_eq!(compared.problems, Vec::<String>::new());
        assert_eq!((compared.chars_shown, compared.chars_found), (7, 9));
        assert_eq!(compared.cut, Some(Cut { status: TurnStatus::Interrupted, chars_shown: 7 }));
    }

    #[test]
    fn what_is_missing_or_changed_is_found() {
        let cut = || shown(turn(TurnStatus::InProgress, ItemStatus::InProgress, "once up"));
        let ended = || shown(turn(TurnStatus::Completed, ItemStatus::Completed, "once"));
        let problems = |shown: Shown, saved: &[Turn]| compared(Lane::A, &shown, saved).problems.len();
        assert_eq!(problems(cut(), &[]), 1);
        let less = turn(TurnStatus::Interrupted, ItemStatus::Interrupted, "once");
        assert_eq!(problems(cut(), &[less]), 2, "by the fold, and by what was printed");
        let open = turn(TurnStatus::InProgress, ItemStatus::InProgress, "once up");
        assert_eq!(problems(cut(), &[open]), 2, "the turn and the item");
        let same = turn(TurnStatus::Completed, ItemStatus::Completed, "once");
        assert_eq!(problems(ended(), &[same]), 0);
        let more = turn(TurnStatus::Completed, ItemStatus::Completed, "once upon");
        assert_eq!(problems(ended(), &[more]), 1);
    }
}
