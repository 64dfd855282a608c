//! The mount table, mounting and unmounting.

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The file system type under which exports stand in the mount table.
pub(crate) const FUSE_TYPE: &str = "fuse.forebay";

/// A line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountEntry {
    /// Major and minor number of the mounted device.
    pub device: (u32, u32),
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// Type of the file system.
    pub fs_type: OsString,
    /// What is mounted: a device's path, or a name.
    pub source: PathBuf,
}

/// The calling process's mount table, in the order of mounting: of several on one mount point the last one is seen.
///
/// # Errors
/// If `/proc` cannot be read.
pub(crate) fn mount_table() -> io::Result<Vec<MountEntry>> {
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|b| *b == b'\n').filter_map(parse_line).collect())
}

/// The topmost mount on `path`, if there is any. Does not touch the mounted file system.
///
/// # Errors
/// If `/proc` cannot be read.
pub(crate) fn mounted_on(path: &Path) -> io::Result<Option<MountEntry>> {
    Ok(mount_table()?.into_iter().rev().find(|m| m.mount_point == path))
}

/// Parses a line of `mountinfo`: `36 35 98:0 /root /point options optional... - type source superoptions`.
pub(crate) fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|b| *b == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let mount_point = fields.nth(1)?;
    let mut fields = fields.skip_while(|f| *f != b"-").skip(1);
    let fs_type = fields.next()?;
    let source = fields.next()?;
    Some(MountEntry {
        device: (major.parse().ok()?, minor.parse().ok()?),
        mount_point: PathBuf::from(unescape(mount_point)),
        fs_type: unescape(fs_type),
        source: PathBuf::from(unescape(source)),
    })
}

/// Undoes the kernel's `\040` for a space and the like.
pub(crate) fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = (byte == b'\\').then(|| tail.get(..3)).flatten();
        let value =
            octal.and_then(|d| std::str::from_utf8(d).ok()).and_then(|d| u8::from_str_radix(d, 8).ok());
        match value {
            Some(value) => {
                out.push(value);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out)
}

/// Mounts the file system behind `fuse` (an open `/dev/fuse`), whose root is a regular file, upon the regular file
/// `path`. Root only: the other end of the descriptor is this process.
///
/// # Errors
/// As `mount(2)`.
pub(crate) fn mount_fuse(
    fuse: BorrowedFd<'_>,
    path: &Path,
    name: &str,
    read_only: bool,
    read_bytes_max: usize,
) -> io::Result<()> {
    // Permissions are checked by the kernel against the mode 0600; so other users get no further than with the
    // backing file, unless root changes mode or owner, which is what `allow_other` is for.
    let options = format!(
        "fd={},rootmode=100000,user_id=0,group_id=0,allow_other,default_permissions,max_read={read_bytes_max}",
        fuse.as_raw_fd()
    );
    let source = c_string(OsStr::new(&format!("forebay:{name}")))?;
    let target = c_string(path.as_os_str())?;
    let fs_type = c_string(OsStr::new(FUSE_TYPE))?;
    let options = c_string(OsStr::new(&options))?;
    let mut flags = libc::MS_NODEV | libc::MS_NOSUID | libc::MS_NOEXEC | libc::MS_NOATIME;
    if read_only {
        flags |= libc::MS_RDONLY;
    }
    // SAFETY: all four pointers are to NUL-terminated strings that live until after the call.
    let rc = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), fs_type.as_ptr(), flags, options.as_ptr().cast())
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// How to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unmount {
    /// Only if nothing uses it (else EBUSY).
    IfUnused,
    /// Takes it out of sight now, and ends the FUSE connection: whoever waits for it gets an error.
    Abort,
}

/// Unmounts what is topmost on `path`.
///
/// # Errors
/// As `umount2(2)`.
pub(crate) fn unmount(path: &Path, how: Unmount) -> io::Result<()> {
    let target = c_string(path.as_os_str())?;
    let flags = match how {
        Unmount::IfUnused => libc::UMOUNT_NOFOLLOW,
        Unmount::Abort => libc::UMOUNT_NOFOLLOW | libc::MNT_FORCE | libc::MNT_DETACH,
    };
    // SAFETY: the pointer is to a NUL-terminated string that lives until after the call.
    let rc = unsafe { libc::umount2(target.as_ptr(), flags) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a name with a NUL byte"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_mount_table_are_understood() {
        let line =
            br"36 35 7:3 / /mnt/with\040space rw,noatime master:1 - ext4 /dev/loop3 rw,errors=continue";
        let entry = parse_line(line).unwrap();
        assert_eq!(entry.device, (7, 3));
        assert_eq!(entry.mount_point, Path::new("/mnt/with space"));
        assert_eq!(entry.fs_type, "ext4");
        assert_eq!(entry.source, Path::new("/dev/loop3"));
        let bare = parse_line(b"1 2 0:33 / /x rw - fuse.forebay forebay:v rw").unwrap();
        assert_eq!(bare.fs_type, FUSE_TYPE);
        assert_eq!(parse_line(b""), None);
        assert_eq!(parse_line(b"36 35 7:3 / /mnt rw"), None);
    }

    #[test]
    fn escapes_that_are_none_stay() {
        assert_eq!(unescape(br"a\134b\9\04"), OsString::from(r"a\b\9\04"));
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(mounted_on(Path::new("/")).unwrap().is_some());
        assert_eq!(mounted_on(Path::new("/proc/self/status")).unwrap(), None);
    }
}
