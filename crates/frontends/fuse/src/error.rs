//! What can go wrong with mounting and attaching, in words that say what to do.

use std::io;
use std::path::{Path, PathBuf};

use forebay_block::words_of;
use thiserror::Error;

/// A failed mount, unmount, attach or detach.
#[derive(Debug, Error)]
pub enum FuseError {
    /// FILE is something else than a regular file, or holds data that a mount would hide.
    #[error("{} {problem}; give a path that does not exist or an empty regular file", path.display())]
    Unsuitable {
        /// FILE.
        path: PathBuf,
        /// What it is.
        problem: &'static str,
    },
    /// A live FUSE file system is mounted on FILE already.
    #[error("{} is already served by a running program; stop it first", path.display())]
    InUse {
        /// FILE.
        path: PathBuf,
    },
    /// A FUSE file system is mounted on FILE and does not answer.
    #[error(
        "{} is mounted, but the program behind it does not answer; end that program, or run `umount -f -l {}`",
        path.display(), path.display()
    )]
    Hung {
        /// FILE.
        path: PathBuf,
    },
    /// The process lacks the right to mount.
    #[error("mounting {} needs root (CAP_SYS_ADMIN) and /dev/fuse; without them, use --nbd", path.display())]
    NotPermitted {
        /// FILE.
        path: PathBuf,
    },
    /// The device or file is in use; nothing was changed.
    #[error("{} is in use ({by}); stop that first", what.display())]
    Busy {
        /// Device or FILE.
        what: PathBuf,
        /// By what, as far as is known.
        by: String,
    },
    /// The loop device was given up, but a program still has it open: it goes away when that program closes it.
    #[error("{} is still held open by a program; it will go away when that program closes it", device.display())]
    StillOpen {
        /// The loop device.
        device: PathBuf,
    },
    /// The kernel would drop the flushes to the loop device, so that nothing on it would be durable; nothing was attached.
    #[error(
        "{} would send no flush, and nothing written to it would be durable: {} cannot be made \"write back\" ({reason}); \
         write that there as root, where /sys is writable, and attach again",
        device.display(), attribute.display()
    )]
    NoFlush {
        /// The loop device.
        device: PathBuf,
        /// The attribute of its queue.
        attribute: PathBuf,
        /// Why it cannot be set.
        reason: String,
    },
    /// A system call failed.
    #[error("cannot {action} {}: {}", path.display(), words_of(.source))]
    System {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl FuseError {
    /// A failed system call on `path`.
    pub(crate) fn system(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::System { action, path: path.to_owned(), source }
    }
}
