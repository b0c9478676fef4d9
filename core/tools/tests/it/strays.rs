//! What commands leave running: it does not hold the call, and the registry ends it.

use raddle_tools::{OUTPUT_BYTES_MAX, OutputSink, ProcessRegistry, STRAY_CALLS_MAX};
use serde_json::json;

use crate::support::{Gate, Lifeline, World, soon};

/// Runs a command that leaves a process behind, and checks that the call ends with the shell, that the process
/// lives on, and that the registry ends it. Gives the text of the result.
async fn leaves_one(command: &str) -> String {
    let world = World::new();
    let lifeline = Lifeline::new(&world, "life");
    let text = world.text("bash", json!({"command": lifeline.hold(command)})).await;
    assert!(lifeline.is_held(), "{text}");
    soon("ending all", world.cx.processes.kill_all()).await;
    lifeline.wait_for_end().await;
    assert_eq!(world.cx.processes.stray_calls(), 0);
    text
}

#[tokio::test]
async fn r24_a_background_child_does_not_hold_the_call() {
    let text = leaves_one("sleep 600 & echo done").await;
    assert!(text.starts_with("done\n[left running in the background: process"), "{text}");
}

#[tokio::test]
async fn r24_a_silent_background_child_does_not_hold_the_call() {
    let text = leaves_one("sleep 600 </dev/null >/dev/null & echo done").await;
    assert!(text.starts_with("done\n[left running in the background: process"), "{text}");
    let text = leaves_one("sleep 600 </dev/null >/dev/null 2>&1 & echo done").await;
    assert!(text.starts_with("done\n[left running in the background: process"), "{text}");
}

