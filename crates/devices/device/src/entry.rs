//! The entry of a file in its directory.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Makes durable that a file is in its directory, or is there no more. Where it is reached through a link, the directory of
/// the file itself counts. A file system that has no such thing to do is no failure.
///
/// # Errors
/// Those of opening and syncing the directory.
pub fn sync_entry(path: &Path) -> io::Result<()> {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let directory = real.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match File::open(directory)?.sync_all() {
        // SMB and others have no fsync of a directory.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => Ok(()),
        synced => synced,
    }
}

/// The same for a file that somebody else may have made just now, in a directory that may be unreadable: then it is for them to
/// make it last.
pub(crate) fn sync_found_entry(path: &Path) -> io::Result<()> {
    match sync_entry(path) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        synced => synced,
    }
}
