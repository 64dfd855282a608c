//! A device that takes no more than so many operations or bytes a second.

use std::collections::VecDeque;

use forebay_block::{Class, DeviceOp, DeviceResult, Nanos};

use super::{earlier, pass_through, range_of};
use crate::checkpoints::{CheckpointChange, CheckpointDone};
use crate::device::{Away, Device};

/// Credit that an idle device saves up, in seconds of its rate.
const BURST_SECONDS: f64 = 0.01;

/// What a device takes in a second; 0 means without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Bytes read, written and zeroed.
    pub bytes: u64,
    /// Operations of any kind.
    pub operations: u64,
}

/// A token bucket whose level may go below zero: an operation is let through when the level is positive, and then
/// pays in full, so that operations larger than the burst pass too.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    rate: f64,
    level: f64,
    filled: Nanos,
}

impl Bucket {
    fn new(rate: u64) -> Option<Self> {
        let rate = rate as f64;
        (rate > 0.0).then_some(Self { rate, level: rate * BURST_SECONDS, filled: Nanos(0) })
    }

    fn fill(&mut self, now: Nanos) {
        let earned = now.since(self.filled) as f64 * 1e-9 * self.rate;
        self.level = (self.level + earned).min((self.rate * BURST_SECONDS).max(1.0));
        self.filled = self.filled.max(now);
    }

    /// When the level will be positive again.
    fn ready_at(&self) -> Nanos {
        let missing_ns = (-self.level).max(0.0) / self.rate * 1e9;
        Nanos(self.filled.0.saturating_add(missing_ns.ceil() as u64 + 1))
    }
}

/// See the module's documentation. Operations wait in order of arrival; how many there are is bounded by what the
/// volume has under way.
pub struct Throttled {
    inner: Box<dyn Device>,
    bytes: Option<Bucket>,
    operations: Option<Bucket>,
    queue: VecDeque<(u64, DeviceOp, Class)>,
}

impl Throttled {
    /// Limits the rate of a device.
    pub fn new(inner: Box<dyn Device>, rate: Rate) -> Self {
        let (bytes, operations) = (Bucket::new(rate.bytes), Bucket::new(rate.operations));
        Self { inner, bytes, operations, queue: VecDeque::new() }
    }

    fn let_through(&mut self, now: Nanos) {
        let Self { inner, bytes, operations, queue } = self;
        for bucket in [&mut *bytes, &mut *operations].into_iter().flatten() {
            bucket.fill(now);
        }
        while bytes.is_none_or(|b| b.level > 0.0) && operations.is_none_or(|b| b.level > 0.0) {
            let Some((tag, op, class)) = queue.pop_front() else {
                return;
            };
            if let Some(bucket) = bytes {
                bucket.level -= range_of(&op).1 as f64;
            }
            if let Some(bucket) = operations {
                bucket.level -= 1.0;
            }
            inner.submit(tag, op, class, now);
        }
    }
}

impl Device for Throttled {
    pass_through!(but waiting);

    fn beside(&mut self, what: crate::Beside<'_>) {
        self.inner.beside(what);
    }

    fn waiting(&self) -> usize {
        self.queue.len() + self.inner.waiting()
    }

    fn submit(&mut self, tag: u64, op: DeviceOp, class: Class, now: Nanos) {
        self.queue.push_back((tag, op, class));
        self.let_through(now);
    }

    fn poll(&mut self, now: Nanos, done: &mut Vec<(u64, DeviceResult)>) {
        self.let_through(now);
        self.inner.poll(now, done);
    }

    fn away(&self) -> Option<Away> {
        self.inner.away()
    }

    fn checkpoint(&mut self, change: CheckpointChange, done: CheckpointDone, now: Nanos) {
        self.inner.checkpoint(change, done, now);
    }

    fn deadline(&self) -> Option<Nanos> {
        let waiting = (!self.queue.is_empty()).then(|| {
            let ready = [self.bytes, self.operations].into_iter().flatten().map(|b| b.ready_at());
            ready.max().unwrap_or(Nanos(0))
        });
        earlier(self.inner.deadline(), waiting)
    }
}