#[tokio::test]
async fn r24_an_http_server_does_not_hold_the_call() {
    let text = leaves_one("python3 -m http.server 0 >/dev/null 2>&1 & echo $!").await;
    let (pid, note) = text.split_once('\n').expect("two lines");
    assert!(pid.parse::<u32>().is_ok(), "{text}");
    // Python may be a script that starts another one, so there can be more than one number.
    assert!(note.starts_with("[left running in the background: process"), "{text}");
    assert!(!cfg!(target_os = "linux") || note.contains(pid), "{text}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn r24_a_child_with_a_session_of_its_own_does_not_hold_the_call() {
    let text = leaves_one("setsid sleep 600 & echo done").await;
    assert!(text.starts_with("done\n[left running in the background: process"), "{text}");
    // With neither group nor output nothing is seen of it, but it is found when all are ended.
    let text = leaves_one("setsid sleep 600 </dev/null >/dev/null 2>&1 & echo done").await;
    assert!(text.starts_with("done\n"), "{text}");
}

#[tokio::test]
async fn r24_a_child_that_cleared_its_environment_is_ended_with_its_group() {
    leaves_one("env -i sleep 600 & echo done").await;
}

#[tokio::test]
async fn r24_output_of_300_megabytes_stays_bounded() {
    let world = World::new();
    let output = world.bash("yes | head -c 300000000").await;
    assert!(output.text.starts_with("y\ny\n") && output.text.ends_with("y\n"));
    assert!(output.text.len() < OUTPUT_BYTES_MAX + 300);
    let left_out = 300_000_000 - 4_000;
    assert!(output.text.contains(&format!("[{left_out} bytes with")), "{}", output.text);
    #[cfg(target_os = "linux")]
    {
        let status = std::fs::read_to_string("/proc/self/status").expect("reads");
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
        let peak_kib: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
        assert!(peak_kib < 200 * 1024, "{peak_kib} KiB");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn r24_the_time_limit_ends_children_that_left_the_group_and_hold_the_output() {
    let world = World::new();
    let lifeline = Lifeline::new(&world, "life");
    let stray = "setsid sh -c 'trap \"\" TERM; while :; do sleep 600; done' & echo done; sleep 600";
    let input = json!({"command": lifeline.hold(stray), "timeoutMs": 500});
    let text = world.refusal("bash", input).await;
    assert!(text.ends_with("what it had written:\ndone\n"), "{text}");
    lifeline.wait_for_end().await;
}

#[tokio::test]
async fn what_children_write_within_the_grace_is_in_the_result() {
    let world = World::new();
    // The substituted process writes after it has seen the shell's end of the pipe closed, so after the shell.
    let output = world.bash("exec 3> >(cat >/dev/null; echo late); echo early").await;
    assert!(output.text.starts_with("early\nlate\n"), "{}", output.text);
}

#[tokio::test]
async fn a_chatty_stray_does_not_hold_the_call() {
    let text = leaves_one("yes & echo done").await;
    assert!(text.contains("[left running in the background: process"), "{text}");
}

#[tokio::test]
async fn a_stray_may_go_on_writing_to_the_output() {
    let world = World::new();
    let (gate, lifeline) = (Gate::new(&world, "gate"), Lifeline::new(&world, "life"));
    let command = "(read _ < gate; seq 1 100000 && touch survived) & echo done";
    world.text("bash", json!({"command": lifeline.hold(command)})).await;
    gate.open();
    lifeline.wait_for_end().await;
    assert!(world.path("survived").exists(), "it died of a closed pipe");
}

#[tokio::test]
async fn dropping_the_last_registry_ends_what_is_left() {
    let mut world = World::new();
    let lifeline = Lifeline::new(&world, "life");
    world.text("bash", json!({"command": lifeline.hold("sleep 600 & echo done")})).await;
    assert_eq!(world.cx.processes.stray_calls(), 1);
    world.cx.processes = ProcessRegistry::new();
    lifeline.wait_for_end().await;
}

#[tokio::test]
async fn p7_one_call_too_many_with_strays_ends_the_oldest() {
    let world = World::new();
    let (oldest, others) = (Lifeline::new(&world, "oldest"), Lifeline::new(&world, "others"));
    let command = "sleep 600 >/dev/null 2>&1 & echo done";
    world.bash(&oldest.hold(command)).await;
    for _ in 1..STRAY_CALLS_MAX {
        let output = world.bash(&others.hold(command)).await;
        assert!(!output.text.contains("were ended"), "{}", output.text);
    }
    assert!(oldest.is_held());
    assert_eq!(world.cx.processes.stray_calls(), STRAY_CALLS_MAX);
    let output = world.bash(&others.hold(command)).await;
    assert!(output.text.ends_with("were ended, for there were too many]"), "{}", output.text);
    oldest.wait_for_end().await;
    assert_eq!(world.cx.processes.stray_calls(), STRAY_CALLS_MAX);
    soon("ending all", world.cx.processes.kill_all()).await;
    others.wait_for_end().await;
}

#[tokio::test]
async fn ending_all_ends_running_calls_too_and_the_registry_goes_on() {
    let mut world = World::new();
    let mut pieces = world.watch(8);
    let processes = world.cx.processes.clone();
    let lifeline = Lifeline::new(&world, "life");
    let command = lifeline.hold("echo ready; sleep 600");
    let call = tokio::spawn(async move { (world.bash(&command).await, world) });
    crate::support::until(&mut pieces, "ready\n").await;
    soon("ending all", processes.kill_all()).await;
    let (ended, mut world) = soon("the call", call).await.expect("joins");
    assert_eq!(ended.text, "ready\n[killed by signal 15]");
    world.cx.sink = OutputSink::discard();
    assert_eq!(world.bash("echo again").await.text, "again\n");
    lifeline.wait_for_end().await;
}

#[tokio::test]
async fn one_registry_leaves_the_strays_of_another_alone() {
    let (world, other) = (World::new(), World::new());
    let lifeline = Lifeline::new(&other, "life");
    other.text("bash", json!({"command": lifeline.hold("sleep 600 & echo done")})).await;
    world.text("bash", json!({"command": "sleep 600 & echo done"})).await;
    soon("ending all", world.cx.processes.kill_all()).await;
    assert!(lifeline.is_held());
    soon("ending all", other.cx.processes.kill_all()).await;
    lifeline.wait_for_end().await;
}

#[tokio::test]
async fn every_call_has_a_mark_of_its_own() {
    let world = World::new();
    let first = world.bash("echo $RADDLE_CALL").await.text;
    let second = world.bash("echo $RADDLE_CALL").await.text;
    assert!(first.trim().ends_with("-0") && second.trim().ends_with("-1"), "{first}{second}");
}
