//! What of a thread is there after its process died, apart from its turns.
//!
//! Neighbours: host, reopened, witness.

use std::collections::HashMap;

use raddle::protocol::methods::ServerNotification;
use raddle::protocol::thread::ApprovalMode;
use raddle::protocol::{ThreadId, TokenUsage, TurnStatus};
use raddle_fakes::{Provider, Reply};

use crate::host::{Host, Seen, Setup};
use crate::reopened::Reopened;
use crate::witness::Witness;

/// Killed with the answer just read, again and again in the same home.
#[tokio::test]
async fn r18_p1_a_thread_whose_start_was_answered_is_there() {
    let directory = tempfile::tempdir().expect("a directory");
    let provider = Provider::start().await;
    let setup = Setup::new(directory.path().join("home")).with_provider(provider.base_url());
    let mut all: Vec<ThreadId> = Vec::new();
    for _ in 0..5 {
        let mut host = Host::start(&setup).await;
        let id = host.start_thread(directory.path(), ApprovalMode::Ask).await;
        host.kill().await;
        all.insert(0, id.clone());

        let reopened = Reopened::open(&setup.home, Some(provider.base_url())).await;
        let mut listed: Vec<ThreadId> =
            reopened.threads().await.into_iter().map(|thread| thread.id).collect();
        listed.sort();
        let mut expected = all.clone();
        expected.sort();
        assert_eq!(listed, expected);
        let (thread, turns) = reopened.read(&id, 50).await;
        assert_eq!((&thread.id, turns.len()), (&id, 0));
        reopened.close().await;

        // The first use in the next process is a resume or a turn, with nothing before it.
        let mut host = Host::start(&setup).await;
        if all.len().is_multiple_of(2) {
            let resumed = host.resume(&id).await.expect("it can be resumed");
            assert_eq!((resumed.thread.id, resumed.turns.len()), (id.clone(), 0));
        }
        provider.push(Reply::says("Hello."));
        let turn = host.run(&id, "hi").await;
        assert_eq!(turn.summary.status, TurnStatus::Completed);
        host.close().await;
    }
}

/// The last turn dies before its model has counted anything.
#[tokio::test]
async fn p1_totals_are_those_that_were_told_before_the_turn_that_was_cut_off() {
    let directory = tempfile::tempdir().expect("a directory");
    let provider = Provider::start().await;
    let setup = Setup::new(directory.path().join("home")).with_provider(provider.base_url());
    let mut host = Host::start(&setup).await;
    let thread = host.start_thread(directory.path(), ApprovalMode::Ask).await;
    provider.push(Reply::says("Hello."));
    host.run(&thread, "hi").await;
    let told = Witness::of(host.seen(), &HashMap::new()).usage(&thread).expect("totals were told");
    assert_ne!(told, TokenUsage::default());

    // Twice, so that the turn before is one that was cut off, too.
    for _ in 0..2 {
        provider.push(Reply::stream().text("early ").hang());
        host.start_turn(&thread, "speak").await;
        host.until("the early text", |seen| {
            matches!(seen, Seen::Told(ServerNotification::ItemAgentMessageDelta(_))).then_some(())
        })
        .await;
        host.kill().await;
        host = Host::start(&setup).await;
        assert_eq!(host.resume(&thread).await.expect("its owner is dead").usage, told);
    }
    host.close().await;
}
