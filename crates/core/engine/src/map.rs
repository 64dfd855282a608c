//! What the volume's blocks are: which version of each is current, where it lies in the log, whether the backing lacks it, and which
//! copies in the log must not be believed.
//!
//! ```text
//!                      put ─────────────────────────────────────────────► replaced: void, or kept dirty until its turn
//!                        │                                                            │
//!   (in the log) ──► current, dirty ──cleaned──► current, clean ──admit──► tracked    │ cleaned
//!                        │                            │                      │        ▼
//!                        └─────── forget ─────────────┴──── retire_below ────┴──► nothing: the slot is empty space
//! ```
//!
//! Invariants:
//! - M1. A block has at most one current version. The index names its slot, and the slot's segment counts it.
//! - M2. A slot becomes dirty as it becomes current, and never again after it was cleaned. Without an order only current slots are dirty.
//! - M3. A slot that replacement tracks is current and clean; each of replacement's lists counts exactly its slots.
//! - M4. A segment leaves the log, from the oldest on, when nothing in it is dirty; then nothing in it is current (P1).
//! - M5. What was forgotten as untrue is named at a clean stop for as long as the log has it, see [`untrue`].
//!
//! What it costs: a step costs the same however many segments are clean. These walks are left, each with its bound:
//! - over the slots of a segment that leaves the log, once in its life: [`Map::judge`] by its caller, [`Map::retire_below`];
//! - over what is dirty, as far as the caller goes: [`SegmentTable::dirty_after`]; to the oldest version that is not lost over the lost
//!   ones before it: [`Map::oldest_dirty_or_young_ns`];
//! - over a range that is forgotten, and after a failed flush or the log's end over all that is cached: [`Map::forget_clean`],
//!   [`Map::void_all`];
//! - over the ranges of untrue copies, once for each quarter of their room; over recalled blocks, fewer than slots, at each
//!   [`Map::forget_clean`]: [`untrue`];
//! - over all segments, at recovery alone: [`SegmentTable::order_free`].
//!
//! It asks no device and answers no client, and does not know why a version is kept.

use forebay_block::{BLOCK_BYTES, BlockNo, Seq};
use forebay_format::Layout;
use forebay_policy::{List, Replacement, Verdict};

use crate::locks::BlockRange;
use crate::map::index::{Index, SHARD_BLOCKS_MAX};
use crate::map::moments::Moments;
use crate::map::segments::{
    DESTAGING, DIRTY, FREQUENT, REFERENCED, SegmentTable, Slot, SlotKind, SlotRef, TRACKED, UNREADABLE,
};
use crate::map::untrue::UntrueCopies;
use crate::mutation::{Mutation, Planted};

pub(crate) mod index;
pub(crate) mod member;
mod moments;
pub(crate) mod segments;
mod slot;
#[cfg(test)]
mod tests;
mod untrue;

/// Segments of the log, the index of current versions, the state of replacement, and what must not be believed.
pub(crate) struct Map {
    segments: SegmentTable,
    index: Index,
    replacement: Replacement,
    untrue: UntrueCopies,
    moments: Moments,
    planted: Planted,
}

/// A version that is not current any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) block: BlockNo,
    pub(crate) slot: SlotRef,
    pub(crate) seq: Seq,
    /// The backing may have lacked it.
    pub(crate) was_dirty: bool,
}

impl Map {
    /// An empty map of so many segments of 4 MiB.
    #[cfg(test)]
    pub(crate) fn of_segments(segment_count: u32) -> Self {
        let layout =
            Layout { cache_id: [1; 16], generation: 1, align: 512, segment_bytes: 4 << 20, segment_count };
        Self::new(&layout, Planted::default())
    }

    /// Nothing is in the log.
    pub(crate) fn new(layout: &Layout, planted: Planted) -> Self {
        let capacity = u64::from(layout.segment_count) * u64::from(layout.segment_bytes) / BLOCK_BYTES;
        Self {
            segments: SegmentTable::new(layout.segment_count, planted),
            index: Index::new(),
            replacement: Replacement::new(capacity),
            untrue: UntrueCopies::new(layout.segment_bytes),
            moments: Moments::default(),
            planted,
        }
    }

