//! The command under test: run in a machine that has nothing, and what it printed.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::process::Command;

/// How long a demo may take at all. Nothing takes this long in a test that passes.
const RUN_MAX: Duration = Duration::from_secs(150);

/// A machine for one demo: an empty home, an empty place for temporary files, and a project.
pub(crate) struct Machine {
    home: TempDir,
    temporary: TempDir,
    project: TempDir,
}

/// A demo that has ended.
#[derive(Debug)]
pub(crate) struct Run {
    /// The exit code; nothing when a signal ended it.
    pub(crate) code: Option<i32>,
    /// All that it printed.
    pub(crate) text: String,
    /// How long it took.
    pub(crate) took: Duration,
}

impl Machine {
    /// A machine whose project holds a README and nothing else.
    pub(crate) fn new() -> Self {
        let directory = || tempfile::Builder::new().prefix("machine-").tempdir().unwrap();
        let machine = Self { home: directory(), temporary: directory(), project: directory() };
        fs::write(machine.project.path().join("README.md"), "# Warp and weft\n\nAbout weaving.\n").unwrap();
        machine
    }

    /// Runs the demo in the project with this environment and none of ours. It must leave nothing behind.
    pub(crate) async fn demo(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Run {
        let mut command = Command::new(raddle_tests::raddle_binary());
        command
            .arg("demo")
            .args(arguments)
            .current_dir(self.project.path())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.home.path())
            .env("TMPDIR", self.temporary.path())
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let start = Instant::now();
        let output = match tokio::time::timeout(RUN_MAX, command.output()).await {
            Ok(output) => output.unwrap(),
            Err(_) => panic!("the demo did not end within {} s", RUN_MAX.as_secs()),
        };
        let took = start.elapsed();
        let text = String::from_utf8(output.stdout).unwrap();
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert_eq!(complaints, "", "after\n{text}");
        for (what, directory) in [("home", &self.home), ("directory of temporary files", &self.temporary)] {
            let left: Vec<_> =
                fs::read_dir(directory.path()).unwrap().flatten().map(|entry| entry.path()).collect();
            assert!(left.is_empty(), "the demo left {left:?} in the {what}\n{text}");
        }
        Run { code: output.status.code(), text, took }
    }
}

impl Run {
    /// The last line.
    pub(crate) fn last(&self) -> &str {
        self.text.lines().last().unwrap_or_default()
    }

    /// What was printed under the heading with this number.
    pub(crate) fn step(&self, number: u32) -> &str {
        let from = |number: u32| self.text.find(&format!("\n{number}. "));
        let start = from(number).unwrap_or_else(|| panic!("there is no step {number} in\n{}", self.text));
        let end = from(number + 1).unwrap_or(self.text.len());
        &self.text[start..end]
    }

    /// Asserts that this stands somewhere, maybe over two lines.
    #[track_caller]
    pub(crate) fn has(&self, what: &str) {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words(&self.text).contains(&words(what)), "`{what}` is not in\n{}", self.text);
    }

    /// Asserts that the demo succeeded, and that its third turn was cut and lost nothing.
    #[track_caller]
    pub(crate) fn succeeded_with_a_cut(&self) {
        assert_eq!((self.last(), self.code), ("demo: ok", Some(0)), "\n{}", self.text);
        assert!(self.step(2).contains("was killed in mid-sentence"), "{}", self.text);
        #[cfg(unix)]
        assert!(self.step(2).contains("by signal 9"), "{}", self.text);
        let found = self.step(3);
        assert_eq!(found.matches("all there").count(), 2, "{found}");
        assert!(found.contains("cut reads `interrupted`, with all"), "{found}");
        assert!(!found.contains("with all 0 characters"), "{found}");
    }
}
