//! The load server as a process of its own, so that a bench can tell its work from that of the engine.
//!
//! Prints `listening PORT` once it takes requests, and runs until it is killed or its standard input ends.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser;
use raddle_fakes::LoadServer;

/// A fake OpenAI-compatible provider that streams as many deltas as the prompt asks for.
///
/// The last user message holds what to do: `deltas=2000` streams as fast as it is read, `deltas=500 rate=50`
/// streams 50 deltas a second whose text is the monotonic clock in nanoseconds.
#[derive(Parser)]
#[command(name = "fake-provider")]
struct Arguments {
    /// The port of the loopback address to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Stop when standard input ends, so that the server does not outlive a bench that was killed.
    #[arg(long)]
    until_stdin_ends: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&format!("cannot serve on port {}: {error}", arguments.port));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> io::Result<()> {
    raise_file_limit();
    if arguments.until_stdin_ends {
        std::thread::spawn(|| {
            // Whether it ended or broke, nobody holds the other end any more.
            let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
            std::process::exit(0);
        });
    }
    // One thread: the machine's other cores belong to what is measured.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let server = LoadServer::bind(arguments.port)?;
        let port = server.address().port();
        let mut out = io::stdout().lock();
        writeln!(out, "listening {port}")?;
        out.flush()?;
        drop(out);
        server.run(report).await;
        Ok(())
    })
}

#[expect(clippy::print_stderr, reason = "a program's complaints belong there")]
fn report(problem: &str) {
    eprintln!("fake-provider: {problem}");
}

/// A thousand streams need a thousand open files, more than many shells allow by default.
#[cfg(unix)]
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where it may not be raised, the server still serves as many as it may.
    let _ = setrlimit(Resource::Nofile, limit);
}

#[cfg(not(unix))]
fn raise_file_limit() {}
