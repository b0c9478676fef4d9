//! The end: of input, by a signal, and with a client that reads no more.

use std::time::{Duration, Instant};

use raddle_tests::WAIT_MAX;
use serde_json::{Value, json};

use crate::process::{Ended, Machine, Server};

/// A shutdown that loses patience soon: requests after half a second, everything after a whole one.
const IMPATIENT: (&str, &str) = ("RADDLE_TEST_SHUTDOWN_MS", "100,500,1000");

/// What an impatient shutdown may take on a loaded machine. One that knew no end would take for ever.
const IMPATIENT_MAX: Duration = Duration::from_secs(8);

/// Checks that a turn was ended as interrupted: told so, and saved so.
async fn is_interrupted(machine: &Machine, ended: &Ended, thread: &Value) {
    assert!(ended.status.success(), "{:?}: {}", ended.status, ended.complaints);
    let told = ended.of("turn/completed");
    assert_eq!(told.len(), 1, "{:?}", ended.messages);
    assert_eq!(told[0]["params"]["turn"]["status"], "interrupted");
    let mut server = machine.ready().await;
    let read = server.request("thread/read", json!({ "threadId": thread })).await;
    let turn = &read["turns"][0];
    assert_eq!(turn["status"], "interrupted");
    assert!(turn["completedAt"].is_u64(), "the end was written, not made up: {turn}");
    assert_eq!(turn["items"][1]["text"], "Half");
    // It is nobody's now, and goes on.
    server.request("thread/resume", json!({ "threadId": thread })).await;
    server.finish().await;
}

async fn in_mid_turn(machine: &Machine) -> (Server, Value) {
    let mut server = machine.ready().await;
    let thread = server.thread(machine, "script").await;
    server.turn_with_text(&thread, "script: text Half ;; hang").await;
    (server, thread)
}

#[tokio::test]
async fn the_end_of_input_in_mid_turn_is_an_interrupt() {
    let machine = Machine::new();
    let (mut server, thread) = in_mid_turn(&machine).await;
    server.close_input();
    is_interrupted(&machine, &server.ended().await, &thread).await;
}

#[cfg(unix)]
#[tokio::test]
async fn signals_in_mid_turn_are_the_same_as_the_end_of_input() {
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let machine = Machine::new();
        let (server, thread) = in_mid_turn(&machine).await;
        server.signal(signal);
        is_interrupted(&machine, &server.ended().await, &thread).await;
    }
}

/// What was asked just before the end of input is done and answered. Holds: P4.
#[tokio::test]
async fn p4_requests_before_the_end_of_input_are_answered() {
    let machine = Machine::new();
    let mut server = machine.start();
    let mut lines = vec![
        json!({ "id": 0, "method": "initialize", "params": { "clientInfo": { "name": "t", "version": "1" } } }),
        json!({ "method": "initialized" }),
    ];
    for id in 1..=300 {
        lines.push(match id % 3 {
            0 => json!({ "id": id, "method": "thread/list" }),
            1 => json!({ "id": id, "method": "thread/start", "params": { "cwd": machine.project() } }),
            _ => json!({ "id": id, "method": "no/such" }),
        });
    }
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    server.write(text).await;
    let ended = server.finish().await;
    for id in 0..=300 {
        let answer = ended.answer(&json!(id));
        match id % 3 {
            2 => assert_eq!(answer["error"]["code"], "methodNotFound"),
            _ => assert!(answer.get("result").is_some(), "{answer}"),
        }
    }
    // Each thread that was answered can be used.
    let mut server = machine.ready().await;
    let list = server.request("thread/list", json!({ "limit": 200 })).await;
    assert_eq!(list["threads"].as_array().unwrap().len(), 100);
    server.finish().await;
}

/// A command that outlives its turn would hold the process up; it is ended with it.
#[cfg(unix)]
#[tokio::test]
async fn the_end_of_input_ends_running_commands() {
    let machine = Machine::new();
    let mut server = machine.ready().await;
    let thread = server.thread(&machine, "script").await;
    let text = r#"script: call bash {"command":"echo $$; exec sleep 1000"}"#;
    server.request("turn/start", json!({ "threadId": thread, "text": text })).await;
    let output = server.until("item/toolCall/outputDelta").await;
    let pid: i32 = output["params"]["delta"].as_str().unwrap().trim().parse().unwrap();
    server.finish().await;
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    assert!(rustix::process::test_kill_process(pid).is_err(), "the command still runs");
}

