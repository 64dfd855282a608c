//! Units of addressing and time, as newtypes that cannot be mixed up.

use std::fmt;

/// The smallest addressable unit of a request, in bytes.
pub const SECTOR_BYTES: u64 = 512;

/// The unit of indexing in the cache, in bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// Number of a 4 KiB block of a volume, counted from the volume's start. At most 2^40 - 1 (a 4 PiB volume).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockNo(pub u64);

impl BlockNo {
    /// The block that holds the byte at `offset` of the volume.
    pub const fn containing(offset: u64) -> Self {
        Self(offset / BLOCK_BYTES)
    }

    /// Byte offset of the block's first byte in the volume.
    pub const fn offset(self) -> u64 {
        self.0 * BLOCK_BYTES
    }

    /// The block `n` further on.
    pub const fn plus(self, n: u64) -> Self {
        Self(self.0 + n)
    }
}

impl fmt::Display for BlockNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// First block and number of blocks that the bytes `offset .. offset + len` touch, partly or wholly.
pub const fn blocks_of(offset: u64, len: u64) -> (BlockNo, u64) {
    let first = offset / BLOCK_BYTES;
    if len == 0 {
        return (BlockNo(first), 0);
    }
    let last = (offset + len - 1) / BLOCK_BYTES;
    (BlockNo(first), last - first + 1)
}

/// Sequence number of a log record: starts at 1, grows by one with each record of a cache, never reused after it
/// was acknowledged. 0 means "before the first".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

impl Seq {
    /// The sequence number that follows.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Monotonic time in nanoseconds since an origin that the host (or the simulator) chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// This instant plus `ms` milliseconds, or the last one that can be told, which never comes.
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms.saturating_mul(1_000_000)))
    }

    /// Nanoseconds that have passed since `earlier`; 0 if `earlier` lies ahead.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_counts_partly_touched_blocks() {
        assert_eq!(blocks_of(0, 4096), (BlockNo(0), 1));
        assert_eq!(blocks_of(512, 4096), (BlockNo(0), 2));
        assert_eq!(blocks_of(4096, 1), (BlockNo(1), 1));
        assert_eq!(blocks_of(8192, 0), (BlockNo(2), 0));
    }

    #[test]
    fn times_beyond_all_time_never_come() {
        assert_eq!(Nanos(5).plus_ms(2), Nanos(2_000_005));
        for ms in [u64::MAX, u64::MAX / 1_000_000 + 1, u64::MAX / 1_000_000] {
            assert_eq!(Nanos(u64::MAX - 1).plus_ms(ms), Nanos(u64::MAX));
        }
    }
}
