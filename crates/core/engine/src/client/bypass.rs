//! Bypass: a write that goes to the backing without entering the log.
//!
//! Order of steps, and why (design, section 6; hazards 1 and 4):
//!
//! 1. The part holds its blocks exclusively, on the backing too: no destage of them is in flight, none starts.
//! 2. The backing is written. Until the bypass is acknowledged, reads find the older version in the log, if there is
//!    one, and so does recovery: a crash here leaves the older version as a whole, whatever is torn on the backing.
//! 3. Where recovery would take an older record of a block for newer than the backing, the backing write is durable
//!    first, then a *supersede* record is made durable in the log. Only then is the write acknowledged (P3).
//! 4. The index forgets the blocks; reads go to the backing.
//!
//! Recovery ignores records up to the durable clean mark after anything but a clean stop. A block whose newest record
//! lies below the mark therefore needs no supersede record; that its clean copy is not true any more is remembered in
//! memory and written down by a clean stop.

use std::collections::BTreeMap;

use forebay_block::{BLOCK_BYTES, BlockNo, DeviceOp, DeviceResult, IoError, Seq};
use forebay_format::record::{Extent, ExtentKind};
use forebay_policy::WritePolicy;

use crate::backing::flushes::flush_failed_error;
use crate::client::requests::{PartState, Payload, pieces};
use crate::engine::{Engine, IoOwner};
use crate::interface::{Class, PartKey, Role};
use crate::locks::BlockRange;
use crate::log::{Append, AppendOwner, SEGMENTS_RESERVED};
use crate::map::index::SHARD_BLOCKS_MAX;
use crate::map::segments::DIRTY;
use crate::mutation::Mutation;

/// Most ranges of untrue clean copies that are remembered for a clean stop; past that none of the log as it is then is trusted afterwards.
const DROPS_MAX: usize = 64 << 10;
/// Bytes of the log that each of them takes up there, at most, in a record and in the summary. All must find room in one segment, for
/// there may be no other.
const DROP_BYTES: u32 = 64;
/// Ranges of at most so many blocks are looked through for blocks that have been cached anew.
const LOOKED_THROUGH_BLOCKS_MAX: u64 = 16;
/// Longest clean copy of a bypassed write.
const CLEAN_COPY_BLOCKS_MAX: u64 = 256;

/// What bypasses leave behind: clean copies that are not true any more.
#[derive(Default)]
pub(crate) struct Drops {
    /// Newest record of earlier runs whose clean copies were not believed at this start: a clean stop cannot vouch
    /// for them either, for the index does not know which of them bypasses made untrue.
    distrusted_upto: Seq,
    ranges: Vec<Untrue>,
    ranges_max: usize,
    /// A flush has failed that bypasses needed whose clean copies are in the log.
    unflushed: bool,
    /// Blocks that the index has forgotten but a restart would not; fewer than the log has slots.
    recalled: BTreeMap<BlockNo, Seq>,
}

/// Clean copies that are not true any more.
#[derive(Clone, Copy)]
struct Untrue {
    range: BlockRange,
    /// The newest record that has any of them.
    upto: Seq,
}

impl Drops {
    pub(crate) fn new(segment_bytes: u32) -> Self {
        let ranges_max = ((segment_bytes / DROP_BYTES) as usize).min(DROPS_MAX);
        Self { ranges_max, ..Self::default() }
    }

    /// A flush has failed that bypasses needed: nothing is believed of the log's clean copies any more.
    pub(crate) fn distrust_all(&mut self) {
        self.unflushed = true;
    }

    /// This run has started without believing the clean copies in records up to `seq`.
    pub(crate) fn distrust(&mut self, seq: Seq) {
        self.distrusted_upto = seq;
    }

    /// The ranges whose clean copies were made untrue, sorted and apart from each other, or `None` if that is not known of every copy
    /// in a log that begins with record `first`.
    fn untrue(&self, first: Seq) -> Option<Vec<BlockRange>> {
        let known = !self.unflushed && self.distrusted_upto < first;
        known.then(|| united(&self.ranges, first).into_iter().map(|untrue| untrue.range).collect())
    }

