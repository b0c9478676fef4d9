//! The built-in tools, each through the trait, on real files and real processes.

#![expect(clippy::expect_used, clippy::panic, reason = "helpers of tests fail as tests do, by panicking")]

mod support;

mod ls;
mod read;
#[cfg(unix)]
mod shell;
#[cfg(unix)]
mod strays;
mod toolbox;
