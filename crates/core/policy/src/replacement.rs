//! Replacement of clean blocks: ARC (Megiddo and Modha, FAST'03) in its clock form, CAR (Bansal and Modha, FAST'04).
//!
//! The log is the clock: blocks stand in it in the order in which they came, and cleaning a segment is the hand that
//! passes over them. The hand asks for each clean block whether it stays (it is then copied to the log's head, which
//! is where CAR would put it) or goes. As in ARC there are two lists, blocks used once lately ("recent", T1) and more
//! often ("frequent", T2); what was dropped from either is remembered for a while as a ghost (B1, B2), and a ghost
//! that is asked for moves the target size of T1.
//!
//! Unlike the papers' lists, ghosts live in a table where a newer ghost overwrites an older one that falls on the
//! same place: four bytes for each ghost, and an order that is only roughly least-recently-used. Blocks enter when
//! they become clean, not when a read misses: Forebay is a write cache, and read misses cost no endurance.

use forebay_block::BlockNo;

/// The list that a clean block is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Used once lately (T1).
    Recent,
    /// Used more often (T2).
    Frequent,
}

/// What becomes of a clean block under the hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is worth a copy at the log's head, on this list.
    Keep(List),
    /// It goes; the engine says so by [`Replacement::dropped`].
    Drop,
}

/// State of the replacement policy.
#[derive(Clone, Debug)]
pub struct Replacement {
    recent: u64,
    frequent: u64,
    target_recent: u64,
    capacity: u64,
    ghosts_recent: Ghosts,
    ghosts_frequent: Ghosts,
}

/// Remembers about `places` blocks by a 32-bit fingerprint.
#[derive(Clone, Debug)]
struct Ghosts {
    table: Vec<u32>,
    len: u64,
}

impl Ghosts {
    fn new(places: usize) -> Self {
        Self { table: vec![0; places], len: 0 }
    }

    fn place(&self, block: BlockNo) -> (usize, u32) {
        let h = block.0.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let place = (u128::from(h) * self.table.len() as u128) >> 64;
        // 0 means "empty"; the fingerprint is of bits that the place does not depend on much.
        (place as usize, (h as u32 ^ (block.0 >> 32) as u32) | 1)
    }

    fn insert(&mut self, block: BlockNo) {
        let (place, print) = self.place(block);
        self.len += u64::from(self.table[place] == 0);
        self.table[place] = print;
    }

    fn take(&mut self, block: BlockNo) -> bool {
        let (place, print) = self.place(block);
        let found = self.table[place] == print;
        if found {
            self.table[place] = 0;
            self.len -= 1;
        }
        found
    }
}

impl Replacement {
    /// For a cache of `capacity` blocks. Takes two bytes of memory for each.
    pub fn new(capacity: u64) -> Self {
        let ghosts = (capacity / 4).max(16) as usize;
        Self {
            recent: 0,
            frequent: 0,
            target_recent: 0,
            capacity,
            ghosts_recent: Ghosts::new(ghosts),
            ghosts_frequent: Ghosts::new(ghosts),
        }
    }

    /// A block has become clean and may be kept for reads; returns the list that it is on from now on.
    pub fn admitted(&mut self, block: BlockNo) -> List {
        if self.recall(block) {
            self.frequent += 1;
            List::Frequent
        } else {
            self.recent += 1;
            List::Recent
        }
    }

    /// A read of the block missed the cache.
    pub fn missed(&mut self, block: BlockNo) {
        self.recall(block);
    }

    /// Moves the target if the block is a ghost, which it then no longer is.
    fn recall(&mut self, block: BlockNo) -> bool {
        let (b1, b2) = (self.ghosts_recent.len, self.ghosts_frequent.len);
        if self.ghosts_recent.take(block) {
            let step = (b2 / b1.max(1)).max(1);
            self.target_recent = (self.target_recent + step).min(self.capacity);
            return true;
        }
        if self.ghosts_frequent.take(block) {
            let step = (b1 / b2.max(1)).max(1);
            self.target_recent = self.target_recent.saturating_sub(step);
            return true;
        }
        false
    }

    /// The hand has come to a clean block.
    pub fn judge(&self, list: List, referenced: bool) -> Verdict {
        if referenced {
            return Verdict::Keep(List::Frequent);
        }
        let recent_is_large = self.recent >= self.target_recent.max(1);
        match list {
            List::Recent if recent_is_large => Verdict::Drop,
            List::Frequent if !recent_is_large => Verdict::Drop,
            kept => Verdict::Keep(kept),
        }
    }

    /// A block that was judged worth keeping has left its old place ([`Replacement::left`]) and stands at the clock's
    /// head again, on this list.
    pub fn rejoined(&mut self, list: List) {
        *self.count(list) += 1;
    }

    /// A clean block has been dropped from the cache; its ghost stays.
    pub fn dropped(&mut self, block: BlockNo, list: List) {
        self.left(list);
        match list {
            List::Recent => self.ghosts_recent.insert(block),
            List::Frequent => self.ghosts_frequent.insert(block),
        }
    }

