//! Naming and opening devices.
//!
//! A device is given as a path (regular file or block device), as `pmem:PATH` (memory-mapped file; for caches) or as
//! `emulate:KIND:file=PATH[,key=value...]` (a file that takes the time of another device); for backings also as the address of a
//! store on another machine, of one of the [`REMOTE_KINDS`].

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use forebay_guard::SideFile;
use thiserror::Error;

use crate::access::{Access, OpenError};
use crate::device::Device;
use crate::emulated::EmulatedDevice;
use crate::emulation::{EmulateSpec, absolute};
use crate::file::FileDevice;
use crate::mapped::MappedDevice;
use crate::nbd::NbdSpec;
use crate::rbd::RbdSpec;
use crate::remote::RemoteSpec;
use crate::ring::Ring;
use crate::s3::S3Spec;

/// Where a device is and how it is to be driven. Read from text, its path is absolute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSpec {
    /// A regular file or a block device, through io_uring.
    Path(PathBuf),
    /// A file that is mapped into memory: persistent memory with DAX, or tmpfs.
    Pmem(PathBuf),
    /// A file that takes the time of another device.
    Emulate(Box<EmulateSpec>),
    /// A store on another machine.
    Remote(Arc<dyn RemoteSpec>),
}

impl DeviceSpec {
    /// The file or block device that holds the bytes; of a store on another machine its address, which is for messages only.
    pub fn path(&self) -> &Path {
        match self {
            Self::Path(path) | Self::Pmem(path) => path,
            Self::Emulate(spec) => &spec.file,
            Self::Remote(spec) => spec.as_path(),
        }
    }

    /// The file or block device that holds the bytes, if it is of this machine.
    pub fn local(&self) -> Option<&Path> {
        if self.remote().is_some() { None } else { Some(self.path()) }
    }

    /// The store on another machine, if it is one.
    pub fn remote(&self) -> Option<&Arc<dyn RemoteSpec>> {
        match self {
            Self::Remote(spec) => Some(spec),
            Self::Path(_) | Self::Pmem(_) | Self::Emulate(_) => None,
        }
    }

    /// The name by which a superblock knows it again: its address, or its path without how it is driven.
    pub fn place(&self) -> String {
        match self.local() {
            Some(path) => std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string(),
            None => self.to_string(),
        }
    }
}

/// A kind of store on another machine.
struct RemoteKind {
    /// What its addresses begin with, before the colon.
    scheme: &'static str,
    /// How they are written.
    how: &'static str,
    /// Reads what follows the colon; else says what is wrong with it.
    read: fn(&str) -> Result<Arc<dyn RemoteSpec>, String>,
}

/// All that there are. A further one is a line here, and a folder with its [`RemoteSpec`].
const REMOTE_KINDS: &[RemoteKind] = &[
    RemoteKind {
        scheme: "nbd",
        how: "nbd://HOST:PORT/EXPORT",
        read: |rest| Ok(Arc::new(NbdSpec::read(false, rest)?)),
    },
    RemoteKind {
        scheme: "nbd+unix",
        how: "nbd+unix:///EXPORT?socket=PATH",
        read: |rest| Ok(Arc::new(NbdSpec::read(true, rest)?)),
    },
    RemoteKind { scheme: "rbd", how: "rbd:POOL/IMAGE", read: |rest| Ok(Arc::new(RbdSpec::read(rest)?)) },
    RemoteKind { scheme: "s3", how: "s3://BUCKET/PREFIX", read: |rest| Ok(Arc::new(S3Spec::read(rest)?)) },
];

impl RemoteKind {
    fn of_scheme(scheme: &str) -> Option<&'static Self> {
        REMOTE_KINDS.iter().find(|kind| kind.scheme == scheme)
    }

    /// How all of them are written, in words.
    fn all() -> String {
        let mut all = REMOTE_KINDS.iter().map(|kind| kind.how);
        let last = all.next_back().unwrap_or_default();
        format!("{} and {last}", all.collect::<Vec<_>>().join(", "))
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Pmem(path) => write!(f, "pmem:{}", path.display()),
            Self::Emulate(spec) => spec.fmt(f),
            Self::Remote(spec) => spec.fmt(f),
        }
    }
}

/// A device's name that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{given}' does not name a device; {why}")]
pub struct UnknownDevice {
    given: String,
    why: String,
}

impl FromStr for DeviceSpec {
    type Err = UnknownDevice;

    fn from_str(given: &str) -> Result<Self, UnknownDevice> {
        let unknown = |why| UnknownDevice { given: without_keys(given), why };
        let scheme = given.split_once(':').filter(|(scheme, _)| !scheme.contains('/'));
        match scheme {
            Some(("pmem", path)) if !path.is_empty() => Ok(Self::Pmem(absolute(path))),
            Some(("emulate", rest)) => {
                EmulateSpec::read(rest).map(|spec| Self::Emulate(Box::new(spec))).map_err(unknown)
            }
            None if !given.is_empty() => Ok(Self::Path(absolute(given))),
            _ => match scheme.and_then(|(scheme, rest)| Some((RemoteKind::of_scheme(scheme)?, rest))) {
                Some((kind, rest)) => (kind.read)(rest).map(Self::Remote).map_err(unknown),
                None => Err(unknown(format!(
                    "known are PATH (a file or block device; ./PATH if it has a colon), pmem:PATH, \
                     emulate:KIND:file=PATH (KIND is one of {}), and for backings {}",
                    EmulateSpec::kinds(),
                    RemoteKind::all()
                ))),
            },
        }
    }
}

