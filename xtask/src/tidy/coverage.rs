//! The tests that the table of the protocol names are there: a table that drifts says less than none.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::workspace::Workspace;

const TABLE: &str = "docs/protocol-coverage.md";

/// What a name that the table cuts short ends with.
const CUT: char = '…';

pub(super) fn check(workspace: &Workspace) -> Result<Vec<String>, String> {
    let table = fs::read_to_string(workspace.root().join(TABLE))
        .map_err(|error| format!("{TABLE} cannot be read: {error}"))?;
    let mut known = BTreeSet::new();
    for folder in ["core", "tests"] {
        functions(&workspace.root().join(folder), &mut known)
            .map_err(|error| format!("{folder} cannot be read: {error}"))?;
    }
    Ok(problems(&table, &known))
}

fn problems(table: &str, known: &BTreeSet<String>) -> Vec<String> {
    let rows = table.lines().filter(|line| line.starts_with("| "));
    // The last column says which tests show it.
    let shown = rows.filter_map(|row| row.trim_end().trim_end_matches('|').rsplit_once('|'));
    let named = shown.flat_map(|(_, tests)| tests.split([' ', ',', ';', '(', ')', '`']));
    let names = named.map(|word| word.rsplit_once("::").map_or(word, |(_, name)| name));
    let is_name = |name: &&str| {
        name.contains('_')
            && name
                .trim_end_matches(CUT)
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    names
        .filter(is_name)
        .filter(|name| match name.strip_suffix(CUT) {
            Some(begin) => !known.iter().any(|known| known.starts_with(begin)),
            None => !known.contains(*name),
        })
        .map(|name| format!("{TABLE} names a test `{name}`, and there is none"))
        .collect()
}

/// The names of all functions in the Rust files below a folder.
fn functions(folder: &Path, known: &mut BTreeSet<String>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() && name != "node_modules" && name != "target" {
            functions(&path, known)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path)?;
            for (at, _) in text.match_indices("fn ") {
                let rest = &text[at + 3..];
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
                known.insert(rest[..end].to_owned());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_is_not_there_is_a_problem() {
        let known = BTreeSet::from(["a_turn_ends".to_owned(), "r22_odd_lines_are_read".to_owned()]);
        let fine = "| stated | `kept_in.rs` | e2e/x::a_turn_ends, stdio/y::r22_odd_lines…; golden files |";
        assert_eq!(problems(fine, &known), Vec::<String>::new());
        let stale = "| stated | `kept_in.rs` | e2e/x::a_turn_begins |";
        assert_eq!(problems(stale, &known).len(), 1);
    }
}
