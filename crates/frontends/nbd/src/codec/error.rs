//! Error numbers on the wire.

use std::fmt;

use forebay_block::ErrorKind;

/// An error number of the protocol; 0 is success. Its values are those of Linux for the few that it defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NbdError(pub u32);

impl NbdError {
    /// Success.
    pub const OK: Self = Self(0);
    /// Not permitted: the export is read-only.
    pub const EPERM: Self = Self(1);
    /// Input/output error.
    pub const EIO: Self = Self(5);
    /// Out of memory.
    pub const ENOMEM: Self = Self(12);
    /// Malformed request.
    pub const EINVAL: Self = Self(22);
    /// No space, or a write past the end.
    pub const ENOSPC: Self = Self(28);
    /// A reply would be too long.
    pub const EOVERFLOW: Self = Self(75);
    /// Not supported.
    pub const ENOTSUP: Self = Self(95);
    /// The server is stopping.
    pub const ESHUTDOWN: Self = Self(108);

    /// The kind of error that a client of this server makes of it; `None` for success.
    pub const fn kind(self) -> Option<ErrorKind> {
        Some(match self {
            Self::OK => return None,
            Self::EPERM => ErrorKind::ReadOnly,
            Self::EINVAL | Self::EOVERFLOW => ErrorKind::Invalid,
            Self::ENOSPC => ErrorKind::NoSpace,
            Self::ENOTSUP => ErrorKind::Unsupported,
            Self::ESHUTDOWN => ErrorKind::Shutdown,
            _ => ErrorKind::Io,
        })
    }
}

impl NbdError {
    /// What the protocol calls it; `None` for success, and for what it does not know.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::EPERM => "EPERM",
            Self::EIO => "EIO",
            Self::ENOMEM => "ENOMEM",
            Self::EINVAL => "EINVAL",
            Self::ENOSPC => "ENOSPC",
            Self::EOVERFLOW => "EOVERFLOW",
            Self::ENOTSUP => "ENOTSUP",
            Self::ESHUTDOWN => "ESHUTDOWN",
            _ => return None,
        })
    }
}

impl From<ErrorKind> for NbdError {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Io | ErrorKind::Corrupt | ErrorKind::Fenced => Self::EIO,
            ErrorKind::NoSpace => Self::ENOSPC,
            ErrorKind::Invalid => Self::EINVAL,
            ErrorKind::Unsupported => Self::ENOTSUP,
            ErrorKind::ReadOnly => Self::EPERM,
            ErrorKind::Shutdown => Self::ESHUTDOWN,
        }
    }
}

impl fmt::Display for NbdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            None => f.write_str("success"),
            Some(kind) => match self.name() {
                Some(name) => write!(f, "NBD error {name}: {}", kind.describe()),
                None => write!(f, "NBD error {}: {}", self.0, kind.describe()),
            },
        }
    }
}
