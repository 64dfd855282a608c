//! The policy `journaled`: the backing moves from group to group, never between (P4; FAST'13, section 3.2).
//!
//! A group is a stretch of the log, of which the newest version of each block goes to the journal on the backing's side,
//! wholly, before any of it is written in place. The log is in the order of acknowledgement; so whatever the log holds up to
//! some record is a state that the promise allows, and a group may end behind any record that is durable.
//!
//! ```text
//!  log:  ── on the backing ──┤ committed: in the journal, wholly ├── group under way ──┤ open group ──►
//!                         progress                           committed                last record
//!
//!  a group: blocks gathered ─► written to the ring ─► flushed ─► head: committed ─► destaged in place, as a set of `order`
//!                                                                                    ─► head: left behind
//! ```
//!
//! - Several committed groups may wait to be destaged; of a block that lies in several the newest goes. What a crash leaves
//!   of that is done again by [`forebay_format::replay`], before anything else is done to the backing, with or without
//!   the cache.
//! - So nothing newer than a group may be written in place over a block of it before the head durably leaves the group
//!   behind: a bypass waits for that, and a change of policy, too.
//! - Whatever is done in any order (after data was lost, or before the backing has caught up with a new policy) is done only
//!   when the head durably says that the backing is not consistent, and no group is left to be done again.

use std::collections::{BTreeMap, VecDeque};

use forebay_block::{BLOCK_BYTES, BlockNo, Buf, DeviceOp, DeviceResult, Nanos, Seq};
use forebay_format::common::Common;
use forebay_format::journal::{GROUP_ENTRIES_MAX, Group as Descriptor, GroupEntry, Head, Moment};
use forebay_policy::{GroupEnd, GroupEnds, OpenGroup};

use crate::engine::{Engine, IoOwner};
use crate::groups::points::{Point, forget};
use crate::interface::{Class, Role};
use crate::locks::BlockRange;
use crate::map::Map;
use crate::map::member::{Bad, Member};
use crate::map::segments::{SlotKind, SlotRef, UNREADABLE};
use crate::mutation::{Mutation, Planted};
use crate::reading::gathers::Wanted;
use crate::wakes::Change;

/// Data blocks that are gathered and written together (256 KiB).
const PIECE_BLOCKS: usize = 64;
/// Pieces of a group on their way at once.
const PIECES_MAX: usize = 4;
/// First and longest pause after the journal has failed, in milliseconds.
const BACKOFF_MS: (u64, u64) = (100, 5000);
/// How often the head is brought up to date where nothing else does: under `ordered`, and when a group was destaged.
const REFRESH_MS: u64 = 1000;

/// A group whose blocks a replay could write.
struct InRing {
    /// Position of its first byte.
    position: u64,
    /// Position behind it.
    end: u64,
    moment: Moment,
    /// In ascending order of their blocks.
    entries: Vec<GroupEntry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Writing,
    Flushing,
    /// The head is to say that it is prepared.
    Preparing,
    /// The head says so; whether it is committed is decided by others ([`crate::groups::shared_points`]).
    Prepared,
    Committing,
}

/// The group under way.
struct Group {
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
    /// [`Flushes::losses`](crate::backing::flushes::Flushes::losses) when it began: a flush that failed since may have lost some of it.
    losses: u64,
    /// It will not be committed.
    given_up: bool,
}

impl Group {
    /// It ends at a point that other volumes share.
    fn is_common(&self) -> bool {
        self.point.as_ref().is_some_and(|point| point.common.is_some())
    }
}

/// State of the journal.
#[derive(Default)]
pub(crate) struct Journal {
    /// The last head that is known to be on the medium; `None` if the volume has no journal.
    durable: Option<Head>,
    /// The head on its way.
    writing: Option<Head>,
    /// Writing the head has failed: what is on the medium is not known, and has to be written again.
    uncertain: bool,
    /// What is on the medium may speak of a group that is prepared although writing that has failed.
    may_tell: bool,
    ring: VecDeque<InRing>,
    group: Option<Group>,
    /// It is not used any more.
    retired: bool,
    /// Everything up to here is in a committed group, or before all of them.
    committed: Seq,
    /// Blocks that the open group would have, about.
    open_blocks: u64,
    /// When the first of them came.
    open_since: Option<Nanos>,
    /// Somebody waits for the head to leave groups behind.
    hurry: bool,
    /// When the head is brought up to date.
    refresh_at: Option<Nanos>,
    paused_until: Option<Nanos>,
    failures: u32,
}

impl Journal {
    pub(crate) fn new(head: Option<Head>, prepared: Option<Descriptor>) -> Self {
        let common = head.as_ref().map(|head| head.common.clone());
        let group = prepared.map(|descriptor| Group {
            point: Some(Point::found(&descriptor.moment, common)),
            descriptor,
            members: Vec::new(),
            phase: Phase::Prepared,
            since: Nanos(0),
            asked: 0,
            outstanding: 0,
            losses: 0,
            given_up: false,
        });
        Self { durable: head, group, ..Self::default() }
    }

