//! Which processes commands have started, and ending them.
//!
//! # Whose a process is
//!
//! Each call of a command runs in a process group of its own, and its environment carries a mark. A child that
//! leaves the group (`setsid`) keeps the mark, so on Linux it is found through `/proc` whatever became of its
//! parents. This finds more than a child subreaper would, and it changes nothing in the host process, whose
//! children and whose `waitpid` belong to the host. What it cannot find: a process that leaves the group *and*
//! clears or overwrites its environment, and on other systems one that leaves the group.
//!
//! Neighbours: none.

#[cfg(not(unix))]
mod absent;
#[cfg(unix)]
mod group;
#[cfg(unix)]
mod registry;
#[cfg(target_os = "linux")]
mod scan;

use std::time::Duration;

#[cfg(not(unix))]
pub use absent::ProcessRegistry;
#[cfg(unix)]
pub use registry::ProcessRegistry;
#[cfg(unix)]
pub(crate) use registry::{Call, MARK_VARIABLE};

/// How many calls of one registry may have processes left running in the background. When one more leaves
/// some, those of the oldest call are ended, and the model is told.
pub const STRAY_CALLS_MAX: usize = 32;

/// How long processes have between SIGTERM and SIGKILL.
pub const KILL_GRACE: Duration = Duration::from_millis(200);
