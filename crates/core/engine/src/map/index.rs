//! The index: which slot holds the newest acknowledged version of a block.
//!
//! A slot is named by a 32-bit [`SlotRef`], and the slot itself knows its block, so that a table stores four bytes
//! for each block and no key. The volume is cut into consecutive ranges, each with a shard of its own:
//!
//! ```text
//!   first block:   0              ..      70 000        ..     70 900    ..    end of the volume
//!                  └─ shard ─────────────┘└─ shard ──────────┘└─ shard ───────────────────────┘
//!                     a hash table of at most SHARD_BLOCKS_MAX slots each
//! ```
//!
//! A shard that is full is split at its median; one that has become small takes a neighbour in, if both are small together. So an empty part of the
//! volume costs nothing, however long it is, and what is cached of a range is found in steps that its cached blocks pay for.
//! Tables grow by a quarter, each at its own time, and shrink when they are much too large: about 5 bytes for each block while a cache
//! fills, and no single step is long enough to be felt.
//!
//! Invariants: I1, there is a shard that begins with block 0. I2, a shard holds blocks from its first one up to the next shard's first one.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use forebay_block::BlockNo;

use crate::map::segments::{SegmentTable, SlotRef};

/// Blocks in one shard at most.
pub(crate) const SHARD_BLOCKS_MAX: usize = 512;
/// Neighbours become one shard if they have no more blocks than this together.
const MERGED_BLOCKS_MAX: usize = SHARD_BLOCKS_MAX / 2;
/// Places of the smallest table.
const TABLE_MIN: usize = 8;
const EMPTY: u32 = u32::MAX;

/// Map from block to slot, ordered by shards.
pub(crate) struct Index {
    /// By the first block of each one's range.
    shards: BTreeMap<u64, Shard>,
    len: usize,
    /// Places of all tables.
    places: usize,
}

/// A hash table with linear probing.
#[derive(Default)]
struct Shard {
    table: Box<[u32]>,
    len: usize,
}

