//! Common points: consistency points that several volumes share, so that what an application has on all of them is one state
//! after all their caches are lost (`docs/design/consistency.md`).
//!
//! ```text
//!  Begin ─► (Settle what an earlier round left) ─► Hold ─► Release ─► Prepare ─► Settle
//!
//!  log:  ── committed ──┤ ···· open group ···· ┤ cut   ···· what came later ····►
//!                                              │ held back until all members have cut
//! ```
//!
//! The group that ends at the cut is *prepared*: durable in the journal, and neither applied by the engine nor by a replay of this
//! backing alone. When all members have prepared theirs, the point is *decided*: each commits its group. Nobody waits for the other
//! members for good (P7): a volume whose log wants room commits what it has alone, and durably says that it is at no common
//! point any more.
//!
//! 1. A cut counts only if writers were held back from then until all members had cut: one that is released too late is forgotten.
//! 2. Writers are held back for [`HOLD_MS`] at most.
//! 3. What belongs to a round is refused once a later one has begun.

use forebay_block::Nanos;
use forebay_format::shared_point::Common;

use crate::interface::{CommonError, CommonState, CommonStep, MarkError, RequestId};
use crate::mutation::{Mutation, Planted};

use super::journal::Journal;
use super::points::{Point, Points, refusal};
use super::{Facts, Told};

/// Writers are held back for this long at most, in milliseconds.
pub const HOLD_MS: u64 = 1000;
/// A cut is forgotten if it is not prepared so long after writers were held back, in milliseconds: a bypass may wait for it.
const CUT_MS: u64 = 2000;
/// Somebody who waits for the backing waits so long for a common point, in milliseconds, before the volume goes on alone.
const WAIT_MS: u64 = 300;

/// Writers are held back.
struct Hold {
    since: Nanos,
    /// Who waits for the cut.
    asked: Option<RequestId>,
}

/// Where a group is to end.
struct Cut {
    point: Point,
    since: Nanos,
    /// The other members had cut, too, while writers were held back.
    released: bool,
}

/// A point is being committed or forgotten.
struct Settle {
    id: RequestId,
    point: u64,
    keep: bool,
}

/// State of the volume's part in a consistency group.
#[derive(Default)]
pub(crate) struct CommonPoints {
    /// The last round that has begun.
    round: u64,
    begin: Option<RequestId>,
    hold: Option<Hold>,
    cut: Option<Cut>,
    settle: Option<Settle>,
    /// Since when somebody waits for the backing.
    waits_since: Option<Nanos>,
    planted: Planted,
}