/// An address for a message. Who writes a key before an `@` by mistake does not want to read it in a log.
fn without_keys(given: &str) -> String {
    match given.rsplit_once('@') {
        Some((before, after)) => {
            let begin = before.rfind("://").map_or("", |at| &before[..at + 3]);
            format!("{begin}...@{after}")
        }
        None => given.to_owned(),
    }
}

/// Opens a device for this process alone (P6).
///
/// The claim is a `flock` on the open file that also does the I/O, and `O_EXCL` on a block device: when a process is
/// killed, its claim lasts until the kernel has carried out the I/O that it had submitted, so that no late write can
/// land after a successor has started. For that the successor waits a little.
///
/// For reading alone the claim is the same, as far as the file system lets a file be locked that is open for reading. Mapped memory is
/// then read as a file is.
///
/// # Errors
/// [`OpenError`]; a missing file is never created.
pub fn open(spec: &DeviceSpec, ring: &Ring, access: Access) -> Result<Box<dyn Device>, OpenError> {
    Ok(match (spec, access) {
        (DeviceSpec::Pmem(path), Access::ReadWrite | Access::TakeOver) => Box::new(MappedDevice::open(path)?),
        (DeviceSpec::Path(path) | DeviceSpec::Pmem(path), _) => {
            Box::new(FileDevice::open(path, ring, access)?)
        }
        (DeviceSpec::Emulate(spec), _) => Box::new(EmulatedDevice::open(spec, ring, access)?),
        (DeviceSpec::Remote(spec), _) => spec.open(ring, access)?,
    })
}

/// As [`open`] of a path, of a file beside a backing.
///
/// # Errors
/// [`OpenError`].
pub fn open_side_file(file: &SideFile, ring: &Ring, access: Access) -> Result<Box<dyn Device>, OpenError> {
    Ok(Box::new(FileDevice::open_side_file(file, ring, access)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices() {
        let parse = |s: &str| s.parse::<DeviceSpec>();
        assert_eq!(parse("/dev/vdb"), Ok(DeviceSpec::Path("/dev/vdb".into())));
        assert_eq!(parse("pmem:/dev/shm/c"), Ok(DeviceSpec::Pmem("/dev/shm/c".into())));
        assert_eq!(
            parse("./with:colon"),
            Ok(DeviceSpec::Path(std::env::current_dir().unwrap().join("with:colon")))
        );
        for bad in ["", "pmem:", "floppy:a", "nbd+x:/y"] {
            let told = parse(bad).unwrap_err().to_string();
            assert!(told.contains("pmem:PATH") && told.contains("nbd://HOST:PORT/EXPORT"), "{told}");
        }
        assert_eq!(parse("pmem:/x").unwrap().to_string(), "pmem:/x");
        for export in ["nbd://store:10809/db", "nbd+unix:///db?socket=/run/s", "rbd:pool/db,id=fore"] {
            assert_eq!(parse(export).unwrap().to_string(), export);
        }
        let (export, again) = ("nbd://store:10809/db", parse("nbd://store:10809/db").unwrap());
        assert_eq!(parse(export), Ok(again.clone()));
        assert_ne!(parse("nbd://store:10809/db?timeout=2s"), Ok(again.clone()));
        assert_eq!((again.local(), again.place()), (None, export.to_owned()));
        let file = parse("pmem:/x").unwrap();
        assert_eq!((file.local(), file.place()), (Some(Path::new("/x")), "/x".to_owned()));
        let told = parse("s3://bucket/db,endpoint=https://key:secret@store").unwrap_err().to_string();
        assert!(told.starts_with("'s3://bucket/db,endpoint=https://...@store' does not name"), "{told}");
        let told = parse("nbd://").unwrap_err().to_string();
        assert!(told.contains("'nbd://' does not name a device; it names no host"), "{told}");
    }
    #[test]
    fn names_of_emulated_devices() {
        let parse = |s: &str| s.parse::<DeviceSpec>();
        for text in [
            "emulate:hdd-10k:file=/srv/a",
            "emulate:hdd-7k2:file=/srv/with:colon,rpm=5400,queue=1",
            "emulate:ssd-nvme:file=/a,sync=no,buffer=1G,plp=no",
            "emulate:remote:file=/a,latency=2ms,window=8",
        ] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        let spec = parse("emulate:hdd-10k:seed=7,sync=yes,file=/srv/a").unwrap();
        assert_eq!(
            (spec.path(), spec.to_string()),
            (Path::new("/srv/a"), "emulate:hdd-10k:file=/srv/a,seed=7".into())
        );
        for (bad, words) in [
            ("emulate:", "known are hdd-10k, hdd-7k2, ssd-sata, ssd-nvme, remote, nvdram"),
            ("emulate:hdd-10", "'hdd-10' is not a kind of device"),
            ("emulate:hdd-10k", "file=PATH is missing"),
            ("emulate:hdd-10k:", "file=PATH is missing"),
            ("emulate:hdd-10k:file=", "file=PATH is missing"),
            (
                "emulate:hdd-10k:/srv/a",
                "'/srv/a' is not KEY=VALUE; an emulated device is emulate:KIND:file=PATH",
            ),
            ("emulate:hdd-10k:file=a,file=b", "given twice"),
            ("emulate:hdd-10k:file=a,rmp=5400", "hdd-10k has no parameter 'rmp'; it has size, rpm, heads"),
            ("emulate:hdd-10k:file=a,rpm=0", "rpm lies between 60 and"),
            ("emulate:hdd-10k:file=a,seek-full=1ms", "no arm seeks like that"),
            ("emulate:ssd-sata:file=a,sync=maybe", "sync is yes or no"),
        ] {
            let told = parse(bad).unwrap_err().to_string();
            assert!(told.contains(words), "{bad}: {told}");
        }
    }
}
