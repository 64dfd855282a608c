//! Versions of blocks that are on their way from the log to somewhere else.

use forebay_block::{BlockNo, Seq};
use forebay_format::Layout;

use crate::map::Map;
use crate::map::segments::SlotRef;

/// A version of a block, as it was when it was chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) block: BlockNo,
    pub(crate) slot: SlotRef,
    pub(crate) seq: Seq,
    pub(crate) checksum: u32,
    /// Byte offset on the cache.
    pub(crate) place: u64,
}

/// A block that could not be had.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bad {
    pub(crate) block: BlockNo,
    pub(crate) slot: SlotRef,
    /// It was read, and its checksum is wrong.
    pub(crate) corrupt: bool,
}

impl Map {
    /// The slot's version, in a cache of this layout.
    pub(crate) fn member(&self, slot: SlotRef, layout: &Layout) -> Member {
        let s = self.segments.slot(slot);
        let place = layout.segment_offset(slot.segment()) + u64::from(s.offset());
        let (block, seq, checksum) = (s.block(), self.segments.seq(slot), s.checksum());
        Member { block, slot, seq, checksum, place }
    }
}
