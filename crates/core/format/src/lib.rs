//! The bytes on the cache device and beside the backing. `SPEC.md` beside this crate is the byte-level
//! specification; a golden test holds the two together. Everything is little-endian and written field by field:
//! no serialization library decides what is on the medium.
//!
//! A cache region:
//!
//! ```text
//!  0          4 KiB            512 KiB   +4 KiB        1 MiB
//!  ├superblock A┤ · · · · · · · ┤superblock B┤ · · · · · ├ segment 0 ┼ segment 1 ┼ · · · ┼ segment n-1 ┤
//!
//!  a segment:  ├ header ┼ record ┼ record ┼ · · · ┼ record ┤ free ├ summary body ┼ trailer ┤
//!  a record:   ├ header: extents, checksums ┼ data block ┼ data block ┼ · · · ┤
//! ```
#![forbid(unsafe_code)]

pub mod checksum;
mod copies;
mod cursor;
mod error;
pub mod identities;
pub mod journal;
pub mod label;
mod layout;
pub mod logical_block;
pub mod pairing;
pub mod record;
pub mod replay;
pub mod rules;
pub mod segment;
pub mod shared_point;
pub mod summary;
pub mod superblock;

pub use error::FormatError;
pub use layout::Layout;

/// Largest value of a number that counts: runs, updates, records, segments of the log. No cache lives to see it.
pub const COUNTER_MAX: u64 = u64::MAX >> 1;

/// Largest volume in bytes: 4 PiB, of which 40 bits number the blocks.
pub const VOLUME_BYTES_MAX: u64 = 1 << 52;