    /// There is one.
    pub(crate) fn exists(&self) -> bool {
        self.durable.is_some()
    }

    /// The newest record that the backing durably has, with a replay or without one, if it was left consistent.
    pub(crate) fn found(&self) -> Option<Seq> {
        self.durable.as_ref().filter(|head| head.consistent).map(|head| head.committed.seq)
    }

    /// As [`Journal::found`], with a group that is prepared.
    pub(crate) fn found_prepared(&self) -> Option<Seq> {
        let prepared = self.group.as_ref().map(|group| group.descriptor.moment.seq);
        self.found().map(|found| prepared.map_or(found, |prepared| prepared.max(found)))
    }

    /// Everything in records up to this one is in the journal or on the backing.
    pub(crate) fn committed(&self) -> Seq {
        self.committed
    }

    /// Nothing of the journal is on its way.
    pub(crate) fn is_idle(&self) -> bool {
        (self.group.is_none() || self.is_prepared()) && self.writing.is_none()
    }

    /// No group is left to be done again.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_idle() && self.group.is_none() && self.ring.is_empty()
    }

    /// A group rests in the journal until others decide.
    fn is_prepared(&self) -> bool {
        self.group.as_ref().is_some_and(|group| group.phase == Phase::Prepared && !group.given_up)
    }

    /// Where the group under way ends, or the last one has ended.
    pub(crate) fn boundary(&self) -> Seq {
        self.group.as_ref().map_or(self.committed, |group| group.descriptor.moment.seq)
    }

    /// The common points that are decided and prepared, durably; 0 for none.
    pub(crate) fn common_state(&self) -> (u64, u64) {
        let head = self.durable.as_ref().filter(|head| head.consistent);
        head.map_or((0, 0), |head| (head.common.decided, head.common.prepared))
    }

    /// A group for a common point is not prepared any more if it is not yet.
    pub(crate) fn common_overtaken(&mut self) {
        let begun = |group: &&mut Group| matches!(group.phase, Phase::Writing | Phase::Flushing);
        if let Some(group) = self.group.as_mut().filter(|group| group.is_common()).filter(begun) {
            group.given_up = true;
        }
    }

    /// Nothing is on its way that changes what is decided or prepared.
    pub(crate) fn common_is_at_rest(&self) -> bool {
        let moves = |group: &Group| group.is_common() && !self.is_prepared();
        self.writing.is_none() && !self.uncertain && !self.group.as_ref().is_some_and(moves)
    }

    /// The prepared group is committed from now on, or forgotten; false if none ends at this point.
    pub(crate) fn common_settles(&mut self, point: u64, keep: bool) -> bool {
        let prepared = self.is_prepared() && self.common_state().1 == point;
        let Some(group) = self.group.as_mut().filter(|_| prepared) else { return false };
        match keep {
            true => group.phase = Phase::Committing,
            false => group.given_up = true,
        }
        true
    }

    /// What was to become of the point has durably become of it.
    pub(crate) fn common_is_settled(&self, point: u64) -> bool {
        self.common_state().1 != point && self.common_is_at_rest()
    }

    /// The prepared group is committed, and ends at no common point.
    pub(crate) fn common_goes_alone(&mut self) {
        if self.is_prepared()
            && let Some(group) = &mut self.group
        {
            (group.point, group.phase) = (None, Phase::Committing);
            forget(&mut group.descriptor.moment);
        }
    }

    /// What is on the medium says that the backing is consistent.
    pub(crate) fn says_consistent(&self) -> bool {
        self.durable.as_ref().is_some_and(|head| head.consistent) && !self.uncertain
    }

    /// As [`Journal::says_consistent`], as far as is known.
    pub(crate) fn durable_says_consistent(&self) -> bool {
        self.durable.as_ref().is_some_and(|head| head.consistent)
    }

    /// The point that a head names which may be on the medium, or 0.
    pub(crate) fn point(&self) -> u64 {
        let heads = self.durable.iter().chain(&self.writing).filter(|head| head.consistent);
        heads.map(|head| head.committed.point).max().unwrap_or_default()
    }

    /// The point at which the group under way ends.
    pub(crate) fn point_under_way(&self) -> Option<&Point> {
        self.group.as_ref().and_then(|group| group.point.as_ref())
    }

    /// The head on its way says that the group under way is committed.
    fn is_committing(&self) -> bool {
        let heads = self.writing.as_ref().zip(self.durable.as_ref());
        heads.is_some_and(|(writing, durable)| {
            commits(writing, durable) || writing.prepared > durable.prepared
        })
    }

    /// A head that may be on the medium speaks of a group that is prepared.
    pub(crate) fn tells_of_prepared(&self) -> bool {
        self.may_tell || self.durable.iter().chain(&self.writing).any(Head::has_prepared)
    }

    /// Groups are under way or committed that have not been destaged.
    pub(crate) fn groups(&self) -> usize {
        self.ring.len() + usize::from(self.group.is_some())
    }

    /// Somebody waits until groups have been left behind.
    pub(crate) fn hurry(&mut self) {
        self.hurry = true;
    }

    /// A committed group that is not left behind has a newer version of the block than this one.
    pub(crate) fn replaces(&self, map: &Map, block: BlockNo, slot: SlotRef, planted: Planted) -> bool {
        let seq = map.segments().seq(slot);
        let Some(current) = map.lookup(block).filter(|current| *current != slot) else {
            return false;
        };
        let newer = |group: &InRing| {
            let n = group.entries.binary_search_by_key(&block, |entry| entry.block);
            n.is_ok_and(|n| group.entries.get(n).is_some_and(|entry| entry.seq > seq))
        };
        let within = |group: &&InRing| group.moment.seq >= seq;
        planted.is(Mutation::JournalReplacesEarly)
            || map.segments().seq(current) <= self.committed
            || self.ring.iter().rev().take_while(within).any(newer)
    }

    /// A version comes into the log; `replaces` is the one that was current, if it is dirty.
    pub(crate) fn version_added(&mut self, now: Nanos, replaces: Option<Seq>) {
        if replaces.is_none_or(|seq| seq <= self.boundary()) {
            self.open_blocks += 1;
            self.open_since.get_or_insert(now);
        }
    }
}

