//! Measures Raddle against the budgets of the design: one flat object of numbers, and a table for people.
//!
//! The provider is a process of its own, so that its work is not counted as ours. Memory is measured in fresh child
//! processes. Shared machines are noisy: compare ratios within one run, not single figures between runs.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a bench prints what it measured")]

mod host;
mod memory;
mod open;
mod report;
mod scale;
mod stream;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Any failure ends the bench; it is shown as it is.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Parser)]
#[command(name = "raddle-bench")]
struct Arguments {
    /// The fake provider's program.
    #[arg(long)]
    provider: Option<PathBuf>,
    /// The `raddle` command, to be measured as a child process.
    #[arg(long)]
    server: Option<PathBuf>,
    /// Write the figures into this file, as one flat JSON object.
    #[arg(long)]
    json: Option<PathBuf>,
    /// How often each stream is measured; the median counts.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Measure only this part, to look at it with a profiler.
    #[arg(long)]
    only: Option<Only>,
    #[command(subcommand)]
    part: Option<Part>,
}

/// The parts of the bench.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Only {
    Open,
    Flood,
    Paced,
    Crowd,
    Memory,
    Scale,
}

/// What the bench runs in processes of its own.
#[derive(Subcommand)]
#[command(rename_all = "kebab-case")]
enum Part {
    /// Prints the resident memory of a bare tokio process, in bytes.
    #[command(hide = true)]
    Bare,
    /// Prints the resident memory of a process with an open engine, then with so many loaded threads, in bytes.
    #[command(hide = true)]
    Threads {
        /// How many.
        threads: usize,
    },
    /// Prints the resident memory of a process that opens a large home, reads its long threads, and leaves them, in bytes.
    #[command(hide = true)]
    Scale {
        /// Where it lies.
        home: PathBuf,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.part {
        Some(Part::Bare) => memory::print_bare(),
        Some(Part::Threads { threads }) => memory::print_with_threads(threads),
        Some(Part::Scale { ref home }) => scale::print_memory(home),
        None => run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let provider = arguments.provider.as_deref().ok_or("run this through `cargo xtask bench`")?;
    let provider = host::ProviderProcess::start(provider)?;
    let mut report = report::Report::default();
    let wanted = |part: Only| arguments.only.is_none_or(|only| only == part);
    if wanted(Only::Open) {
        open::measure(&mut report, arguments.server.as_deref())?;
    }
    stream::measure(&mut report, provider.port(), arguments.runs, wanted)?;
    if wanted(Only::Memory) {
        memory::measure(&mut report)?;
    }
    if wanted(Only::Scale) {
        scale::measure(&mut report)?;
    }
    report.print();
    match &arguments.json {
        Some(path) => report.write(path),
        None => Ok(()),
    }
}
