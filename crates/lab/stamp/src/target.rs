//! What is written to and read from.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::direct::DirectFile;
use crate::nbd::NbdConnection;

/// Why a request did not succeed.
#[derive(Debug)]
pub enum Failure {
    /// The volume answered with this error number.
    Refused(i32),
    /// There is nobody to answer any more.
    Lost(io::Error),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(errno) => write!(f, "{}", errno_name(*errno)),
            Self::Lost(e) => write!(f, "lost: {e}"),
        }
    }
}

/// The names that options and reports use.
const ERRNO_NAMES: &[(&str, i32)] = &[
    ("eperm", 1),
    ("eio", 5),
    ("enomem", 12),
    ("einval", 22),
    ("enospc", 28),
    ("eopnotsupp", 95),
    ("eshutdown", 108),
];

/// Name of an error number in lower case, or the number.
pub(crate) fn errno_name(errno: i32) -> String {
    let known = ERRNO_NAMES.iter().find(|(_, n)| *n == errno);
    known.map_or_else(|| errno.to_string(), |(name, _)| (*name).to_owned())
}

/// The error number of a name.
pub(crate) fn errno_of(name: &str) -> Option<i32> {
    ERRNO_NAMES.iter().find(|(n, _)| *n == name).map(|(_, n)| *n)
}

/// An open volume. Each user has one of its own.
pub trait Target: Send {
    /// Size in bytes.
    fn size_bytes(&self) -> u64;

    /// Reads `bytes` whole.
    ///
    /// # Errors
    /// [`Failure`]; the bytes mean nothing then.
    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<(), Failure>;

    /// Writes `bytes`; with `fua` they are durable then, where the target can do that for single writes.
    ///
    /// # Errors
    /// [`Failure`]; the outcome is not known then.
    fn write(&mut self, offset: u64, bytes: &[u8], fua: bool) -> Result<(), Failure>;

    /// Makes a range read as zeroes; with `unmap` its space may be given back.
    ///
    /// # Errors
    /// [`Failure`]; the outcome is not known then.
    fn zero(&mut self, offset: u64, len: u64, unmap: bool) -> Result<(), Failure>;

    /// Makes everything that was acknowledged durable.
    ///
    /// # Errors
    /// [`Failure`].
    fn flush(&mut self) -> Result<(), Failure>;
}

/// Which volume, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetSpec {
    /// An export of an NBD server: `nbd:unix:PATH[:EXPORT]`.
    Nbd {
        /// The server's socket.
        socket: PathBuf,
        /// Name of the export; empty for the default one.
        export: String,
    },
    /// A file or a block device: `file:PATH`.
    File(PathBuf),
}

impl FromStr for TargetSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("file:") {
            return Ok(Self::File(path.into()));
        }
        let Some(rest) = text.strip_prefix("nbd:unix:") else {
            return Err("a target is nbd:unix:PATH[:EXPORT] or file:PATH".into());
        };
        let (socket, export) = rest.split_once(':').unwrap_or((rest, ""));
        Ok(Self::Nbd { socket: socket.into(), export: export.into() })
    }
}

impl TargetSpec {
    /// Opens it. No answer within `patience` is a loss.
    ///
    /// # Errors
    /// As the system or the server gives them.
    pub fn open(&self, patience: Duration) -> io::Result<Box<dyn Target>> {
        Ok(match self {
            Self::Nbd { socket, export } => Box::new(NbdConnection::open(socket, export, patience)?),
            Self::File(path) => Box::new(DirectFile::open(path)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_from_text() {
        let nbd =
            |socket: &str, export: &str| TargetSpec::Nbd { socket: socket.into(), export: export.into() };
        assert_eq!("nbd:unix:/s".parse(), Ok(nbd("/s", "")));
        assert_eq!("nbd:unix:/s:db".parse(), Ok(nbd("/s", "db")));
        assert_eq!("file:/dev/loop1".parse(), Ok(TargetSpec::File("/dev/loop1".into())));
        assert!("tcp:x".parse::<TargetSpec>().is_err());
    }

    #[test]
    fn error_numbers_have_names() {
        assert_eq!(errno_name(5), "eio");
        assert_eq!(errno_name(77), "77");
        assert!(ERRNO_NAMES.iter().all(|(name, n)| errno_of(name) == Some(*n)));
    }
}