/// A client that reads no more: the pipe is full, nobody empties it, and the process ends all the same. Holds: P7.
#[tokio::test]
async fn p7_a_client_that_stops_reading_does_not_keep_the_process() {
    let machine = Machine::new();
    let mut server = machine.start_with::<&str>(&[], &[IMPATIENT]);
    server.shake_hands().await;
    let thread = server.thread(&machine, "script").await;
    server.turn_with_text(&thread, "script: text Half ;; hang").await;
    // Answers of a megabyte in all, of which a pipe holds little.
    for _ in 0..2_000 {
        server.send("model/list", json!({})).await;
    }
    server.begins_to_answer().await;
    server.close_input();
    let status = server.ended_unread(IMPATIENT_MAX).await;
    assert_eq!(status.code(), Some(1));

    let mut server = machine.ready().await;
    let read = server.request("thread/read", json!({ "threadId": thread, "limit": 1 })).await;
    assert_eq!(read["turns"][0]["status"], "interrupted");
    server.finish().await;
}

/// Who signals twice does not want to wait for the output to drain.
#[cfg(unix)]
#[tokio::test]
async fn a_second_signal_ends_the_process_at_once() {
    let machine = Machine::new();
    let mut server = machine.ready().await;
    for _ in 0..2_000 {
        server.send("model/list", json!({})).await;
    }
    server.begins_to_answer().await;
    let start = Instant::now();
    let status = loop {
        server.signal(rustix::process::Signal::TERM);
        // Two signals that come together may be one, so there are more until it is gone.
        match server.ended_within(Duration::from_millis(50)).await {
            Some(status) => break status,
            None => assert!(start.elapsed() < Duration::from_secs(9), "it waits for the output to drain"),
        }
    };
    assert_eq!(status.code(), Some(1));
}

/// A client that asks for ever and reads nothing is cut off at the outbox's bound, and the process ends. Holds: P7.
#[tokio::test]
async fn p7_a_client_that_only_asks_is_cut_off() {
    let machine = Machine::new();
    let mut server = machine.ready().await;
    let thread = server.thread(&machine, "script").await;
    for _ in 0..16 {
        server.turn_with_text(&thread, "script: repeat 50 bytes=1000").await;
        server.until("turn/completed").await;
    }
    // Most of a megabyte an answer. The pipe breaks when the process ends.
    for _ in 0..120 {
        if server.try_send("thread/read", json!({ "threadId": thread })).await.is_err() {
            break;
        }
    }
    assert_eq!(server.ended_unread(WAIT_MAX).await.code(), Some(1));
}

/// A client that is gone: what it began ends, and so does the process.
#[tokio::test]
async fn a_client_that_is_gone_ends_the_process() {
    let machine = Machine::new();
    let mut server = machine.ready().await;
    let thread = server.thread(&machine, "script").await;
    server.turn_with_text(&thread, "script: repeat 1000000 every=5ms").await;
    assert_eq!(server.ended_without_output().await.code(), Some(1));
    let mut server = machine.ready().await;
    let read = server.request("thread/read", json!({ "threadId": thread })).await;
    assert_eq!(read["turns"][0]["status"], "interrupted");
    server.finish().await;
}

/// Logs go to standard error, however many; the harness takes nothing but messages on standard output.
#[tokio::test]
async fn logs_are_no_messages() {
    let machine = Machine::new();
    let mut server = machine.start_with(
        &["-e", "none"],
        &[("RADDLE_LOG", "raddle=trace,raddle_server=trace,raddle_cli=trace,info")],
    );
    server.shake_hands().await;
    server.write("nonsense\n").await;
    server.answer().await;
    let ended = server.finish().await;
    assert!(ended.complaints.contains("there is no such extension"), "{}", ended.complaints);
    assert!(!ended.complaints.contains('\u{1b}'), "colours are for terminals");
}
