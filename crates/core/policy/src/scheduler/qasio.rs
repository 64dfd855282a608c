//! `qasio`: [CFQ](super::cfq) that knows which asynchronous operations somebody has come to wait for (*quasi-asynchronous* ones; Jeong, Lee and
//! Kim, FAST'15, Boosting Quasi-Asynchronous I/O).
//!
//! The paper finds them in the kernel where a task begins to wait: for a page that is written back, for a buffer's lock, for the journal.
//! The scheduler then prefers them to the other asynchronous ones. Here they are what comes to be promoted, or is known to be awaited when it comes
//! although it is asynchronous; the tracker and Forebay's own queues tell so.
//!
//! Synchronous operations go first, as CFQ chooses them. Then come quasi-asynchronous ones in the order in which they came to be awaited: before what is
//! asynchronous, beside what is outstanding, whatever line is active. The rest is CFQ's.
//!
//! **What cannot be carried out.** What a task waits for inside of the file system before anything is written, such as a full journal, is no
//! operation yet. **Bound.** While synchronous operations wait and may start, one start in 16 is a quasi-asynchronous one. While quasi-asynchronous ones
//! wait, one in 16 is CFQ's. All else has CFQ's bounds.

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
