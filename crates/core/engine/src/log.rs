//! The log's head: appends form records, records are written in batches of which several may be in flight, and are
//! acknowledged strictly in order (hazard 7).
//!
//! ```text
//!   queue ──form──► batch in flight ──written──► (in order) index updated ──durable──► owner told
//! ```
//!
//! A record is *written* when its write and those of all earlier records have completed; it is *durable* when it and
//! all earlier ones survive a power cut. With `durability = write` each record is written durably and the two
//! coincide; with `durability = flush` a flush of the cache device makes them so.

use std::collections::VecDeque;

use forebay_block::{
    BLOCK_BYTES, BlockNo, Buf, BufMut, DeviceOp, DeviceResult, ErrorKind, IoError, Nanos, Seq,
};
use forebay_format::checksum::block_checksum;
use forebay_format::record::{
    Consistent, Extent, ExtentKind, RECORD_BLOCKS_MAX, RECORD_EXTENTS_MAX, RecordHeader, header_bytes,
};
use forebay_format::segment::SegmentHeader;
use forebay_format::summary::{SummaryBuilder, Trailer, entry_bytes};
use forebay_policy::Durability;

use crate::engine::{Engine, IoOwner, Life};
use crate::interface::{Class, PartKey, Role};
use crate::map::segments::{DIRTY, REFERENCED, SEGMENT_SLOTS_MAX, SegmentState, Slot, SlotKind, SlotRef};
use crate::mutation::Mutation;
use crate::wakes::Change;

pub(crate) mod reclaim;
pub(crate) mod recovery;

/// Most batches in flight at once.
pub(crate) const BATCHES_IN_FLIGHT_MAX: usize = 8;
/// Segments that only records which make room, or finish a bypass, may open.
pub(crate) const SEGMENTS_RESERVED: usize = 2;
/// Most records of one segment: a slot keeps its record's place in 20 bits.
const SEGMENT_RECORDS_MAX: u64 = 1 << 20;
/// A data piece is split to fill a segment only if at least this many blocks go into each part.
const SPLIT_BLOCKS_MIN: u32 = 16;
/// Where a header takes a whole block (an alignment of 4096), records of fewer blocks than this wait a moment for
/// company: four blocks share a header at a cost of 1.25 bytes for each byte.
const SHARED_BLOCKS_WANTED: u32 = 4;
/// How long such a record waits for the writers that were just answered.
const COMPANY_WAIT_NS: u64 = 25_000;
/// Idle time after which a record without data proves that everything before it was durable, so that damage to the
/// last acknowledged records cannot be mistaken for a torn write; and after which one says that everything is on the backing, so
/// that a restart does not write it there again.
const PROOF_AFTER_MS: u64 = 50;

/// Who is told when an append is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppendOwner {
    /// Data or zeroes of a write.
    Part(PartKey),
    /// The supersede record that completes a bypass.
    Supersede(PartKey),
    /// The clean copy of a bypassed write.
    CleanCopy(PartKey),
    /// A clean block moved from the tail to the head.
    Relocation(BlockNo),
    /// The mark that a block is lost, moved from the tail to the head.
    Poison(BlockNo),
    /// The clean stop.
    Stop,
    /// A stop after which clean copies must not be believed.
    StopDistrusted,
    /// Nobody: the record carries only the tail and what is proven.
    Tick,
}

/// Something to be put into the log.
#[derive(Clone, Debug)]
pub(crate) struct Append {
    pub(crate) extent: Option<Extent>,
    pub(crate) data: Option<Buf>,
    pub(crate) owner: AppendOwner,
    /// The owner is told only when the record is durable.
    pub(crate) durable: bool,
    /// The newest record that it depends on.
    pub(crate) after: Seq,
}

impl Append {
    /// Nothing, for a record that is to carry the tail and what is proven.
    fn tick(durable: bool) -> Self {
        Self { extent: None, data: None, owner: AppendOwner::Tick, durable, after: Seq(0) }
    }
}

struct Piece {
    extent: Option<Extent>,
    slots: Option<(SlotRef, u32)>,
    owner: AppendOwner,
    durable: bool,
}

struct Batch {
    seq: Seq,
    pieces: Vec<Piece>,
    done: bool,
}

/// The segment that takes the next record.
struct Head {
    index: u32,
    offset: u32,
    header_written: bool,
    summary: SummaryBuilder,
    /// As its last record says.
    tail: u64,
    clean_upto: Seq,
    ordered: Consistent,
}

/// What a record in flight says about the log as a whole; true once the record is durable.
struct Claim {
    seq: Seq,
    tail: u64,
    clean_upto: Seq,
}

