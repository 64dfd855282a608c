//! Tags of one device, from the moment that a write is queued until it is done.
//!
//! ```text
//!  queued to the device ──► tag ──► the volume takes the request in: tags of its bytes are taken together
//!                                       └► outstanding, if nobody is known to wait for it ──► done
//! ```
//! Requests are not bios: the kernel merges neighbours and splits what is too long. So tags are kept by bytes, cut where a
//! request begins or ends within one.

use std::collections::btree_map::{BTreeMap, Entry};

use forebay_block::{Content, Criticality};
use smallvec::{SmallVec, smallvec};

use crate::files;
use crate::rates::{Payers, together};
use crate::rules::Critical;
use crate::tasks::Name;
use crate::waits::Wait;
use crate::wire::{CRITICAL_HINTED, RawSlot, RawTag, text};

/// Most tags that wait for their request; the older half gives way.
const TAGS_MAX: usize = 16_384;
/// Most writes on their way to the backing that are remembered; further ones are not promoted.
const OUTSTANDING_MAX: usize = 4096;

/// Why a write is critical whose own task is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The kind of wait.
    pub via: Wait,
    /// The critical task that waits; 0 if it is not known which.
    pub waiter: u32,
    /// The rates of all who wait, as far as they are known: rate N is bit N - 1; 0 if one of them has none.
    pub payers: Payers,
}

/// Says whether so many bytes are within the rate of the task that wrote them, or if it has none of one of those who wait, and counts them then.
pub(crate) type Allows<'a> = &'a dyn Fn(u32, Payers, u64) -> bool;

/// A write that is to be promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Promoted {
    pub offset: u64,
    pub len: u64,
    /// The task that issued it.
    pub task: u32,
    pub cause: Cause,
}

/// What is known of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// Who waits for it.
    pub criticality: Criticality,
    /// Who waits for it, and how, if that is not the task itself.
    pub cause: Option<Cause>,
    /// Flagged synchronous.
    pub sync: bool,
    /// File-system metadata.
    meta: bool,
    /// What the file holds that it belongs to.
    file: Content,
    /// Its task is critical by its own word.
    pub hinted: bool,
    /// A rule says that its task is not critical, whoever waits for it.
    never: bool,
    /// A flush goes before it or comes after it, unless the device does without: the block layer starts no other while it is under way.
    flushes: bool,
    /// Linux I/O priority.
    pub ioprio: u16,
    /// The task that queued it.
    pub tid: u32,
    /// Its name, as the kernel has it.
    comm: [u8; 16],
    /// It belongs to a journal thread, or to a thread that writes for others.
    kernel: bool,
    mapping: u64,
    /// Places of its pages there.
    pages: (u64, u64),
}

/// `REQ_SYNC`, `REQ_META`, `REQ_FUA` and `REQ_PREFLUSH` of the kernel's `enum req_flag_bits`.
const FLAG_SYNC: u32 = 1 << 11;
const FLAG_META: u32 = 1 << 12;
const FLAG_FUA: u32 = 1 << 17;
const FLAG_PREFLUSH: u32 = 1 << 18;
/// A write with one of these has a flush of its own, and counts as synchronous (the kernel's `op_is_sync`).
pub(crate) const FLAGS_OF_FLUSHES: u32 = FLAG_FUA | FLAG_PREFLUSH;

/// What the file holds that a write belongs to. Most have none: what goes past the page cache.
fn content(raw: &RawTag) -> Content {
    match raw.file[0] {
        0 => Content::Data,
        _ => files::content(&text(&raw.dir), &text(&raw.file)),
    }
}

impl Known {
    fn of(raw: &RawTag) -> Self {
        let criticality = match raw.critical {
            1 | CRITICAL_HINTED => Criticality::Direct,
            2 => Criticality::Inherited,
            _ => Criticality::None,
        };
        let pages = u64::from(raw.bytes.div_ceil(4096));
        let cause = |via| Cause { via, waiter: raw.waiter, payers: raw.payers };
        Self {
            criticality,
            cause: Wait::from_number(u32::from(raw.via)).map(cause),
            hinted: raw.critical == CRITICAL_HINTED,
            never: raw.critical == Critical::Never.number(),
            file: content(raw),
            sync: raw.flags & (FLAG_SYNC | FLAGS_OF_FLUSHES) != 0,
            meta: raw.flags & FLAG_META != 0,
            flushes: raw.flags & FLAGS_OF_FLUSHES != 0,
            ioprio: raw.ioprio,
            tid: raw.tid,
            comm: raw.comm,
            kernel: raw.comm.starts_with(b"jbd2/") || raw.comm.starts_with(b"kworker/"),
            mapping: raw.mapping,
            pages: (raw.index.saturating_sub(u64::from(raw.pages)), raw.index.saturating_add(pages)),
        }
    }