/// The head commits a group that the other has not.
fn commits(head: &Head, before: &Head) -> bool {
    head.head != before.head
}

impl Engine {
    /// The volume begins to serve, with everything up to `progress` on the backing.
    pub(crate) fn journal_begin(&mut self, progress: Seq) {
        self.journal.committed = progress;
        if self.mutant(Mutation::CommonForgetsPrepared)
            && let Some(head) = &mut self.journal.durable
        {
            head.forget_prepared();
            self.journal.group = None;
        }
        self.journal_count_open(self.journal.boundary());
    }

    fn journal_count_open(&mut self, after: Seq) {
        let open = self.map.segments().dirty_after(after).count() as u64;
        self.journal.open_blocks = open;
        // What is left may have waited for long: its age is that of its oldest write, not that of the group's beginning.
        let oldest = || Nanos(self.time_of(after).saturating_sub(self.wall_offset_ns));
        self.journal.open_since = (open > 0).then(oldest);
    }

    /// A group that a replay could write again holds one of the blocks.
    pub(crate) fn journal_holds(&self, range: BlockRange) -> bool {
        let within = |block: &BlockNo| range.contains(*block);
        let under_way = self.journal.group.iter().flat_map(|g| &g.descriptor.entries);
        let held = self.journal.ring.iter().flat_map(|g| &g.entries).chain(under_way);
        let held = held.map(|entry| &entry.block).any(within);
        held && !self.mutant(Mutation::JournalForgetsHeld)
    }

    /// Byte offset in the journal where a committed group has this version of a block, which the cache may have lost since.
    pub(crate) fn journal_copy(&self, block: BlockNo, seq: Seq) -> Option<u64> {
        let head = self.journal.durable.as_ref()?;
        self.journal.ring.iter().find_map(|group| {
            let n = group.entries.binary_search_by_key(&block, |entry| entry.block).ok()?;
            let (before, from) = group.entries.split_at(n);
            from.first().filter(|entry| entry.seq == seq && !entry.zero)?;
            let before = before.iter().filter(|entry| !entry.zero).count() as u64;
            let descriptor = Descriptor::descriptor_bytes(group.entries.len());
            Some(head.offset_of(group.position + descriptor + before * BLOCK_BYTES))
        })
    }

    /// Whether no replay would change the backing, and nobody would take it for consistent. The head follows what the order
    /// claims by itself.
    pub(crate) fn journal_is_renounced(&self) -> bool {
        if !self.journal.exists() {
            return true;
        }
        let says = self.journal.durable.as_ref().is_some_and(|head| head.consistent);
        !says && !self.journal.uncertain && self.journal.is_empty()
            || self.mutant(Mutation::JournalForgetsToRenounce)
    }

    /// The log is to become void: from here on the backing has everything, and the journal is of no use. Whether it is empty.
    pub(crate) fn journal_retires(&mut self) -> bool {
        self.journal.retired = true;
        let renounced = self.journal_is_renounced();
        if !renounced {
            self.journal_step();
        }
        renounced
    }