/// State of the log's head.
pub(crate) struct Log {
    head: Option<Head>,
    full: VecDeque<Head>,
    next_seq: Seq,
    next_segment_seq: u64,
    queue_urgent: VecDeque<Append>,
    queue: VecDeque<Append>,
    batches: VecDeque<Batch>,
    written_upto: Seq,
    durable_upto: Seq,
    /// Newest record that was written without durability of its own.
    undurable: Seq,
    flush_under_way: bool,
    flush_wanted: Seq,
    waiting_durable: VecDeque<(Seq, AppendOwner)>,
    /// Sequence number of the oldest segment that still counts.
    pub(crate) tail: u64,
    claims: VecDeque<Claim>,
    claimed_tail: u64,
    durable_clean_upto: Seq,
    clean_upto: Seq,
    /// The last record that says that the backing is consistent, by barriers at least.
    barriers_upto: Seq,
    /// The last record that says that it is so by completion.
    completion_upto: Seq,
    /// Segment (in the order of the log) up to which `clean_upto` has been worked out.
    clean_segment: u64,
    stalled: bool,
    /// Writers are held back for the bound of staleness, or for a common point.
    held: bool,
    /// The record that begins this run where a crash may have left torn ones: nothing follows it before it is durable.
    begins: Option<Seq>,
    last_data: Seq,
    proven: Seq,
    prove_at: Option<Nanos>,
    /// Writers that were answered last and have not come again, and until when they are waited for.
    expected: u32,
    expected_until: Nanos,
}

impl Log {
    pub(crate) fn new() -> Self {
        Self {
            head: None,
            full: VecDeque::new(),
            next_seq: Seq(1),
            next_segment_seq: 1,
            queue_urgent: VecDeque::new(),
            queue: VecDeque::new(),
            batches: VecDeque::new(),
            written_upto: Seq(0),
            durable_upto: Seq(0),
            undurable: Seq(0),
            flush_under_way: false,
            flush_wanted: Seq(0),
            waiting_durable: VecDeque::new(),
            tail: 1,
            claims: VecDeque::new(),
            claimed_tail: 1,
            durable_clean_upto: Seq(0),
            clean_upto: Seq(0),
            barriers_upto: Seq(0),
            completion_upto: Seq(0),
            clean_segment: 0,
            stalled: false,
            held: false,
            begins: None,
            last_data: Seq(0),
            proven: Seq(0),
            prove_at: None,
            expected: 0,
            expected_until: Nanos(0),
        }
    }

    /// Writes wait to enter the log.
    pub(crate) fn has_writers(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether a write waits to enter the log that depends on this record or a later one.
    pub(crate) fn queues_after(&self, seq: Seq) -> bool {
        self.queue.iter().any(|a| a.after >= seq)
    }

    /// Continues a recovered log: `last` is its last record, `head` the segment that may take more records, with the
    /// byte offset where the next one goes and the summary so far.
    pub(crate) fn resume(
        &mut self,
        last: Seq,
        next_segment_seq: u64,
        tail: u64,
        clean_upto: Seq,
        ordered: Consistent,
        head: Option<(u32, u32, SummaryBuilder)>,
    ) {
        self.next_seq = last.next();
        self.next_segment_seq = next_segment_seq;
        self.written_upto = last;
        self.durable_upto = last;
        self.tail = tail;
        self.claimed_tail = tail;
        self.clean_upto = clean_upto;
        self.durable_clean_upto = clean_upto;
        self.last_data = last;
        self.note_consistent(last, ordered);
        self.head = head.map(|(index, offset, summary)| Head {
            index,
            offset,
            header_written: true,
            summary,
            tail,
            clean_upto,
            ordered,
        });
    }

    /// All records up to this one are written.
    pub(crate) fn written_upto(&self) -> Seq {
        self.written_upto
    }

    /// All records up to this one survive a power cut.
    pub(crate) fn durable_upto(&self) -> Seq {
        self.durable_upto
    }

    /// Recovery takes records up to this one for clean, whatever instant a crash picks.
    pub(crate) fn durable_clean_upto(&self) -> Seq {
        self.durable_clean_upto
    }

    /// Everything that records up to this one say is on the backing or superseded.
    pub(crate) fn clean_upto(&self) -> Seq {
        self.clean_upto
    }

    /// The first record on its way that says that everything up to `seq` is clean.
    pub(crate) fn claim_of_clean(&self, seq: Seq) -> Option<Seq> {
        self.claims.iter().find(|c| c.clean_upto >= seq).map(|c| c.seq)
    }

    /// Whether recovery takes everything in records up to this one for clean, whatever instant a crash picks. Records without data
    /// behind the last one with data have nothing that could be dirty.
    pub(crate) fn recalls_clean(&self, upto: Seq) -> bool {
        upto.min(self.last_data) <= self.durable_clean_upto
    }

    /// The last record so far, in flight or not.
    pub(crate) fn last_seq(&self) -> Seq {
        Seq(self.next_seq.0 - 1)
    }

    /// The last record that says that the backing is more consistent than that.
    pub(crate) fn said_more_than(&self, consistent: Consistent) -> Seq {
        match consistent {
            Consistent::No => self.barriers_upto,
            Consistent::Barriers => self.completion_upto,
            Consistent::Completion => Seq(0),
        }
    }

    fn note_consistent(&mut self, seq: Seq, consistent: Consistent) {
        if consistent >= Consistent::Barriers {
            self.barriers_upto = seq;
        }
        if consistent >= Consistent::Completion {
            self.completion_upto = seq;
        }
    }

    /// The record that begins the run is on its way.
    fn is_beginning(&self) -> bool {
        self.begins.is_some_and(|seq| seq < self.next_seq && seq > self.durable_upto)
    }

    /// The next record is the one that begins the run.
    fn is_to_begin(&self) -> bool {
        self.begins == Some(self.next_seq)
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
        self.queue.is_empty()
            && self.queue_urgent.is_empty()
            && self.batches.is_empty()
            && self.waiting_durable.is_empty()
            && !self.flush_under_way
    }

    /// Nothing is queued or in flight, and no data has come for a while.
    pub(crate) fn is_quiet(&self) -> bool {
        self.prove_at.is_none() && self.is_idle()
    }

    /// Takes the clean copies that are still queued out again: while writers wait for room they get none.
    pub(crate) fn cancel_relocations(&mut self) -> Vec<BlockNo> {
        let mut cancelled = Vec::new();
        self.queue.retain(|a| match a.owner {
            AppendOwner::Relocation(block) => {
                cancelled.push(block);
                false
            }
            _ => true,
        });
        cancelled
    }

    /// Takes the pieces of writes that are still queued out again; returns their owners, one for each piece.
    pub(crate) fn withdraw_parts(&mut self) -> Vec<PartKey> {
        let mut parts = Vec::new();
        self.queue.retain(|a| match a.owner {
            AppendOwner::Part(key) => {
                parts.push(key);
                false
            }
            _ => true,
        });
        parts
    }

    /// Drops what has not been handed to the device (the log takes no more) and returns the owners of everything
    /// that will never be acknowledged from the log, batches in flight behind the failed one included.
    pub(crate) fn abandon(&mut self) -> Vec<(AppendOwner, Option<Extent>)> {
        let mut owners: Vec<_> = std::mem::take(&mut self.batches)
            .into_iter()
            .flat_map(|b| b.pieces)
            .map(|p| (p.owner, p.extent))
            .collect();
        owners.extend(self.queue_urgent.drain(..).map(|a| (a.owner, a.extent)));
        owners.extend(self.queue.drain(..).map(|a| (a.owner, a.extent)));
        owners.extend(self.waiting_durable.drain(..).map(|(_, owner)| (owner, None)));
        self.stalled = false;
        self.prove_at = None;
        owners
    }
}

impl Engine {
    /// Most blocks of one piece: a record with it must fit an empty segment.
    pub(crate) fn piece_blocks_max(&self) -> u32 {
        let overhead = 5 * 4096;
        (((self.layout.segment_bytes - overhead) / BLOCK_BYTES as u32) * 15 / 16).clamp(1, 256)
    }

