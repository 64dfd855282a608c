//! How much of the log writes that are waited for take, so that what is reissued, and was issued asynchronously, leaves them room.

/// How long ago counts, in nanoseconds: as long as a disk takes for about a hundred places, which is what making room may need.
const WINDOW_NS: u64 = 250_000_000;

/// Blocks that writes took of the log by their own right, lately: in the running quarter of a second, or the one before, whichever had more.
///
/// As much is kept free for the next ones: in a log that holds no more than what they write while room is made,
/// whatever else enters makes them wait (ATC'15, section 7.2, the scarce cache).
#[derive(Clone, Copy, Debug, Default)]
pub struct Demand {
    window: u64,
    blocks: u64,
    before: u64,
}

impl Demand {
    /// So many blocks enter now.
    pub fn add(&mut self, now_ns: u64, blocks: u64) {
        self.before = self.in_the_window_before(now_ns);
        if self.window != now_ns / WINDOW_NS {
            (self.window, self.blocks) = (now_ns / WINDOW_NS, 0);
        }
        self.blocks += blocks;
    }

    /// Blocks in a quarter of a second.
    pub fn lately(&self, now_ns: u64) -> u64 {
        let running = if self.window == now_ns / WINDOW_NS { self.blocks } else { 0 };
        running.max(self.in_the_window_before(now_ns))
    }

    fn in_the_window_before(&self, now_ns: u64) -> u64 {
        match (now_ns / WINDOW_NS).saturating_sub(self.window) {
            0 => self.before,
            1 => self.blocks,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_lately_is_what_is_kept() {
        let at = |quarters: u64| quarters * WINDOW_NS + 7;
        let mut demand = Demand::default();
        assert_eq!(demand.lately(at(0)), 0);
        demand.add(at(5), 30);
        demand.add(at(5), 10);
        assert_eq!([5, 6, 7].map(|t| demand.lately(at(t))), [40, 40, 0]);
        demand.add(at(6), 15);
        assert_eq!([6, 7, 8].map(|t| demand.lately(at(t))), [40, 15, 0], "the whole one had more");
        demand.add(at(9), 1);
        assert_eq!([9, 10, 11].map(|t| demand.lately(at(t))), [1, 1, 0]);
    }
}
