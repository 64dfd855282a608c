//! Schedulers with planted bugs: another one is asked, and is not told everything. So the schedulers' own files have none of them.

use std::collections::{BTreeMap, BTreeSet};

use forebay_policy::{Operation, Priority, Round, Scheduler};

use crate::mutation::{Mutation, Planted};

/// See the module's documentation.
pub(super) struct PlantedScheduler {
    inner: Box<dyn Scheduler>,
    planted: Planted,
    /// Non-critical operations that it has not been told of, and critical ones that wait or have started.
    aside: BTreeMap<u64, Operation>,
    critical: BTreeSet<u64>,
}

impl PlantedScheduler {
    /// A scheduler with this bug, if it is one of a scheduler.
    pub(super) fn around(inner: Box<dyn Scheduler>, planted: Planted) -> Box<dyn Scheduler> {
        let bugs = [
            Mutation::SchedulerForgetsPromotion,
            Mutation::SchedulerStarvesBackground,
            Mutation::SchedulerForgetsEnds,
        ];
        match bugs.into_iter().any(|bug| planted.is(bug)) {
            true => Box::new(Self { inner, planted, aside: BTreeMap::new(), critical: BTreeSet::new() }),
            false => inner,
        }
    }
}

impl Scheduler for PlantedScheduler {
    fn arrived(&mut self, operation: Operation) {
        let waits = operation.priority == Priority::NonCritical
            && self.planted.is(Mutation::SchedulerStarvesBackground)
            && !(self.critical.is_empty() && self.aside.is_empty());
        if waits {
            self.aside.insert(operation.number, operation);
            return;
        }
        if operation.priority == Priority::Critical {
            self.critical.insert(operation.number);
        }
        self.inner.arrived(operation);
    }

    fn promoted(&mut self, number: u64) {
        if self.planted.is(Mutation::SchedulerForgetsPromotion) {
            return;
        }
        match self.aside.remove(&number) {
            Some(operation) => self.arrived(Operation { priority: Priority::Critical, ..operation }),
            None => self.inner.promoted(number),
        }
    }

    fn withdrawn(&mut self, number: u64) {
        self.critical.remove(&number);
        if self.aside.remove(&number).is_none() {
            self.inner.withdrawn(number);
        }
    }

    fn begin_round(&mut self, round: Round, now_ns: u64) -> bool {
        if self.critical.is_empty() {
            std::mem::take(&mut self.aside).into_values().for_each(|operation| self.inner.arrived(operation));
        }
        self.inner.begin_round(round, now_ns)
    }

    fn next(&mut self, now_ns: u64) -> Option<u64> {
        self.inner.next(now_ns)
    }

    fn ended(&mut self, number: u64) {
        self.critical.remove(&number);
        if !self.planted.is(Mutation::SchedulerForgetsEnds) {
            self.inner.ended(number);
        }
    }

    fn next_wake_ns(&self) -> Option<u64> {
        self.inner.next_wake_ns()
    }

    fn holds(&self) -> u64 {
        self.inner.holds()
    }
}