    /// Whether it may be said that the backing is consistent.
    pub(crate) fn journal_claims(&self) -> bool {
        self.order.is_consistent() && !self.journal.retired
    }

    pub(crate) fn journal_step(&mut self) {
        if !self.journal.exists() {
            return;
        }
        if self.journal.paused_until.is_some_and(|until| self.now >= until) {
            self.journal.paused_until = None;
        }
        self.common_step();
        self.points_step();
        if self.journal.paused_until.is_none() {
            // A group that is given up makes place for the next one.
            self.group_go_on();
            self.group_start_if_due();
            self.group_go_on();
            self.head_write_if_due();
        }
        self.common_tell();
    }

    // Groups.

    fn group_start_if_due(&mut self) {
        let may = self.order.is_journaled()
            && !self.order.is_leaving()
            && self.journal_claims()
            && self.journal.says_consistent()
            && !self.commands.settling()
            && self.journal.is_idle()
            && self.journal.group.is_none();
        let end = self.group_end();
        if !may || end == GroupEnd::Wait {
            return;
        }
        let durable = self.log.durable_upto();
        self.log_want_durable(self.log.written_upto());
        let point = self.points.next().filter(|_| end == GroupEnd::AtPoint).cloned();
        let late = self.mutant(Mutation::PointTakesLater);
        let upto = point.as_ref().filter(|_| !late).map_or(durable, |point| point.upto);
        if upto > durable && !self.failure.latched() {
            // It will soon be.
            return;
        }
        let at_point = point.is_some() && upto <= durable;
        if let Some((upto, newest)) = self.group_collect(upto.min(durable), at_point) {
            self.group_start(upto, newest, point.filter(|point| point.upto == upto || late));
        }
    }

    fn group_end(&self) -> GroupEnd {
        let open = self.journal_open();
        let shared = self.settings.group_ends == GroupEnds::Common;
        OpenGroup { urgent: open.urgent && (!shared || self.common_is_impatient()), ..open }
            .end(&self.settings)
    }

    pub(crate) fn journal_open(&self) -> OpenGroup {
        OpenGroup {
            blocks: self.journal.open_blocks,
            age_ms: self.journal.open_since.map_or(0, |since| self.now.since(since) / 1_000_000),
            pressed: self.destage_is_pressed() || self.journal.hurry,
            urgent: self.destage_is_urgent(),
            marked: self.points.is_marked(),
            flushed: self.points.next().is_some(),
        }
    }

    /// The newest version of each block in the stretch that the next group covers, and where that ends. A stretch that holds
    /// something lost or unreadable waits. Where the backing moves from point to point, one that ends `at_point` is taken whole,
    /// whatever its size, if it can be had.
    fn group_collect(&mut self, durable: Seq, at_point: bool) -> Option<(Seq, BTreeMap<BlockNo, SlotRef>)> {
        let head = self.journal.durable.as_ref()?;
        let room = head.ring_bytes - (head.head - head.tail);
        let whole = at_point && self.points_are_kept();
        let most = match whole {
            true => GROUP_ENTRIES_MAX,
            false => {
                (self.settings.group_bytes / BLOCK_BYTES).clamp(1, GROUP_ENTRIES_MAX as u64 / 2) as usize
            }
        };
        let versions = self.map.segments().dirty_after(self.journal.committed);
        let mut versions = versions.take_while(|(seq, _)| *seq <= durable).peekable();
        let (mut newest, mut upto) = (BTreeMap::new(), self.journal.committed);
        let (mut full, mut lost, mut data) = (false, false, 0);
        let all = loop {
            let Some((seq, _)) = versions.peek().copied() else { break true };
            let record: Vec<SlotRef> =
                std::iter::from_fn(|| versions.next_if(|(s, _)| *s == seq)).map(|(_, slot)| slot).collect();
            let bad = |slot: &&SlotRef| {
                let s = self.map.segments().slot(**slot);
                s.kind() == SlotKind::Poison || s.has(UNREADABLE)
            };
            if let Some(slot) = record.iter().find(bad) {
                let s = self.map.segments().slot(*slot);
                lost = s.kind() == SlotKind::Poison || self.destage.is_corrupt(s.block(), *slot);
                break false;
            }
            let slots = || record.iter().map(|slot| self.map.segments().slot(*slot));
            let entries = newest.len() + slots().filter(|s| !newest.contains_key(&s.block())).count();
            data += slots().filter(|s| s.kind() == SlotKind::Data).count() as u64;
            let bytes = Descriptor::descriptor_bytes(entries) + data * BLOCK_BYTES;
            full = bytes > room || entries > GROUP_ENTRIES_MAX;
            if self.planted.is(Mutation::JournalCutsRecords) && record.len() > 1 && !full {
                newest.insert(self.map.segments().slot(record[0]).block(), record[0]);
                upto = Seq(seq.0 - 1);
                break false;
            }
            if full || newest.len() >= most {
                break false;
            }
            newest.extend(record.iter().map(|slot| (self.map.segments().slot(*slot).block(), *slot)));
            upto = seq;
        };
        drop(versions);
        if all {
            upto = durable.max(upto);
        }
        let ends = at_point && all;
        if ends && newest.is_empty() && Descriptor::descriptor_bytes(0) <= room {
            return Some((upto, newest));
        }
        if all && newest.is_empty() {
            // What was counted has reached the backing on another way: a set of before, or a bypass in its place.
            self.journal_count_open(upto);
        }
        full |= ends && newest.is_empty();
        // Cut is only what the empty ring does not hold, and what comes before something lost.
        let cut = match full {
            true => self.journal.is_empty(),
            false => lost,
        };
        if newest.is_empty() || whole && !all && !cut {
            // Room comes when the head leaves groups behind. A record that would never fit goes in any order.
            let too_large = full && self.journal.is_empty();
            self.journal.hurry |= full;
            // What a failing cache has not made durable may be gone at the next start: it is saved, in any order.
            let stranded =
                self.failure.latched() && !full && self.map.segments().dirty_after(durable).next().is_some();
            if lost || stranded || too_large {
                self.order_catch_up();
            }
            return None;
        }
        Some((upto, newest))
    }

