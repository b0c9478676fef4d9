//! What the checks need beyond Cargo, and how it comes onto the machine.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::workspace::{Workspace, spelled};

/// The cargo-deny that `deny.toml` is written for. Another patch release of it will do.
const CARGO_DENY: &str = "0.20.2";

/// The oldest Node.js that aimock runs on.
const NODE: (u64, u64) = (20, 15);

/// Finds cargo-deny or installs it into `target/tools`, and says where it is.
pub(super) fn cargo_deny(workspace: &Workspace) -> Result<PathBuf, String> {
    let tools = workspace.root().join("target").join("tools");
    let ours = tools.join("bin").join(format!("cargo-deny{}", std::env::consts::EXE_SUFFIX));
    for place in [PathBuf::from("cargo-deny"), ours.clone()] {
        if says(workspace.command(&place).arg("--version")).is_some_and(|version| fits(&version, CARGO_DENY))
        {
            return Ok(place);
        }
    }
    println!("installing cargo-deny {CARGO_DENY}, which takes a minute or two, once");
    let mut command = workspace.cargo(&["install", "--locked", "--force", "--version", CARGO_DENY]);
    command.arg("--root").arg(&tools).arg("cargo-deny");
    // It checks us in two seconds even so, and is built in a third of the time that its own release profile takes.
    command.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0");
    command.env("CARGO_PROFILE_RELEASE_LTO", "off");
    command.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    // A folder of its own that Cargo removes, not ours, which would keep a second copy of many crates.
    command.env_remove("CARGO_TARGET_DIR");
    succeed(&mut command)?;
    Ok(ours)
}

/// Installs aimock into its folder, and says which that is.
pub(super) fn aimock(workspace: &Workspace) -> Result<PathBuf, String> {
    let folder = workspace.root().join("tests").join("aimock");
    node(workspace)?;
    succeed(workspace.command("npm").current_dir(&folder).args([
        "ci",
        "--prefer-offline",
        "--no-fund",
        "--no-audit",
    ]))?;
    Ok(folder)
}

/// Makes sure of Node.js and npm.
fn node(workspace: &Workspace) -> Result<(), String> {
    let (major, minor) = NODE;
    let wanted = format!("Node.js {major}.{minor} or newer, with npm");
    let present = || {
        let version = says(workspace.command("node").arg("--version"));
        says(workspace.command("npm").arg("--version")).and(version)
    };
    let version = match present() {
        Some(version) => version,
        None if is_debian_root() => {
            println!("installing Node.js and npm with apt-get");
            // A failed update may only mean an old list, with which the install may still succeed.
            let _ = succeed(workspace.command("apt-get").args(["update", "-q"]));
            let mut install = workspace.command("apt-get");
            install.env("DEBIAN_FRONTEND", "noninteractive");
            succeed(install.args(["install", "-q", "-y", "--no-install-recommends", "nodejs", "npm"]))?;
            present().ok_or_else(|| format!("apt-get brought no Node.js that runs: install {wanted}"))?
        }
        None => return Err(format!("the tests with aimock need {wanted}: install it and run this again")),
    };
    if version_of(&version).is_some_and(|(found_major, found_minor, _)| (found_major, found_minor) >= NODE) {
        return Ok(());
    }
    Err(format!("the tests with aimock need {wanted}, and this is {version}: install a newer one"))
}

fn is_debian_root() -> bool {
    Path::new("/etc/debian_version").exists()
        && says(Command::new("id").arg("-u")).is_some_and(|user| user == "0")
}

/// What a command prints, if it can be run and succeeds.
fn says(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Runs a command to its end in the open.
fn succeed(command: &mut Command) -> Result<(), String> {
    println!("$ {}", spelled(command));
    match command.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{}` failed ({status}); what it printed says why", spelled(command))),
        Err(error) => Err(format!("cannot run `{}`: {error}", spelled(command))),
    }
}

/// Whether the last word of `said` is the version `wanted` or a later patch of it.
fn fits(said: &str, wanted: &str) -> bool {
    match (said.split_whitespace().last().and_then(version_of), version_of(wanted)) {
        (Some((major, minor, patch)), Some(wanted)) => {
            (major, minor) == (wanted.0, wanted.1) && patch >= wanted.2
        }
        _ => false,
    }
}

/// The numbers of a version such as `v20.15.1`.
fn version_of(text: &str) -> Option<(u64, u64, u64)> {
    let mut numbers = text.trim().trim_start_matches('v').splitn(3, '.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_three_numbers() {
        assert_eq!(version_of("v20.15.1"), Some((20, 15, 1)));
        assert_eq!(version_of("0.20.2\n"), Some((0, 20, 2)));
        assert_eq!(version_of("20"), None);
        assert_eq!(version_of("1.2.x"), None);
    }

    #[test]
    fn only_the_same_minor_version_fits() {
        assert!(fits("cargo-deny 0.20.2", "0.20.2"));
        assert!(fits("cargo-deny 0.20.5", "0.20.2"));
        assert!(!fits("cargo-deny 0.20.1", "0.20.2"));
        assert!(!fits("cargo-deny 0.21.0", "0.20.2"));
        assert!(!fits("", "0.20.2"));
    }
}
