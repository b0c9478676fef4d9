//! The tool `read`: a range of lines of a text file.
//!
//! Neighbours: context, error, file_kind, input, output, tool.

mod kind;
mod window;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::context::ToolContext;
use crate::error::ToolError;
use crate::file_kind::FileKind;
use crate::input::{decode_input, input_schema, whole_number};
use crate::output::{OUTPUT_BYTES_MAX, ToolOutput};
use crate::tool::{Effect, Tool, ToolSpec};

use kind::{Content, sniff};
use window::{Trouble, Window};

const NAME: &str = "read";

/// How many lines one call shows at most; also the default of `limit`. The text says where to go on. Together
/// they hold at most [`OUTPUT_BYTES_MAX`] bytes.
pub const READ_LINES_MAX: u64 = 2_000;

/// How many bytes of one line are shown. The rest of the line is left out, on a character's border, and its
/// bytes are counted.
pub const READ_LINE_BYTES_MAX: usize = 2_000;

/// How many bytes of a file one call looks at before it gives up looking for the asked lines. The text then
/// says so and names other ways.
pub const READ_SCAN_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// How many bytes decide whether a file is text.
const SNIFF_BYTES: usize = 8 * 1024;

/// The input of `read`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct ReadInput {
    /// The file, absolute or relative to the working directory.
    pub path: String,
    /// The first line to show; the file's first line is 1. Default: 1.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "u64")]
    pub offset: Option<u64>,
    /// How many lines to show, at most 2000. Default: 2000.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "u64")]
    pub limit: Option<u64>,
}

/// The tool `read`.
///
/// Shows text as it is in the file, so that a part of it can be found again by an edit; notes of the tool are
/// in square brackets, after the shown lines or at the end of a line that was cut. Only regular files of UTF-8 text are shown. What else there is
/// gets an answer that says what it is: never half-decoded bytes, and pipes, sockets and devices are not even
/// opened. Of a file with a wrong byte far inside, lines before it can be read.
///
/// # Limits
///
/// [`READ_LINES_MAX`], [`READ_LINE_BYTES_MAX`], [`OUTPUT_BYTES_MAX`] and
/// [`READ_SCAN_BYTES_MAX`]. Memory does not grow with the file.
#[derive(Debug)]
pub struct Read {
    spec: ToolSpec,
}

impl Read {
    /// The tool.
    pub fn new() -> Self {
        let description = format!(
            "Reads a UTF-8 text file. Shows at most {READ_LINES_MAX} lines or {} KiB a call, and cuts lines \
             longer than {READ_LINE_BYTES_MAX} bytes; use offset and limit for the other parts of a long \
             file. Text is shown exactly as it is, without line numbers. For directories use ls.",
            OUTPUT_BYTES_MAX / 1024
        );
        Self {
            spec: ToolSpec {
                name: NAME.to_owned(),
                description,
                input_schema: input_schema::<ReadInput>(),
                effect: Effect::ReadOnly,
            },
        }
    }
}

impl Default for Read {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Tool for Read {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, input: Value, cx: ToolContext) -> Result<ToolOutput, ToolError> {
        let input: ReadInput = decode_input(NAME, input)?;
        if input.path.is_empty() || input.path.contains('\0') {
            return Err(ToolError::invalid(NAME, "path must name a file"));
        }
        if input.limit == Some(0) {
            return Err(ToolError::invalid(NAME, "limit must be at least 1"));
        }
        let path = cx.resolve(&input.path);
        cx.run_blocking(NAME, move |cancel| read(&input, &path, cancel)).await.map(ToolOutput::ok)
    }
}