impl CommonPoints {
    #[cfg(feature = "mutations")]
    pub(crate) fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }

    /// The point that is cut and not declared yet.
    pub(crate) fn cut(&self) -> Option<&Point> {
        self.cut.as_ref().map(|cut| &cut.point)
    }

    /// How things stand, durably.
    pub(crate) fn state(&self, journal: &Journal, facts: Facts) -> CommonState {
        let (decided, prepared) = journal.common_state();
        let round = self.round.max(decided).max(prepared);
        CommonState { run: facts.generation, round, decided, prepared }
    }

    /// A member's volume is asked for this step of that round, which run `run` of it has begun.
    pub(crate) fn command(
        &mut self,
        (id, round, run, step): (RequestId, u64, u64, CommonStep),
        journal: &mut Journal,
        points: &mut Points,
        facts: Facts,
    ) -> Vec<Told> {
        let state = self.state(journal, facts);
        let refusal = match &step {
            _ if !facts.running => Some(MarkError::Stopping.into()),
            _ if !facts.shares_points() => Some(CommonError::NoMember),
            CommonStep::Begin => (round > 0 && round <= state.round).then_some(CommonError::Overtaken),
            _ => ((round, run) != (self.round, state.run)).then_some(CommonError::Overtaken),
        };
        if let Some(error) = refusal {
            return vec![Told::Common(id, Err(error))];
        }
        journal.try_again();
        match step {
            CommonStep::Begin => self.begin(id, round, journal, points),
            CommonStep::Settle { point, keep } => {
                self.settle(Settle { id, point, keep }, journal).into_iter().collect()
            }
            CommonStep::Hold => {
                let told = self.let_go(&CommonError::Overtaken);
                self.hold = Some(Hold { since: facts.now, asked: Some(id) });
                told.into_iter().collect()
            }
            CommonStep::Release => self.release(id, facts.now),
            CommonStep::Prepare { label, group } => {
                match self.prepare(id, label, group, journal, points, facts) {
                    Ok(()) => Vec::new(),
                    Err(error) => vec![Told::Common(id, Err(error))],
                }
            }
        }
    }

    /// A round begins, or somebody asks how things stand (round 0).
    fn begin(&mut self, id: RequestId, round: u64, journal: &mut Journal, points: &mut Points) -> Vec<Told> {
        let mut told = Vec::new();
        if round > 0 {
            self.round = round;
            told.extend(self.let_go(&CommonError::Overtaken));
            told.extend(points.refuse_common(&CommonError::Overtaken));
            journal.common_overtaken();
        }
        let before = self.begin.replace(id);
        told.extend(before.map(|id| Told::Common(id, Err(CommonError::Overtaken))));
        told
    }

    /// Writers are held back no longer, and what was cut is no point.
    fn let_go(&mut self, error: &CommonError) -> Option<Told> {
        self.cut = None;
        let id = self.hold.take()?.asked?;
        Some(Told::Common(id, Err(error.clone())))
    }

    /// All members have cut, or the round is over. Who still waits for this one's cut hears that there will be none.
    fn release(&mut self, id: RequestId, now: Nanos) -> Vec<Told> {
        let hold = self.hold.take();
        let late = hold.as_ref().is_none_or(|hold| over(hold.since, HOLD_MS, now));
        let late = late && !self.planted.is(Mutation::CommonIgnoresExpiry);
        if late {
            self.cut = None;
        }
        let released = self.cut.as_mut().map(|cut| cut.released = true).ok_or(CommonError::Expired);
        let asked =
            hold.and_then(|hold| hold.asked).map(|asked| Told::Common(asked, Err(CommonError::Expired)));
        asked.into_iter().chain([Told::Common(id, released)]).collect()
    }

    fn settle(&mut self, settle: Settle, journal: &mut Journal) -> Option<Told> {
        let Settle { id, point, keep } = settle;
        let decided = journal.common_state().0 == point;
        if journal.common_settles(point, keep) {
            let before = self.settle.replace(settle);
            return before.map(|s| Told::Common(s.id, Err(CommonError::Overtaken)));
        }
        let result = match (keep, decided) {
            (true, true) | (false, false) => Ok(()),
            (true, false) => Err(CommonError::GivenUp),
            (false, true) => Err(CommonError::Overtaken),
        };
        Some(Told::Common(id, result))
    }

    fn prepare(
        &mut self,
        id: RequestId,
        label: String,
        group: Common,
        journal: &Journal,
        points: &mut Points,
        facts: Facts,
    ) -> Result<(), CommonError> {
        if let Some(error) = refusal(journal, facts) {
            return Err(error.into());
        }
        let cut = self.cut.take_if(|cut| cut.released).ok_or(CommonError::Expired)?;
        if cut.point.upto < journal.boundary() || journal.common_state().1 > 0 {
            return Err(CommonError::GivenUp);
        }
        let common = Common { decided: 0, prepared: self.round, ..group };
        points.mark_cut(Point { label, command: Some(id), common: Some(common), ..cut.point })?;
        Ok(())
    }

    /// Gives up what will not be, and cuts if everything that is under way has been acknowledged (`at_rest`). `urgent`: somebody waits
    /// for the backing.
    pub(crate) fn step(
        &mut self,
        journal: &mut Journal,
        points: &mut Points,
        facts: Facts,
        urgent: bool,
        at_rest: bool,
    ) -> Vec<Told> {
        self.stop_waiting(journal, facts, urgent);
        let refusal = match facts.running {
            true if !facts.shares_points() => Some(CommonError::NoMember),
            true => facts.given_up.then_some(MarkError::Failing.into()),
            false => Some(MarkError::Stopping.into()),
        };
        let no_point = refusal.clone().or_else(|| self::refusal(journal, facts).map(CommonError::from));
        let mut told = Vec::new();
        if let Some(error) = no_point {
            told.extend(self.let_go(&error));
        }
        if let Some(error) = refusal {
            told.extend(points.refuse_common(&error));
            told.extend(self.give_up(&error));
        }
        told.extend(self.cut_if_at_rest(facts, at_rest));
        told
    }

    /// Nothing comes of the round that is under way.
    pub(crate) fn give_up(&mut self, error: &CommonError) -> Vec<Told> {
        let cut = self.let_go(error);
        let waiting = self.begin.take().into_iter().chain(self.settle.take().map(|settle| settle.id));
        cut.into_iter().chain(waiting.map(|id| Told::Common(id, Err(error.clone())))).collect()
    }

    /// Who waits for a point to be settled, or for everything to be at rest.
    pub(crate) fn tell(&mut self, journal: &Journal) -> Vec<Told> {
        let settled = self.settle.take_if(|s| journal.common_is_settled(s.point)).map(|settle| {
            let decided = journal.common_state().0 == settle.point;
            let result = if decided == settle.keep { Ok(()) } else { Err(CommonError::GivenUp) };
            Told::Common(settle.id, result)
        });
        let begun = self.begin.take_if(|_| journal.common_is_at_rest()).map(|id| Told::Common(id, Ok(())));
        settled.into_iter().chain(begun).collect()
    }

    /// Cuts when everything that is under way has been acknowledged; lets go when it has taken too long.
    fn cut_if_at_rest(&mut self, facts: Facts, at_rest: bool) -> Option<Told> {
        let now = facts.now;
        self.cut.take_if(|cut| over(cut.since, CUT_MS, now));
        let hold = self.hold.as_mut()?;
        let since = hold.since;
        if over(since, HOLD_MS, now) {
            self.cut.take_if(|_| !self.planted.is(Mutation::CommonIgnoresExpiry));
            let id = self.hold.take()?.asked?;
            return Some(Told::Common(id, Err(CommonError::Expired)));
        }
        let at_rest = at_rest || self.planted.is(Mutation::CommonCutsEarly);
        let id = hold.asked.take_if(|_| at_rest)?;
        self.cut = Some(Cut { point: Point::now(facts, String::new(), None), since, released: false });
        Some(Told::Common(id, Ok(())))
    }

    /// Goes on alone where somebody has waited for long enough, or where the volume is to be no member any more.
    fn stop_waiting(&mut self, journal: &mut Journal, facts: Facts, urgent: bool) {
        let waits = facts.shares_points() && urgent;
        self.waits_since = waits.then(|| self.waits_since.unwrap_or(facts.now));
        if self.is_impatient(facts) {
            self.cut.take_if(|cut| cut.released);
            journal.common_goes_alone();
        }
    }

    /// Somebody has waited for the backing for as long as anybody is to wait for a common point.
    pub(crate) fn is_impatient(&self, facts: Facts) -> bool {
        !facts.shares_points()
            || facts.leaving
            || self.waits_since.is_some_and(|since| over(since, WAIT_MS, facts.now))
    }

    /// Writers are held back until all members have cut.
    pub(crate) fn holds(&self, now: Nanos) -> bool {
        self.hold.as_ref().is_some_and(|hold| !over(hold.since, HOLD_MS, now))
    }

    /// When something is to be done even if no event comes. `is_urgent`: somebody waits for the backing now.
    pub(crate) fn next_wake(&self, facts: Facts, is_urgent: impl FnOnce() -> bool) -> Option<Nanos> {
        let now = facts.now;
        let hold = self.hold.as_ref().map(|hold| hold.since.plus_ms(HOLD_MS));
        let cut = self.cut.as_ref().map(|cut| cut.since.plus_ms(CUT_MS));
        // That somebody waits may have come out after the last step.
        let waits = match self.waits_since {
            _ if !facts.shares_points() => None,
            Some(since) => Some(since.plus_ms(WAIT_MS)),
            None => is_urgent().then(|| now.plus_ms(1)),
        };
        [hold, cut, waits].into_iter().flatten().filter(|at| *at > now).min()
    }
}

fn over(since: Nanos, ms: u64, now: Nanos) -> bool {
    now >= since.plus_ms(ms)
}

#[cfg(test)]
mod tests;
