//! Which requests may touch a block at once.
//!
//! | holder | log write | exclusive | backing |
//! |---|---|---|---|
//! | **log write** (whole blocks into the log; the log orders them) | together | apart | together |
//! | **exclusive** (read-modify-write, bypass, relocation: what they looked at must not change) | apart | apart | together |
//! | **backing** (a write of the block to the backing is in flight: bypass, destage) | together | together | apart |
//!
//! The last row is `docs/design/promises.md`, Admission: never two backing writes of one block in flight. A bypass holds both.
//! Ranges too long for a table of blocks (a discard of a whole disk) are kept as ranges.

use forebay_block::BlockNo;

use crate::tables::Table;

/// Ranges of more blocks than this are locked as a range.
const BLOCKS_LOCKED_ONE_BY_ONE_MAX: u64 = 1024;

/// Consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRange {
    pub(crate) first: BlockNo,
    pub(crate) count: u64,
}

impl BlockRange {
    pub(crate) fn new(first: BlockNo, count: u64) -> Self {
        Self { first, count }
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = BlockNo> + use<> {
        (self.first.0..self.first.0 + self.count).map(BlockNo)
    }

    pub(crate) fn end(self) -> u64 {
        self.first.0 + self.count
    }

    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.first.0 < other.end() && other.first.0 < self.end()
    }

    pub(crate) fn contains(self, block: BlockNo) -> bool {
        self.first <= block && block.0 < self.end()
    }
}

/// How a range is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Whole blocks go into the log.
    LogWrite,
    /// Nobody else changes the blocks.
    Exclusive,
    /// Nobody else changes the blocks, nor writes them to the backing.
    ExclusiveBacking,
    /// Nobody else writes the blocks to the backing.
    Backing,
}

impl Hold {
    fn exclusive(self) -> bool {
        matches!(self, Self::Exclusive | Self::ExclusiveBacking)
    }

    fn backing(self) -> bool {
        matches!(self, Self::Backing | Self::ExclusiveBacking)
    }