    /// The name of the thread that queued it.
    pub fn thread(&self) -> Name {
        Name::of_thread(&self.comm)
    }

    /// What kind of data it carries.
    pub fn content(&self) -> Content {
        match (self.is_journal(), self.meta) {
            (true, _) => Content::Journal,
            (false, true) => Content::Metadata,
            (false, false) => self.file,
        }
    }

    /// Whether it belongs to a journal: written by its thread.
    fn is_journal(&self) -> bool {
        self.comm.starts_with(b"jbd2/")
    }

    /// Whether somebody critical was known to wait for the write itself when it came.
    pub fn is_awaited(&self) -> bool {
        self.criticality.is_awaited(self.sync)
    }

    /// Somebody critical has come to wait for it.
    fn wait_for(&mut self, cause: Cause) {
        if self.never {
            return;
        }
        if !self.is_awaited() {
            (self.criticality, self.cause) = (Criticality::Awaited, Some(cause));
        } else if let Some(first) = &mut self.cause {
            first.payers = together(first.payers, cause.payers);
        }
    }

    /// The most urgent is the greatest.
    fn urgency(&self) -> (bool, u8) {
        let how = match self.criticality {
            Criticality::None | Criticality::Capped => 0,
            Criticality::Awaited => 1,
            Criticality::Inherited => 2,
            Criticality::Direct => 3,
        };
        (self.is_awaited(), how)
    }

    /// Of two that became one request: whatever is more urgent.
    fn with(self, other: Self) -> Self {
        let (first, second) = if other.urgency() > self.urgency() { (other, self) } else { (self, other) };
        Self {
            sync: first.sync || second.sync,
            meta: first.meta || second.meta,
            flushes: first.flushes || second.flushes,
            never: first.never && second.never,
            ..first
        }
    }
}

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The write of a page.
    Page { mapping: u64, index: u64 },
    /// Whatever a task has written.
    Task(u32),
    /// What a task has written that holds a lock, and may wait for itself before it gives the lock back: what is flagged synchronous (so is
    /// all that goes past the page cache), metadata, and what flushes belong to. For what else it has written it waits by the page, or for
    /// a slot, of which is told by itself.
    Holder(u32),
    /// A flush: whatever other flushes belong to, whoever has written that.
    Flush,
    /// A commit of the journal, or room in it: whatever the kernel's threads have written for others, the metadata that this task has written
    /// to make that room, and whatever flushes belong to (the journal's superblock): a commit ends with a flush.
    Commit(u32),
    /// Whatever the journals' threads have written.
    Journal,
    /// Everything.
    All,
}

impl Wanted {
    fn wants(self, known: &Known) -> bool {
        !known.never && self.speaks_of(known)
    }

    fn speaks_of(self, known: &Known) -> bool {
        match self {
            Self::Page { mapping, index } => {
                known.mapping == mapping && mapping != 0 && known.pages.0 <= index && index < known.pages.1
            }
            Self::Task(tid) => known.tid == tid,
            Self::Holder(tid) => known.tid == tid && (known.sync || known.meta || known.flushes),
            Self::Flush => known.flushes,
            Self::Commit(tid) => known.kernel || known.flushes || known.meta && known.tid == tid,
            Self::Journal => known.is_journal(),
            Self::All => true,
        }
    }
}

struct Queued {
    end: u64,
    number: u64,
    known: Known,
}

/// What is known of the parts of a request, most of which have one.
type Parts = SmallVec<[Known; 1]>;

fn contains(offset: u64, len: u64, at: u64) -> bool {
    offset <= at && at - offset < len
}

