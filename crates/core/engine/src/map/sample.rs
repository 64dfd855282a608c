//! A map with a log in it, for the tests of what stands above.

use forebay_block::{BlockNo, Seq};

use crate::map::Map;
use crate::map::segments::{DIRTY, Slot, SlotKind, SlotRef};

/// Records of one segment.
const RECORDS: u64 = 8;

/// A log of records, all of them dirty.
pub(crate) struct Sample {
    pub(crate) map: Map,
    open: Option<(u32, Seq)>,
    next: Seq,
    opened: u64,
}

impl Sample {
    pub(crate) fn new() -> Self {
        Self { map: Map::of_segments(64), open: None, next: Seq(1), opened: 0 }
    }

    /// One more record, so far behind the newest one that it depends on, with these blocks: its number and its slots.
    pub(crate) fn record(&mut self, distance: u16, blocks: &[(u64, SlotKind)]) -> (Seq, Vec<SlotRef>) {
        let seq = self.next;
        self.next = seq.next();
        let (index, first) = match self.open.filter(|(_, first)| seq.0 < first.0 + RECORDS) {
            Some(open) => open,
            None => {
                let index = self.map.segments.take_free().expect("a free segment");
                self.opened += 1;
                self.map.segments.open(index, self.opened, seq, 0, 1);
                (index, seq)
            }
        };
        self.open = Some((index, first));
        let mut slots = Vec::new();
        for (n, (block, kind)) in blocks.iter().enumerate() {
            let checksum = (seq.0 << 8 | n as u64) as u32;
            let slot = Slot::new(BlockNo(*block), n as u32 * 4096, checksum, *kind, seq, first);
            let slot = self.map.segments.push(index, slot);
            self.map.put(slot, true);
            slots.push(slot);
        }
        self.map.segments.push_record(index, distance);
        self.map.note_moment(seq, seq.0 * 1_000_000_000);
        self.map.segments.ends_with(index, seq);
        (seq, slots)
    }

    /// A record with one data block.
    pub(crate) fn block(&mut self, block: u64) -> SlotRef {
        self.record(1, &[(block, SlotKind::Data)]).1[0]
    }

    pub(crate) fn clean(&mut self, slot: SlotRef) {
        self.map.cleaned(slot);
    }

    pub(crate) fn is_dirty(&self, slot: SlotRef) -> bool {
        self.map.segments.slot(slot).has(DIRTY)
    }
}
