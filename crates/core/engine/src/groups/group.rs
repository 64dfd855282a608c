//! The group under way: its blocks are gathered from the log and written to the ring, piece by piece, flushed, and then the head
//! speaks of it.
//!
//! ```text
//!                   all pieces written             head written
//!   Writing ─────────────────────────► Flushing ─────────────────► Committing ──► in the ring
//!      │ pieces: gathered ─► written      │ ends at a common point    ▲
//!      │                                  └──► Preparing ──► Prepared ┤ all members have prepared theirs
//!      ▼ a failure, a loss, a policy without groups                   ▼ or: the point is forgotten
//!   given up: nothing speaks of it; it goes when nothing of it is on its way, and no head on the medium tells of it
//! ```
//!
//! 1. It is never committed if a flush of the backing has failed between its beginning and its own flush: the journal may lie on the
//!    same device, and what was written may be lost.
//! 2. Once given up it stays so.
//! 3. What it has pinned is released exactly once: when it is prepared, committed or abandoned.

use forebay_block::{Nanos, Seq};
use forebay_format::journal::{Group as Descriptor, GroupEntry, Moment};
use forebay_format::shared_point::Common;

use crate::map::member::Member;
use crate::map::segments::SegmentTable;

use super::points::{Point, forget};
use super::ring::data_position;

/// Data blocks that are gathered and written together (256 KiB).
const PIECE_BLOCKS: usize = 64;
/// Pieces of a group on their way at once.
const PIECES_MAX: usize = 4;

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Writing,
    Flushing,
    /// The head is to say that it is prepared.
    Preparing,
    /// The head says so; whether it is committed is decided by others ([`crate::groups::shared_points`]).
    Prepared,
    Committing,
}

/// What is to be done for it next.
pub(super) enum Next {
    /// Gather these members, the first of them data block number so much.
    Gather(usize, Vec<Member>),
    /// Flush the journal.
    Flush,
}

/// The group under way.
pub(super) struct Group {
    descriptor: Descriptor,
    /// Those of its blocks that have data, in the descriptor's order.
    members: Vec<Member>,
    /// It ends exactly at this point.
    point: Option<Point>,
    phase: Phase,
    /// When its oldest write came.
    since: Nanos,
    /// Members that have been asked for.
    asked: usize,
    /// Gatherings and writes that have not ended.
    outstanding: usize,
    /// Losses of the backing when it began: a flush that failed since may have lost some of it.
    losses: u64,
    /// It will not be committed.
    given_up: bool,
    /// How its blocks get to their places.
    places: Places,
}

/// How the blocks of a group get to their places on the backing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Places {
    /// After the commit, from the log.
    Later,
    /// With the commit: it waits until nothing else is on its way there.
    Wanted,
    /// With the commit: nothing else may go there.
    Held,
}

impl Group {
    /// Begins; its members are pinned by the caller.
    pub(super) fn new(
        descriptor: Descriptor,
        members: Vec<Member>,
        point: Option<Point>,
        since: Nanos,
        losses: u64,
    ) -> Self {
        let (phase, asked, outstanding, given_up) = (Phase::Writing, 0, 0, false);
        let places = Places::Later;
        Self { descriptor, members, point, phase, since, asked, outstanding, losses, given_up, places }
    }

    /// An earlier run has left it prepared.
    pub(super) fn found(descriptor: Descriptor, common: Option<Common>) -> Self {
        let point = Some(Point::found(&descriptor.moment, common));
        Self { phase: Phase::Prepared, ..Self::new(descriptor, Vec::new(), point, Nanos(0), 0) }
    }

    /// The same, with its blocks in their places with the commit, or after it.
    pub(super) fn in_place(self, in_place: bool) -> Self {
        Self { places: if in_place { Places::Wanted } else { Places::Later }, ..self }
    }

    /// Its commit waits for nothing but its places.
    pub(super) fn wants_places(&self) -> bool {
        self.places == Places::Wanted && self.phase == Phase::Committing && !self.given_up
    }

    /// They are held for it.
    pub(super) fn hold_places(&mut self) {
        self.places = Places::Held;
    }

    /// Whether they are.
    pub(super) fn holds_places(&self) -> bool {
        self.places == Places::Held
    }

    pub(super) fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    pub(super) fn moment(&self) -> &Moment {
        &self.descriptor.moment
    }

    /// The last record that it covers.
    pub(super) fn upto(&self) -> Seq {
        self.descriptor.moment.seq
    }

    pub(super) fn entries(&self) -> &[GroupEntry] {
        &self.descriptor.entries
    }

    pub(super) fn point(&self) -> Option<&Point> {
        self.point.as_ref()
    }

