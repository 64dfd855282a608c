//! One at a time, by a lock that other users cannot take.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use forebay_block::words_of;
use rustix::fs::OFlags;
use thiserror::Error;

use crate::who::{lock_holder, user_name};

/// How long a turn is waited for.
const WAIT: Duration = Duration::from_secs(2);
/// How often it is tried.
const POLL: Duration = Duration::from_millis(10);

/// Why it is not one's turn.
#[derive(Debug, Error)]
pub enum TurnError {
    /// Another process has it for too long.
    #[error("{} is locked by {holder}, which is there for an instant only; end that process", .path.display())]
    Held {
        /// The lock file.
        path: PathBuf,
        /// Who.
        holder: String,
    },
    /// Another user has put something in its place.
    #[error("{} belongs to user {owner}; remove it, or choose a directory that is yours", .path.display())]
    Foreign {
        /// The lock file.
        path: PathBuf,
        /// The name of the user.
        owner: String,
    },
    /// The system refused.
    #[error("{}", words_of(.0))]
    Io(#[from] io::Error),
}

/// A turn at whatever lies at a path. It is a lock on a file beside it that only its user can open: a directory can be locked by
/// whoever can read it, for ever. The file goes with the turn.
#[derive(Debug)]
pub(crate) struct Turn {
    path: PathBuf,
    _locked: File,
}

impl Turn {
    /// Waits for the turn at `path`, but not for long.
    pub(crate) fn at(path: &Path) -> Result<Self, TurnError> {
        let mut lock = path.as_os_str().to_owned();
        lock.push(".lock");
        let path = PathBuf::from(lock);
        let begun = Instant::now();
        loop {
            let Some(file) = open(&path)? else { continue };
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) if begun.elapsed() < WAIT => {
                    thread::sleep(POLL);
                    continue;
                }
                Err(TryLockError::WouldBlock) => {
                    let holder =
                        lock_holder(&file).map_or("another process".to_owned(), |who| who.to_string());
                    return Err(TurnError::Held { path, holder });
                }
                Err(TryLockError::Error(e)) => return Err(e.into()),
            }
            // Who had the turn before has removed the file with it.
            let (ours, there) = (file.metadata()?, fs::symlink_metadata(&path));
            if there.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
                return Ok(Self { path, _locked: file });
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // One that stays is taken up by the next.
        let _ = fs::remove_file(&self.path);
    }
}

/// The lock file, made if it is missing; `None` if it went in between.
fn open(path: &Path) -> Result<Option<File>, TurnError> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600).custom_flags(flags.bits() as i32);
    let opened = match options.create_new(true).open(path) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => match options.create_new(false).open(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened,
        },
        made => made,
    };
    let found = match opened {
        Ok(file) => {
            let meta = file.metadata()?;
            if meta.is_file() && is_ours(meta.uid()) {
                return Ok(Some(file));
            }
            meta
        }
        Err(e) => match fs::symlink_metadata(path) {
            // Root's, too, where we are not root.
            Ok(meta)
                if !meta.is_file() || !is_ours(meta.uid()) || e.kind() == ErrorKind::PermissionDenied =>
            {
                meta
            }
            _ => return Err(e.into()),
        },
    };
    Err(TurnError::Foreign { path: path.to_owned(), owner: user_name(found.uid()) })
}

fn is_ours(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_waits_for_the_other_and_nothing_stays_behind() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let (first, waits) = (Turn::at(&path).unwrap(), path.clone());
        let second = thread::spawn(move || Turn::at(&waits).map(drop));
        thread::sleep(POLL * 3);
        assert!(!second.is_finished());
        drop(first);
        second.join().unwrap().unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn who_keeps_the_turn_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let _kept = Turn::at(&path).unwrap();
        let e = Turn::at(&path).unwrap_err().to_string();
        assert!(e.contains("s.lock is locked by pid ") && e.contains(&std::process::id().to_string()), "{e}");
    }

    #[test]
    fn there_is_no_turn_in_a_missing_directory() {
        let directory = tempfile::tempdir().unwrap();
        let e = Turn::at(&directory.path().join("missing").join("s")).unwrap_err();
        assert!(matches!(e, TurnError::Io(e) if e.kind() == ErrorKind::NotFound));
    }

    #[test]
    fn a_lock_on_the_directory_keeps_nobody_out() {
        let directory = tempfile::tempdir().unwrap();
        let held = File::open(directory.path()).unwrap();
        held.lock().unwrap();
        Turn::at(&directory.path().join("s")).unwrap();
    }

    #[test]
    fn neither_links_nor_pipes_are_taken_for_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let (path, victim) = (directory.path().join("s"), directory.path().join("victim"));
        std::os::unix::fs::symlink(&victim, directory.path().join("s.lock")).unwrap();
        assert!(matches!(Turn::at(&path), Err(TurnError::Foreign { .. })));
        assert!(!victim.exists());
        fs::remove_file(directory.path().join("s.lock")).unwrap();
        let pipe = directory.path().join("s.lock");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
            .unwrap();
        assert!(matches!(Turn::at(&path), Err(TurnError::Foreign { .. })));
    }
}
