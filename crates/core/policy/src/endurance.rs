//! The endurance budget: how many bytes a day may be written to the cache before nothing enters it that nobody waits for.

/// Of a day's budget this share may be used ahead of time, in percent: about an hour's.
const AHEAD_PERCENT: i128 = 4;
/// Seconds of a day.
const DAY_S: u64 = 24 * 3600;

/// A budget, and what is left of it. What one day leaves over is there on the next, no longer; what was used beyond it is made up for in a day.
#[derive(Clone, Debug, Default)]
pub struct Endurance {
    bytes_a_day: u64,
    /// In bytes times the seconds of a day: what a second earns is a whole number of these.
    left: i128,
    /// Bytes and seconds up to which `left` has been counted.
    counted: (u64, u64),
}

impl Endurance {
    /// A budget of so many bytes a day; 0 is none. It counts from the beginning.
    pub fn new(bytes_a_day: u64) -> Self {
        let day = i128::from(bytes_a_day) * i128::from(DAY_S);
        Self { bytes_a_day, left: day * AHEAD_PERCENT / 100, counted: (0, 0) }
    }

    /// From now on it is so many bytes a day; 0 is none. What is to be made up for stays, and of what is left as much as is the new one's for a day: one
    /// that is set again and again is no larger for it.
    pub fn set(&mut self, bytes_a_day: u64) {
        match self.bytes_a_day {
            0 => *self = Self::new(bytes_a_day),
            _ => {
                let day = i128::from(bytes_a_day) * i128::from(DAY_S);
                (self.bytes_a_day, self.left) = (bytes_a_day, self.left.min(day));
            }
        }
    }

    /// Whether it lasts, where so many bytes have been written to the cache since the beginning, which was so many seconds ago.
    pub fn lasts(&mut self, bytes: u64, seconds: u64) -> bool {
        let (bytes_before, seconds_before) = std::mem::replace(&mut self.counted, (bytes, seconds));
        let passed = i128::from(seconds.saturating_sub(seconds_before));
        let earned = i128::from(self.bytes_a_day).saturating_mul(passed);
        let spent = i128::from(bytes.saturating_sub(bytes_before)) * i128::from(DAY_S);
        let day = i128::from(self.bytes_a_day) * i128::from(DAY_S);
        self.left = self.left.saturating_add(earned).saturating_sub(spent).clamp(-day, day);
        self.bytes_a_day == 0 || self.left >= 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_budget_is_for_a_day_with_about_an_hour_ahead() {
        let lasts = |bytes, seconds| Endurance::new(100 * GIB).lasts(bytes, seconds);
        assert!(Endurance::new(0).lasts(u64::MAX, 0), "no budget");
        assert!(lasts(4 * GIB, 0) && !lasts(5 * GIB, 0));
        assert!(lasts(53 * GIB, DAY_S / 2) && !lasts(55 * GIB, DAY_S / 2));
        assert!(
            !Endurance::new(u64::MAX).lasts(u64::MAX, 0) && Endurance::new(u64::MAX).lasts(u64::MAX, DAY_S)
        );
        assert!(Endurance::new(1).lasts(0, u64::MAX));
    }

    #[test]
    fn what_a_quiet_week_leaves_over_is_a_days_budget() {
        let mut endurance = Endurance::new(100 * GIB);
        let week = 7 * DAY_S;
        assert!(endurance.lasts(0, week) && endurance.lasts(100 * GIB, week));
        assert!(!endurance.lasts(100 * GIB + 1, week) && endurance.lasts(100 * GIB + 1, week + 1));
    }

    #[test]
    fn a_budget_counts_from_the_beginning_however_long_ago_that_was() {
        let ten_days = 10 * DAY_S;
        assert!(Endurance::new(100 * GIB).lasts(400 * GIB, ten_days));
        assert!(!Endurance::new(100 * GIB).lasts(1010 * GIB, ten_days));
    }

    #[test]
    fn what_is_set_anew_keeps_what_was_used() {
        let mut endurance = Endurance::new(100 * GIB);
        let (days, burst) = (30 * DAY_S, 101 * GIB);
        assert!(endurance.lasts(0, days) && !endurance.lasts(burst, days));
        endurance.set(100 * GIB);
        assert!(!endurance.lasts(burst, days));
        // Twice as much earns twice as fast.
        endurance.set(200 * GIB);
        assert!(
            !endurance.lasts(burst, days + DAY_S / 200 - 1) && endurance.lasts(burst, days + DAY_S / 200)
        );
        // What was left of a large one is not left of a small one.
        let mut endurance = Endurance::new(100 * GIB);
        assert!(endurance.lasts(0, days));
        endurance.set(GIB);
        assert!(endurance.lasts(GIB, days) && !endurance.lasts(GIB + 1, days));
        // None, and then one again, counts from the beginning.
        endurance.set(0);
        assert!(endurance.lasts(1000 * burst, days));
        endurance.set(100 * GIB);
        assert!(endurance.lasts(burst, days));
    }

    #[test]
    fn what_was_used_beyond_it_is_made_up_for_in_a_day() {
        let mut endurance = Endurance::new(100 * GIB);
        assert!(!endurance.lasts(1000 * GIB, 0));
        assert!(!endurance.lasts(1000 * GIB, DAY_S - 1) && endurance.lasts(1000 * GIB, DAY_S));
    }
}
