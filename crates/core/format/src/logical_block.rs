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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logical_blocks_are_the_powers_of_two_from_512_to_4096() {
        let valid: Vec<u32> = (0..=1 << 14).filter(|bytes| is_valid(*bytes)).collect();
        assert_eq!(valid, [512, 1024, 2048, 4096]);
        for bytes in valid {
            assert_eq!(of(version(bytes), field(bytes)), Ok(bytes));
        }
        assert_eq!((version(512), field(512)), (FORMAT_VERSION, 0), "as before there was a choice");
        assert_eq!((version(1024), field(1024)), (FORMAT_VERSION_LOGICAL_BLOCK, 1024));
        for said in [0, 512, 513, 3072, 8192, u32::MAX] {
            assert_eq!(of(FORMAT_VERSION, said), Ok(512));
            assert_eq!(of(FORMAT_VERSION_LOGICAL_BLOCK, said), Err(FormatError::Field("logical_block")));
        }
    }
}
