//! `cargo xtask tidy`: the rules of this repository that no compiler checks.

mod coverage;
mod crates;
mod readme;
mod sources;

use std::process::ExitCode;

use crate::workspace::Workspace;

/// Checks, and prints what is wrong.
pub(crate) fn run(workspace: &Workspace) -> Result<ExitCode, String> {
    let problems = problems(workspace);
    for problem in &problems {
        println!("{problem}");
    }
    if problems.is_empty() {
        println!("tidy");
        return Ok(ExitCode::SUCCESS);
    }
    Err(format!("{} thing(s) to tidy", problems.len()))
}

/// All that is wrong, one sentence each.
pub(crate) fn problems(workspace: &Workspace) -> Vec<String> {
    let checks = [
        crates::check(workspace),
        sources::check(workspace),
        readme::check(workspace),
        coverage::check(workspace),
    ];
    checks.into_iter().flat_map(|check| check.unwrap_or_else(|problem| vec![problem])).collect()
}