    /// A clean block has been overwritten or invalidated.
    pub fn left(&mut self, list: List) {
        let count = self.count(list);
        *count = count.saturating_sub(1);
    }

    fn count(&mut self, list: List) -> &mut u64 {
        match list {
            List::Recent => &mut self.recent,
            List::Frequent => &mut self.frequent,
        }
    }

    /// Clean blocks tracked now, on the recent and on the frequent list.
    pub fn tracked(&self) -> (u64, u64) {
        (self.recent, self.frequent)
    }

    /// Memory in bytes.
    pub fn bytes(&self) -> usize {
        (self.ghosts_recent.table.capacity() + self.ghosts_frequent.table.capacity()) * 4
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};

    use super::*;

    /// A loop over a hot set with a scan running through it: with the clock's hand passing in order of arrival, the
    /// hot blocks stay and the scan's blocks go.
    #[test]
    fn a_scan_does_not_wash_out_what_is_used_again() {
        let mut arc = Replacement::new(100);
        let mut clock: VecDeque<(u64, List, bool)> =
            (0..50u64).map(|b| (b, arc.admitted(BlockNo(b)), true)).collect();
        let mut scan = 1_000_000u64;
        for round in 0..2000u64 {
            if let Some(hot) = clock.iter_mut().find(|e| e.0 == round % 50) {
                hot.2 = true;
            }
            scan += 1;
            clock.push_back((scan, arc.admitted(BlockNo(scan)), false));
            while clock.len() > 100 {
                let (b, list, referenced) = clock.pop_front().unwrap();
                match arc.judge(list, referenced) {
                    Verdict::Keep(to) => {
                        arc.left(list);
                        arc.rejoined(to);
                        clock.push_back((b, to, false));
                    }
                    Verdict::Drop => arc.dropped(BlockNo(b), list),
                }
            }
        }
        let hot = clock.iter().filter(|e| e.0 < 50).count();
        assert!(hot >= 45, "{hot} of 50 hot blocks are left");
        let (recent, frequent) = arc.tracked();
        assert_eq!(recent + frequent, 100);
    }

    #[test]
    fn ghosts_move_the_target_both_ways() {
        let mut arc = Replacement::new(1000);
        arc.admitted(BlockNo(1));
        arc.dropped(BlockNo(1), List::Recent);
        assert_eq!(arc.admitted(BlockNo(1)), List::Frequent);
        assert_eq!(arc.target_recent, 1);
        arc.dropped(BlockNo(1), List::Frequent);
        arc.missed(BlockNo(1));
        assert_eq!(arc.target_recent, 0);
        assert_eq!(arc.admitted(BlockNo(1)), List::Recent, "a ghost is asked for once");
    }

    #[test]
    fn the_target_moves_the_faster_the_more_the_other_list_remembers() {
        for (recent, frequent, asked, target) in
            [(3, 30, 1000, 60), (30, 3, 2000, 40), (30, 3, 1000, 51), (3, 30, 2000, 49)]
        {
            let mut arc = Replacement::new(10_000);
            arc.target_recent = 50;
            (0..recent).for_each(|n| arc.ghosts_recent.insert(BlockNo(1000 + n)));
            (0..frequent).for_each(|n| arc.ghosts_frequent.insert(BlockNo(2000 + n)));
            assert_eq!((arc.ghosts_recent.len, arc.ghosts_frequent.len), (recent, frequent));
            arc.missed(BlockNo(asked));
            assert_eq!(arc.target_recent, target, "{recent} and {frequent} ghosts");
        }
    }

    #[test]
    fn a_block_that_was_not_used_goes_from_the_list_that_is_too_long() {
        let mut arc = Replacement::new(1000);
        arc.target_recent = 5;
        for (recent, of_recent, of_frequent) in [
            (4, Verdict::Keep(List::Recent), Verdict::Drop),
            (5, Verdict::Drop, Verdict::Keep(List::Frequent)),
            (6, Verdict::Drop, Verdict::Keep(List::Frequent)),
        ] {
            arc.recent = recent;
            assert_eq!(
                (arc.judge(List::Recent, false), arc.judge(List::Frequent, false)),
                (of_recent, of_frequent)
            );
            let used = [List::Recent, List::Frequent].map(|list| arc.judge(list, true));
            assert_eq!(used, [Verdict::Keep(List::Frequent); 2]);
        }
        (arc.recent, arc.target_recent) = (0, 0);
        assert_eq!(
            arc.judge(List::Frequent, false),
            Verdict::Drop,
            "one block of the recent is always wanted"
        );
    }

