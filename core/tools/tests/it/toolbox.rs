//! The box, and what models are told of the tools.

use std::sync::Arc;

use async_trait::async_trait;
use raddle_protocol::item::{FileChange, FileChangeKind};
use raddle_tools::{Effect, Tool, ToolContext, ToolError, ToolOutput, ToolSpec, Toolbox};
use serde_json::{Value, json};

use crate::support::World;

struct Fake(ToolSpec);

#[async_trait]
impl Tool for Fake {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn run(&self, input: Value, _cx: ToolContext) -> Result<ToolOutput, ToolError> {
        Ok(ToolOutput::ok(input.to_string()))
    }
}

fn fake(name: &str) -> Arc<Fake> {
    Arc::new(Fake(ToolSpec {
        name: name.to_owned(),
        description: "A fake.".to_owned(),
        input_schema: json!({"type": "object"}),
        effect: Effect::Mutating,
    }))
}

fn names(tools: &Toolbox) -> Vec<String> {
    tools.specs().into_iter().map(|spec| spec.name).collect()
}

#[tokio::test]
async fn tools_are_added_and_replaced_by_name_in_a_stable_order() {
    let tools = Toolbox::new().with(fake("zeta")).with(fake("alpha"));
    assert_eq!(names(&tools), ["alpha", "zeta"]);
    let tools = Toolbox::builtin().with(fake("read")).with(fake("alpha"));
    assert_eq!(names(&tools).first().map(String::as_str), Some("alpha"));
    let read = tools.get("read").expect("there");
    let output = read.run(json!(1), ToolContext::new("/")).await.expect("runs");
    assert_eq!(output, ToolOutput::ok("1"));
    assert!(tools.get("Read").is_none());
}

#[test]
fn an_output_names_file_changes_only_when_told() {
    assert!(ToolOutput::ok("x").file_changes.is_empty());
    assert!(ToolOutput::error("x").file_changes.is_empty());
    let change = |path: &str| FileChange { path: path.to_owned(), kind: FileChangeKind::Add, diff: None };
    let output = ToolOutput::ok("x").with_file_changes(vec![change("a")]);
    assert_eq!((output.text.as_str(), output.is_error), ("x", false));
    assert_eq!(output.file_changes, [change("a")]);
    assert_eq!(output.with_file_changes(vec![change("b")]).file_changes, [change("b")]);
}

#[cfg(unix)]
#[test]
fn the_builtin_tools_have_these_effects_and_schemas() {
    let specs = Toolbox::builtin().specs();
    let effects: Vec<_> = specs.iter().map(|spec| (spec.name.as_str(), spec.effect)).collect();
    assert_eq!(effects, [("bash", Effect::Mutating), ("ls", Effect::ReadOnly), ("read", Effect::ReadOnly)]);
    for spec in &specs {
        let schema = &spec.input_schema;
        let properties: Vec<_> = schema["properties"].as_object().expect("an object").iter().collect();
        let shape: Vec<String> =
            properties.iter().map(|(name, schema)| format!("{name}: {}", schema["type"])).collect();
        let (expected, required) = match spec.name.as_str() {
            "bash" => (vec!["command: \"string\"", "timeoutMs: \"integer\""], json!(["command"])),
            "ls" => (vec!["limit: \"integer\"", "path: \"string\""], Value::Null),
            _ => (vec!["limit: \"integer\"", "offset: \"integer\"", "path: \"string\""], json!(["path"])),
        };
        let mut shape: Vec<&str> = shape.iter().map(String::as_str).collect();
        shape.sort_unstable();
        assert_eq!(shape, expected);
        assert_eq!(schema["required"], required);
        assert_eq!(schema["type"], "object");
        assert!(properties.iter().all(|(_, schema)| schema["description"].is_string()), "{schema}");
        assert!(!schema.to_string().contains("null"), "{schema}");
    }
}

#[tokio::test]
async fn no_input_makes_a_tool_panic() {
    let world = World::new();
    let odd = [json!(null), json!(true), json!(-1), json!(""), json!("{"), json!([[]]), json!({})];
    for name in names(&Toolbox::builtin()) {
        for value in &odd {
            // Whether it is taken does not matter here: `run` fails the test if the tool panics or hangs.
            let _ = world.run(&name, value.clone()).await;
            for field in ["path", "offset", "limit", "command", "timeoutMs"] {
                let _ = world.run(&name, json!({"path": ".", "command": "true", field: value})).await;
            }
        }
    }
}
