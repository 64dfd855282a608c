//! Flushes go at once. The kernel keeps them out of its schedulers (`block/blk-flush.c`), since they have no
//! place on the disk.

use std::collections::VecDeque;

use forebay_block::OpKind;

use super::{Operation, Round, Scheduler};

/// A scheduler of all but flushes, which go before. While both wait they take turns, so that neither starves
/// the other.
#[derive(Debug, Default)]
pub struct FlushesFirst<S> {
    flushes: VecDeque<u64>,
    /// What started last was one of them.
    was_flush: bool,
    others: S,
}

impl<S> FlushesFirst<S> {
    /// Flushes before what this one chooses.
    pub fn before(others: S) -> Self {
        Self { flushes: VecDeque::new(), was_flush: false, others }
    }
}

impl<S: Scheduler> Scheduler for FlushesFirst<S> {
    fn arrived(&mut self, operation: Operation) {
        match operation.kind {
            OpKind::Flush => self.flushes.push_back(operation.number),
            OpKind::Read | OpKind::Write | OpKind::Zero | OpKind::Commit => self.others.arrived(operation),
        }
    }

    fn promoted(&mut self, number: u64) {
        self.others.promoted(number);
    }

    fn withdrawn(&mut self, number: u64) {
        match self.flushes.binary_search(&number) {
            Ok(at) => _ = self.flushes.remove(at),
            Err(_) => self.others.withdrawn(number),
        }
    }

    fn begin_round(&mut self, round: Round, now_ns: u64) -> bool {
        self.others.begin_round(round, now_ns) || !self.flushes.is_empty()
    }

    fn next(&mut self, now_ns: u64) -> Option<u64> {
        let flush = if self.was_flush { None } else { self.flushes.pop_front() };
        self.was_flush = flush.is_some();
        flush.or_else(|| self.others.next(now_ns)).or_else(|| self.flushes.pop_front())
    }

    fn ended(&mut self, number: u64) {
        self.others.ended(number);
    }

    fn next_wake_ns(&self) -> Option<u64> {
        self.others.next_wake_ns()
    }

    fn holds(&self) -> u64 {
        self.others.holds()
    }
}
