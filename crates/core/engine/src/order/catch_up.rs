//! Catching up: the backing is not consistent until everything that was acknowledged before is on it, in whatever order.
//!
//! ```text
//!   begins ──► parts of before have ended ──► backing flushed ──► all records up to then are on the backing ──► ends
//!      ▲         (bypasses did not wait)          │ fails
//!      │                                          └─ tried again, now and then
//!      └── data is lost, the policy changes: from the beginning
//! ```
//!
//! 1. It never ends while a part that came before it is under way: that may be a bypass which has not waited for its turn.
//! 2. It ends only behind a flush that began after the last of those parts had ended.

use forebay_block::{Nanos, Seq};

use crate::interface::PartKey;

/// Pause before a backing that has just failed to flush is asked again.
const FLUSH_RETRY_MS: u64 = 1000;

/// What has to be on the backing.
#[derive(Clone, Copy, Debug)]
struct Missing {
    /// Writes up to this one came before; bypasses among them did not wait for their turn.
    parts: PartKey,
    /// Once these have ended: the log's last record, and the flush that covers them.
    upto: Option<(Seq, u64)>,
}

/// How the flushes of the backing stand. They are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flushes {
    /// The one that would cover what has ended now.
    pub(crate) wanted: u64,
    /// The last one that has succeeded.
    pub(crate) done: u64,
    /// None is under way.
    pub(crate) idle: bool,
    /// The last one has failed.
    pub(crate) failing: bool,
}

/// The catch-up under way, if there is one.
#[derive(Default)]
pub(super) struct CatchUp {
    missing: Option<Missing>,
    /// When the flush that it waits for is tried again.
    flush_again: Option<Nanos>,
}

impl CatchUp {
    pub(super) fn is_under_way(&self) -> bool {
        self.missing.is_some()
    }

    /// Begins, from the beginning if it was under way: parts up to this one came before.
    pub(super) fn begin(&mut self, parts: PartKey) {
        self.missing = Some(Missing { parts, upto: None });
    }

    pub(super) fn forget(&mut self) {
        self.missing = None;
    }

    /// Records up to this one go in any order, of those up to `written`.
    pub(super) fn upto(&self, written: Seq) -> Option<Seq> {
        self.missing.map(|missing| missing.upto.map_or(written, |(upto, _)| upto))
    }

    /// Moves on; true if the backing is to be flushed. `has_parts` says whether parts up to that one are under way, `is_there` whether
    /// all records up to that one are on the backing.
    pub(super) fn step(
        &mut self,
        written: Seq,
        flushes: Flushes,
        now: Nanos,
        has_parts: impl Fn(PartKey) -> bool,
        is_there: impl Fn(Seq) -> bool,
    ) -> bool {
        let Some(missing) = &mut self.missing else { return false };
        match missing.upto {
            None if !has_parts(missing.parts) => {
                missing.upto = Some((written, flushes.wanted));
                true
            }
            Some((upto, flush)) if flushes.done >= flush && is_there(upto) => {
                self.missing = None;
                false
            }
            Some((_, flush)) if flushes.done < flush && flushes.idle => self.flush_again(flushes, now),
            _ => false,
        }
    }

    /// The flush has failed, or was not its own; a backing that fails is asked now and then.
    fn flush_again(&mut self, flushes: Flushes, now: Nanos) -> bool {
        let pause = if flushes.failing { FLUSH_RETRY_MS } else { 0 };
        let due = *self.flush_again.get_or_insert(now.plus_ms(pause)) <= now;
        if due {
            self.flush_again = None;
        }
        due
    }

    pub(super) fn next_wake(&self, now: Nanos) -> Option<Nanos> {
        self.flush_again.filter(|at| *at > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos(1_000_000);
    const GOOD: Flushes = Flushes { wanted: 7, done: 6, idle: true, failing: false };

    /// What a step does: whether it flushes, and whether it is caught up then.
    fn step(c: &mut CatchUp, flushes: Flushes, now: Nanos, parts: bool, there: bool) -> (bool, bool) {
        let flush = c.step(
            Seq(40),
            flushes,
            now,
            |upto| parts && upto == PartKey(3),
            |upto| there && upto == Seq(40),
        );
        (flush, !c.is_under_way())
    }

    fn begun() -> CatchUp {
        let mut c = CatchUp::default();
        c.begin(PartKey(3));
        c
    }

    #[test]
    fn parts_then_a_flush_then_records() {
        let mut c = begun();
        assert_eq!(step(&mut c, GOOD, NOW, true, true), (false, false), "parts of before are under way");
        assert_eq!(c.upto(Seq(55)), Some(Seq(55)), "all that is written goes in any order");
        assert_eq!(
            step(&mut c, GOOD, NOW, false, true),
            (true, false),
            "they have ended: a flush covers them"
        );
        assert_eq!(c.upto(Seq(55)), Some(Seq(40)), "what comes later does not");
        for (flushes, there, after) in [
            (Flushes { idle: false, ..GOOD }, true, (false, false)),
            // It was not the flush that is needed, or has failed: once more.
            (GOOD, true, (true, false)),
            (Flushes { done: 7, ..GOOD }, false, (false, false)),
            (Flushes { done: 7, ..GOOD }, true, (false, true)),
        ] {
            assert_eq!(step(&mut c, flushes, NOW, true, there), after, "{flushes:?} {there}");
        }
        assert_eq!(step(&mut c, GOOD, NOW, false, true), (false, true), "and no more");
    }

    #[test]
    fn begins_anew_when_something_is_lost_again() {
        let mut c = begun();
        step(&mut c, GOOD, NOW, false, false);
        c.begin(PartKey(3));
        assert_eq!(step(&mut c, Flushes { done: 7, ..GOOD }, NOW, true, true), (false, false));
        assert_eq!(step(&mut c, Flushes { wanted: 9, done: 7, ..GOOD }, NOW, false, true), (true, false));
        assert_eq!(
            step(&mut c, Flushes { wanted: 9, done: 8, idle: false, failing: false }, NOW, false, true),
            (false, false)
        );
        assert_eq!(step(&mut c, Flushes { wanted: 9, done: 9, ..GOOD }, NOW, false, true), (false, true));
    }

    #[test]
    fn a_backing_that_fails_is_asked_now_and_then() {
        let mut c = begun();
        assert_eq!(step(&mut c, GOOD, NOW, false, false), (true, false));
        let failing = Flushes { failing: true, ..GOOD };
        let again = NOW.plus_ms(FLUSH_RETRY_MS);
        assert_eq!(step(&mut c, failing, NOW, false, true), (false, false));
        assert_eq!(c.next_wake(NOW), Some(again));
        assert_eq!(step(&mut c, failing, NOW.plus_ms(FLUSH_RETRY_MS - 1), false, true), (false, false));
        assert_eq!(step(&mut c, failing, again, false, true), (true, false));
        assert_eq!(c.next_wake(again), None);
    }
}