/// Reads the lines of `path`, which is `input.path` resolved.
fn read(input: &ReadInput, path: &Path, cancel: &CancellationToken) -> Result<String, ToolError> {
    let name = &input.path;
    let io = |source| ToolError::io(format!("read {name}"), source);
    let mut file = open(name, path)?;
    let bytes = file.metadata().map_err(io)?.len();

    let mut head = Vec::with_capacity(SNIFF_BYTES);
    (&mut file).take(SNIFF_BYTES as u64).read_to_end(&mut head).map_err(io)?;
    if head.is_empty() {
        return Ok("[the file is empty]\n".to_owned());
    }
    let mark_bytes = match sniff(&head, head.len() < SNIFF_BYTES) {
        Content::Text { mark_bytes } => mark_bytes,
        Content::Encoded(encoding, iconv) => {
            return Err(ToolError::failed(format!(
                "{name} is text in {encoding} ({bytes} bytes), and read shows only UTF-8; convert it with \
                 iconv -f {iconv} -t UTF-8"
            )));
        }
        Content::Binary(what) => {
            return Err(ToolError::failed(format!("{name} is {what} ({bytes} bytes), not text")));
        }
        Content::NotUtf8 { byte, at } => {
            return Err(ToolError::failed(format!(
                "{name} is not valid UTF-8: byte 0x{byte:02X} at offset {at} ({bytes} bytes in all); it may be \
                 binary, or text in another encoding that iconv can convert"
            )));
        }
    };

    let first = input.offset.unwrap_or(1).max(1);
    let limit = input.limit.unwrap_or(READ_LINES_MAX).min(READ_LINES_MAX);
    let mut source = head[mark_bytes..].chain(file);
    let window = window::take(&mut source, first, limit, READ_SCAN_BYTES_MAX, || cancel.is_cancelled());
    match window {
        Ok(window) => answer(name, first, window),
        Err(Trouble::Cancelled) => Err(ToolError::cancelled()),
        Err(Trouble::Io(source)) => Err(io(source)),
        Err(Trouble::NotUtf8 { line, byte }) => Err(ToolError::failed(format!(
            "line {line} of {name} is not valid UTF-8: it holds the byte 0x{byte:02X} ({bytes} bytes in all); \
             other lines can be read with offset and limit, and iconv can convert the file"
        ))),
    }
}

/// Opens a regular file, and nothing else: opening a pipe would wait for a writer, and opening a device may
/// do something.
fn open(name: &str, path: &Path) -> Result<File, ToolError> {
    let io = |source| ToolError::io(format!("read {name}"), source);
    let check = |metadata: &std::fs::Metadata| match FileKind::from(metadata.file_type()) {
        FileKind::Regular => Ok(()),
        FileKind::Directory => {
            Err(ToolError::failed(format!("{name} is a directory; use ls to see what is in it")))
        }
        kind => Err(ToolError::failed(format!("{name} is a {kind}, not a regular file; it was not opened"))),
    };
    check(&std::fs::metadata(path).map_err(io)?)?;
    let file = open_without_waiting(path).map_err(io)?;
    // Another file may have taken the name meanwhile; this one is what will be read.
    check(&file.metadata().map_err(io)?)?;
    Ok(file)
}

#[cfg(unix)]
fn open_without_waiting(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;

    use rustix::fs::OFlags;

    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    std::fs::OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)
}

#[cfg(not(unix))]
fn open_without_waiting(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// The lines, and in brackets what else there is and how to get it.
fn answer(name: &str, first: u64, window: Window) -> Result<String, ToolError> {
    let Window { mut text, lines, lines_total, has_more, gave_up } = window;
    if lines == 0 {
        return Err(ToolError::failed(match lines_total {
            Some(total) => format!("{name} has {total} lines; offset {first} is past its end"),
            None => format!(
                "line {first} of {name} is not within its first {READ_SCAN_BYTES_MAX} bytes; use bash with \
                 tail or sed to get there"
            ),
        }));
    }
    if !has_more {
        return Ok(text);
    }
    let last = first - 1 + lines;
    let next = last + 1;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(&match lines_total {
        _ if gave_up => format!(
            "[lines {first} to {last}; looked no further than {READ_SCAN_BYTES_MAX} bytes; use bash with tail \
             or cut to see more]\n"
        ),
        Some(total) => {
            format!("[lines {first} to {last} of {total}; go on with offset {next}]\n")
        }
        None => format!("[lines {first} to {last}, and more follow; go on with offset {next}]\n"),
    });
    Ok(text)
}
