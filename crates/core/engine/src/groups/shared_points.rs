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

use forebay_block::Nanos;
use forebay_format::common::Common;
use forebay_policy::{GroupEnds, OpenGroup, WritePolicy};

use crate::engine::{Engine, Life};
use crate::groups::points::{MARKS_MAX, Point};
use crate::interface::{CommonError, CommonState, CommonStep, Effect, MarkError, RequestId};
use crate::mutation::Mutation;

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
}

impl CommonPoints {
    /// The point that is cut and not declared yet.
    pub(crate) fn cut(&self) -> Option<&Point> {
        self.cut.as_ref().map(|cut| &cut.point)
    }
}

impl Engine {
    /// The volume's points are shared, or would be.
    pub(crate) fn common_is_wanted(&self) -> bool {
        self.settings.group_ends == GroupEnds::Common
            && self.settings.write_policy == WritePolicy::Journaled
            && self.order.is_journaled()
            && !self.failure.latched()
    }

    /// How things stand, durably.
    fn common_state(&self) -> CommonState {
        let (decided, prepared) = self.journal.common_state();
        let round = self.common.round.max(decided).max(prepared);
        CommonState { run: self.layout.generation, round, decided, prepared }
    }

    fn common_answer(&mut self, id: RequestId, result: Result<(), CommonError>) {
        let result = result.map(|()| self.common_state());
        self.effects.push(Effect::CommonDone { id, result });
    }

    pub(crate) fn common_command(&mut self, id: RequestId, round: u64, run: u64, step: CommonStep) {
        let state = self.common_state();
        let refusal = match &step {
            _ if self.life != Life::Running => Some(MarkError::Stopping.into()),
            _ if !self.common_is_wanted() => Some(CommonError::NoMember),
            CommonStep::Begin => (round > 0 && round <= state.round).then_some(CommonError::Overtaken),
            _ => ((round, run) != (self.common.round, state.run)).then_some(CommonError::Overtaken),
        };
        if let Some(error) = refusal {
            return self.common_answer(id, Err(error));
        }
        self.journal_try_again();
        match step {
            CommonStep::Begin => self.common_begin(id, round),
            CommonStep::Settle { point, keep } => self.common_settle(id, point, keep),
            CommonStep::Hold => {
                self.common_let_go(&CommonError::Overtaken);
                self.common.hold = Some(Hold { since: self.now, asked: Some(id) });
            }
            CommonStep::Release => {
                let late =
                    self.common.hold.as_ref().is_none_or(|hold| self.now >= hold.since.plus_ms(HOLD_MS));
                let late = late && !self.mutant(Mutation::CommonIgnoresExpiry);
                self.common.hold = None;
                let result = match self.common.cut.as_mut().filter(|_| !late) {
                    Some(cut) => {
                        cut.released = true;
                        Ok(())
                    }
                    None => Err(CommonError::Expired),
                };
                if result.is_err() {
                    self.common.cut = None;
                }
                self.common_answer(id, result);
            }
            CommonStep::Prepare { label, group } => {
                if let Err(error) = self.common_prepare(id, label, group) {
                    self.common_answer(id, Err(error));
                }
            }
        }
    }

    fn common_begin(&mut self, id: RequestId, round: u64) {
        if round > 0 {
            self.common.round = round;
            self.common_let_go(&CommonError::Overtaken);
            self.points_refuse(|point| point.common.is_some(), &CommonError::Overtaken);
            self.journal.common_overtaken();
        }
        if let Some(before) = self.common.begin.replace(id) {
            self.common_answer(before, Err(CommonError::Overtaken));
        }
    }

    /// Writers are held back no longer, and what was cut is no point.
    fn common_let_go(&mut self, error: &CommonError) {
        self.common.cut = None;
        if let Some(id) = self.common.hold.take().and_then(|hold| hold.asked) {
            self.common_answer(id, Err(error.clone()));
        }
    }

    fn common_settle(&mut self, id: RequestId, point: u64, keep: bool) {
        let decided = self.journal.common_state().0 == point;
        if self.journal.common_settles(point, keep) {
            let before = self.common.settle.replace(Settle { id, point, keep });
            before.into_iter().for_each(|s| self.common_answer(s.id, Err(CommonError::Overtaken)));
            return;
        }
        self.common_answer(
            id,
            match (keep, decided) {
                (true, true) | (false, false) => Ok(()),
                (true, false) => Err(CommonError::GivenUp),
                (false, true) => Err(CommonError::Overtaken),
            },
        );
    }

    fn common_prepare(&mut self, id: RequestId, label: String, group: Common) -> Result<(), CommonError> {
        if let Some(error) = self.points_refusal() {
            return Err(error.into());
        }
        let cut = self.common.cut.take_if(|cut| cut.released).ok_or(CommonError::Expired)?;
        if cut.point.upto < self.journal.boundary() || self.journal.common_state().1 > 0 {
            return Err(CommonError::GivenUp);
        }
        if self.points.marks.len() >= MARKS_MAX {
            return Err(MarkError::TooMany.into());
        }
        let common = Common { decided: 0, prepared: self.common.round, ..group };
        self.points.marks.push_back(Point { label, command: Some(id), common: Some(common), ..cut.point });
        Ok(())
    }

