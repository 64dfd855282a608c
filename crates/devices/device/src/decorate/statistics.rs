//! A device that counts and times what goes through it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_block::{Class, DeviceOp, DeviceResult, Nanos};

use super::{OpKind, pass_through, range_of};
use crate::checkpoints::{CheckpointChange, CheckpointDone};
use crate::device::{Away, Device};

/// Buckets of a histogram: four for each doubling of the latency, up to about an hour.
const BUCKETS: usize = 4 * 42;

/// Figures of one kind of operations since the device was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindFigures {
    /// Which kind.
    pub kind: OpKind,
    /// Operations that have ended, failed ones included.
    pub operations: u64,
    /// Operations that have failed.
    pub errors: u64,
    /// Bytes of the operations that have ended well.
    pub bytes: u64,
    /// Sum of the latencies in nanoseconds.
    pub latency_ns_sum: u64,
    buckets: Vec<u64>,
}

impl KindFigures {
    /// Latency in nanoseconds that a share (0 to 1) of the operations did not exceed, to within a quarter above.
    pub fn latency_ns_quantile(&self, share: f64) -> u64 {
        let wanted = (self.operations as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return bucket_end(bucket);
            }
        }
        0
    }

    /// The histogram: upper ends of the buckets in nanoseconds, and operations in each; empty buckets are left out.
    pub fn latency_ns_histogram(&self) -> impl Iterator<Item = (u64, u64)> {
        let buckets = self.buckets.iter().enumerate();
        buckets.filter(|(_, count)| **count > 0).map(|(bucket, count)| (bucket_end(bucket), *count))
    }
}

/// Bucket of a latency: its power of two and the next two bits.
fn bucket_of(ns: u64) -> usize {
    let ns = ns.max(4);
    let power = ns.ilog2() as usize;
    let quarter = (ns >> (power - 2)) as usize & 3;
    ((power - 2) * 4 + quarter).min(BUCKETS - 1)
}

/// The least latency that lies above a bucket.
fn bucket_end(bucket: usize) -> u64 {
    (5 + bucket as u64 % 4) << (bucket / 4)
}

#[derive(Debug)]
struct Counters {
    operations: AtomicU64,
    errors: AtomicU64,
    bytes: AtomicU64,
    latency_ns_sum: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            operations: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            latency_ns_sum: AtomicU64::new(0),
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }
}

/// Reads the figures of a [`Measured`] device, from any thread.
#[derive(Clone, Debug, Default)]
pub struct StatisticsHandle(Arc<[Counters; OpKind::ALL.len()]>);

impl StatisticsHandle {
    /// The figures of one kind. Figures that belong together may be apart by the operations that end meanwhile.
    pub fn figures(&self, kind: OpKind) -> KindFigures {
        let counters = &self.0[kind as usize];
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        KindFigures {
            kind,
            operations: read(&counters.operations),
            errors: read(&counters.errors),
            bytes: read(&counters.bytes),
            latency_ns_sum: read(&counters.latency_ns_sum),
            buckets: counters.buckets.iter().map(read).collect(),
        }
    }

    fn count(&self, kind: OpKind, bytes: u64, latency_ns: u64, failed: bool) {
        let counters = &self.0[kind as usize];
        // One thread writes, so a load and a store will do, and cost no locked instruction.
        let add = |counter: &AtomicU64, n: u64| {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        };
        add(&counters.operations, 1);
        add(&counters.errors, u64::from(failed));
        add(&counters.bytes, if failed { 0 } else { bytes });
        add(&counters.latency_ns_sum, latency_ns);
        add(&counters.buckets[bucket_of(latency_ns)], 1);
    }
}

/// See the module's documentation.
pub struct Measured {
    inner: Box<dyn Device>,
    handle: StatisticsHandle,
    begun: HashMap<u64, (OpKind, u64, Nanos)>,
}

impl Measured {
    /// Measures a device; the handle reads the figures.
    pub fn new(inner: Box<dyn Device>) -> (Self, StatisticsHandle) {
        let handle = StatisticsHandle::default();
        (Self { inner, handle: handle.clone(), begun: HashMap::new() }, handle)
    }
}

impl Device for Measured {
    pass_through!();

    fn submit(&mut self, tag: u64, op: DeviceOp, class: Class, now: Nanos) {
        self.begun.insert(tag, (OpKind::of(&op), range_of(&op).1, now));
        self.inner.submit(tag, op, class, now);
    }

    fn poll(&mut self, now: Nanos, done: &mut Vec<(u64, DeviceResult)>) {
        let known = done.len();
        self.inner.poll(now, done);
        for (tag, result) in &done[known..] {
            if let Some((kind, bytes, begun)) = self.begun.remove(tag) {
                self.handle.count(kind, bytes, now.since(begun), result.is_err());
            }
        }
    }

    fn away(&self) -> Option<Away> {
        self.inner.away()
    }

    fn checkpoint(&mut self, change: CheckpointChange, done: CheckpointDone, now: Nanos) {
        self.inner.checkpoint(change, done, now);
    }

    fn deadline(&self) -> Option<Nanos> {
        self.inner.deadline()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_their_ends_say() {
        for ns in [0, 4, 5, 7, 8, 1000, 4096, 123_456_789, u64::MAX >> 22] {
            let bucket = bucket_of(ns);
            assert!(bucket_end(bucket) > ns, "{ns}");
            assert!(bucket == 0 || bucket_end(bucket - 1) <= ns, "{ns}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }
}
