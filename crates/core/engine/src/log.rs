//! The log: what is queued becomes records, records are written in batches of which several may be in flight, and are
//! acknowledged strictly in order (hazard 7).
//!
//! ```text
//!   queue ──form──► batch in flight ──written──► (in order) index updated ──durable──► owner told
//!     │               │                                                      │
//!     │ queue         │ form, head                                           └► its claims count, summaries are written
//!     │               └ batches                                                  claims, head
//!     └ clean copies and marks of lost blocks, moved from the tail by reclaiming  ◄── reclaim, as far as pins allow
//! ```
//!
//! A record is *written* when its write and those of all earlier records have completed; it is *durable* when it and
//! all earlier ones survive a power cut. With `durability = write` each record is written durably and the two
//! coincide; with `durability = flush` a flush of the cache device makes them so.
//!
//! [`Log`] owns the open segment, the queues, the records in flight, what is durable, what records claim, and the pins of the log's tail. It
//! is handed the map of which its records are a part, and facts. It asks for operations of the cache ([`Ask`]) and tells, one at a
//! time, what has come of them ([`Told`]). It answers no client.
//!
//! 1. A record is told in the order of the log, first as written, then as durable.
//! 2. A segment leaves the log only when nobody pins it and a durable record says that the log begins behind it.
//! 3. After a failure of the cache ([`Log::abandon`]) nothing is told any more that was not before.

use std::collections::VecDeque;

use forebay_block::{BLOCK_BYTES, BlockNo, DeviceOp, Nanos, Seq};
use forebay_format::Layout;
use forebay_format::record::{Consistent, Extent};

use crate::interface::{Class, PartKey};
use crate::map::Map;
use crate::mutation::{Mutation, Planted};

use self::batches::Batches;
use self::claims::{Claims, CleanMark};
use self::head::Head;
use self::pins::Pins;
use self::queue::Queue;
use self::recovery::Step;

pub(crate) use self::batches::Written;
pub(crate) use self::form::{Facts, SEGMENTS_RESERVED};
pub(crate) use self::head::Resumed;
pub(crate) use self::pins::Pinner;
pub(crate) use self::queue::{Append, AppendOwner, Go, May};

mod batches;
mod claims;
mod form;
mod head;
mod pins;
mod queue;
pub(crate) mod reclaim;
pub(crate) mod recovery;
#[cfg(test)]
mod tests;

/// Idle time after which a record without data proves that everything before it was durable, so that damage to the
/// last acknowledged records cannot be mistaken for a torn write; and after which one says that everything is on the backing, so
/// that a restart does not write it there again.
const PROOF_AFTER_MS: u64 = 50;

/// Which of the log's operations it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Io {
    /// The write of a record.
    Batch(Seq),
    /// The write of the summary of a physical segment.
    Summary(u32),
    /// A flush that covers records up to this one.
    Flush(Seq),
    /// A read of clean blocks that are to be moved from the tail to the head.
    Copy(u32),
    /// A read of recovery, or its flush.
    Recovery(Step),
}

/// An operation that the log asks of the cache.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) op: DeviceOp,
    pub(crate) class: Class,
    pub(crate) owner: Io,
}

/// What has come of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// A piece of it is written. Exactly here it becomes visible to reads: what a read returns is in the log already (P2 and P3 hold
    /// across a crash).
    Written(Written),
    /// What its owner waited for is durable.
    Durable(AppendOwner),
    /// Its claims count from now on: the log begins with the segment that has this place in its order.
    Claimed { tail: u64 },
}

/// What recovery knows of a log's end.
pub(crate) struct Resume {
    /// The last record.
    pub(crate) last: Seq,
    /// Place in the order of the log that the next segment gets.
    pub(crate) next_segment_seq: u64,
    /// As the last record says.
    pub(crate) tail: u64,
    pub(crate) clean_upto: Seq,
    pub(crate) consistent: Consistent,
    /// The segment that may take more records.
    pub(crate) head: Option<Resumed>,
}

/// The log's head, and what is known of its tail.
pub(crate) struct Log {
    layout: Layout,
    planted: Planted,
    queue: Queue,
    head: Option<Head>,
    /// Segments whose summaries are not written yet, oldest first.
    full: VecDeque<Head>,
    next_seq: Seq,
    next_segment_seq: u64,
    batches: Batches,
    claims: Claims,
    clean: CleanMark,
    /// Place in the log's order of the oldest segment that still counts.
    tail: u64,
    pins: Pins,
    stalled: bool,
    /// The record that begins this run where a crash may have left torn ones: nothing follows it before it is durable.
    begins: Option<Seq>,
    last_data: Seq,
    proven: Seq,
    prove_at: Option<Nanos>,
    /// Writers that were answered since the last round.
    answered: u32,
}

