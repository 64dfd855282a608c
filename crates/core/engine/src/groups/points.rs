//! Consistency points: states that an application has declared to be whole, at which groups of `journaled` end exactly
//! (design, section 5).
//!
//! ```text
//!  log:  ── committed ──┤ ···· open group ···· ┤ ···· what came later ····►
//!                                         point: everything acknowledged before it, nothing issued after it
//! ```
//!
//! As long as the journal's head names a point, whoever opens the backing without the cache finds exactly that state. So the
//! name goes durably before anything issued after the point is written in place: the next group takes it along in its own
//! commit; a bypass, or a change of policy, has the head written without it first. A bypass that came after a point which is not
//! committed yet waits for it.

use std::collections::VecDeque;

use forebay_block::Seq;
use forebay_format::common::Common;
use forebay_format::journal::{Head, Moment};
use forebay_policy::{GroupEnds, WritePolicy};

use crate::engine::{Engine, Life};
use crate::interface::{CommonError, Effect, MarkError, PartKey, RequestId};
use crate::mutation::Mutation;

/// Most points that are declared and not committed.
pub(crate) const MARKS_MAX: usize = 64;

/// A point at which a group may end.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    /// Everything up to this record was acknowledged before it, and nothing later in the log.
    pub(crate) upto: Seq,
    /// Parts up to this one had come before it.
    pub(crate) parts: PartKey,
    /// When it was declared, nanoseconds since 1970.
    pub(crate) time_ns: u64,
    pub(crate) label: String,
    /// The command that declared it; none if it is a flush.
    pub(crate) command: Option<RequestId>,
    /// Other volumes share it.
    pub(crate) common: Option<Common>,
}

impl Point {
    /// The point at which a group ends that an earlier run has left prepared: all requests of this run come later.
    pub(crate) fn found(moment: &Moment, common: Option<Common>) -> Self {
        let (label, parts) = (moment.label.clone(), PartKey::default());
        Self { upto: moment.seq, parts, time_ns: moment.time_ns, label, command: None, common }
    }
}

/// Points under way.
#[derive(Default)]
pub(crate) struct Points {
    /// Declared and not committed, oldest first.
    pub(crate) marks: VecDeque<Point>,
    /// The last flush that was answered, if each flush is a point.
    flush: Option<Point>,
    /// Parts up to this one had come before the point that the head names.
    named: PartKey,
    /// A head that names a point may be on the medium although writing it has failed.
    uncertain: bool,
    /// The head is to name none.
    renounce: bool,
}

impl Points {
    /// Somebody waits for a point.
    pub(crate) fn is_marked(&self) -> bool {
        !self.marks.is_empty()
    }

    /// The head is to name none.
    pub(crate) fn is_renouncing(&self) -> bool {
        self.renounce
    }

    /// The point at which the next group ends at the latest.
    pub(crate) fn next(&self) -> Option<&Point> {
        self.marks.front().or(self.flush.as_ref())
    }

    /// What the head is to say of points if nothing is committed with it.
    pub(crate) fn apply(&self, head: &mut Head) {
        if self.renounce {
            forget(&mut head.applied);
            forget(&mut head.committed);
            head.common.decided = 0;
        }
    }
}

/// The moment is none of a point.
pub(crate) fn forget(moment: &mut Moment) {
    (moment.point, moment.label) = (0, String::new());
}

impl Engine {
    /// What is acknowledged now and nothing else is to be a point.
    pub(crate) fn point_now(&self, label: String, command: Option<RequestId>) -> Point {
        let (upto, parts) = (self.log.written_upto(), self.requests.newest_part());
        Point { upto, parts, time_ns: self.wall_ns(), label, command, common: None }
    }

    pub(crate) fn mark_command(&mut self, id: RequestId, label: String) {
        let refusal = match self.life {
            Life::Running if self.points.marks.len() >= MARKS_MAX => Some(MarkError::TooMany),
            Life::Running if self.common_is_wanted() => Some(MarkError::Member),
            Life::Running => self.points_refusal(),
            _ => Some(MarkError::Stopping),
        };
        if let Some(error) = refusal {
            self.effects.push(Effect::Marked { id, result: Err(error) });
            return;
        }
        self.journal_try_again();
        let point = self.point_now(label, Some(id));
        self.points.flush = None;
        self.points.marks.push_back(point);
    }

