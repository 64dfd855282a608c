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

use std::collections::VecDeque;

use forebay_block::{Nanos, Seq};
use forebay_policy::{Exchange, HOLD_MS_MAX};

use crate::engine::{Engine, Life};
use crate::mutation::Mutation;

use super::Order;

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

impl Order {
    /// Writers wait until destaging has gone on.
    pub(crate) fn is_pacing(&self) -> bool {
        self.pace.waits
    }
}

impl Engine {
    /// Whether writers wait now until destaging has gone on.
    pub(crate) fn order_paces(&mut self) -> bool {
        let (progress, bypass_waits) = (self.order.progress, self.order.bypass_waits());
        let pace = &mut self.order.pace;
        while pace.under_way.pop_front_if(|step| *step <= progress).is_some() {
            pace.left += 1;
        }
        // A backing that pauses is hidden from then on, as far as there is room (P9).
        pace.in_vain &= bypass_waits;
        let (under_way, bypass_waits) = (pace.under_way.len(), bypass_waits && !pace.in_vain);
        let exchange = Exchange::of(self.map.segments.dirty(), self.log_blocks(), under_way, bypass_waits);
        let pace = &mut self.order.pace;
        if pace.progress != progress && pace.left >= exchange.leaving {
            (pace.progress, pace.steps, pace.left, pace.since) = (progress, 0, 0, None);
        }
        let for_good = self.mutant(Mutation::PacesForGood);
        let waits = self.life == Life::Running
            && self.order.is_consistent()
            && !self.order.journaled
            && !self.failure.latched()
            && (for_good || self.order.pace.steps >= exchange.steps && self.destage.failures() == 0)
            && self.log.queues_after(self.order.pace.step);
        let since = waits.then(|| *self.order.pace.since.get_or_insert(self.now));
        // A backing that does nothing is no reason to wait for good.
        let over = since.is_some_and(|since| self.now >= since.plus_ms(HOLD_MS_MAX));
        self.order.pace.in_vain |= over;
        let waits = waits && (!over || for_good);
        if waits && !std::mem::replace(&mut self.order.pace.waits, waits) {
            self.figures.paces += 1;
            self.relocations_cancel();
        }
        self.order.pace.waits = waits;
        waits
    }

    /// A record is formed whose writes depend on records up to `after`.
    pub(crate) fn order_formed(&mut self, seq: Seq, after: Seq) {
        let paces = self.order.is_consistent() && !self.order.journaled;
        let pace = &mut self.order.pace;
        if paces && after >= pace.step {
            pace.step = seq;
            pace.under_way.push_back(seq);
            pace.steps += 1;
        }
    }

    pub(super) fn pace_next_wake(&self) -> Option<Nanos> {
        let until = self.order.pace.since.map(|since| since.plus_ms(HOLD_MS_MAX));
        until.filter(|at| *at > self.now)
    }
}
