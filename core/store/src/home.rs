//! The home directory: finding the database whatever the path that leads to it, and refusing what would
//! harm it.
//!
//! Neighbours: error, filesystem, options.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::filesystem::Filesystem;
use crate::options::StoreOptions;

/// The database's file in a home directory.
pub const DATABASE_FILE: &str = "raddle.db";

/// The directory of the owners' lock files, beside the database.
pub const OWNERS_DIR: &str = "owners";

/// Where everything lies, without symbolic links.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    /// The database.
    pub(crate) database: PathBuf,
    /// The directory of lock files.
    pub(crate) owners: PathBuf,
}

impl Home {
    /// Creates what is missing and refuses what cannot work, before SQLite touches any of it.
    pub(crate) fn prepare(options: &StoreOptions) -> Result<Self, Error> {
        let home = &options.home;
        create_dir(home).map_err(|source| Error::not_writable(home, source))?;
        let home = fs::canonicalize(home).map_err(|source| Error::not_writable(home, source))?;
        let database = canonical_database(&home)?;
        // The lock files lie beside the database itself: two homes whose `raddle.db` is a link to one file
        // would otherwise look for each other's owners in the wrong place and think them dead.
        let home = database.parent().unwrap_or(&home).to_owned();
        match (options.filesystem)(&home) {
            Ok(Filesystem::Local) => {}
            Ok(Filesystem::Shared(filesystem)) => {
                return Err(Error::UnsupportedFilesystem { path: home, filesystem });
            }
            Err(source) => return Err(Error::io(&home, source)),
        }
        check_database(&database)?;
        let owners = home.join(OWNERS_DIR);
        create_dir(&owners).map_err(|source| Error::not_writable(&owners, source))?;
        Ok(Self { database, owners })
    }
}

/// The database's path with every link followed, whether or not it exists.
fn canonical_database(home: &Path) -> Result<PathBuf, Error> {
    let named = home.join(DATABASE_FILE);
    match fs::canonicalize(&named) {
        Ok(path) => Ok(path),
        // A link to nowhere is refused: SQLite would make the file at its far end, where we did not look.
        Err(source) if source.kind() == ErrorKind::NotFound && fs::symlink_metadata(&named).is_err() => {
            Ok(named)
        }
        Err(source) => Err(Error::not_writable(&named, source)),
    }
}

/// Makes the database's file if there is none, and checks one that is there.
///
/// By its metadata only: SQLite's locks on the file belong to the process, and closing any descriptor of it
/// would drop those of another store in this process. Whether it is a database is left to SQLite for that
/// reason.
fn check_database(path: &Path) -> Result<(), Error> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(source) if source.kind() == ErrorKind::NotFound => {
            return create_database(path).map_err(|source| Error::not_writable(path, source));
        }
        Err(source) => return Err(Error::not_writable(path, source)),
    };
    if !metadata.is_file() {
        return Err(Error::NotADatabase { path: path.to_owned() });
    }
    match link_count(&metadata) {
        0 | 1 => Ok(()),
        links => Err(Error::HardLinked { path: path.to_owned(), links }),
    }
}

/// An empty file is a valid new database, and SQLite gives its `-wal` and `-shm` the same permissions. Made
/// here so that nobody else can read it, even in a home directory that others may enter.
fn create_database(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        // Another process was faster, and its file is as good.
        Err(source) if source.kind() == ErrorKind::AlreadyExists => return Ok(()),
        other => drop(other?),
    }
    // A name is on disk when its directory is, so a barrier's promise begins here (P1).
    #[cfg(unix)]
    if let Some(home) = path.parent() {
        File::open(home)?.sync_all()?;
    }
    Ok(())
}

fn create_dir(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

#[cfg(unix)]
fn link_count(metadata: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::nlink(metadata)
}

// The standard library does not tell the number of links elsewhere.
#[cfg(not(unix))]
fn link_count(_: &fs::Metadata) -> u64 {
    1
}

/// Whether `path` still names the open `file`. Holds for whoever locks a file that others may remove.
#[cfg(unix)]
pub(crate) fn still_names(path: &Path, file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (fs::metadata(path), file.metadata()) {
        (Ok(named), Ok(open)) => named.dev() == open.dev() && named.ino() == open.ino(),
        _ => false,
    }
}

// A locked file cannot be replaced there.
#[cfg(not(unix))]
pub(crate) fn still_names(path: &Path, _: &File) -> bool {
    path.exists()
}