    /// Blocks that the log would hold if it had nothing but their data.
    pub(crate) fn log_blocks(&self) -> u64 {
        self.map.segments.count() as u64 * (u64::from(self.layout.segment_bytes) / BLOCK_BYTES)
    }

    /// Blocks that are queued for the log or on their way there.
    pub(crate) fn log_entering(&self) -> u64 {
        let queued = self.log.queue.iter().filter_map(|a| a.extent.as_ref());
        let in_flight = self.log.batches.iter().flat_map(|b| &b.pieces).filter_map(|p| p.extent.as_ref());
        queued.chain(in_flight).map(|e| u64::from(e.count)).sum()
    }

    /// Puts data or marks of a write into the log, behind everything queued before.
    pub(crate) fn log_append(&mut self, append: Append) {
        self.log.expected = self.log.expected.saturating_sub(1);
        self.log.queue.push_back(append);
    }

    /// Puts what makes room or finishes a bypass into the log, ahead of writes, from the reserve if need be.
    pub(crate) fn log_append_urgent(&mut self, append: Append) {
        self.log.queue_urgent.push_back(append);
    }

    /// Sees to it that a record carries the present tail, clean mark and proof; alone if no write takes them along.
    pub(crate) fn log_tick(&mut self, durable: bool) {
        match self.log.queue_urgent.back_mut() {
            Some(last) => last.durable |= durable,
            None => self.log_append_urgent(Append::tick(durable)),
        }
    }

    /// Sees to it that a durable record says that everything up to `upto` is clean, if it is; one that is on its way is as good as another.
    pub(crate) fn log_tell_clean(&mut self, upto: Seq) {
        if self.failure.latched() || self.log.recalls_clean(upto) {
            return;
        }
        match self.log.claim_of_clean(upto.min(self.log.last_data)) {
            Some(seq) => self.log_want_durable(seq),
            None => self.log_tick(true),
        }
    }

    /// After a crash the run's first record will have no data, and nothing follows it before it is durable. A record that was torn
    /// at the log's end, under the same number, may have a whole header: if the run's first record put equal data behind it, and
    /// a crash kept that data but not the new header, the torn one would be whole, and what was seen to be lost would be back (P3).
    /// `docs/design/recovery.md` has the cases.
    pub(crate) fn log_begin_after_crash(&mut self) {
        self.log.begins = Some(self.log.next_seq).filter(|_| !self.mutant(Mutation::BeginsWithData));
    }

    /// Whether a record in flight or durable already carries this tail.
    pub(crate) fn log_claimed_tail(&self) -> u64 {
        self.log.claimed_tail
    }

    /// Whether a write would find room in the log now.
    pub(crate) fn log_has_room(&self) -> bool {
        !self.log.stalled
            && (self.map.segments.free_count() > SEGMENTS_RESERVED
                || self.log.head.as_ref().is_some_and(|h| h.offset < self.layout.segment_bytes / 2))
    }

