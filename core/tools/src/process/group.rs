//! A process group that a call started, and ending what belongs to calls.
//!
//! Neighbours: none.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{
    Pid, Signal, kill_process, kill_process_group, test_kill_process, test_kill_process_group,
};

use super::KILL_GRACE;
#[cfg(target_os = "linux")]
use super::scan;

/// How often dying processes are looked at.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// How often SIGKILL is sent to what was forked while the one before was on its way.
const KILL_ROUNDS_MAX: usize = 10;

/// How long one look through the process table may take. A process that hangs in the kernel can hold it up;
/// then whoever waits goes on with the groups alone.
#[cfg(target_os = "linux")]
const LOOK_TIME_MAX: Duration = Duration::from_secs(1);

/// The mark in the environment of the processes of one call, or of all calls of a registry.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) registry: Arc<str>,
    pub(super) call: Option<u64>,
}

impl Mark {
    /// Whether a value of the mark variable names this call, or one of this registry. A value holds several
    /// marks, parted by spaces, where an engine runs inside a command of another.
    #[cfg(target_os = "linux")]
    pub(super) fn is_in(&self, value: &[u8]) -> bool {
        let own = self.to_string();
        value.split(|&byte| byte == b' ').any(|mark| match self.call {
            Some(_) => mark == own.as_bytes(),
            None => mark.starts_with(own.as_bytes()),
        })
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-", self.registry)?;
        self.call.map_or(Ok(()), |call| call.fmt(f))
    }
}

/// The process group of one call. Its number is that of the shell, which leads it.
#[derive(Debug)]
pub(super) struct Group {
    id: Pid,
    /// The shell has been waited for, so its number may be given to another process.
    is_leaderless: AtomicBool,
}

impl Group {
    pub(super) fn new(id: Pid) -> Self {
        Self { id, is_leaderless: AtomicBool::new(false) }
    }

    #[cfg(target_os = "linux")]
    pub(super) fn id(&self) -> Pid {
        self.id
    }

    /// To be called once the shell has been waited for, and not before.
    pub(super) fn leader_is_gone(&self) {
        self.is_leaderless.store(true, Ordering::Release);
    }

    /// Whether the group exists and is still the one that the call started.
    ///
    /// While it has members its number is not given away, and so nobody has its leader's number. Where somebody
    /// has, the number was given to another process, and the group is not ours.
    pub(super) fn is_alive(&self) -> bool {
        if !self.is_leaderless.load(Ordering::Acquire) {
            return true;
        }
        let leader_exists = match test_kill_process(self.id) {
            Ok(()) => true,
            Err(error) => error != rustix::io::Errno::SRCH,
        };
        !leader_exists && test_kill_process_group(self.id).is_ok()
    }

    pub(super) fn signal(&self, signal: Signal) {
        if !self.is_alive() {
            return;
        }
        let sent = kill_process_group(self.id, signal);
        // A shell that has just been started may not have made its group yet.
        if sent.is_err() && !self.is_leaderless.load(Ordering::Acquire) {
            // An error means that it is gone already.
            let _ = kill_process(self.id, signal);
        }
    }
}

/// What is to be ended: groups, and whatever carries the mark.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) mark: Mark,
    pub(super) groups: Vec<Arc<Group>>,
}

impl Target {
    /// Ends everything: SIGTERM, then [`KILL_GRACE`] later SIGKILL for what is left. Returns as soon as nothing
    /// is left, and in any case within about two seconds.
    pub(super) async fn end(&self) {
        let mut can_look = self.signal(Signal::TERM, true).await;
        for _ in 0..KILL_GRACE.as_millis() / LOOK_INTERVAL.as_millis() {
            if can_look {
                match self.living().await {
                    Some(living) if living.is_empty() => return,
                    Some(_) => {}
                    None => can_look = false,
                }
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        for _ in 0..KILL_ROUNDS_MAX {
            can_look = self.signal(Signal::KILL, can_look).await;
            match if can_look { self.living().await } else { None } {
                Some(living) if !living.is_empty() => {
                    tracing::debug!(?living, "processes outlive SIGKILL for now");
                }
                _ => return,
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Sends SIGKILL to everything, now and blocking.
    pub(super) fn kill_now(&self) {
        for group in &self.groups {
            group.signal(Signal::KILL);
        }
        #[cfg(target_os = "linux")]
        scan::signal_marked(&self.mark, Signal::KILL);
    }

    /// Sends a signal to the groups, and to what else carries the mark if looking through the process table
    /// works. Returns whether it does.
    async fn signal(&self, signal: Signal, can_look: bool) -> bool {
        // The groups come first and at once: they are what matters nearly always.
        for group in &self.groups {
            group.signal(signal);
        }
        #[cfg(target_os = "linux")]
        {
            let mark = self.mark.clone();
            can_look && look(move || scan::signal_marked(&mark, signal)).await.is_some()
        }
        #[cfg(not(target_os = "linux"))]
        can_look
    }

    /// The numbers of the processes that live; zombies do not. Nothing if looking hangs.
    #[cfg(target_os = "linux")]
    pub(super) async fn living(&self) -> Option<Vec<Pid>> {
        let target = self.clone();
        look(move || {
            let groups: Vec<Pid> =
                target.groups.iter().filter(|group| group.is_alive()).map(|group| group.id()).collect();
            scan::living(&target.mark, &groups)
        })
        .await
    }

    /// The numbers of the groups that live: there is no portable way to list their members.
    #[cfg(not(target_os = "linux"))]
    pub(super) async fn living(&self) -> Option<Vec<Pid>> {
        let living = self.groups.iter().filter(|group| group.is_alive());
        Some(living.map(|group| group.id).collect())
    }
}

/// Runs one look through the process table where blocking is allowed. Nothing if it hangs.
#[cfg(target_os = "linux")]
async fn look<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let task = tokio::task::spawn_blocking(work);
    match tokio::time::timeout(LOOK_TIME_MAX, task).await {
        Ok(Ok(found)) => Some(found),
        Ok(Err(fault)) => {
            tracing::error!(%fault, "a look through the process table ended abnormally");
            None
        }
        Err(_) => {
            tracing::warn!("a look through the process table hangs; going on without it");
            None
        }
    }
}
