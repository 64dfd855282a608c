//! What failures of the other crates are to a user: a kind, which is the exit code, and one sentence.

use forebay_control::{ControlError, FailureKind};
use forebay_fuse::FuseError;
use forebay_host::{ErrorClass, HostError};
use forebay_nbd::ServerError;

/// What a command ends with when it does not succeed: a kind, which is the exit code, and one sentence.
pub type Failure = ControlError;

/// Result of a command.
pub type Outcome = Result<(), Failure>;

/// A failure of a volume, or of making one.
pub fn from_host(e: &HostError) -> Failure {
    let kind = match e.class() {
        ErrorClass::Failed => FailureKind::Failed,
        ErrorClass::Refused => FailureKind::Refused,
        ErrorClass::Corrupt => FailureKind::Corrupt,
    };
    Failure::new(kind, e.to_string())
}

/// A failure to make a file or a block device of a volume, or to take it away.
pub fn from_fuse(e: &FuseError) -> Failure {
    let kind = match e {
        FuseError::Unsuitable { .. }
        | FuseError::InUse { .. }
        | FuseError::Busy { .. }
        | FuseError::NoFlush { .. } => FailureKind::Refused,
        FuseError::Hung { .. }
        | FuseError::NotPermitted { .. }
        | FuseError::StillOpen { .. }
        | FuseError::System { .. } => FailureKind::Failed,
    };
    Failure::new(kind, e.to_string())
}

/// A failure to serve NBD clients.
pub fn from_nbd(e: &ServerError) -> Failure {
    let kind = match e {
        ServerError::InUse { .. } | ServerError::NotASocket { .. } | ServerError::Kept { .. } => {
            FailureKind::Refused
        }
        ServerError::ExportName { .. } => FailureKind::Usage,
        ServerError::Bind { .. } | ServerError::Tls(_) | ServerError::Thread(_) => FailureKind::Failed,
    };
    Failure::new(kind, e.to_string())
}
