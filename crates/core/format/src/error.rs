//! Why bytes were not accepted.

use thiserror::Error;

/// Why a structure read from a medium was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// Fewer bytes than the structure has.
    #[error("the structure is cut short")]
    Truncated,
    /// The magic number is another one: never written, or something else.
    #[error("no Forebay structure is here")]
    Magic,
    /// The checksum does not match the bytes.
    #[error("the checksum does not match")]
    Checksum,
    /// Written by a release whose format this one does not know.
    #[error("format version {0} is not known to this release")]
    Version(u32),
    /// A field's value makes no sense, although the checksum matches and the structure is where it belongs: corruption, and no torn write.
    #[error("field '{0}' has an impossible value")]
    Field(&'static str),
    /// Belongs to another cache, or to an earlier lap or run.
    #[error("belongs to another cache, run or lap")]
    Foreign,
}
