//! When the cache fails a durable write (P9): the failure latches. What was acknowledged from the log is still there
//! and is evacuated; nothing that was not is retried as if it had held.
//!
//! ```text
//!  Healthy ──a durable write or flush of the cache fails──► Evacuating ──all on the backing──► Retiring ──► Retired
//!                                                              │ some blocks cannot be read       │ not recorded
//!                                                              └────────────► Stuck ◄─────────────┘
//!                                                                               │ all on the backing after all
//!                                                                               └──────────► Retiring
//! ```
//!
//! From the failure on the log takes nothing. A write goes to the backing directly if no record that a restart could
//! replay speaks of its blocks. Otherwise it waits until the log is *retired*: everything is on the backing and the
//! superblock or the backing's label says, durably, that the log is void. Acknowledging such a write earlier would
//! let a restart bring the older version back (P3): the record of a failed batch may well be on the medium.
//!
//! Invariants:
//! 1. It never becomes healthy again, and what made it latch is the first failure.
//! 2. Blocks are tainted from the failure on until the log is retired.
//! 3. Being retired is final. Being stuck is not.

use forebay_block::{IoError, Nanos};

use crate::interface::{Asked, Trouble};
use crate::locks::BlockRange;
use crate::mutation::{Mutation, Planted};

/// Whoever records that the log is void may fail at once; it is asked again after so long.
const RETIRE_RETRY_MS: u64 = 1000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Healthy,
    Evacuating,
    Retiring,
    Retired,
    Stuck,
}

/// State of the cache's failure.
#[derive(Default)]
pub(crate) struct Failure {
    phase: Phase,
    /// When it came.
    since: Option<Nanos>,
    /// What the cache was asked and answered then.
    asked: Option<Asked>,
    error: Option<IoError>,
    /// Before that the log is not retired: that has just failed.
    retire_from: Nanos,
    /// Blocks that records speak of which failed, or were queued or in flight when the failure came. Bounded by
    /// what may be queued and in flight.
    tainted: Vec<BlockRange>,
}

/// Whether a write may go to the backing now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    Pass,
    Wait,
    Refuse,
}

/// How it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The log is to be recorded as void.
    Retire,
    /// It cannot be: writes that depend on that fail, clearly and at once.
    Stuck,
}

impl Failure {
    /// A durable write to the cache has failed since the start.
    pub(crate) fn latched(&self) -> bool {
        self.phase != Phase::Healthy
    }

    /// When that was.
    pub(crate) fn since(&self) -> Option<Nanos> {
        self.since
    }

