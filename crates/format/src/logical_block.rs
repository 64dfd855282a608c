//! The logical block of a volume, as superblock and label record it.
//!
//! Volumes with logical blocks of 512 bytes are what they were before there was a choice: version 1, and 0 in the field.

use crate::FormatError;
use crate::superblock::{FORMAT_VERSION, FORMAT_VERSION_LOGICAL_BLOCK};

/// Smallest logical block of a volume, in bytes; that of volumes whose superblock says nothing.
pub const LOGICAL_BLOCK_MIN: u32 = 512;
/// Largest logical block of a volume, in bytes: one block of the log.
pub const LOGICAL_BLOCK_MAX: u32 = 4096;

/// Whether a volume can have logical blocks of so many bytes.
pub const fn is_valid(bytes: u32) -> bool {
    bytes.is_power_of_two() && bytes >= LOGICAL_BLOCK_MIN && bytes <= LOGICAL_BLOCK_MAX
}

/// Version of a superblock with logical blocks of so many bytes; labels have the same.
pub(crate) const fn version(bytes: u32) -> u32 {
    if bytes == LOGICAL_BLOCK_MIN { FORMAT_VERSION } else { FORMAT_VERSION_LOGICAL_BLOCK }
}

/// What stands in the field.
pub(crate) const fn field(bytes: u32) -> u32 {
    if bytes == LOGICAL_BLOCK_MIN { 0 } else { bytes }
}

/// What `field` says in a structure of this version.
pub(crate) fn of(version: u32, field: u32) -> Result<u32, FormatError> {
    match version {
        FORMAT_VERSION => Ok(LOGICAL_BLOCK_MIN),
        _ if is_valid(field) && field > LOGICAL_BLOCK_MIN => Ok(field),
        _ => Err(FormatError::Field("logical_block")),
    }
}
