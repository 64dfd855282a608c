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
        let awaited = (raw.awaited != 0).then_some(Cause { via: Wait::Slot, waiter: 0, payers: raw.payers });
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
mod tests;
