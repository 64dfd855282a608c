//! Naming and opening devices.
//!
//! A device is given as a path (regular file or block device) or as `pmem:PATH` (memory-mapped file; for caches).

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

use crate::device::Device;
use crate::file::FileDevice;
use crate::mapped::MappedDevice;
use crate::ring::Ring;

/// Where a device is and how it is to be driven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSpec {
    /// A regular file or a block device, through io_uring.
    Path(PathBuf),
    /// A file that is mapped into memory: persistent memory with DAX, or tmpfs.
    Pmem(PathBuf),
}

impl DeviceSpec {
    /// The file or block device that holds the bytes.
    pub fn path(&self) -> &Path {
        match self {
            Self::Path(path) | Self::Pmem(path) => path,
        }
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Pmem(path) => write!(f, "pmem:{}", path.display()),
        }
    }
}

/// A device's name that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "'{given}' does not name a device; known are PATH (a file or block device; ./PATH if it has a colon) and pmem:PATH"
)]
pub struct UnknownDevice {
    given: String,
}

impl FromStr for DeviceSpec {
    type Err = UnknownDevice;

    fn from_str(given: &str) -> Result<Self, UnknownDevice> {
        let unknown = || UnknownDevice { given: given.to_owned() };
        let scheme = given.split_once(':').filter(|(scheme, _)| !scheme.contains('/'));
        match scheme {
            Some(("pmem", path)) if !path.is_empty() => Ok(Self::Pmem(path.into())),
            Some(_) => Err(unknown()),
            None if given.is_empty() => Err(unknown()),
            None => Ok(Self::Path(given.into())),
        }
    }
}

/// Why a device could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// There is nothing at the path.
    #[error("{} does not exist (nothing is created silently: `truncate -s SIZE` or `forebay format` makes it)", .path.display())]
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// Somebody else uses it (P6).
    #[error("{} is in use by {holder}", .path.display())]
    InUse {
        /// The path.
        path: PathBuf,
        /// Who, as far as can be found out.
        holder: String,
    },
    /// It is something that cannot be a device.
    #[error("{} is {what}, neither a regular file nor a block device", .path.display())]
    NotADevice {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The system refused.
    #[error("cannot {doing} {}: {source}", .path.display())]
    System {
        /// What was tried.
        doing: &'static str,
        /// On which path.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl OpenError {
    pub(crate) fn system(doing: &'static str, path: &Path, source: io::Error) -> Self {
        Self::System { doing, path: path.to_owned(), source }
    }
}

/// Opens a device for reading and writing, for this process alone (P6).
///
/// The claim is a `flock` on the open file that also does the I/O, and `O_EXCL` on a block device: when a process is
/// killed, its claim lasts until the kernel has carried out the I/O that it had submitted, so that no late write can
/// land after a successor has started. For that the successor waits a little.
///
/// # Errors
/// [`OpenError`]; a missing file is never created.
pub fn open(spec: &DeviceSpec, ring: &Ring) -> Result<Box<dyn Device>, OpenError> {
    Ok(match spec {
        DeviceSpec::Path(path) => Box::new(FileDevice::open(path, ring)?),
        DeviceSpec::Pmem(path) => Box::new(MappedDevice::open(path)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices() {
        let parse = |s: &str| s.parse::<DeviceSpec>();
        assert_eq!(parse("/dev/vdb"), Ok(DeviceSpec::Path("/dev/vdb".into())));
        assert_eq!(parse("pmem:/dev/shm/c"), Ok(DeviceSpec::Pmem("/dev/shm/c".into())));
        assert_eq!(parse("./with:colon"), Ok(DeviceSpec::Path("./with:colon".into())));
        for bad in ["", "pmem:", "floppy:a", "nbd+x:/y"] {
            let told = parse(bad).unwrap_err().to_string();
            assert!(told.contains("pmem:PATH"), "{told}");
        }
        assert_eq!(parse("pmem:/x").unwrap().to_string(), "pmem:/x");
    }
}
