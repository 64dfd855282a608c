//! Reclaiming segments: the tail of the log moves on over clean segments, which become free.
//!
//! The log is freed strictly from its oldest segment on. So a record never outlives a newer record of the same block,
//! and recovery never finds an old version without the newer one that made it void.
//!
//! ```text
//!  tail segment clean? ──► worth keeping? (replacement) ──► copied to the head as clean
//!        │ no: destaging is under way                          │
//!        ▼                                                     ▼
//!      wait                                  Retiring: tail moves past it, in memory
//!                                                              │ a record that says so is durable
//!                                                              ▼
//!                                            index forgets it; free once no read of it is in flight
//! ```

use forebay_block::{BLOCK_BYTES, BlockNo, DeviceOp, DeviceResult, Seq};
use forebay_format::checksum::block_checksum;
use forebay_format::record::{Extent, ExtentKind};
use forebay_policy::{List, Verdict};

use crate::engine::destage::list_of;
use crate::engine::{Engine, IoOwner};
use crate::interface::{Class, Role};
use crate::locks::{BlockRange, Hold};
use crate::log::{Append, AppendOwner, SEGMENTS_RESERVED};
use crate::map::segments::{DIRTY, FREQUENT, REFERENCED, Segment, SegmentState, SlotKind, SlotRef, TRACKED};
use crate::mutation::Mutation;
use crate::tables::Table;

/// Of a segment's blocks at most one in so many is copied to the head: cleaning must gain room.
const KEEP_ONE_IN: usize = 4;
/// Longest read for copying clean blocks.
const COPY_BLOCKS_MAX: usize = 64;

/// A read of clean blocks that lie together in the tail segment.
struct CopyRead {
    segment: u32,
    blocks: Vec<(BlockNo, SlotRef, Seq, u32)>,
}

/// State of reclaiming.
#[derive(Default)]
pub(crate) struct Reclaim {
    /// Segment (in the order of the log) whose blocks have been judged.
    judged: u64,
    reads: Table<u32, CopyRead>,
    next_read: u32,
    /// Clean blocks on their way from the tail to the head, and the list that they will be on.
    copying: Table<BlockNo, List>,
    /// Those of them that the backing may have lost meanwhile.
    untrue: Vec<BlockNo>,
    poisons: u32,
}

impl Reclaim {
    /// What is being copied now may not be what the backing holds.
    pub(crate) fn distrust_copies(&mut self) {
        self.untrue = self.copying.keys().copied().collect();
    }

    fn was_distrusted(&mut self, block: BlockNo) -> bool {
        let at = self.untrue.iter().position(|b| *b == block);
        at.map(|at| self.untrue.swap_remove(at)).is_some()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.reads.is_empty() && self.copying.is_empty() && self.poisons == 0
    }
}

impl Engine {
    /// Free segments that reclaiming keeps in stock, so that a burst finds room at once.
    fn segments_free_wanted(&self) -> usize {
        SEGMENTS_RESERVED + 2 + self.map.segments.count() / 32
    }

    /// Whether a free segment is wanted and the segment that would become one has to wait for destaging: it is dirty, or the set in
    /// flight begins with it.
    pub(crate) fn reclaim_wants_clean_tail(&self) -> bool {
        let retiring = self.map.segments.retiring();
        let tail = self.map.segments.tail().map(|i| self.map.segments.get(i));
        let waits = |s: &Segment| s.dirty > 0 || self.order.progress().is_some_and(|p| s.last_seq > p);
        self.map.segments.free_count() + retiring < self.segments_free_wanted()
            && tail.is_some_and(|s| s.state == SegmentState::Sealed && waits(s))
    }

    /// Moves the tail as far as it can and is wanted.
    pub(crate) fn reclaim_step(&mut self) {
        if self.failure.latched() || self.commands.settling() {
            return;
        }
        while self.map.segments.free_count() + self.map.segments.retiring() < self.segments_free_wanted() {
            let Some(tail) = self.map.segments.tail() else {
                break;
            };
            if !self.tail_may_go(tail) {
                break;
            }
            if let Some(place) = self.map.segments.begin_retiring() {
                self.log.tail = place + 1;
            }
        }
        if self.mutant(Mutation::ReusesTooEarly) {
            self.reclaim_retire_below(self.log.tail);
        }
        if self.log.tail > self.log_claimed_tail() {
            self.log_tick(true);
        }
    }

