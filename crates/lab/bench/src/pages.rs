//! A page cache: which blocks are in memory, and which of them are newer than the volume.

use std::collections::{BTreeSet, HashMap, VecDeque};

/// Blocks in memory, replaced by a clock with second chances. Dirty ones stay until they are written.
pub(crate) struct Pages {
    capacity: usize,
    /// Whether a block was used since the hand passed it last.
    used: HashMap<u64, bool>,
    clock: VecDeque<u64>,
    dirty: BTreeSet<u64>,
    /// Where the next batch of dirty blocks begins: a lift that goes round.
    lift: u64,
}

impl Pages {
    pub(crate) fn new(capacity: u64) -> Self {
        Self {
            capacity: capacity.max(1) as usize,
            used: HashMap::new(),
            clock: VecDeque::new(),
            dirty: BTreeSet::new(),
            lift: 0,
        }
    }

    pub(crate) fn dirty(&self) -> usize {
        self.dirty.len()
    }

    /// Whether the block is in memory, which then counts as used.
    pub(crate) fn touch(&mut self, block: u64) -> bool {
        self.used.get_mut(&block).map(|used| *used = true).is_some()
    }

    /// The block has been read or written.
    pub(crate) fn insert(&mut self, block: u64, dirty: bool) {
        if dirty {
            self.dirty.insert(block);
        }
        if self.touch(block) {
            return;
        }
        self.make_room();
        self.used.insert(block, false);
        self.clock.push_back(block);
    }

    /// Drops one clean block if there is no room; where all are dirty there will be one more, which the limit of dirty blocks
    /// bounds.
    fn make_room(&mut self) {
        if self.clock.len() < self.capacity {
            return;
        }
        for _ in 0..2 * self.clock.len() {
            let Some(block) = self.clock.pop_front() else { return };
            let used = self.used.get_mut(&block).is_some_and(std::mem::take);
            if !used && !self.dirty.contains(&block) {
                self.used.remove(&block);
                return;
            }
            self.clock.push_back(block);
        }
    }

    /// What is deleted needs not be written.
    pub(crate) fn forget(&mut self, block: u64) {
        self.dirty.remove(&block);
    }

    /// The next dirty blocks in order of address, at most `most`, which count as clean from now on.
    pub(crate) fn take_dirty(&mut self, most: usize) -> Vec<u64> {
        let behind = self.dirty.range(self.lift..).copied();
        let mut taken: Vec<u64> = behind.chain(self.dirty.range(..self.lift).copied()).take(most).collect();
        self.lift = taken.last().map_or(0, |block| block + 1);
        for block in &taken {
            self.dirty.remove(block);
        }
        taken.sort_unstable();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clean_blocks_go_and_dirty_ones_stay_until_they_are_taken() {
        let mut pages = Pages::new(3);
        pages.insert(1, true);
        (2..=4).for_each(|block| pages.insert(block, false));
        assert!(pages.touch(1) && !pages.touch(2) && pages.touch(3) && pages.touch(4));
        assert_eq!(pages.take_dirty(10), [1]);
        (5..=9).for_each(|block| pages.insert(block, false));
        assert!(!pages.touch(1));
        assert_eq!(pages.dirty(), 0);
    }

    #[test]
    fn the_lift_goes_round() {
        let mut pages = Pages::new(10);
        [5, 1, 9].into_iter().for_each(|block| pages.insert(block, true));
        assert_eq!(pages.take_dirty(2), [1, 5]);
        pages.insert(2, true);
        assert_eq!(pages.take_dirty(2), [2, 9], "from 6 on, then from the beginning");
        pages.insert(3, true);
        pages.forget(3);
        assert!(pages.take_dirty(1).is_empty());
    }
}