    /// A group that ends at a common point is durable in the journal.
    pub(crate) fn common_prepared(&mut self, point: &Point) {
        let answered = self.points.marks.pop_front_if(|mark| mark.command == point.command);
        if let Some(id) = answered.and_then(|mark| mark.command) {
            self.common_answer(id, Ok(()));
        }
    }

    pub(crate) fn common_step(&mut self) {
        self.common_stop_waiting();
        let refusal = match self.life {
            Life::Running if !self.common_is_wanted() => Some(CommonError::NoMember),
            Life::Running => self.backing_is_given_up().then_some(MarkError::Failing.into()),
            _ => Some(MarkError::Stopping.into()),
        };
        let no_point = refusal.clone().or_else(|| self.points_refusal().map(CommonError::from));
        if let Some(error) = no_point {
            self.common_let_go(&error);
        }
        if let Some(error) = refusal {
            self.points_refuse(|point| point.common.is_some(), &error);
            let begin = self.common.begin.take();
            let settle = self.common.settle.take().map(|settle| settle.id);
            begin.into_iter().chain(settle).for_each(|id| self.common_answer(id, Err(error.clone())));
        }
        self.common_cut();
    }

    /// Answers who waits for a point to be settled, or for everything to be at rest.
    pub(crate) fn common_tell(&mut self) {
        if let Some(Settle { id, point, keep }) =
            self.common.settle.take_if(|s| self.journal.common_is_settled(s.point))
        {
            let decided = self.journal.common_state().0 == point;
            self.common_answer(id, if decided == keep { Ok(()) } else { Err(CommonError::GivenUp) });
        }
        if let Some(id) = self.common.begin.take_if(|_| self.journal.common_is_at_rest()) {
            self.common_answer(id, Ok(()));
        }
    }

    /// Cuts when everything that is under way has been acknowledged; lets go when it has taken too long.
    fn common_cut(&mut self) {
        let over = |since: Nanos, ms: u64, now: Nanos| now >= since.plus_ms(ms);
        let now = self.now;
        self.common.cut.take_if(|cut| over(cut.since, CUT_MS, now));
        let Some(hold) = &mut self.common.hold else { return };
        let since = hold.since;
        if over(since, HOLD_MS, now) {
            self.common.cut.take_if(|_| !self.planted.is(Mutation::CommonIgnoresExpiry));
            let asked = self.common.hold.take().and_then(|hold| hold.asked);
            return asked.into_iter().for_each(|id| self.common_answer(id, Err(CommonError::Expired)));
        }
        let written = self.log.is_written() || self.planted.is(Mutation::CommonCutsEarly);
        if let Some(id) = hold.asked.take_if(|_| written) {
            self.common.cut =
                Some(Cut { point: self.point_now(String::new(), None), since, released: false });
            self.common_answer(id, Ok(()));
        }
    }

    /// Goes on alone where somebody has waited for long enough, or where the volume is to be no member any more.
    fn common_stop_waiting(&mut self) {
        let waits = self.common_is_wanted() && self.destage_is_urgent();
        self.common.waits_since = waits.then(|| self.common.waits_since.unwrap_or(self.now));
        if self.common_is_impatient() {
            self.common.cut.take_if(|cut| cut.released);
            self.journal.common_goes_alone();
        }
    }

    /// Somebody has waited for the backing for as long as anybody is to wait for a common point.
    pub(crate) fn common_is_impatient(&self) -> bool {
        let since = self.common.waits_since;
        !self.common_is_wanted()
            || self.order.is_leaving()
            || since.is_some_and(|since| self.now >= since.plus_ms(WAIT_MS))
    }

    /// Writers are held back until all members have cut.
    pub(crate) fn common_holds(&self) -> bool {
        let hold =
            self.common.hold.as_ref().filter(|_| self.life == Life::Running && !self.failure.latched());
        hold.is_some_and(|hold| self.now < hold.since.plus_ms(HOLD_MS))
    }

    /// The members should declare a point: this one would commit a group now if it were alone, or an earlier round has left
    /// something behind.
    pub(crate) fn common_presses(&self) -> bool {
        let open = OpenGroup { marked: false, flushed: false, ..self.journal_open() };
        let alone = forebay_policy::Settings { group_ends: GroupEnds::Anywhere, ..self.settings };
        open.end(&alone) != forebay_policy::GroupEnd::Wait || self.journal.common_state().1 > 0
    }

    pub(crate) fn common_next_wake(&self) -> Option<Nanos> {
        let c = &self.common;
        let hold = c.hold.as_ref().map(|hold| hold.since.plus_ms(HOLD_MS));
        let cut = c.cut.as_ref().map(|cut| cut.since.plus_ms(CUT_MS));
        // That somebody waits may have come out after the last step.
        let waits = match c.waits_since {
            Some(since) => Some(since.plus_ms(WAIT_MS)),
            None => Some(self.now.plus_ms(1)).filter(|_| self.destage_is_urgent()),
        };
        let waits = waits.filter(|_| self.common_is_wanted());
        [hold, cut, waits].into_iter().flatten().filter(|at| *at > self.now).min()
    }
}
