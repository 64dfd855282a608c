//! Bypass: the way of a part that goes to the backing without entering the log.
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

use forebay_block::{BLOCK_BYTES, BlockNo, DeviceOp, Seq};
use forebay_format::record::{Extent, ExtentKind};

use crate::client::parts::{Next, PartState, Payload, pieces};
use crate::client::requests::{Answered, Requests};
use crate::engine::Engine;
use crate::interface::{Class, PartKey};
use crate::locks::{BlockRange, Locks};
use crate::log::{Append, AppendOwner};
use crate::map::index::SHARD_BLOCKS_MAX;
use crate::map::segments::DIRTY;
use crate::mutation::Mutation;

/// Longest clean copy of a bypassed write.
const CLEAN_COPY_BLOCKS_MAX: u64 = 256;

/// A clean copy that is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copied {
    pub(crate) range: BlockRange,
    /// The backing may have lost meanwhile what it is a copy of.
    pub(crate) is_untrue: bool,
}

impl Requests {
    /// Whether the part's write to the backing must be durable when it ends, whatever else asks for it.
    pub(crate) fn wants_durable(&self, key: PartKey) -> bool {
        self.parts.get(&key).is_some_and(|part| {
            // Nobody waits for such a write, but whoever flushes would wait for the flush of the backing that it needed.
            let unawaited = part.class() == Class::Background && matches!(part.payload, Payload::Data { .. });
            part.durable || unawaited
        })
    }

    /// The part is written to the backing.
    pub(crate) fn write(&mut self, key: PartKey, durable: bool) -> Next {
        let (planted, volume_bytes) = (self.planted, self.volume_bytes);
        let Some(part) = self.parts.get_mut(&key) else {
            return Next::Nothing;
        };
        part.written_durably = durable;
        part.state = PartState::BypassWriting;
        let offset = part.range.first.offset();
        let len = (part.range.count * BLOCK_BYTES).min(volume_bytes - offset);
        let op = match (&part.payload, &part.blocks) {
            (Payload::Zero { unmap }, _) => DeviceOp::Zero { offset, len, unmap: *unmap },
            (Payload::Data { .. }, Some(blocks)) => DeviceOp::Write {
                offset,
                bufs: vec![blocks.slice(0, len as usize)],
                durable: durable && (part.durable || !planted.is(Mutation::BypassesVolatile)),
            },
            (Payload::Data { .. }, None) => return Next::Nothing,
        };
        Next::Write(op, part.class())
    }

    /// The write to the backing has succeeded; `losses` flushes of the backing have failed until now.
    pub(crate) fn written(&mut self, key: PartKey, losses: u64) -> Next {
        let planted = self.planted;
        let Some(part) = self.parts.get_mut(&key) else {
            return Next::Nothing;
        };
        part.losses = losses;
        let flush = !planted.is(Mutation::ZeroesVolatile);
        if matches!(part.payload, Payload::Zero { .. }) && part.written_durably && flush {
            part.state = PartState::BypassFlushing { losses };
            return Next::Flush(part.class());
        }
        let volatile = !part.written_durably && !planted.is(Mutation::ForgetsUnflushedBypass);
        let request = part.request;
        if volatile {
            self.bypassed(request);
        }
        Next::OnBacking { volatile }
    }

    /// Whether a flush that has succeeded covers the part: none has failed since it was written, when `losses` had.
    pub(crate) fn is_flushing_since(&self, key: PartKey, losses: u64) -> bool {
        self.parts.get(&key).is_some_and(|part| part.state == PartState::BypassFlushing { losses })
    }

    /// The part's supersede record is to be written.
    ///
    /// # Panics
    /// If the backing may still lose what the record speaks of.
    pub(crate) fn supersede(&mut self, key: PartKey) -> Option<Append> {
        let durable = !self.planted.is(Mutation::SupersedesVolatile);
        let part = self.parts.get_mut(&key)?;
        assert!(part.written_durably, "superseded only by what is durable on the backing");
        part.state = PartState::Superseding;
        let count = part.range.count.min(u64::from(u32::MAX)) as u32;
        let extent = Some(Extent { block: part.range.first, count, kind: ExtentKind::Supersede });
        Some(Append { extent, data: None, owner: AppendOwner::Supersede(key), durable, after: Seq(0) })
    }

