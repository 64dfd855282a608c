//! What the log says of the volume's blocks, as recovery would see it.

use std::collections::BTreeMap;

use forebay_block::Seq;
use forebay_format::record::{Extent, ExtentKind, RecordHeader};

use crate::report::BlockCounts;

/// What is current for a run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockState {
    Dirty,
    Zero,
    Poison,
    Superseded,
    Clean,
}

/// Consecutive blocks of which one record says the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Block behind the last.
    pub(crate) end: u64,
    pub(crate) state: BlockState,
    pub(crate) seq: Seq,
    pub(crate) time_ns: u64,
}

/// Blocks that the log says something of: runs that do not overlap, by their first block.
#[derive(Debug)]
pub(crate) struct Contents {
    runs: BTreeMap<u64, Run>,
    clean_upto: Seq,
}

impl Contents {
    pub(crate) fn new(clean_upto: Seq) -> Self {
        Self { runs: BTreeMap::new(), clean_upto }
    }

    /// Applies the next record of the log.
    pub(crate) fn apply(&mut self, record: &RecordHeader) {
        let destaged = record.seq <= self.clean_upto;
        for e in &record.extents {
            let state = match (e.kind, destaged) {
                (ExtentKind::Data, false) => BlockState::Dirty,
                (ExtentKind::Zero, false) => BlockState::Zero,
                (ExtentKind::Poison, false) => BlockState::Poison,
                (ExtentKind::Supersede, false) => BlockState::Superseded,
                (ExtentKind::Data | ExtentKind::Zero, true) => BlockState::Clean,
                (ExtentKind::Clean, _) => {
                    self.fill(e, record);
                    continue;
                }
                // The backing has something else: nothing is cached.
                (ExtentKind::Poison | ExtentKind::Supersede, true) => {
                    self.clear(e.block.0, e.block.0 + u64::from(e.count));
                    continue;
                }
            };
            let (start, end) = (e.block.0, e.block.0 + u64::from(e.count));
            self.clear(start, end);
            self.insert(start, end, state, record);
        }
    }

    fn insert(&mut self, start: u64, end: u64, state: BlockState, record: &RecordHeader) {
        let run = Run { end, state, seq: record.seq, time_ns: record.time_ns };
        self.runs.insert(start, run);
    }

    /// A clean copy never hides an older record: it counts only where nothing is said.
    fn fill(&mut self, e: &Extent, record: &RecordHeader) {
        for block in e.block.0..e.block.0 + u64::from(e.count) {
            match self.get(block).map(|r| r.state) {
                None => self.insert(block, block + 1, BlockState::Clean, record),
                Some(BlockState::Superseded) => {
                    self.clear(block, block + 1);
                    self.insert(block, block + 1, BlockState::Clean, record);
                }
                Some(_) => {}
            }
        }
    }

    /// Cuts `start .. end` out of the runs.
    fn clear(&mut self, start: u64, end: u64) {
        while let Some((first, run)) = self.runs.range(..end).next_back().map(|(k, r)| (*k, *r)) {
            if run.end <= start {
                break;
            }
            self.runs.remove(&first);
            if first < start {
                self.runs.insert(first, Run { end: start, ..run });
            }
            if run.end > end {
                self.runs.insert(end, run);
            }
        }
    }

    /// What is current for `block`.
    pub(crate) fn get(&self, block: u64) -> Option<&Run> {
        let (_, run) = self.runs.range(..=block).next_back()?;
        (run.end > block).then_some(run)
    }

    /// Blocks by what is said of them. Clean copies count only if they are believed.
    pub(crate) fn counts(&self, clean_believed: bool) -> BlockCounts {
        let mut counts = BlockCounts::default();
        for (start, run) in &self.runs {
            let count = match run.state {
                BlockState::Dirty => &mut counts.dirty,
                BlockState::Zero => &mut counts.zero,
                BlockState::Poison => &mut counts.poison,
                BlockState::Superseded => &mut counts.superseded,
                BlockState::Clean if clean_believed => &mut counts.clean,
                BlockState::Clean => continue,
            };
            *count += run.end - start;
        }
        counts
    }

