//! What the volume's blocks are: which version of each is current, where it lies in the log, whether the backing lacks it.

use crate::map::index::Index;
use crate::map::segments::SegmentTable;
use crate::mutation::Planted;
use forebay_block::BLOCK_BYTES;
use forebay_format::Layout;
use forebay_policy::Replacement;

pub(crate) mod index;
pub(crate) mod member;
pub(crate) mod segments;

/// Segments of the log, the index of current versions, and the state of replacement.
pub(crate) struct Map {
    pub(crate) segments: SegmentTable,
    pub(crate) index: Index,
    pub(crate) replacement: Replacement,
}

impl Map {
    /// Nothing is in the log.
    pub(crate) fn new(layout: &Layout, planted: Planted) -> Self {
        let capacity = u64::from(layout.segment_count) * u64::from(layout.segment_bytes) / BLOCK_BYTES;
        let mut segments = SegmentTable::new(layout.segment_count);
        segments.planted = planted;
        Self { segments, index: Index::new(), replacement: Replacement::new(capacity) }
    }
}