    /// Supersede records that find room in a log that is full of writes: half of a segment, the one of the reserve that is not
    /// kept for moving the tail. Whoever waits for such a record holds its blocks, which the tail may need (P7).
    pub(crate) fn log_room_for_supersedes(&self) -> usize {
        match self.map.segments.free_count() >= SEGMENTS_RESERVED {
            true => (self.layout.segment_bytes / self.layout.align / 2) as usize,
            false => 0,
        }
    }

    /// Whether a record in flight speaks of `block`.
    pub(crate) fn log_has_in_flight(&self, block: BlockNo) -> bool {
        let speaks = |e: &Extent| e.block <= block && block.0 < e.block.0 + u64::from(e.count);
        self.log.batches.iter().flat_map(|b| &b.pieces).any(|p| p.extent.as_ref().is_some_and(speaks))
    }

    /// Makes records up to `seq` survive a power cut, by a flush if need be.
    pub(crate) fn log_want_durable(&mut self, seq: Seq) {
        self.log.flush_wanted = self.log.flush_wanted.max(seq);
    }

    /// Ends the open segment, so that what is in it can become a clean whole (a command waits for that); but not one from
    /// the reserve, which takes no writes: its room may be the last for marks that have to go before the tail can move.
    pub(crate) fn log_roll_head(&mut self) {
        let dirty = |e: &Self, h: &Head| e.map.segments.get(h.index).dirty > 0;
        let spare = self.map.segments.free_count() >= SEGMENTS_RESERVED;
        if spare && self.log.head.as_ref().is_some_and(|h| dirty(self, h)) {
            self.seal_head();
        }
    }

    /// Forms records from what is queued, as many as may be in flight.
    pub(crate) fn log_form_batches(&mut self) {
        if self.failure.latched() {
            return;
        }
        let stalled_before = std::mem::take(&mut self.log.stalled);
        self.log.held = self.order_paces() | self.staleness_holds() || self.common_holds();
        while self.log.batches.len() < BATCHES_IN_FLIGHT_MAX && !self.log.is_beginning() {
            if self.log.is_to_begin() {
                self.log_queue_beginning();
            }
            let urgent = !self.log.queue_urgent.is_empty();
            if !urgent && (self.log.queue.is_empty() || self.log.held || self.log_waits_for_company()) {
                // Whoever is held back finds as little room as before: it must go on being made (P7).
                let full = self.log.held && self.map.segments.free_count() <= SEGMENTS_RESERVED;
                self.log.stalled = stalled_before && full && !self.log.queue.is_empty();
                break;
            }
            let reserved = !urgent && self.map.segments.free_count() < SEGMENTS_RESERVED;
            let reserved = reserved && !self.mutant(Mutation::ForgetsReserve);
            if reserved || self.log.head.is_none() && !self.open_head(urgent) {
                self.log.stalled = !self.log.queue.is_empty();
                break;
            }
            let taken = self.take_pieces();
            if taken.is_empty() {
                self.seal_head();
                continue;
            }
            self.start_batch(taken);
        }
        self.figures.stalls += u64::from(self.log.stalled && !stalled_before);
    }

    /// What begins the run comes before the first that is queued.
    fn log_queue_beginning(&mut self) {
        let is_there = self.log.queue_urgent.front().is_some_and(|a| a.extent.is_none() && a.durable);
        let nothing_comes = self.log.queue_urgent.is_empty() && self.log.queue.is_empty();
        if !is_there && !nothing_comes {
            self.log.queue_urgent.push_front(Append::tick(true));
        }
    }

    /// Whether a small record would rather wait for others to share its header with: until the record in flight is
    /// done, or until the writers that it answered have come again. A lone writer never waits: when it comes, nobody
    /// else is expected.
    fn log_waits_for_company(&self) -> bool {
        if self.layout.align == 512 {
            return false;
        }
        let company =
            !self.log.batches.is_empty() || (self.log.expected > 0 && self.now < self.log.expected_until);
        let mut blocks = 0u32;
        let small = |a: &Append| {
            blocks = blocks.saturating_add(a.extent.map_or(0, |e| e.count));
            blocks < SHARED_BLOCKS_WANTED
        };
        company && self.log.queue.iter().take(SHARED_BLOCKS_WANTED as usize).all(small)
    }

    /// Opens a segment if one may be opened for such a record. Writes leave the reserve alone, and of the reserve the
    /// last segment is for a record that moves the tail: without it a full log could not even say that a segment has
    /// become free.
    fn open_head(&mut self, urgent: bool) -> bool {
        let reserve = match urgent {
            // The last records of a stop: nothing comes after them, and a restart finds room behind them.
            true if self.commands.settling() => 0,
            true if self.log.tail > self.log.claimed_tail => 0,
            true => 1,
            false if self.mutant(Mutation::ForgetsReserve) => 0,
            false => SEGMENTS_RESERVED,
        };
        if self.map.segments.free_count() <= reserve {
            return false;
        }
        let Some(index) = self.map.segments.take_free() else {
            return false;
        };
        let seq = self.log.next_segment_seq;
        self.log.next_segment_seq += 1;
        let time = self.wall_ns();
        self.map.segments.open(index, seq, self.log.next_seq, time, self.layout.generation);
        let offset = self.layout.align;
        self.log.head = Some(Head {
            index,
            offset,
            header_written: false,
            summary: SummaryBuilder::default(),
            tail: self.log.tail,
            clean_upto: self.log.clean_upto,
            ordered: Consistent::No,
        });
        true
    }

