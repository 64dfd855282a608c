//! What slices of a load have shown: how long each operation took, and how many ended in each 10 ms.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::BenchError;
use crate::report::median;

/// Operations are counted by such parts of a slice.
pub(crate) const BUCKET: Duration = Duration::from_millis(10);
/// Longest time that is told from longer ones.
const LONGEST_NS: u64 = 1_000_000_000_000;
/// Decimal digits that are kept of a time.
const DIGITS: u8 = 3;

/// One stretch of time under a load.
#[derive(Clone, Debug)]
pub(crate) struct Slice {
    /// How long it was counted.
    pub(crate) seconds: f64,
    /// Operations that ended while it was counted.
    pub(crate) operations: u64,
    /// Operations that ended since the load began, those before and behind what was counted among them.
    pub(crate) operations_in_all: u64,
    /// Operations that ended in each whole [`BUCKET`] of what was counted.
    pub(crate) buckets: Vec<u32>,
    /// Nanoseconds of each operation that was under way while it was counted.
    pub(crate) latencies_ns: Histogram<u64>,
}

/// An empty account of times.
fn histogram() -> Result<Histogram<u64>, BenchError> {
    Histogram::new_with_bounds(1, LONGEST_NS, DIGITS)
        .map_err(|e| BenchError::Forebay(format!("cannot count latencies: {e}")))
}

impl Slice {
    pub(crate) fn new() -> Result<Self, BenchError> {
        Ok(Self {
            seconds: 0.0,
            operations: 0,
            operations_in_all: 0,
            buckets: Vec::new(),
            latencies_ns: histogram()?,
        })
    }

    /// `count` operations ended so long after the beginning of what is counted.
    pub(crate) fn ended(&mut self, after: Duration, count: u32) {
        self.operations += u64::from(count);
        let bucket = (after.as_nanos() / BUCKET.as_nanos()) as usize;
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += count;
    }

    /// What was counted is over: it has taken so long. The last bucket is left out if it is not whole.
    pub(crate) fn close(&mut self, counted: Duration) {
        self.seconds = counted.as_secs_f64();
        self.buckets.resize((counted.as_nanos() / BUCKET.as_nanos()) as usize, 0);
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.operations as f64 / self.seconds.max(1e-9)
    }
}

/// The slices of one contender under one load.
#[derive(Clone, Debug)]
pub(crate) struct Recording {
    latencies_ns: Histogram<u64>,
    per_second: Vec<f64>,
    buckets: Vec<Vec<u32>>,
}

impl Recording {
    pub(crate) fn new() -> Result<Self, BenchError> {
        Ok(Self { latencies_ns: histogram()?, per_second: Vec::new(), buckets: Vec::new() })
    }

    pub(crate) fn add(&mut self, slice: Slice) {
        self.per_second.push(slice.per_second());
        // Both have the same bounds.
        let _ = self.latencies_ns.add(slice.latencies_ns);
        self.buckets.push(slice.buckets);
    }

    /// Operations a second: the median of the slices.
    pub(crate) fn per_second(&self) -> f64 {
        median(self.per_second.iter().copied())
    }

    /// Operations whose time is known, of all slices.
    pub(crate) fn operations(&self) -> u64 {
        self.latencies_ns.len()
    }

    /// The time in milliseconds within which this share of all operations ended; 0 if there were none.
    pub(crate) fn quantile_ms(&self, quantile: f64) -> f64 {
        self.latencies_ns.value_at_quantile(quantile) as f64 / 1e6
    }

    /// Operations of the worst bucket of all slices, and of the median one.
    pub(crate) fn worst_and_median(&self) -> (f64, f64) {
        let all = || self.buckets.iter().flatten().map(|count| f64::from(*count));
        (all().reduce(f64::min).unwrap_or_default(), median(all()))
    }

    /// The worst bucket against the median one. If that is empty, too, it cannot be worse: 0.
    pub(crate) fn worst_of_median(&self) -> f64 {
        let (worst, median) = self.worst_and_median();
        if median > 0.0 { worst / median } else { 0.0 }
    }

    /// Buckets in which nothing ended, and all of them.
    pub(crate) fn empty_buckets(&self) -> (usize, usize) {
        let all = || self.buckets.iter().flatten();
        (all().filter(|count| **count == 0).count(), all().count())
    }

    /// Operations in each bucket of the first slice.
    pub(crate) fn time_line(&self) -> &[u32] {
        self.buckets.first().map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A slice in which operations ended at these milliseconds.
    fn slice(counted: u64, ends: &[(u64, u32)]) -> Slice {
        let mut slice = Slice::new().unwrap();
        ends.iter().for_each(|(at, count)| slice.ended(ms(*at), *count));
        slice.close(ms(counted));
        slice
    }

    #[test]
    fn an_interval_without_an_end_is_a_bucket_with_nothing() {
        let counted = slice(45, &[(0, 2), (9, 1), (10, 4), (35, 1), (44, 7)]);
        assert_eq!(counted.buckets, [3, 4, 0, 1], "the last five milliseconds are no whole bucket");
        assert_eq!(counted.operations, 15);
        assert_eq!(slice(30, &[(5, 1)]).buckets, [1, 0, 0], "nothing ended at the end");
    }

    #[test]
    fn the_worst_bucket_is_that_of_all_slices_and_the_throughput_the_median_of_them() {
        let mut recording = Recording::new().unwrap();
        recording.add(slice(20, &[(0, 10), (10, 10)]));
        recording.add(slice(20, &[(0, 10), (10, 2)]));
        recording.add(slice(10, &[(0, 12)]));
        assert_eq!(recording.worst_and_median(), (2.0, 10.0));
        assert_eq!(recording.worst_of_median(), 0.2);
        assert_eq!(recording.per_second(), 1000.0);
        assert_eq!(recording.time_line(), [10, 10]);
        assert_eq!(recording.empty_buckets(), (0, 5));
        let mut idle = Recording::new().unwrap();
        idle.add(slice(20, &[]));
        assert_eq!((idle.worst_of_median(), idle.empty_buckets()), (0.0, (2, 2)));
    }

    #[test]
    fn times_of_all_slices_are_of_one_account() {
        let mut recording = Recording::new().unwrap();
        for time in [1_000_000, 4_000_000] {
            let mut slice = slice(10, &[]);
            (0..500).for_each(|_| slice.latencies_ns.saturating_record(time));
            recording.add(slice);
        }
        assert_eq!(recording.operations(), 1000);
        let near = |quantile, ms: f64| (recording.quantile_ms(quantile) / ms - 1.0).abs() < 0.002;
        assert!(near(0.5, 1.0) && near(0.51, 4.0), "{}", recording.quantile_ms(0.51));
    }
}
