//! Crash tests: a host in a process of its own, real signals, real disks.
//!
//! The host is `victim.rs`; [`host`] drives it, [`witness`] holds what it showed against what is stored.
//!
//! `RADDLE_CRASH_SEED=N` repeats what chance decided in a failed run, as far as the speed of the machine lets it.
//! `RADDLE_CRASH_LOG=debug` lets victims log to standard error. The tests of full and closed disks mount small file
//! systems in a name space of their own; where they may not, they fail and say what they need.

#![cfg(unix)]
#![expect(
    clippy::panic,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a panic is how a test fails, and what is printed is the seed"
)]

mod calls;
mod dice;
#[cfg(target_os = "linux")]
mod disks;
mod host;
mod kills;
mod life;
#[cfg(target_os = "linux")]
mod mounts;
mod ownership;
mod plan;
mod queue;
mod reopened;
mod threads;
mod witness;
