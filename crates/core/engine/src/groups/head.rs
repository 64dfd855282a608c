//! The journal's head: what the medium says, what it is to say next, and when that is worth a write.
//!
//! ```text
//!             wanted: what is true now               due: at once if it commits, prepares, or must not be believed any more;
//!   durable ──────────────────────────► writing ──►       with others, or after a second, if groups are left behind
//!      ▲                                   │
//!      └───────────── written ─────────────┤ failed
//!                                          └──► uncertain: the medium says one or the other, and is written again
//! ```
//!
//! 1. It never says "consistent" before that is true, nor while it is not known whether what is to be believed is on the medium.
//! 2. It commits a group only when the group has been flushed.
//! 3. It never speaks of records that are not durable in the log: the next start would know nothing of them.
//! 4. One head is on its way at a time; copies take turns, so that the last good one is never written over.

use forebay_block::{DeviceOp, Nanos, Seq};
use forebay_format::journal::{Head, Moment};
use forebay_format::shared_point::Common;
use forebay_policy::GroupEnds;

use crate::map::Map;
use crate::mutation::{Mutation, Planted};

use super::group::{Group, Phase};
use super::points::Points;
use super::ring::Ring;
use super::{Facts, time_of};

/// How often the head is brought up to date where nothing else does: under `ordered`, and when a group was destaged.
const REFRESH_MS: u64 = 1000;

/// What is true now.
#[derive(Clone, Copy)]
pub(super) struct Truth<'a> {
    pub(super) facts: Facts,
    /// It may be said that the backing is consistent.
    pub(super) claims: bool,
    pub(super) map: &'a Map,
    pub(super) ring: &'a Ring,
    pub(super) group: Option<&'a Group>,
    pub(super) points: &'a Points,
    pub(super) planted: Planted,
}

/// The head on the medium, and the one on its way.
#[derive(Default)]
pub(super) struct Heads {
    /// The last head that is known to be on the medium; `None` if the volume has no journal.
    durable: Option<Head>,
    /// The head on its way.
    writing: Option<Head>,
    /// Writing the head has failed: what is on the medium is not known, and has to be written again.
    uncertain: bool,
    /// What is on the medium may speak of a group that is prepared although writing that has failed.
    may_tell: bool,
    /// When the head is brought up to date.
    refresh_at: Option<Nanos>,
}

impl Heads {
    pub(super) fn new(durable: Option<Head>) -> Self {
        Self { durable, ..Self::default() }
    }

    /// The last one that is known to be on the medium.
    pub(super) fn durable(&self) -> Option<&Head> {
        self.durable.as_ref()
    }

    pub(super) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    pub(super) fn is_uncertain(&self) -> bool {
        self.uncertain
    }

    pub(super) fn refresh_at(&self) -> Option<Nanos> {
        self.refresh_at
    }

    /// What is known to be on the medium says that the backing is consistent.
    pub(super) fn durable_says_consistent(&self) -> bool {
        self.durable.as_ref().is_some_and(|head| head.consistent)
    }

    /// The point that a head names which may be on the medium, or 0.
    pub(super) fn point(&self) -> u64 {
        let heads = self.durable.iter().chain(&self.writing).filter(|head| head.consistent);
        heads.map(|head| head.committed.point).max().unwrap_or_default()
    }

    /// The common points that are decided and prepared, durably; 0 for none.
    pub(super) fn common_state(&self) -> (u64, u64) {
        let head = self.durable.as_ref().filter(|head| head.consistent);
        head.map_or((0, 0), |head| (head.common.decided, head.common.prepared))
    }

    /// The head on its way says that the group under way is committed, or prepared.
    pub(super) fn is_committing(&self) -> bool {
        let heads = self.writing.as_ref().zip(self.durable.as_ref());
        heads.is_some_and(|(writing, durable)| {
            commits(writing, durable) || writing.prepared > durable.prepared
        })
    }

    /// A head that may be on the medium speaks of a group that is prepared.
    pub(super) fn tells_of_prepared(&self) -> bool {
        self.may_tell || self.durable.iter().chain(&self.writing).any(Head::has_prepared)
    }

    /// What it says of a prepared group is forgotten, as if it had not been there.
    pub(super) fn forget_prepared(&mut self) {
        self.durable.iter_mut().for_each(Head::forget_prepared);
    }

