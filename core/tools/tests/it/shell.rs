//! The tool `bash`: output, status, time limit, cancelling.

use std::time::Duration;

use raddle_tools::{COMMAND_BYTES_MAX, OUTPUT_BYTES_MAX, ToolError, ToolOutput, Toolbox};
use serde_json::json;

use crate::support::{Gate, Lifeline, World, soon, until};

#[tokio::test]
async fn output_and_status_are_told() {
    let world = World::new();
    for (command, output) in [
        ("echo hi", ToolOutput::ok("hi\n")),
        ("true", ToolOutput::ok("[no output]")),
        ("false", ToolOutput::error("[exit code 1]")),
        ("echo oops >&2; exit 3", ToolOutput::error("oops\n[exit code 3]")),
        ("printf open; exit 255", ToolOutput::error("open\n[exit code 255]")),
        ("kill -9 $$", ToolOutput::error("[killed by signal 9]")),
        ("echo a; echo b >&2; echo c; echo d >&2", ToolOutput::ok("a\nb\nc\nd\n")),
        ("cat; echo end", ToolOutput::ok("end\n")),
        ("echo one\necho two", ToolOutput::ok("one\ntwo\n")),
    ] {
        assert_eq!(world.bash(command).await, output, "{command}");
    }
    let dash = world.bash("-x foo").await;
    assert!(dash.is_error && dash.text.ends_with("[exit code 127]"), "{}", dash.text);
    assert_eq!(world.cx.processes.stray_calls(), 0);
}

#[tokio::test]
async fn a_command_runs_in_the_directory_without_a_terminal_or_pagers() {
    let mut world = World::new();
    world.write("marker", "");
    assert_eq!(world.bash("ls").await.text, "marker\n");
    let terminal = "if (exec 3</dev/tty) 2>/dev/null; then echo some; else echo none; fi";
    assert_eq!(world.bash(terminal).await.text, "none\n");
    let shown = world.bash("echo $PAGER $GIT_PAGER $TERM $GIT_TERMINAL_PROMPT").await.text;
    assert_eq!(shown, "cat cat dumb 0\n");

    let path = "echo ${PATH:+inherited}";
    assert_eq!(world.bash(path).await.text, "inherited\n");
    // Set by cargo for every test, and as good as a key for this purpose.
    world.cx.hidden_env = ["CARGO_MANIFEST_DIR".into()].into();
    assert_eq!(world.bash("echo ${CARGO_MANIFEST_DIR-hidden}").await.text, "hidden\n");

    world.cx.cwd = world.path("missing");
    let text = world.refusal("bash", json!({"command": "true"})).await;
    assert_eq!(text, format!("the working directory {} does not exist", world.cx.cwd.display()));
}

#[tokio::test]
async fn r01_a_character_cut_between_two_writes_is_whole() {
    let text = "é\u{2028}😀";
    let bytes = text.as_bytes();
    for cut in 1..bytes.len() {
        let mut world = World::new();
        let mut pieces = world.watch(8);
        let gate = Gate::new(&world, "gate");
        let octal = |part: &[u8]| part.iter().map(|byte| format!("\\{byte:03o}")).collect::<String>();
        let (first, second) = (octal(&bytes[..cut]), octal(&bytes[cut..]));
        let command = format!("printf 'x{first}'; read _ < gate; printf '{second}'");
        let call = tokio::spawn(async move { world.bash(&command).await });
        let mut live = soon("the first piece", pieces.recv()).await.expect("a piece");
        gate.open();
        while let Some(piece) = soon("live output", pieces.recv()).await {
            live += &piece;
        }
        assert_eq!(live, format!("x{text}"));
        assert_eq!(call.await.expect("joins").text, live);
    }
}

#[tokio::test]
async fn odd_bytes_of_output_are_kept_or_replaced() {
    let world = World::new();
    let output = world.bash(r"printf 'a\000b\342\200\250c\033[1m\r\n\377\n'").await;
    assert_eq!(output.text, "a\0b\u{2028}c\u{1b}[1m\r\n\u{fffd}\n");
}

