//! Versions of the set under way that newer ones of the same set stand for: they never go to the backing.
//!
//! ```text
//!  set:   A1   B1   A2   C1   A3        newest of A: A3; A1 and A2 are void once A2 or A3, whichever comes first, is there
//!         └────── wait for a newer one ─┘
//! ```
//!
//! 1. A version that waits counts as missing from the backing until a newer one of its block is there.
//! 2. Nothing is made clean but what is still in its slot, dirty, and of the same record: slots are used anew.

use std::collections::BTreeMap;

use forebay_block::{BlockNo, Seq};

use crate::map::Map;
use crate::map::segments::{DIRTY, SlotRef};

/// The versions that wait, of each block oldest first, with their records.
#[derive(Default)]
pub(super) struct Voids {
    waiting: BTreeMap<BlockNo, Vec<(SlotRef, Seq)>>,
}

impl Voids {
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// These versions of the block, oldest first, wait for a newer one.
    pub(super) fn wait(&mut self, block: BlockNo, older: Vec<(SlotRef, Seq)>) {
        self.waiting.insert(block, older);
    }

    /// The version waits for a newer one.
    pub(super) fn has(&self, slot: SlotRef) -> bool {
        self.waiting.values().flatten().any(|(void, _)| *void == slot)
    }

    /// A version is on the backing, durably: older ones of its set are void. That counts at once even if the set has slid over a
    /// newer one meanwhile, for that one may be lost yet.
    pub(super) fn destaged(&mut self, map: &mut Map, block: BlockNo, slot: SlotRef, seq: Seq) {
        let Some(mut void) = self.waiting.remove(&block) else { return };
        let is_older = |(older, of): &(SlotRef, Seq)| (*of, *older) < (seq, slot);
        let kept = void.split_off(void.partition_point(is_older));
        if !kept.is_empty() {
            self.waiting.insert(block, kept);
        }
        for (slot, seq) in void {
            // It may be gone by now, and its slot in use anew.
            let holds = map.segments().holds(slot) && map.segments().slot(slot).has(DIRTY);
            if holds && map.segments().seq(slot) == seq {
                map.cleaned(slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::map::sample::Sample;

    proptest! {
        /// Whatever ends in whatever order: a version is clean as soon as a newer one of its block has ended, and no earlier.
        #[test]
        fn a_newer_one_makes_older_ones_void(
            blocks in proptest::collection::vec(0u64..4, 1..40),
            ends in proptest::collection::vec(any::<prop::sample::Index>(), 40),
        ) {
            let mut sample = Sample::new();
            let slots: Vec<(u64, SlotRef)> = blocks.iter().map(|block| (*block, sample.block(*block))).collect();
            let mut voids = Voids::default();
            for block in 0..4 {
                let of_block: Vec<SlotRef> = slots.iter().filter(|(b, _)| *b == block).map(|(_, slot)| *slot).collect();
                let Some((_, older)) = of_block.split_last() else { continue };
                voids.wait(BlockNo(block), older.iter().map(|slot| (*slot, sample.map.segments().seq(*slot))).collect());
            }
            let mut clean = vec![false; slots.len()];
            for end in ends {
                let at = end.index(slots.len());
                let (block, slot) = slots[at];
                if clean[at] {
                    continue;
                }
                let seq = sample.map.segments().seq(slot);
                sample.clean(slot);
                voids.destaged(&mut sample.map, BlockNo(block), slot, seq);
                for (n, (b, _)) in slots.iter().enumerate().take(at + 1) {
                    clean[n] |= *b == block;
                }
                for (n, (b, slot)) in slots.iter().enumerate() {
                    prop_assert_eq!(!sample.is_dirty(*slot), clean[n], "version {} of block {}", n, b);
                    let newest = !slots[n + 1..].iter().any(|(later, _)| later == b);
                    prop_assert!(clean[n] || voids.has(*slot) != newest);
                }
            }
        }
    }

    /// A slot that is in use anew is not taken for the version that waited.
    #[test]
    fn what_is_in_its_slot_meanwhile_stays_dirty() {
        let mut sample = Sample::new();
        let (older, newer) = (sample.block(1), sample.block(1));
        let seqs = (sample.map.segments().seq(older), sample.map.segments().seq(newer));
        let mut voids = Voids::default();
        voids.wait(BlockNo(1), vec![(older, Seq(seqs.0.0 + 100))]);
        voids.destaged(&mut sample.map, BlockNo(1), newer, Seq(seqs.1.0 + 200));
        assert!(sample.is_dirty(older));
        voids.wait(BlockNo(1), vec![(older, seqs.0)]);
        voids.destaged(&mut sample.map, BlockNo(1), newer, seqs.1);
        assert!(!sample.is_dirty(older));
    }
}
