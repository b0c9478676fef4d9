//! Disks that are full, read-only or hold something else.
//!
//! Neighbours: host, mounts, witness.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use raddle::protocol::methods::{ServerNotification, method};
use raddle::protocol::thread::{ApprovalMode, ThreadStartParams, ThreadStatus};
use raddle::protocol::turn::TurnStartParams;
use raddle::protocol::{ErrorCode, ItemKind, RpcError, ThreadId, TurnId, TurnStatus};
use raddle_fakes::{Gate, Provider, Reply};

use crate::host::{Host, Seen, Setup};
use crate::mounts::{Disk, has_own_mounts};
use crate::witness::{Asked, Witness};

/// Of the file system that fills up.
const DISK_BYTES: u64 = 4 * 1024 * 1024;

#[test]
fn p1_p4_a_full_disk_stops_a_turn_and_loses_nothing_that_was_shown() {
    if has_own_mounts("disks::p1_p4_a_full_disk_stops_a_turn_and_loses_nothing_that_was_shown") {
        block_on(full_disk());
    }
}

async fn full_disk() {
    let directory = tempfile::tempdir().expect("a directory");
    let disk = directory.path().join("disk");
    let _mounted = Disk::mount(&disk, DISK_BYTES);
    let provider = Provider::start().await;
    let setup = Setup::new(disk.join("home")).with_provider(provider.base_url());
    let mut host = Host::start(&setup).await;
    let thread = host.start_thread(directory.path(), ApprovalMode::FullAccess).await;
    let other = host.start_thread(directory.path(), ApprovalMode::FullAccess).await;
    provider.push(Reply::says("There was room."));
    let first = host.run(&thread, "before").await;

    let (turn, gate) = half_a_turn(&provider, &mut host, &thread).await;
    let filler = disk.join("filler");
    fill(&filler);
    gate.open();

    let error = host
        .until("the error", |seen| match seen {
            Seen::Told(ServerNotification::Error(error)) => Some(error.clone()),
            _ => None,
        })
        .await;
    assert_eq!(error.thread_id.as_ref(), Some(&thread));
    assert_disk_full(&RpcError { code: error.code, message: error.message, data: error.data });
    host.until("the status", |seen| match seen {
        Seen::Told(ServerNotification::ThreadStatusChanged(n)) if n.thread_id == thread => {
            matches!(n.status, ThreadStatus::SystemError { .. }).then_some(())
        }
        _ => None,
    })
    .await;

    // What cannot be written is refused, with an answer; reading goes on.
    for thread in [&thread, &other] {
        let start = TurnStartParams::new(thread.clone(), "again");
        assert_disk_full(&host.ask::<method::TurnStart>(start).await.expect_err("there is no room"));
    }
    let params =
        ThreadStartParams { cwd: directory.path().display().to_string(), ..ThreadStartParams::default() };
    assert_disk_full(&host.ask::<method::ThreadStart>(params).await.expect_err("there is no room"));
    let read = host.read(&thread).await;
    assert!(matches!(read.thread.status, ThreadStatus::SystemError { .. }));
    assert_all_shown_is_there(&host, &read.thread, &read.turns);

    fs::remove_file(&filler).expect("the filler goes");
    for thread in [&thread, &other] {
        provider.push(Reply::says("There is room again."));
        let next = host.run(thread, "after").await;
        assert_eq!(next.summary.status, TurnStatus::Completed);
    }
    let read = host.read(&thread).await;
    assert_eq!(read.thread.status, ThreadStatus::Idle);
    assert_all_shown_is_there(&host, &read.thread, &read.turns);
    // A process that finds the disk full is told so, not that it may not write.
    host.close().await;
    fill(&filler);
    assert_refused(&setup, "diskFull").await;
    assert_refused(&Setup::new(disk.join("another")), "diskFull").await;
    fs::remove_file(&filler).expect("the filler goes");
    let mut host = Host::start(&setup).await;
    assert_eq!(host.read(&thread).await.turns, read.turns);
    let [one, stopped, _] = read.turns.as_slice() else { panic!("three turns: {read:#?}") };
    assert_eq!(one, &first);
    assert_eq!((&stopped.summary.id, stopped.summary.status), (&turn, TurnStatus::Interrupted));

    // The same for one that dies when there is no room.
    let (dying, _gate) = half_a_turn(&provider, &mut host, &other).await;
    fill(&filler);
    host.kill().await;
    assert_refused(&setup, "diskFull").await;
    fs::remove_file(&filler).expect("the filler goes");
    let mut host = Host::start(&setup).await;
    let resumed = host.resume(&other).await.expect("its owner is dead");
    let last = resumed.turns.last().expect("its turns");
    assert_eq!((&last.summary.id, last.summary.status), (&dying, TurnStatus::Interrupted));
    assert!(
        last.items
            .iter()
            .any(|item| matches!(&item.kind, ItemKind::AgentMessage { text } if text == "early "))
    );
    host.close().await;
}

/// Starts a turn of which one piece is shown, and much more waits for the gate.
async fn half_a_turn(provider: &Provider, host: &mut Host, thread: &ThreadId) -> (TurnId, Gate) {
    let gate = Gate::new();
    let reply = Reply::stream().text("early ").wait(&gate);
    provider.push((0..200).fold(reply, |reply, _| reply.text(&"more ".repeat(400))).stop());
    let turn = host.start_turn(thread, "speak").await;
    host.until("the early text", |seen| {
        matches!(seen, Seen::Told(ServerNotification::ItemAgentMessageDelta(_))).then_some(())
    })
    .await;
    (turn, gate)
}