impl Log {
    /// A log without records.
    pub(crate) fn new(layout: Layout, planted: Planted) -> Self {
        let resume = Resume {
            last: Seq(0),
            next_segment_seq: 1,
            tail: 1,
            clean_upto: Seq(0),
            consistent: Consistent::No,
            head: None,
        };
        Self::resumed(layout, planted, resume)
    }

    /// A log that goes on behind what recovery has found.
    pub(crate) fn resumed(layout: Layout, planted: Planted, from: Resume) -> Self {
        let Resume { last, next_segment_seq, tail, clean_upto, consistent, head } = from;
        Self {
            layout,
            planted,
            queue: Queue::default(),
            head: head.map(|head| Head::resumed(head, tail, clean_upto, consistent)),
            full: VecDeque::new(),
            next_seq: last.next(),
            next_segment_seq,
            batches: Batches::new(last, planted),
            claims: Claims::new(last, tail, clean_upto, consistent),
            clean: CleanMark::new(clean_upto, planted),
            tail,
            pins: Pins::default(),
            stalled: false,
            begins: None,
            last_data: last,
            proven: Seq(0),
            prove_at: None,
            answered: 0,
        }
    }

    /// After a crash the run's first record will have no data, and nothing follows it before it is durable. A record that was torn
    /// at the log's end, under the same number, may have a whole header: if the run's first record put equal data behind it, and
    /// a crash kept that data but not the new header, the torn one would be whole, and what was seen to be lost would be back (P3).
    /// `docs/design/recovery.md` has the cases.
    pub(crate) fn begin_after_crash(&mut self) {
        self.begins = Some(self.next_seq).filter(|_| !self.planted.is(Mutation::BeginsWithData));
    }

    /// The record that begins the run is on its way.
    fn is_beginning(&self) -> bool {
        self.begins.is_some_and(|seq| seq < self.next_seq && seq > self.durable_upto())
    }

    /// The next record is the one that begins the run.
    fn is_to_begin(&self) -> bool {
        self.begins == Some(self.next_seq)
    }

    /// Puts data or marks of a write into the log, behind everything queued before.
    pub(crate) fn append(&mut self, append: Append) {
        self.queue.push(append);
    }

    /// Puts data of a write that nobody waits for into the log, when the throttle lets it go: what comes later may go before.
    pub(crate) fn append_patient(&mut self, append: Append) {
        self.queue.push_patient(append);
    }

    /// Somebody waits for those of the patient writes that are `awaited`.
    pub(crate) fn promote(&mut self, awaited: impl Fn(&Append) -> bool) {
        self.queue.promote(awaited);
    }

    /// Puts what makes room or finishes a bypass into the log, ahead of writes, from the reserve if need be.
    pub(crate) fn append_urgent(&mut self, append: Append) {
        self.queue.push_urgent(append);
    }

    /// Sees to it that a record carries the present tail, clean mark and proof; alone if no write takes them along.
    pub(crate) fn tick(&mut self, durable: bool) {
        self.queue.tick(durable);
    }

    /// Makes records up to `seq` survive a power cut, by a flush if need be.
    pub(crate) fn want_durable(&mut self, seq: Seq) {
        self.batches.want_durable(seq);
    }

    /// Sees to it that a durable record says that everything up to `upto` is clean, if it is; one that is on its way is as good as another.
    pub(crate) fn tell_clean(&mut self, upto: Seq) {
        if self.recalls_clean(upto) {
            return;
        }
        match self.claim_of_clean(upto.min(self.last_data)) {
            Some(seq) => self.want_durable(seq),
            None => self.tick(true),
        }
    }

    /// Writes wait to enter the log.
    pub(crate) fn has_writers(&self) -> bool {
        self.queue.has_writes()
    }

    /// Whether writes that nobody waits for wait to enter the log, and others.
    pub(crate) fn writers(&self) -> (bool, bool) {
        let may = May { patient: Go::Not, ..May::FREELY };
        (self.queue.has_patient(), self.queue.next_kind(may).is_some())
    }

