//! The `raddle` command: one file a subcommand.
//!
//! It is a host like any other. What it does with threads goes through the client of the crate `raddle`; it holds no logic
//! of the engine, and nothing imports it.

mod app_server;
mod demo;
mod demo_host;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Host threads of LLM agents from the command line.
#[derive(Debug, Parser)]
#[command(name = "raddle", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    AppServer(app_server::AppServer),
    Demo(demo::Demo),
    #[command(hide = true)]
    DemoHost(demo_host::DemoHost),
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    log_to_stderr();
    match cli.command {
        Command::AppServer(server) => server.run().await,
        Command::Demo(demo) => demo.run().await,
        Command::DemoHost(host) => host.run().await,
    }
}

/// What the engine logs goes to standard error, as much of it as `RADDLE_LOG` asks for; a standard output stays the
/// command's own.
fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("RADDLE_LOG").unwrap_or_else(|_| EnvFilter::new("error"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
}
