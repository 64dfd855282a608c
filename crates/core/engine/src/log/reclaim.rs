//! Reclaiming segments: the tail of the log moves on over segments that nobody pins, which become free.
//!
//! The log is freed strictly from its oldest segment on. So a record never outlives a newer record of the same block,
//! and recovery never finds an old version without the newer one that made it void.
//!
//! ```text
//!  tail segment pinned? ──► worth keeping? (replacement) ──► copied to the head as clean, a pin until then
//!        │ yes, by dirty blocks or the order                  │
//!        ▼                                                     ▼
//!      wait for destaging                        Retiring: tail moves past it, in memory
//!                                                              │ a record that says so is durable
//!                                                              ▼
//!                                            index forgets it; free once no read of it is in flight
//! ```
//!
//! [`Reclaim`] owns what is copied from the tail to the head: clean blocks that are worth keeping, and the marks of lost blocks.
//!
//! 1. Whether the tail may move is a question to the log's pins, and to nobody else.
//! 2. At most one mark of a lost block, or those of one look at the tail, is on its way at a time.
//! 3. A clean block that is copied is locked until the copy is current, or given up.
//! 4. A copy that the backing may have lost meanwhile does not stay.

use forebay_block::{BLOCK_BYTES, BlockNo, DeviceOp, DeviceResult, Seq};
use forebay_format::Layout;
use forebay_format::checksum::block_checksum;
use forebay_format::record::{Extent, ExtentKind};
use forebay_policy::List;

use crate::interface::Class;
use crate::locks::{BlockRange, Hold, Locks};
use crate::log::pins::Pinner;
use crate::log::{Append, AppendOwner, Ask, Io, Log, SEGMENTS_RESERVED};
use crate::map::Map;
use crate::map::segments::{DIRTY, SegmentState, SlotKind, SlotRef};
use crate::mutation::{Mutation, Planted};
use crate::tables::Table;

/// Of a segment's blocks at most one in so many is copied to the head: cleaning must gain room.
const KEEP_ONE_IN: usize = 4;
/// Longest read for copying clean blocks.
const COPY_BLOCKS_MAX: usize = 64;

/// A read of clean blocks that lie together in the tail segment.
struct CopyRead {
    segment: u32,
    blocks: Vec<(BlockNo, Seq, u32)>,
}

/// What has come of a step.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) asks: Vec<Ask>,
    /// Locks to be given back.
    pub(crate) released: Vec<(BlockNo, Hold)>,
}

/// State of reclaiming.
pub(crate) struct Reclaim {
    layout: Layout,
    planted: Planted,
    /// Segment (in the order of the log) whose blocks have been judged, and its first record.
    judged: (u64, Seq),
    reads: Table<u32, CopyRead>,
    next_read: u32,
    /// Clean blocks on their way from the tail to the head, and the list that they will be on.
    copying: Table<BlockNo, List>,
    /// Those of them that the backing may have lost meanwhile.
    untrue: Vec<BlockNo>,
    poisons: u32,
}

/// Free segments that reclaiming keeps in stock, so that a burst finds room at once.
fn segments_free_wanted(map: &Map) -> usize {
    SEGMENTS_RESERVED + 2 + map.segments().count() / 32
}

/// Whether a free segment is wanted and the segment that would become one has to wait for destaging.
pub(crate) fn wants_clean_tail(log: &Log, map: &Map) -> bool {
    let retiring = map.segments().retiring();
    let tail = map.segments().tail().map(|i| map.segments().get(i));
    map.segments().free_count() + retiring < segments_free_wanted(map)
        && tail.is_some_and(|s| {
            s.state == SegmentState::Sealed && log.pins.keeper(s).is_some_and(Pinner::awaits_backing)
        })
}

/// What decides about copies, beside replacement.
#[derive(Clone, Copy)]
pub(crate) struct Copies<'a> {
    /// Somebody waits for room in the log: nothing is copied.
    pub(crate) room_is_awaited: bool,
    /// Whether a clean block is not worth a copy, whatever replacement says.
    pub(crate) unwanted: &'a dyn Fn(BlockNo) -> bool,
}

impl Reclaim {
    pub(crate) fn new(layout: Layout, planted: Planted) -> Self {
        Self {
            layout,
            planted,
            judged: (0, Seq(0)),
            reads: Table::default(),
            next_read: 0,
            copying: Table::default(),
            untrue: Vec::new(),
            poisons: 0,
        }
    }

    /// What is being copied now may not be what the backing holds.
    pub(crate) fn distrust_copies(&mut self) {
        self.untrue = self.copying.keys().copied().collect();
    }

    fn was_distrusted(&mut self, block: BlockNo) -> bool {
        let at = self.untrue.iter().position(|b| *b == block);
        at.map(|at| self.untrue.swap_remove(at)).is_some()
    }

