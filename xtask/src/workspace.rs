//! Where the repository is, and how to run Cargo in it.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What Cargo tells the program that it runs, but a Cargo that this program runs must not hear: build scripts
/// that watch these variables would run again, now for `cargo xtask test` and then for the next `cargo build`.
const OF_THIS_RUN: [&str; 3] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_PRIMARY_PACKAGE"];

/// The repository.
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// Finds the repository that this program was started from.
    pub(crate) fn find() -> Result<Self, String> {
        // Cargo says it at run time; asking for it at compile time would find the checkout that the program was
        // built in, which another one may share a target directory with.
        let manifest = env::var_os("CARGO_MANIFEST_DIR")
            .ok_or("start it as `cargo xtask`, which says where the repository is")?;
        let root = Path::new(&manifest).parent().ok_or("the xtask crate lies in no repository")?;
        Ok(Self { root: root.to_owned() })
    }

    /// The repository's top folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A command that runs in the repository.
    pub(crate) fn command(&self, program: impl Into<OsString>) -> Command {
        let mut command = Command::new(program.into());
        command.current_dir(&self.root);
        for (name, _) in env::vars_os() {
            if OF_THIS_RUN.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        command
    }

    /// The Cargo that runs this program, in the repository.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(arguments);
        command
    }
}

/// A command as one would type it.
pub(crate) fn spelled(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
