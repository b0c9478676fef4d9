//! What kind of file a path leads to.
//!
//! Neighbours: none.

use std::fmt;
use std::fs::FileType;

/// The kind of a file, links followed or not as its metadata was got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Regular,
    Directory,
    #[cfg(unix)]
    Pipe,
    #[cfg(unix)]
    Socket,
    #[cfg(unix)]
    Device,
    /// A link that was not followed, or what only some systems have.
    Other,
}

impl From<FileType> for FileKind {
    fn from(kind: FileType) -> Self {
        #[cfg(unix)]
        {
            use std::os::unix::fs::FileTypeExt as _;
            if kind.is_fifo() {
                return Self::Pipe;
            }
            if kind.is_socket() {
                return Self::Socket;
            }
            if kind.is_block_device() || kind.is_char_device() {
                return Self::Device;
            }
        }
        if kind.is_file() {
            Self::Regular
        } else if kind.is_dir() {
            Self::Directory
        } else {
            Self::Other
        }
    }
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Regular => "regular file",
            Self::Directory => "directory",
            #[cfg(unix)]
            Self::Pipe => "named pipe",
            #[cfg(unix)]
            Self::Socket => "socket",
            #[cfg(unix)]
            Self::Device => "device",
            Self::Other => "special file",
        })
    }
}
