//! The memory that all clients of a process may have at a time for the data of requests and replies.
//!
//! Each connection may take as much as is still free afterwards: the more one has, the less it gets, and there is always some left for
//! others. Of `n` connections that take all they can get, each has an `n + 1`th, and so much is free. So clients that ask and do not
//! read the answers bound what they have by themselves, and who comes new finds room.
//!
//! A request that is too large for that would wait for others, who may never read. If its connection has nothing else under way it goes
//! beyond the total, one such request at a time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::lock::hold;

/// How far large requests exceed the total: by one of the greatest length that volumes take.
pub const OVERDRAFT_BYTES: usize = 32 << 20;

/// Default of the total.
pub const MEMORY_BYTES: usize = 256 << 20;

/// Where the bytes of a request were taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The total.
    Shared,
    /// Beyond it.
    Beyond,
}

/// See the module's documentation. One is shared by all servers of a process.
#[derive(Debug)]
pub struct MemoryBudget {
    bytes_max: usize,
    used: AtomicUsize,
    /// Bytes of the one request that goes beyond the total.
    overdrawn: AtomicUsize,
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
            overdrawn: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            turn: Mutex::default(),
            room: Condvar::new(),
        }
    }

    /// Bytes that are taken now.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::SeqCst) + self.overdrawn.load(Ordering::SeqCst)
    }

    /// Takes `bytes`, of which there are some, for a connection that has `own` already; `None` if it may not now.
    pub(crate) fn try_take(&self, own: usize, bytes: usize) -> Option<Taken> {
        let taken = |used: usize| {
            let left = self.bytes_max.checked_sub(used + bytes)?;
            (own + bytes <= left).then_some(used + bytes)
        };
        if self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, taken).is_ok() {
            return Some(Taken::Shared);
        }
        let alone =
            own == 0 && self.overdrawn.compare_exchange(0, bytes, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        alone.then_some(Taken::Beyond)
    }

    /// Takes them, waiting for as long as it takes; `own` says what the connection has, which becomes less meanwhile.
    pub(crate) fn take(&self, own: impl Fn() -> usize, bytes: usize) -> Taken {
        let mut turn = hold(&self.turn);
        // Counted first: whoever gives back after the next line has been in vain sees that somebody waits.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let taken = loop {
            match self.try_take(own(), bytes) {
                Some(taken) => break taken,
                None => turn = self.room.wait(turn).unwrap_or_else(PoisonError::into_inner),
            }
        };
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        taken
    }

    /// Gives bytes back.
    pub(crate) fn give(&self, bytes: usize, taken: Taken) {
        match taken {
            Taken::Shared => self.used.fetch_sub(bytes, Ordering::SeqCst),
            Taken::Beyond => self.overdrawn.swap(0, Ordering::SeqCst),
        };
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

    const MIB: usize = 1 << 20;

    #[test]
    fn the_greedy_leave_room_for_who_comes_new() {
        for bytes in [65536, MIB, 8 * MIB] {
            let budget = MemoryBudget::new(256 * MIB);
            assert_eq!(budget.try_take(0, 200 * MIB), Some(Taken::Beyond));
            let mut own = [0usize; 10];
            for round in 0..2560 * MIB / bytes {
                let own = &mut own[round % 10];
                *own += budget.try_take(*own, bytes).map_or(0, |_| bytes);
            }
            let total: usize = own.iter().sum();
            assert_eq!(budget.used(), total + 200 * MIB);
            assert!(own.iter().all(|o| *o <= 256 * MIB / 11 + bytes), "{own:?}");
            assert!(256 * MIB - total >= bytes, "{own:?}");
            assert_eq!(budget.try_take(0, bytes / 2), Some(Taken::Shared), "who is new has room");
        }
    }

    #[test]
    fn what_is_larger_than_the_rest_goes_one_at_a_time() {
        let budget = MemoryBudget::new(4096);
        assert_eq!(budget.try_take(0, OVERDRAFT_BYTES), Some(Taken::Beyond));
        assert_eq!(budget.try_take(0, OVERDRAFT_BYTES), None);
        assert_eq!(budget.try_take(0, 2048), Some(Taken::Shared));
        budget.give(OVERDRAFT_BYTES, Taken::Beyond);
        assert_eq!(budget.try_take(1, OVERDRAFT_BYTES), None, "it has something already");
        assert_eq!(budget.try_take(0, OVERDRAFT_BYTES), Some(Taken::Beyond));
    }

    #[test]
    fn who_waits_gets_what_is_given_back() {
        let budget = MemoryBudget::new(4096);
        assert_eq!(budget.try_take(0, 2048), Some(Taken::Shared));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| budget.take(|| 1, 2000));
            while budget.waiting.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            budget.give(2048, Taken::Shared);
            assert_eq!(waiter.join().unwrap(), Taken::Shared);
        });
        assert_eq!(budget.used(), 2000);
    }

    proptest! {
        /// The total holds whatever is asked for.
        #[test]
        fn the_total_holds(asks in proptest::collection::vec((0usize..6, 1usize..5000, any::<bool>()), 1..200)) {
            let budget = MemoryBudget::new(10_000);
            let mut own: [Vec<(usize, Taken)>; 6] = Default::default();
            for (who, bytes, back) in asks {
                if back {
                    own[who].drain(..).for_each(|(bytes, taken)| budget.give(bytes, taken));
                    continue;
                }
                let has = own[who].iter().map(|(bytes, _)| bytes).sum();
                own[who].extend(budget.try_take(has, bytes).map(|taken| (bytes, taken)));
                let of = |kind| own.iter().flatten().filter(move |(_, taken)| *taken == kind);
                let shared: usize = of(Taken::Shared).map(|(bytes, _)| bytes).sum();
                prop_assert!(shared <= 10_000 && of(Taken::Beyond).count() <= 1);
                prop_assert_eq!(budget.used(), shared + of(Taken::Beyond).map(|(bytes, _)| bytes).sum::<usize>());
            }
        }
    }
}