    /// The index forgets `block`, although a restart could take its record `seq` for newer than the backing as long as
    /// the durable clean mark, now at `clean`, lies below it.
    fn recall(&mut self, block: BlockNo, seq: Seq, clean: Seq) {
        if seq > clean {
            self.recalled.insert(block, seq);
        }
    }

    /// The newest record of these blocks that a restart would not forget.
    pub(crate) fn recalled_upto(&self, range: BlockRange) -> Seq {
        self.recalled.range(range.first..BlockNo(range.end())).map(|(_, seq)| *seq).max().unwrap_or_default()
    }

    /// The copies of `block`, up to that in record `seq`, are not true any more.
    fn remember(&mut self, block: BlockNo, seq: Seq) {
        match self.ranges.last_mut().filter(|last| last.range.end() == block.0) {
            Some(last) => {
                last.range.count += 1;
                last.upto = last.upto.max(seq);
            }
            None => self.ranges.push(Untrue { range: BlockRange::new(block, 1), upto: seq }),
        }
    }

    /// Makes room for more, given a log that begins with record `first`: what is gone from the log need not be named, nor what
    /// `is_cached` anew. If that gains little nothing is believed of the log as it is.
    fn make_room(&mut self, first: Seq, is_cached: impl Fn(BlockNo) -> bool) {
        let newest = self.ranges.iter().map(|untrue| untrue.upto).max().unwrap_or_default();
        let mut left: Vec<Untrue> = Vec::new();
        for untrue in united(&self.ranges, first) {
            if untrue.range.count > LOOKED_THROUGH_BLOCKS_MAX {
                left.push(untrue);
                continue;
            }
            let kept = untrue.range.iter().filter(|block| !is_cached(*block));
            left.extend(kept.map(|block| Untrue { range: BlockRange::new(block, 1), upto: untrue.upto }));
        }
        self.ranges = united(&left, first);
        if self.ranges.len() > self.ranges_max / 4 * 3 {
            self.distrusted_upto = self.distrusted_upto.max(newest);
            self.ranges.clear();
        }
    }
}

/// The same copies in ranges that are sorted and do not touch each other, but for those that a log that begins with record `first`
/// has no more.
fn united(ranges: &[Untrue], first: Seq) -> Vec<Untrue> {
    let mut sorted: Vec<Untrue> = ranges.iter().copied().filter(|untrue| untrue.upto >= first).collect();
    sorted.sort_unstable_by_key(|untrue| untrue.range.first);
    let mut all: Vec<Untrue> = Vec::new();
    for next in sorted {
        match all.last_mut().filter(|last| next.range.first.0 <= last.range.end()) {
            Some(last) => {
                last.range.count = last.range.end().max(next.range.end()) - last.range.first.0;
                last.upto = last.upto.max(next.upto);
            }
            None => all.push(next),
        }
    }
    all
}

impl Engine {
    /// Writes the part to the backing.
    pub(crate) fn bypass_begin(&mut self, key: PartKey) {
        let Some(part) = self.requests.parts.get(&key) else {
            return;
        };
        let (range, asked, class) = (part.range, part.durable, part.class());
        // Nobody waits for such a write, but whoever flushes would wait for the flush of the backing that it needed.
        let unawaited = class == Class::Background && matches!(part.payload, Payload::Data { .. });
        // What comes after it in the order of writes must not outlive it.
        let durable = asked || unawaited || self.needs_supersede(range) || self.order.keeps_versions();
        let volatile = self.mutant(Mutation::BypassesVolatile);
        let Some(part) = self.requests.parts.get_mut(&key) else {
            return;
        };
        part.written_durably = durable;
        part.state = PartState::BypassWriting;
        let offset = range.first.offset();
        let len = (range.count * BLOCK_BYTES).min(self.volume_bytes - offset);
        let op = match (&part.payload, &part.blocks) {
            (Payload::Zero { unmap }, _) => DeviceOp::Zero { offset, len, unmap: *unmap },
            (Payload::Data { .. }, Some(blocks)) => DeviceOp::Write {
                offset,
                bufs: vec![blocks.slice(0, len as usize)],
                durable: durable && (asked || !volatile),
            },
            (Payload::Data { .. }, None) => return,
        };
        self.io(Role::Backing, op, class, IoOwner::BypassWrite(key));
    }