#[tokio::test]
async fn long_output_keeps_head_and_tail_and_counts_the_rest() {
    let world = World::new();
    let output = world.bash("seq 1 100000").await;
    assert!(output.text.starts_with("1\n2\n3\n"), "{}", output.text);
    assert!(output.text.ends_with("\n99999\n100000\n"), "{}", output.text);
    assert!(output.text.len() < OUTPUT_BYTES_MAX + 300);
    let note = output.text.lines().find(|line| line.starts_with('[')).expect("a note");
    assert!(note.contains("98000 line ends are left out"), "{note}");
}

#[tokio::test]
async fn live_pieces_come_while_the_command_runs() {
    let mut world = World::new();
    let mut pieces = world.watch(1);
    let gate = Gate::new(&world, "gate");
    let call = tokio::spawn(async move { world.bash("echo first; read _ < gate; echo second").await });
    assert_eq!(until(&mut pieces, "\n").await, "first\n");
    gate.open();
    assert_eq!(until(&mut pieces, "\n").await, "second\n");
    assert_eq!(call.await.expect("joins").text, "first\nsecond\n");
}

#[tokio::test]
async fn a_receiver_that_takes_nothing_does_not_keep_the_call() {
    let mut world = World::new();
    let _pieces = world.watch(1);
    assert_eq!(world.bash("seq 1 1000").await.text.lines().count(), 1_000);
    // More than the channel, the waiting piece and the pipe hold: now the command waits, to its time limit.
    let input = json!({"command": "seq 1 1000000", "timeoutMs": 200});
    let error = world.run("bash", input).await.expect_err("waits");
    assert!(matches!(error, ToolError::TimedOut { limit_ms: 200, .. }), "{error}");
}

#[tokio::test]
async fn a_receiver_that_is_gone_changes_nothing() {
    let mut world = World::new();
    drop(world.watch(1));
    assert_eq!(world.bash("seq 1 1000").await.text.lines().count(), 1_000);
}

#[tokio::test]
async fn a_shell_that_closes_its_output_is_waited_for() {
    let mut world = World::new();
    let mut pieces = world.watch(8);
    let gate = Gate::new(&world, "gate");
    let command = "echo shut; exec >&- 2>&-; read _ < gate; exit 4";
    let call = tokio::spawn(async move { world.bash(command).await });
    until(&mut pieces, "shut\n").await;
    gate.open();
    assert_eq!(call.await.expect("joins"), ToolOutput::error("shut\n[exit code 4]"));
}

#[tokio::test]
async fn p7_an_endless_writer_meets_its_time_limit_in_bounded_memory() {
    let world = World::new();
    let lifeline = Lifeline::new(&world, "life");
    let input = json!({"command": lifeline.hold("yes"), "timeout_ms": "300"});
    let error = world.run("bash", input).await.expect_err("meets the limit");
    let ToolError::TimedOut { partial, limit_ms: 300 } = error else { panic!("{error}") };
    assert!(partial.starts_with("y\ny\n") && partial.contains("are left out here"));
    assert!(partial.len() < OUTPUT_BYTES_MAX + 300);
    lifeline.wait_for_end().await;
}

#[tokio::test]
async fn the_time_limit_ends_the_whole_group_and_tells_what_was_written() {
    let mut world = World::new();
    let lifeline = Lifeline::new(&world, "life");
    world.cx.time_limit_default = Duration::from_millis(300);
    let command = lifeline.hold("echo started; sleep 600 | sleep 600 & sleep 600");
    let text = world.refusal("bash", json!({ "command": command })).await;
    assert_eq!(
        text,
        "stopped at its time limit of 300 ms; allow more time or do less at once; what it had written:\n\
         started\n"
    );
    lifeline.wait_for_end().await;
    assert_eq!(world.cx.processes.stray_calls(), 0);
}