    pub(crate) fn is_idle(&self) -> bool {
        !self.is_copying() && self.poisons == 0
    }

    fn is_copying(&self) -> bool {
        !self.reads.is_empty() || !self.copying.is_empty()
    }

    /// The log keeps what is being copied.
    fn pin(&self, log: &mut Log) {
        log.pins.set(Pinner::Copies, self.is_copying().then_some(self.judged.1));
    }

    /// Moves the tail as far as it can and is wanted. `is_lost` says of a dirty version that its
    /// data is damaged for good.
    pub(crate) fn step(
        &mut self,
        copies: Copies<'_>,
        is_lost: impl Fn(BlockNo, SlotRef) -> bool,
        log: &mut Log,
        map: &mut Map,
        locks: &mut Locks,
    ) -> Outcome {
        let mut out = Outcome::default();
        while map.segments().free_count() + map.segments().retiring() < segments_free_wanted(map) {
            let Some(tail) = map.segments().tail() else { break };
            if map.segments().get(tail).state != SegmentState::Sealed {
                break;
            }
            if log.pins.keeper(map.segments().get(tail)).is_none_or(|keeper| keeper == Pinner::Copies) {
                self.judge_once(tail, copies, log, map, locks, &mut out);
            }
            match log.pins.keeper(map.segments().get(tail)) {
                Some(Pinner::Dirty) => {
                    if self.planted.is(Mutation::CleaningLosesDirty) {
                        map.segments().slot_refs(tail).for_each(|slot| map.cleaned(slot));
                    }
                    let slots = map.segments().slot_refs(tail);
                    out.released.extend(self.move_poison(slots, &is_lost, log, map, locks));
                    break;
                }
                Some(Pinner::Order | Pinner::Copies) => break,
                None => {}
            }
            if let Some(place) = map.segments_mut().begin_retiring() {
                log.tail = place + 1;
            }
        }
        if self.planted.is(Mutation::ReusesTooEarly) {
            map.retire_below(log.tail);
        }
        if log.tail > log.claims.tail() {
            log.tick(true);
        }
        out
    }

    /// Judges what is in the tail segment, once, and starts to copy what stays; copies nothing where room is awaited.
    fn judge_once(
        &mut self,
        tail: u32,
        copies: Copies<'_>,
        log: &mut Log,
        map: &mut Map,
        locks: &mut Locks,
        out: &mut Outcome,
    ) {
        let segment = map.segments().get(tail);
        if self.judged.0 < segment.seq {
            self.judged = (segment.seq, segment.first_seq);
            let kept = self.judge(tail, copies, map, locks);
            self.read_for_copy(tail, kept, map, out);
            self.pin(log);
        }
        if copies.room_is_awaited {
            out.released.extend(self.cancel(log));
        }
    }

    /// Asks replacement for each clean block of the tail whether it stays, and locks those that do.
    fn judge(
        &mut self,
        tail: u32,
        copies: Copies<'_>,
        map: &mut Map,
        locks: &mut Locks,
    ) -> Vec<(BlockNo, SlotRef)> {
        let room = map.segments().free_count() > SEGMENTS_RESERVED && !copies.room_is_awaited;
        let budget = if room { map.segments().slots_len(tail) / KEEP_ONE_IN } else { 0 };
        let mut kept: Vec<(BlockNo, SlotRef)> = Vec::new();
        for slot in map.segments().slot_refs(tail) {
            if kept.len() >= budget {
                break;
            }
            let Some(to) = map.judge(slot) else { continue };
            let block = map.segments().slot(slot).block();
            if !(copies.unwanted)(block) && locks.try_take(BlockRange::new(block, 1), Hold::Exclusive) {
                self.copying.insert(block, to);
                kept.push((block, slot));
            }
        }
        kept
    }

    fn read_for_copy(
        &mut self,
        segment: u32,
        kept: Vec<(BlockNo, SlotRef)>,
        map: &mut Map,
        out: &mut Outcome,
    ) {
        let mut rest = kept.as_slice();
        while let Some((_, first)) = rest.first() {
            let start = map.segments().slot(*first).offset();
            let together = |(k, (_, slot)): &(usize, &(BlockNo, SlotRef))| {
                map.segments().slot(*slot).offset() == start + *k as u32 * BLOCK_BYTES as u32
            };
            let n = rest.iter().enumerate().take(COPY_BLOCKS_MAX).take_while(together).count();
            let (now, later) = rest.split_at(n);
            rest = later;
            let describe = |(b, s): &(BlockNo, SlotRef)| {
                (*b, map.segments().seq(*s), map.segments().slot(*s).checksum())
            };
            let blocks = now.iter().map(describe).collect();
            self.next_read = self.next_read.wrapping_add(1);
            let key = self.next_read;
            self.reads.insert(key, CopyRead { segment, blocks });
            map.segments_mut().pin(segment);
            let offset = self.layout.segment_offset(segment) + u64::from(start);
            let op = DeviceOp::Read { offset, len: n * BLOCK_BYTES as usize };
            out.asks.push(Ask { op, class: Class::Background, owner: Io::Copy(key) });
        }
    }

