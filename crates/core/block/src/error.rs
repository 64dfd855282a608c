//! Errors of the block service and of devices.

use std::sync::Arc;
use std::{fmt, io};

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
    /// Another host has taken the store over, for good: nothing that this one asks for is carried out any more (P6). A
    /// client sees EIO.
    Fenced,
}

/// What somebody answered who failed an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The system, with a Linux errno.
    System(i32),
    /// A store on another machine, in its own words, such as `HTTP 503 SlowDown`.
    Store(Arc<str>),
}

/// In words for a person.
impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(errno) => f.write_str(&describe_errno(*errno)),
            Self::Store(words) => f.write_str(words),
        }
    }
}

/// Who failed an operation, and where on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// What was answered.
    pub answer: Answer,
    /// Byte offset of the operation; `None` where it has none.
    pub offset: Option<u64>,
}

impl Cause {
    /// The Linux errno, where the system answered.
    pub const fn errno(&self) -> Option<i32> {
        match self.answer {
            Answer::System(errno) => Some(errno),
            Answer::Store(_) => None,
        }
    }
}

/// A failed operation: what kind, and during what.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{context}{}", self.answer())]
pub struct IoError {
    /// The stable kind.
    pub kind: ErrorKind,
    /// What was being done, in words for a person.
    pub context: &'static str,
    /// What was answered, where it was the system or a store that failed it.
    pub cause: Option<Cause>,
}

impl IoError {
    /// An error of `kind` that happened during `context`.
    pub const fn new(kind: ErrorKind, context: &'static str) -> Self {
        Self { kind, context, cause: None }
    }

    /// An error that the system answered, of an operation at this byte offset.
    pub const fn of_system(errno: i32, context: &'static str, offset: Option<u64>) -> Self {
        let cause = Cause { answer: Answer::System(errno), offset };
        Self { kind: ErrorKind::from_errno(errno), context, cause: Some(cause) }
    }

    /// An error of `kind` that a store on another machine answered, in its own words, of an operation at this byte offset.
    pub fn of_store(
        kind: ErrorKind,
        context: &'static str,
        words: impl Into<Arc<str>>,
        offset: Option<u64>,
    ) -> Self {
        Self { kind, context, cause: Some(Cause { answer: Answer::Store(words.into()), offset }) }
    }

    fn answer(&self) -> String {
        match &self.cause {
            Some(Cause { answer, offset: Some(offset) }) => format!(" at byte {offset}: {answer}"),
            Some(Cause { answer, offset: None }) => format!(": {answer}"),
            None => format!(": {}", self.kind.describe()),
        }
    }
}

/// What a Linux errno of a device or of the file system below it means, in one phrase for a person: in the system's words where it has no
/// meaning of its own here.
pub fn describe_errno(errno: i32) -> String {
    let words = match errno {
        1 => "operation not permitted",
        5 => "input/output error",
        6 | 19 => "the device is gone",
        12 => "the system has no memory left",
        22 => "invalid request",
        27 => "the file may not become so large",
        28 => "no space left on the device",
        30 => "read-only file system",
        95 => "operation not supported by the device",
        107 | 108 => "not connected any more",
        110 => "no answer in time",
        116 => "the file is gone from its server (stale file handle)",
        117 => "the file system below is damaged",
        121 => "remote input/output error",
        122 => "the disk quota is used up",
        _ => return words_of(&io::Error::from_raw_os_error(errno)),
    };
    words.to_owned()
}

/// What the system answered, in its own words, without its number.
pub fn words_of(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
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
            Self::Fenced => "another host has taken the backing over",
        }
    }

    /// The Linux errno that a client of the volume is shown.
    pub const fn errno(self) -> i32 {
        match self {
            Self::Io | Self::Corrupt | Self::Fenced => 5,
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
            27 | 28 | 122 => Self::NoSpace,
            22 => Self::Invalid,
            95 => Self::Unsupported,
            1 | 30 => Self::ReadOnly,
            _ => Self::Io,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_system_says_what_and_where() {
        let full = IoError::of_system(28, "writing to a device", Some(4096));
        assert_eq!(full.to_string(), "writing to a device at byte 4096: no space left on the device");
        let quota = IoError::of_system(122, "flushing a device", None);
        assert_eq!(quota.to_string(), "flushing a device: the disk quota is used up");
        assert_eq!(full.cause.unwrap().errno(), Some(28));
        assert_eq!([27, 28, 122].map(ErrorKind::from_errno), [ErrorKind::NoSpace; 3]);
        assert_eq!(IoError::new(ErrorKind::Io, "reading").to_string(), "reading: input/output error");
        let busy = IoError::of_store(ErrorKind::Io, "writing an object", "HTTP 503 SlowDown", Some(512));
        assert_eq!(busy.to_string(), "writing an object at byte 512: HTTP 503 SlowDown");
        assert_eq!(busy.cause.unwrap().errno(), None);
    }
}