    fn conflicts(self, other: Self) -> bool {
        let changes = |h: Self| h == Self::LogWrite || h.exclusive();
        (self.exclusive() && changes(other))
            || (other.exclusive() && changes(self))
            || (self.backing() && other.backing())
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BlockLock {
    log_writes: u32,
    exclusive: bool,
    backing: bool,
}

impl BlockLock {
    fn allows(self, hold: Hold) -> bool {
        !(self.exclusive && hold != Hold::Backing
            || self.log_writes > 0 && hold.exclusive()
            || self.backing && hold.backing())
    }
}

/// The locks held now.
#[derive(Default)]
pub(crate) struct Locks {
    blocks: Table<BlockNo, BlockLock>,
    ranges: Vec<(BlockRange, Hold)>,
    /// Some were given back since somebody asked.
    released: bool,
}

impl Locks {
    /// Takes `range` if nobody holds a part of it in a way that conflicts.
    pub(crate) fn try_take(&mut self, range: BlockRange, hold: Hold) -> bool {
        if self.ranges.iter().any(|(r, h)| r.overlaps(range) && h.conflicts(hold)) {
            return false;
        }
        if range.count > BLOCKS_LOCKED_ONE_BY_ONE_MAX {
            if self.blocks.iter().any(|(b, l)| range.contains(*b) && !l.allows(hold)) {
                return false;
            }
            self.ranges.push((range, hold));
            return true;
        }
        if range.iter().any(|b| self.blocks.get(&b).is_some_and(|l| !l.allows(hold))) {
            return false;
        }
        for block in range.iter() {
            let lock = self.blocks.entry(block).or_default();
            match hold {
                Hold::LogWrite => lock.log_writes += 1,
                Hold::Exclusive => lock.exclusive = true,
                Hold::Backing => lock.backing = true,
                Hold::ExclusiveBacking => {
                    lock.exclusive = true;
                    lock.backing = true;
                }
            }
        }
        true
    }

    /// Gives back what [`Locks::try_take`] gave.
    ///
    /// # Panics
    /// If it is not held: a lock given back twice would let two backing writes of a block meet.
    pub(crate) fn release(&mut self, range: BlockRange, hold: Hold) {
        self.released = true;
        if range.count > BLOCKS_LOCKED_ONE_BY_ONE_MAX {
            let at = self.ranges.iter().position(|(r, h)| *r == range && *h == hold);
            assert!(at.map(|at| self.ranges.swap_remove(at)).is_some(), "{range:?} is not held");
            return;
        }
        for block in range.iter() {
            let lock = self.blocks.entry(block).or_default();
            if hold == Hold::LogWrite {
                assert!(lock.log_writes > 0, "block {block} is not held");
                lock.log_writes -= 1;
            }
            if hold.exclusive() {
                assert!(std::mem::take(&mut lock.exclusive), "block {block} is not held");
            }
            if hold.backing() {
                assert!(std::mem::take(&mut lock.backing), "block {block} is not held on the backing");
            }
            if *lock == BlockLock::default() {
                self.blocks.remove(&block);
            }
        }
    }

    /// Whether something was given back since this was asked last: those who wait may go on then.
    pub(crate) fn take_released(&mut self) -> bool {
        std::mem::take(&mut self.released)
    }

    /// Whether nothing is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.ranges.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [Hold; 4] = [Hold::LogWrite, Hold::Exclusive, Hold::ExclusiveBacking, Hold::Backing];

    /// One by one and as a range, the same pairs are allowed together, and they are those of the table.
    #[test]
    fn pairs_of_holds_follow_the_table() {
        use Hold::{Backing, Exclusive, LogWrite};
        for a in ALL {
            for b in ALL {
                let together = matches!(
                    (a, b),
                    (LogWrite, LogWrite | Backing) | (Backing, LogWrite | Exclusive) | (Exclusive, Backing)
                );
                assert_eq!(!a.conflicts(b), together, "{a:?} and {b:?}");
                for (count_a, count_b) in [(4, 4), (4, 5000), (5000, 4), (5000, 5000)] {
                    let mut locks = Locks::default();
                    let range_a = BlockRange::new(BlockNo(10), count_a);
                    let range_b = BlockRange::new(BlockNo(12), count_b);
                    assert!(locks.try_take(range_a, a));
                    assert!(locks.try_take(BlockRange::new(BlockNo(9000), count_b), b), "apart");
                    assert_eq!(locks.try_take(range_b, b), together, "{a:?} {count_a}, {b:?} {count_b}");
                    if together {
                        locks.release(range_b, b);
                    }
                    locks.release(range_a, a);
                    locks.release(BlockRange::new(BlockNo(9000), count_b), b);
                    assert!(locks.is_empty());
                }
            }
        }
    }

    proptest! {
        /// The locks allow what a plain list of everything held allows, for short ranges and long ones.
        #[test]
        fn behaves_like_a_list(ops in proptest::collection::vec((0u64..60, 0usize..5, 0usize..4, any::<bool>()), 1..300)) {
            let mut locks = Locks::default();
            let mut held: Vec<(BlockRange, Hold)> = Vec::new();
            for (first, len, hold, take) in ops {
                if !take && !held.is_empty() {
                    let (range, hold) = held.swap_remove(first as usize % held.len());
                    locks.release(range, hold);
                    prop_assert_eq!(locks.is_empty(), held.is_empty());
                    continue;
                }
                let hold = ALL[hold];
                let range = BlockRange::new(BlockNo(first), [1, 2, 8, 1024, 1025][len]);
                let free = !held.iter().any(|(r, h)| r.overlaps(range) && h.conflicts(hold));
                prop_assert_eq!(locks.try_take(range, hold), free, "{:?} {:?} beside {:?}", range, hold, &held);
                if free {
                    held.push((range, hold));
                }
            }
        }
    }
}
