//! The command line: what it tells, and what it refuses. What the demo shows is tested in `tests/demo`.

#![expect(clippy::unwrap_used, reason = "a test says what it needs by failing without it")]

use std::process::{Command, Output};

fn raddle(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_raddle"))
        .args(arguments)
        .env_remove("OPENAI_API_KEY")
        .env_remove("RADDLE_LOG")
        .output()
        .unwrap()
}

fn printed(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn help_tells_of_the_commands_and_hides_the_demos_host() {
    let help = printed(&raddle(&["--help"]));
    assert!(help.contains("demo") && help.contains("app-server"), "{help}");
    assert!(!help.contains("demo-host"), "{help}");
    let demo = printed(&raddle(&["demo", "--help"]));
    for option in ["--model", "--home", "--project", "--timeout"] {
        assert!(demo.contains(option), "{demo}");
    }
}

#[test]
fn the_version_is_the_packages() {
    assert_eq!(printed(&raddle(&["--version"])), format!("raddle {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_text_that_names_no_model_is_a_usage_error() {
    let output = raddle(&["demo", "--model", "gpt"]);
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("`gpt` names no model: write `provider/model`"), "{told}");
}

#[test]
fn a_model_that_is_not_there_fails_with_those_that_are() {
    let output = raddle(&["demo", "--model", "builtin/nothing"]);
    assert_eq!(output.status.code(), Some(1));
    let told = printed(&output);
    let last = told.lines().last().unwrap();
    assert!(last.starts_with("demo: failed: --model builtin/nothing: no model"), "{told}");
    assert!(last.contains("builtin/script"), "{told}");
}

#[test]
fn a_project_that_is_not_there_is_named() {
    let output = raddle(&["demo", "--model", "builtin/script", "--project", "no/such/folder"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(printed(&output).contains("demo: failed: the project no/such/folder cannot be used"));
}
