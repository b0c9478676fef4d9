//! The command that tests run as a process of its own.
//!
//! Neighbours: none.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::SystemTime;

/// The `raddle` command, built from the sources as they are now.
///
/// # Panics
/// When it does not build.
pub fn raddle_binary() -> &'static Path {
    &BINARY
}

static BINARY: LazyLock<PathBuf> = LazyLock::new(|| {
    // A test is `<target>/<profile>/deps/<name>-<hash>`.
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).expect("a test lies in a directory of its profile");
    let binary = profile.join(format!("raddle{}", std::env::consts::EXE_SUFFIX));
    if !is_fresh(&binary) {
        build(profile);
    }
    binary
});

/// Whether the binary is there and no source that it is made of has changed since. Cargo lists those beside it.
fn is_fresh(binary: &Path) -> bool {
    let changed = |path: &Path| -> Option<SystemTime> { fs::metadata(path).ok()?.modified().ok() };
    let Some(built) = changed(binary) else { return false };
    let Ok(list) = fs::read_to_string(binary.with_extension("d")) else { return false };
    let Some((_, sources)) = list.trim_end().split_once(": ") else { return false };
    // In the list, a space within a path stands behind a backslash.
    sources.replace("\\ ", "\0").split(' ').all(|source| {
        let source = source.replace('\0', " ");
        changed(Path::new(&source)).is_some_and(|changed| changed <= built)
    })
}

fn build(profile: &Path) {
    let name = match profile.file_name().and_then(|name| name.to_str()) {
        Some("debug") => "dev",
        Some(name) => name,
        None => panic!("{} is no directory of a profile", profile.display()),
    };
    let target = profile.parent().expect("a profile lies in a target directory");
    let status = std::process::Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", "raddle-cli", "--profile", name, "--target-dir"])
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("Cargo can be run");
    assert!(status.success(), "the `raddle` command did not build; Cargo says why above");
}
