use super::*;
use raddle_protocol::methods::ServerNotification as N;
use raddle_protocol::rpc::ServerMessage;
use raddle_protocol::server::ErrorNotification;
use raddle_protocol::{ErrorCode, RequestId, RpcError};

fn delta(item: &str, text: &str) -> ServerMessage {
    ServerMessage::Notification(Arc::new(N::ItemAgentMessageDelta(DeltaNotification {
        thread_id: "t".into(),
        turn_id: "u".into(),
        item_id: item.into(),
        delta: text.into(),
    })))
}

fn text(message: Option<ServerMessage>) -> String {
    match message {
        Some(ServerMessage::Notification(n)) => match &*n {
            N::ItemAgentMessageDelta(d) => format!("{}:{}", d.item_id, d.delta),
            other => other.method().to_owned(),
        },
        Some(ServerMessage::Response { .. }) => "response".to_owned(),
        other => format!("{other:?}"),
    }
}

fn drain(outbox: &Outbox) -> Vec<String> {
    std::iter::from_fn(|| outbox.try_next()).map(|message| text(Some(message))).collect()
}

#[test]
fn p8_waiting_deltas_of_an_item_become_one() {
    let outbox = Outbox::new(1 << 20);
    for (item, piece) in [("a", "1"), ("b", "x"), ("a", "2"), ("b", "y"), ("a", "3")] {
        outbox.push(delta(item, piece));
    }
    assert_eq!(drain(&outbox), ["a:123", "b:xy"]);
    assert_eq!(outbox.bytes(), 0);
}

#[test]
fn p5_nothing_merges_across_a_response() {
    let outbox = Outbox::new(1 << 20);
    outbox.push(delta("a", "1"));
    let error = RpcError::new(ErrorCode::Internal, "");
    outbox.push(ServerMessage::Response { id: Some(RequestId::Number(1)), result: Err(error) });
    outbox.push(delta("a", "2"));
    assert_eq!(drain(&outbox), ["a:1", "response", "a:2"]);
}

#[test]
fn a_delta_that_was_taken_grows_no_more() {
    let outbox = Outbox::new(1 << 20);
    outbox.push(delta("a", "1"));
    assert_eq!(text(outbox.try_next()), "a:1");
    outbox.push(delta("a", "2"));
    outbox.push(delta("a", "3"));
    assert_eq!(drain(&outbox), ["a:23"]);
}

#[test]
fn a_shared_notification_is_not_changed_for_others() {
    let (one, other) = (Outbox::new(1 << 20), Outbox::new(1 << 20));
    let shared = delta("a", "1");
    one.push(shared.clone());
    other.push(shared);
    one.push(delta("a", "2"));
    assert_eq!(drain(&one), ["a:12"]);
    assert_eq!(drain(&other), ["a:1"]);
}

#[test]
fn p7_too_much_ends_the_connection() {
    let outbox = Outbox::new(4_096);
    let error = || {
        ServerMessage::Notification(Arc::new(N::Error(ErrorNotification {
            thread_id: None,
            code: ErrorCode::Internal,
            message: "x".repeat(500),
            data: None,
        })))
    };
    let results: Vec<Pushed> = (0..20).map(|_| outbox.push(error())).collect();
    assert!(results.contains(&Pushed::Overflowed));
    assert_eq!(results.last(), Some(&Pushed::Closed));
    assert!(outbox.has_overflowed());
    assert!(outbox.try_next().is_none());
}
