//! Clean copies in the log that must not be believed.
//!
//! A bypass changes the backing and leaves the log as it is. The index forgets the blocks, but the log still holds their clean
//! copies as if they were true. What a restart makes of that hangs on how the run ended:
//!
//! ```text
//!  after a crash        records up to the durable clean mark are forgotten; a copy beyond it is *recalled*
//!  after a clean stop   clean copies are believed, but for those that the stop names: the *untrue* ones
//! ```
//!
//! Invariants:
//! - U1. Each untrue copy that the log holds lies in one of `ranges`, or in a record up to `distrusted_upto`, or nothing is believed.
//! - U2. `ranges` has at most `ranges_max` members: their names find room in the log's last segment.
//! - U3. `recalled` has the newest record of each block that the index has forgotten and a restart after a crash would not.
//!
//! To remember a copy is one step. Only when the room is used up all ranges are looked at; then a quarter of it is free again, or all.

use std::collections::BTreeMap;

use forebay_block::{BlockNo, Seq};

use crate::locks::BlockRange;

/// Most ranges of untrue clean copies that are remembered for a clean stop; past that none of the log as it is then is trusted afterwards.
const RANGES_MAX: usize = 64 << 10;
/// Bytes of the log that each of them takes up there, at most, in a record and in the summary. All must find room in one segment, for
/// there may be no other.
const RANGE_BYTES: u32 = 64;
/// Ranges of at most so many blocks are looked through for blocks that have been cached anew.
const LOOKED_THROUGH_BLOCKS_MAX: u64 = 16;

/// Clean copies that are not true any more.
#[derive(Clone, Copy)]
struct Untrue {
    range: BlockRange,
    /// The newest record that has any of them.
    upto: Seq,
}

/// What is known of copies that must not be believed.
#[derive(Default)]
pub(super) struct UntrueCopies {
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

impl UntrueCopies {
    pub(super) fn new(segment_bytes: u32) -> Self {
        let ranges_max = ((segment_bytes / RANGE_BYTES) as usize).min(RANGES_MAX);
        Self { ranges_max, ..Self::default() }
    }

    /// Most ranges that are named.
    pub(super) fn ranges_max(&self) -> usize {
        self.ranges_max
    }

    /// A flush has failed that bypasses needed: nothing is believed of the log's clean copies any more.
    pub(super) fn distrust_all(&mut self) {
        self.unflushed = true;
    }

    /// This run has started without believing the clean copies in records up to `seq`.
    pub(super) fn distrust(&mut self, seq: Seq) {
        self.distrusted_upto = seq;
    }

    /// The ranges whose clean copies were made untrue, sorted and apart from each other, or `None` if that is not known of every copy
    /// in a log that begins with record `first`.
    pub(super) fn named(&self, first: Seq) -> Option<Vec<BlockRange>> {
        let known = !self.unflushed && self.distrusted_upto < first;
        known.then(|| united(&self.ranges, first).into_iter().map(|untrue| untrue.range).collect())
    }

    /// The index forgets `block`, although a restart could take its record `seq` for newer than the backing as long as
    /// the durable clean mark, now at `clean`, lies below it.
    pub(super) fn recall(&mut self, block: BlockNo, seq: Seq, clean: Seq) {
        if seq > clean {
            self.recalled.insert(block, seq);
        }
    }

    /// A restart would forget records up to `clean`.
    pub(super) fn recall_no_more(&mut self, clean: Seq) {
        self.recalled.retain(|_, seq| *seq > clean);
    }

    /// The newest record of these blocks that a restart would not forget.
    pub(super) fn recalled_upto(&self, range: BlockRange) -> Seq {
        self.recalled.range(range.first..BlockNo(range.end())).map(|(_, seq)| *seq).max().unwrap_or_default()
    }

    /// The copies of `block`, up to that in record `seq`, are not true any more, in a log that begins with record `first`; `is_cached`
    /// tells the blocks that have been cached anew.
    pub(super) fn remember(
        &mut self,
        block: BlockNo,
        seq: Seq,
        first: Seq,
        is_cached: impl Fn(BlockNo) -> bool,
    ) {
        if self.ranges.len() >= self.ranges_max {
            self.make_room(first, is_cached);
        }
        match self.ranges.last_mut().filter(|last| last.range.end() == block.0) {
            Some(last) => {
                last.range.count += 1;
                last.upto = last.upto.max(seq);
            }
            None => self.ranges.push(Untrue { range: BlockRange::new(block, 1), upto: seq }),
        }
    }

    /// What is gone from the log need not be named, nor what is cached anew. If that gains little nothing is believed of the log as
    /// it is.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However few ranges there is room for: what is untrue in the log is named, or nothing is believed (U1, U2).
        #[test]
        fn what_is_untrue_is_named(
            room in 1usize..9,
            steps in proptest::collection::vec((0u8..8, 0u64..24), 1..300),
        ) {
            let mut untrue = UntrueCopies { ranges_max: room, ..UntrueCopies::default() };
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
                            let is_cached = |block: BlockNo| copies.get(&block.0).is_some_and(|(_, is_true)| *is_true);
                            untrue.remember(BlockNo(block), seq, first, is_cached);
                        }
                    }
                    _ if first < next => {
                        first = first.next();
                        copies.retain(|_, (seq, _)| *seq >= first);
                    }
                    _ => {}
                }
                prop_assert!(untrue.ranges.len() <= room);
                let Some(named) = untrue.named(first) else { continue };
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
