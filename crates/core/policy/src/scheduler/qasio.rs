//! `qasio`: [CFQ](super::cfq) that knows which asynchronous operations somebody has come to wait for
//! (*quasi-asynchronous* ones; Jeong, Lee and Kim, FAST'15, Boosting Quasi-Asynchronous I/O).
//!
//! The paper finds them in the kernel where a task begins to wait: for a page that is written back, for a
//! buffer's lock, for the journal. The scheduler then prefers them to the other asynchronous ones. Here they
//! are what comes to be promoted, or is known to be awaited when it comes although it is asynchronous; the
//! tracker and Forebay's own queues tell so.
//!
//! Synchronous operations go first, as CFQ chooses them. Then come quasi-asynchronous ones in the order in
//! which they came to be awaited: before what is asynchronous, beside what is outstanding, whatever line is
//! active. The rest is CFQ's.
//!
//! **What cannot be carried out.** What a task waits for inside of the file system before anything is written,
//! such as a full journal, is no operation yet. **Bound.** While synchronous operations wait and may start, one
//! start in 16 is a quasi-asynchronous one. While quasi-asynchronous ones wait, one in 16 is CFQ's. All else
//! has CFQ's bounds.

use std::collections::VecDeque;

use super::cfq::Cfq;
use super::fifo::take;
use super::turns::Turns;
use super::{Operation, Round, Scheduler};
use crate::priority::Priority;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Qasio {
    cfq: Cfq,
    /// In the order in which somebody came to wait for them.
    quasi: VecDeque<Operation>,
    /// Of sync ones before these.
    after_sync: Turns,
    /// Of these before async ones.
    before_async: Turns,
}

impl Qasio {
    fn start_quasi(&mut self) -> Option<u64> {
        let operation = self.quasi.pop_front()?;
        self.after_sync.second_started();
        self.before_async.first_started(self.cfq.is_waiting());
        Some(operation.number)
    }

    fn start_other(&mut self, now_ns: u64) -> Option<u64> {
        let number = self.cfq.next(now_ns)?;
        self.after_sync.first_started(!self.quasi.is_empty());
        self.before_async.second_started();
        Some(number)
    }
}

impl Scheduler for Qasio {
    fn arrived(&mut self, operation: Operation) {
        let number = operation.number;
        self.cfq.arrived(operation);
        if operation.priority == Priority::Critical {
            self.promoted(number);
        }
    }

    fn promoted(&mut self, number: u64) {
        self.quasi.extend(self.cfq.take_async(number));
    }

    fn withdrawn(&mut self, number: u64) {
        if take(&mut self.quasi, number).is_none() {
            self.cfq.withdrawn(number);
        }
    }

    fn begin_round(&mut self, round: Round, now_ns: u64) -> bool {
        self.cfq.begin_round(round, now_ns) || !self.quasi.is_empty()
    }

    fn next(&mut self, now_ns: u64) -> Option<u64> {
        let others_first = match self.cfq.serves_sync(now_ns) {
            true => !self.after_sync.is_second(),
            false => self.before_async.is_second(),
        };
        let first = if others_first { self.start_other(now_ns) } else { self.start_quasi() };
        first.or_else(|| if others_first { self.start_quasi() } else { self.start_other(now_ns) })
    }

    fn ended(&mut self, number: u64) {
        self.cfq.ended(number);
    }

    fn next_wake_ns(&self) -> Option<u64> {
        self.cfq.next_wake_ns()
    }

    fn holds(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::*;
    use super::*;

    #[test]
    fn order() {
        // Who is promoted, and what starts one after the other.
        let came = || {
            [write(1).at(4), write(2).at(0), read(3), write(4).at(8), destage(5), sync_write(6).at(1 << 20)]
        };
        let cases: [(&[u64], [u64; 6]); 4] = [
            (&[], [3, 6, 2, 4, 1, 5]),
            (&[4, 2], [3, 6, 4, 2, 5, 1]),
            (&[5], [3, 6, 5, 2, 4, 1]),
            (&[3, 6, 7], [3, 6, 2, 4, 1, 5]),
        ];
        for (promoted, wanted) in cases {
            let mut qasio: Qasio = given(came());
            promoted.iter().for_each(|number| qasio.promoted(*number));
            assert_eq!(one_by_one(&mut qasio, 0, 9), wanted, "{promoted:?}");
        }
        let awaited = Operation { priority: Priority::Critical, ..write(7) };
        let mut qasio: Qasio = given(came().into_iter().chain([awaited]));
        qasio.withdrawn(1);
        assert_eq!(one_by_one(&mut qasio, 0, 9)[..4], [3, 6, 7, 2], "awaited when it comes");
        let mut qasio: Qasio = given([read(1), write(2)]);
        qasio.promoted(2);
        qasio.withdrawn(2);
        assert_eq!(one_by_one(&mut qasio, 0, 9), [1]);
    }

    #[test]
    fn it_starts_beside_sync_ones_and_others_do_not() {
        let mut qasio: Qasio = given([read(1), write(2), write(3)]);
        assert_eq!(start(&mut qasio, 0, 9), [1]);
        qasio.promoted(3);
        assert_eq!(start(&mut qasio, 1, 9), [3]);
        qasio.ended(1);
        assert_eq!(start(&mut qasio, 2, 9), [2]);
    }

    #[test]
    fn neither_starves_the_other() {
        let mut qasio: Qasio =
            given((0..40).map(read).chain((40..80).map(write)).chain((80..120).map(write)));
        (40..80).for_each(|number| qasio.promoted(number));
        let order = one_by_one(&mut qasio, 0, 200);
        assert_eq!(order.len(), 120);
        let places = |of: std::ops::Range<u64>| -> Vec<usize> {
            (0..120).filter(|at| of.contains(&order[*at])).take(4).collect()
        };
        assert_eq!(places(40..80), [15, 31, 42, 43], "one in 16 while sync ones wait");
        assert_eq!(places(80..120)[..2], [57, 73], "one in 16 while these wait");
    }
}
