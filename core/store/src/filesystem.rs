//! Which file systems can carry the database.
//!
//! SQLite's WAL needs memory shared between processes and locks that hold. Network mounts and the folders
//! that a virtual machine shares with its host give neither, and destroy a database with two writers within
//! minutes, so they are refused before SQLite touches them. Case: R49.
//!
//! Neighbours: none.

use std::io;
use std::path::Path;

/// What a directory lies on, as far as a database cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filesystem {
    /// One kernel has it to itself.
    Local,
    /// Shared in ways that a database does not survive; the name is for the error's text.
    Shared(String),
}

/// Looks at what `path` lies on.
///
/// Off Linux everything counts as local.
///
/// # Errors
/// When the system cannot say.
pub fn detect(path: &Path) -> io::Result<Filesystem> {
    system::detect(path)
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::{Filesystem, Path, io};

    pub(super) fn detect(_: &Path) -> io::Result<Filesystem> {
        Ok(Filesystem::Local)
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs;
    use std::os::unix::ffi::OsStrExt;

    use super::{Filesystem, Path, io};

    /// File system numbers of `statfs`. Source: linux/magic.h and the modules that do not list themselves
    /// there.
    const SHARED: &[(u32, &str)] = &[
        (0x0000_6969, "NFS"),
        (0x0000_517b, "SMB"),
        (0xfe53_4d42, "SMB"),
        (0xff53_4d42, "CIFS"),
        (0x0102_1997, "9p"),
        (0x00c3_6400, "Ceph"),
        (0x5346_414f, "AFS"),
        (0x6b41_4653, "AFS"),
        (0x7375_7245, "Coda"),
        (0x0000_564c, "NCP"),
        (0x0bd0_0bd0, "Lustre"),
        (0x4750_4653, "GPFS"),
        (0x0116_1970, "GFS2"),
        (0x7461_636f, "OCFS2"),
        (0x786f_4256, "a VirtualBox folder"),
        (0xbacb_acbc, "a VMware folder"),
        (0x7c7c_6673, "a Parallels folder"),
    ];

    /// FUSE carries sshfs and virtiofs as well as local disks, so its number alone does not decide.
    const FUSE: u32 = 0x6573_5546;

    pub(super) fn detect(path: &Path) -> io::Result<Filesystem> {
        // The number is 32 bits wide whatever the type of the field on this architecture.
        let number = rustix::fs::statfs(path)?.f_type as u32;
        if let Some((_, name)) = SHARED.iter().find(|(known, _)| *known == number) {
            return Ok(Filesystem::Shared((*name).to_owned()));
        }
        if number != FUSE {
            return Ok(Filesystem::Local);
        }
        // `fuseblk` is a disk of this machine (NTFS, exFAT); a FUSE that cannot be named is not trusted (P6).
        let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
        Ok(match mount_type(&mounts, path) {
            Some(name) if name == "fuseblk" => Filesystem::Local,
            Some(name) => Filesystem::Shared(name),
            None => Filesystem::Shared("FUSE".to_owned()),
        })
    }

    /// The type of the innermost mount over `path`, from the text of `mountinfo`.
    fn mount_type(mounts: &[u8], path: &Path) -> Option<String> {
        mounts
            .split(|byte| *byte == b'\n')
            .filter_map(|line| {
                // 36 35 98:0 /root /mount/point options [tags…] - type source options
                let mut fields = line.split(|byte| *byte == b' ');
                let at = unescape(fields.nth(4)?);
                let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
                let over = path.starts_with(Path::new(std::ffi::OsStr::from_bytes(&at)));
                over.then(|| (at.len(), String::from_utf8_lossy(kind).into_owned()))
            })
            // Of two mounts on one place the later one covers the earlier.
            .max_by_key(|(length, _)| *length)
            .map(|(_, kind)| kind)
    }

    /// Blanks and backslashes in mount points are written as `\040`.
    fn unescape(field: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(field.len());
        let mut rest = field;
        while let Some((&first, tail)) = rest.split_first() {
            let code = (first == b'\\')
                .then(|| tail.get(..3))
                .flatten()
                .and_then(|digits| std::str::from_utf8(digits).ok())
                .and_then(|digits| u8::from_str_radix(digits, 8).ok());
            match code {
                Some(byte) => {
                    out.push(byte);
                    rest = &tail[3..];
                }
                None => {
                    out.push(first);
                    rest = tail;
                }
            }
        }
        out
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_innermost_mount_counts() {
            let mounts = b"21 1 254:0 / / rw - ext4 /dev/vda rw\n\
                40 21 0:50 / /mnt/my\\040share rw,relatime shared:1 - virtiofs host rw\n\
                41 40 8:1 / /mnt/my\\040share/usb rw - fuseblk /dev/sdb1 rw\n";
            let of = |path: &str| mount_type(mounts, Path::new(path)).unwrap();
            assert_eq!(of("/home/me"), "ext4");
            assert_eq!(of("/mnt/my share/raddle"), "virtiofs");
            assert_eq!(of("/mnt/my shared"), "ext4");
            assert_eq!(of("/mnt/my share/usb/raddle"), "fuseblk");
        }
    }
}