/// Starts the command, waits until it has written `ready`, cancels it and gives the partial output.
async fn cancel(mut world: World, command: String) -> String {
    let mut pieces = world.watch(8);
    let token = world.cx.cancel.clone();
    let call = tokio::spawn(async move { world.run("bash", json!({ "command": command })).await });
    until(&mut pieces, "ready\n").await;
    token.cancel();
    let error = soon("a cancelled call", call).await.expect("joins").expect_err("is cancelled");
    let ToolError::Cancelled { partial } = error else { panic!("{error}") };
    partial
}

#[tokio::test]
async fn r24_cancelling_ends_the_group() {
    let world = World::new();
    let lifeline = Lifeline::new(&world, "life");
    let command = lifeline.hold("(sleep 600; sleep 600) & echo ready; sleep 600; echo never");
    assert_eq!(cancel(world, command).await, "ready\n");
    lifeline.wait_for_end().await;
}

#[tokio::test]
async fn r24_cancelling_ends_what_ignores_sigterm() {
    let world = World::new();
    let lifeline = Lifeline::new(&world, "life");
    let command = lifeline.hold("trap '' TERM; echo ready; while :; do sleep 600; done");
    assert_eq!(cancel(world, command).await, "ready\n");
    lifeline.wait_for_end().await;
}

#[tokio::test]
async fn sigterm_leaves_time_to_clean_up() {
    let world = World::new();
    let lifeline = Lifeline::new(&world, "life");
    let command = lifeline.hold("trap 'echo cleaned; exit 0' TERM; echo ready; sleep 600 & wait");
    assert_eq!(cancel(world, command).await, "ready\ncleaned\n");
    lifeline.wait_for_end().await;
}

#[tokio::test]
async fn a_call_that_is_cancelled_already_starts_nothing() {
    let world = World::new();
    world.cx.cancel.cancel();
    let error = world.run("bash", json!({"command": "touch made"})).await.expect_err("is cancelled");
    assert!(matches!(error, ToolError::Cancelled { partial } if partial.is_empty()));
    assert!(!world.path("made").exists());
}

#[tokio::test]
async fn dropping_a_call_kills_its_group() {
    let mut world = World::new();
    let mut pieces = world.watch(8);
    let lifeline = Lifeline::new(&world, "life");
    let input = json!({"command": lifeline.hold("trap '' TERM; sleep 600 & echo ready; sleep 600")});
    let tools = Toolbox::builtin();
    let bash = tools.get("bash").expect("there");
    tokio::select! {
        _ = bash.run(input, world.cx.clone()) => panic!("it ended"),
        _ = until(&mut pieces, "ready\n") => {}
    }
    lifeline.wait_for_end().await;
}

#[tokio::test]
async fn wrong_inputs_start_nothing() {
    let world = World::new();
    let long = "x".repeat(COMMAND_BYTES_MAX + 1);
    for (input, words) in [
        (json!({}), "missing field `command`"),
        (json!({"cmd": "touch made"}), "missing field `command`"),
        (json!({"command": ["touch", "made"]}), "expected a string"),
        (json!({"command": " \n"}), "command is empty"),
        (json!({"command": "touch made\0"}), "NUL"),
        (json!({"command": long}), "put the script or its data into a file"),
        (json!({"command": "touch made", "timeoutMs": 0}), "timeoutMs must be at least 1"),
        (json!({"command": "touch made", "timeoutMs": "soon"}), "whole number"),
        (json!({"command": "touch made", "timeoutMs": 1, "timeout_ms": 2}), "duplicate field"),
    ] {
        let text = world.refusal("bash", input).await;
        assert!(text.starts_with("invalid input for bash: ") && text.contains(words), "{text}");
    }
    assert!(!world.path("made").exists());
    for input in [
        json!({"command": "echo ok", "timeoutMs": null, "description": "says ok"}),
        json!({"command": "echo ok", "timeout_ms": 1e9}),
        json!("{\"command\": \"echo ok\"}"),
    ] {
        assert_eq!(world.text("bash", input).await, "ok\n");
    }
    let longest = "#".repeat(COMMAND_BYTES_MAX);
    assert_eq!(world.bash(&longest).await.text, "[no output]");
}
