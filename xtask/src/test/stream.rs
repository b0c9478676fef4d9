//! Running a command so that a person sees its output at once, and the program reads it too.

use std::env;
use std::io::{self, IsTerminal as _, Read, Write};
use std::process::{Command, Stdio};

use crate::workspace::spelled;

/// Runs `command`, copies its standard output as it comes, and hands each line of it to `read`. Says whether the
/// command succeeded.
pub(super) fn stream(command: &mut Command, read: impl FnMut(&str)) -> Result<bool, String> {
    // Tests must not wait for an answer that nobody gives; standard error goes straight through.
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    if io::stdout().is_terminal() && env::var_os("CARGO_TERM_COLOR").is_none() {
        // Cargo sees a pipe; the person behind it has a terminal.
        command.env("CARGO_TERM_COLOR", "always");
    }
    let failed = |error: io::Error, command: &Command| format!("cannot run `{}`: {error}", spelled(command));
    let mut child = command.spawn().map_err(|error| failed(error, command))?;
    if let Some(output) = child.stdout.take() {
        copy(output, &mut io::stdout().lock(), read).map_err(|error| failed(error, command))?;
    }
    let status = child.wait().map_err(|error| failed(error, command))?;
    Ok(status.success())
}

/// Copies bytes as they come, so that a line shows before it is complete, and collects them into lines.
fn copy(mut from: impl Read, to: &mut impl Write, mut read: impl FnMut(&str)) -> io::Result<()> {
    let mut buffer = [0; 8192];
    let mut line = Vec::new();
    loop {
        let count = from.read(&mut buffer)?;
        let bytes = &buffer[..count];
        to.write_all(bytes)?;
        to.flush()?;
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(piece);
            if line.ends_with(b"\n") {
                read(String::from_utf8_lossy(&line).trim_end());
                line.clear();
            }
        }
        if count == 0 {
            if !line.is_empty() {
                read(&String::from_utf8_lossy(&line));
            }
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_and_bytes_are_kept() {
        let output = b"test a ... ok\r\n\xFF broken\n\nlast".as_slice();
        let mut copied = Vec::new();
        let mut lines = Vec::new();
        // One byte at a time, as an unlucky pipe may bring them.
        struct Slow<'a>(&'a [u8]);
        impl Read for Slow<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.0.read(&mut buffer[..1])
            }
        }
        copy(Slow(output), &mut copied, |line| lines.push(line.to_owned())).unwrap();
        assert_eq!(copied, output);
        assert_eq!(lines, ["test a ... ok", "\u{fffd} broken", "", "last"]);
    }
}