    /// The segments of the log, to be looked at.
    pub(crate) fn segments(&self) -> &SegmentTable {
        &self.segments
    }

    /// The same, for the log to open, fill and seal them, and for readers to pin them. What is current, dirty or tracked is changed by
    /// functions of the map alone.
    pub(crate) fn segments_mut(&mut self) -> &mut SegmentTable {
        &mut self.segments
    }

    /// Blocks that are cached.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// The current versions, in no meaningful but deterministic order.
    pub(crate) fn current(&self) -> impl Iterator<Item = SlotRef> + '_ {
        self.index.slots()
    }

    /// See [`Index::cached_from`].
    pub(crate) fn cached_from(&self, range: (BlockNo, u64), cached: &mut Vec<BlockNo>) -> BlockNo {
        self.index.cached_from(range, &self.segments, cached)
    }

    /// The current version of `block`, if it is cached.
    pub(crate) fn lookup(&self, block: BlockNo) -> Option<SlotRef> {
        self.index.get(block, &self.segments)
    }

    /// Whether this slot is its block's current version.
    pub(crate) fn is_current(&self, slot: SlotRef) -> bool {
        self.lookup(self.segments.block(slot)) == Some(slot)
    }

    /// The current versions of a range, in no meaningful but deterministic order.
    pub(crate) fn current_in(&self, range: BlockRange) -> Box<dyn Iterator<Item = SlotRef> + '_> {
        if range.count <= SHARD_BLOCKS_MAX as u64 {
            Box::new(range.iter().filter_map(|block| self.lookup(block)))
        } else {
            Box::new(self.index.slots_within((range.first, range.end()), &self.segments))
        }
    }

    /// Makes `slot` its block's current version, and returns the one before. That one stays dirty if it was: who does not need it any
    /// more says so by [`Map::cleaned`].
    pub(crate) fn put(&mut self, slot: SlotRef, dirty: bool) -> Option<Gone> {
        let block = self.segments.block(slot);
        let replaced = self.index.insert(block, slot, &self.segments).map(|old| {
            self.untrack(old);
            let gone = self.gone(block, old);
            self.segments.ceased_current(old, true);
            gone
        });
        self.segments.became_current(slot, dirty);
        replaced
    }

    /// The backing has the slot's version, durably, or nobody needs it any more.
    pub(crate) fn cleaned(&mut self, slot: SlotRef) {
        self.segments.became_clean(slot);
    }

    /// A current version that is clean comes under the care of replacement.
    pub(crate) fn admit(&mut self, slot: SlotRef) {
        let s = self.segments.slot(slot);
        if s.has(TRACKED) || s.has(DIRTY) || s.kind() == SlotKind::Poison {
            return;
        }
        let list = self.replacement.admitted(s.block());
        self.track(slot, list);
    }

    /// A version that [`Map::judge`] wanted to keep has become current again at the log's head.
    pub(crate) fn readmit(&mut self, slot: SlotRef, list: List) {
        self.replacement.rejoined(list);
        self.track(slot, list);
    }

    fn track(&mut self, slot: SlotRef, list: List) {
        self.segments.mark(slot, FREQUENT, list == List::Frequent);
        self.segments.mark(slot, TRACKED, true);
    }

    /// The slot ceases to be current, and replacement forgets it.
    fn untrack(&mut self, slot: SlotRef) {
        let s = *self.segments.slot(slot);
        if s.has(TRACKED) {
            self.replacement.left(list_of(&s));
            self.segments.mark(slot, TRACKED, false);
        }
    }

    fn gone(&self, block: BlockNo, slot: SlotRef) -> Gone {
        let was_dirty = self.segments.slot(slot).has(DIRTY);
        Gone { block, slot, seq: self.segments.seq(slot), was_dirty }
    }

    /// The list that a clean data block in the log's oldest segment is worth a copy for, if replacement knows it.
    pub(crate) fn judge(&self, slot: SlotRef) -> Option<List> {
        let s = self.segments.slot(slot);
        if !s.has(TRACKED) || s.kind() != SlotKind::Data {
            return None;
        }
        match self.replacement.judge(list_of(s), s.has(REFERENCED)) {
            Verdict::Keep(list) => Some(list),
            Verdict::Drop => None,
        }
    }

    /// A read of the block finds nothing.
    pub(crate) fn missed(&mut self, block: BlockNo) {
        self.replacement.missed(block);
    }

    /// Forgets what is current of a range: something newer is on the backing, durably. In the order of the blocks.
    pub(crate) fn forget(&mut self, range: BlockRange) -> Vec<Gone> {
        let mut blocks: Vec<BlockNo> = self.current_in(range).map(|slot| self.segments.block(slot)).collect();
        blocks.sort_unstable();
        blocks.into_iter().filter_map(|block| self.forget_block(block)).collect()
    }

    /// As [`Map::forget`]; and the log goes on to hold clean copies as if they were true.
    pub(crate) fn forget_untrue(&mut self, range: BlockRange) -> Vec<Gone> {
        let mut blocks: Vec<BlockNo> = self.current_in(range).map(|slot| self.segments.block(slot)).collect();
        blocks.sort_unstable();
        blocks.into_iter().filter_map(|block| self.forget_untrue_block(block)).collect()
    }

    /// Forgets the clean copies of a range, which are not true any more, or of no use. A restart after a crash would forget records
    /// up to `clean`.
    pub(crate) fn forget_clean(&mut self, range: BlockRange, clean: Seq) -> Vec<Gone> {
        let copies = self.current_in(range).filter(|slot| !self.segments.slot(*slot).has(DIRTY));
        let mut copies: Vec<_> =
            copies.map(|slot| (self.segments.block(slot), self.segments.seq(slot))).collect();
        copies.sort_unstable();
        self.untrue.recall_no_more(clean);
        let forget = |(block, seq)| {
            self.untrue.recall(block, seq, clean);
            self.forget_untrue_block(block)
        };
        copies.into_iter().filter_map(forget).collect()
    }

    fn forget_untrue_block(&mut self, block: BlockNo) -> Option<Gone> {
        let gone = self.forget_block(block)?;
        if !self.planted.is(Mutation::ForgetsUntrueCopies) {
            let is_cached = |block| self.index.get(block, &self.segments).is_some();
            self.untrue.remember(block, gone.seq, self.segments.first_seq(), is_cached);
        }
        Some(gone)
    }

    fn forget_block(&mut self, block: BlockNo) -> Option<Gone> {
        let slot = self.index.remove(block, &self.segments)?;
        let gone = self.gone(block, slot);
        self.untrack(slot);
        self.segments.ceased_current(slot, false);
        Some(gone)
    }

    /// A record is durable that says that the log begins at this place in its order: what lies before is out of it.
    pub(crate) fn retire_below(&mut self, tail: u64) {
        while let Some(index) = self.segments.oldest().filter(|i| self.segments.get(*i).seq < tail) {
            for slot in self.segments.slot_refs(index) {
                if !self.is_current(slot) {
                    continue;
                }
                let s = *self.segments.slot(slot);
                assert!(!s.has(DIRTY), "a dirty block is never dropped (P1)");
                if s.has(TRACKED) {
                    self.replacement.dropped(s.block(), list_of(&s));
                    self.segments.mark(slot, TRACKED, false);
                }
                self.index.remove(s.block(), &self.segments);
                self.segments.ceased_current(slot, false);
            }
            self.segments.retire(index);
        }
    }

    /// The log is void, and the backing holds everything: nothing is cached any more. What was.
    pub(crate) fn void_all(&mut self) -> Vec<Gone> {
        let slots: Vec<SlotRef> = self.index.slots().collect();
        let void = |slot| {
            let gone = self.gone(self.segments.block(slot), slot);
            self.untrack(slot);
            self.segments.ceased_current(slot, false);
            gone
        };
        let gone = slots.into_iter().map(void).collect();
        self.index.clear();
        gone
    }

    // Marks of a slot.

    /// A client has used the version.
    pub(crate) fn used(&mut self, slot: SlotRef) {
        self.segments.mark(slot, REFERENCED, true);
    }

    /// The version is on its way to the backing.
    pub(crate) fn destage_begins(&mut self, slot: SlotRef) {
        self.segments.mark(slot, DESTAGING, true);
    }

    /// It is not any more, and did not arrive there durably: if it was dirty it is so still.
    pub(crate) fn destage_fails(&mut self, slot: SlotRef) {
        self.segments.mark(slot, DESTAGING, false);
    }

    /// The version cannot be read back; whether that was known.
    pub(crate) fn cannot_read(&mut self, slot: SlotRef) -> bool {
        let known = self.segments.slot(slot).has(UNREADABLE);
        self.segments.mark(slot, UNREADABLE, true);
        known
    }

    /// The version may be readable by now.
    pub(crate) fn try_reading(&mut self, slot: SlotRef) {
        self.segments.mark(slot, UNREADABLE, false);
    }

    // Copies that must not be believed.

    /// A flush has failed that bypasses needed: nothing is believed of the log's clean copies any more.
    pub(crate) fn distrust_all(&mut self) {
        self.untrue.distrust_all();
    }

    /// This run has started without believing the clean copies in records up to `seq`.
    pub(crate) fn distrust(&mut self, seq: Seq) {
        self.untrue.distrust(seq);
    }

    /// The newest record of blocks in the range that the index has forgotten and a restart would not.
    pub(crate) fn recalled_upto(&self, range: BlockRange) -> Seq {
        self.untrue.recalled_upto(range)
    }

    /// Blocks that must not be believed after a clean stop although the log has clean copies of them: those that
    /// bypasses made untrue and that have not been cached anew. `None` if they are not all known, or have no room in the log.
    pub(crate) fn untrue_blocks(&self) -> Option<Vec<BlockRange>> {
        let mut absent: Vec<BlockRange> = Vec::new();
        let named = self.untrue.named(self.segments.first_seq())?;
        let is_absent = |block: &BlockNo| self.lookup(*block).is_none();
        for block in named.iter().flat_map(|range| range.iter()).filter(is_absent) {
            match absent.last_mut() {
                Some(last) if last.end() == block.0 => last.count += 1,
                _ => absent.push(BlockRange::new(block, 1)),
            }
        }
        Some(absent).filter(|ranges| ranges.len() <= self.untrue.ranges_max())
    }

    // When it was.

    /// A record is made.
    pub(crate) fn note_moment(&mut self, seq: Seq, time_ns: u64) {
        self.moments.note(seq, time_ns);
    }

    /// When this record was made, or a little before: wall-clock time, in nanoseconds since 1970.
    pub(crate) fn time_of_record(&self, seq: Seq, segment: u32) -> u64 {
        let opened = self.segments.get(segment).time_first_ns;
        self.moments.of(seq).unwrap_or(0).max(opened)
    }

    /// When the oldest version was written that the backing lacks, or a little before.
    pub(crate) fn oldest_dirty_ns(&self) -> Option<u64> {
        let (seq, slot) = self.segments.dirty_after(Seq(0)).next()?;
        Some(self.time_of_record(seq, slot.segment()))
    }

    /// As [`Map::oldest_dirty_ns`], but without what is lost; and what is surely younger than `young_ms` at `wall_ns` is not looked
    /// for: it is told older than it is.
    pub(crate) fn oldest_dirty_or_young_ns(&self, wall_ns: u64, young_ms: u64) -> Option<u64> {
        let opened = self.segments.get(self.segments.with_dirty().next()?).time_first_ns;
        if wall_ns.saturating_sub(opened) / 1_000_000 < young_ms {
            return Some(opened);
        }
        let there = |(_, slot): &(Seq, SlotRef)| self.segments.slot(*slot).kind() != SlotKind::Poison;
        let (seq, slot) = self.segments.dirty_after(Seq(0)).find(there)?;
        Some(self.time_of_record(seq, slot.segment()))
    }

    /// Memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.index.bytes() + self.segments.bytes() + self.replacement.bytes()
    }
}

/// The replacement list of a tracked slot.
fn list_of(s: &Slot) -> List {
    if s.has(FREQUENT) { List::Frequent } else { List::Recent }
}