    fn group_start(&mut self, upto: Seq, newest: BTreeMap<BlockNo, SlotRef>, point: Option<Point>) {
        let Some(head) = self.journal.durable.as_ref() else { return };
        let (mut entries, mut members) = (Vec::with_capacity(newest.len()), Vec::with_capacity(newest.len()));
        for (block, slot) in newest {
            let current = self.map.lookup(block).filter(|_| self.mutant(Mutation::JournalTakesCurrent));
            let slot = current.unwrap_or(slot);
            let (s, seq) = (*self.map.segments().slot(slot), self.map.segments().seq(slot));
            let zero = s.kind() == SlotKind::Zero;
            entries.push(GroupEntry { block, seq, checksum: if zero { 0 } else { s.checksum() }, zero });
            if !zero {
                members.push(self.member(slot));
            }
        }
        let group = head.committed.group + 1;
        let mut moment = Moment { group, seq: upto, time_ns: self.time_of(upto), ..Moment::default() };
        if self.mutant(Mutation::PointOutlivesGroup) {
            (moment.point, moment.label) = (head.committed.point, head.committed.label.clone());
        }
        if let Some(point) = point.as_ref().filter(|_| !self.mutant(Mutation::PointForgotten)) {
            (moment.time_ns, moment.point, moment.label) = (point.time_ns, group, point.label.clone());
        }
        let descriptor = Descriptor {
            cache_id: self.layout.cache_id,
            generation: self.layout.generation,
            position: head.head,
            moment,
            entries,
        };
        members.iter().for_each(|m| self.map.segments_mut().pin(m.slot.segment()));
        let (losses, since) = (self.flushes.losses(), self.journal.open_since.unwrap_or(self.now));
        let (asked, outstanding, given_up) = (0, 0, false);
        let bytes = descriptor.encode();
        let at = descriptor.position;
        self.journal.group = Some(Group {
            descriptor,
            members,
            point,
            phase: Phase::Writing,
            since,
            asked,
            outstanding,
            losses,
            given_up,
        });
        self.journal_count_open(upto);
        self.ring_write(at, vec![bytes]);
    }

    /// Wall-clock time before which everything acknowledged is in records up to `upto`, or on the backing.
    fn time_of(&self, upto: Seq) -> u64 {
        let later = self.map.segments().dirty_after(upto).next();
        later.map_or(self.wall_ns(), |(seq, slot)| self.map.time_of_record(seq, slot.segment()))
    }

    /// Writes to the ring, in two operations where it begins anew.
    fn ring_write(&mut self, position: u64, bufs: Vec<Buf>) {
        let Some(head) = self.journal.durable.as_ref() else { return };
        let len: u64 = bufs.iter().map(|b| b.len() as u64).sum();
        let first = len.min(head.run_of(position));
        let (offset, again) = (head.offset_of(position), head.offset_of(position + first));
        let (mut front, mut back, mut left) = (Vec::new(), Vec::new(), first as usize);
        for buf in bufs {
            let n = buf.len().min(left);
            left -= n;
            if n > 0 {
                front.push(buf.slice(0, n));
            }
            if n < buf.len() {
                back.push(buf.slice(n, buf.len() - n));
            }
        }
        let parts = [(offset, front), (again, back)];
        for (offset, bufs) in parts.into_iter().filter(|(_, bufs)| !bufs.is_empty()) {
            if let Some(group) = &mut self.journal.group {
                group.outstanding += 1;
            }
            let op = DeviceOp::Write { offset, bufs, durable: false };
            self.io(Role::Journal, op, Class::Background, IoOwner::GroupWrite);
        }
    }