    fn seal_head(&mut self) {
        let Some(head) = self.log.head.take() else { return };
        self.map.segments.get_mut(head.index).state = SegmentState::Full;
        self.map.segments.shrink(head.index);
        let last = self.map.segments.get(head.index).last_seq;
        self.log_want_durable(last);
        self.log.full.push_back(head);
    }

    /// Takes from the queues what fits the next record; empty if the segment is full for it.
    fn take_pieces(&mut self) -> Vec<Append> {
        let mut taken = Vec::new();
        let (mut extents, mut blocks, mut slots) = (0usize, 0u32, 0usize);
        let Some(head) = &self.log.head else { return taken };
        // Of all runs that wrote to the segment: recovery holds the log to that, whatever was clean by then.
        let slots_used = head.summary.blocks();
        let segment = self.map.segments.get(head.index);
        if self.log.next_seq.0 - segment.first_seq.0 >= SEGMENT_RECORDS_MAX {
            return taken;
        }
        let fits = |extents: usize, blocks: u32, slots: usize| {
            let record = header_bytes(self.layout.align, extents, blocks as usize) + blocks as usize * 4096;
            let summary = head.summary.bytes_with(entry_bytes(extents, blocks as usize), self.layout.align);
            head.offset as usize + record + summary <= self.layout.segment_bytes as usize
                && blocks <= RECORD_BLOCKS_MAX
                && extents <= RECORD_EXTENTS_MAX as usize
                && slots_used + slots < SEGMENT_SLOTS_MAX
        };
        let reserved = self.map.segments.free_count() < SEGMENTS_RESERVED
            && !self.mutant(Mutation::ForgetsReserve)
            || self.log.held;
        let alone = self.log.is_to_begin();
        while !alone || taken.is_empty() {
            // A segment that was opened from the reserve takes no writes, else they would use the reserve up.
            let queue = match (self.log.queue_urgent.is_empty(), reserved) {
                (false, _) => &mut self.log.queue_urgent,
                (true, false) => &mut self.log.queue,
                (true, true) => break,
            };
            let Some(front) = queue.front_mut() else { break };
            let (b, s) = front.extent.map_or((0, 0), |e| {
                let b = if e.kind.has_data() { e.count } else { 0 };
                (b, if e.kind == ExtentKind::Supersede { 0 } else { e.count as usize })
            });
            let e = usize::from(front.extent.is_some());
            if fits(extents + e, blocks + b, slots + s) {
                (extents, blocks, slots) = (extents + e, blocks + b, slots + s);
                taken.extend(queue.pop_front());
                continue;
            }
            let room = (SPLIT_BLOCKS_MIN..b.saturating_sub(SPLIT_BLOCKS_MIN))
                .rev()
                .find(|n| fits(extents + 1, blocks + n, slots + *n as usize));
            let split = room.and_then(|n| front.split_front(n));
            if let Some(first) = split {
                self.part_piece_split(first.owner);
                taken.push(first);
            }
            break;
        }
        taken
    }

    fn start_batch(&mut self, taken: Vec<Append>) {
        let Some(mut head) = self.log.head.take() else {
            return;
        };
        let seq = self.log.next_seq;
        self.log.next_seq = seq.next();
        self.map.note_moment(seq, self.wall_ns());
        let (index, first_seq) = (head.index, self.map.segments.get(head.index).first_seq);
        self.log_work_out_clean();
        let after = taken.iter().map(|a| a.after).max().unwrap_or_default();
        self.order.formed(seq, after);
        let mut record = RecordHeader {
            generation: if self.mutant(Mutation::ForgetsGeneration) { 1 } else { self.layout.generation },
            segment_seq: self.map.segments.get(index).seq,
            seq,
            offset: head.offset,
            durable_upto: self.log.durable_upto,
            clean_upto: self.log.clean_upto,
            tail: self.log.tail,
            time_ns: self.wall_ns(),
            clean_stop: taken.iter().any(|a| a.owner == AppendOwner::Stop),
            ordered: self.backing_consistent(),
            distance: crate::order::distance(seq, after),
            extents: taken.iter().filter_map(|a| a.extent).collect(),
            checksums: Vec::new(),
        };
        self.map.segments.push_record(index, record.distance);
        if self.mutant(Mutation::OrderForgetsDistance) {
            record.distance = u16::MAX;
        }
        let covered = if self.mutant(Mutation::StaleSequenceInChecksum) { Seq(seq.0 - 1) } else { seq };
        for a in &taken {
            if let (Some(e), Some(data)) = (a.extent, &a.data) {
                for n in 0..u64::from(e.count) {
                    let at = (n * BLOCK_BYTES) as usize;
                    record.checksums.push(block_checksum(e.block.plus(n), covered, &data[at..at + 4096]));
                }
            }
        }
        let mut bufs = Vec::with_capacity(taken.len() + 1);
        let pieces = self.lay_out(&record, taken, index, first_seq, &mut bufs);
        let write_at = self.frame(&record, &mut head, &mut bufs);
        head.summary.push(&record, self.layout.align);
        head.offset += record.record_bytes(self.layout.align) as u32;
        head.tail = record.tail;
        head.clean_upto = record.clean_upto;
        head.ordered = record.ordered;
        self.log.note_consistent(seq, record.ordered);
        self.map.segments.get_mut(index).last_seq = seq;
        self.log.head = Some(head);
        self.log.claims.push_back(Claim { seq, tail: record.tail, clean_upto: record.clean_upto });
        self.log.claimed_tail = record.tail;
        self.log.proven = record.durable_upto;
        if !record.extents.is_empty() {
            self.log.last_data = seq;
        }
        self.figures.records += 1;
        let durable = self.settings.durability == Durability::Write;
        if !durable {
            self.log.undurable = seq;
        }
        if self.mutant(Mutation::IndexesAtSubmission) {
            pieces.iter().for_each(|p| self.piece_written(p));
        }
        let done = self.mutant(Mutation::AcknowledgesBeforeWrite);
        self.log.batches.push_back(Batch { seq, pieces, done });
        let offset = self.layout.segment_offset(index) + u64::from(write_at);
        let durable = durable && !self.mutant(Mutation::WritesVolatile);
        let op = DeviceOp::Write { offset, bufs, durable };
        self.io(Role::Cache, op, Class::Foreground, IoOwner::Batch(seq));
    }