    /// Whether everything in the tail segment can be given up now; starts what has to come first.
    fn tail_may_go(&mut self, tail: u32) -> bool {
        let segment = self.map.segments.get(tail);
        if segment.state != SegmentState::Sealed {
            return false;
        }
        let segment_last = segment.last_seq;
        if segment.dirty > 0 {
            if self.mutant(Mutation::CleaningLosesDirty) {
                self.map.segments.slot_refs(tail).for_each(|slot| self.map.segments.became_clean(slot));
            }
            self.move_poison(self.map.segments.slot_refs(tail));
            return false;
        }
        if self.order.progress().is_some_and(|progress| segment_last > progress) {
            return false;
        }
        let segment_seq = self.map.segments.get(tail).seq;
        if self.reclaim.judged < segment_seq {
            self.reclaim.judged = segment_seq;
            self.judge(tail);
        }
        if self.room_is_awaited() {
            self.relocations_cancel();
        }
        self.reclaim.reads.is_empty() && self.reclaim.copying.is_empty()
    }

    /// Asks replacement for each clean block of the tail whether it stays, and starts to copy those that do.
    fn judge(&mut self, tail: u32) {
        let room = self.map.segments.free_count() > SEGMENTS_RESERVED && !self.room_is_awaited();
        let budget = if room { self.map.segments.slots_len(tail) / KEEP_ONE_IN } else { 0 };
        let mut kept: Vec<(BlockNo, SlotRef)> = Vec::new();
        for slot in self.map.segments.slot_refs(tail) {
            let s = *self.map.segments.slot(slot);
            if kept.len() >= budget || !s.has(TRACKED) || s.kind() != SlotKind::Data {
                continue;
            }
            let verdict = self.map.replacement.judge(list_of(&s), s.has(REFERENCED));
            let Verdict::Keep(to) = verdict else { continue };
            let current = self.map.index.get(s.block(), &self.map.segments) == Some(slot);
            if current && self.locks.try_take(BlockRange::new(s.block(), 1), Hold::Exclusive) {
                self.reclaim.copying.insert(s.block(), to);
                kept.push((s.block(), slot));
            }
        }
        self.read_for_copy(tail, kept);
    }

    fn read_for_copy(&mut self, segment: u32, kept: Vec<(BlockNo, SlotRef)>) {
        let mut rest = kept.as_slice();
        while let Some((_, first)) = rest.first() {
            let start = self.map.segments.slot(*first).offset();
            let together = |(k, (_, slot)): &(usize, &(BlockNo, SlotRef))| {
                self.map.segments.slot(*slot).offset() == start + *k as u32 * BLOCK_BYTES as u32
            };
            let n = rest.iter().enumerate().take(COPY_BLOCKS_MAX).take_while(together).count();
            let (now, later) = rest.split_at(n);
            rest = later;
            let describe = |(b, s): &(BlockNo, SlotRef)| {
                (*b, *s, self.map.segments.seq(*s), self.map.segments.slot(*s).checksum())
            };
            let blocks = now.iter().map(describe).collect();
            self.reclaim.next_read = self.reclaim.next_read.wrapping_add(1);
            let key = self.reclaim.next_read;
            self.reclaim.reads.insert(key, CopyRead { segment, blocks });
            self.map.segments.pin(segment);
            let offset = self.layout.segment_offset(segment) + u64::from(start);
            let op = DeviceOp::Read { offset, len: n * BLOCK_BYTES as usize };
            self.io(Role::Cache, op, Class::Background, IoOwner::Relocation(key));
        }
    }

    /// A block that cannot be read, or is damaged, is simply not kept: the backing has it.
    pub(crate) fn relocation_read_done(&mut self, key: u32, result: DeviceResult) {
        let Some(read) = self.reclaim.reads.remove(&key) else {
            return;
        };
        self.map.segments.unpin(read.segment);
        let data = match result {
            Ok(data) => data,
            Err(_) => {
                self.figures.cache_errors += 1;
                None
            }
        };
        for (n, (block, _, seq, checksum)) in read.blocks.iter().enumerate() {
            let data = data.as_ref().map(|d| d.slice(n * 4096, 4096));
            let unchecked = self.mutant(Mutation::CopiesUnchecked);
            match data.filter(|d| unchecked || block_checksum(*block, *seq, d) == *checksum) {
                Some(data) if !self.failure.latched() && !self.room_is_awaited() => {
                    let extent = Some(Extent { block: *block, count: 1, kind: ExtentKind::Clean });
                    let owner = AppendOwner::Relocation(*block);
                    self.log_append(Append {
                        extent,
                        data: Some(data),
                        owner,
                        durable: false,
                        after: Seq(0),
                    });
                }
                _ => self.relocation_dropped(*block),
            }
        }
    }