    /// Moves the group under way forward.
    fn group_go_on(&mut self) {
        loop {
            let (losses, committing) = (self.flushes.losses(), self.journal.is_committing());
            // A policy without groups takes it from the log.
            let claims = self.journal_claims() && self.order.is_journaled();
            let Some(group) = &mut self.journal.group else { return };
            let flushed = matches!(group.phase, Phase::Preparing | Phase::Prepared | Phase::Committing);
            group.given_up |= !claims || group.losses != losses && !flushed;
            if group.given_up && group.outstanding == 0 && !committing {
                // No replay may take it for prepared any more.
                if !(flushed && group.is_common() && self.journal.tells_of_prepared()) {
                    self.group_abandon();
                }
                return;
            }
            let more = group.asked < group.members.len() && group.outstanding < PIECES_MAX;
            match group.phase {
                Phase::Writing if more && !group.given_up => {
                    let first = group.asked;
                    let end = (first + PIECE_BLOCKS).min(group.members.len());
                    (group.asked, group.outstanding) = (end, group.outstanding + 1);
                    let members = group.members[first..end].to_vec();
                    self.gather(Wanted::Group(first), members);
                }
                Phase::Writing if group.outstanding == 0 => {
                    (group.phase, group.outstanding) = (Phase::Flushing, 1);
                    if self.planted.is(Mutation::JournalSkipsFlush) {
                        return self.group_flush_done(Ok(None));
                    }
                    let role = match self.planted.is(Mutation::JournalFlushesBacking) {
                        true => Role::Backing,
                        false => Role::Journal,
                    };
                    return self.io(role, DeviceOp::Flush, Class::Background, IoOwner::GroupFlush);
                }
                _ => return,
            }
        }
    }

    /// The group will not be committed; its blocks are collected again.
    fn group_abandon(&mut self) {
        if let Some(group) = self.journal.group.take() {
            group.members.iter().for_each(|m| self.map.segments_mut().unpin(m.slot.segment()));
            self.journal_count_open(self.journal.committed);
            // What waited until nothing is left of it may go on.
            self.wakes.raise(Change::Groups { awaited: self.order.bypass_waits() });
        }
    }

    pub(crate) fn group_gathered(&mut self, first: usize, result: Result<Vec<Buf>, Vec<Bad>>) {
        let Some(group) = &mut self.journal.group else { return };
        group.outstanding -= 1;
        match result {
            Ok(bufs) => {
                let descriptor = Descriptor::descriptor_bytes(group.descriptor.entries.len());
                let at = group.descriptor.position + descriptor + first as u64 * BLOCK_BYTES;
                self.ring_write(at, bufs);
            }
            Err(bad) => {
                group.given_up = true;
                self.destage_unreadable(&bad);
            }
        }
    }

    pub(crate) fn group_write_done(&mut self, result: DeviceResult) {
        let Some(group) = &mut self.journal.group else { return };
        group.outstanding -= 1;
        if result.is_err() {
            group.given_up = true;
            self.journal_failed();
        }
    }

    pub(crate) fn group_flush_done(&mut self, result: DeviceResult) {
        let losses = self.flushes.losses();
        let Some(group) = &mut self.journal.group else { return };
        group.outstanding = 0;
        match result {
            Ok(_) if group.losses == losses && !group.given_up => {
                group.phase = if group.is_common() { Phase::Preparing } else { Phase::Committing };
            }
            Ok(_) => group.given_up = true,
            Err(error) => {
                group.given_up = true;
                // The journal may lie on the backing's own device.
                self.backing_flush_failed(&error);
                self.journal_failed();
            }
        }
        if self.mutant(Mutation::PointAnsweredEarly)
            && let Some(group) = &self.journal.group
            && let Some(point) = group.point.clone()
        {
            self.point_committed(&point, group.descriptor.moment.group);
        }
        if self.mutant(Mutation::JournalDestagesUncommitted)
            && let Some(group) = &self.journal.group
        {
            self.journal.committed = group.descriptor.moment.seq;
            self.wakes.raise(Change::Plan);
        }
    }

    fn journal_failed(&mut self) {
        self.figures.backing_errors += 1;
        if self.journal.paused_until.is_none() {
            let pause = BACKOFF_MS.0 << self.journal.failures.min(10);
            self.journal.failures += 1;
            self.journal.paused_until = Some(self.now.plus_ms(pause.min(BACKOFF_MS.1)));
        }
    }

    /// Attempts in a row that the journal has failed.
    pub(crate) fn journal_failures(&self) -> u32 {
        self.journal.failures
    }

