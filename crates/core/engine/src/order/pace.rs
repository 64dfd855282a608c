//! The pace of writers under `ordered`: the log can be emptied only as fast as the backing takes what depends on each other, one
//! step after the other, however little each step is. Writers that are answered at once make many small steps, and those
//! that then wait for a whole segment to become free fare worse than with no cache at all. So for each time that
//! something leaves the log only so many steps enter it, the fewer the fuller it is, and those who wait for that enter together.
//! A bypass comes after all that was acknowledged before it: while one waits, steps enter one at a time, and one for two that leave as long as
//! they are many.
//!
//! ```text
//!  log:   ── on the backing ──┤ · │ · │ ·· │ · │ ··· │ ······ │ ········ │ ◄── waits until progress has moved
//!                         progress   steps: what depends on nothing of the same step
//! ```
//!
//! 1. Nobody waits for longer than [`HOLD_MS_MAX`] at a time: a backing that does nothing is no reason to wait for good.
//! 2. While it waits nothing enters; what enters resets no clock.

use std::collections::VecDeque;

use forebay_block::{Nanos, Seq};
use forebay_policy::{Exchange, HOLD_MS_MAX};

use crate::mutation::{Mutation, Planted};

/// What is to be known for the pace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill {
    /// Dirty blocks.
    pub(crate) dirty: u64,
    /// Blocks that the log holds.
    pub(crate) blocks: u64,
    /// The backing takes what it is given, and nothing but the pace of it keeps writers waiting.
    pub(crate) works: bool,
    /// The backing has failed lately.
    pub(crate) failing: bool,
    pub(crate) now: Nanos,
}

/// What becomes of writers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pacing {
    /// They enter.
    Enter,
    /// They wait from now on.
    Stop,
    /// They wait as before.
    Wait,
}

/// State of the pace.
#[derive(Default)]
pub(super) struct Pace {
    /// The first record of the newest step.
    step: Seq,
    /// The first records of the steps that are not on the backing, oldest first.
    under_way: VecDeque<Seq>,
    /// What was on the backing when steps were let in last.
    progress: Seq,
    /// Steps that have begun, and that have left, since.
    steps: u64,
    left: u64,
    /// Since when writers have waited for steps to be let in again; they do so once.
    since: Option<Nanos>,
    /// They wait now.
    waits: bool,
    /// They have waited in vain for as long as a bypass has waited.
    in_vain: bool,
}

impl Pace {
    /// Writers wait until destaging has gone on.
    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    /// Whether writers wait now until destaging has gone on beyond `progress`. `queues_after` says whether one of those that wait
    /// depends on that record, or on a later one.
    pub(super) fn step(
        &mut self,
        progress: Seq,
        bypass_waits: bool,
        fill: Fill,
        queues_after: impl FnOnce(Seq) -> bool,
        planted: Planted,
    ) -> Pacing {
        while self.under_way.pop_front_if(|step| *step <= progress).is_some() {
            self.left += 1;
        }
        // A backing that pauses is hidden from then on, as far as there is room (P9).
        self.in_vain &= bypass_waits;
        let exchange =
            Exchange::of(fill.dirty, fill.blocks, self.under_way.len(), bypass_waits && !self.in_vain);
        if self.progress != progress && self.left >= exchange.leaving {
            (self.progress, self.steps, self.left, self.since) = (progress, 0, 0, None);
        }
        let for_good = planted.is(Mutation::PacesForGood);
        let waits = fill.works
            && (for_good || self.steps >= exchange.steps && !fill.failing)
            && queues_after(self.step);
        let since = waits.then(|| *self.since.get_or_insert(fill.now));
        // A backing that does nothing is no reason to wait for good.
        let over = since.is_some_and(|since| fill.now >= since.plus_ms(HOLD_MS_MAX));
        self.in_vain |= over;
        let waits = waits && (!over || for_good);
        match (waits, std::mem::replace(&mut self.waits, waits)) {
            (false, _) => Pacing::Enter,
            (true, false) => Pacing::Stop,
            (true, true) => Pacing::Wait,
        }
    }

    /// A record is formed whose writes depend on records up to `after`: a step begins unless it depends on nothing of the last one.
    pub(super) fn formed(&mut self, seq: Seq, after: Seq) {
        if after >= self.step {
            self.step = seq;
            self.under_way.push_back(seq);
            self.steps += 1;
        }
    }