    /// Why no point can be declared now.
    pub(crate) fn points_refusal(&self) -> Option<MarkError> {
        let policy = self.settings.write_policy;
        if policy != WritePolicy::Journaled || !self.order.is_journaled() || self.order.is_leaving() {
            return Some(MarkError::Policy(policy));
        }
        (!self.journal_claims() || !self.journal.durable_says_consistent())
            .then_some(MarkError::NotConsistent)
    }

    /// Points that will not be committed are given up, so that nobody waits for good (P7).
    pub(crate) fn points_step(&mut self) {
        if !self.points.is_marked() && self.points.flush.is_none() {
            return;
        }
        // A group may have been cut behind it meanwhile.
        let committed = self.journal.committed();
        self.points.flush.take_if(|flush| flush.upto <= committed);
        let refusal = self.points_refusal();
        if refusal.is_some() || self.settings.group_ends != GroupEnds::Flushes {
            self.points.flush = None;
        }
        let failing = self.backing_is_given_up().then_some(MarkError::Failing);
        if let Some(error) = refusal.or(failing) {
            self.points_refuse(|_| true, &error.into());
        }
        let shared = self.common_is_wanted();
        self.points_refuse(|point| point.common.is_some() && !shared, &CommonError::NoMember);
        self.points_refuse(|point| point.common.is_none() && shared, &MarkError::Member.into());
    }

    /// These points will not be committed.
    pub(crate) fn points_refuse(&mut self, which: impl Fn(&Point) -> bool, error: &CommonError) {
        let (refused, kept) = std::mem::take(&mut self.points.marks).into_iter().partition(which);
        self.points.marks = kept;
        let refused: VecDeque<Point> = refused;
        for (id, common) in refused.into_iter().filter_map(|point| Some((point.command?, point.common))) {
            self.effects.push(match (common, error) {
                (None, CommonError::Mark(error)) => Effect::Marked { id, result: Err(error.clone()) },
                _ => Effect::CommonDone { id, result: Err(error.clone()) },
            });
        }
    }

    /// A flush was answered that came at this point.
    pub(crate) fn points_flushed(&mut self, point: Point) {
        let wanted = self.settings.group_ends == GroupEnds::Flushes && self.points_refusal().is_none();
        if wanted && point.upto > self.journal.committed() {
            let late = self.mutant(Mutation::PointFlushLate);
            self.points.flush = Some(if late { self.point_now(String::new(), None) } else { point });
        }
    }

    /// A group that ends at the point is committed.
    pub(crate) fn point_committed(&mut self, point: &Point, number: u64) {
        self.figures.points += 1;
        self.points.named = point.parts;
        if point.common.is_none() {
            let answered = self.points.marks.pop_front_if(|mark| mark.command == point.command);
            if let Some(id) = answered.and_then(|mark| mark.command) {
                self.effects.push(Effect::Marked { id, result: Ok(number) });
            }
        }
        if self.points.flush.as_ref().is_some_and(|flush| flush.upto <= point.upto) {
            self.points.flush = None;
        }
    }

    /// A head was written, or could not be.
    pub(crate) fn points_told(&mut self, head: &Head, written: bool) {
        self.points.uncertain = !written && (self.points.uncertain || head.committed.point > 0);
        self.points.renounce &= !written;
    }

    /// The backing moves only from point to point: nothing goes past the groups by choice.
    pub(crate) fn points_are_kept(&self) -> bool {
        self.order.is_journaled()
            && self.settings.group_ends != GroupEnds::Anywhere
            && self.settings.write_policy == WritePolicy::Journaled
            && !self.failure.latched()
    }

    /// Whether a bypass that came as this part may be written in place without making a point untrue; sees to it.
    pub(crate) fn points_allow(&mut self, part: PartKey) -> bool {
        if self.mutant(Mutation::PointForgetsBypass) {
            return true;
        }
        let under_way = self.journal.point_under_way().into_iter().chain(self.common.cut());
        if self.points.marks.iter().chain(under_way).any(|point| part > point.parts) {
            return false;
        }
        // A flush that nobody waits for is no point then.
        self.points.flush.take_if(|flush| part > flush.parts);
        part <= self.points.named && !self.points.uncertain || self.points_are_renounced()
    }

    /// Whether the head names no point; sees to it that it will not.
    pub(crate) fn points_are_renounced(&mut self) -> bool {
        let named = self.points.uncertain || self.journal.point() > 0;
        if named && !std::mem::replace(&mut self.points.renounce, true) {
            self.journal_step();
        }
        // What is prepared is named, too: it is committed, or forgotten, before long.
        !named && !self.journal.tells_of_prepared()
    }
}