    /// Time of the oldest record that says something which the backing lacks.
    pub(crate) fn oldest_dirty_ns(&self) -> Option<u64> {
        let lacking = |r: &&Run| matches!(r.state, BlockState::Dirty | BlockState::Zero);
        self.runs.values().filter(lacking).map(|r| r.time_ns).min()
    }
}

#[cfg(test)]
mod tests {
    use forebay_block::BlockNo;

    use forebay_format::record::Consistent;

    use super::*;

    fn record(seq: u64, extents: &[(u64, u32, ExtentKind)]) -> RecordHeader {
        let extents = extents.iter().map(|(block, count, kind)| Extent {
            block: BlockNo(*block),
            count: *count,
            kind: *kind,
        });
        RecordHeader {
            generation: 1,
            segment_seq: 1,
            seq: Seq(seq),
            offset: 0,
            durable_upto: Seq(0),
            clean_upto: Seq(0),
            tail: 1,
            time_ns: seq * 10,
            clean_stop: false,
            ordered: Consistent::No,
            distance: 0,
            extents: extents.collect(),
            checksums: Vec::new(),
        }
    }

    /// Runs against a naive table, over pseudo-random extents.
    #[test]
    fn runs_agree_with_a_table_of_blocks() {
        const BLOCKS: u64 = 40;
        let kinds = [
            ExtentKind::Data,
            ExtentKind::Zero,
            ExtentKind::Supersede,
            ExtentKind::Poison,
            ExtentKind::Clean,
        ];
        let mut state = 7u64;
        let mut next = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for _ in 0..600 {
            let clean_upto = Seq(next(12));
            let mut contents = Contents::new(clean_upto);
            let mut table: Vec<Cell> = vec![None; BLOCKS as usize];
            for seq in 1..20 {
                let (start, kind) = (next(BLOCKS - 10), kinds[next(5) as usize]);
                let count = 1 + next(10) as u32;
                contents.apply(&record(seq, &[(start, count, kind)]));
                for cell in &mut table[start as usize..(start + u64::from(count)) as usize] {
                    *cell = after(*cell, kind, seq, Seq(seq) > clean_upto);
                }
                for block in 0..BLOCKS {
                    let run = contents.get(block).map(|r| (r.state, r.seq.0));
                    assert_eq!(run, table[block as usize], "block {block} after {seq}");
                }
            }
        }
    }

    type Cell = Option<(BlockState, u64)>;

    fn after(before: Cell, kind: ExtentKind, seq: u64, dirty: bool) -> Cell {
        let state = match kind {
            ExtentKind::Clean if before.is_some_and(|b| b.0 != BlockState::Superseded) => return before,
            ExtentKind::Clean => BlockState::Clean,
            ExtentKind::Data if dirty => BlockState::Dirty,
            ExtentKind::Zero if dirty => BlockState::Zero,
            ExtentKind::Poison if dirty => BlockState::Poison,
            ExtentKind::Supersede if dirty => BlockState::Superseded,
            ExtentKind::Data | ExtentKind::Zero => BlockState::Clean,
            _ => return None,
        };
        Some((state, seq))
    }

    #[test]
    fn what_the_backing_lacks_is_counted_and_dated() {
        let mut c = Contents::new(Seq(1));
        c.apply(&record(1, &[(0, 8, ExtentKind::Data)]));
        c.apply(&record(2, &[(2, 2, ExtentKind::Data), (100, u32::MAX, ExtentKind::Zero)]));
        c.apply(&record(3, &[(3, 1, ExtentKind::Supersede), (9, 1, ExtentKind::Poison)]));
        let counts = c.counts(false);
        assert_eq!((counts.dirty, counts.zero), (1, u64::from(u32::MAX)));
        assert_eq!((counts.superseded, counts.poison, counts.clean), (1, 1, 0));
        assert_eq!(c.counts(true).clean, 6);
        assert_eq!(c.oldest_dirty_ns(), Some(20));
    }
}
