//! `fifo`: operations start in the order in which they come, whoever waits for them. What the kernel calls `none`.

use std::collections::VecDeque;

use super::{Operation, Round, Scheduler};

/// Takes an operation out of a queue, in whatever order it stands there.
pub(super) fn take(queue: &mut VecDeque<Operation>, number: u64) -> Option<Operation> {
    let at = queue.iter().position(|operation| operation.number == number)?;
    queue.remove(at)
}

/// See the module's documentation. Promotions change nothing.
#[derive(Debug, Default)]
pub struct Fifo {
    waiting: VecDeque<u64>,
}

impl Scheduler for Fifo {
    fn arrived(&mut self, operation: Operation) {
        self.waiting.push_back(operation.number);
    }

    fn promoted(&mut self, _: u64) {}

    fn withdrawn(&mut self, number: u64) {
        // Numbers grow with arrival.
        if let Ok(at) = self.waiting.binary_search(&number) {
            self.waiting.remove(at);
        }
    }

    fn begin_round(&mut self, _: Round, _: u64) -> bool {
        !self.waiting.is_empty()
    }

    fn next(&mut self, _: u64) -> Option<u64> {
        self.waiting.pop_front()
    }

    fn ended(&mut self, _: u64) {}

    fn next_wake_ns(&self) -> Option<u64> {
        None
    }

    fn holds(&self) -> u64 {
        0
    }
}
