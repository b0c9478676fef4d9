//! Fuzz targets: functions that take any bytes and panic when something does not hold.
//!
//! [`TARGETS`] names them, [`run`] feeds one of them with mutations of its corpus for a while. The tests of this package do
//! that for [`SECONDS`] each; `cargo run -p raddle-fuzz -- <target> --seconds 600` does it for longer. A target is a plain
//! `fn(&[u8])`, so a fuzzer that is guided by coverage can take it as it is.

#![expect(clippy::panic, clippy::expect_used, reason = "a target says what does not hold by failing")]

mod corpus;
mod cursors;
mod lines;
mod mutate;
mod params;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use mutate::Mutator;

/// How long a test runs its target; `RADDLE_FUZZ_SECONDS` asks for more. Three targets make a minute.
pub const SECONDS: u64 = 20;

/// A target by its name.
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// What it is fed with at first.
    corpus: fn() -> Vec<Vec<u8>>,
    /// What must hold for all bytes.
    check: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "lines", corpus: corpus::lines, check: lines::check },
    Target { name: "cursors", corpus: cursors::corpus, check: cursors::check },
    Target { name: "params", corpus: corpus::params, check: params::check },
];

/// What a run came to.
#[derive(Debug)]
pub struct Outcome {
    /// Inputs tried.
    pub inputs: u64,
    /// The seed.
    pub seed: u64,
    /// The input that does not hold, and what was said about it.
    pub failure: Option<(Vec<u8>, String)>,
}

/// Feeds a target until the time is over or something does not hold.
pub fn run(target: &Target, time: Duration, seed: u64) -> Outcome {
    let corpus = (target.corpus)();
    let mut mutator = Mutator::new(seed, &corpus);
    let end = Instant::now() + time;
    let mut inputs = 0;
    // The corpus itself first.
    for input in &corpus {
        inputs += 1;
        if let Err(said) = holds(target, input) {
            return Outcome { inputs, seed, failure: Some((input.clone(), said)) };
        }
    }
    while Instant::now() < end {
        for _ in 0..64 {
            let input = mutator.next();
            inputs += 1;
            if let Err(said) = holds(target, &input) {
                return Outcome { inputs, seed, failure: Some((input, said)) };
            }
        }
    }
    Outcome { inputs, seed, failure: None }
}

/// Whether a target holds for one input.
///
/// # Errors
/// What it said.
pub fn holds(target: &Target, input: &[u8]) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| (target.check)(input))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
    })
}
