//! The README tells a newcomer, before they scroll, how to see it run and how to test it.

use std::fs;

use crate::workspace::Workspace;

/// How many lines one reads before one scrolls.
const FIRST: usize = 40;

/// What must be in them.
const COMMANDS: [&str; 2] = ["cargo xtask demo", "cargo xtask test"];

pub(super) fn check(workspace: &Workspace) -> Result<Vec<String>, String> {
    let readme = fs::read_to_string(workspace.root().join("README.md"))
        .map_err(|error| format!("README.md cannot be read: {error}"))?;
    Ok(problems(&readme))
}

fn problems(readme: &str) -> Vec<String> {
    let first: Vec<&str> = readme.lines().take(FIRST).collect();
    COMMANDS
        .iter()
        .filter(|command| !first.iter().any(|line| line.contains(**command)))
        .map(|command| format!("README.md: its first {FIRST} lines must tell of `{command}`"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_commands_are_told_of_early() {
        assert!(problems("Run `cargo xtask demo`.\nThen\n    cargo xtask test\n").is_empty());
        let late = format!("cargo xtask demo\n{}cargo xtask test\n", "\n".repeat(FIRST));
        assert_eq!(problems(&late), ["README.md: its first 40 lines must tell of `cargo xtask test`"]);
    }
}
