//! `cargo xtask demo`: builds the `raddle` command and runs its demo.

use std::process::{Command, ExitCode};

use crate::workspace::{Workspace, spelled};

/// Builds and runs the demo, and ends as it ends.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<ExitCode, String> {
    // Not quiet, so that one who waits for a first build sees that it goes on. A later one says one line.
    let mut build = workspace.cargo(&["build", "--package", "raddle-cli"]);
    let built = build.status().map_err(|error| format!("cannot start `{}`: {error}", spelled(&build)))?;
    if !built.success() {
        return Err("the demo did not build; Cargo says why above".to_owned());
    }
    let mut demo = workspace.cargo(&["run", "--quiet", "--package", "raddle-cli", "--", "demo"]);
    demo.args(arguments);
    become_program(demo)
}

/// Puts the demo in this program's place, so that Ctrl-C reaches the demo alone, which may want to end a turn
/// and not itself.
#[cfg(unix)]
fn become_program(mut demo: Command) -> Result<ExitCode, String> {
    use std::os::unix::process::CommandExt as _;
    let error = demo.exec();
    Err(format!("cannot start `{}`: {error}", spelled(&demo)))
}

#[cfg(not(unix))]
fn become_program(mut demo: Command) -> Result<ExitCode, String> {
    let status = demo.status().map_err(|error| format!("cannot start `{}`: {error}", spelled(&demo)))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}
