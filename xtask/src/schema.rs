//! `cargo xtask schema`: writes the protocol's schema from its types.

use std::process::ExitCode;

use crate::workspace::Workspace;

/// Writes `docs/protocol.schema.json`. A test of the protocol fails while the committed one is another.
pub(crate) fn run(workspace: &Workspace) -> Result<ExitCode, String> {
    let path = workspace.root().join("docs/protocol.schema.json");
    std::fs::write(&path, raddle_protocol::schema::protocol_schema_text())
        .map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
    println!("wrote docs/protocol.schema.json");
    Ok(ExitCode::SUCCESS)
}