    /// What is not committed: blocks, about, and the time before which everything is; `None` if destaging does not follow
    /// groups.
    pub(crate) fn journal_missing(&self) -> Option<(u64, Option<u64>)> {
        if self.mutant(Mutation::StalenessUntold) {
            return Some((0, None));
        }
        if !self.order.is_journaled() || !self.journal.says_consistent() {
            return None;
        }
        let under_way = self.journal.group.as_ref().map_or(0, |g| g.descriptor.entries.len() as u64);
        let blocks = self.journal.open_blocks + under_way;
        let oldest = self.journal.group.as_ref().map(|g| g.since).or(self.journal.open_since);
        Some((blocks, oldest.filter(|_| blocks > 0).map(|at| self.wall_offset_ns.saturating_add(at.0))))
    }

    pub(crate) fn journal_try_again(&mut self) {
        self.journal.failures = 0;
        self.journal.paused_until = None;
    }

    /// Nothing of the journal is on its way, and the head says how far the backing has come, or cannot be told.
    pub(crate) fn journal_is_settled(&self) -> bool {
        let j = &self.journal;
        let told = || {
            let heads = self.head_wanted().zip(j.durable.as_ref());
            heads.is_none_or(|(wanted, durable)| {
                (wanted.consistent, wanted.tail, wanted.committed.seq)
                    == (durable.consistent, durable.tail, durable.committed.seq)
            })
        };
        j.is_idle() && (j.failures > 0 || told())
    }

    // The head.

    /// What the head is to say now.
    fn head_wanted(&self) -> Option<Head> {
        let durable = self.journal.durable.as_ref()?;
        let mut head =
            Head { update: durable.update + 1, generation: self.layout.generation, ..durable.clone() };
        if !self.journal_claims() {
            // Nothing is to be done again: the log has it all.
            head.consistent = false;
            head.tail = head.head;
            head.common.decided = 0;
            head.forget_prepared();
            (head.applied.seq, head.committed.seq) = (Seq(0), Seq(0));
            return Some(head);
        }
        let progress = self.order.progress().unwrap_or_default();
        let begins = !head.consistent;
        if begins || !self.order.is_journaled() && self.journal.ring.is_empty() {
            // Of what is not durable in the log the next start knows nothing.
            let seq = match begins {
                true if progress > self.log.durable_upto() => return None,
                true => progress,
                false => {
                    let last = self.log.durable_upto();
                    let recorded = match self.failure.latched() {
                        true => progress.min(last),
                        false => self.log.durable_clean_upto(),
                    };
                    recorded.max(head.committed.seq)
                }
            };
            let group = head.committed.group;
            let moment = Moment { group, seq, time_ns: self.time_of(seq), ..Moment::default() };
            (head.applied, head.committed) = (moment.clone(), moment);
            head.consistent = true;
            head.common.decided = 0;
            head.forget_prepared();
            return Some(head);
        }
        for group in self.journal.ring.iter().take_while(|g| g.moment.seq <= progress) {
            head.tail = group.end;
            head.applied = group.moment.clone();
        }
        self.points.apply(&mut head);
        if self.mutant(Mutation::JournalLeavesBehindEarly)
            && let Some(group) = self.journal.ring.back()
        {
            (head.tail, head.applied) = (group.end, group.moment.clone());
        }
        self.head_takes_group(&mut head);
        Some(head)
    }

    /// What the head says of the group under way.
    fn head_takes_group(&self, head: &mut Head) {
        head.forget_prepared();
        if self.settings.group_ends != GroupEnds::Common {
            head.common = Common::default();
        }
        let Some(group) = self.journal.group.as_ref().filter(|group| !group.given_up) else { return };
        let common = group.point.as_ref().and_then(|point| point.common.clone());
        let behind = head.head + group.descriptor.bytes();
        let decides = group.phase == Phase::Preparing && self.mutant(Mutation::CommonDecidesAlone);
        match (group.phase, common) {
            (Phase::Committing, _) => {}
            (_, Some(_)) if decides => {}
            (Phase::Preparing | Phase::Prepared, Some(common)) => {
                // Of other members there were other points.
                let decided = if common.shares_with(&head.common) { head.common.decided } else { 0 };
                head.prepared = behind;
                head.common = Common { decided, ..common };
                return;
            }
            _ => return,
        }
        (head.head, head.prepared) = (behind, behind);
        head.committed = group.descriptor.moment.clone();
        let kept = self.mutant(Mutation::CommonForgetsToRenounce);
        match group.point.as_ref().and_then(|point| point.common.as_ref()) {
            Some(common) => head.common = Common { decided: common.prepared, prepared: 0, ..common.clone() },
            None if kept => {}
            None => head.common.decided = 0,
        }
    }