    #[test]
    fn ghosts_are_spread_over_the_table_told_apart_and_counted() {
        let mut ghosts = Ghosts::new(1000);
        let places: HashSet<usize> = (0..1000).map(|block| ghosts.place(BlockNo(block)).0).collect();
        assert!(places.len() > 500 && places.iter().all(|place| *place < 1000), "{} places", places.len());
        for block in 0..16 {
            // Of these only the upper half differs, of which the place knows.
            let prints: HashSet<u32> = (0..16)
                .map(|n| ghosts.place(BlockNo(block + ((2 * n) << 32))).1)
                .inspect(|print| assert_eq!(print % 2, 1))
                .collect();
            assert_eq!(prints.len(), 16, "block {block}");
        }
        assert_eq!(Replacement::new(4000).bytes(), 2 * 4000, "two bytes for each block");
        (0..100).for_each(|block| ghosts.insert(BlockNo(block)));
        let taken = (0..100).filter(|block| ghosts.take(BlockNo(*block))).count();
        assert!(taken > 90 && ghosts.len == 0, "{taken} taken, {} left", ghosts.len);
    }

    /// CAR as in the paper (Bansal and Modha, FAST'04, Figure 2), with exact lists: what [`Replacement`] approximates.
    #[derive(Default)]
    struct Textbook {
        capacity: usize,
        target: usize,
        clocks: [VecDeque<(u64, bool)>; 2],
        ghosts: [VecDeque<u64>; 2],
    }

    impl Textbook {
        /// Whether the block was there.
        fn access(&mut self, block: u64) -> bool {
            if let Some(e) = self.clocks.iter_mut().flatten().find(|e| e.0 == block) {
                e.1 = true;
                return true;
            }
            let ghost = (0..2).find(|l| self.ghosts[*l].contains(&block));
            if self.clocks[0].len() + self.clocks[1].len() == self.capacity {
                self.replace();
                if ghost.is_none() && self.clocks[0].len() + self.ghosts[0].len() >= self.capacity {
                    self.ghosts[0].pop_front();
                } else if ghost.is_none()
                    && self.ghosts.iter().map(VecDeque::len).sum::<usize>() >= self.capacity
                {
                    self.ghosts[1].pop_front();
                }
            }
            let (b1, b2) = (self.ghosts[0].len().max(1), self.ghosts[1].len().max(1));
            match ghost {
                Some(0) => self.target = (self.target + (b2 / b1).max(1)).min(self.capacity),
                Some(_) => self.target = self.target.saturating_sub((b1 / b2).max(1)),
                None => {}
            }
            self.ghosts.iter_mut().for_each(|g| g.retain(|b| *b != block));
            self.clocks[usize::from(ghost.is_some())].push_back((block, false));
            false
        }

        fn replace(&mut self) {
            loop {
                let list = usize::from(self.clocks[0].len() < self.target.max(1));
                let Some((block, used)) = self.clocks[list].pop_front() else { return };
                if !used {
                    self.ghosts[list].push_back(block);
                    return;
                }
                self.clocks[1].push_back((block, false));
            }
        }
    }

    /// A cache in front of reads only, with one clock as the log is, in whose manner the engine asks.
    fn hits_of_one_clock(capacity: usize, trace: &[u64]) -> usize {
        let mut policy = Replacement::new(capacity as u64);
        let mut clock: VecDeque<(u64, List, bool)> = VecDeque::new();
        let mut hits = 0;
        for block in trace {
            if let Some(e) = clock.iter_mut().find(|e| e.0 == *block) {
                e.2 = true;
                hits += 1;
                continue;
            }
            clock.push_back((*block, policy.admitted(BlockNo(*block)), false));
            while clock.len() > capacity {
                let Some((b, list, used)) = clock.pop_front() else { break };
                match policy.judge(list, used) {
                    Verdict::Keep(to) => {
                        policy.left(list);
                        policy.rejoined(to);
                        clock.push_back((b, to, false));
                    }
                    Verdict::Drop => policy.dropped(BlockNo(b), list),
                }
            }
            let (recent, frequent) = policy.tracked();
            assert_eq!(recent + frequent, clock.len() as u64);
            assert!(policy.target_recent <= policy.capacity);
        }
        hits
    }

    /// One clock in place of two, and hashed ghosts, cost few hits.
    #[test]
    fn comes_close_to_the_textbook() {
        let mut state = 1u64;
        let mut random = move |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % n
        };
        for (skew, scan_percent) in [(1, 0), (2, 0), (3, 0), (2, 20), (3, 50)] {
            let trace: Vec<u64> = (0..20_000u64)
                .map(|n| match random(100) < scan_percent {
                    true => 1_000_000 + n,
                    // The smallest of several draws: the higher `skew`, the hotter the hot blocks.
                    false => (0..skew).map(|_| random(1000)).min().unwrap_or(0),
                })
                .collect();
            let mut textbook = Textbook { capacity: 200, ..Textbook::default() };
            let exact = trace.iter().filter(|b| textbook.access(**b)).count();
            let ours = hits_of_one_clock(200, &trace);
            println!("skew {skew}, scan {scan_percent} %: {ours} hits, the textbook {exact}");
            assert!(ours * 100 >= exact * 90, "{ours} hits of the textbook's {exact}");
        }
    }
}
