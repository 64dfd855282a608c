//! Rounds of a consistency group: a coordinator that leads the volume to common points, and may fall silent at any step. The other
//! members are thought of; what they would have decided is left to chance.

use forebay_engine::{Command, CommonError, CommonState, CommonStep, Event, MarkError, RequestId};
use forebay_format::shared_point::Common;
use forebay_policy::GroupEnds;

use super::{Due, Life};
use crate::plan::CommonRound;
use crate::points;
use crate::subject::Subject;
use crate::violation::{Interrupt, broken};

/// What the coordinator has asked for last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begin,
    SettleOld,
    Hold,
    Release,
    Prepare,
    Settle,
}

/// A round under way.
pub(crate) struct Coordinator {
    plan: CommonRound,
    number: u64,
    stage: Stage,
    state: CommonState,
    /// What waits for its answer.
    asked: Option<RequestId>,
    /// When the last step was asked for, on the oracle's clock.
    at: u64,
    /// A point is being settled: its number, and whether it is kept.
    settles: Option<(u64, bool)>,
    steps: u8,
}

impl<S: Subject> Life<'_, S> {
    /// A round begins; another that is under way gets no further.
    pub(super) fn begin_round(&mut self, plan: CommonRound) {
        self.world.consistency.points.rounds += 1;
        let number = self.world.consistency.points.rounds;
        let state = CommonState::default();
        self.coordinator = Some(Coordinator {
            plan,
            number,
            stage: Stage::Begin,
            state,
            asked: None,
            at: 0,
            settles: None,
            steps: 0,
        });
        self.coordinate();
    }

    /// The coordinator takes its next step, unless it has fallen silent.
    pub(super) fn coordinate(&mut self) {
        let id = self.new_id();
        let at = self.world.oracle.issue_flush().time();
        let Some(c) = &mut self.coordinator else { return };
        if c.asked.is_some() || c.steps >= c.plan.steps {
            return;
        }
        (c.steps, c.asked, c.at) = (c.steps + 1, Some(id), at);
        let label = points::common_label(c.number);
        let step = match c.stage {
            Stage::Begin => CommonStep::Begin,
            Stage::SettleOld => CommonStep::Settle { point: c.state.prepared, keep: c.plan.keeps_old },
            Stage::Hold => CommonStep::Hold,
            Stage::Release => CommonStep::Release,
            Stage::Prepare => {
                let names = "group this volume".to_owned();
                CommonStep::Prepare {
                    label,
                    group: Common { set: [9; 16], member: 1, names, ..Common::default() },
                }
            }
            Stage::Settle => CommonStep::Settle { point: c.number, keep: c.plan.keeps },
        };
        c.settles = match step {
            CommonStep::Settle { point, keep } => Some((point, keep)),
            _ => None,
        };
        if let Some((point, keep)) = c.settles {
            self.world.consistency.points.settling(point, keep);
        }
        let command = Command::Common { round: c.number, run: c.state.run, step };
        self.asked_common.push((
            id,
            self.settings.group_ends == GroupEnds::Common && self.keeps_groups() && self.engine.knows_order(),
        ));
        self.engine.handle(Event::Command { id, command }, self.now);
    }

    /// A step of a round was answered.
    pub(crate) fn common_done(
        &mut self,
        id: RequestId,
        result: Result<CommonState, CommonError>,
    ) -> Result<(), Interrupt> {
        let at = self.asked_common.iter().position(|(asked, _)| *asked == id);
        let Some((_, member)) = at.map(|at| self.asked_common.swap_remove(at)) else {
            return Err(broken("wall", format!("step {} is answered twice or was never asked for", id.0)));
        };
        self.progress = self.now;
        self.note(&[14, id.0, u64::from(result.is_ok())], || {
            (format!("common {:>4} {result:?}", id.0), Vec::new())
        });
        self.answers_after_fence(result.is_ok())?;
        let Some(mut c) = self.coordinator.take_if(|c| c.asked == Some(id)) else { return Ok(()) };
        c.asked = None;
        match result {
            Ok(state) => {
                self.step_done(&mut c, state)?;
                let pause = if c.stage == Stage::Release { c.plan.pause_us } else { c.plan.pause_us / 8 };
                self.coordinator = Some(c);
                self.schedule(u64::from(pause) * 1000 + 1, Due::Coordinator);
                Ok(())
            }
            Err(error) => {
                let excused = match error {
                    CommonError::NoMember => {
                        !member
                            || self.settings.group_ends != GroupEnds::Common
                            || !self.keeps_groups()
                            || self.has_failed()
                    }
                    CommonError::Mark(MarkError::Stopping) => self.stopping,
                    CommonError::Mark(MarkError::Fenced) => self.world.is_fenced(),
                    CommonError::Mark(MarkError::Failing) => self.has_failed(),
                    // It is only one at a time, and no two are without an end in between.
                    CommonError::Overtaken => c.stage == Stage::Settle || c.stage == Stage::SettleOld,
                    CommonError::Mark(MarkError::TooMany | MarkError::Member | MarkError::ReadOnly) => false,
                    CommonError::Mark(_) | CommonError::Expired | CommonError::GivenUp => true,
                };
                match excused {
                    true => Ok(()),
                    false => Err(broken(
                        "P9",
                        format!("{:?} of a round is refused without a reason: {error}", c.stage),
                    )),
                }
            }
        }
    }

    fn step_done(&mut self, c: &mut Coordinator, state: CommonState) -> Result<(), Interrupt> {
        c.state = state;
        let points = &mut self.world.consistency.points;
        c.stage = match c.stage {
            Stage::Begin if state.prepared > 0 => Stage::SettleOld,
            Stage::Begin | Stage::SettleOld => Stage::Hold,
            Stage::Hold => {
                // What was issued after this comes after the point.
                let cut = self.world.oracle.issue_flush().time();
                points.cut(c.number, c.at, cut);
                Stage::Release
            }
            Stage::Release => {
                // What was acknowledged before the release was asked for comes before the point.
                points.released(c.number, c.at);
                Stage::Prepare
            }
            Stage::Prepare => {
                self.world.judge_prepared(c.number)?;
                Stage::Settle
            }
            Stage::Settle => {
                c.plan.steps = 0;
                Stage::Settle
            }
        };
        if let Some((point, keep)) = c.settles.take() {
            self.world.judge_settled(point, keep)?;
        }
        Ok(())
    }
}
