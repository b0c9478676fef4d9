//! Finding processes through `/proc`.
//!
//! Neighbours: none.

use std::fs::File;
use std::io::Read as _;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use super::group::Mark;
use super::registry::MARK_VARIABLE;

/// How many bytes of a process's environment are searched for the mark. In a larger one it may be missed.
const ENVIRONMENT_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The processes that carry the mark or belong to one of the groups. Zombies are not among them.
pub(super) fn living(mark: &Mark, groups: &[Pid]) -> Vec<Pid> {
    let mut environment = Vec::new();
    let mut found = pids();
    found.retain(|&pid| is_member(pid, groups) || is_marked(pid, mark, &mut environment));
    found
}

/// Sends a signal to every process that carries the mark.
pub(super) fn signal_marked(mark: &Mark, signal: Signal) {
    let mut environment = Vec::new();
    for pid in pids() {
        if !is_marked(pid, mark, &mut environment) {
            continue;
        }
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
            // An old kernel or a sandbox without pidfds. An error means that the process is gone already.
            let _ = kill_process(pid, signal);
            continue;
        };
        // Looked at again with the descriptor in hand: if the number has been given to another process since,
        // either that one is not marked or the descriptor is not its.
        if is_marked(pid, mark, &mut environment) {
            let _ = pidfd_send_signal(process, signal);
        }
    }
}

fn pids() -> Vec<Pid> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    numbers.filter_map(Pid::from_raw).collect()
}

/// Whether the environment that the process was started with holds the mark. It cannot be read of zombies and
/// of other users' processes, which could not be ended either.
fn is_marked(pid: Pid, mark: &Mark, environment: &mut Vec<u8>) -> bool {
    environment.clear();
    let Ok(file) = File::open(format!("/proc/{pid}/environ")) else {
        return false;
    };
    // A process that ends meanwhile gives an error, and its bytes until then no longer matter.
    if file.take(ENVIRONMENT_BYTES_MAX).read_to_end(environment).is_err() {
        return false;
    }
    environment.split(|&byte| byte == 0).any(|entry| {
        let value = entry.strip_prefix(MARK_VARIABLE.as_bytes());
        value.and_then(|value| value.strip_prefix(b"=")).is_some_and(|value| mark.is_in(value))
    })
}

fn is_member(pid: Pid, groups: &[Pid]) -> bool {
    if groups.is_empty() {
        return false;
    }
    // "number (name) state parent group …": the name may hold anything, so the fields count from its end.
    let Ok(stat) = std::fs::read(format!("/proc/{pid}/stat")) else {
        return false;
    };
    let Some(end) = stat.iter().rposition(|&byte| byte == b')') else {
        return false;
    };
    let fields = String::from_utf8_lossy(&stat[end + 1..]);
    let mut fields = fields.split_ascii_whitespace();
    let is_dead = matches!(fields.next(), Some("Z" | "X" | "x") | None);
    let group = fields.nth(1).and_then(|group| Pid::from_raw(group.parse().ok()?));
    !is_dead && group.is_some_and(|group| groups.contains(&group))
}
