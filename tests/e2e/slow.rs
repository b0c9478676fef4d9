//! Clients that cannot keep up beside one that can. Holds: P5, P7, P8.

use raddle::protocol::TurnStatus;
use raddle::protocol::methods::ServerNotification;
use raddle_tests::{Client, Gate, Reply, World, agent_text};

/// Deltas of the flood. Source: the issue that asks for this test.
const DELTAS: usize = 20_000;

/// Two characters that say which delta this is, among its neighbours: all of them together stay below what becomes a
/// reference.
fn piece(number: usize) -> String {
    const LETTERS: &[u8; 50] = b"abcdefghijklmnopqrstuvwxyABCDEFGHIJKLMNOPQRSTUVWXY";
    let letter = |at: usize| char::from(LETTERS[at % LETTERS.len()]);
    [letter(number / LETTERS.len()), letter(number)].iter().collect()
}

fn deltas(client: &Client) -> usize {
    client.notifications(|n| matches!(n, ServerNotification::ItemAgentMessageDelta(_))).len()
}

/// Twenty thousand deltas as fast as they come, for one that stops reading until all is over, one that disconnects in the
/// middle and comes back, and one that watches all. Nobody waits for anybody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p8_a_flood_reaches_a_stopped_a_returning_and_a_steady_client() {
    let world = World::start().await;
    let steady = world.client().await;
    let stopped = world.client().await;
    let leaving = world.client().await;
    let thread = world.thread(&steady).await;
    let other = world.thread(&steady).await;
    stopped.resume(&thread).await;
    leaving.resume(&thread).await;

    let (first, rest) = (Gate::new(), Gate::new());
    let mut flood = Reply::stream().text("begin ").wait(&first);
    for number in 0..DELTAS {
        if number == DELTAS / 2 {
            flood = flood.wait(&rest);
        }
        flood = flood.text(&piece(number));
    }
    world.provider().push(flood.stop());
    let turn = steady.start(&thread, "Flood").await;
    for client in [&steady, &stopped, &leaving] {
        client.turn_until(&turn, "the beginning", |turn| !agent_text(turn).is_empty()).await;
    }
    stopped.stop_reading();
    first.open();
    leaving.turn_until(&turn, "a part of the flood", |turn| agent_text(turn).len() > 2_000).await;
    leaving.close().await;
    let returned = world.client().await;
    let snapshot = returned.resume(&thread).await;
    assert!(snapshot.running_turn.is_some_and(|turn| agent_text(&turn).len() > 2_000));
    rest.open();

    // The steady one sees the end while another does not read at all, and so does a second thread.
    world.provider().push(Reply::says("Undisturbed."));
    let beside = steady.start(&other, "Beside").await;
    let whole = steady.end(&turn).await;
    assert_eq!(whole.summary.status, TurnStatus::Completed);
    assert_eq!(agent_text(&steady.end(&beside).await), "Undisturbed.");
    let expected: String = (0..DELTAS).map(piece).collect();
    assert_eq!(agent_text(&whole), format!("begin {expected}"));
    assert!(
        !stopped
            .view(|view| view.turn(&turn).is_some_and(|turn| turn.summary.status == TurnStatus::Completed))
    );

    // What waited for the one that stopped has become a few deltas, one between each two other messages: bounded by the text, not
    // by their number.
    let before = deltas(&stopped);
    stopped.read_on();
    let late = stopped.end(&turn).await;
    assert!(deltas(&stopped) <= before + 10, "{} deltas waited", deltas(&stopped) - before);
    let back = returned.end(&turn).await;
    for turn in [&late, &back] {
        assert_eq!(agent_text(turn), agent_text(&whole), "no gap for anybody");
    }
    world.finish().await;
}