fn hash(block: BlockNo) -> u64 {
    // SplitMix64's finalizer: neighbours in the volume spread over all places.
    let mut z = block.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Index {
    pub(crate) fn new() -> Self {
        Self { shards: BTreeMap::from([(0, Shard::default())]), len: 0, places: 0 }
    }

    /// Blocks in the index.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Memory of the tables in bytes.
    pub(crate) fn bytes(&self) -> usize {
        // The nodes of the tree are at least half full.
        self.places * size_of::<u32>() + self.shards.len() * 2 * size_of::<(u64, Shard)>()
    }

    /// The slot of `block`, if it is cached.
    pub(crate) fn get(&self, block: BlockNo, slots: &SegmentTable) -> Option<SlotRef> {
        let (_, shard) = self.shards.range(..=block.0).next_back()?;
        shard.find(hash(block), block, slots).map(|at| SlotRef(shard.table[at]))
    }

    /// Makes `slot` the slot of `block` and returns the one before.
    pub(crate) fn insert(&mut self, block: BlockNo, slot: SlotRef, slots: &SegmentTable) -> Option<SlotRef> {
        let h = hash(block);
        let (first, shard) = self.shards.range_mut(..=block.0).next_back()?;
        if let Some(at) = shard.find(h, block, slots) {
            return Some(SlotRef(std::mem::replace(&mut shard.table[at], slot.0)));
        }
        if shard.len == SHARD_BLOCKS_MAX {
            let first = *first;
            self.split(first, slots);
            return self.insert(block, slot, slots);
        }
        let places = shard.table.len();
        shard.grow_if_needed(slots);
        shard.place(h, slot.0);
        shard.len += 1;
        self.places = self.places + shard.table.len() - places;
        self.len += 1;
        None
    }

    /// Forgets `block` and returns its slot.
    pub(crate) fn remove(&mut self, block: BlockNo, slots: &SegmentTable) -> Option<SlotRef> {
        let (first, shard) = self.shards.range_mut(..=block.0).next_back()?;
        let at = shard.find(hash(block), block, slots)?;
        let slot = shard.table[at];
        shard.erase(at, slots);
        shard.len -= 1;
        self.len -= 1;
        // Less than two fifths of the places are in use.
        if shard.table.len() > TABLE_MIN && shard.len * 5 < shard.table.len() * 2 {
            let first = *first;
            self.rebuild(first, Vec::new(), slots);
            self.merge_around(first, slots);
        }
        Some(SlotRef(slot))
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }

    /// All slots, in no meaningful but deterministic order.
    pub(crate) fn slots(&self) -> impl Iterator<Item = SlotRef> + '_ {
        self.shards.values().flat_map(Shard::slots)
    }

    /// The slots of the blocks from `first` up to `end`, in no meaningful but deterministic order.
    pub(crate) fn slots_within<'a>(
        &'a self,
        (first, end): (BlockNo, u64),
        slots: &'a SegmentTable,
    ) -> impl Iterator<Item = SlotRef> + 'a {
        let from = self.shards.range(..=first.0).next_back().map_or(0, |(from, _)| *from);
        let within = move |slot: &SlotRef| (first.0..end).contains(&slots.block(*slot).0);
        self.shards.range(from..end.max(from)).flat_map(|(_, shard)| shard.slots()).filter(within)
    }

    /// Puts the cached blocks of the shard's range that `first` lies in, from there on and before `end`, into `cached`, in their order. Returns the block up
    /// to which these are all: the first one of the next shard.
    pub(crate) fn cached_from(
        &self,
        (first, end): (BlockNo, u64),
        slots: &SegmentTable,
        cached: &mut Vec<BlockNo>,
    ) -> BlockNo {
        cached.clear();
        if let Some((_, shard)) = self.shards.range(..=first.0).next_back() {
            let within = |block: &BlockNo| (first.0..end).contains(&block.0);
            cached.extend(shard.slots().map(|slot| slots.block(slot)).filter(within));
        }
        cached.sort_unstable();
        let next = self.shards.range((Excluded(first.0), Unbounded)).next();
        BlockNo(next.map_or(u64::MAX, |(first, _)| *first))
    }

    /// Makes two shards of a full one.
    fn split(&mut self, first: u64, slots: &SegmentTable) {
        let Some(shard) = self.shards.get(&first) else {
            return;
        };
        let mut values: Vec<u32> = shard.slots().map(|slot| slot.0).collect();
        values.sort_unstable_by_key(|value| slots.block(SlotRef(*value)));
        let upper = values.split_off(values.len() / 2);
        let Some(middle) = upper.first().map(|value| slots.block(SlotRef(*value)).0) else {
            return;
        };
        for (first, values) in [(first, values), (middle, upper)] {
            let before = self.shards.remove(&first).map_or(0, |shard| shard.table.len());
            let shard = Shard::of(values, slots);
            self.places = self.places + shard.table.len() - before;
            self.shards.insert(first, shard);
        }
    }

    /// Gives the shard a table of the right size for what it has and for `more`.
    fn rebuild(&mut self, first: u64, more: Vec<u32>, slots: &SegmentTable) {
        if let Some(shard) = self.shards.get_mut(&first) {
            let values = shard.slots().map(|slot| slot.0).chain(more).collect();
            let before = shard.table.len();
            *shard = Shard::of(values, slots);
            self.places = self.places + shard.table.len() - before;
        }
    }

    /// Makes one shard of this one and a neighbour, if they are small together.
    fn merge_around(&mut self, first: u64, slots: &SegmentTable) {
        let len = |at: &u64| self.shards.get(at).map_or(0, |shard| shard.len);
        let small = |(left, right): &(u64, u64)| len(left) + len(right) <= MERGED_BLOCKS_MAX;
        let next = self.shards.range((Excluded(first), Unbounded)).next().map(|(next, _)| (first, *next));
        let before = self.shards.range(..first).next_back().map(|(before, _)| (*before, first));
        let Some((left, right)) = [next, before].into_iter().flatten().find(small) else {
            return;
        };
        if let Some(gone) = self.shards.remove(&right) {
            self.places -= gone.table.len();
            self.rebuild(left, gone.slots().map(|slot| slot.0).collect(), slots);
        }
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
                v if slots.block(SlotRef(v)) == block => return Some(at),
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
        if (self.len + 1) * 8 > self.table.len() * 7 {
            let size = (self.table.len() + self.table.len() / 4).max(TABLE_MIN);
            self.fill(size, self.slots().map(|slot| slot.0).collect(), slots);
        }
    }

    /// A shard of these slots, with room for a quarter more.
    fn of(values: Vec<u32>, slots: &SegmentTable) -> Self {
        let mut shard = Self::default();
        let size = (values.len() + values.len() / 4).max(TABLE_MIN);
        shard.fill(size, values, slots);
        shard
    }

    fn fill(&mut self, size: usize, values: Vec<u32>, slots: &SegmentTable) {
        self.table = vec![EMPTY; size].into_boxed_slice();
        self.len = values.len();
        for value in values {
            self.place(hash(slots.block(SlotRef(value))), value);
        }
    }

    fn slots(&self) -> impl Iterator<Item = SlotRef> + '_ {
        self.table.iter().filter(|value| **value != EMPTY).map(|value| SlotRef(*value))
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
            let home = self.home(hash(slots.block(SlotRef(value))));
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
    use forebay_block::Seq;
    use proptest::prelude::*;

    use super::*;
    use crate::map::segments::{Slot, SlotKind};
    use crate::mutation::Planted;

    /// I1, I2 and the counts.
    fn check(index: &Index, slots: &SegmentTable) {
        assert_eq!(index.shards.keys().next(), Some(&0));
        let firsts: Vec<u64> = index.shards.keys().copied().chain([u64::MAX]).collect();
        for (at, shard) in index.shards.values().enumerate() {
            assert_eq!(shard.slots().count(), shard.len);
            assert!(shard.len <= SHARD_BLOCKS_MAX);
            assert!(
                shard.len < shard.table.len() || shard.table.is_empty(),
                "a search ends at an empty place"
            );
            let range = firsts[at]..firsts[at + 1];
            assert!(shard.slots().all(|slot| range.contains(&slots.slot(slot).block().0)));
        }
        assert_eq!(index.shards.values().map(|s| s.len).sum::<usize>(), index.len);
        assert_eq!(index.shards.values().map(|s| s.table.len()).sum::<usize>(), index.places);
    }

    /// What is cached of `range`, by one shard after the other.
    fn walk(index: &Index, range: std::ops::Range<u64>, slots: &SegmentTable) -> (Vec<BlockNo>, usize) {
        let (mut all, mut steps, mut at, mut cached) = (Vec::new(), 0, BlockNo(range.start), Vec::new());
        while at.0 < range.end {
            let known = index.cached_from((at, range.end), slots, &mut cached);
            assert!(known > at, "each step leads on");
            assert!(cached.iter().all(|b| (at..known).contains(b) && b.0 < range.end));
            all.extend(cached.iter().copied());
            (at, steps) = (known, steps + 1);
        }
        (all, steps)
    }

    proptest! {
        /// The index does what a map does, whatever is inserted and removed in whatever order, and knows its order.
        #[test]
        fn behaves_like_an_ordered_map(
            ops in proptest::collection::vec((0u64..2000, 0u8..5), 1..4000),
            stride in prop::sample::select(vec![1, 3, 7919]),
            ranges in proptest::collection::vec((0u64..2100, 0u64..2100), 1..8),
        ) {
            let mut table = SegmentTable::new(1, Planted::default());
            table.open(0, 1, Seq(1), 0, 1);
            let mut index = Index::new();
            let mut model = BTreeMap::new();
            // First more comes than goes, then the other way round: shards are split, and merged.
            let growing = ops.len() * 2 / 3;
            for (at, (n, draw)) in ops.into_iter().enumerate() {
                let block = BlockNo(n * stride);
                if (draw > 0) == (at < growing) {
                    let slot = table.push(0, Slot::new(block, 8, 0, SlotKind::Data, Seq(1), Seq(1)));
                    prop_assert_eq!(index.insert(block, slot, &table), model.insert(block, slot));
                } else {
                    prop_assert_eq!(index.remove(block, &table), model.remove(&block));
                }
                prop_assert_eq!(index.get(block, &table), model.get(&block).copied());
                prop_assert_eq!(index.len(), model.len());
            }
            check(&index, &table);
            for (block, slot) in &model {
                prop_assert_eq!(index.get(*block, &table), Some(*slot));
            }
            prop_assert_eq!(index.slots().count(), model.len());
            for (first, count) in ranges {
                let (first, end) = (first * stride, (first + count) * stride);
                let expected: Vec<_> = model.range(BlockNo(first)..BlockNo(end)).collect();
                let (cached, _) = walk(&index, first..end, &table);
                prop_assert_eq!(&cached, &expected.iter().map(|(b, _)| **b).collect::<Vec<_>>());
                let mut within: Vec<_> = index.slots_within((BlockNo(first), end), &table).collect();
                within.sort_unstable();
                let mut slots: Vec<_> = expected.iter().map(|(_, slot)| **slot).collect();
                slots.sort_unstable();
                prop_assert_eq!(within, slots);
            }
        }
    }

    /// Slots of so many blocks, three apart, in the index.
    fn filled(blocks: u64, mut each: impl FnMut(&mut Index, u64, &SegmentTable)) -> (Index, SegmentTable) {
        let mut table = SegmentTable::new(32, Planted::default());
        let mut index = Index::new();
        for n in 0..blocks {
            let seg = (n / 16_000) as u32;
            if n % 16_000 == 0 {
                table.open(seg, u64::from(seg) + 1, Seq(1), 0, 1);
            }
            let slot = table.push(seg, Slot::new(BlockNo(n * 3), 8, 0, SlotKind::Data, Seq(1), Seq(1)));
            index.insert(BlockNo(n * 3), slot, &table);
            each(&mut index, n, &table);
        }
        (index, table)
    }

    #[test]
    fn takes_about_five_bytes_for_each_block() {
        filled(400_000, |index, n, _| {
            if n > 50_000 && n % 1000 == 0 {
                let per_block = index.bytes() as f64 / index.len() as f64;
                assert!((4.4..6.2).contains(&per_block), "{per_block} bytes per block at {n}");
            }
        });
    }

    /// What comes at one end of the volume and goes at the other leaves nothing behind; nor does a tenth that stays everywhere.
    #[test]
    fn gives_back_the_memory_of_what_has_gone() {
        let kept = 20_000;
        let (mut index, table) = filled(200_000, |index, n, table| {
            if n >= kept {
                index.remove(BlockNo((n - kept) * 3), table);
            }
        });
        check(&index, &table);
        let per_block = index.bytes() as f64 / index.len() as f64;
        assert!(per_block < 6.2, "{per_block} bytes per block of a window");
        for n in (200_000 - kept..200_000).filter(|n| n % 10 != 0) {
            index.remove(BlockNo(n * 3), &table);
        }
        check(&index, &table);
        let per_block = index.bytes() as f64 / index.len() as f64;
        assert!(per_block < 12.0, "{per_block} bytes per block of what is left");
        let steps = walk(&index, 0..1 << 40, &table).1;
        assert!(steps <= 2 + index.len() * 3 / MERGED_BLOCKS_MAX, "{steps} steps to {} blocks", index.len());
    }
}
