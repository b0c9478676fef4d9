//! Counting tests by what their runners print.

use std::fmt;
use std::iter::Sum;
use std::ops::Add;

/// How many passed and how many failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) passed: u64,
    pub(super) failed: u64,
}

impl Tally {
    /// One check.
    pub(super) fn one(passed: bool) -> Self {
        Self { passed: passed.into(), failed: (!passed).into() }
    }
}

impl Add for Tally {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { passed: self.passed + other.passed, failed: self.failed + other.failed }
    }
}

impl Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(tallies: I) -> Self {
        tallies.fold(Self::default(), Add::add)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

/// Who ran the tests, and so how to read what it printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Runner {
    /// A check that passes or fails as a whole.
    Check,
    /// `cargo test`: one line of results for each program, and one for each crate's doc tests.
    Cargo,
    /// `node --test --test-reporter=tap`: one line a number.
    Node,
}

impl Runner {
    /// What one line of the output adds.
    pub(super) fn read(self, line: &str) -> Tally {
        match self {
            Self::Check => Tally::default(),
            Self::Cargo => match line.strip_prefix("test result: ") {
                None => Tally::default(),
                Some(result) => {
                    Tally { passed: before(result, " passed;"), failed: before(result, " failed;") }
                }
            },
            Self::Node => Tally {
                passed: after(line, "# pass "),
                failed: after(line, "# fail ") + after(line, "# cancelled "),
            },
        }
    }

    /// Corrects the count by how the command ended, and says what the count alone would hide.
    pub(super) fn judge(self, counted: &mut Tally, success: bool) -> Option<&'static str> {
        if self == Self::Check {
            *counted = Tally::one(success);
            return None;
        }
        if success && counted.passed + counted.failed == 0 {
            counted.failed = 1;
            return Some("no test ran, which counts as one that failed");
        }
        // It did not build, or a test took its program down before the results were printed.
        if !success && counted.failed == 0 {
            counted.failed = 1;
            return Some("the command failed apart from its tests, which counts as one that failed");
        }
        None
    }
}

/// The number that stands before `mark`.
fn before(line: &str, mark: &str) -> u64 {
    let Some((head, _)) = line.split_once(mark) else { return 0 };
    head.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The number that is the rest of the line after `mark`.
fn after(line: &str, mark: &str) -> u64 {
    line.strip_prefix(mark).and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(runner: Runner, output: &str) -> Tally {
        output.lines().map(|line| runner.read(line)).sum()
    }

    #[test]
    fn the_results_of_all_programs_are_summed() {
        let output = "running 2 tests\n\
            test a ... ok\n\
            test result: ok. 13 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\
            test result: FAILED. 4 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\
            no test result: ok. 9 passed; 9 failed;\n";
        assert_eq!(count(Runner::Cargo, output), Tally { passed: 17, failed: 2 });
    }

    #[test]
    fn node_counts_a_cancelled_test_as_failed() {
        let output = "TAP version 13\nok 1 - a\n# tests 5\n# pass 3\n# fail 1\n# cancelled 1\n# skipped 0\n";
        assert_eq!(count(Runner::Node, output), Tally { passed: 3, failed: 2 });
    }

    #[test]
    fn a_check_is_one() {
        let mut counted = Runner::Check.read("test result: ok. 13 passed; 0 failed;");
        assert_eq!(Runner::Check.judge(&mut counted, true), None);
        assert_eq!(counted, Tally { passed: 1, failed: 0 });
        Runner::Check.judge(&mut counted, false);
        assert_eq!(counted, Tally { passed: 0, failed: 1 });
    }

    #[test]
    fn a_failure_outside_the_tests_counts() {
        let mut counted = Tally { passed: 3, failed: 0 };
        assert!(Runner::Cargo.judge(&mut counted, false).is_some());
        assert_eq!(counted, Tally { passed: 3, failed: 1 });
        let mut known = Tally { passed: 3, failed: 2 };
        assert!(Runner::Cargo.judge(&mut known, false).is_none());
        assert_eq!(known, Tally { passed: 3, failed: 2 });
    }

    #[test]
    fn a_run_without_tests_fails() {
        let mut counted = Tally::default();
        assert!(Runner::Node.judge(&mut counted, true).is_some());
        assert_eq!(counted.failed, 1);
    }

    #[test]
    fn the_sum_is_spelled_as_ci_reads_it() {
        assert_eq!(Tally { passed: 12, failed: 0 }.to_string(), "12 passed, 0 failed");
    }
}