    pub(super) fn next_wake(&self, now: Nanos) -> Option<Nanos> {
        let until = self.since.map(|since| since.plus_ms(HOLD_MS_MAX));
        until.filter(|at| *at > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos(5);
    /// Half of the log is dirty: one step enters for each that leaves.
    const HALF: Fill = Fill { dirty: 60, blocks: 100, works: true, failing: false, now: NOW };

    fn step(pace: &mut Pace, progress: u64, bypass_waits: bool, fill: Fill) -> Pacing {
        pace.step(Seq(progress), bypass_waits, fill, |_| true, Planted::default())
    }

    /// Records of which each depends on the one before: each is a step.
    fn steps(pace: &mut Pace, records: std::ops::RangeInclusive<u64>) {
        records.for_each(|n| pace.formed(Seq(n), Seq(n - 1)));
    }

    #[test]
    fn a_step_is_what_depends_on_nothing_of_itself() {
        let mut pace = Pace::default();
        for (seq, after, steps) in
            [(1, 0, 1), (2, 0, 1), (3, 0, 1), (4, 1, 2), (5, 3, 2), (6, 4, 3), (7, 6, 4)]
        {
            pace.formed(Seq(seq), Seq(after));
            assert_eq!(pace.steps, steps, "record {seq} after {after}");
        }
    }

    #[test]
    fn who_enters_and_who_waits() {
        let free = Fill { dirty: 1, ..HALF };
        for (records, bypass_waits, fill, expected) in [
            (0, false, HALF, Pacing::Enter),
            (1, false, HALF, Pacing::Stop),
            (50, false, free, Pacing::Enter),
            // A bypass waits: one at a time, however empty the log is.
            (1, true, free, Pacing::Stop),
            (1, false, Fill { works: false, ..HALF }, Pacing::Enter),
            (1, false, Fill { failing: true, ..HALF }, Pacing::Enter),
        ] {
            let mut pace = Pace::default();
            steps(&mut pace, 1..=records);
            assert_eq!(step(&mut pace, 0, bypass_waits, fill), expected, "{records} {bypass_waits} {fill:?}");
            assert_eq!(pace.waits(), expected == Pacing::Stop);
        }
        // Nobody waits who depends on nothing of the last step.
        let mut pace = Pace::default();
        steps(&mut pace, 1..=1);
        assert_eq!(
            pace.step(Seq(0), false, HALF, |after| after != Seq(1), Planted::default()),
            Pacing::Enter
        );
    }

    #[test]
    fn they_wait_until_something_leaves_and_not_for_good() {
        let mut pace = Pace::default();
        steps(&mut pace, 1..=2);
        assert_eq!(step(&mut pace, 0, false, HALF), Pacing::Stop);
        assert_eq!(step(&mut pace, 0, false, HALF), Pacing::Wait);
        assert_eq!(step(&mut pace, 1, false, HALF), Pacing::Enter, "a step has left");
        steps(&mut pace, 3..=3);
        let later = Fill { now: NOW.plus_ms(10), ..HALF };
        assert_eq!(step(&mut pace, 1, false, later), Pacing::Stop);
        let until = later.now.plus_ms(HOLD_MS_MAX);
        assert_eq!(pace.next_wake(later.now), Some(until));
        let before = Fill { now: Nanos(until.0 - 1), ..HALF };
        assert_eq!(step(&mut pace, 1, false, before), Pacing::Wait);
        let over = Fill { now: until, ..HALF };
        assert_eq!(step(&mut pace, 1, false, over), Pacing::Enter, "a backing that does nothing");
        assert_eq!(pace.next_wake(until), None);
    }

    #[test]
    fn two_leave_for_one_while_a_bypass_waits_behind_many() {
        let mut pace = Pace::default();
        steps(&mut pace, 1..=70);
        let free = Fill { dirty: 1, ..HALF };
        assert_eq!(step(&mut pace, 0, true, free), Pacing::Stop);
        assert_eq!(step(&mut pace, 1, true, free), Pacing::Wait, "one has left");
        assert_eq!(step(&mut pace, 2, true, free), Pacing::Enter, "two have");
    }
}