    fn head_write_if_due(&mut self) {
        if self.journal.writing.is_some() {
            return;
        }
        let Some(wanted) = self.head_wanted() else { return self.log_want_durable(self.log.written_upto()) };
        let Some(durable) = self.journal.durable.as_ref() else { return };
        let prepares =
            (wanted.prepared, wanted.common.prepared) != (durable.prepared, durable.common.prepared);
        let committing = commits(&wanted, durable) || prepares;
        let turns = wanted.consistent != durable.consistent
            || self.journal.uncertain
            || self.points.is_renouncing() && !committing;
        let leaves = wanted.tail != durable.tail;
        let moves = leaves || wanted.consistent && wanted.committed.seq > durable.committed.seq;
        let settling = self.commands.settling();
        let late = self.journal.refresh_at.is_some_and(|at| at <= self.now);
        if moves && !late {
            self.journal.refresh_at.get_or_insert(self.now.plus_ms(REFRESH_MS));
        }
        let hurried = moves && (self.journal.hurry || self.order.is_leaving() || settling);
        if !(committing || turns || hurried || moves && late) {
            return;
        }
        self.journal.refresh_at = None;
        let op = DeviceOp::Write {
            offset: Head::copy_offset(wanted.update),
            bufs: vec![wanted.encode()],
            durable: !self.mutant(Mutation::JournalHeadVolatile),
        };
        self.journal.writing = Some(wanted);
        self.io(Role::Journal, op, Class::Background, IoOwner::JournalHead);
    }

    pub(crate) fn head_write_done(&mut self, result: DeviceResult) {
        let Some(head) = self.journal.writing.take() else { return };
        self.points_told(&head, result.is_ok());
        if result.is_err() {
            // It may be there all the same; the next one takes its place.
            self.journal.uncertain = true;
            self.journal.may_tell |= head.has_prepared();
            return self.journal_failed();
        }
        (self.journal.uncertain, self.journal.may_tell, self.journal.failures) = (false, false, 0);
        while self.journal.ring.front().is_some_and(|g| g.end <= head.tail) {
            self.journal.ring.pop_front();
        }
        let commits = self.journal.durable.as_ref().is_some_and(|before| commits(&head, before));
        if commits && let Some(group) = self.journal.group.take() {
            group.members.iter().for_each(|m| self.map.segments_mut().unpin(m.slot.segment()));
            let Descriptor { position, moment, entries, .. } = group.descriptor;
            self.destage_replaced(&entries);
            self.journal.committed = moment.seq;
            self.figures.groups_cut += u64::from(group.point.is_none() && self.points_are_kept());
            if let Some(point) = &group.point {
                self.point_committed(point, moment.group);
            }
            self.journal.ring.push_back(InRing { position, end: head.head, moment, entries });
            self.figures.groups += 1;
        }
        if head.committed.point == 0 {
            self.journal.ring.iter_mut().for_each(|group| forget(&mut group.moment));
        }
        self.journal.committed = self.journal.committed.max(head.committed.seq);
        let begins = head.consistent && !self.journal.durable_says_consistent();
        let prepares = !commits && head.has_prepared();
        self.journal.durable = Some(head);
        if prepares {
            self.group_prepared();
        }
        if begins {
            // What was counted before has gone in any order.
            self.journal_count_open(self.journal.committed);
        }
        if self.journal.ring.is_empty() {
            self.journal.hurry = false;
        }
        if self.journal.group.as_ref().is_some_and(|group| group.given_up) {
            self.group_go_on();
        }
        self.wakes.raise(Change::Groups { awaited: self.order.bypass_waits() });
    }

    /// The head on the medium says that the group under way is prepared.
    fn group_prepared(&mut self) {
        let destages = self.mutant(Mutation::CommonDestagesPrepared);
        let Some(group) = self.journal.group.as_mut().filter(|g| g.phase == Phase::Preparing) else { return };
        group.phase = Phase::Prepared;
        group.members.drain(..).for_each(|m| self.map.segments_mut().unpin(m.slot.segment()));
        if destages {
            self.journal.committed = group.descriptor.moment.seq;
        }
        if let Some(point) = group.point.clone() {
            self.common_prepared(&point);
        }
    }

    pub(crate) fn journal_next_wake(&self) -> Option<Nanos> {
        let j = &self.journal;
        if !j.exists() {
            return None;
        }
        let ends = self.settings.group_ends;
        let waits = self.order.is_journaled() && j.group.is_none() && j.says_consistent();
        let waits = waits && (ends == GroupEnds::Anywhere || self.points.next().is_some());
        let due = j.open_since.filter(|_| waits && j.open_blocks > 0);
        let due = due.map(|since| since.plus_ms(self.settings.group_age_ms));
        [due, j.refresh_at, j.paused_until].into_iter().flatten().filter(|at| *at > self.now).min()
    }
}
