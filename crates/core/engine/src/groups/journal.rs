//! The journal: committed groups, the one under way, the open one and the head, as one machine.
//!
//! ```text
//!   due ─► collect ─► start ─► go on: gather, write, flush ─► head written: committed ─► head written: left behind
//!            │                    │
//!            └ waits, or          └ given up: the open group has its blocks again
//!              gives up the order
//! ```
//!
//! 1. At most one group is under way, and it begins where the last one has ended.
//! 2. What the journal `holds` a bypass must not write: a replay could write over it.
//! 3. It asks for nothing by itself. A failure pauses it, longer from time to time.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_block::{BLOCK_BYTES, BlockNo, Buf, DeviceOp, Nanos, Seq};
use forebay_format::Layout;
use forebay_format::journal::{GROUP_ENTRIES_MAX, Group as Descriptor, GroupEntry, Head, Moment};
use forebay_policy::{GroupEnd, GroupEnds, OpenGroup};

use crate::locks::BlockRange;
use crate::map::Map;
use crate::map::member::Member;
use crate::map::segments::{SlotKind, SlotRef};
use crate::mutation::{Mutation, Planted};

use super::commit::{commit, places};
use super::group::{Group, Next};
use super::head::{Heads, Truth, commits};
use super::open::{Bounds, Choice, Found, Open, Verdict, look};
use super::points::{Point, Points};
use super::ring::{InRing, Ring, room, stretches};
use super::{Facts, Told, time_of};
use crate::pause::Pause;

mod says;
mod shared;

/// A stretch of the log that becomes a group.
pub(crate) struct Stretch {
    upto: Seq,
    newest: BTreeMap<BlockNo, SlotRef>,
    point: Option<Point>,
}

/// What a group could begin with.
pub(crate) enum Collected {
    /// Nothing yet.
    Nothing,
    /// What is next can never be in a group: the order is given up.
    GivesUp,
    /// This.
    Stretch(Stretch),
}

/// What is to be done for the group under way.
pub(crate) enum Step {
    /// Gather these members; they are data block number so much, and those that follow.
    Gather(usize, Vec<Member>),
    /// Flush the journal.
    Flush,
    /// See that nothing else is on its way to these places, nor comes to be.
    Hold(Vec<BlockRange>),
    /// Nothing: it is given up, and gone. Who waits until nothing is left of it may go on; it has held these places.
    Gone(Vec<BlockRange>),
}

/// What is to be done for the head.
pub(crate) enum HeadStep {
    Nothing,
    /// Make the log durable first.
    Durable,
    Write(DeviceOp),
}

/// What has come of writing the head.
pub(crate) struct Written {
    /// The blocks of the group that is committed with it.
    pub(crate) committed: Option<Arc<Vec<GroupEntry>>>,
    /// The places that it has held, if it is in its place now.
    pub(crate) in_place: Option<Vec<BlockRange>>,
    /// That group ends at no point, although groups should.
    pub(crate) cut: bool,
    pub(crate) told: Vec<Told>,
    /// The group under way has been given up meanwhile, and may go.
    pub(crate) goes: bool,
}

/// State of the journal.
#[derive(Default)]
pub(crate) struct Journal {
    heads: Heads,
    ring: Ring,
    group: Option<Group>,
    open: Open,
    /// Everything up to here is in a committed group, or before all of them.
    committed: Seq,
    /// Groups are in their places as soon as they are committed.
    in_place: bool,
    /// It is not used any more.
    retired: bool,
    /// Somebody waits for the head to leave groups behind.
    hurry: bool,
    pause: Pause,
    planted: Planted,
}

impl Journal {
    pub(crate) fn new(head: Option<Head>, prepared: Option<Descriptor>) -> Self {
        let common = head.as_ref().map(|head| head.common.clone());
        let group = prepared.map(|descriptor| Group::found(descriptor, common));
        Self { heads: Heads::new(head), group, ..Self::default() }
    }

    /// The same, with groups that are in their places as soon as they are committed, or after it.
    pub(crate) fn in_place(self, in_place: bool) -> Self {
        let group = self.group.map(|group| group.in_place(in_place));
        Self { group, in_place, ..self }
    }