    /// The copy is in the log and current.
    pub(crate) fn relocation_done(&mut self, block: BlockNo) {
        let Some(list) = self.reclaim.copying.remove(&block) else {
            return;
        };
        if let Some(slot) = self.map.index.get(block, &self.map.segments) {
            // The old slot was forgotten when the new one became current; the block itself has stayed.
            self.map.replacement.rejoined(list);
            self.map.segments.mark(slot, FREQUENT, list == List::Frequent);
            self.map.segments.mark(slot, TRACKED, true);
        }
        if self.reclaim.was_distrusted(block) {
            self.forget_clean(BlockRange::new(block, 1));
        }
        self.release(BlockRange::new(block, 1), Hold::Exclusive);
    }

    /// Gives up the copies that are not in the log yet.
    pub(crate) fn relocations_cancel(&mut self) {
        for block in self.log.cancel_relocations() {
            self.relocation_dropped(block);
        }
    }

    /// The block is not copied after all.
    pub(crate) fn relocation_dropped(&mut self, block: BlockNo) {
        if self.reclaim.copying.remove(&block).is_some() {
            self.reclaim.was_distrusted(block);
            self.release(BlockRange::new(block, 1), Hold::Exclusive);
        }
    }

    /// Moves the marks that blocks are lost, those among `slots`, to the head; a block whose data is damaged for good
    /// becomes such a mark. It stays an error until it is written again (P5), and the tail can move on. A write of the
    /// block that waits for this room comes after the mark in the log, but one in flight would come before it.
    pub(crate) fn move_poison(&mut self, slots: impl Iterator<Item = SlotRef>) {
        if self.reclaim.poisons > 0 {
            return;
        }
        for slot in slots {
            let s = *self.map.segments.slot(slot);
            let block = s.block();
            if !s.has(DIRTY)
                || self.map.index.get(block, &self.map.segments) != Some(slot)
                || !(s.kind() == SlotKind::Poison || self.destage.is_corrupt(block, slot))
                || self.log_has_in_flight(block)
                || !self.locks.try_take(BlockRange::new(block, 1), Hold::LogWrite)
            {
                continue;
            }
            if self.mutant(Mutation::DropsPoison) {
                self.map.segments.became_clean(slot);
                self.release(BlockRange::new(block, 1), Hold::LogWrite);
                continue;
            }
            self.reclaim.poisons += 1;
            let extent = Some(Extent { block, count: 1, kind: ExtentKind::Poison });
            self.log_append_urgent(Append {
                extent,
                data: None,
                owner: AppendOwner::Poison(block),
                durable: true,
                after: Seq(0),
            });
        }
    }

    pub(crate) fn poison_done(&mut self, block: BlockNo) {
        self.reclaim.poisons -= 1;
        self.release(BlockRange::new(block, 1), Hold::LogWrite);
    }

    /// A record that carries `tail` is durable: what lies before is out of the log.
    pub(crate) fn reclaim_retire_below(&mut self, tail: u64) {
        while let Some(index) = self.map.segments.oldest() {
            if self.map.segments.get(index).seq >= tail {
                break;
            }
            for slot in self.map.segments.slot_refs(index) {
                let s = *self.map.segments.slot(slot);
                if self.map.index.get(s.block(), &self.map.segments) != Some(slot) {
                    continue;
                }
                assert!(!s.has(DIRTY), "a dirty block is never dropped (P1)");
                self.map.index.remove(s.block(), &self.map.segments);
                if s.has(TRACKED) {
                    self.map.replacement.dropped(s.block(), list_of(&s));
                    self.map.segments.mark(slot, TRACKED, false);
                }
                self.map.segments.ceased_current(slot, false);
            }
            self.map.segments.retire(index);
        }
    }
}
