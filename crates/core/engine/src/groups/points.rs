//! Consistency points: states that an application has declared to be whole, at which groups of `journaled` end exactly
//! (`docs/design/promises.md`, Write policies).
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
//!
//! 1. Points are committed in the order in which they were declared.
//! 2. Each command is told once: the number of its point, or why there is none (P7).

use std::collections::VecDeque;

use forebay_block::Seq;
use forebay_format::journal::{Head, Moment};
use forebay_format::shared_point::Common;
use forebay_policy::{GroupEnds, WritePolicy};

use crate::interface::{CommonError, MarkError, PartKey, RequestId};

use crate::mutation::{Mutation, Planted};

use super::journal::Journal;
use super::{Facts, Told};

/// Most points that are declared and not committed.
const MARKS_MAX: usize = 64;

/// A point at which a group may end.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    /// Everything up to this record was acknowledged before it, and nothing later in the log.
    pub(super) upto: Seq,
    /// Parts up to this one had come before it.
    pub(super) parts: PartKey,
    /// When it was declared, nanoseconds since 1970.
    pub(super) time_ns: u64,
    pub(super) label: String,
    /// The command that declared it; none if it is a flush.
    pub(super) command: Option<RequestId>,
    /// Other volumes share it.
    pub(super) common: Option<Common>,
}

impl Point {
    /// What is acknowledged now and nothing else is to be a point.
    pub(crate) fn now(facts: Facts, label: String, command: Option<RequestId>) -> Self {
        let (upto, parts, time_ns) = (facts.written, facts.newest_part, facts.wall_ns());
        Self { upto, parts, time_ns, label, command, common: None }
    }

    /// Behind this record.
    #[cfg(test)]
    pub(crate) fn at(upto: Seq) -> Self {
        let parts = PartKey::default();
        Self { upto, parts, time_ns: 0, label: String::new(), command: None, common: None }
    }

    /// The point at which a group ends that an earlier run has left prepared: all requests of this run come later.
    pub(super) fn found(moment: &Moment, common: Option<Common>) -> Self {
        let (label, parts) = (moment.label.clone(), PartKey::default());
        Self { upto: moment.seq, parts, time_ns: moment.time_ns, label, command: None, common }
    }
}

/// Whether a bypass may be written in place without making a point untrue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    Yes,
    /// It came after a point that is not committed yet.
    No,
    /// Once the head names no point, see [`Points::renounce`].
    Renounced,
}

/// Points under way.
#[derive(Default)]
pub(crate) struct Points {
    /// Declared and not committed, oldest first.
    marks: VecDeque<Point>,
    /// The last flush that was answered, if each flush is a point.
    flush: Option<Point>,
    /// Parts up to this one had come before the point that the head names.
    named: PartKey,
    /// A head that names a point may be on the medium although writing it has failed.
    uncertain: bool,
    /// The head is to name none.
    renounce: bool,
    planted: Planted,
}

/// Why no point can be declared now.
pub(super) fn refusal(journal: &Journal, facts: Facts) -> Option<MarkError> {
    let policy = facts.settings.write_policy;
    if policy != WritePolicy::Journaled || !facts.journaled || facts.leaving {
        return Some(MarkError::Policy(policy));
    }
    (!journal.claims(facts) || !journal.durable_says_consistent()).then_some(MarkError::NotConsistent)
}

