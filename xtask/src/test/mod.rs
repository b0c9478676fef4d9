//! `cargo xtask test`: every check and every test, one after the other, and their sum on the last line.
//!
//! A step that fails does not stop the ones after it, so that one run tells all that is wrong. What a step needs
//! beyond Cargo, it installs (`install.rs`), or it fails and says what to install; none is skipped in silence.
//!
//! One thing is left out unless `RADDLE_ADVISORIES=1` is set: looking up our dependencies among the published
//! security advisories. Their database lies on a host that some machines cannot reach, and a new advisory
//! turns a commit red that was green the day before.

mod count;
mod install;
mod stream;

use std::env;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use self::count::{Runner, Tally};
use self::stream::stream;
use crate::tidy;
use crate::workspace::{Workspace, spelled};

/// One part of the whole.
struct Step {
    name: &'static str,
    run: fn(&Workspace) -> Tally,
}

/// All steps. Another language's tests are one more line, with the [`Runner`] that reads what they print.
const STEPS: &[Step] = &[
    Step { name: "format", run: |all| check(all.cargo(&["fmt", "--all", "--check"])) },
    Step { name: "lints", run: lints },
    Step { name: "dependencies", run: dependencies },
    Step { name: "tidy", run: |all| tally(tidy::problems(all)) },
    // Before the Rust tests, since one of those runs the demo against what this installs.
    Step { name: "aimock", run: aimock },
    Step {
        name: "rust",
        run: |all| suite(all.cargo(&["test", "--workspace", "--no-fail-fast"]), Runner::Cargo),
    },
];

/// Runs all steps, and says how they went.
pub(crate) fn run(workspace: &Workspace) -> Result<ExitCode, String> {
    let mut done: Vec<(&str, Tally, Duration)> = Vec::new();
    for step in STEPS {
        println!("\n== {}", step.name);
        let start = Instant::now();
        let tally = (step.run)(workspace);
        done.push((step.name, tally, start.elapsed()));
    }
    println!("\n== summary");
    for (name, tally, took) in &done {
        let verdict = if tally.failed == 0 { "ok" } else { "FAILED" };
        println!("{verdict:6} {name:12} {tally} in {:.1} s", took.as_secs_f64());
    }
    let sum: Tally = done.iter().map(|(_, tally, _)| *tally).sum();
    // The last line, which CI reads.
    println!("\n{sum}");
    Ok(if sum.failed == 0 && sum.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn lints(workspace: &Workspace) -> Tally {
    check(workspace.cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
}

/// The rules of `deny.toml`.
fn dependencies(workspace: &Workspace) -> Tally {
    let program = match install::cargo_deny(workspace) {
        Ok(program) => program,
        Err(problem) => return tally(vec![problem]),
    };
    let mut command = workspace.command(program);
    command.args(["--locked", "check", "--hide-inclusion-graph", "bans", "licenses", "sources"]);
    if env::var_os("RADDLE_ADVISORIES").is_some_and(|value| value == "1") {
        command.arg("advisories");
    } else {
        println!("without the security advisories; RADDLE_ADVISORIES=1 looks them up too");
    }
    check(command)
}

/// The tests of the model server that the demo's end-to-end test talks to.
fn aimock(workspace: &Workspace) -> Tally {
    let folder = match install::aimock(workspace) {
        Ok(folder) => folder,
        Err(problem) => return tally(vec![problem]),
    };
    let mut command = workspace.command("node");
    command.current_dir(folder).args(["--test", "--test-reporter=tap"]);
    suite(command, Runner::Node)
}

/// Runs a command that is one check.
fn check(command: Command) -> Tally {
    suite(command, Runner::Check)
}

/// Runs a command, shows what it prints, and counts its tests.
fn suite(mut command: Command, runner: Runner) -> Tally {
    println!("$ {}", spelled(&command));
    let mut counted = Tally::default();
    let ended = stream(&mut command, |line| counted = counted + runner.read(line));
    match ended {
        Ok(success) => {
            let problem = runner.judge(&mut counted, success);
            if let Some(problem) = problem {
                println!("{problem}");
            }
            counted
        }
        Err(problem) => tally(vec![problem]),
    }
}

/// One check of our own, which failed if there are problems.
fn tally(problems: Vec<String>) -> Tally {
    for problem in &problems {
        println!("{problem}");
    }
    Tally::one(problems.is_empty())
}
