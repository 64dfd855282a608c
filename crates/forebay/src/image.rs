//! A cache image that is only read, with daemons kept out while it is.

use std::fs::{File, TryLockError};

use forebay_control::FailureKind;
use forebay_device::DeviceSpec;
use forebay_verify::CheckError;

use crate::cli::Failure;

/// Opens a cache for reading. Daemons lock their devices exclusively, so a shared lock says that none is writing; it is
/// held for as long as the file is open.
pub fn open(cache: &DeviceSpec) -> Result<File, Failure> {
    let file = File::open(cache.path())
        .map_err(|e| Failure::new(FailureKind::Failed, format!("cannot open {cache}: {e}")))?;
    match file.try_lock_shared() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let message = format!("{cache} is in use by a running daemon; stop it first, or look at a copy");
            Err(Failure::new(FailureKind::Refused, message))
        }
        Err(TryLockError::Error(e)) => {
            Err(Failure::new(FailureKind::Failed, format!("cannot lock {cache}: {e}")))
        }
    }
}

/// Why an image could not be looked at.
pub fn failure(cache: &DeviceSpec, e: &CheckError) -> Failure {
    let kind = match e {
        CheckError::NoCache | CheckError::UnknownVersion(_) => FailureKind::Refused,
        CheckError::SuperblocksDamaged => FailureKind::Corrupt,
        CheckError::Io(_) => FailureKind::Failed,
    };
    Failure::new(kind, format!("{cache}: {e}"))
}
