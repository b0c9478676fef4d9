//! What one does with this repository, as `cargo xtask COMMAND`: nothing but Cargo has to be there first.
//!
//! One file or folder a command; a new one is a module, a variant of [`Command`] and an arm of `main`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a tool for the terminal")]

mod bench;
mod demo;
mod schema;
mod test;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// Builds, tests and shows Raddle.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build Raddle and show what it does; needs no key and no network.
    Demo {
        /// Handed on to `raddle demo`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run every check and every test, installing what they need.
    Test,
    /// Measure Raddle against its budgets.
    Bench {
        /// Handed on to the bench: `--json FILE`, `--runs N`, `--only PART`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Write docs/protocol.schema.json from the types.
    Schema,
    /// Check the rules of this repository that no compiler checks.
    Tidy,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = Workspace::find().and_then(|workspace| match arguments.command {
        Command::Demo { arguments } => demo::run(&workspace, &arguments),
        Command::Bench { arguments } => bench::run(&workspace, &arguments),
        Command::Schema => schema::run(&workspace),
        Command::Test => test::run(&workspace),
        Command::Tidy => tidy::run(&workspace),
    });
    done.unwrap_or_else(|problem| {
        eprintln!("xtask: {problem}");
        ExitCode::FAILURE
    })
}