    /// What the cache was asked and answered then.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        Some(Trouble::new(self.asked?, self.error.as_ref()?))
    }

    /// The log is void and the backing holds everything.
    pub(crate) fn retired(&self) -> bool {
        self.phase == Phase::Retired
    }

    /// The log still holds blocks that cannot be read, or it could not be recorded that it is void.
    pub(crate) fn stuck(&self) -> bool {
        self.phase == Phase::Stuck
    }

    /// A durable write or flush of the cache has failed; false if one had before.
    pub(crate) fn latch(&mut self, error: IoError, now: Nanos) -> bool {
        let first = !self.latched();
        if first {
            self.phase = Phase::Evacuating;
            self.since = Some(now);
            self.error = Some(error);
        }
        first
    }

    /// What the cache was asked when it latched.
    pub(crate) fn was_asked(&mut self, asked: Asked) {
        self.asked.get_or_insert(asked);
    }

    /// Records speak of `range` that a restart could replay, though the index does not know them any more.
    pub(crate) fn taint(&mut self, range: BlockRange) {
        self.tainted.push(range);
    }

    /// Whether a write to `range` may start; `replayable`: recovery could take a record of it for newer than the backing.
    pub(crate) fn gate(
        &self,
        range: BlockRange,
        replayable: impl FnOnce() -> bool,
        planted: Planted,
    ) -> Gate {
        if matches!(self.phase, Phase::Healthy | Phase::Retired) {
            return Gate::Pass;
        }
        let tainted = self.tainted.iter().any(|t| t.overlaps(range));
        if !tainted && !replayable() || planted.is(Mutation::IgnoresTaint) {
            return Gate::Pass;
        }
        if self.stuck() { Gate::Refuse } else { Gate::Wait }
    }

    /// Whether the log may be retired now, if the backing has everything.
    pub(crate) fn may_retire(&self, now: Nanos) -> bool {
        matches!(self.phase, Phase::Evacuating | Phase::Stuck) && now >= self.retire_from
    }

    /// Goes on when everything has been evacuated, or nothing more can be (`exhausted`).
    pub(crate) fn step(&mut self, evacuated: bool, exhausted: bool) -> Option<Step> {
        match self.phase {
            Phase::Evacuating | Phase::Stuck if evacuated => {
                self.phase = Phase::Retiring;
                Some(Step::Retire)
            }
            Phase::Evacuating if exhausted => {
                self.phase = Phase::Stuck;
                Some(Step::Stuck)
            }
            _ => None,
        }
    }

    /// A command wants to know now whether the log can be retired.
    pub(crate) fn try_again(&mut self, now: Nanos) {
        self.retire_from = now;
    }

    /// When the log may be retired again.
    pub(crate) fn next_wake(&self, now: Nanos) -> Option<Nanos> {
        (self.stuck() && self.retire_from > now).then_some(self.retire_from)
    }

    /// It has been recorded that the log is void, or it could not be.
    pub(crate) fn recorded(&mut self, well: bool, now: Nanos) {
        if well {
            self.phase = Phase::Retired;
            self.tainted.clear();
        } else {
            self.phase = Phase::Stuck;
            self.retire_from = now.plus_ms(RETIRE_RETRY_MS);
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_block::{BlockNo, OpKind};

    use super::*;
    use crate::interface::Role;

    fn error(errno: i32) -> IoError {
        IoError::of_system(errno, "a test", Some(0))
    }

    fn range(first: u64) -> BlockRange {
        BlockRange::new(BlockNo(first), 2)
    }

    fn latched() -> Failure {
        let mut failure = Failure::default();
        assert!(failure.latch(error(5), Nanos(1)));
        failure.taint(range(4));
        failure
    }

    #[test]
    fn it_goes_on_as_drawn() {
        // Whether all is evacuated, whether nothing more can be; what it does.
        type Case = (&'static str, &'static [(bool, bool)], &'static [Option<Step>]);
        let cases: &[Case] = &[
            (
                "all is evacuated in time",
                &[(false, false), (true, false), (true, false)],
                &[None, Some(Step::Retire), None],
            ),
            ("some cannot be read", &[(false, true), (false, true)], &[Some(Step::Stuck), None]),
            ("it can after all", &[(false, true), (true, false)], &[Some(Step::Stuck), Some(Step::Retire)]),
            ("both at once", &[(true, true)], &[Some(Step::Retire)]),
        ];
        for (name, facts, steps) in cases {
            let mut failure = latched();
            let done: Vec<_> =
                facts.iter().map(|(evacuated, exhausted)| failure.step(*evacuated, *exhausted)).collect();
            assert_eq!(done, *steps, "{name}");
        }
        assert_eq!(Failure::default().step(true, true), None, "it is healthy");
    }

    #[test]
    fn who_may_write_to_the_backing() {
        let planted = Planted::default();
        let gates = |failure: &Failure| {
            let replayable = |first, replayable| failure.gate(range(first), || replayable, planted);
            [replayable(0, false), replayable(0, true), replayable(5, false)]
        };
        use Gate::{Pass, Refuse, Wait};
        assert_eq!(gates(&Failure::default()), [Pass; 3]);
        let mut failure = latched();
        assert_eq!(gates(&failure), [Pass, Wait, Wait]);
        failure.step(true, false);
        assert_eq!(gates(&failure), [Pass, Wait, Wait], "nothing is recorded yet");
        failure.recorded(false, Nanos(0));
        assert_eq!(gates(&failure), [Pass, Refuse, Refuse]);
        failure.step(true, false);
        failure.recorded(true, Nanos(0));
        assert_eq!(gates(&failure), [Pass; 3]);
    }

    #[test]
    fn who_cannot_record_is_asked_again_after_a_while() {
        let mut failure = latched();
        assert!(failure.may_retire(Nanos(1)) && failure.next_wake(Nanos(1)).is_none());
        failure.step(true, false);
        assert!(!failure.may_retire(Nanos(1)), "it is being recorded");
        failure.recorded(false, Nanos(1));
        let again = Nanos(1).plus_ms(RETIRE_RETRY_MS);
        assert_eq!((failure.stuck(), failure.next_wake(Nanos(1))), (true, Some(again)));
        assert!(!failure.may_retire(Nanos(again.0 - 1)) && failure.may_retire(again));
        failure.try_again(Nanos(2));
        assert!(failure.may_retire(Nanos(2)) && failure.next_wake(Nanos(2)).is_none(), "somebody asks");
        failure.step(true, false);
        failure.recorded(true, Nanos(2));
        assert!(failure.retired() && failure.latched() && !failure.may_retire(again));
    }

    #[test]
    fn the_first_failure_is_the_one_that_counts() {
        let mut failure = latched();
        assert_eq!(failure.trouble(), None);
        let asked =
            |offset| Asked { role: Role::Cache, kind: OpKind::Write, offset: Some(offset), len: 4096 };
        failure.was_asked(asked(8192));
        assert!(!failure.latch(error(28), Nanos(9)));
        failure.was_asked(asked(0));
        let trouble = Trouble::new(asked(8192), &error(5));
        assert_eq!((failure.since(), failure.trouble()), (Some(Nanos(1)), Some(trouble)));
    }
}
