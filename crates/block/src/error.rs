//! Errors of the block service and of devices.

use thiserror::Error;

/// The stable kind of a failed operation; corruption and I/O failure never share a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// A device answered with an error (EIO).
    Io,
    /// Data was read whose checksum does not match (P5); a client sees EIO.
    Corrupt,
    /// A device has no room (ENOSPC).
    NoSpace,
    /// The request is malformed or lies outside the volume (EINVAL).
    Invalid,
    /// The device or file system cannot do this operation (EOPNOTSUPP).
    Unsupported,
    /// The volume does not accept writes (EPERM).
    ReadOnly,
    /// The volume is stopping (ESHUTDOWN).
    Shutdown,
}

/// A failed operation: what kind, and during what.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{context}: {}", self.kind.describe())]
pub struct IoError {
    /// The stable kind.
    pub kind: ErrorKind,
    /// What was being done, in words for a person.
    pub context: &'static str,
}

impl IoError {
    /// An error of `kind` that happened during `context`.
    pub const fn new(kind: ErrorKind, context: &'static str) -> Self {
        Self { kind, context }
    }
}

impl ErrorKind {
    /// One phrase for a person.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Io => "input/output error",
            Self::Corrupt => "data failed its checksum",
            Self::NoSpace => "no space left on the device",
            Self::Invalid => "invalid request",
            Self::Unsupported => "operation not supported by the device",
            Self::ReadOnly => "the volume is read-only",
            Self::Shutdown => "the volume is stopping",
        }
    }

    /// The Linux errno that a client of the volume is shown.
    pub const fn errno(self) -> i32 {
        match self {
            Self::Io | Self::Corrupt => 5,
            Self::NoSpace => 28,
            Self::Invalid => 22,
            Self::Unsupported => 95,
            Self::ReadOnly => 1,
            Self::Shutdown => 108,
        }
    }

    /// The kind that stands for a Linux errno returned by a device.
    pub const fn from_errno(errno: i32) -> Self {
        match errno {
            28 | 122 => Self::NoSpace,
            22 => Self::Invalid,
            95 => Self::Unsupported,
            1 | 30 => Self::ReadOnly,
            _ => Self::Io,
        }
    }
}
