//! A block of a record, as it is kept in memory: 16 bytes, and four that name it.

use forebay_block::{BlockNo, Seq};

/// Names a slot: physical segment number (upper 16 bits) and place in the segment's slots (lower 16 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SlotRef(pub(crate) u32);

/// Most slots of one segment, which recovery holds the log to; one value is kept so that no `SlotRef` equals the index's mark for "empty".
pub(crate) const SEGMENT_SLOTS_MAX: usize = forebay_format::rules::SEGMENT_BLOCKS_MAX as usize;

impl SlotRef {
    pub(super) fn new(segment: u32, slot: usize) -> Self {
        debug_assert!(slot < SEGMENT_SLOTS_MAX);
        Self(segment << 16 | slot as u32)
    }

    pub(crate) fn segment(self) -> u32 {
        self.0 >> 16
    }

    pub(super) fn place(self) -> usize {
        (self.0 & 0xFFFF) as usize
    }
}

/// What a slot holds of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotKind {
    /// A data block in the log.
    Data,
    /// Zeroes; nothing in the log's data.
    Zero,
    /// Lost to a damaged medium: an I/O error.
    Poison,
}

/// One block of a record, packed into 16 bytes:
///
/// ```text
///  place  = block (40 bits) · offset of the data in the segment, in sectors (24 bits)
///  detail = checksum (32 bits) · record's place in the segment (20 bits) · flags (12 bits)
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    place: u64,
    detail: u64,
}

/// The backing may lack the slot's version.
pub(crate) const DIRTY: u64 = 1;
/// A destage of this version is under way, or done and waits for the backing's flush.
pub(crate) const DESTAGING: u64 = 1 << 1;
/// Used since replacement last looked.
pub(crate) const REFERENCED: u64 = 1 << 2;
/// On the list of blocks used more than once (ARC's T2).
pub(crate) const FREQUENT: u64 = 1 << 3;
/// Known to replacement (a clean copy).
pub(crate) const TRACKED: u64 = 1 << 4;
/// Reading it back failed; destaging leaves it alone until it is overwritten or tried again.
pub(crate) const UNREADABLE: u64 = 1 << 5;
const ZERO: u64 = 1 << 6;
pub(super) const POISON: u64 = 1 << 7;

impl Slot {
    /// A slot of a record `seq` in a segment whose first record is `first_seq`; `offset` in bytes.
    pub(crate) fn new(
        block: BlockNo,
        offset: u32,
        checksum: u32,
        kind: SlotKind,
        seq: Seq,
        first_seq: Seq,
    ) -> Self {
        let delta = seq.0 - first_seq.0;
        assert!(block.0 < 1 << 40 && delta < 1 << 20);
        let kind = match kind {
            SlotKind::Data => 0,
            SlotKind::Zero => ZERO,
            SlotKind::Poison => POISON,
        };
        Self {
            place: block.0 << 24 | u64::from(offset / 512),
            detail: u64::from(checksum) << 32 | delta << 12 | kind,
        }
    }

    pub(crate) fn block(&self) -> BlockNo {
        BlockNo(self.place >> 24)
    }

    /// Byte offset of the data in the segment.
    pub(crate) fn offset(&self) -> u32 {
        ((self.place & 0xFF_FFFF) * 512) as u32
    }

    pub(crate) fn checksum(&self) -> u32 {
        (self.detail >> 32) as u32
    }

    pub(crate) fn kind(&self) -> SlotKind {
        match self.detail & (ZERO | POISON) {
            0 => SlotKind::Data,
            ZERO => SlotKind::Zero,
            _ => SlotKind::Poison,
        }
    }

    pub(super) fn delta(&self) -> u64 {
        self.detail >> 12 & 0xF_FFFF
    }

    pub(crate) fn has(&self, flag: u64) -> bool {
        self.detail & flag != 0
    }

    /// A version that the backing lacks and that will not come to it as it is: lost, or its data cannot be read.
    pub(super) fn is_hopeless(&self) -> bool {
        self.has(DIRTY) && self.has(POISON | UNREADABLE)
    }

    /// The backing may lack it, and it may be written there now.
    pub(crate) fn wants_destage(&self) -> bool {
        self.has(DIRTY) && !self.has(DESTAGING) && !self.has(UNREADABLE) && self.kind() != SlotKind::Poison
    }

    pub(super) fn set(&mut self, flag: u64, on: bool) {
        if on {
            self.detail |= flag;
        } else {
            self.detail &= !flag;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_keeps_all_its_fields_in_sixteen_bytes() {
        assert_eq!(size_of::<Slot>(), 16);
        let first = Seq(1 << 40);
        let mut s = Slot::new(
            BlockNo((1 << 40) - 1),
            (64 << 20) - 4096,
            u32::MAX,
            SlotKind::Zero,
            Seq(first.0 + 0xF_FFFF),
            first,
        );
        s.set(DIRTY, true);
        s.set(FREQUENT, true);
        s.set(DIRTY, false);
        assert_eq!(s.block(), BlockNo((1 << 40) - 1));
        assert_eq!(s.offset(), (64 << 20) - 4096);
        assert_eq!(s.checksum(), u32::MAX);
        assert_eq!(s.kind(), SlotKind::Zero);
        assert_eq!(s.delta(), 0xF_FFFF);
        assert!(s.has(FREQUENT) && !s.has(DIRTY));
    }
}