    #[cfg(feature = "mutations")]
    pub(crate) fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }

    // What it hears of the others.

    /// The volume begins to serve, or groups begin, with everything up to `progress` on the backing.
    pub(crate) fn begin(&mut self, map: &Map, progress: Seq, facts: Facts) {
        self.committed = progress;
        if self.planted.is(Mutation::CommonForgetsPrepared) && self.exists() {
            self.heads.forget_prepared();
            self.group = None;
        }
        self.count_open(map, self.boundary(), facts);
    }

    fn count_open(&mut self, map: &Map, after: Seq, facts: Facts) {
        let oldest = || Nanos(time_of(map, after, facts).saturating_sub(facts.wall_offset_ns));
        self.open.count(map, after, oldest);
    }

    /// A version comes into the log; `replaces` is the one that was current, if it is dirty.
    pub(crate) fn version_added(&mut self, now: Nanos, replaces: Option<Seq>) {
        if replaces.is_none_or(|seq| seq <= self.boundary()) {
            self.open.added(now);
        }
    }

    /// Somebody waits until groups have been left behind.
    pub(crate) fn hurry(&mut self) {
        self.hurry = true;
    }

    /// The log is to become void: from here on the backing has everything, and the journal is of no use.
    pub(crate) fn retire(&mut self) {
        self.retired = true;
    }

    /// It is tried at once, however often it has failed before: somebody asks for it.
    pub(crate) fn try_again(&mut self) {
        self.pause.try_again();
    }

    /// Whether it pauses because it has failed.
    pub(crate) fn is_paused(&mut self, now: Nanos) -> bool {
        self.pause.is_under_way(now)
    }

    // Groups.

    /// The open group, for the policy.
    pub(crate) fn open_group(&self, now: Nanos, pressed: bool, urgent: bool, points: &Points) -> OpenGroup {
        OpenGroup {
            blocks: self.open.blocks(),
            age_ms: self.open.since().map_or(0, |since| now.since(since) / 1_000_000),
            pressed: pressed || self.hurry,
            urgent,
            marked: points.is_marked(),
            flushed: points.next().is_some(),
        }
    }

    /// Whether a group may begin.
    pub(crate) fn may_start(&self, facts: Facts) -> bool {
        facts.journaled
            && !facts.leaving
            && self.claims(facts)
            && self.says_consistent()
            && !facts.settling
            && self.is_idle()
            && self.group.is_none()
    }

    /// What a group begins with that ends so; `is_lost` says what will never be readable.
    pub(crate) fn collect(
        &mut self,
        map: &Map,
        end: GroupEnd,
        points: &Points,
        facts: Facts,
        is_lost: impl Fn(&Map, SlotRef) -> bool,
    ) -> Collected {
        let Some(head) = self.heads.durable() else { return Collected::Nothing };
        let point = points.next().filter(|_| end == GroupEnd::AtPoint);
        let late = self.planted.is(Mutation::PointTakesLater);
        let upto = point.filter(|_| !late).map_or(facts.durable, |point| point.upto);
        if upto > facts.durable && !facts.latched {
            // It will soon be.
            return Collected::Nothing;
        }
        let at_point = point.is_some() && upto <= facts.durable;
        let durable = upto.min(facts.durable);
        let (room, whole) = (room(head), at_point && facts.keeps_points());
        let bytes = facts.settings.group_bytes;
        let most = match whole {
            true => GROUP_ENTRIES_MAX,
            false => (bytes / BLOCK_BYTES).clamp(1, GROUP_ENTRIES_MAX as u64 / 2) as usize,
        };
        let bounds = Bounds { after: self.committed, durable, room, most };
        let Found { upto, newest, all, full, lost } = look(map, bounds, is_lost, self.planted);
        let fits_empty = Descriptor::descriptor_bytes(0) <= room;
        let empty = newest.is_empty();
        let stranded = facts.latched && map.segments().dirty_after(durable).next().is_some();
        let ring_empty = self.is_empty();
        let choice = Choice { empty, all, full, lost, at_point, whole, fits_empty, ring_empty, stranded };
        match choice.verdict() {
            Verdict::Take => {
                let point = point.filter(|point| point.upto == upto || late).cloned();
                Collected::Stretch(Stretch { upto, newest, point })
            }
            Verdict::Wait { hurry, gives_up } => {
                if all && empty {
                    // What was counted has reached the backing on another way: a set of before, or a bypass in its place.
                    self.count_open(map, upto, facts);
                }
                self.hurry |= hurry;
                if gives_up { Collected::GivesUp } else { Collected::Nothing }
            }
        }
    }

    /// Begins a group: what is to be written. Its members are pinned.
    pub(crate) fn start(
        &mut self,
        map: &mut Map,
        stretch: Stretch,
        layout: &Layout,
        facts: Facts,
    ) -> Vec<DeviceOp> {
        let Stretch { upto, newest, point } = stretch;
        let Some(head) = self.heads.durable() else { return Vec::new() };
        let planted = self.planted;
        let (mut entries, mut members) = (Vec::with_capacity(newest.len()), Vec::with_capacity(newest.len()));
        for (block, slot) in newest {
            let current = map.lookup(block);
            let slot = current.filter(|_| planted.is(Mutation::JournalTakesCurrent)).unwrap_or(slot);
            let (s, seq) = (*map.segments().slot(slot), map.segments().seq(slot));
            let zero = s.kind() == SlotKind::Zero;
            entries.push(GroupEntry { block, seq, checksum: if zero { 0 } else { s.checksum() }, zero });
            if !zero {
                members.push(map.member(slot, layout));
            }
        }
        let group = head.committed.group + 1;
        let time_ns = time_of(map, upto, facts);
        let mut moment = Moment { group, seq: upto, time_ns, ..Moment::default() };
        if planted.is(Mutation::PointOutlivesGroup) {
            (moment.point, moment.label) = (head.committed.point, head.committed.label.clone());
        }
        if let Some(point) = point.as_ref().filter(|_| !planted.is(Mutation::PointForgotten)) {
            (moment.time_ns, moment.point, moment.label) = (point.time_ns, group, point.label.clone());
        }
        let (cache_id, generation, position) = (layout.cache_id, layout.generation, head.head);
        let descriptor = Descriptor { cache_id, generation, position, moment, entries };
        members.iter().for_each(|m| map.segments_mut().pin(m.slot.segment()));
        let since = self.open.since().unwrap_or(facts.now);
        let bytes = descriptor.encode();
        let group = Group::new(descriptor, members, point, since, facts.losses);
        self.group = Some(group.in_place(self.in_place));
        self.count_open(map, upto, facts);
        self.write(position, vec![bytes])
    }

    /// Writes to the ring.
    fn write(&mut self, position: u64, bufs: Vec<Buf>) -> Vec<DeviceOp> {
        let Some((head, group)) = self.heads.durable().zip(self.group.as_mut()) else { return Vec::new() };
        let write = |(offset, bufs)| DeviceOp::Write { offset, bufs, durable: false };
        let ops: Vec<DeviceOp> = stretches(head, position, bufs).map(write).collect();
        group.writes(ops.len());
        ops
    }

    /// Moves the group under way forward by one step; `None` if it can go no further now.
    pub(crate) fn go_on(&mut self, map: &mut Map, facts: Facts) -> Option<Step> {
        // A policy without groups takes it from the log.
        let claims = self.claims(facts) && facts.journaled;
        let committing = self.heads.is_committing();
        let group = self.group.as_mut()?;
        group.look(claims, facts.losses);
        if group.is_over() && !committing {
            // No replay may take it for prepared any more.
            let told_of = group.may_be_told_of() && self.heads.tells_of_prepared();
            return (!told_of).then(|| self.abandon(map, facts));
        }
        if group.wants_places() {
            return Some(Step::Hold(places(group.entries())));
        }
        Some(match group.next()? {
            Next::Gather(first, members) => Step::Gather(first, members),
            Next::Flush => Step::Flush,
        })
    }

    /// The group will not be committed; its blocks are collected again.
    fn abandon(&mut self, map: &mut Map, facts: Facts) -> Step {
        let mut held = Vec::new();
        if let Some(mut group) = self.group.take() {
            group.unpin(map.segments_mut());
            self.count_open(map, self.committed, facts);
            if group.holds_places() {
                held = places(group.entries());
            }
        }
        Step::Gone(held)
    }

    /// The places of the group under way are held for it.
    pub(crate) fn hold_places(&mut self) {
        self.group.iter_mut().for_each(Group::hold_places);
    }

    /// Data blocks of the group from `first` on are gathered: what is to be written.
    pub(crate) fn gathered(&mut self, first: usize, bufs: Vec<Buf>) -> Vec<DeviceOp> {
        let Some(group) = &mut self.group else { return Vec::new() };
        let position = group.gathered(first);
        self.write(position, bufs)
    }

    /// Some could not be.
    pub(crate) fn lacks(&mut self) {
        self.group.iter_mut().for_each(Group::lacks);
    }

    /// A write to the ring has ended; true if that counts as a failure of the journal.
    pub(crate) fn group_written(&mut self, good: bool, now: Nanos) -> bool {
        let Some(group) = &mut self.group else { return false };
        group.written(good);
        if !good {
            self.pause.failed(now);
        }
        !good
    }

    /// The group's flush has ended, when the backing had so many losses; true if that counts as a failure of the journal.
    pub(crate) fn group_flushed(&mut self, good: bool, losses: u64, now: Nanos) -> bool {
        let Some(group) = &mut self.group else { return false };
        group.flushed(good, losses);
        if self.planted.is(Mutation::JournalDestagesUncommitted) {
            self.committed = group.upto();
        }
        if !good {
            self.pause.failed(now);
        }
        !good
    }

    /// The point of the group under way is told before it is committed: [`Mutation::PointAnsweredEarly`].
    pub(crate) fn tell_early(&self, points: &mut Points) -> Vec<Told> {
        let early = self.group.as_ref().filter(|_| self.planted.is(Mutation::PointAnsweredEarly));
        let point = early.and_then(|group| Some((group.point()?, group.moment().group)));
        point.map_or(Vec::new(), |(point, number)| points.committed(point, number))
    }

    // The head.

    /// Writes the head if that is due.
    pub(crate) fn head_step(
        &mut self,
        map: &Map,
        points: &Points,
        facts: Facts,
        volume_bytes: u64,
    ) -> HeadStep {
        if self.heads.is_writing() {
            return HeadStep::Nothing;
        }
        let Some(wanted) = self.with_truth(map, points, facts, |heads, truth| heads.wanted(truth)) else {
            return HeadStep::Durable;
        };
        let hurried = self.hurry || facts.leaving || facts.settling;
        let write = self.heads.write(wanted, facts.now, hurried, points.is_renouncing(), self.planted);
        let Some(write) = write else { return HeadStep::Nothing };
        let group = self.group.as_ref().filter(|group| group.holds_places() && self.heads.is_committing());
        HeadStep::Write(match group.zip(self.heads.durable()) {
            Some((group, head)) => commit(write, group.descriptor(), head, volume_bytes),
            None => write,
        })
    }

    /// The head on its way is written, or could not be; `None` if it could not.
    pub(crate) fn head_written(
        &mut self,
        good: bool,
        map: &mut Map,
        points: &mut Points,
        facts: Facts,
    ) -> Option<Written> {
        let head = self.heads.ended()?;
        points.told(&head, good);
        if !good {
            self.heads.failed(&head);
            self.pause.failed(facts.now);
            return None;
        }
        self.pause.worked();
        self.ring.leave_behind(head.tail);
        let mut written =
            Written { committed: None, in_place: None, cut: false, told: Vec::new(), goes: false };
        let commits = self.heads.durable().is_some_and(|before| commits(&head, before));
        if commits && let Some(mut group) = self.group.take() {
            group.unpin(map.segments_mut());
            written.in_place = group.holds_places().then(|| places(group.entries()));
            let (Descriptor { position, moment, entries, .. }, point) = group.into_parts();
            self.committed = moment.seq;
            written.cut = point.is_none() && facts.keeps_points();
            if let Some(point) = &point {
                written.told = points.committed(point, moment.group);
            }
            let entries = Arc::new(entries);
            written.committed = Some(entries.clone());
            if written.in_place.is_none() {
                self.ring.push(InRing { position, end: head.head, moment, entries });
            }
        }
        if head.committed.point == 0 {
            self.ring.forget_points();
        }
        self.committed = self.committed.max(head.committed.seq);
        let begins = head.consistent && !self.heads.durable_says_consistent();
        let prepares = !commits && head.has_prepared();
        self.heads.written(head);
        if prepares {
            written.told.extend(self.prepared(map, points));
        }
        if begins {
            // What was counted before has gone in any order.
            self.count_open(map, self.committed, facts);
        }
        if self.ring.is_empty() {
            self.hurry = false;
        }
        written.goes = self.group.as_ref().is_some_and(Group::is_given_up);
        Some(written)
    }

    /// The head on the medium says that the group under way is prepared.
    fn prepared(&mut self, map: &mut Map, points: &mut Points) -> Option<Told> {
        let group = self.group.as_mut()?;
        if !group.prepared(map.segments_mut()) {
            return None;
        }
        if self.planted.is(Mutation::CommonDestagesPrepared) {
            self.committed = group.upto();
        }
        points.prepared(group.point()?)
    }
}

#[cfg(test)]
mod tests;