    /// Where the next record goes, in bytes since the log's first segment.
    pub(crate) fn position(&self) -> u64 {
        let segment_bytes = u64::from(self.layout.segment_bytes);
        let offset = self.head.as_ref().map_or(segment_bytes, |head| u64::from(head.offset()));
        (self.next_segment_seq - 1) * segment_bytes + offset
    }

    /// Where the newest so many segments of the log begin, in the same bytes.
    pub(crate) fn begin_of_newest(&self, segments: usize) -> u64 {
        (self.next_segment_seq - segments as u64) * u64::from(self.layout.segment_bytes)
    }

    /// Whether a write waits to enter the log that depends on this record or a later one.
    pub(crate) fn queues_after(&self, seq: Seq) -> bool {
        self.queue.depends_on(seq)
    }

    /// All records up to this one are written.
    pub(crate) fn written_upto(&self) -> Seq {
        self.batches.written_upto()
    }

    /// All records up to this one survive a power cut.
    pub(crate) fn durable_upto(&self) -> Seq {
        self.batches.durable_upto()
    }

    /// Recovery takes records up to this one for clean, whatever instant a crash picks.
    pub(crate) fn durable_clean_upto(&self) -> Seq {
        self.claims.durable_clean_upto()
    }

    /// Everything that records up to this one say is on the backing or superseded.
    pub(crate) fn clean_upto(&self) -> Seq {
        self.clean.upto()
    }

    /// Works out anew what is clean; `progress` as in [`Facts`].
    pub(crate) fn work_out_clean(&mut self, progress: Option<Seq>, map: &Map) {
        self.clean.work_out(progress, self.written_upto(), map);
    }

    /// The first record on its way that says that everything up to `seq` is clean.
    pub(crate) fn claim_of_clean(&self, seq: Seq) -> Option<Seq> {
        self.claims.of_clean(seq)
    }

    /// Whether recovery takes everything in records up to this one for clean, whatever instant a crash picks. Records without data
    /// behind the last one with data have nothing that could be dirty.
    pub(crate) fn recalls_clean(&self, upto: Seq) -> bool {
        upto.min(self.last_data) <= self.durable_clean_upto()
    }

    /// The last record so far, in flight or not.
    pub(crate) fn last_seq(&self) -> Seq {
        Seq(self.next_seq.0 - 1)
    }

    /// The last record that says that the backing is more consistent than that.
    pub(crate) fn said_more_than(&self, consistent: Consistent) -> Seq {
        self.claims.said_more_than(consistent)
    }

