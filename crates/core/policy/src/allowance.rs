//! Caps on criticality: how many bytes of critical writes a tenant - a control group, an export - has in a second, so that it cannot
//! take the cache from others by calling itself critical (`docs/design/promises.md`, Criticality: isolation).

/// What is not used is saved up for so long: a commit is a burst.
const SAVED_SECONDS: u64 = 1;
const BILLION: u128 = 1_000_000_000;

/// A rate of bytes, and what is left of it.
#[derive(Clone, Debug)]
pub struct Allowance {
    bytes_a_second: u64,
    left: u64,
    /// What was taken beyond what was saved up, and has to be earned first.
    owed: u64,
    /// Time up to which `left` has been counted, in nanoseconds.
    counted_ns: u64,
    /// Billionths of a byte beyond that.
    billionths: u128,
}

impl Allowance {
    /// A rate with a second's worth saved up; `now_ns` is of any clock that does not go back.
    pub fn new(bytes_a_second: u64, now_ns: u64) -> Self {
        Self {
            bytes_a_second,
            left: bytes_a_second.saturating_mul(SAVED_SECONDS),
            owed: 0,
            counted_ns: now_ns,
            billionths: 0,
        }
    }

    /// Whether a write of so many bytes is within the rate; it is counted then. One longer than all that can be saved up goes when
    /// nothing of that has been used, and what is missing has to be earned before the next one goes.
    pub fn take(&mut self, bytes: u64, now_ns: u64) -> bool {
        let most = self.bytes_a_second.saturating_mul(SAVED_SECONDS);
        let passed = u128::from(now_ns.saturating_sub(self.counted_ns));
        // What is less than a byte is earned, too, however small the steps of the clock are.
        let earned = passed * u128::from(self.bytes_a_second) + self.billionths;
        let bytes_earned = u64::try_from(earned / BILLION).unwrap_or(u64::MAX);
        let paid_back = bytes_earned.min(self.owed);
        self.owed -= paid_back;
        self.left = (bytes_earned - paid_back).saturating_add(self.left).min(most);
        self.billionths = earned % BILLION;
        self.counted_ns = self.counted_ns.max(now_ns);
        let within = bytes <= self.left || most > 0 && self.left == most;
        if within {
            self.owed = bytes.saturating_sub(self.left);
            self.left = self.left.saturating_sub(bytes);
        }
        within
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_second_is_saved_up_and_no_more() {
        let mut a = Allowance::new(1000, 0);
        assert!(a.take(600, 0) && a.take(400, 0) && !a.take(1, 0));
        assert!(!a.take(501, SECOND / 2) && a.take(500, SECOND / 2));
        assert!(a.take(1000, 100 * SECOND) && !a.take(1, 100 * SECOND));
        assert!(a.take(5000, 200 * SECOND), "a long write goes alone");
        assert!(!a.take(1, 200 * SECOND));
        assert!(!a.take(1, 204 * SECOND), "and is paid for");
        assert!(a.take(1000, 205 * SECOND) && !a.take(1, 205 * SECOND));
        assert!(!Allowance::new(0, 0).take(1, 10 * SECOND), "nothing is nothing");
    }

    proptest! {
        /// Over any time no more is taken than was saved up and earned, and what the longest write is longer than that; and small steps of the
        /// clock earn as much as one long one.
        #[test]
        fn no_more_than_the_rate(rate in 1u64..5000, takes in proptest::collection::vec((1u64..900, 0u64..SECOND), 1..200)) {
            let mut a = Allowance::new(rate, 0);
            let (mut now, mut taken) = (0, 0u64);
            let longer = takes.iter().map(|(bytes, _)| bytes.saturating_sub(rate)).max().unwrap_or(0);
            for (bytes, later) in takes {
                now += later;
                if a.take(bytes, now) {
                    taken += bytes;
                }
                let earned = (u128::from(now) * u128::from(rate) / u128::from(SECOND)) as u64;
                prop_assert!(taken <= rate + earned + longer);
            }
            let (mut fine, mut coarse) = (Allowance::new(rate, 0), Allowance::new(rate, 0));
            prop_assert!(fine.take(rate, 0) && coarse.take(rate, 0));
            for step in 1..=1000u64 {
                let _ = fine.take(u64::MAX, step * 250_000);
            }
            let _ = coarse.take(u64::MAX, SECOND / 4);
            prop_assert_eq!(fine.left, coarse.left);
        }
    }
}