    /// What the head is to say now; `None` if there is no journal, or if the log has to be durable first.
    pub(super) fn wanted(&self, truth: Truth<'_>) -> Option<Head> {
        let Truth { facts, ring, planted, .. } = truth;
        let durable = self.durable.as_ref()?;
        let mut head = Head { update: durable.update + 1, generation: facts.generation, ..durable.clone() };
        if !truth.claims {
            // Nothing is to be done again: the log has it all.
            head.consistent = false;
            head.tail = head.head;
            head.common.decided = 0;
            head.forget_prepared();
            (head.applied.seq, head.committed.seq) = (Seq(0), Seq(0));
            return Some(head);
        }
        let progress = facts.progress;
        let begins = !head.consistent;
        if begins || !facts.journaled && ring.is_empty() {
            // Of what is not durable in the log the next start knows nothing.
            let seq = match (begins, facts.latched) {
                (true, _) if progress > facts.durable => return None,
                (true, _) => progress,
                (false, true) => progress.min(facts.durable).max(head.committed.seq),
                (false, false) => facts.clean.max(head.committed.seq),
            };
            let group = head.committed.group;
            let moment = Moment { group, seq, time_ns: time_of(truth.map, seq, facts), ..Moment::default() };
            (head.applied, head.committed) = (moment.clone(), moment);
            head.consistent = true;
            head.common.decided = 0;
            head.forget_prepared();
            return Some(head);
        }
        if let Some(group) = ring.applied(progress) {
            (head.tail, head.applied) = (group.end, group.moment.clone());
        }
        truth.points.apply(&mut head);
        if planted.is(Mutation::JournalLeavesBehindEarly)
            && let Some(group) = ring.newest()
        {
            (head.tail, head.applied) = (group.end, group.moment.clone());
        }
        take_group(&mut head, truth);
        Some(head)
    }

    /// Whether the medium says what is wanted of how far the backing has come, or cannot be made to.
    pub(super) fn says(&self, truth: Truth<'_>) -> bool {
        let heads = self.wanted(truth).zip(self.durable.as_ref());
        heads.is_none_or(|(wanted, durable)| {
            (wanted.consistent, wanted.tail, wanted.committed.seq)
                == (durable.consistent, durable.tail, durable.committed.seq)
        })
    }

    /// Begins to write what is wanted, if that is due: somebody waits for it (`hurried`), or it may be that a point is not true any more
    /// (`renounces`).
    pub(super) fn write(
        &mut self,
        wanted: Head,
        now: Nanos,
        hurried: bool,
        renounces: bool,
        planted: Planted,
    ) -> Option<DeviceOp> {
        let durable = self.durable.as_ref()?;
        let prepares =
            (wanted.prepared, wanted.common.prepared) != (durable.prepared, durable.common.prepared);
        let committing = commits(&wanted, durable) || prepares;
        let turns = wanted.consistent != durable.consistent || self.uncertain || renounces && !committing;
        let leaves = wanted.tail != durable.tail;
        let moves = leaves || wanted.consistent && wanted.committed.seq > durable.committed.seq;
        let late = self.refresh_at.is_some_and(|at| at <= now);
        if moves && !late {
            self.refresh_at.get_or_insert(now.plus_ms(REFRESH_MS));
        }
        if !(committing || turns || moves && (hurried || late)) {
            return None;
        }
        self.refresh_at = None;
        let op = DeviceOp::Write {
            offset: Head::copy_offset(wanted.update),
            bufs: vec![wanted.encode()],
            durable: !planted.is(Mutation::JournalHeadVolatile),
        };
        self.writing = Some(wanted);
        Some(op)
    }

    /// The write has ended: what it said.
    pub(super) fn ended(&mut self) -> Option<Head> {
        self.writing.take()
    }

    /// It has failed; the head may be there all the same, and the next one takes its place.
    pub(super) fn failed(&mut self, head: &Head) {
        self.uncertain = true;
        self.may_tell |= head.has_prepared();
    }

    /// It is on the medium.
    pub(super) fn written(&mut self, head: Head) {
        (self.uncertain, self.may_tell) = (false, false);
        self.durable = Some(head);
    }
}

/// The head commits a group that the other has not.
pub(super) fn commits(head: &Head, before: &Head) -> bool {
    head.head != before.head
}

/// What the head says of the group under way.
fn take_group(head: &mut Head, truth: Truth<'_>) {
    let Truth { facts, planted, .. } = truth;
    head.forget_prepared();
    if facts.settings.group_ends != GroupEnds::Common {
        head.common = Common::default();
    }
    let Some((group, phase)) = truth.group.and_then(|group| Some((group, group.told()?))) else { return };
    let behind = head.head + group.bytes();
    let decides = phase == Phase::Preparing && planted.is(Mutation::CommonDecidesAlone);
    match (phase, group.common()) {
        (Phase::Committing, _) => {}
        (_, Some(_)) if decides => {}
        (Phase::Preparing | Phase::Prepared, Some(common)) => {
            // Of other members there were other points.
            let decided = if common.shares_with(&head.common) { head.common.decided } else { 0 };
            head.prepared = behind;
            head.common = Common { decided, ..common.clone() };
            return;
        }
        _ => return,
    }
    (head.head, head.prepared) = (behind, behind);
    head.committed = group.moment().clone();
    if group.holds_places() {
        // It is in its place with this very head: nothing is to be done again.
        (head.tail, head.applied) = (behind, head.committed.clone());
    }
    let kept = planted.is(Mutation::CommonForgetsToRenounce);
    match group.common() {
        Some(common) => head.common = Common { decided: common.prepared, prepared: 0, ..common.clone() },
        None if kept => {}
        None => head.common.decided = 0,
    }
}

#[cfg(test)]
mod tests;