    /// Gives each block of the record its slot, and collects the data in the record's order.
    fn lay_out(
        &mut self,
        record: &RecordHeader,
        taken: Vec<Append>,
        index: u32,
        first_seq: Seq,
        bufs: &mut Vec<Buf>,
    ) -> Vec<Piece> {
        let mut data_at = record.offset + record.header_bytes(self.layout.align) as u32;
        let mut checksums = record.checksums.iter();
        let mut pieces = Vec::with_capacity(taken.len());
        for a in taken {
            let mut slots = None;
            if let Some(e) = a.extent {
                let kind = match e.kind {
                    ExtentKind::Data | ExtentKind::Clean => Some(SlotKind::Data),
                    ExtentKind::Zero => Some(SlotKind::Zero),
                    ExtentKind::Poison => Some(SlotKind::Poison),
                    ExtentKind::Supersede => None,
                };
                for (n, kind) in (0..u64::from(e.count)).zip(std::iter::repeat(kind)) {
                    let Some(kind) = kind else { break };
                    let (offset, sum) = match kind {
                        SlotKind::Data => (data_at, checksums.next().copied().unwrap_or_default()),
                        _ => (0, 0),
                    };
                    let slot = Slot::new(e.block.plus(n), offset, sum, kind, record.seq, first_seq);
                    let r = self.map.segments.push(index, slot);
                    slots.get_or_insert((r, e.count));
                    if kind == SlotKind::Data {
                        data_at += BLOCK_BYTES as u32;
                    }
                }
            }
            bufs.extend(a.data);
            pieces.push(Piece { extent: a.extent, slots, owner: a.owner, durable: a.durable });
        }
        pieces
    }

    /// Encodes the record's header, and before the first record of a segment the segment's header, in front of the
    /// data; returns the byte offset in the segment where the write begins.
    fn frame(&self, record: &RecordHeader, head: &mut Head, bufs: &mut Vec<Buf>) -> u32 {
        let align = self.layout.align as usize;
        let len = record.header_bytes(self.layout.align);
        let lead = if head.header_written { 0 } else { align };
        let mut frame = BufMut::zeroed(lead + len);
        if !head.header_written {
            let segment = self.map.segments.get(head.index);
            let header = SegmentHeader {
                generation: segment.generation,
                segment_seq: segment.seq,
                first_seq: segment.first_seq,
                index: head.index,
            };
            header.encode(&self.layout, &mut frame);
            head.header_written = true;
        }
        record.encode(&self.layout, &mut frame[lead..]);
        bufs.insert(0, frame.freeze());
        record.offset - lead as u32
    }

    pub(crate) fn batch_done(&mut self, seq: Seq, result: DeviceResult) {
        if let Err(error) = result
            && !self.mutant(Mutation::IgnoresFailedWrite)
        {
            self.figures.cache_errors += 1;
            self.failure_latch(error);
        }
        // After a failure the log acknowledges nothing any more, whatever still completes.
        if let Some(batch) = self.log.batches.iter_mut().find(|b| b.seq == seq) {
            batch.done = true;
            if self.planted.is(Mutation::AcknowledgesOutOfOrder) {
                let owners: Vec<AppendOwner> = batch.pieces.iter().map(|p| p.owner).collect();
                owners
                    .into_iter()
                    .filter(|o| matches!(o, AppendOwner::Part(_)))
                    .for_each(|o| self.append_done(o));
            }
        }
    }

