//! The registry of what commands have started.
//!
//! Neighbours: none.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio_util::task::AbortOnDropHandle;

use super::STRAY_CALLS_MAX;
use super::group::{Group, LOOK_INTERVAL, Mark, Target};

/// The environment variable that carries the mark of a call. A command may read it to learn that it runs under
/// the engine.
pub(crate) const MARK_VARIABLE: &str = "RADDLE_CALL";

/// How many bytes of a background process's output are read, and thrown away, at a time.
const DISCARD_BYTES: usize = 16 * 1024;

/// The pause after each such read. A background process that writes faster than this lets through waits.
const DISCARD_PAUSE: Duration = Duration::from_millis(5);

/// Remembers which processes commands have started and left running. Clones share the same memory.
///
/// # The rule for what a command leaves running
///
/// A call ends when its shell ends. What it started with `&` keeps running, so that a model can start a server
/// and use it in the next call; what such a process still writes is read and thrown away, so that it does not
/// die of a closed pipe. It is ended
///
/// - by [`kill_all`](Self::kill_all), which the owner calls when it shuts down, and whenever else it wants none
///   left (give each thread a registry, and call it when the thread is unloaded);
/// - when the last clone is dropped, at once and without a grace;
/// - when [`STRAY_CALLS_MAX`] later calls have left something running too.
///
/// A call that is cancelled or runs into its time limit ends all that it started itself.
///
/// When the host is killed with SIGKILL, nobody is there to end anything: commands that write get SIGPIPE, the
/// others go on. The kernel would end them with the host only if asked between fork and exec, which takes
/// unsafe code.
#[derive(Clone, Debug)]
pub struct ProcessRegistry {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    mark: Mark,
    /// The number of the next call.
    next_call: AtomicU64,
    groups: Mutex<Groups>,
}

#[derive(Debug, Default)]
struct Groups {
    /// How many calls have started a process.
    started: u64,
    /// What `started` was when all processes were last ended.
    ended: u64,
    running: BTreeMap<u64, Arc<Group>>,
    /// The oldest first.
    strays: VecDeque<Stray>,
}

/// What a finished call has left running.
#[derive(Debug)]
struct Stray {
    call: u64,
    group: Arc<Group>,
    /// Reads what is still written to the call's output, until all ends of it are closed.
    discard: Option<AbortOnDropHandle<()>>,
}

impl Stray {
    fn is_alive(&self) -> bool {
        // A process that left the group may still hold the output.
        self.group.is_alive() || self.discard.as_ref().is_some_and(|task| !task.is_finished())
    }
}

impl Default for ProcessRegistry {
    fn default() -> Self {
        Self::new()
    }
}

impl ProcessRegistry {
    /// A registry without processes.
    pub fn new() -> Self {
        // Chance keeps the marks of two engines apart, also where their process numbers are the same.
        let chance = RandomState::new().hash_one(std::process::id());
        Self {
            inner: Arc::new(Inner {
                mark: Mark { registry: Arc::from(format!("{chance:016x}")), call: None },
                next_call: AtomicU64::new(0),
                groups: Mutex::default(),
            }),
        }
    }

    /// How many finished calls are known to still have processes running. Processes that left their group and
    /// do not hold the call's output are not counted, but [`kill_all`](Self::kill_all) finds them.
    pub fn stray_calls(&self) -> usize {
        let mut groups = self.inner.lock();
        groups.strays.retain(Stray::is_alive);
        groups.strays.len()
    }

    /// Ends all processes that commands of this registry have started, those of running calls included: SIGTERM,
    /// then SIGKILL after [`KILL_GRACE`](crate::KILL_GRACE). Returns when they are gone, at the latest after
    /// about two seconds. The registry can be used again; whether a call that starts meanwhile is ended
    /// or escapes is open, so start none.
    ///
    /// # Cancel safety
    ///
    /// When dropped, some may be left; calling it again goes on.
    pub async fn kill_all(&self) {
        let (target, started) = {
            let groups = self.inner.lock();
            if groups.started == groups.ended {
                return;
            }
            (self.inner.everything(&groups), groups.started)
        };
        target.end().await;
        self.inner.join_strays(&target.groups).await;
        let mut groups = self.inner.lock();
        groups.ended = groups.ended.max(started);
    }

    /// Begins a call: no process yet, only a number and a mark.
    pub(crate) fn begin(&self) -> Call {
        Call {
            registry: self.clone(),
            number: self.inner.next_call.fetch_add(1, Ordering::Relaxed),
            group: None,
        }
    }
}

impl Groups {
    fn all(&self) -> Vec<Arc<Group>> {
        let strays = self.strays.iter().map(|stray| &stray.group);
        self.running.values().chain(strays).cloned().collect()
    }

