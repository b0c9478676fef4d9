//! Runs one fuzz target: `cargo run -p raddle-fuzz -- lines --seconds 600`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command tells what it found")]

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use raddle_fuzz::{SECONDS, TARGETS, holds, run};

#[derive(Parser)]
#[command(name = "raddle-fuzz")]
struct Arguments {
    /// Which target: `lines`, `cursors` or `params`.
    target: String,
    /// For how long.
    #[arg(long, default_value_t = SECONDS)]
    seconds: u64,
    /// Where chance begins; by default it is chance itself.
    #[arg(long)]
    seed: Option<u64>,
    /// Try the bytes of this file instead, once.
    #[arg(long)]
    input: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let Some(target) = TARGETS.iter().find(|target| target.name == arguments.target) else {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("there is no target `{}`; the targets are: {}", arguments.target, names.join(", "));
        return ExitCode::FAILURE;
    };
    if let Some(path) = &arguments.input {
        let tried = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
        return match tried.and_then(|input| holds(target, &input)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(said) => {
                eprintln!("{said}");
                ExitCode::FAILURE
            }
        };
    }
    let seed = arguments.seed.unwrap_or_else(|| RandomState::new().hash_one("seed"));
    let outcome = run(target, Duration::from_secs(arguments.seconds), seed);
    println!("{}: {} inputs with --seed {}", target.name, outcome.inputs, outcome.seed);
    let Some((input, said)) = outcome.failure else { return ExitCode::SUCCESS };
    let path = std::env::temp_dir().join(format!("raddle-fuzz-{}-{seed}", target.name));
    eprintln!("{said}");
    match std::fs::write(&path, input) {
        Ok(()) => eprintln!("again: cargo run -p raddle-fuzz -- {} --input {}", target.name, path.display()),
        Err(error) => eprintln!("the input could not be kept in {}: {error}", path.display()),
    }
    ExitCode::FAILURE
}