    /// The part waits until the log is void. Its blocks.
    pub(crate) fn await_retirement(&mut self, key: PartKey) -> Option<BlockRange> {
        let part = self.parts.get_mut(&key)?;
        part.state = PartState::AwaitingRetirement;
        Some(part.range)
    }

    /// The parts that wait until the log is void.
    pub(crate) fn awaiting_retirement(&self) -> Vec<PartKey> {
        let awaiting = self.parts.iter().filter(|(_, part)| part.state == PartState::AwaitingRetirement);
        awaiting.map(|(key, _)| *key).collect()
    }

    /// Whether a clean copy of the part may be kept.
    pub(crate) fn is_copyable(&self, key: PartKey) -> bool {
        let part = self.parts.get(&key);
        part.is_some_and(|part| part.blocks.is_some() && part.range.count <= CLEAN_COPY_BLOCKS_MAX)
    }

    /// The part counts as done; its locks stay until a clean copy is in the log, so that no newer write comes between.
    pub(crate) fn copy(&mut self, key: PartKey, piece_blocks_max: u32) -> (Option<Answered>, Vec<Append>) {
        let Some(part) = self.parts.get_mut(&key) else {
            return (None, Vec::new());
        };
        let owner = AppendOwner::CleanCopy(key);
        let like = Append { extent: None, data: None, owner, durable: false, after: Seq(0) };
        let appends = pieces(part.range, ExtentKind::Clean, part.blocks.as_ref(), piece_blocks_max, &like);
        part.state = PartState::CopyingClean { pieces: appends.len() as u32 };
        let request = part.request;
        (self.count(request, None), appends)
    }

    /// The log has a piece of the clean copy; all of it with the last. `losses` flushes of the backing have failed until now.
    pub(crate) fn copied(&mut self, key: PartKey, losses: u64, locks: &mut Locks) -> Option<Copied> {
        let PartState::CopyingClean { pieces } = &mut self.parts.get_mut(&key)?.state else {
            return None;
        };
        *pieces -= 1;
        if *pieces > 0 {
            return None;
        }
        let part = self.parts.remove(&key)?;
        locks.release(part.range, part.hold);
        Some(Copied { range: part.range, is_untrue: !part.written_durably && part.losses != losses })
    }

    /// The clean copy will never be in the log.
    pub(crate) fn copy_refused(&mut self, key: PartKey, locks: &mut Locks) {
        if let Some(part) = self.parts.remove(&key) {
            locks.release(part.range, part.hold);
        }
    }

    /// The log is kept from moving on by the part's write to the backing: its blocks are not destaged before.
    pub(crate) fn keeps_log(&self, key: PartKey) -> bool {
        self.is_landing(key) || self.parts.get(&key).is_some_and(|part| part.supersedes)
    }
}

/// Most ranges of untrue clean copies that are remembered for a clean stop; past that none of the log as it is then is trusted afterwards.
const DROPS_MAX: usize = 64 << 10;
/// Bytes of the log that each of them takes up there, at most, in a record and in the summary. All must find room in one segment, for
/// there may be no other.
const DROP_BYTES: u32 = 64;
/// Ranges of at most so many blocks are looked through for blocks that have been cached anew.
const LOOKED_THROUGH_BLOCKS_MAX: u64 = 16;

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
    /// Whether recovery could take a record of one of the blocks for newer than the backing.
    pub(crate) fn needs_supersede(&self, range: BlockRange) -> bool {
        let clean = self.log.durable_clean_upto();
        self.current_in(range).any(|slot| self.map.segments.seq(slot) > clean)
            || self.drops.recalled_upto(range) > clean
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

    /// The index forgets a range. `untrue` says that the log itself still holds clean copies as if they were true.
    pub(crate) fn forget(&mut self, range: BlockRange, untrue: bool) {
        let mut blocks: Vec<BlockNo> =
            self.current_in(range).map(|slot| self.map.segments.slot(slot).block()).collect();
        blocks.sort_unstable();
        for block in blocks {
            let Some(slot) = self.map.index.remove(block, &self.map.segments) else { continue };
            let seq = self.map.segments.seq(slot);
            // What made a dirty block void is durable on the backing.
            self.commands.paid(block, Seq(u64::MAX), slot);
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
