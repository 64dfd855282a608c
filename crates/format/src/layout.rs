//! Where things lie in a cache region.

/// Where the log lies on the cache device and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Random identity of the cache, made by `forebay format`.
    pub cache_id: [u8; 16],
    /// Number of this run of the volume; grows by one with each start, and is in every record.
    pub generation: u64,
    /// Alignment of everything in the log, in bytes: 512 or 4096.
    pub align: u32,
    /// Size of a segment in bytes, a multiple of 4096.
    pub segment_bytes: u32,
    /// Number of segments.
    pub segment_count: u32,
}

impl Layout {
    /// Byte offset of segment 0; what lies before is kept for the superblocks.
    pub const SEGMENTS_OFFSET: u64 = 1 << 20;

    /// Byte offset of segment `index` on the device.
    pub const fn segment_offset(&self, index: u32) -> u64 {
        Self::SEGMENTS_OFFSET + index as u64 * self.segment_bytes as u64
    }

    /// Bytes of the device that the cache uses.
    pub const fn cache_bytes(&self) -> u64 {
        self.segment_offset(self.segment_count)
    }
}