impl Points {
    #[cfg(feature = "mutations")]
    pub(crate) fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }

    /// Somebody waits for a point.
    pub(crate) fn is_marked(&self) -> bool {
        !self.marks.is_empty()
    }

    /// The head is to name none.
    pub(super) fn is_renouncing(&self) -> bool {
        self.renounce
    }

    /// The point at which the next group ends at the latest.
    pub(super) fn next(&self) -> Option<&Point> {
        self.marks.front().or(self.flush.as_ref())
    }

    /// What the head is to say of points if nothing is committed with it.
    pub(super) fn apply(&self, head: &mut Head) {
        if self.renounce {
            forget(&mut head.applied);
            forget(&mut head.committed);
            head.common.decided = 0;
        }
    }

    /// Declares what is acknowledged now to be a point.
    ///
    /// # Errors
    /// Why that cannot be done.
    pub(crate) fn mark(
        &mut self,
        id: RequestId,
        label: String,
        journal: &mut Journal,
        facts: Facts,
    ) -> Result<(), MarkError> {
        let refusal = match facts.running {
            true if self.marks.len() >= MARKS_MAX => Some(MarkError::TooMany),
            true if facts.shares_points() => Some(MarkError::Member),
            true => refusal(journal, facts),
            false => Some(MarkError::Stopping),
        };
        if let Some(error) = refusal {
            return Err(error);
        }
        journal.try_again();
        self.flush = None;
        self.marks.push_back(Point::now(facts, label, Some(id)));
        Ok(())
    }

    /// A cut at which other volumes have cut, too, is to be committed as a point.
    ///
    /// # Errors
    /// If too many wait.
    pub(super) fn mark_cut(&mut self, point: Point) -> Result<(), MarkError> {
        if self.marks.len() >= MARKS_MAX {
            return Err(MarkError::TooMany);
        }
        self.marks.push_back(point);
        Ok(())
    }

    /// Points that will not be committed are given up, so that nobody waits for good (P7).
    pub(crate) fn step(&mut self, journal: &Journal, facts: Facts) -> Vec<Told> {
        if !self.is_marked() && self.flush.is_none() {
            return Vec::new();
        }
        // A group may have been cut behind it meanwhile.
        let committed = journal.committed();
        self.flush.take_if(|flush| flush.upto <= committed);
        let refusal = refusal(journal, facts);
        if refusal.is_some() || facts.settings.group_ends != GroupEnds::Flushes {
            self.flush = None;
        }
        let mut told = Vec::new();
        let failing = facts.given_up.then_some(MarkError::Failing);
        if let Some(error) = refusal.or(failing) {
            told.extend(self.give_up(&error.into()));
        }
        let shared = facts.shares_points();
        told.extend(self.refuse(|point| point.common.is_some() && !shared, &CommonError::NoMember));
        told.extend(self.refuse(|point| point.common.is_none() && shared, &MarkError::Member.into()));
        told
    }

    /// Those that other volumes share will not be committed.
    pub(super) fn refuse_common(&mut self, error: &CommonError) -> Vec<Told> {
        self.refuse(|point| point.common.is_some(), error)
    }

    /// None of them will be committed.
    pub(crate) fn give_up(&mut self, error: &CommonError) -> Vec<Told> {
        self.refuse(|_| true, error)
    }

    /// These points will not be committed.
    fn refuse(&mut self, which: impl Fn(&Point) -> bool, error: &CommonError) -> Vec<Told> {
        let refused: VecDeque<Point>;
        (refused, self.marks) = std::mem::take(&mut self.marks).into_iter().partition(which);
        let told = |point: Point| {
            let id = point.command?;
            Some(match (point.common, error) {
                (None, CommonError::Mark(error)) => Told::Marked(id, Err(error.clone())),
                _ => Told::Common(id, Err(error.clone())),
            })
        };
        refused.into_iter().filter_map(told).collect()
    }

    /// A flush was answered that came at this point.
    pub(crate) fn flushed(&mut self, point: Point, journal: &Journal, facts: Facts) {
        let wanted = facts.settings.group_ends == GroupEnds::Flushes && refusal(journal, facts).is_none();
        if wanted && point.upto > journal.committed() {
            let late = self.planted.is(Mutation::PointFlushLate);
            self.flush = Some(if late { Point::now(facts, String::new(), None) } else { point });
        }
    }

    /// A group that ends at the point is committed, with this number.
    pub(super) fn committed(&mut self, point: &Point, number: u64) -> Vec<Told> {
        self.named = point.parts;
        let mut told = vec![Told::Point];
        if point.common.is_none() {
            told.extend(self.take(point).map(|id| Told::Marked(id, Ok(number))));
        }
        self.flush.take_if(|flush| flush.upto <= point.upto);
        told
    }

    /// A group that ends at a common point is durable in the journal.
    pub(super) fn prepared(&mut self, point: &Point) -> Option<Told> {
        self.take(point).map(|id| Told::Common(id, Ok(())))
    }

    /// The command that waits for the point, which is the oldest one.
    fn take(&mut self, point: &Point) -> Option<RequestId> {
        self.marks.pop_front_if(|mark| mark.command == point.command)?.command
    }

    /// A head was written, or could not be.
    pub(super) fn told(&mut self, head: &Head, written: bool) {
        self.uncertain = !written && (self.uncertain || head.committed.point > 0);
        self.renounce &= !written;
    }

    /// Whether a bypass that came as this part may be written in place without making a point untrue; `cut` is one that is not declared
    /// yet.
    pub(crate) fn allow(&mut self, part: PartKey, journal: &Journal, cut: Option<&Point>) -> Allowed {
        let under_way = journal.point_under_way().into_iter().chain(cut);
        if self.marks.iter().chain(under_way).any(|point| part > point.parts) {
            return Allowed::No;
        }
        // A flush that nobody waits for is no point then.
        self.flush.take_if(|flush| part > flush.parts);
        match part <= self.named && !self.uncertain {
            true => Allowed::Yes,
            false => Allowed::Renounced,
        }
    }

    /// A head that names a point may be on the medium.
    pub(crate) fn is_named(&self, journal: &Journal) -> bool {
        self.uncertain || journal.point() > 0
    }

    /// The head is to name no point; true if it was not yet to.
    pub(crate) fn renounce(&mut self) -> bool {
        !std::mem::replace(&mut self.renounce, true)
    }
}

/// The moment is none of a point.
pub(super) fn forget(moment: &mut Moment) {
    (moment.point, moment.label) = (0, String::new());
}

#[cfg(test)]
mod tests;
