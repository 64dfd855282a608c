//! A cache image that is only read, with daemons kept out while it is.

use std::fs::{File, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use forebay_control::FailureKind;
use forebay_device::DeviceSpec;
use forebay_guard::lock_holder;
use forebay_verify::CheckError;

use crate::failure::Failure;

/// How long a lock is waited for: that of a killed daemon goes when its last I/O has ended.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// How often it is tried.
const LOCK_POLL: Duration = Duration::from_millis(20);

/// Opens a cache for reading. Daemons lock their devices exclusively, so a shared lock says that none is writing; it is
/// held for as long as the file is open.
pub fn open(cache: &DeviceSpec) -> Result<File, Failure> {
    let file = File::open(cache.path()).map_err(|e| {
        Failure::new(FailureKind::Failed, format!("cannot open {cache}: {}", forebay_block::words_of(&e)))
    })?;
    let begun = Instant::now();
    loop {
        let (kind, message) = match file.try_lock_shared() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if begun.elapsed() < LOCK_PATIENCE => {
                thread::sleep(LOCK_POLL);
                continue;
            }
            Err(TryLockError::WouldBlock) => (
                FailureKind::Refused,
                match lock_holder(&file) {
                    Some(who) => {
                        format!(
                            "{cache} is in use by another process ({who}); stop it first, or look at a copy"
                        )
                    }
                    None => format!("{cache} is in use by another process; stop it first, or look at a copy"),
                },
            ),
            Err(TryLockError::Error(e)) => {
                (FailureKind::Failed, format!("cannot lock {cache}: {}", forebay_block::words_of(&e)))
            }
        };
        return Err(Failure::new(kind, message));
    }
}

/// Why an image could not be looked at.
pub fn failure(cache: &DeviceSpec, e: &CheckError) -> Failure {
    let kind = match e {
        CheckError::NoCache | CheckError::UnknownVersion(_) => FailureKind::Refused,
        CheckError::NoBlock { .. } => FailureKind::Usage,
        CheckError::SuperblocksDamaged => FailureKind::Corrupt,
        CheckError::Io(_) => FailureKind::Failed,
    };
    Failure::new(kind, format!("{cache}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_about_to_go_is_waited_for() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let cache: DeviceSpec = file.path().to_str().unwrap().parse().unwrap();
        let held = file.reopen().unwrap();
        held.lock().unwrap();
        let dying = thread::spawn(move || {
            thread::sleep(LOCK_POLL * 5);
            drop(held);
        });
        open(&cache).unwrap();
        dying.join().unwrap();

        let held = file.reopen().unwrap();
        held.lock().unwrap();
        let e = open(&cache).unwrap_err();
        assert_eq!(e.kind, FailureKind::Refused);
        assert!(e.message.contains(&format!("pid {}", std::process::id())), "{e}");
    }
}
