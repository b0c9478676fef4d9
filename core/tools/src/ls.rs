//! The tool `ls`: what is in a directory.
//!
//! Neighbours: context, error, file_kind, input, output, tool.

use std::collections::BinaryHeap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io;
use std::path::Path;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::context::ToolContext;
use crate::error::{ToolError, is_link_loop};
use crate::file_kind::FileKind;
use crate::input::{decode_input, input_schema, whole_number};
use crate::output::{OUTPUT_BYTES_MAX, ToolOutput};
use crate::tool::{Effect, Tool, ToolSpec};

const NAME: &str = "ls";

/// How many entries one call shows when the model sets no limit. The others are counted.
pub const LS_ENTRIES_DEFAULT: usize = 500;

/// How many entries one call shows at most, if they fit into [`OUTPUT_BYTES_MAX`]. The others are counted.
pub const LS_ENTRIES_MAX: usize = 2_000;

/// After how many entries the run looks whether it was cancelled.
const ENTRIES_BETWEEN_LOOKS: usize = 1_024;

/// The input of `ls`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct LsInput {
    /// The directory, absolute or relative to the working directory. Default: the working directory.
    #[serde(default)]
    #[schemars(with = "String")]
    pub path: Option<String>,
    /// How many entries to show, at most 2000. Default: 500.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "u64")]
    pub limit: Option<u64>,
}

/// The tool `ls`.
///
/// One entry a line, sorted by the bytes of the name, hidden ones included. A directory ends in `/`; a
/// symbolic link shows its target and what that is; other special files say what they are. Bytes of a name
/// that are not UTF-8, and control characters, are shown as escapes.
///
/// # Limits
///
/// [`LS_ENTRIES_DEFAULT`], [`LS_ENTRIES_MAX`] and [`OUTPUT_BYTES_MAX`]; entries over them are counted.
/// Memory does not grow with the directory.
#[derive(Debug)]
pub struct Ls {
    spec: ToolSpec,
}

impl Ls {
    /// The tool.
    pub fn new() -> Self {
        let description = format!(
            "Lists a directory, sorted by name, hidden entries included. Directories end in /, links show \
             their target. Shows {LS_ENTRIES_DEFAULT} entries unless limit says otherwise, and counts the \
             others. Not recursive."
        );
        Self {
            spec: ToolSpec {
                name: NAME.to_owned(),
                description,
                input_schema: input_schema::<LsInput>(),
                effect: Effect::ReadOnly,
            },
        }
    }
}

impl Default for Ls {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Tool for Ls {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, input: Value, cx: ToolContext) -> Result<ToolOutput, ToolError> {
        let input: LsInput = decode_input(NAME, input)?;
        let name = input.path.filter(|path| !path.is_empty()).unwrap_or_else(|| ".".to_owned());
        if name.contains('\0') {
            return Err(ToolError::invalid(NAME, "path must name a directory"));
        }
        let limit = match input.limit {
            Some(0) => return Err(ToolError::invalid(NAME, "limit must be at least 1")),
            Some(limit) => usize::try_from(limit).unwrap_or(LS_ENTRIES_MAX).min(LS_ENTRIES_MAX),
            None => LS_ENTRIES_DEFAULT,
        };
        let path = cx.resolve(&name);
        cx.run_blocking(NAME, move |cancel| list(&name, &path, limit, cancel)).await.map(ToolOutput::ok)
    }
}

/// Lists `path`, which is `name` resolved.
fn list(name: &str, path: &Path, limit: usize, cancel: &CancellationToken) -> Result<String, ToolError> {
    let io = |source| ToolError::io(format!("list {name}"), source);
    let metadata = std::fs::metadata(path).map_err(io)?;
    if !metadata.is_dir() {
        return Err(ToolError::failed(match FileKind::from(metadata.file_type()) {
            FileKind::Regular => {
                format!("{name} is a file of {} bytes, not a directory; use read to see it", metadata.len())
            }
            kind => format!("{name} is a {kind}, not a directory"),
        }));
    }

    // Only the first names in order are kept, so that a directory of millions costs no memory.
    let mut first: BinaryHeap<OsString> = BinaryHeap::with_capacity(limit + 1);
    let mut total = 0_usize;
    for entry in std::fs::read_dir(path).map_err(io)? {
        first.push(entry.map_err(io)?.file_name());
        if first.len() > limit {
            first.pop();
        }
        total += 1;
        if total.is_multiple_of(ENTRIES_BETWEEN_LOOKS) && cancel.is_cancelled() {
            return Err(ToolError::cancelled());
        }
    }
    if total == 0 {
        return Ok("[the directory is empty]\n".to_owned());
    }

    let mut text = String::new();
    let mut shown = 0;
    for entry in first.into_sorted_vec() {
        if cancel.is_cancelled() {
            return Err(ToolError::cancelled());
        }
        let line = line(path, &entry);
        if text.len() + line.len() > OUTPUT_BYTES_MAX {
            break;
        }
        text.push_str(&line);
        shown += 1;
    }
    let left_out = total - shown;
    if left_out > 0 {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "[{shown} of {total} entries; {left_out} more are left out: raise limit (at most \
             {LS_ENTRIES_MAX}), or list a part of them with bash]"
        );
    }
    Ok(text)
}

/// One entry: its name, and what it is if it is not a regular file.
fn line(directory: &Path, entry: &OsStr) -> String {
    let path = directory.join(entry);
    let name = printable(entry);
    let Ok(metadata) = std::fs::symlink_metadata(&path) else {
        // It is gone again, or may not be looked at; its name is still true.
        return format!("{name}\n");
    };
    let kind = metadata.file_type();
    if kind.is_symlink() {
        let target = std::fs::read_link(&path).map(|target| printable(target.as_os_str()));
        let target = target.unwrap_or_else(|_| "?".to_owned());
        return format!("{name} -> {target}{}\n", link_mark(&path));
    }
    match FileKind::from(kind) {
        FileKind::Regular => format!("{name}\n"),
        FileKind::Directory => format!("{name}/\n"),
        kind => format!("{name} ({kind})\n"),
    }
}

/// What a link leads to.
fn link_mark(path: &Path) -> String {
    match std::fs::metadata(path) {
        Ok(metadata) => match FileKind::from(metadata.file_type()) {
            FileKind::Regular => String::new(),
            kind => format!(" ({kind})"),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => " (broken)".to_owned(),
        Err(error) if is_link_loop(&error) => " (a loop)".to_owned(),
        Err(_) => " (out of reach)".to_owned(),
    }
}

/// A name on one line: control characters and bytes that are not UTF-8 as escapes.
fn printable(name: &OsStr) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.as_encoded_bytes().utf8_chunks() {
        for character in chunk.valid().chars() {
            let breaks_line = matches!(character, '\u{2028}' | '\u{2029}');
            if character.is_control() || breaks_line {
                text.extend(character.escape_default());
            } else {
                text.push(character);
            }
        }
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(text, "\\x{byte:02X}");
        }
    }
    text
}