    /// Blocks have been read that are to be copied; nothing more enters the log unless it `takes` them. Returns the locks of those
    /// that are not kept: a block that cannot be read, or is damaged, the backing has.
    pub(crate) fn read_done(
        &mut self,
        key: u32,
        result: DeviceResult,
        takes: bool,
        log: &mut Log,
        map: &mut Map,
    ) -> Vec<(BlockNo, Hold)> {
        let Some(read) = self.reads.remove(&key) else {
            return Vec::new();
        };
        map.segments_mut().unpin(read.segment);
        let data = result.unwrap_or_default();
        let mut dropped = Vec::new();
        for (n, (block, seq, checksum)) in read.blocks.iter().enumerate() {
            let data = data.as_ref().map(|d| d.slice(n * 4096, 4096));
            let unchecked = self.planted.is(Mutation::CopiesUnchecked);
            match data.filter(|d| unchecked || block_checksum(*block, *seq, d) == *checksum) {
                Some(data) if takes => {
                    let extent = Some(Extent { block: *block, count: 1, kind: ExtentKind::Clean });
                    let owner = AppendOwner::Relocation(*block);
                    log.append(Append { extent, data: Some(data), owner, durable: false, after: Seq(0) });
                }
                _ => dropped.extend(self.dropped(*block, log)),
            }
        }
        self.pin(log);
        dropped
    }

    /// The copy is in the log and current. Returns the lock that is to be given back then, and whether the copy may stay: else the backing may
    /// have lost what it is a copy of.
    pub(crate) fn copied(
        &mut self,
        block: BlockNo,
        log: &mut Log,
        map: &mut Map,
    ) -> Option<((BlockNo, Hold), bool)> {
        let list = self.copying.remove(&block)?;
        if let Some(slot) = map.lookup(block) {
            // The old slot was forgotten when the new one became current; the block itself has stayed.
            map.readmit(slot, list);
        }
        self.pin(log);
        Some(((block, Hold::Exclusive), !self.was_distrusted(block)))
    }

    /// Gives up the copies that are not in the log yet; returns their locks.
    pub(crate) fn cancel(&mut self, log: &mut Log) -> Vec<(BlockNo, Hold)> {
        let cancelled = log.cancel_relocations();
        cancelled.into_iter().filter_map(|block| self.dropped(block, log)).collect()
    }

    /// The block is not copied after all; returns its lock.
    pub(crate) fn dropped(&mut self, block: BlockNo, log: &mut Log) -> Option<(BlockNo, Hold)> {
        self.copying.remove(&block)?;
        self.was_distrusted(block);
        self.pin(log);
        Some((block, Hold::Exclusive))
    }

    /// Moves the marks that blocks are lost, those among `slots`, to the head; a block whose data is damaged for good
    /// becomes such a mark. It stays an error until it is written again (P5), and the tail can move on. A write of the
    /// block that waits for this room comes after the mark in the log, but one in flight would come before it. Returns locks that are to be
    /// given back.
    pub(crate) fn move_poison(
        &mut self,
        slots: impl Iterator<Item = SlotRef>,
        is_lost: impl Fn(BlockNo, SlotRef) -> bool,
        log: &mut Log,
        map: &mut Map,
        locks: &mut Locks,
    ) -> Vec<(BlockNo, Hold)> {
        let mut released = Vec::new();
        if self.poisons > 0 {
            return released;
        }
        for slot in slots {
            let s = *map.segments().slot(slot);
            let block = s.block();
            if !s.has(DIRTY)
                || map.lookup(block) != Some(slot)
                || !(s.kind() == SlotKind::Poison || is_lost(block, slot))
                || log.has_in_flight(block)
                || !locks.try_take(BlockRange::new(block, 1), Hold::LogWrite)
            {
                continue;
            }
            if self.planted.is(Mutation::DropsPoison) {
                map.cleaned(slot);
                released.push((block, Hold::LogWrite));
                continue;
            }
            self.poisons += 1;
            let extent = Some(Extent { block, count: 1, kind: ExtentKind::Poison });
            let owner = AppendOwner::Poison(block);
            log.append_urgent(Append { extent, data: None, owner, durable: true, after: Seq(0) });
        }
        released
    }

    /// The mark is in the log, or never will be; returns its lock.
    pub(crate) fn poison_done(&mut self, block: BlockNo) -> (BlockNo, Hold) {
        self.poisons -= 1;
        (block, Hold::LogWrite)
    }
}
