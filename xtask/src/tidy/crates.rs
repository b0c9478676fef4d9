//! Imports go downwards: a crate may depend on crates of lower layers only.

use serde_json::Value;

use crate::workspace::Workspace;

/// Our crates with their layers, as the design's table of crates has them. Crates of one layer do not see each
/// other.
const LAYERS: &[(&str, u8)] = &[
    // The fakes import nothing of ours, so that the tests of any crate may use them.
    ("raddle-fakes", 0),
    ("raddle-protocol", 1),
    ("raddle-store", 2),
    ("raddle-models", 2),
    ("raddle-tools", 2),
    ("xtask", 2),
    ("raddle-engine", 3),
    ("raddle-server", 4),
    ("raddle", 5),
    ("raddle-ffi", 6),
    ("raddle-cli", 6),
    ("raddle-example", 6),
    ("raddle-node", 6),
    ("raddle-tests", TESTS),
    ("raddle-bench", TESTS),
    ("raddle-fuzz", TESTS),
];

/// The crates that look at all the others and that nothing imports.
const TESTS: u8 = 9;

/// What only tests may import: nothing of it may be in what a user links.
const FAKES: &str = "raddle-fakes";

pub(super) fn check(workspace: &Workspace) -> Result<Vec<String>, String> {
    let output = workspace
        .cargo(&["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .map_err(|error| format!("cannot run `cargo metadata`: {error}"))?;
    if !output.status.success() {
        return Err(format!("`cargo metadata` failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let metadata = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("`cargo metadata` printed no JSON: {error}"))?;
    Ok(problems(&metadata))
}

fn problems(metadata: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    for package in list(&metadata["packages"]) {
        let name = text(&package["name"]);
        let Some(layer) = layer(name) else {
            problems.push(format!(
                "{name}: in no layer; give it one in xtask/src/tidy/crates.rs and in the design"
            ));
            continue;
        };
        for dependency in list(&package["dependencies"]) {
            // Only a dependency with a path is one of ours.
            if dependency["path"].is_string() {
                let import = text(&dependency["name"]);
                let in_tests = dependency["kind"] == "dev";
                problems.extend(problem(name, layer, import, in_tests));
            }
        }
    }
    problems
}

fn problem(name: &str, at: u8, import: &str, in_tests: bool) -> Option<String> {
    if layer(import).is_none_or(|below| below >= at) {
        return Some(format!(
            "{name}: imports {import}, which is not below it; imports go downwards, see the design's table"
        ));
    }
    let links_fakes = import == FAKES && !in_tests && at != TESTS;
    links_fakes.then(|| format!("{name}: imports {import}, which is for tests: make it a dev-dependency"))
}

fn layer(name: &str) -> Option<u8> {
    LAYERS.iter().find(|(known, _)| *known == name).map(|(_, layer)| *layer)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with(name: &str, import: &str, kind: Option<&str>) -> Vec<String> {
        let dependency = json!({ "name": import, "kind": kind, "path": "somewhere" });
        problems(&json!({ "packages": [{ "name": name, "dependencies": [dependency] }] }))
    }

    #[test]
    fn downwards_is_fine() {
        assert!(with("raddle-engine", "raddle-store", None).is_empty());
        assert!(with("raddle", "raddle-protocol", None).is_empty());
        assert!(with("raddle-tests", "raddle", None).is_empty());
    }

    #[test]
    fn upwards_and_sideways_are_refused() {
        assert!(with("raddle-store", "raddle-engine", None)[0].contains("not below it"));
        assert!(with("raddle-store", "raddle-models", None)[0].contains("not below it"));
        assert!(with("raddle-protocol", "raddle", Some("dev"))[0].contains("not below it"));
    }

    #[test]
    fn fakes_are_for_tests() {
        assert!(with("raddle-models", "raddle-fakes", Some("dev")).is_empty());
        assert!(with("raddle-tests", "raddle-fakes", None).is_empty());
        assert!(with("raddle-models", "raddle-fakes", None)[0].contains("dev-dependency"));
        assert!(with("raddle-protocol", "raddle-fakes", Some("dev")).is_empty());
        assert!(with("raddle-fakes", "raddle-protocol", None)[0].contains("not below it"));
        assert!(with("raddle-cli", "raddle-tests", Some("dev"))[0].contains("not below it"));
    }

    #[test]
    fn what_others_publish_is_none_of_our_business() {
        let dependency = json!({ "name": "tokio", "kind": null });
        let package = json!({ "name": "raddle-protocol", "dependencies": [dependency] });
        assert!(problems(&json!({ "packages": [package] })).is_empty());
    }

    #[test]
    fn a_new_crate_needs_a_layer() {
        let package = json!({ "name": "raddle-attic", "dependencies": [] });
        assert!(problems(&json!({ "packages": [package] }))[0].contains("in no layer"));
    }
}
