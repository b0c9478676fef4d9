//! Each target for a while, as part of the tests.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test says what it needs by failing without it"
)]

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use raddle_fuzz::{SECONDS, TARGETS, run};

fn fuzz(name: &str) {
    let seconds = std::env::var("RADDLE_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let outcome =
        run(target, Duration::from_secs(seconds.unwrap_or(SECONDS)), RandomState::new().hash_one(name));
    println!("{name}: {} inputs, seed {}", outcome.inputs, outcome.seed);
    if let Some((input, said)) = outcome.failure {
        panic!("{name}: {said}\ninput: {:?}", String::from_utf8_lossy(&input));
    }
    assert!(outcome.inputs > 1_000, "only {} inputs in the time", outcome.inputs);
}

#[test]
fn any_stream_of_lines() {
    fuzz("lines");
}

#[test]
fn any_cursor() {
    fuzz("cursors");
}

#[test]
fn any_params_of_any_method() {
    fuzz("params");
}
