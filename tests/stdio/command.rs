//! The command line: help, options, and where things lie.

use serde_json::json;

use crate::process::{Machine, files};

#[tokio::test]
async fn help_is_told_on_standard_error_and_opens_nothing() {
    let machine = Machine::new();
    for option in ["--help", "-h"] {
        let output = machine.command(&["app-server", option]).output().await.unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(output.stdout, b"", "standard output is the protocol's");
        let help = String::from_utf8(output.stderr).unwrap();
        for told in ["raddle app-server", "--extension", "--session-dir", "-h, --help"] {
            assert!(help.contains(told), "{help}");
        }
        assert!(!machine.home().exists());
    }
}

#[tokio::test]
async fn a_wrong_option_is_told_on_standard_error() {
    let output = Machine::new().command(&["app-server", "--port", "1"]).output().await.unwrap();
    assert_eq!((output.status.code(), output.stdout), (Some(2), Vec::new()));
    assert!(String::from_utf8(output.stderr).unwrap().contains("--port"));
}

#[tokio::test]
async fn a_home_that_cannot_be_opened_is_told_on_standard_error() {
    let machine = Machine::new();
    std::fs::write(machine.home(), "no directory").unwrap();
    let server = machine.start();
    let ended = server.ended().await;
    assert_eq!((ended.status.code(), ended.messages), (Some(1), Vec::new()));
    assert!(ended.complaints.contains("could not be opened"), "{}", ended.complaints);
}

#[tokio::test]
async fn extensions_are_refused_with_a_warning_in_each_response_that_opens_a_thread() {
    let machine = Machine::new();
    let project = machine.project();
    std::fs::write(project.join("own.ts"), "").unwrap();
    let mut server = machine.start_with(&["-e", "own.ts", "--extension", "/no/such/one.ts"], &[]);
    server.shake_hands().await;
    let started = server.request("thread/start", json!({ "cwd": project })).await;
    let warnings = started["warnings"].as_array().unwrap();
    let paths: Vec<_> = warnings.iter().map(|warning| warning["path"].as_str().unwrap()).collect();
    assert_eq!(paths, [project.join("own.ts").to_str().unwrap(), "/no/such/one.ts"]);
    assert!(warnings.iter().all(|warning| warning["source"] == "extension"));
    assert!(warnings[1]["message"].as_str().unwrap().contains("no such"));
    let resumed = server.request("thread/resume", json!({ "threadId": started["thread"]["id"] })).await;
    assert_eq!(resumed["warnings"], started["warnings"]);
    let forked = server.request("thread/fork", json!({ "threadId": started["thread"]["id"] })).await;
    assert_eq!(forked["warnings"], started["warnings"]);
    server.finish().await;

    let mut server = machine.ready().await;
    let resumed = server.request("thread/resume", json!({ "threadId": started["thread"]["id"] })).await;
    assert_eq!(resumed["warnings"], json!([]));
    server.finish().await;
}

#[tokio::test]
async fn the_store_lies_where_it_is_said_to() {
    let machine = Machine::new();
    let (told, environment) = (machine.project().join("told"), machine.project().join("environment"));
    let variable = ("RADDLE_SESSION_DIR", environment.to_str().unwrap());
    let has_store = |directory: &std::path::Path| files(directory).contains(&"raddle.db".to_owned());

    // Relative to the directory that the process was started in.
    let mut server = machine.start_with(&["--session-dir", "told"], &[variable]);
    server.shake_hands().await;
    let thread = server.thread(&machine, "echo").await;
    server.finish().await;
    assert!(has_store(&told) && !has_store(&environment) && !machine.home().exists());

    let mut server = machine.start_with::<&str>(&[], &[variable]);
    server.shake_hands().await;
    let unknown = server.ask("thread/read", json!({ "threadId": thread })).await;
    assert_eq!(unknown["error"]["code"], "threadNotFound");
    server.finish().await;
    assert!(has_store(&environment) && !machine.home().exists());

    machine.ready().await.finish().await;
    assert!(has_store(&machine.home()));
}
