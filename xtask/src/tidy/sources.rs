//! What may stand in a source file, and how long one may be.

use std::fs;
use std::path::Path;

use crate::workspace::Workspace;

/// Where our sources are.
const FOLDERS: &[&str] =
    &["core", "bindings-swift", "bindings-node", "bindings-python", "examples", "tests", "xtask"];

/// Folders of what is made or fetched, not written.
const NOT_OURS: &[&str] = &["target", "node_modules", "build", "dist", "venv"];

/// What our sources end with.
const ENDINGS: &[&str] = &["rs", "ts", "mjs", "js", "swift", "py"];

/// The most lines of a file that is not for tests: past this, it holds more than one thing.
const LONGEST: usize = 600;

/// Words that stand nowhere, each with the reason that one is told.
const NOWHERE: &[(&str, &str)] = &[
    ("todo!", "write it, or return an error that says what is missing"),
    ("unimplemented!", "write it, or return an error that says what is missing"),
    ("dbg!", "left over from debugging"),
    ("#[ignore", "a test runs or it is deleted; a measurement is an example or a bench"),
    ("unbounded_channel", "every queue is bounded (P7)"),
];

/// Words that the turn machine does without, since it is pure: the same inputs, the same commands.
const NOT_IN_THE_MACHINE: &[&str] = &["tokio", "Instant", "SystemTime", "rand"];

pub(super) fn check(workspace: &Workspace) -> Result<Vec<String>, String> {
    let mut problems = Vec::new();
    for folder in FOLDERS {
        let folder = workspace.root().join(folder);
        if folder.exists() {
            walk(workspace.root(), &folder, &mut problems)?;
        }
    }
    Ok(problems)
}

fn walk(root: &Path, folder: &Path, problems: &mut Vec<String>) -> Result<(), String> {
    let unreadable =
        |path: &Path, error: std::io::Error| format!("{} cannot be read: {error}", path.display());
    let mut entries: Vec<_> = fs::read_dir(folder)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unreadable(folder, error))?
        .iter()
        .map(fs::DirEntry::path)
        .collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with('.') || NOT_OURS.contains(&name.as_ref()) {
            continue;
        }
        if path.is_dir() {
            walk(root, &path, problems)?;
        } else if path.extension().is_some_and(|end| ENDINGS.iter().any(|known| end == *known)) {
            let source = fs::read_to_string(&path).map_err(|error| unreadable(&path, error))?;
            let shown = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
            problems.extend(file(&shown, &source));
        }
    }
    Ok(())
}

/// All that is wrong with one file.
fn file(path: &str, source: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if source.lines().take(5).any(|line| line.contains("@generated")) {
        return problems;
    }
    let lines = source.lines().count();
    if lines > LONGEST && !is_for_tests(path) {
        problems.push(format!("{path}: {lines} lines, and {LONGEST} is the most: split it by what it does"));
    }
    // The rest is about Rust, and these files must name what they look for.
    if !path.ends_with(".rs") || path.starts_with("xtask/src/tidy/") {
        return problems;
    }
    let may_print = is_for_tests(path) || path.starts_with("xtask/") || path.starts_with("core/cli/");
    let is_machine = path.starts_with("core/engine/src/turn/");
    let mut in_tests = false;
    for (at, line) in source.lines().enumerate() {
        let mut wrong = |problem: String| problems.push(format!("{path}:{}: {problem}", at + 1));
        // By custom the tests of a file are its end.
        in_tests |= line.trim_start().starts_with("#[cfg(test)]");
        let code = line.split("//").next().unwrap_or_default();
        for (word, reason) in NOWHERE {
            if has_word(code, word) {
                wrong(format!("{word} stands nowhere: {reason}"));
            }
        }
        if !may_print && !in_tests && has_word(code, "println!") {
            wrong("println! is for the command, xtask and tests: use tracing".to_owned());
        }
        for word in NOT_IN_THE_MACHINE {
            if is_machine && has_word(code, word) {
                wrong(format!("the turn machine is pure and knows no {word}: make it an input or a command"));
            }
        }
    }
    problems
}

/// Whether the file is only for tests, or shows how to use us.
fn is_for_tests(path: &str) -> bool {
    let mut folders = path.split('/');
    let file = folders.next_back().unwrap_or_default();
    file == "tests.rs" || folders.any(|folder| ["tests", "Tests", "benches", "examples"].contains(&folder))
}

/// Whether `word` stands in `code` on its own and not as the part of a longer name.
fn has_word(code: &str, word: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        let ends_as_name = word.ends_with(is_part);
        !(before.is_some_and(is_part) || ends_as_name && after.is_some_and(is_part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clean_file_passes() {
        let source = "//! Says nothing of todo! in code.\nfn main() { let operand = 1; }\n";
        assert!(file("core/engine/src/turn/machine.rs", source).is_empty());
    }

    #[test]
    fn words_that_stand_nowhere_are_found_with_their_line() {
        let problems = file("core/store/src/log.rs", "fn a() {\n    todo!()\n}\n");
        assert_eq!(problems.len(), 1);
        assert!(problems[0].starts_with("core/store/src/log.rs:2: todo! stands nowhere"));
        for source in ["dbg!(x)", "unimplemented!()", "#[ignore = \"slow\"]", "mpsc::unbounded_channel()"] {
            assert_eq!(file("tests/e2e/main.rs", source).len(), 1, "{source}");
        }
    }

    #[test]
    fn printing_is_for_the_terminal_and_tests() {
        let source = "fn a() { println!(); }";
        assert_eq!(file("core/store/src/log.rs", source).len(), 1);
        for path in [
            "core/cli/src/main.rs",
            "xtask/src/main.rs",
            "tests/bench/src/main.rs",
            "core/store/src/log/tests.rs",
        ] {
            assert!(file(path, source).is_empty(), "{path}");
        }
        assert!(
            file("core/store/src/log.rs", "#[cfg(test)]\nmod tests { fn a() { println!(); } }").is_empty()
        );
        assert!(file("core/store/src/log.rs", "fn a() { eprintln!(); }").is_empty(), "left to clippy");
    }

    #[test]
    fn the_turn_machine_is_pure() {
        for source in ["use tokio::sync;", "use std::time::Instant;", "SystemTime::now()", "rand::random()"] {
            assert_eq!(file("core/engine/src/turn/machine.rs", source).len(), 1, "{source}");
            assert!(file("core/engine/src/driver/mod.rs", source).is_empty(), "{source}");
        }
    }

    #[test]
    fn files_are_short_unless_they_are_tests_or_generated() {
        let long = "\n".repeat(LONGEST + 1);
        assert_eq!(file("bindings-node/ts/index.ts", &long).len(), 1);
        assert!(file("core/store/tests/log.rs", &long).is_empty());
        assert!(file("bindings-node/ts/wire.ts", &format!("// @generated by xtask\n{long}")).is_empty());
    }

    #[test]
    fn a_word_is_not_found_in_a_longer_name() {
        assert!(has_word("rand::random()", "rand"));
        assert!(!has_word("operand", "rand"));
        assert!(!has_word("randomness", "rand"));
    }
}
