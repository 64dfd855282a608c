//! The bytes of objects. Each begins with a header and a table that one checksum covers; the data of a log object follows them in pieces
//! with checksums of their own, so that a ranged read proves what it reads. `docs/design/object-volume.md` has the fields.

mod checkpoint;
mod cursor;
mod header;
mod log;
mod marks;
mod payload;
#[cfg(test)]
mod tests;

use thiserror::Error;

pub(crate) use checkpoint::{Ended, ExtentPart, Manifest, ObjectEntry, ObjectPart, Pointer, StoredExtent};
pub(crate) use header::{HEADER_BYTES, Identity, Stamp, head_bytes, identity_of};
pub(crate) use log::{Extent, ExtentKind, LogHead, Note};
pub(crate) use marks::{Fence, VolumeMark, claim_bytes, claim_of};
pub(crate) use payload::{Span, payload_bytes, read_pieces};

/// Largest volume in sectors of 512 bytes: 4 PiB.
pub(crate) const VOLUME_SECTORS_MAX: u64 = 1 << 43;

/// Most sectors of data in an object of the log.
pub(crate) const OBJECT_SECTORS_MAX: u32 = 1 << 15;

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Damage {
    #[error("it is cut short")]
    Truncated,
    #[error("it is no object of a Forebay volume")]
    Magic,
    #[error("its checksum does not match")]
    Checksum,
    #[error("its format version {0} is not known to this release")]
    Version(u16),
    #[error("it is another kind of object")]
    Kind,
    #[error("it belongs to another volume, or lies under another object's name")]
    Foreign,
    #[error("its field '{0}' has an impossible value")]
    Field(&'static str),
}
