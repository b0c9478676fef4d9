//! File systems for a test alone: mounts in a name space that ends with the process, whatever becomes of the test.
//!
//! Neighbours: none.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Set in the process that has mounts of its own.
const INSIDE: &str = "RADDLE_CRASH_MOUNTS";

/// The two ways to such a name space: for root, and for anybody where the system lets anybody be root of his own.
const WAYS: [&[&str]; 2] = [&["--mount"], &["--user", "--map-root-user", "--mount"]];

/// Whether this process may mount. If not, runs the test of that name again in one that may, and there it is done.
///
/// # Panics
/// When the test fails there; and when the system lets this user have no mounts, for then nothing was tested.
pub(crate) fn has_own_mounts(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let works = |way: &&&[&str]| {
        let tried = Command::new("unshare").args(**way).arg("true").stderr(Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    };
    let Some(way) = WAYS.iter().find(works) else {
        panic!(
            "`{test}` mounts small file systems. Run it as root (in a container: with CAP_SYS_ADMIN), or where users may \
             make name spaces, with `unshare` and `mount` of util-linux in the PATH"
        );
    };
    let itself = std::env::current_exe().expect("this program has a path");
    let status = Command::new("unshare")
        .args(*way)
        .arg(itself)
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .status()
        .expect("unshare runs");
    assert!(status.success(), "`{test}` failed in its own name space: {status}");
    false
}

/// A file system in memory, taken away when dropped.
pub(crate) struct Disk {
    at: PathBuf,
}

impl Disk {
    /// Mounts one of `bytes` at `at`.
    pub(crate) fn mount(at: &Path, bytes: u64) -> Self {
        std::fs::create_dir_all(at).expect("a directory");
        let disk = Self { at: at.to_owned() };
        run("mount", &["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"], at);
        disk
    }

    /// Makes it read-only.
    pub(crate) fn write_protect(&self) {
        run("mount", &["-o", "remount,ro"], &self.at);
    }

    /// Makes it writable again.
    pub(crate) fn allow_writing(&self) {
        run("mount", &["-o", "remount,rw"], &self.at);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily, for a process that is still dying may use it. The name space's end takes what is left.
        let _ = Command::new("umount").arg("--lazy").arg(&self.at).status();
    }
}

fn run(program: &str, arguments: &[&str], at: &Path) {
    let status = Command::new(program).args(arguments).arg(at).status().expect("the program runs");
    assert!(status.success(), "{program} {arguments:?} {}: {status}", at.display());
}
