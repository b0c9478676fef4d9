//! Threads that nothing was said in yet.
//!
//! Neighbours: host, reopened.

use raddle::protocol::thread::ApprovalMode;
use raddle::protocol::{ThreadId, TurnStatus};
use raddle_fakes::{Provider, Reply};

use crate::host::{Host, Setup};
use crate::reopened::Reopened;

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
