//! Memory, measured in fresh processes.

use std::process::Command;

use raddle::protocol::methods::method;
use raddle::protocol::thread::ThreadStartParams;

use crate::Failure;
use crate::host;
use crate::report::Report;

const THREADS: usize = 2_000;

pub(crate) fn measure(report: &mut Report) -> Result<(), Failure> {
    let bare = in_child(&["bare"])?;
    let with_threads = in_child(&["threads", &THREADS.to_string()])?;
    let (Some(bare), [idle, loaded]) = (bare.first(), with_threads.as_slice()) else {
        return Err("a child printed no figures".into());
    };
    report.add("rss_idle_mib", (idle - bare) / (1024.0 * 1024.0));
    report.add("rss_per_thread_kib", (loaded - idle) / 1024.0 / THREADS as f64);
    Ok(())
}

pub(crate) fn in_child(arguments: &[&str]) -> Result<Vec<f64>, Failure> {
    let output = Command::new(std::env::current_exe()?).args(arguments).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
}

/// Resident memory in bytes.
pub(crate) fn rss() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS")?;
    let kib: u64 = line.split_whitespace().nth(1).ok_or("no VmRSS")?.parse()?;
    Ok(kib * 1024)
}

pub(crate) fn print_bare() -> Result<(), Failure> {
    host::runtime()?.block_on(async {
        tokio::task::spawn_blocking(|| {}).await?;
        println!("{}", rss()?);
        Ok(())
    })
}

pub(crate) fn print_with_threads(threads: usize) -> Result<(), Failure> {
    let home = tempfile::tempdir()?;
    host::runtime()?.block_on(async {
        let raddle = host::open(home.path(), None).await?;
        let client = raddle.client("bench", "1").await?;
        println!("{}", rss()?);
        for _ in 0..threads {
            let params = ThreadStartParams { cwd: home.path().display().to_string(), ..Default::default() };
            client.request::<method::ThreadStart>(params).await?;
        }
        println!("{}", rss()?);
        raddle.close().await;
        Ok(())
    })
}