    /// Whether recovery could take a record of one of the blocks for newer than the backing.
    pub(crate) fn needs_supersede(&self, range: BlockRange) -> bool {
        let clean = self.log.durable_clean_upto();
        self.current_in(range).any(|slot| self.map.segments.seq(slot) > clean)
            || self.drops.recalled_upto(range) > clean
    }

    /// Whether one more bypass may begin that ends with a supersede record.
    pub(crate) fn supersede_has_room(&mut self) -> bool {
        let promised = self.requests.parts.values().filter(|part| part.supersedes).count();
        let has_room = promised < self.log_room_for_supersedes();
        self.requests.supersede_waits |= !has_room;
        has_room
    }

    /// Somebody waits for room in the log: writers, or a bypass whose supersede record would find none.
    pub(crate) fn room_is_awaited(&self) -> bool {
        self.log.waits_for_room() || self.requests.supersede_waits && self.log_room_for_supersedes() == 0
    }

    /// The current slots of a range.
    pub(crate) fn current_in(
        &self,
        range: BlockRange,
    ) -> Box<dyn Iterator<Item = crate::map::segments::SlotRef> + '_> {
        if range.count <= SHARD_BLOCKS_MAX as u64 {
            Box::new(range.iter().filter_map(|b| self.map.index.get(b, &self.map.segments)))
        } else {
            Box::new(self.map.index.slots_within((range.first, range.end()), &self.map.segments))
        }
    }

    pub(crate) fn bypass_write_done(&mut self, key: PartKey, result: DeviceResult) {
        if self.landed(key, &result) {
            return;
        }
        if let Err(error) = result {
            self.bypass_failed(key, error);
            return;
        }
        let Some(part) = self.requests.parts.get_mut(&key) else {
            return;
        };
        part.losses = self.flushes.losses();
        let flush = !self.planted.is(Mutation::ZeroesVolatile);
        if matches!(part.payload, Payload::Zero { .. }) && part.written_durably && flush {
            part.state = PartState::BypassFlushing { losses: self.flushes.losses() };
            let class = part.class();
            self.io(Role::Backing, DeviceOp::Flush, class, IoOwner::BypassFlush(key));
            return;
        }
        if !part.written_durably && !self.planted.is(Mutation::ForgetsUnflushedBypass) {
            self.flushes.bypass_ended();
            let request = part.request;
            self.request_bypassed(request);
        }
        self.bypass_on_backing(key);
    }

    pub(crate) fn bypass_flush_done(&mut self, key: PartKey, result: DeviceResult) {
        let state = self.requests.parts.get(&key).map(|p| p.state);
        let lost = state != Some(PartState::BypassFlushing { losses: self.flushes.losses() });
        match result {
            Ok(_) if !lost => self.bypass_on_backing(key),
            Ok(_) => self.bypass_failed(key, flush_failed_error()),
            Err(error) => {
                self.backing_flush_failed(&error);
                self.bypass_failed(key, error);
            }
        }
    }

    /// What the backing holds now is unknown, and a clean copy may not be what it holds. Dirty data stays: it is what
    /// the blocks are, and is destaged over whatever the bypass has left.
    fn bypass_failed(&mut self, key: PartKey, error: IoError) {
        self.figures.backing_errors += 1;
        if let Some(part) = self.requests.parts.get(&key)
            && !self.mutant(Mutation::FailedBypassKeepsCopy)
        {
            let range = part.range;
            self.forget_clean(range);
            self.destage_void(range);
        }
        self.part_finish(key, Some(error));
    }

    /// The index forgets the clean copies of a range, which are not true any more, or of no use.
    pub(crate) fn forget_clean(&mut self, range: BlockRange) {
        let upto = self.log.durable_clean_upto();
        let mut clean: Vec<(BlockNo, Seq)> = self
            .current_in(range)
            .filter(|slot| !self.map.segments.slot(*slot).has(DIRTY))
            .map(|slot| (self.map.segments.slot(slot).block(), self.map.segments.seq(slot)))
            .collect();
        clean.sort_unstable();
        self.drops.recalled.retain(|_, seq| *seq > upto);
        for (block, seq) in clean {
            self.drops.recall(block, seq, upto);
            self.forget(BlockRange::new(block, 1), true);
        }
    }

    /// The data is on the backing, as durable as was asked for.
    fn bypass_on_backing(&mut self, key: PartKey) {
        let Some(part) = self.requests.parts.get(&key) else {
            return;
        };
        let range = part.range;
        let needed = self.needs_supersede(range) && !self.mutant(Mutation::DropsSupersede);
        if self.failure.retired() || !needed {
            self.bypass_acknowledge(key);
            return;
        }
        if self.failure.latched() {
            self.bypass_await_retirement(key);
            return;
        }
        let Some(part) = self.requests.parts.get_mut(&key) else {
            return;
        };
        assert!(part.written_durably, "superseded only by what is durable on the backing");
        part.state = PartState::Superseding;
        let count = range.count.min(u64::from(u32::MAX)) as u32;
        let extent = Some(Extent { block: range.first, count, kind: ExtentKind::Supersede });
        let owner = AppendOwner::Supersede(key);
        let durable = !self.mutant(Mutation::SupersedesVolatile);
        self.log_append_urgent(Append { extent, data: None, owner, durable, after: Seq(0) });
    }

    pub(crate) fn supersede_done(&mut self, key: PartKey) {
        if let Some(part) = self.requests.parts.get(&key) {
            self.forget(part.range, false);
        }
        self.bypass_acknowledge(key);
    }

    /// The supersede record cannot be written any more: the bypass is acknowledged when the log is void. Its blocks,
    /// durable on the backing, are no longer to be destaged: their locks would keep the log from being retired.
    pub(crate) fn bypass_await_retirement(&mut self, key: PartKey) {
        if let Some(part) = self.requests.parts.get_mut(&key) {
            part.state = PartState::AwaitingRetirement;
            let range = part.range;
            self.failure_taint(range);
            self.forget(range, false);
            if self.failure.stuck() {
                // It never will be.
                self.part_finish(key, Some(Self::log_failed_error()));
            }
        }
    }

    /// The log can never come back: what waited for a supersede record needs none.
    pub(crate) fn bypass_after_retirement(&mut self) {
        let awaiting = |s: PartState| s == PartState::AwaitingRetirement;
        let keys: Vec<PartKey> =
            self.requests.parts.iter().filter(|(_, p)| awaiting(p.state)).map(|(k, _)| *k).collect();
        for key in keys {
            self.bypass_acknowledge(key);
        }
    }

    fn bypass_acknowledge(&mut self, key: PartKey) {
        let Some(part) = self.requests.parts.get(&key) else {
            return;
        };
        let (range, request, blocks) = (part.range, part.request, part.blocks.clone());
        if !self.mutant(Mutation::BypassKeepsIndex) {
            self.forget(range, true);
        }
        let copy = blocks.filter(|_| {
            self.settings.write_policy == WritePolicy::WriteThrough
                && range.count <= CLEAN_COPY_BLOCKS_MAX
                && !self.failure.latched()
                && self.map.segments.free_count() > SEGMENTS_RESERVED + 1
        });
        let Some(blocks) = copy else {
            self.part_finish(key, None);
            return;
        };
        // Answered now; the locks stay until the copy is in the log, so that no newer write comes between.
        self.part_counted(request, None);
        let owner = AppendOwner::CleanCopy(key);
        let max = self.piece_blocks_max();
        let appends = pieces(range, ExtentKind::Clean, Some(&blocks), max, (owner, false, Seq(0)));
        if let Some(part) = self.requests.parts.get_mut(&key) {
            part.state = PartState::CopyingClean { pieces: appends.len() as u32 };
        }
        for append in appends {
            self.log_append(append);
        }
    }

    pub(crate) fn clean_copy_done(&mut self, key: PartKey) {
        let Some(part) = self.requests.parts.get_mut(&key) else {
            return;
        };
        let PartState::CopyingClean { pieces } = &mut part.state else {
            return;
        };
        *pieces -= 1;
        if *pieces > 0 {
            return;
        }
        if let Some(part) = self.requests.parts.remove(&key) {
            if !part.written_durably && part.losses != self.flushes.losses() {
                self.forget_clean(part.range);
            }
            for block in part.range.iter() {
                if let Some(slot) = self.map.index.get(block, &self.map.segments) {
                    self.track(slot);
                }
            }
            self.release(part.range, part.hold);
        }
    }

    /// The index forgets a range. `untrue` says that the log itself still holds clean copies as if they were true.
    pub(crate) fn forget(&mut self, range: BlockRange, untrue: bool) {
        let mut blocks: Vec<BlockNo> =
            self.current_in(range).map(|slot| self.map.segments.slot(slot).block()).collect();
        blocks.sort_unstable();
        for block in blocks {
            let Some(slot) = self.map.index.remove(block, &self.map.segments) else { continue };
            let seq = self.map.segments.seq(slot);
            // What made a dirty block void is durable on the backing.
            self.command_paid(block, Seq(u64::MAX), slot);
            self.untrack(slot);
            self.map.segments.ceased_current(slot, false);
            if untrue && !self.mutant(Mutation::ForgetsUntrueCopies) {
                if self.drops.ranges.len() >= self.drops.ranges_max {
                    let (index, segments) = (&self.map.index, &self.map.segments);
                    self.drops.make_room(segments.first_seq(), |block| index.get(block, segments).is_some());
                }
                self.drops.remember(block, seq);
            }
        }
    }

    /// Blocks that must not be believed after a clean stop although the log has clean copies of them: those that
    /// bypasses made untrue and that have not been cached anew. `None` if they are not all known.
    pub(crate) fn untrue_blocks(&self) -> Option<Vec<BlockRange>> {
        let mut absent: Vec<BlockRange> = Vec::new();
        let first = self.map.segments.first_seq();
        for block in self.drops.untrue(first)?.iter().flat_map(|r| r.iter()) {
            if self.map.index.get(block, &self.map.segments).is_some() {
                continue;
            }
            match absent.last_mut() {
                Some(last) if last.end() == block.0 => last.count += 1,
                _ => absent.push(BlockRange::new(block, 1)),
            }
        }
        Some(absent)
    }

    /// Most ranges of untrue copies that have room in the log.
    pub(crate) fn untrue_ranges_max(&self) -> usize {
        self.drops.ranges_max
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However few ranges there is room for: what is untrue in the log is named, or nothing is believed; and what is named is not cached.
        #[test]
        fn what_is_untrue_is_named(
            room in 1usize..9,
            steps in proptest::collection::vec((0u8..8, 0u64..24), 1..300),
        ) {
            let mut drops = Drops { ranges_max: room, ..Drops::default() };
            // The newest copy of each block in the log, and whether it is true; record numbers grow by one with each.
            let (mut copies, mut first, mut next) = (BTreeMap::<u64, (Seq, bool)>::new(), Seq(1), Seq(1));
            let mut known = 0;
            for (step, block) in steps {
                match step {
                    0..3 => {
                        copies.insert(block, (next, true));
                        next = next.next();
                    }
                    3..6 => {
                        if let Some((seq, is_true @ true)) = copies.get_mut(&block) {
                            *is_true = false;
                            let seq = *seq;
                            if drops.ranges.len() >= drops.ranges_max {
                                drops.make_room(first, |block| copies.get(&block.0).is_some_and(|(_, is_true)| *is_true));
                            }
                            drops.remember(BlockNo(block), seq);
                        }
                    }
                    _ if first < next => {
                        first = first.next();
                        copies.retain(|_, (seq, _)| *seq >= first);
                    }
                    _ => {}
                }
                prop_assert!(drops.ranges.len() <= room);
                let Some(named) = drops.untrue(first) else { continue };
                known += 1;
                for (block, (_, is_true)) in &copies {
                    let is_named = named.iter().any(|range| range.contains(BlockNo(*block)));
                    prop_assert!(*is_true || is_named, "{block} is believed");
                }
            }
            prop_assert!(known > 0);
        }
    }
}