    /// Takes out the strays of those groups.
    fn take_strays(&mut self, of: &[Arc<Group>]) -> Vec<Stray> {
        let strays = std::mem::take(&mut self.strays).into_iter();
        let (taken, left) = strays.partition(|stray| of.iter().any(|group| Arc::ptr_eq(group, &stray.group)));
        self.strays = left;
        Vec::from(taken)
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Groups> {
        // The lists are whole between any two statements, so a panic elsewhere has not harmed them.
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the strays of those groups, which have been ended, and joins what read their output.
    async fn join_strays(&self, of: &[Arc<Group>]) {
        let strays = self.lock().take_strays(of);
        for stray in strays {
            if let Some(task) = stray.discard {
                task.abort();
                // It was aborted or had ended; neither is a fault.
                let _ = task.await;
            }
        }
    }

    fn everything(&self, groups: &Groups) -> Target {
        Target { mark: self.mark.clone(), groups: groups.all() }
    }

    fn call(&self, number: u64, group: Option<&Arc<Group>>) -> Target {
        Target {
            mark: Mark { registry: Arc::clone(&self.mark.registry), call: Some(number) },
            groups: group.into_iter().cloned().collect(),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let groups = self.lock();
        if groups.started > groups.ended {
            self.everything(&groups).kill_now();
        }
    }
}

/// One call of a command. Dropping it kills the group, unless [`settle`](Self::settle) or
/// [`leave`](Self::leave) came first.
pub(crate) struct Call {
    registry: ProcessRegistry,
    number: u64,
    group: Option<Arc<Group>>,
}

impl Call {
    /// The value of [`MARK_VARIABLE`] for the command. Marks of an outer engine stay in it.
    pub(crate) fn mark(&self) -> OsString {
        let mut value = std::env::var_os(MARK_VARIABLE).unwrap_or_default();
        if !value.is_empty() {
            value.push(" ");
        }
        value.push(self.target().mark.to_string());
        value
    }

    /// The shell runs, with this number, and leads or is about to lead a group of its own.
    pub(crate) fn started(&mut self, shell: Pid) {
        let group = Arc::new(Group::new(shell));
        {
            let mut groups = self.registry.inner.lock();
            groups.started += 1;
            groups.running.insert(self.number, Arc::clone(&group));
        }
        self.group = Some(group);
    }

    /// The shell has been waited for.
    pub(crate) fn shell_is_gone(&self) {
        if let Some(group) = &self.group {
            group.leader_is_gone();
        }
    }

    /// Ends all processes of this call.
    pub(crate) async fn end(&self) {
        self.target().end().await;
    }

    /// The processes of this call that live, now that the shell is gone. `holds_output` says whether somebody
    /// still holds the call's output.
    ///
    /// Costs next to nothing when the group is empty and the output is closed, as it is nearly always. The
    /// price is that a process that has left both is not seen here.
    pub(crate) async fn left_running(&self, holds_output: bool) -> Vec<Pid> {
        let group_lives = self.group.as_ref().is_some_and(|group| group.is_alive());
        if !group_lives && !holds_output {
            return Vec::new();
        }
        let living = self.target().living().await.unwrap_or_default();
        if living.is_empty() {
            return living;
        }
        // What is ending just now, a child that has closed the output, is not worth a word.
        tokio::time::sleep(LOOK_INTERVAL).await;
        self.target().living().await.unwrap_or(living)
    }

    /// Nothing of this call is running.
    pub(crate) fn settle(mut self) {
        self.forget();
    }

    /// Leaves what is running to the registry, and its output, if still open, to be thrown away. Returns whether
    /// processes of an older call had to be ended for it.
    pub(crate) async fn leave(mut self, output: Option<pipe::Receiver>) -> bool {
        let Some(group) = self.forget() else {
            return false;
        };
        let discard = output.map(|output| AbortOnDropHandle::new(tokio::spawn(discard(output))));
        let oldest = {
            let mut groups = self.registry.inner.lock();
            groups.strays.retain(Stray::is_alive);
            groups.strays.push_back(Stray { call: self.number, group, discard });
            let is_over = groups.strays.len() > STRAY_CALLS_MAX;
            groups.strays.front().filter(|_| is_over).map(|stray| (stray.call, Arc::clone(&stray.group)))
        };
        let Some((number, group)) = oldest else {
            return false;
        };
        self.registry.inner.call(number, Some(&group)).end().await;
        self.registry.inner.join_strays(&[group]).await;
        true
    }

    fn target(&self) -> Target {
        self.registry.inner.call(self.number, self.group.as_ref())
    }

    fn forget(&mut self) -> Option<Arc<Group>> {
        self.registry.inner.lock().running.remove(&self.number);
        self.group.take()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // Only the group: looking for marks takes a while, and the registry does it when it ends.
        if let Some(group) = self.forget() {
            group.signal(Signal::KILL);
        }
    }
}

/// Reads and throws away what background processes write, until none of them holds the output.
async fn discard(mut output: pipe::Receiver) {
    let mut bytes = vec![0; DISCARD_BYTES];
    while output.read(&mut bytes).await.is_ok_and(|read| read > 0) {
        tokio::time::sleep(DISCARD_PAUSE).await;
    }
}
