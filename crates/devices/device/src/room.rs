//! Room for a file on its file system: asked for before it is taken, and then taken whole.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{StatVfs, fstatvfs, statvfs};

/// Bytes that are reserved at a time: a file system in memory takes its time for them, and whoever waits may be told to stop.
const PIECE_BYTES: libc::off_t = 1 << 30;
/// Unit of a file's `st_blocks`.
const STAT_BLOCK_BYTES: u64 = 512;

/// A file is to take more of its file system than there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lack {
    /// Bytes that the file has yet to take.
    pub needed_bytes: u64,
    /// Bytes that its file system has free.
    pub free_bytes: u64,
}

/// Whether a file of `bytes` at `path`, there or not, has less room than it needs. A device has all of its room, and a file system
/// that does not say how much it has is believed to have enough.
///
/// # Errors
/// Those of looking at the file, or at the directory of one that is missing.
pub fn lacks_room(path: &Path, bytes: u64) -> io::Result<Option<Lack>> {
    let (place, has) = match fs::metadata(path) {
        Ok(meta) if meta.is_file() => (path, meta.blocks() * STAT_BLOCK_BYTES),
        Ok(_) => return Ok(None),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            (path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")), 0)
        }
        Err(e) => return Err(e),
    };
    Ok(lack(&statvfs(place)?, bytes.saturating_sub(has)))
}

fn lack(system: &StatVfs, needed_bytes: u64) -> Option<Lack> {
    let free_bytes = system.f_bavail.saturating_mul(system.f_frsize);
    let is_known = system.f_blocks > 0;
    (is_known && needed_bytes > free_bytes).then_some(Lack { needed_bytes, free_bytes })
}

/// Takes the room of a whole file that keeps its size, all of it or none: a file system may leave half of it taken where it fails.
pub(crate) fn reserve_whole(file: &File) -> io::Result<()> {
    let meta = file.metadata()?;
    let needed_bytes = meta.len().saturating_sub(meta.blocks() * STAT_BLOCK_BYTES);
    match lack(&fstatvfs(file)?, needed_bytes) {
        Some(_) => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
        None => reserve(file, meta.len(), &|| false).map(drop),
    }
}

/// Takes the room of a file's first `bytes`, and makes it that long if it is shorter. False if the file system can reserve nothing:
/// then only what is written has its room. `stopped` is asked on the way.
///
/// # Errors
/// There is no room, or [`io::ErrorKind::Interrupted`] when it is `stopped`.
pub fn reserve(file: &File, bytes: u64, stopped: &dyn Fn() -> bool) -> io::Result<bool> {
    let Ok(bytes) = libc::off_t::try_from(bytes) else {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    };
    let mut at = 0;
    while at < bytes {
        if stopped() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let len = PIECE_BYTES.min(bytes - at);
        // SAFETY: fallocate takes no pointers; the descriptor is open.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, at, len) } == 0 {
            at += len;
            continue;
        }
        match io::Error::last_os_error() {
            e if e.kind() == io::ErrorKind::Interrupted => {}
            e if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => return Ok(false),
            e => return Err(e),
        }
    }
    Ok(true)
}

/// Makes a file longer, with room for what is added where the file system can reserve it, or shorter. After a failure it has the
/// size that it had.
pub(crate) fn resize(file: &File, size_bytes: u64) -> io::Result<bool> {
    let before = file.metadata()?.len();
    let resized = match size_bytes > before {
        true => reserve(file, size_bytes, &|| false),
        false => Ok(true),
    };
    let resized = resized.and_then(|reserved| {
        file.set_len(size_bytes)?;
        file.sync_all()?;
        Ok(reserved)
    });
    if resized.is_err() && size_bytes > before {
        // What was reserved goes again. If that fails, too, the first error is the one to tell.
        let _ = file.set_len(before);
    }
    resized
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_asked_for_and_taken_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        assert_eq!(lacks_room(&path, 4096).unwrap(), None);
        let lack = lacks_room(&path, u64::MAX).unwrap().unwrap();
        assert!(lack.needed_bytes == u64::MAX && lack.free_bytes < u64::MAX);
        let file = File::create(&path).unwrap();
        if reserve(&file, 1 << 20, &|| false).unwrap() {
            let meta = file.metadata().unwrap();
            assert!(meta.len() == 1 << 20 && meta.blocks() * STAT_BLOCK_BYTES >= 1 << 20);
            let lack = lacks_room(&path, u64::MAX).unwrap().unwrap();
            assert_eq!(lack.needed_bytes, u64::MAX - meta.blocks() * STAT_BLOCK_BYTES, "what it has counts");
        }
        let e = reserve(&file, 2 << 20, &|| true).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::Interrupted);
        assert_eq!(lacks_room(Path::new("/dev/null"), u64::MAX).unwrap(), None, "no file");
    }

    #[test]
    fn a_file_that_cannot_grow_stays_as_it_is() {
        let file = tempfile::tempfile().unwrap();
        resize(&file, 8192).unwrap();
        assert!(resize(&file, u64::MAX).is_err());
        assert_eq!(file.metadata().unwrap().len(), 8192);
        resize(&file, 4096).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 4096);
    }
}
