//! Inputs that wait, and the keys of sends.

use raddle_protocol::event::{EventBody, InputsUnqueued, UnqueuedReason};
use raddle_protocol::limits::SEND_KEYS_MAX;
use raddle_protocol::turn::SendStatus;
use raddle_protocol::{Event, TurnId};
use raddle_store::{Error, Sent, Store};

use crate::support::{Script, create, home, id, large, of_thread, open, queued};

async fn waiting(store: &Store) -> Vec<(String, String)> {
    let queue = store.queue(&id("t")).await.unwrap();
    queue.into_iter().map(|queued| (queued.id, queued.input.text.into_string())).collect()
}

fn unqueued(ids: &[&str]) -> Event {
    let ids = ids.iter().map(|id| (*id).to_owned()).collect();
    of_thread(EventBody::InputsUnqueued(InputsUnqueued { ids, reason: UnqueuedReason::Removed }))
}

#[tokio::test]
async fn inputs_wait_in_order_and_start_once() {
    let home = home();
    let store = open(home.path());
    let lease = create(&store, "t").await;
    let long = large(0, 200_000);
    let events = vec![queued("a", "1", None), queued("b", &long, None), queued("c", "3", None)];
    let appended = store.append(&lease, events).await.unwrap();
    assert_eq!(appended.shown.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [1]);
    store.append(&lease, vec![queued("d", "4", None)]).await.unwrap();
    store.close().await;

    let store = open(home.path());
    let pair = |id: &str, text: &str| (id.to_owned(), text.to_owned());
    let all = [pair("a", "1"), pair("b", &long), pair("c", "3"), pair("d", "4")];
    assert_eq!(waiting(&store).await, all, "whole, after a restart as well");
    let lease = store.acquire(&id("t")).await.unwrap();
    let first = Script::first("t");
    store.append(&lease, vec![first.start_of(Some("a"), None), first.end()]).await.unwrap();
    store.append(&lease, vec![unqueued(&["c"])]).await.unwrap();
    assert_eq!(waiting(&store).await, [pair("b", &long), pair("d", "4")]);
    // An input that is taken twice, or waits twice, is refused with all that came with it.
    let second = first.next();
    for events in [
        vec![second.start_of(Some("a"), None)],
        vec![second.start_of(Some("b"), None), second.end(), second.next().start_of(Some("b"), None)],
        vec![unqueued(&["d", "c"])],
        vec![unqueued(&["d"]), queued("b", "again", None)],
    ] {
        let refused = store.append(&lease, events).await;
        assert!(matches!(refused, Err(Error::Rejected { .. })), "{refused:?}");
    }
    assert_eq!(waiting(&store).await, [pair("b", &long), pair("d", "4")]);
    store.append(&lease, vec![unqueued(&["b", "d"]), queued("b", "anew", None)]).await.unwrap();
    assert_eq!(waiting(&store).await, [pair("b", "anew")]);
    assert!(matches!(store.queue(&id("u")).await, Err(Error::ThreadNotFound { .. })));
}

#[tokio::test]
async fn sends_are_known_by_their_keys() {
    let home = home();
    let store = open(home.path());
    let lease = create(&store, "t").await;
    let turn = Script::first("t");
    let events = vec![
        turn.start_of(None, Some("start")),
        turn.steer(1, "more", Some("steer")),
        turn.steer(2, "more", None),
        queued("q", "later", Some("queue")),
        turn.end(),
        turn.next().start_of(Some("q"), Some("queue")),
        turn.next().end(),
    ];
    store.append(&lease, events).await.unwrap();
    let sent = |key: &str, status, turn_id: Option<&TurnId>, queue_id: Option<&str>| Sent {
        key: key.to_owned(),
        status,
        turn_id: turn_id.cloned(),
        queue_id: queue_id.map(str::to_owned),
    };
    let expected = [
        sent("start", SendStatus::Started, Some(&turn.turn), None),
        sent("steer", SendStatus::Steered, Some(&turn.turn), None),
        // The second event of a send does not change what the first did.
        sent("queue", SendStatus::Queued, None, Some("q")),
    ];
    assert_eq!(store.sends(&id("t")).await.unwrap(), expected);
    drop(store);
    let store = open(home.path());
    assert_eq!(store.sends(&id("t")).await.unwrap(), expected);
}

#[tokio::test]
async fn p7_the_oldest_keys_are_forgotten() {
    let home = home();
    let store = open(home.path());
    let lease = create(&store, "t").await;
    let turn = Script::first("t");
    store.append(&lease, vec![turn.start()]).await.unwrap();
    let total = SEND_KEYS_MAX + 40;
    let steers = (0..total).map(|number| turn.steer(number as u32, "x", Some(&format!("k{number}"))));
    store.append(&lease, steers.collect()).await.unwrap();
    let keys = async || -> Vec<String> {
        store.sends(&id("t")).await.unwrap().into_iter().map(|sent| sent.key).collect()
    };
    let newest = |from: usize| (from..total).map(|number| format!("k{number}"));
    assert_eq!(keys().await, newest(40).collect::<Vec<_>>());
    // One that was forgotten is new again.
    store.append(&lease, vec![turn.steer(9_999, "x", Some("k3"))]).await.unwrap();
    assert_eq!(keys().await, newest(41).chain(["k3".to_owned()]).collect::<Vec<_>>());
}
