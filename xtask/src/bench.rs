//! `cargo xtask bench`: builds the bench, its provider and the command with optimisation, and runs them against each other.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::workspace::{Workspace, spelled};

/// Runs the bench; `arguments` are handed on to it.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<ExitCode, String> {
    let packages = ["-p", "raddle-bench", "-p", "raddle-fakes", "-p", "raddle-cli"];
    let mut build = workspace.cargo(&[&["build", "--profile", "bench"], &packages[..]].concat());
    build.arg("--message-format=json-render-diagnostics").stdout(std::process::Stdio::piped());
    let output = build.stderr(std::process::Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cannot start `{}`: {error}", spelled(&build)))?;
    if !output.status.success() {
        return Err("the bench did not build; Cargo says why above".to_owned());
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let program = |name: &str| executable(&messages, name).ok_or(format!("Cargo built no program `{name}`"));
    let mut bench = workspace.command(program("raddle-bench")?);
    bench.arg("--provider").arg(program("fake-provider")?);
    bench.arg("--server").arg(program("raddle")?).args(arguments);
    let status = bench.status().map_err(|error| format!("cannot start `{}`: {error}", spelled(&bench)))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Where Cargo put a program, as its messages say: the target directory is its own business.
fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    let artifacts = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut found = artifacts.filter(|artifact| artifact["target"]["name"] == name);
    found.find_map(|artifact| artifact["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_among_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"a"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"b"},"executable":"/t/bench/b"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages, "b"), Some(PathBuf::from("/t/bench/b")));
        assert_eq!(executable(messages, "a"), None);
    }
}
