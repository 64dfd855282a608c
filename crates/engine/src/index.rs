//! The index: which slot holds the newest acknowledged version of a block.
//!
//! A slot is named by a 32-bit [`SlotRef`], and the slot itself knows its block, so that the table stores four bytes
//! for each block and no key. The table is split into shards that grow by a quarter, each at its own time: the
//! load stays between 0.70 and 0.875 (about 5 bytes for each block), and no single growth is long enough to be felt.

use forebay_block::BlockNo;

use crate::segments::{SegmentTable, SlotRef};

const SHARDS: usize = 256;
const EMPTY: u32 = u32::MAX;

/// Hash table from block to slot, with linear probing.
pub(crate) struct Index {
    shards: Vec<Shard>,
    len: usize,
}

#[derive(Default)]
struct Shard {
    table: Vec<u32>,
    len: usize,
}

fn hash(block: BlockNo) -> u64 {
    // SplitMix64's finalizer: neighbours in the volume spread over all shards and places.
    let mut z = block.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn shard_of(hash: u64) -> usize {
    (hash >> 56) as usize % SHARDS
}

impl Index {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Shard::default()).collect(), len: 0 }
    }

    /// Blocks in the index.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Memory of the tables in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.shards.iter().map(|s| s.table.capacity() * 4 + size_of::<Shard>()).sum()
    }

    /// The slot of `block`, if it is cached.
    pub(crate) fn get(&self, block: BlockNo, slots: &SegmentTable) -> Option<SlotRef> {
        let h = hash(block);
        let shard = &self.shards[shard_of(h)];
        shard.find(h, block, slots).map(|at| SlotRef(shard.table[at]))
    }

    /// Makes `slot` the slot of `block` and returns the one before.
    pub(crate) fn insert(&mut self, block: BlockNo, slot: SlotRef, slots: &SegmentTable) -> Option<SlotRef> {
        let h = hash(block);
        let shard = &mut self.shards[shard_of(h)];
        if let Some(at) = shard.find(h, block, slots) {
            return Some(SlotRef(std::mem::replace(&mut shard.table[at], slot.0)));
        }
        shard.grow_if_needed(slots);
        shard.place(h, slot.0);
        shard.len += 1;
        self.len += 1;
        None
    }

    /// Forgets `block` and returns its slot.
    pub(crate) fn remove(&mut self, block: BlockNo, slots: &SegmentTable) -> Option<SlotRef> {
        let h = hash(block);
        let shard = &mut self.shards[shard_of(h)];
        let at = shard.find(h, block, slots)?;
        let slot = shard.table[at];
        shard.erase(at, slots);
        shard.len -= 1;
        self.len -= 1;
        Some(SlotRef(slot))
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }

    /// All slots, in no meaningful but deterministic order.
    pub(crate) fn slots(&self) -> impl Iterator<Item = SlotRef> + '_ {
        self.shards.iter().flat_map(|s| s.table.iter().filter(|v| **v != EMPTY).map(|v| SlotRef(*v)))
    }
}

impl Shard {
    /// Place where a search for `hash` begins: its low 56 bits scaled to the table, so that any table size will do.
    fn home(&self, hash: u64) -> usize {
        (((hash & ((1 << 56) - 1)) as u128 * self.table.len() as u128) >> 56) as usize
    }

    fn step(&self, at: usize) -> usize {
        if at + 1 == self.table.len() { 0 } else { at + 1 }
    }

    fn find(&self, hash: u64, block: BlockNo, slots: &SegmentTable) -> Option<usize> {
        if self.table.is_empty() {
            return None;
        }
        let mut at = self.home(hash);
        loop {
            match self.table[at] {
                EMPTY => return None,
                v if slots.slot(SlotRef(v)).block() == block => return Some(at),
                _ => at = self.step(at),
            }
        }
    }

    fn place(&mut self, hash: u64, value: u32) {
        let mut at = self.home(hash);
        while self.table[at] != EMPTY {
            at = self.step(at);
        }
        self.table[at] = value;
    }

    fn grow_if_needed(&mut self, slots: &SegmentTable) {
        if (self.len + 1) * 8 <= self.table.len() * 7 {
            return;
        }
        let size = (self.table.len() + self.table.len() / 4).max(8);
        let old = std::mem::replace(&mut self.table, vec![EMPTY; size]);
        for value in old.into_iter().filter(|v| *v != EMPTY) {
            self.place(hash(slots.slot(SlotRef(value)).block()), value);
        }
    }

    /// Empties place `hole` and moves later members of its run back, so that no search ends too early.
    fn erase(&mut self, mut hole: usize, slots: &SegmentTable) {
        let mut at = hole;
        loop {
            at = self.step(at);
            let value = self.table[at];
            if value == EMPTY {
                break;
            }
            let home = self.home(hash(slots.slot(SlotRef(value)).block()));
            let stays = if hole <= at { hole < home && home <= at } else { hole < home || home <= at };
            if !stays {
                self.table[hole] = value;
                hole = at;
            }
        }
        self.table[hole] = EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use forebay_block::Seq;
    use proptest::prelude::*;

    use super::*;
    use crate::segments::{Slot, SlotKind};

    proptest! {
        /// The index does what a map does, whatever is inserted and removed in whatever order.
        #[test]
        fn behaves_like_a_map(ops in proptest::collection::vec((0u64..300, any::<bool>()), 1..2000)) {
            let mut table = SegmentTable::new(1);
            table.open(0, 1, Seq(1), 0, 1);
            let mut index = Index::new();
            let mut model = BTreeMap::new();
            for (n, insert) in ops {
                let block = BlockNo(n * 7919);
                if insert {
                    let slot = table.push(0, Slot::new(block, 8, 0, SlotKind::Data, Seq(1), Seq(1)));
                    prop_assert_eq!(index.insert(block, slot, &table), model.insert(block, slot));
                } else {
                    prop_assert_eq!(index.remove(block, &table), model.remove(&block));
                }
                prop_assert_eq!(index.get(block, &table), model.get(&block).copied());
                prop_assert_eq!(index.len(), model.len());
            }
            for (block, slot) in &model {
                prop_assert_eq!(index.get(*block, &table), Some(*slot));
            }
            prop_assert_eq!(index.slots().count(), model.len());
        }
    }

    #[test]
    fn takes_about_five_bytes_for_each_block() {
        let mut table = SegmentTable::new(32);
        let mut index = Index::new();
        for n in 0..400_000u64 {
            let seg = (n / 16_000) as u32;
            if n % 16_000 == 0 {
                table.open(seg, u64::from(seg) + 1, Seq(1), 0, 1);
            }
            let slot = table.push(seg, Slot::new(BlockNo(n * 3), 8, 0, SlotKind::Data, Seq(1), Seq(1)));
            index.insert(BlockNo(n * 3), slot, &table);
            if n > 50_000 && n % 1000 == 0 {
                let per_block = index.bytes() as f64 / index.len() as f64;
                assert!((4.4..6.2).contains(&per_block), "{per_block} bytes per block at {n}");
            }
        }
    }
}
