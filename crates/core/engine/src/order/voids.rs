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
