//! Who lives: one locked file under `owners/` for each open store, and the keeper that beats in ours and
//! watches those of others.
//!
//! The lock goes when its holder dies, however it dies, so a lock that can be taken means a dead owner, at
//! once and without a clock. The beat tells a living owner from one that stands still (stopped, in a
//! debugger, hung).
//!
//! Neighbours: error, home.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use uuid::Uuid;

use crate::error::Error;
use crate::home;

/// Attempts to make a lock file before giving up. A second one is needed only when another process,
/// cleaning up, took the file between its creation and its lock.
const CLAIM_ATTEMPTS: u32 = 8;

/// How many heartbeats one look at another owner may add at most to the time that it stood still. A watcher
/// that was itself stopped for an hour has not watched for an hour.
const TICK_MAX_BEATS: u32 = 2;

/// The shortest heartbeat; shorter ones are raised to it.
const HEARTBEAT_MIN: Duration = Duration::from_millis(1);

/// One open store, as other processes see it.
pub(crate) struct Process {
    id: Uuid,
    directory: PathBuf,
    /// Ours, locked; none once retired.
    file: Mutex<Option<File>>,
    heartbeat: Duration,
    takeover_after: Duration,
    /// The owners that somebody wanted a thread from. At most as many as there are living processes: the
    /// keeper drops those whose file is gone.
    watched: Mutex<HashMap<Uuid, Watch>>,
}

struct Watch {
    seen: Vec<u8>,
    looked: Instant,
    still: Duration,
}

/// What is known of another owner.
pub(crate) enum Probe {
    /// It is gone, and its name will not be used again.
    Dead,
    /// It lives, but its heartbeat stood still for too long.
    Stalled,
    /// It lives.
    Alive {
        /// Its process id, where its file could be read.
        pid: Option<u32>,
    },
}

impl Process {
    /// Makes and locks our file in `directory`.
    pub(crate) fn claim(
        directory: &Path,
        heartbeat: Duration,
        takeover_after: Duration,
    ) -> Result<Self, Error> {
        for _ in 0..CLAIM_ATTEMPTS {
            let id = Uuid::now_v7();
            let path = directory.join(id.to_string());
            let failed = |source| Error::not_writable(&path, source);
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            let file = options.open(&path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) if home::still_names(&path, &file) => {}
                // Somebody who cleans up held it for dead in the moment before; names are plenty.
                Ok(()) | Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(source)) => {
                    let _ = fs::remove_file(&path);
                    return Err(failed(source));
                }
            }
            if let Err(source) = beat(&file, 0) {
                let _ = fs::remove_file(&path);
                return Err(failed(source));
            }
            return Ok(Self {
                id,
                directory: directory.to_owned(),
                file: Mutex::new(Some(file)),
                heartbeat: heartbeat.max(HEARTBEAT_MIN),
                takeover_after,
                watched: Mutex::default(),
            });
        }
        Err(Error::not_writable(directory, ErrorKind::AlreadyExists.into()))
    }

    /// The name of our file, and our name in table `owner`.
    pub(crate) fn id(&self) -> Uuid {
        self.id
    }

    /// Finds out about another owner; one that lives is watched from now on.
    pub(crate) fn probe(&self, owner: Uuid) -> Probe {
        let path = self.directory.join(owner.to_string());
        let file = match bury_if_dead(&path) {
            Ok(None) => {
                self.watched.lock().remove(&owner);
                return Probe::Dead;
            }
            Ok(Some(file)) => file,
            // What cannot be looked at counts as alive (P6).
            Err(source) => {
                tracing::warn!(%source, path = %path.display(), "cannot look at a thread's owner");
                return Probe::Alive { pid: None };
            }
        };
        let seen = read_all(&file).unwrap_or_default();
        let pid = pid_in(&seen);
        let mut watched = self.watched.lock();
        let watch = watched.entry(owner).or_insert_with(|| Watch {
            seen,
            looked: Instant::now(),
            still: Duration::ZERO,
        });
        if watch.still >= self.takeover_after { Probe::Stalled } else { Probe::Alive { pid } }
    }

    /// Removes the files of the dead. Errors leave a file for the next time.
    fn bury(&self) {
        let Ok(entries) = fs::read_dir(&self.directory) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            // Ours is skipped by name: asking for its lock a second time says nothing about us.
            match name.to_str().and_then(|name| Uuid::parse_str(name).ok()) {
                Some(id) if id != self.id => {}
                _ => continue,
            }
            let _ = bury_if_dead(&entry.path());
        }
    }

    /// Looks once at all watched owners.
    fn look(&self) {
        let tick_max = self.heartbeat * TICK_MAX_BEATS;
        self.watched.lock().retain(|owner, watch| {
            let now = Instant::now();
            let passed = now.duration_since(watch.looked).min(tick_max);
            watch.looked = now;
            match fs::read(self.directory.join(owner.to_string())) {
                Ok(seen) if seen == watch.seen => watch.still += passed,
                Ok(seen) => {
                    watch.seen = seen;
                    watch.still = Duration::ZERO;
                }
                Err(source) if source.kind() == ErrorKind::NotFound => return false,
                // A beat that cannot be read is none that stands still.
                Err(_) => watch.still = Duration::ZERO,
            }
            true
        });
    }

    /// Gives up the lock: from here on every thread of ours is free.
    fn retire(&self) {
        if let Some(file) = self.file.lock().take() {
            let _ = fs::remove_file(self.directory.join(self.id.to_string()));
            drop(file);
        }
    }
}

