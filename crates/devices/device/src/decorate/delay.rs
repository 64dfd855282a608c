//! A device that answers later than the one within.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use forebay_block::{Class, DeviceOp, DeviceResult, Nanos};

use super::{Kinds, OpKind, earlier, pass_through, range_of};
use crate::checkpoints::{CheckpointChange, CheckpointDone};
use crate::device::{Away, Device};

/// How much later operations end than they would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// Which operations.
    pub kinds: Kinds,
    /// For each operation.
    pub fixed: Duration,
    /// In addition, for each MiB that the operation moves or zeroes.
    pub per_mib: Duration,
}

impl Delay {
    fn of(&self, op: &DeviceOp) -> u64 {
        if !self.kinds.has(OpKind::of(op)) {
            return 0;
        }
        let (_, bytes) = range_of(op);
        let moved = self.per_mib.as_nanos() * u128::from(bytes) / (1 << 20);
        u64::try_from(self.fixed.as_nanos() + moved).unwrap_or(u64::MAX)
    }
}

/// See the module's documentation.
pub struct Delayed {
    inner: Box<dyn Device>,
    delay: Delay,
    /// Delays of the operations under way within.
    waits: HashMap<u64, u64>,
    /// Results to be handed out later: (when, arrival, place in `kept`).
    due: BinaryHeap<Reverse<(Nanos, u64)>>,
    kept: HashMap<u64, (u64, DeviceResult)>,
    arrivals: u64,
    scratch: Vec<(u64, DeviceResult)>,
}

impl Delayed {
    /// Delays the operations of a device.
    pub fn new(inner: Box<dyn Device>, delay: Delay) -> Self {
        Self {
            inner,
            delay,
            waits: HashMap::new(),
            due: BinaryHeap::new(),
            kept: HashMap::new(),
            arrivals: 0,
            scratch: Vec::new(),
        }
    }
}

impl Device for Delayed {
    pass_through!();

    fn submit(&mut self, tag: u64, op: DeviceOp, class: Class, now: Nanos) {
        self.waits.insert(tag, self.delay.of(&op));
        self.inner.submit(tag, op, class, now);
    }

    fn poll(&mut self, now: Nanos, done: &mut Vec<(u64, DeviceResult)>) {
        self.inner.poll(now, &mut self.scratch);
        for (tag, result) in self.scratch.drain(..) {
            let wait = self.waits.remove(&tag).unwrap_or(0);
            if wait == 0 {
                done.push((tag, result));
                continue;
            }
            self.arrivals += 1;
            self.due.push(Reverse((Nanos(now.0.saturating_add(wait)), self.arrivals)));
            self.kept.insert(self.arrivals, (tag, result));
        }
        while let Some(Reverse((at, arrival))) = self.due.peek().copied() {
            if at > now {
                break;
            }
            self.due.pop();
            done.extend(self.kept.remove(&arrival));
        }
    }

    fn away(&self) -> Option<Away> {
        self.inner.away()
    }

    fn checkpoint(&mut self, change: CheckpointChange, done: CheckpointDone, now: Nanos) {
        self.inner.checkpoint(change, done, now);
    }

    fn deadline(&self) -> Option<Nanos> {
        earlier(self.inner.deadline(), self.due.peek().map(|Reverse((at, _))| *at))
    }
}