    /// Acknowledges, in order, what is written; and what waited for durability.
    pub(crate) fn log_acknowledge(&mut self) {
        let mut answered = 0;
        while self.log.batches.front().is_some_and(|b| b.done) {
            let Some(batch) = self.log.batches.pop_front() else {
                break;
            };
            assert_eq!(batch.seq, self.log.written_upto.next(), "acknowledged in order (hazard 7)");
            self.log.written_upto = batch.seq;
            self.log_work_out_durable();
            for piece in batch.pieces {
                answered += u32::from(matches!(piece.owner, AppendOwner::Part(_)));
                if !self.mutant(Mutation::IndexesAtSubmission) {
                    self.piece_written(&piece);
                }
                if let (AppendOwner::Part(key), Some(slots)) = (piece.owner, piece.slots) {
                    self.landing_is_logged(key, batch.seq, slots);
                }
                if piece.durable && batch.seq > self.log.durable_upto {
                    self.log_want_durable(batch.seq);
                    self.log.waiting_durable.push_back((batch.seq, piece.owner));
                } else {
                    self.append_done(piece.owner);
                }
            }
            if self.log.last_data >= batch.seq {
                self.log.prove_at = Some(self.now.plus_ms(PROOF_AFTER_MS));
            }
        }
        if answered > 0 {
            self.log.expected = answered;
            self.log.expected_until = Nanos(self.now.0 + COMPANY_WAIT_NS);
        }
        self.log_after_durable();
        self.log_prove();
    }

    /// Makes the piece's slots the current version of their blocks. Exactly here a write becomes visible to reads:
    /// what a read returns is in the log already (P2 and P3 hold across a crash).
    fn piece_written(&mut self, piece: &Piece) {
        let Some(extent) = piece.extent else { return };
        let dirty = extent.kind != ExtentKind::Clean;
        let Some((first, count)) = piece.slots else { return };
        for n in 0..count {
            let slot = SlotRef(first.0 + n);
            let block = self.map.segments.slot(slot).block();
            let referenced = self.make_current(block, slot, dirty);
            if dirty && referenced {
                self.map.segments.mark(slot, REFERENCED, true);
            }
        }
    }

    /// Puts `slot` into the index as the current version of `block`; true if there was one before.
    pub(crate) fn make_current(&mut self, block: BlockNo, slot: SlotRef, dirty: bool) -> bool {
        let old = self.map.index.insert(block, slot, &self.map.segments);
        if dirty {
            let replaced = old.filter(|old| self.map.segments.slot(*old).has(DIRTY));
            self.journal.version_added(self.now, replaced.map(|old| self.map.segments.seq(old)));
        }
        if let Some(old) = old {
            self.command_owes(block, old);
            let keep_dirty = self.order_keeps(old);
            self.untrack(old);
            self.map.segments.ceased_current(old, keep_dirty);
        }
        self.map.segments.became_current(slot, dirty);
        self.wakes.raise(Change::Current);
        old.is_some()
    }

    fn append_done(&mut self, owner: AppendOwner) {
        match owner {
            AppendOwner::Part(part) => self.part_piece_done(part),
            AppendOwner::Supersede(part) => self.supersede_done(part),
            AppendOwner::CleanCopy(part) => self.clean_copy_done(part),
            AppendOwner::Relocation(block) => self.relocation_done(block),
            AppendOwner::Poison(block) => self.poison_done(block),
            AppendOwner::Stop | AppendOwner::StopDistrusted => self.stop_record_done(),
            AppendOwner::Tick => {}
        }
    }

    fn log_work_out_durable(&mut self) {
        if self.log.undurable <= self.log.durable_upto || self.mutant(Mutation::SkipsCacheFlush) {
            self.log.durable_upto = self.log.written_upto;
        }
    }

    /// What follows from a greater `durable_upto`: owners are told, claims become true, summaries are written.
    fn log_after_durable(&mut self) {
        let durable = self.log.durable_upto;
        while self.log.waiting_durable.front().is_some_and(|(seq, _)| *seq <= durable) {
            if let Some((_, owner)) = self.log.waiting_durable.pop_front() {
                self.append_done(owner);
            }
        }
        while self.log.claims.front().is_some_and(|c| c.seq <= durable) {
            if let Some(claim) = self.log.claims.pop_front() {
                self.log.durable_clean_upto = self.log.durable_clean_upto.max(claim.clean_upto);
                // What waited for this to be durable may go on: the next set, and bypasses.
                let awaited = self.order.bypass_waits() || self.requests.supersede_waits();
                self.wakes.raise(Change::Claimed { awaited });
                self.reclaim_retire_below(claim.tail);
            }
        }
        let ready = |e: &Self, full: &Head| e.map.segments.get(full.index).last_seq <= durable;
        while !self.failure.latched() && self.log.full.front().is_some_and(|full| ready(self, full)) {
            if let Some(full) = self.log.full.pop_front() {
                self.write_summary(full);
            }
        }
    }

