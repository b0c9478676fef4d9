//! A process that is killed while it writes. The victim is this test binary itself, run again.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use raddle_store::Error;

use crate::support::{Script, create, id, open};

/// Where the victim writes; set for the child alone.
const VICTIM_HOME: &str = "RADDLE_TEST_VICTIM_HOME";

/// Streams deltas for ever and tells of each once it is durable. Does nothing when it is run as a test.
#[test]
fn victim() {
    let Some(home) = std::env::var_os(VICTIM_HOME) else { return };
    // Its deltas are committed on its own thread, as those of a host with one busy conversation are.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    runtime.block_on(async {
        let store = open(Path::new(&home));
        let thread = store.thread(&id("t")).await.ok();
        let (lease, turn) = match thread {
            None => (create(&store, "t").await, Script::first("t")),
            Some(row) => {
                let before = Script { turn: row.head.unwrap(), depth: row.depth, ..Script::first("t") };
                (store.acquire(&id("t")).await.unwrap(), before.next())
            }
        };
        let begun = store.append(&lease, vec![turn.start(), turn.message_start(0)]).await.unwrap();
        println!("\nseq {}", begun.first_seq + 1);
        loop {
            let appended = store.append(&lease, vec![turn.delta(0, "word ")]).await.unwrap();
            println!("\nseq {}", appended.first_seq);
        }
    });
}

/// A victim that has told of `deltas` more events than its first, its output, and the last event that it told of. While
/// the output is held, the victim lives: it writes on, or waits for somebody to read.
fn start(home: &Path, deltas: usize) -> (Child, impl Sized, u64) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["crash::victim", "--exact", "--nocapture"])
        .env(VICTIM_HOME, home)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let read = lines.by_ref().map_while(Result::ok);
    let last =
        read.filter_map(|line| line.strip_prefix("seq ")?.parse().ok()).take(deltas + 1).last().unwrap();
    (child, lines, last)
}

#[tokio::test]
async fn p1_deltas_survive_kill_and_p2_r46_the_next_owner_need_not_wait() {
    let home = crate::support::home();
    let mut turns = 0;
    for round in 0..6 {
        let (mut child, _output, told) = start(home.path(), 20 + 37 * round);
        let store = open(home.path());
        match store.acquire(&id("t")).await {
            Err(Error::LockedElsewhere { pid, .. }) => assert_eq!(pid, Some(child.id())),
            other => panic!("{other:?}"),
        }
        child.kill().unwrap();
        child.wait().unwrap();
        turns += 1;
        // At once, at the first call.
        let lease = store.acquire(&id("t")).await.unwrap();
        let head = store.head_turn(&id("t")).await.unwrap().unwrap();
        assert_eq!((head.depth, head.ended), (turns, false));
        let last = head.events.last().unwrap().seq;
        assert!(last >= told, "{told} was told, {last} is there");
        let first = head.events[0].seq;
        let seqs: Vec<_> = head.events.iter().map(|recorded| recorded.seq).collect();
        assert_eq!(seqs, (first..=last).collect::<Vec<_>>(), "no gap, no repeat");
        // What recovery does: the item and the turn get their ends.
        let turn = Script { turn: head.id.clone(), depth: head.depth, ..Script::first("t") };
        let appended = store.append(&lease, vec![turn.message(0, "cut"), turn.end()]).await.unwrap();
        assert_eq!(appended.first_seq, last + 1);
        assert_eq!(store.head_turn(&id("t")).await.unwrap().unwrap().events.len(), 3);
        assert_eq!(store.branch(&id("t")).await.unwrap().len(), turns as usize);
        store.close().await;
    }
}