/// Writes until nothing goes in any more.
fn fill(path: &Path) {
    let mut file = File::create(path).expect("a file");
    let mut chunk = vec![0; 64 * 1024];
    while !chunk.is_empty() {
        match file.write(&chunk) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::StorageFull => chunk.truncate(chunk.len() / 2),
            Err(error) => panic!("the disk does not fill up: {error}"),
        }
    }
}

#[track_caller]
fn assert_disk_full(error: &RpcError) {
    assert_eq!((&error.code, error.reason()), (&ErrorCode::Internal, Some("diskFull")), "{error}");
}

#[track_caller]
fn assert_all_shown_is_there(
    host: &Host,
    thread: &raddle::protocol::thread::Thread,
    turns: &[raddle::protocol::Turn],
) {
    let witness = Witness::of(host.seen(), &HashMap::<i64, Asked>::new());
    assert_eq!(witness.compare(thread, turns), Ok(Vec::new()));
}

#[test]
fn p6_a_home_that_cannot_be_written_is_refused_clearly() {
    if has_own_mounts("disks::p6_a_home_that_cannot_be_written_is_refused_clearly") {
        block_on(unwritable());
    }
}

async fn unwritable() {
    let directory = tempfile::tempdir().expect("a directory");

    // A read-only file system, with nothing on it and with a database on it.
    let disk = directory.path().join("disk");
    let mounted = Disk::mount(&disk, DISK_BYTES);
    let setup = Setup::new(disk.join("home"));
    mounted.write_protect();
    assert_refused(&setup, "notWritable").await;
    mounted.allow_writing();
    let mut host = Host::start(&setup).await;
    let thread = host.start_thread(directory.path(), ApprovalMode::Ask).await;
    host.close().await;
    mounted.write_protect();
    assert_refused(&setup, "notWritable").await;
    mounted.allow_writing();
    let mut host = Host::start(&setup).await;
    assert_eq!(host.read(&thread).await.turns.len(), 0, "nothing was harmed");
    host.close().await;

    // Permissions that forbid it. They do not count for root, so the victim is not to have that right.
    let through = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"].map(str::to_owned).to_vec();
    let home = directory.path().join("closed");
    fs::create_dir(&home).expect("a directory");
    let setup = Setup { through, ..Setup::new(&home) };
    for mode in [0o500, 0o000] {
        fs::set_permissions(&home, Permissions::from_mode(mode)).expect("permissions change");
        assert_refused(&setup, "notWritable").await;
    }
    fs::set_permissions(&home, Permissions::from_mode(0o700)).expect("permissions change");
    assert_eq!(fs::read_dir(&home).expect("a directory").count(), 0, "nothing was left behind");
    Host::start(&setup).await.close().await;
    let database = home.join("raddle.db");
    fs::set_permissions(&database, Permissions::from_mode(0o400)).expect("permissions change");
    assert_refused(&setup, "notWritable").await;
    fs::set_permissions(&database, Permissions::from_mode(0o600)).expect("permissions change");
    Host::start(&setup).await.close().await;
}

#[tokio::test]
async fn p6_a_file_that_is_no_database_is_refused_and_left_alone() {
    let others: [(&str, Vec<u8>); 3] = [
        ("a letter", b"Dear diary, ".repeat(1_000)),
        ("a short note", b"buy bread".to_vec()),
        ("another program's database", foreign_database()),
    ];
    for (what, content) in others {
        let directory = tempfile::tempdir().expect("a directory");
        let setup = Setup::new(directory.path());
        let file = directory.path().join("raddle.db");
        fs::write(&file, &content).expect("a file");
        assert_refused(&setup, "notADatabase").await;
        assert_eq!(fs::read(&file).expect("a file"), content, "{what} was changed");
        fs::rename(&file, directory.path().join("aside")).expect("it can be moved away");
        Host::start(&setup).await.close().await;
    }
}

/// The first page of a database of somebody else: SQLite's, but not ours.
fn foreign_database() -> Vec<u8> {
    let directory = tempfile::tempdir().expect("a directory");
    drop(
        raddle_store::Store::open(raddle_store::StoreOptions::new(directory.path()))
            .expect("the store opens"),
    );
    let file = directory.path().join("raddle.db");
    let mut opened = OpenOptions::new().write(true).open(&file).expect("a file");
    // The application's id stands at byte 68 of a database.
    std::io::Seek::seek(&mut opened, std::io::SeekFrom::Start(68)).expect("a place");
    opened.write_all(b"ELSE").expect("a file");
    fs::read(&file).expect("a file")
}

async fn assert_refused(setup: &Setup, reason: &str) {
    let refused = match Host::try_start(setup).await {
        Ok(_) => panic!("{} was opened; it should have been {reason}", setup.home.display()),
        Err(refused) => refused,
    };
    assert_eq!((&refused.code, refused.reason()), (&ErrorCode::Internal, Some(reason)), "{refused}");
    let home = setup.home.file_name().and_then(|name| name.to_str()).expect("a name");
    assert!(refused.message.contains(home), "it says where: {refused}");
}

fn block_on(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test);
}