    /// Writers wait because no segment is free for them.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.stalled
    }

    /// Every record is written.
    pub(crate) fn is_written(&self) -> bool {
        self.batches.is_empty()
    }

    /// Nothing is queued or in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.batches.is_idle()
    }

    /// Nothing is queued or in flight, and no data has come for a while.
    pub(crate) fn is_quiet(&self) -> bool {
        self.prove_at.is_none() && self.is_idle()
    }

    /// Most blocks of one piece: a record with it must fit an empty segment.
    pub(crate) fn piece_blocks_max(&self) -> u32 {
        let overhead = 5 * 4096;
        (((self.layout.segment_bytes - overhead) / BLOCK_BYTES as u32) * 15 / 16).clamp(1, 256)
    }

    /// Blocks that the log would hold if it had nothing but their data.
    pub(crate) fn blocks(&self) -> u64 {
        u64::from(self.layout.segment_count) * (u64::from(self.layout.segment_bytes) / BLOCK_BYTES)
    }

    /// Blocks that are queued for the log or on their way there.
    pub(crate) fn entering(&self) -> u64 {
        self.queue.blocks() + self.batches.blocks()
    }

    /// Whether a write would find room in the log now.
    pub(crate) fn has_room(&self, map: &Map) -> bool {
        !self.stalled
            && (map.segments().free_count() > SEGMENTS_RESERVED
                || self.head.as_ref().is_some_and(|h| h.offset() < self.layout.segment_bytes / 2))
    }

    /// Supersede records that find room in a log that is full of writes: half of a segment, the one of the reserve that is not
    /// kept for moving the tail. Whoever waits for such a record holds its blocks, which the tail may need (P7).
    pub(crate) fn room_for_supersedes(&self, map: &Map) -> usize {
        match map.segments().free_count() >= SEGMENTS_RESERVED {
            true => (self.layout.segment_bytes / self.layout.align / 2) as usize,
            false => 0,
        }
    }

    /// From now on `who` needs the records from `from` on, or none: they stay in the log.
    pub(crate) fn pin(&mut self, who: Pinner, from: Option<Seq>) {
        self.pins.set(who, from);
    }

    /// Whether a record in flight speaks of `block`.
    fn has_in_flight(&self, block: BlockNo) -> bool {
        self.batches.speaks_of(block)
    }

    /// The write of a record has ended. After a failure the log acknowledges nothing any more, whatever still completes.
    pub(crate) fn batch_done(&mut self, seq: Seq) {
        self.batches.done(seq);
    }

    /// The pieces of the record that was formed last.
    pub(crate) fn newest_pieces(&self) -> Vec<Written> {
        self.batches.newest()
    }

    /// What there is to tell next: first what is written, in order, then who waited for durability, then which claims count.
    pub(crate) fn tell(&mut self, now: Nanos) -> Option<Told> {
        if let Some(written) = self.batches.next_written() {
            self.answered += u32::from(matches!(written.owner, AppendOwner::Part(_)));
            if self.last_data >= written.seq {
                self.prove_at = Some(now.plus_ms(PROOF_AFTER_MS));
            }
            return Some(Told::Written(written));
        }
        self.queue.answered(std::mem::take(&mut self.answered), now);
        if let Some(owner) = self.batches.next_durable() {
            return Some(Told::Durable(owner));
        }
        self.claims.next_durable(self.durable_upto()).map(|tail| Told::Claimed { tail })
    }

    /// Flushes the cache if somebody waits for durability that no write brings by itself.
    pub(crate) fn flush_if_wanted(&mut self) -> Option<Ask> {
        let covers = self.batches.flush_if_wanted()?;
        Some(Ask { op: DeviceOp::Flush, class: Class::Foreground, owner: Io::Flush(covers) })
    }

    /// A flush of the cache has ended; well if it `covers` records up to some one.
    pub(crate) fn flushed(&mut self, covers: Option<Seq>) {
        self.batches.flushed(covers);
    }

    /// Nothing is dirty any more.
    pub(crate) fn all_is_clean(&mut self, now: Nanos) {
        if !self.recalls_clean(self.written_upto()) {
            self.prove_at.get_or_insert(now.plus_ms(PROOF_AFTER_MS));
        }
    }

    /// After a quiet while, a record without data proves that the last ones with data were durable, and says what is clean; while the
    /// volume `runs` and its cache has not failed.
    pub(crate) fn prove(&mut self, now: Nanos, runs: bool, map: &Map) {
        if self.prove_at.is_none_or(|at| at > now) {
            return;
        }
        self.prove_at = None;
        if !runs {
            return;
        }
        let unproven = self.last_data > self.proven;
        let untold = map.segments().dirty() == 0 && !self.recalls_clean(self.written_upto());
        if (unproven || untold) && self.last_data <= self.durable_upto() && self.is_idle() {
            self.tick(false);
        }
    }

    /// When the log has something to do although nothing happens.
    pub(crate) fn next_wake(&self, now: Nanos) -> Option<Nanos> {
        let company = self.queue.company_ends(now).filter(|_| self.batches.is_empty());
        [self.prove_at, company].into_iter().flatten().min()
    }

    /// Takes the clean copies that are still queued out again: while writers wait for room they get none.
    fn cancel_relocations(&mut self) -> Vec<BlockNo> {
        self.queue.cancel_relocations()
    }

    /// Takes the pieces of writes that are still queued out again; returns their owners, one for each piece.
    pub(crate) fn withdraw_parts(&mut self) -> Vec<PartKey> {
        self.queue.withdraw_parts()
    }

    /// Drops what has not been handed to the device (the log takes no more) and returns the owners of everything
    /// that will never be acknowledged from the log, batches in flight behind the failed one included. An owner comes without extent if
    /// all that it waits for is durability.
    pub(crate) fn abandon(&mut self) -> Vec<(AppendOwner, Option<Extent>)> {
        let mut owners: Vec<_> = self.batches.abandon().map(|p| (p.owner, p.extent)).collect();
        owners.extend(self.queue.drain().map(|a| (a.owner, a.extent)));
        owners.extend(self.batches.abandon_durable().map(|owner| (owner, None)));
        self.stalled = false;
        self.prove_at = None;
        owners
    }
}
