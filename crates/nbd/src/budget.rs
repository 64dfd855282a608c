//! The memory that all clients of a process may have at a time for the data of requests and replies.
//!
//! Each connection may take as much as is still free: the more one has, the less it gets, and there is always some left for others.
//! Of `n` connections that take all they can get, each has an `n + 1`th, and so much is free. So clients that ask and do not
//! read the answers bound what they have by themselves, and who comes new finds room.
//!
//! A request that is larger than what is free would wait for others, who may never read. It is let in if its connection has nothing else
//! under way and no more than [`OVERDRAFT_BYTES`] beyond the total are taken by that.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::lock::hold;

/// How far large requests may exceed the total: by one of the greatest length that volumes take.
pub const OVERDRAFT_BYTES: usize = 32 << 20;

/// Default of the total.
pub const MEMORY_BYTES: usize = 256 << 20;

/// See the module's documentation. One is shared by all servers of a process.
#[derive(Debug)]
pub struct MemoryBudget {
    bytes_max: usize,
    used: AtomicUsize,
    waiting: AtomicUsize,
    turn: Mutex<()>,
    room: Condvar,
}

impl MemoryBudget {
    /// So many bytes in all, and [`OVERDRAFT_BYTES`].
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            used: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            turn: Mutex::default(),
            room: Condvar::new(),
        }
    }

    /// Bytes that are taken now.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::SeqCst)
    }

    /// Takes `bytes` for a connection that has `own` already; false if it may not now.
    pub(crate) fn try_take(&self, own: usize, bytes: usize) -> bool {
        let fits = |used: usize| {
            let free = self.bytes_max.saturating_sub(used);
            own + bytes <= free || own == 0 && used + bytes <= self.bytes_max + OVERDRAFT_BYTES
        };
        let taken = |used: usize| fits(used).then_some(used + bytes);
        self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, taken).is_ok()
    }

    /// Takes them, waiting for as long as it takes; `own` says what the connection has, which becomes less meanwhile.
    pub(crate) fn take(&self, own: impl Fn() -> usize, bytes: usize) {
        let mut turn = hold(&self.turn);
        // Counted first: whoever gives back after the next line has been in vain sees that somebody waits.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        while !self.try_take(own(), bytes) {
            turn = self.room.wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Gives bytes back.
    pub(crate) fn give(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            drop(hold(&self.turn));
            self.room.notify_all();
        }
    }
}

impl Default for MemoryBudget {
    fn default() -> Self {
        Self::new(MEMORY_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_greedy_leave_room_for_who_comes_new() {
        let budget = MemoryBudget::new(256 << 20);
        let mut own = [0usize; 10];
        for round in 0..(256 << 20) / 65536 {
            let own = &mut own[round % 10];
            *own += if budget.try_take(*own, 65536) { 65536 } else { 0 };
        }
        let total: usize = own.iter().sum();
        assert_eq!(budget.used(), total);
        assert!(own.iter().all(|o| *o <= (256 << 20) / 11 + 65536), "{own:?}");
        assert!(budget.try_take(0, (20 << 20) + 1), "who is new has room");
    }

    #[test]
    fn what_is_larger_than_the_rest_goes_one_at_a_time() {
        let budget = MemoryBudget::new(4096);
        assert!(budget.try_take(0, OVERDRAFT_BYTES));
        assert!(!budget.try_take(0, OVERDRAFT_BYTES));
        assert!(!budget.try_take(1, 4096), "it has something already");
        assert!(budget.try_take(0, 4096));
        budget.give(OVERDRAFT_BYTES);
        assert!(budget.try_take(0, OVERDRAFT_BYTES));
    }

    #[test]
    fn who_waits_gets_what_is_given_back() {
        let budget = MemoryBudget::new(4096);
        assert!(budget.try_take(0, OVERDRAFT_BYTES) && budget.try_take(0, 4096));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| budget.take(|| 0, 4096));
            while budget.waiting.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            budget.give(4096);
            waiter.join().unwrap();
        });
        assert_eq!(budget.used(), OVERDRAFT_BYTES + 4096);
    }

    proptest! {
        /// The total holds whatever is asked for, and a connection with nothing gets what is free.
        #[test]
        fn the_total_holds(asks in proptest::collection::vec((0usize..6, 1usize..5000, any::<bool>()), 1..200)) {
            let budget = MemoryBudget::new(10_000);
            let mut own = [0usize; 6];
            for (who, bytes, back) in asks {
                if back {
                    budget.give(std::mem::take(&mut own[who]));
                    continue;
                }
                let free = 10_000usize.saturating_sub(budget.used());
                let taken = budget.try_take(own[who], bytes);
                prop_assert!(taken || own[who] > 0 || bytes > free);
                own[who] += if taken { bytes } else { 0 };
                prop_assert_eq!(budget.used(), own.iter().sum::<usize>());
                prop_assert!(budget.used() <= 10_000 + OVERDRAFT_BYTES);
            }
        }
    }
}