    fn write_summary(&mut self, full: Head) {
        let index = full.index;
        let segment = self.map.segments.get(index);
        assert!(segment.last_seq <= self.log.durable_upto, "a summary speaks only of durable records");
        let trailer = Trailer {
            generation: self.layout.generation,
            segment_seq: segment.seq,
            first_seq: segment.first_seq,
            last_seq: segment.last_seq,
            clean_upto: full.clean_upto,
            tail: full.tail,
            time_first_ns: segment.time_first_ns,
            time_last_ns: self.wall_ns(),
            body_bytes: 0,
            body_crc: 0,
            records: 0,
            ordered: full.ordered,
        };
        let bytes = full.summary.finish(&self.layout, trailer);
        let end = self.layout.segment_offset(index) + u64::from(self.layout.segment_bytes);
        let op = DeviceOp::Write {
            offset: end - bytes.len() as u64,
            bufs: vec![Buf::copy_of(&bytes)],
            durable: false,
        };
        self.io(Role::Cache, op, Class::Background, IoOwner::Summary(index));
    }

    /// A summary that could not be written costs recovery time, not data: the segment is read through then.
    pub(crate) fn summary_done(&mut self, index: u32, result: DeviceResult) {
        self.figures.cache_errors += u64::from(result.is_err());
        self.map.segments.get_mut(index).state = SegmentState::Sealed;
    }

    /// Flushes the cache if somebody waits for durability that no write brings by itself.
    pub(crate) fn log_flush_if_wanted(&mut self) {
        let log = &self.log;
        let wanted = log.flush_wanted > log.durable_upto && log.undurable > log.durable_upto;
        let possible = log.written_upto > log.durable_upto && !log.flush_under_way;
        if wanted && possible && !self.failure.latched() {
            let covers = log.written_upto;
            self.log.flush_under_way = true;
            self.io(Role::Cache, DeviceOp::Flush, Class::Foreground, IoOwner::CacheFlush(covers));
        }
    }

    pub(crate) fn cache_flush_done(&mut self, covers: Seq, result: DeviceResult) {
        self.log.flush_under_way = false;
        match result {
            Ok(_) if !self.failure.latched() => {
                let late = self.mutant(Mutation::FlushCoversTooMuch);
                let covers = if late { self.log.written_upto } else { covers };
                self.log.durable_upto = self.log.durable_upto.max(covers);
                self.log_work_out_durable();
            }
            Ok(_) => {}
            Err(_) if self.mutant(Mutation::RetriesFailedFlush) => {}
            Err(error) => {
                self.figures.cache_errors += 1;
                self.failure_latch(error);
            }
        }
    }

    /// Moves `clean_upto` over segments without dirty blocks, oldest first.
    pub(crate) fn log_work_out_clean(&mut self) {
        if let Some(progress) = self.order.progress() {
            self.log.clean_upto = self.log.clean_upto.max(progress);
            return;
        }
        for s in self.map.segments.live_from(self.log.clean_segment) {
            if s.dirty > 0 && !self.planted.is(Mutation::CleanMarkTooEarly) {
                break;
            }
            if s.state == SegmentState::Open || s.last_seq > self.log.written_upto {
                self.log.clean_upto = self.log.clean_upto.max(self.log.written_upto.min(s.last_seq));
                break;
            }
            self.log.clean_upto = self.log.clean_upto.max(s.last_seq);
            self.log.clean_segment = s.seq + 1;
        }
    }

    /// Nothing is dirty any more.
    pub(crate) fn log_is_clean(&mut self) {
        if !self.log.recalls_clean(self.log.written_upto) {
            self.log.prove_at.get_or_insert(self.now.plus_ms(PROOF_AFTER_MS));
        }
    }

    /// After a quiet while, a record without data proves that the last ones with data were durable, and says what is clean.
    fn log_prove(&mut self) {
        if self.log.prove_at.is_none_or(|at| at > self.now) {
            return;
        }
        self.log.prove_at = None;
        if self.life != Life::Running || self.failure.latched() {
            return;
        }
        let unproven = self.log.last_data > self.log.proven;
        let untold = self.map.segments.dirty() == 0 && !self.log.recalls_clean(self.log.written_upto);
        if (unproven || untold) && self.log.last_data <= self.log.durable_upto && self.log.is_idle() {
            self.log_tick(false);
        }
    }

    pub(crate) fn log_next_wake(&self) -> Option<Nanos> {
        let company = !self.log.queue.is_empty() && self.log.batches.is_empty() && self.log.expected > 0;
        let company = company.then_some(self.log.expected_until).filter(|at| *at > self.now);
        [self.log.prove_at, company].into_iter().flatten().min()
    }

    /// The error for writes that the log cannot take any more.
    pub(crate) fn log_failed_error() -> IoError {
        IoError::new(ErrorKind::Io, "the cache failed a durable write")
    }
}

impl Append {
    /// Cuts the first `blocks` blocks off; both parts tell the owner, who counts pieces.
    fn split_front(&mut self, blocks: u32) -> Option<Append> {
        let (e, data) = (self.extent.as_mut()?, self.data.as_mut()?);
        let bytes = blocks as usize * BLOCK_BYTES as usize;
        let front = Append {
            extent: Some(Extent { count: blocks, ..*e }),
            data: Some(data.slice(0, bytes)),
            owner: self.owner,
            durable: self.durable,
            after: self.after,
        };
        *data = data.slice(bytes, data.len() - bytes);
        e.block = e.block.plus(u64::from(blocks));
        e.count -= blocks;
        Some(front)
    }
}