struct Outstanding {
    offset: u64,
    len: u64,
    parts: Parts,
    /// Somebody came to wait for it, first for this reason.
    awaited: Option<Cause>,
}

impl Outstanding {
    fn range(&self) -> (u64, u64) {
        (self.offset, self.len)
    }

    /// The first of its tasks that may be waited for.
    fn task(&self) -> Option<u32> {
        self.parts.iter().find(|p| !p.never).map(|p| p.tid)
    }

    /// Somebody has come to wait for it. `None` if its task may not be waited for, or has used up its rate.
    fn wait_for(&mut self, cause: Cause, allows: Allows) -> Option<Promoted> {
        let task = self.task()?;
        if self.awaited.is_none() && !allows(task, cause.payers, self.len) {
            return None;
        }
        let cause = *self.awaited.get_or_insert(cause);
        Some(Promoted { offset: self.offset, len: self.len, task, cause })
    }
}

/// A request comes in one piece; if it did not, this would be its first one.
struct FirstSlot {
    /// First byte of the request.
    at: u64,
    /// Somebody waits for a slot: the request is awaited when it arrives.
    awaited: Option<Cause>,
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Intake {
    /// By first byte; no two overlap.
    queued: BTreeMap<u64, Queued>,
    /// In the order in which they came.
    outstanding: Vec<Outstanding>,
    /// Slots of the disk's queue if the scheduler is `bfq`, which gives half of them to asynchronous writes; else 0.
    shared_slots: usize,
    /// The request that was the last to get the first slot of the disk's queue (of several queues: of one of them).
    first_slot: Option<FirstSlot>,
    /// The number of the last tag.
    next: u64,
}

impl Intake {
    /// A write was queued.
    pub fn queue(&mut self, raw: &RawTag) {
        let (start, end) = raw.range();
        self.hide(start, end);
        self.insert(start, end, Known::of(raw));
        if self.queued.len() > TAGS_MAX {
            let mut numbers: Vec<u64> = self.queued.values().map(|q| q.number).collect();
            let (_, oldest_kept, _) = numbers.select_nth_unstable(TAGS_MAX / 2);
            self.queued.retain(|_, q| q.number >= *oldest_kept);
        }
    }

    /// An older write of the same bytes that never arrived here was merged, failed, or is as good as overwritten.
    fn hide(&mut self, start: u64, end: u64) {
        if self.overlaps(start, end) {
            self.cut(start, end);
        }
    }

    fn insert(&mut self, start: u64, end: u64, known: Known) {
        self.next += 1;
        self.queued.insert(start, Queued { end, number: self.next, known });
    }

    /// Whether any of these bytes has a tag: no two overlap, so that it is the last one which begins before the end.
    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.queued.range(..end).next_back().is_some_and(|(_, q)| q.end > start)
    }

    /// Takes out what is known of these bytes, in their order; what reaches over an end stays as a shorter tag.
    fn cut(&mut self, start: u64, end: u64) -> Parts {
        let mut found = Parts::new();
        // Most requests are one write as it was queued.
        if let Entry::Occupied(whole) = self.queued.entry(start)
            && whole.get().end == end
        {
            found.push(whole.remove().known);
            return found;
        }
        if !self.overlaps(start, end) {
            return found;
        }
        let before = self.queued.range(..start).next_back().filter(|(_, q)| q.end > start);
        let first = before.map_or(start, |(s, _)| *s);
        while let Some((s, _)) = self.queued.range(first..end).next() {
            let s = *s;
            let Some(q) = self.queued.remove(&s) else { break };
            found.push(q.known);
            if q.end > end {
                self.insert(end, q.end, q.known);
            }
            if s < start {
                self.insert(s, start, q.known);
                // It begins before `first` no more, but at it: go on behind it.
                let rest = self.cut(start, end);
                found.extend(rest);
                break;
            }
        }
        found
    }

    /// The request of these bytes has arrived: what is known of it. One that nobody waits for is remembered until it is
    /// [`Intake::done`].
    pub fn arrive(&mut self, offset: u64, len: u64) -> Option<Known> {
        let parts = self.cut(offset, offset.saturating_add(len));
        let Some(known) = parts.iter().copied().reduce(Known::with) else {
            self.first_slot.take_if(|first| contains(offset, len, first.at));
            return None;
        };
        Some(self.take_in(offset, len, known, || parts))
    }

