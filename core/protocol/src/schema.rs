//! JSON Schema of every message, from the Rust types.
//!
//! Neighbours: error, methods.

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::error::{ErrorCode, RpcError, StorageReason};
use crate::methods::{Audience, Direction, METHODS, Scope, schemas};

/// The whole protocol as one JSON Schema document of draft 2020-12: `$defs` has every type, `methods` every row
/// of the table with its direction, params, result and errors.
pub fn protocol_schema() -> Value {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let rows = schemas(&mut generator);
    let mut methods = Map::new();
    for (row, schema) in METHODS.iter().zip(rows) {
        debug_assert_eq!(row.name, schema.name);
        let (direction, detail) = match row.direction {
            Direction::ClientRequest(scope) => ("clientRequest", Some(("scope", scope_word(scope)))),
            Direction::ServerRequest => ("serverRequest", None),
            Direction::ClientNotification => ("clientNotification", None),
            Direction::ServerNotification(audience) => {
                ("serverNotification", Some(("audience", audience_word(audience))))
            }
        };
        let mut entry = json!({
            "description": row.doc.trim(),
            "direction": direction,
            "params": schema.params,
        });
        if let Some((key, word)) = detail {
            entry[key] = word.into();
        }
        if let Some(result) = schema.result {
            entry["result"] = result.into();
        }
        if matches!(row.direction, Direction::ClientRequest(_)) {
            entry["errors"] = row.errors.iter().map(ErrorCode::as_str).collect();
        }
        methods.insert(row.name.to_owned(), entry);
    }
    let error = generator.subschema_for::<RpcError>();
    let _ = generator.subschema_for::<StorageReason>();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Raddle's protocol",
        "commonErrors": [
            ErrorCode::NotInitialized.as_str(),
            ErrorCode::InvalidParams.as_str(),
            ErrorCode::ShuttingDown.as_str(),
            ErrorCode::Internal.as_str(),
        ],
        "error": error,
        "methods": methods,
        "$defs": definitions(&mut generator),
    })
}

/// [`protocol_schema`] as the text of `docs/protocol.schema.json`.
pub fn protocol_schema_text() -> String {
    format!("{:#}\n", protocol_schema())
}

fn definitions(generator: &mut SchemaGenerator) -> Value {
    Value::Object(generator.take_definitions(true))
}

fn scope_word(scope: Scope) -> &'static str {
    match scope {
        Scope::Connection => "connection",
        Scope::Read => "read",
        Scope::Thread => "thread",
    }
}

fn audience_word(audience: Audience) -> &'static str {
    match audience {
        Audience::Subscribers => "subscribers",
        Audience::Everyone => "everyone",
        Audience::Connection => "connection",
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_committed_schema_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.schema.json");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == super::protocol_schema_text(),
            "docs/protocol.schema.json is stale: run `cargo xtask schema` and commit it"
        );
    }
}
