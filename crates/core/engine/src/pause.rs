//! The pause after a failure: the more failures in a row, the longer.

use forebay_block::Nanos;

/// First and longest pause, in milliseconds.
const PAUSE_MS: (u64, u64) = (100, 5000);

/// Failures in a row, and the pause that the last one has led to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pause {
    until: Option<Nanos>,
    failures: u32,
}

impl Pause {
    /// Attempts in a row that have failed.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// When the pause ends, if there is one.
    pub(crate) fn until(&self) -> Option<Nanos> {
        self.until
    }

    /// Whether it lasts; one that is over is forgotten.
    pub(crate) fn is_under_way(&mut self, now: Nanos) -> bool {
        self.until.take_if(|until| now >= *until);
        self.until.is_some()
    }

    /// Something has failed. What was under way at the same time and fails, too, is one failure with it.
    pub(crate) fn failed(&mut self, now: Nanos) {
        if self.until.is_none() {
            let pause = PAUSE_MS.0 << self.failures.min(10);
            self.failures += 1;
            self.until = Some(now.plus_ms(pause.min(PAUSE_MS.1)));
        }
    }

    /// However often it has failed before: somebody asks for it.
    pub(crate) fn try_again(&mut self) {
        *self = Self::default();
    }

    /// An attempt has gone well; a pause that lasts goes on.
    pub(crate) fn worked(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_its_longest_and_begins_anew() {
        let (mut pause, mut now) = (Pause::default(), Nanos(7));
        for (n, ms) in [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000].into_iter().enumerate() {
            assert!(!pause.is_under_way(now) && pause.failures() == n as u32);
            pause.failed(now);
            // Others that fail with it count for nothing.
            pause.failed(now.plus_ms(1));
            assert_eq!(pause.until(), Some(now.plus_ms(ms)));
            assert!(pause.is_under_way(now.plus_ms(ms - 1)));
            now = now.plus_ms(ms);
        }
        assert!(!pause.is_under_way(now) && pause.until().is_none());
        pause.worked();
        pause.failed(now);
        assert_eq!((pause.failures(), pause.until()), (1, Some(now.plus_ms(100))));
    }
}