    /// The same of a request that is a write as it was queued, whose tag was not put away.
    pub fn arrive_as(&mut self, raw: &RawTag) -> Known {
        let (start, end) = raw.range();
        self.hide(start, end);
        let known = Known::of(raw);
        self.take_in(start, end - start, known, || smallvec![known])
    }

    fn take_in(&mut self, offset: u64, len: u64, mut known: Known, parts: impl FnOnce() -> Parts) -> Known {
        if let Some(first) = &self.first_slot
            && contains(offset, len, first.at)
        {
            if let Some(cause) = first.awaited {
                known.wait_for(cause);
            }
            // What is awaited will be done before anybody comes to wait for it.
            if known.is_awaited() {
                self.first_slot = None;
            }
        }
        if !known.is_awaited() {
            self.keep(offset, len, parts);
        }
        known
    }

    fn keep(&mut self, offset: u64, len: u64, parts: impl FnOnce() -> Parts) {
        if self.outstanding.len() < OUTSTANDING_MAX {
            self.outstanding.push(Outstanding { offset, len, parts: parts(), awaited: None });
        }
    }

    /// A request that is awaited has arrived, and goes to the backing because those who wait have used up their rates: others may come to wait.
    pub fn keep_capped(&mut self, offset: u64, len: u64, known: Known) {
        self.keep(offset, len, || smallvec![known]);
    }

    /// A request that nobody waited for is done.
    pub fn done(&mut self, offset: u64, len: u64) {
        if let Some(at) = self.outstanding.iter().position(|o| o.range() == (offset, len)) {
            self.outstanding.remove(at);
            self.first_slot.take_if(|first| contains(offset, len, first.at));
        }
    }

    /// A request that will arrive has the first slot of the disk's queue, and somebody critical may wait for a slot.
    pub fn has_first_slot(&mut self, raw: &RawSlot) {
        let awaited =
            (raw.awaited != 0).then_some(Cause { via: Wait::Throttle, waiter: 0, payers: raw.payers });
        self.first_slot = Some(FirstSlot { at: raw.sector.saturating_mul(512), awaited });
    }

    /// Somebody critical waits: writes that have not arrived are awaited from now on, and those outstanding are to be promoted.
    pub fn promote(&mut self, wanted: Wanted, cause: Cause, allows: Allows) -> Vec<Promoted> {
        for q in self.queued.values_mut().filter(|q| wanted.wants(&q.known)) {
            q.known.wait_for(cause);
        }
        let wants = |o: &&mut Outstanding| o.parts.iter().any(|p| wanted.wants(p));
        self.outstanding.iter_mut().filter(wants).filter_map(|o| o.wait_for(cause, allows)).collect()
    }

    /// Whether something is outstanding that is waited for so, be it that of one who may not be waited for.
    pub fn has_outstanding(&self, wanted: Wanted) -> bool {
        self.outstanding.iter().any(|o| o.parts.iter().any(|p| wanted.speaks_of(p)))
    }

    /// How many slots `bfq` shares out here; 0 for another scheduler, or none.
    pub fn share_slots(&mut self, slots: usize) {
        self.shared_slots = slots;
    }

    /// Nobody tells any more who has the first slot: what was told last is not true for long.
    pub fn forget_slots(&mut self) {
        (self.shared_slots, self.first_slot) = (0, None);
    }