    pub(super) fn since(&self) -> Nanos {
        self.since
    }

    /// Bytes of it in the ring.
    pub(super) fn bytes(&self) -> u64 {
        self.descriptor.bytes()
    }

    /// What the head is to say of it: nothing if it is given up, or waits for its places.
    pub(super) fn told(&self) -> Option<Phase> {
        Some(self.phase).filter(|_| !self.given_up && !self.wants_places())
    }

    /// It ends at a point that other volumes share.
    pub(super) fn is_common(&self) -> bool {
        self.common().is_some()
    }

    /// What the head is to say of the common point at which it ends.
    pub(super) fn common(&self) -> Option<&Common> {
        self.point.as_ref().and_then(|point| point.common.as_ref())
    }

    /// It rests in the journal until others decide.
    pub(super) fn is_prepared(&self) -> bool {
        self.told() == Some(Phase::Prepared)
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.given_up
    }

    /// Another round has begun: it is not prepared any more if it is not yet.
    pub(super) fn overtaken(&mut self) {
        self.given_up |= self.is_common() && !self.is_flushed();
    }

    /// It is prepared, and all members decide to `keep` it, or not.
    pub(super) fn settle(&mut self, keep: bool) {
        match keep {
            true => self.phase = Phase::Committing,
            false => self.given_up = true,
        }
    }

    /// It is prepared, and committed without the other members: at no common point.
    pub(super) fn goes_alone(&mut self) {
        (self.point, self.phase) = (None, Phase::Committing);
        forget(&mut self.descriptor.moment);
    }

    fn is_flushed(&self) -> bool {
        matches!(self.phase, Phase::Preparing | Phase::Prepared | Phase::Committing)
    }

    /// It is given up unless groups may be committed (`claims`) and nothing was lost before its flush.
    pub(super) fn look(&mut self, claims: bool, losses: u64) {
        self.given_up |= !claims || self.losses != losses && !self.is_flushed();
    }

    /// It is given up, and nothing of it is on its way.
    pub(super) fn is_over(&self) -> bool {
        self.given_up && self.outstanding == 0
    }

    /// A replay could take it for prepared as long as a head on the medium tells of one.
    pub(super) fn may_be_told_of(&self) -> bool {
        self.is_flushed() && self.is_common()
    }

    /// What can be done for it now.
    pub(super) fn next(&mut self) -> Option<Next> {
        if self.phase != Phase::Writing {
            return None;
        }
        let first = self.asked;
        if first < self.members.len() && self.outstanding < PIECES_MAX && !self.given_up {
            self.asked = (first + PIECE_BLOCKS).min(self.members.len());
            self.outstanding += 1;
            return Some(Next::Gather(first, self.members[first..self.asked].to_vec()));
        }
        (self.outstanding == 0).then(|| {
            (self.phase, self.outstanding) = (Phase::Flushing, 1);
            Next::Flush
        })
    }

    /// Its data blocks from `first` on are gathered: where in the ring they go.
    pub(super) fn gathered(&mut self, first: usize) -> u64 {
        self.outstanding -= 1;
        data_position(self.descriptor.position, self.entries().len(), first)
    }

    /// Blocks of it could not be gathered.
    pub(super) fn lacks(&mut self) {
        self.outstanding -= 1;
        self.given_up = true;
    }

    /// So many writes to the ring begin.
    pub(super) fn writes(&mut self, count: usize) {
        self.outstanding += count;
    }

    /// One of them has ended.
    pub(super) fn written(&mut self, good: bool) {
        self.outstanding -= 1;
        self.given_up |= !good;
    }

    /// The flush has ended.
    pub(super) fn flushed(&mut self, good: bool, losses: u64) {
        self.outstanding = 0;
        self.given_up |= !good || self.losses != losses;
        if !self.given_up {
            self.phase = if self.is_common() { Phase::Preparing } else { Phase::Committing };
        }
    }

    /// The head on the medium says that it is prepared; true if that is news.
    pub(super) fn prepared(&mut self, segments: &mut SegmentTable) -> bool {
        let news = self.phase == Phase::Preparing;
        if news {
            self.phase = Phase::Prepared;
            self.unpin(segments);
        }
        news
    }

    /// Nothing is read from the log for it any more.
    pub(super) fn unpin(&mut self, segments: &mut SegmentTable) {
        self.members.drain(..).for_each(|m| segments.unpin(m.slot.segment()));
    }

    /// It is committed: what it was, and the point at which it ends.
    pub(super) fn into_parts(self) -> (Descriptor, Option<Point>) {
        (self.descriptor, self.point)
    }
}

#[cfg(test)]
mod tests;
