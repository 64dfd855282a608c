//! When records were made, in steps: a segment's own time may be far older than what is dirty in it.

use std::collections::VecDeque;

use forebay_block::Seq;

/// Most records of which the time is remembered; beyond, every other one is forgotten.
const MOMENTS_MAX: usize = 4096;
/// Records that follow within this time share a moment, in nanoseconds.
const STEP_NS: u64 = 5_000_000;

/// When records were made.
#[derive(Default)]
pub(super) struct Moments {
    /// Record, and wall-clock time in nanoseconds; ascending.
    known: VecDeque<(Seq, u64)>,
}

impl Moments {
    /// A record is made.
    pub(super) fn note(&mut self, seq: Seq, time_ns: u64) {
        if self.known.back().is_some_and(|(_, last)| time_ns < last.saturating_add(STEP_NS)) {
            return;
        }
        if self.known.len() == MOMENTS_MAX {
            let mut even = false;
            self.known.retain(|_| {
                even = !even;
                even
            });
        }
        self.known.push_back((seq, time_ns));
    }

    /// A time at or before which no later one than this record was made; `None` if it is older than all that is known.
    pub(super) fn of(&self, seq: Seq) -> Option<u64> {
        let after = self.known.partition_point(|(first, _)| *first <= seq);
        Some(self.known.get(after.checked_sub(1)?)?.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_never_taken_for_younger_than_it_is() {
        let mut moments = Moments::default();
        let time = |n: u64| n * 1_700_000;
        for n in 1..=40_000u64 {
            moments.note(Seq(n), time(n));
        }
        assert!(moments.known.len() <= MOMENTS_MAX);
        assert_eq!(moments.of(Seq(0)), None);
        for n in [1, 2, 3, 77, 39_999, 40_000] {
            // What is old is known less exactly, by a small part of its age.
            let (known, age) = (moments.of(Seq(n)).unwrap(), time(40_000) - time(n));
            assert!(known <= time(n) && time(n) - known < 2 * STEP_NS + age / 100, "{n}: {known}");
        }
    }
}