    /// Somebody critical waits for a slot of the disk's queue: the write that has the first one is to be promoted, be it outstanding or still
    /// to arrive, and of whatever is outstanding the `oldest`, so many; but not while `bfq` has slots to give, for then hardly anybody
    /// sleeps but who is given the first one alone. What else has not arrived keeps nobody from a slot for long.
    pub fn promote_slots(&mut self, oldest: usize, cause: Cause, allows: Allows) -> Vec<Promoted> {
        // Half of the slots, less those of what is on its way here.
        let has_slots = self.outstanding.len() < self.shared_slots * 7 / 16;
        let oldest = if has_slots { 0 } else { oldest };
        let first = self.first_slot.as_mut().map(|first| {
            let payers = first.awaited.map_or(cause.payers, |before| together(before.payers, cause.payers));
            first.awaited = Some(Cause { payers, ..cause });
            first.at
        });
        let has_first = |o: &Outstanding| first.is_some_and(|at| contains(o.offset, o.len, at));
        let wanted = self.outstanding.iter_mut().enumerate().filter(|(i, o)| *i < oldest || has_first(o));
        wanted.filter_map(|(_, o)| o.wait_for(cause, allows)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tag(sector: u64, sectors: u32, tid: u32, critical: u8) -> RawTag {
        RawTag { sector, bytes: sectors * 512, tid, critical, ..RawTag::default() }
    }

    /// Task 9 waits; the bytes that are promoted for it.
    fn promote(intake: &mut Intake, wanted: Wanted, via: Wait) -> Vec<(u64, u64)> {
        ranges(intake.promote(wanted, Cause { via, waiter: 9, payers: 0 }, &|_, _, _| true))
    }

    fn slots(intake: &mut Intake, oldest: usize) -> Vec<(u64, u64)> {
        ranges(intake.promote_slots(
            oldest,
            Cause { via: Wait::Throttle, waiter: 9, payers: 0 },
            &|_, _, _| true,
        ))
    }

    fn ranges(promoted: Vec<Promoted>) -> Vec<(u64, u64)> {
        promoted.into_iter().map(|p| (p.offset, p.len)).collect()
    }

    fn tids(known: &[Known]) -> Vec<u32> {
        known.iter().map(|k| k.tid).collect()
    }

    #[test]
    fn merged_writes_are_as_critical_as_the_most_critical_of_them() {
        let mut intake = Intake::default();
        intake.queue(&tag(0, 8, 1, 0));
        intake.queue(&RawTag { flags: FLAG_SYNC, ..tag(8, 8, 2, 1) });
        intake.queue(&RawTag { flags: FLAG_META, ..tag(16, 8, 3, 2) });
        let known = intake.arrive(0, 24 * 512).unwrap();
        assert_eq!(
            (known.criticality, known.tid, known.sync, known.meta),
            (Criticality::Direct, 2, true, true)
        );
        assert!(intake.arrive(0, 24 * 512).is_none(), "a tag is for one request");
    }

    #[test]
    fn each_part_of_a_split_write_finds_its_tag() {
        let mut intake = Intake::default();
        intake.queue(&tag(100, 30, 7, 1));
        for at in [110, 100, 120] {
            assert_eq!(intake.arrive(at * 512, 10 * 512).unwrap().tid, 7, "{at}");
        }
        assert!(intake.queued.is_empty());
    }

    #[test]
    fn whoever_holds_a_lock_is_not_held_up_by_what_it_has_written_on_the_side() {
        let mut intake = Intake::default();
        for (at, flags, tid) in [(0, 0, 7), (8, FLAG_SYNC, 7), (16, FLAG_SYNC, 8), (24, FLAG_META, 7)] {
            intake.queue(&RawTag { flags, ..tag(at, 8, tid, 0) });
            intake.arrive(at * 512, 4096).unwrap();
        }
        assert_eq!(promote(&mut intake, Wanted::Holder(7), Wait::Lwlock), [(4096, 4096), (12_288, 4096)]);
        assert_eq!(
            promote(&mut intake, Wanted::Task(7), Wait::Io),
            [(0, 4096), (4096, 4096), (12_288, 4096)]
        );
    }

    #[test]
    fn a_newer_write_of_the_same_bytes_hides_the_older() {
        let mut intake = Intake::default();
        intake.queue(&tag(0, 24, 1, 1));
        intake.queue(&tag(8, 8, 2, 0));
        assert_eq!(intake.arrive(8 * 512, 8 * 512).unwrap().tid, 2);
        assert_eq!(intake.arrive(0, 8 * 512).unwrap().tid, 1);
        assert_eq!(intake.arrive(16 * 512, 8 * 512).unwrap().tid, 1);
    }

    #[test]
    fn who_waits_for_a_page_promotes_its_write_whether_it_has_arrived_or_not() {
        let page = |sector, index| RawTag { mapping: 99, index, ..tag(sector, 32, 5, 0) };
        let mut intake = Intake::default();
        intake.queue(&page(0, 10));
        intake.queue(&page(1000, 50));
        assert_eq!(intake.arrive(0, 32 * 512).unwrap().criticality, Criticality::None);
        let wanted = |index| Wanted::Page { mapping: 99, index };
        assert_eq!(promote(&mut intake, wanted(13), Wait::Writeback), [(0, 32 * 512)]);
        assert!(promote(&mut intake, wanted(14), Wait::Writeback).is_empty(), "four pages, not five");
        assert!(promote(&mut intake, wanted(52), Wait::Writeback).is_empty());
        let known = intake.arrive(1000 * 512, 32 * 512).unwrap();
        assert_eq!(
            (known.criticality, known.cause),
            (Criticality::Awaited, Some(Cause { via: Wait::Writeback, waiter: 9, payers: 0 }))
        );
        intake.done(0, 32 * 512);
        assert!(promote(&mut intake, Wanted::All, Wait::Buffer).is_empty(), "what is done is not promoted");
    }

    /// Such a write is bypassed, whoever has issued it.
    #[test]
    fn an_asynchronous_write_of_a_critical_task_can_be_promoted_as_any_other() {
        let mut intake = Intake::default();
        for (i, (critical, flags)) in [(1, 0), (2, 0), (1, FLAG_SYNC), (2, FLAG_SYNC)].into_iter().enumerate()
        {
            intake.queue(&RawTag { flags, ..tag(8 * i as u64, 8, 1, critical) });
            let known = intake.arrive(4096 * i as u64, 4096).unwrap();
            assert_eq!(known.is_awaited(), flags != 0);
        }
        assert_eq!(promote(&mut intake, Wanted::All, Wait::Condition), [(0, 4096), (4096, 4096)]);
        intake.queue(&tag(100, 8, 1, 2));
        assert!(promote(&mut intake, Wanted::Task(2), Wait::Mutex).is_empty());
        promote(&mut intake, Wanted::Task(1), Wait::Mutex);
        let known = intake.arrive(100 * 512, 4096).unwrap();
        assert_eq!((known.criticality, known.is_awaited()), (Criticality::Awaited, true));
    }

    #[test]
    fn the_oldest_are_those_that_came_first_of_what_is_not_done() {
        let mut intake = Intake::default();
        for i in 0..6 {
            intake.queue(&tag(8 * i, 8, 1, 0));
            intake.arrive(4096 * i, 4096);
        }
        intake.queue(&tag(800, 8, 1, 0));
        intake.done(0, 4096);
        intake.done(2 * 4096, 4096);
        let oldest = slots(&mut intake, 3);
        assert_eq!(oldest, [1, 3, 4].map(|i| (4096 * i, 4096)));
        assert_eq!(intake.arrive(800 * 512, 4096).unwrap().criticality, Criticality::None);
    }

    #[test]
    fn who_waits_for_a_slot_waits_for_the_write_that_has_the_first_one() {
        let first = |sector, awaited| RawSlot { sector, awaited, ..RawSlot::default() };
        let mut intake = Intake::default();
        for i in 0..6 {
            intake.queue(&tag(8 * i, 8, 1, 0));
        }
        for i in 0..4 {
            intake.arrive(4096 * i, 4096);
        }
        intake.has_first_slot(&first(16, 0));
        assert_eq!(slots(&mut intake, 0), [(2 * 4096, 4096)]);
        // One that is still to arrive: known before somebody waits, or after.
        intake.has_first_slot(&first(32, 0));
        assert!(slots(&mut intake, 0).is_empty());
        assert_eq!(intake.arrive(4 * 4096, 4096).unwrap().criticality, Criticality::Awaited);
        intake.has_first_slot(&first(40, 1));
        assert_eq!(intake.arrive(5 * 4096, 4096).unwrap().criticality, Criticality::Awaited);
        // For once: who comes to the same place later has another slot, or is told of.
        intake.queue(&tag(40, 8, 1, 0));
        assert_eq!(intake.arrive(5 * 4096, 4096).unwrap().criticality, Criticality::None);
        intake.done(5 * 4096, 4096);
        // Before its tag is put away, or is known.
        intake.has_first_slot(&first(48, 1));
        assert_eq!(intake.arrive_as(&tag(48, 8, 1, 0)).criticality, Criticality::Awaited);
        // As it mostly is: it gets the slot, arrives, and only then somebody waits.
        intake.has_first_slot(&first(56, 0));
        assert_eq!(intake.arrive_as(&tag(56, 8, 1, 0)).criticality, Criticality::None);
        assert_eq!(slots(&mut intake, 0), [(7 * 4096, 4096)]);
        intake.done(7 * 4096, 4096);
        assert!(slots(&mut intake, 0).is_empty());
        // One of which nothing is known has had the slot, too, and nobody waits for what comes to its place later.
        intake.has_first_slot(&first(64, 1));
        assert!(intake.arrive(8 * 4096, 4096).is_none());
        assert_eq!(intake.arrive_as(&tag(64, 8, 1, 0)).criticality, Criticality::None);
        // Its write is done, and another comes to the same place.
        intake.has_first_slot(&first(16, 0));
        intake.done(2 * 4096, 4096);
        intake.queue(&tag(16, 8, 1, 0));
        assert!(slots(&mut intake, 0).is_empty());
        assert_eq!(intake.arrive(2 * 4096, 4096).unwrap().criticality, Criticality::None);
        // What nobody has told of.
        intake.has_first_slot(&first(4000, 1));
        assert!(slots(&mut intake, 0).is_empty());
    }

    #[test]
    fn the_oldest_go_only_where_slots_are_short() {
        let mut intake = Intake::default();
        intake.share_slots(16);
        for i in 0..7 {
            assert!(slots(&mut intake, 2).is_empty(), "{i} outstanding");
            intake.queue(&tag(8 * i, 8, 1, 0));
            intake.arrive(4096 * i, 4096);
        }
        assert_eq!(slots(&mut intake, 2).len(), 2);
        intake.done(0, 4096);
        intake.has_first_slot(&RawSlot { sector: 24, ..RawSlot::default() });
        assert_eq!(slots(&mut intake, 2), [(3 * 4096, 4096)]);
        intake.share_slots(0);
        assert_eq!(slots(&mut intake, 2).len(), 3);
        intake.forget_slots();
        assert_eq!(slots(&mut intake, 2), [(4096, 4096), (2 * 4096, 4096)]);
    }

    #[test]
    fn tasks_and_the_kernels_threads_are_promoted_apart() {
        let mut comm = [0; 16];
        comm[..12].copy_from_slice(b"jbd2/loop0-8");
        let mut intake = Intake::default();
        intake.queue(&RawTag { comm, ..tag(0, 8, 5, 0) });
        intake.queue(&tag(8, 8, 6, 0));
        assert!(intake.arrive(0, 4096).is_some() && intake.arrive(4096, 4096).is_some());
        intake.queue(&RawTag { flags: FLAG_META, ..tag(16, 8, 6, 0) });
        assert!(intake.arrive(2 * 4096, 4096).is_some());
        assert_eq!(promote(&mut intake, Wanted::Commit(5), Wait::Journal), [(0, 4096)]);
        assert_eq!(promote(&mut intake, Wanted::Commit(6), Wait::Journal), [(0, 4096), (2 * 4096, 4096)]);
        intake.done(2 * 4096, 4096);
        // Such a one as the journal's superblock keeps every flush from beginning.
        intake.queue(&RawTag { flags: FLAG_META | FLAG_FUA, ..tag(16, 8, 7, 0) });
        assert!(intake.arrive(2 * 4096, 4096).is_some());
        assert_eq!(promote(&mut intake, Wanted::Commit(5), Wait::Journal), [(0, 4096), (2 * 4096, 4096)]);
        assert_eq!(promote(&mut intake, Wanted::Flush, Wait::Flush), [(2 * 4096, 4096)]);
        intake.queue(&RawTag { flags: FLAG_PREFLUSH, ..tag(24, 8, 7, 0) });
        promote(&mut intake, Wanted::Flush, Wait::Flush);
        assert_eq!(intake.arrive(3 * 4096, 4096).unwrap().cause.unwrap().via, Wait::Flush);
        intake.done(2 * 4096, 4096);
        assert_eq!(promote(&mut intake, Wanted::Task(6), Wait::Mutex), [(4096, 4096)]);
        assert_eq!(promote(&mut intake, Wanted::Journal, Wait::Writeback), [(0, 4096)]);
        assert_eq!(promote(&mut intake, Wanted::All, Wait::Buffer).len(), 2);
    }

    #[test]
    fn who_is_never_critical_is_not_waited_for() {
        let mut intake = Intake::default();
        for sector in [0, 8] {
            intake.queue(&tag(sector, 8, 7, 4));
            assert_eq!(promote(&mut intake, Wanted::Task(7), Wait::Mutex), []);
            let known = intake.arrive(sector * 512, 4096).unwrap();
            assert_eq!(known.criticality, Criticality::None);
        }
        assert_eq!(promote(&mut intake, Wanted::All, Wait::Condition), []);
        assert_eq!(slots(&mut intake, 8), []);
        assert!(intake.has_outstanding(Wanted::Task(7)), "it is not as if it were written");
        // Merged with one of somebody else's it is as that one.
        intake.queue(&tag(16, 8, 7, 4));
        intake.queue(&tag(24, 8, 8, 0));
        intake.arrive(16 * 512, 8192).unwrap();
        assert_eq!(promote(&mut intake, Wanted::Task(7), Wait::Mutex), []);
        assert_eq!(promote(&mut intake, Wanted::Task(8), Wait::Mutex), [(8192, 8192)]);
    }

    #[test]
    fn what_comes_to_be_waited_for_counts_for_its_tasks_rate_once() {
        let mut intake = Intake::default();
        for sector in [0, 8] {
            intake.queue(&tag(sector, 8, 7, 0));
            intake.arrive(sector * 512, 4096).unwrap();
        }
        let left = std::cell::Cell::new(4096);
        let allows = |task: u32, _: Payers, bytes: u64| {
            assert_eq!(task, 7);
            let within = left.get() >= bytes;
            left.set(left.get() - if within { bytes } else { 0 });
            within
        };
        let cause = Cause { via: Wait::Mutex, waiter: 9, payers: 0 };
        for _ in 0..2 {
            let promoted = intake.promote(Wanted::Task(7), cause, &allows);
            assert_eq!(promoted, [Promoted { offset: 0, len: 4096, task: 7, cause }]);
        }
        left.set(4096);
        assert_eq!(ranges(intake.promote(Wanted::Task(7), cause, &allows)), [(0, 4096), (4096, 4096)]);
    }

    #[test]
    fn what_never_arrives_is_forgotten() {
        let mut intake = Intake::default();
        let max = TAGS_MAX as u64;
        // In an order that is not that of their places.
        let place = |i: u64| i * 7919 % (4 * max);
        for i in 0..4 * max {
            intake.queue(&tag(place(i) * 8, 8, 1, 0));
            assert!(intake.queued.len() <= TAGS_MAX, "{i}");
        }
        let waits: Vec<u64> =
            (0..4 * max).filter(|i| intake.arrive(place(*i) * 4096, 4096).is_some()).collect();
        assert!(
            waits.len() > TAGS_MAX / 2 && waits.iter().copied().eq(4 * max - waits.len() as u64..4 * max)
        );
        assert!(intake.queued.is_empty());
    }

    proptest! {
        /// Tags are what a table with one entry for each sector would be.
        #[test]
        fn tags_are_kept_by_sector(ops in proptest::collection::vec((0u64..60, 1u32..20, 0..5), 1..120)) {
            let mut intake = Intake::default();
            let mut sectors: BTreeMap<u64, u32> = BTreeMap::new();
            for (i, (sector, count, op)) in ops.into_iter().enumerate() {
                let range = sector..sector + u64::from(count);
                if op == 0 {
                    // As if it had been queued, and had arrived as it was.
                    prop_assert_eq!(intake.arrive_as(&tag(sector, count, i as u32, 0)).tid, i as u32);
                    range.for_each(|s| { sectors.remove(&s); });
                } else if op < 3 {
                    let found = intake.cut(sector * 512, range.end * 512);
                    let mut expected: Vec<u32> = range.filter_map(|s| sectors.remove(&s)).collect();
                    expected.dedup();
                    let mut found = tids(&found);
                    found.dedup();
                    prop_assert_eq!(found, expected);
                } else {
                    intake.queue(&tag(sector, count, i as u32, 0));
                    range.for_each(|s| { sectors.insert(s, i as u32); });
                }
            }
        }
    }
}