/// The file of an owner that lives; that of a dead one is removed.
///
/// The lock that is tried is a shared one. It cannot be had while the owner holds its own, and two
/// processes that look at the same dead owner at once do not take each other for it.
fn bury_if_dead(path: &Path) -> io::Result<Option<File>> {
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(source) if source.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(source),
    };
    match file.try_lock_shared() {
        Ok(()) => {
            // A file between its creation and its lock is caught here too; whoever makes it sees that it
            // went and takes another name. Somebody else's removal of the same file is as good as ours.
            let _ = fs::remove_file(path);
            Ok(None)
        }
        Err(TryLockError::WouldBlock) => Ok(Some(file)),
        Err(TryLockError::Error(source)) => Err(source),
    }
}

/// Writes pid and beat, always as many bytes, so that a reader never sees half of a shorter text.
fn beat(mut file: &File, count: u64) -> io::Result<()> {
    file.seek(SeekFrom::Start(0))?;
    file.write_all(format!("pid {:010}\nbeat {count:020}\n", std::process::id()).as_bytes())
}

fn read_all(mut file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn pid_in(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.lines().next()?.strip_prefix("pid ")?.parse().ok()
}

/// The thread that beats and watches. Dropping it stops it, joins it and retires the process.
pub(crate) struct Keeper {
    process: Arc<Process>,
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts it; its first work is to remove the files of dead owners.
    pub(crate) fn start(process: Arc<Process>) -> io::Result<Self> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let thread = thread::Builder::new().name("raddle-keeper".to_owned()).spawn({
            let (process, stop) = (Arc::clone(&process), Arc::clone(&stop));
            move || keep(&process, &stop)
        })?;
        Ok(Self { process, stop, thread: Some(thread) })
    }
}

fn keep(process: &Process, stop: &(Mutex<bool>, Condvar)) {
    process.bury();
    let mut count = 0;
    let mut stopped = stop.0.lock();
    while !*stopped {
        stop.1.wait_for(&mut stopped, process.heartbeat);
        count += 1;
        if let Some(Err(source)) = process.file.lock().as_ref().map(|file| beat(file, count)) {
            tracing::warn!(%source, "the store's heartbeat cannot be written");
        }
        process.look();
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // A keeper that panicked has stopped all the same.
            let _ = thread.join();
        }
        self.process.retire();
    }
}
