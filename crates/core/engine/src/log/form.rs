//! Forming records from what is queued.
//!
//! ```text
//!  queue ─► may it go now? ─► a segment is open, or may be opened ─► as much as fits ─► record ─► its write
//!            │ held back, waits for company      │ no room: writers wait      └─ nothing fits: the segment is full
//! ```
//!
//! 1. Writes never open a segment of the reserve ([`SEGMENTS_RESERVED`]), nor enter one that was opened from it. Of the reserve the
//!    last segment is for a record that moves the tail: without it a full log could not even say that a segment has become free.
//! 2. The first record of a run after a crash stands alone, has no data, and nothing follows it before it is durable.
//! 3. A record fits its segment together with the summary.

use forebay_block::{DeviceOp, Nanos, Seq};
use forebay_format::record::{Consistent, RecordHeader};
use forebay_policy::{Durability, Priority};

use crate::interface::Class;
use crate::log::head::{Head, Size, checksums, lay_out};
use crate::log::queue::{Append, AppendOwner, Go, May};
use crate::log::{Ask, Io, Log};
use crate::map::Map;
use crate::mutation::Mutation;

/// Segments that only records which make room, or finish a bypass, may open.
pub(crate) const SEGMENTS_RESERVED: usize = 2;
/// Most records of one segment: a slot keeps its record's place in 20 bits.
const SEGMENT_RECORDS_MAX: u64 = 1 << 20;
/// A data piece is split to fill a segment only if at least this many blocks go into each part.
const SPLIT_BLOCKS_MIN: u32 = 16;

/// Blocks of one record from which on no further write joins it, where writers are slowed down.
const SLOW_BLOCKS_MAX: u32 = 16;

/// What forming a record depends on beside the log and the map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) now: Nanos,
    /// The same, nanoseconds since 1970.
    pub(crate) wall_ns: u64,
    pub(crate) durability: Durability,
    /// How consistent the backing is.
    pub(crate) consistent: Consistent,
    /// Up to which record all is on the backing, where records are destaged in an order.
    pub(crate) progress: Option<Seq>,
    /// Writers are held back, for the order, for the bound of staleness or for a common point.
    pub(crate) held: bool,
    /// Which of them the throttle lets go.
    pub(crate) may: May,
    /// These are the last records of a stop: nothing comes after them, and a restart finds room behind them.
    pub(crate) settling: bool,
}

/// A round of forming records.
#[derive(Clone, Copy)]
pub(crate) struct Round {
    /// Writers waited for room before.
    stalled: bool,
}

/// A record that was formed.
pub(crate) struct Formed {
    pub(crate) seq: Seq,
    /// The newest record that one of its writes depends on.
    pub(crate) after: Seq,
    /// Of this owner's append the record has a part only: there is one more piece to be told of.
    pub(crate) split: Option<AppendOwner>,
    /// Which kind of writes it has, if any. Nothing else of it has data.
    pub(crate) kind: Option<Priority>,
    pub(crate) ask: Ask,
}

/// What goes into a record.
#[derive(Default)]
struct Taken {
    taken: Vec<Append>,
    /// So many of these are writes.
    writes: usize,
    /// The owner whose append was cut in two for that.
    split: Option<AppendOwner>,
}

impl Log {
    /// How far behind record `seq` the newest record lies that it depends on, as it is written down: at least 1, at most 65,535.
    pub(crate) fn distance(seq: Seq, after: Seq) -> u16 {
        u16::try_from(seq.0.saturating_sub(after.0)).unwrap_or(u16::MAX).max(1)
    }

    /// Begins a round of forming records: who waits for room is found out anew.
    pub(crate) fn begin_round(&mut self) -> Round {
        Round { stalled: std::mem::take(&mut self.stalled) }
    }

    /// Forms the next record, if one may be formed now.
    pub(crate) fn form(&mut self, round: Round, facts: &Facts, map: &mut Map) -> Option<Formed> {
        while self.batches.has_room() && !self.is_beginning() {
            if self.is_to_begin() {
                self.queue.begin();
            }
            let urgent = self.queue.has_urgent();
            let kind = self.queue.next_kind(facts.may).filter(|_| !facts.held);
            let waits = |kind| {
                self.queue.waits_for_company(kind, self.layout.align, !self.batches.is_empty(), facts.now)
            };
            if !urgent && kind.is_none_or(waits) {
                // Whoever is held back finds as little room as before: it must go on being made (P7).
                let held = facts.held || kind.is_none();
                let full = held && map.segments().free_count() <= SEGMENTS_RESERVED;
                self.stalled = round.stalled && full && self.queue.has_writes();
                return None;
            }
            let reserved = !urgent && self.leaves_reserve(map);
            if reserved || self.head.is_none() && !self.open_head(urgent, facts, map) {
                self.stalled = self.queue.has_writes();
                return None;
            }
            let Taken { taken, writes, split } = self.take_pieces(kind, facts, map);
            if taken.is_empty() {
                self.seal_head(map);
                continue;
            }
            return self.start(taken, split, kind.filter(|_| writes > 0), facts, map);
        }
        None
    }

    /// Whether the round has ended with writers who wait for room and did not before.
    pub(crate) fn has_stalled(&self, round: Round) -> bool {
        self.stalled && !round.stalled
    }

    /// Only the reserve is left, and writes have to leave it alone.
    fn leaves_reserve(&self, map: &Map) -> bool {
        map.segments().free_count() < SEGMENTS_RESERVED && !self.planted.is(Mutation::ForgetsReserve)
    }

    /// Opens a segment if one may be opened for such a record.
    fn open_head(&mut self, urgent: bool, facts: &Facts, map: &mut Map) -> bool {
        let reserve = match urgent {
            true if facts.settling || self.tail > self.claims.tail() => 0,
            true => 1,
            false if self.planted.is(Mutation::ForgetsReserve) => 0,
            false => SEGMENTS_RESERVED,
        };
        if map.segments().free_count() <= reserve {
            return false;
        }
        let Some(index) = map.segments_mut().take_free() else {
            return false;
        };
        let seq = self.next_segment_seq;
        self.next_segment_seq += 1;
        map.segments_mut().open(index, seq, self.next_seq, facts.wall_ns, self.layout.generation);
        self.head = Some(Head::new(index, &self.layout));
        true
    }

    /// The open segment takes no more records; it gets its summary when they are durable.
    fn seal_head(&mut self, map: &mut Map) {
        let Some(head) = self.head.take() else { return };
        map.segments_mut().fill(head.index);
        self.batches.want_durable(map.segments().get(head.index).last_seq);
        self.full.push_back(head);
    }

    /// Ends the open segment, so that what is in it can become a clean whole (a command waits for that); but not one from
    /// the reserve, which takes no writes: its room may be the last for marks that have to go before the tail can move.
    pub(crate) fn roll_head(&mut self, map: &mut Map) {
        let spare = map.segments().free_count() >= SEGMENTS_RESERVED;
        if spare && self.head.as_ref().is_some_and(|h| map.segments().get(h.index).dirty > 0) {
            self.seal_head(map);
        }
    }

    /// Takes from the queues what fits the next record, nothing if the segment is full for it.
    fn take_pieces(&mut self, kind: Option<Priority>, facts: &Facts, map: &Map) -> Taken {
        let (mut out, mut size) = (Taken::default(), Size::default());
        let writes = kind.filter(|_| !self.leaves_reserve(map));
        let slowly = writes.filter(|kind| facts.may.go(*kind) == Go::Slowly);
        let portion = slowly.map(|kind| self.queue.portion(kind));
        let alone = self.is_to_begin();
        let Some(head) = &self.head else { return out };
        if self.next_seq.0 - map.segments().get(head.index).first_seq.0 >= SEGMENT_RECORDS_MAX {
            return out;
        }
        while !alone || out.taken.is_empty() {
            let urgent = self.queue.has_urgent();
            if !urgent && portion.is_some_and(|most| out.writes >= most || size.blocks >= SLOW_BLOCKS_MAX) {
                break;
            }
            let Some(queue) = self.queue.next_from(writes) else { break };
            let Some(front) = queue.front_mut() else { break };
            let more = Size::of(front.extent.as_ref());
            if head.fits(&self.layout, size.plus(more)) {
                size = size.plus(more);
                out.taken.extend(queue.pop_front());
                out.writes += usize::from(!urgent);
                continue;
            }
            let part = |n: u32| size.plus(Size { extents: 1, blocks: n, slots: n as usize });
            let room = (SPLIT_BLOCKS_MIN..more.blocks.saturating_sub(SPLIT_BLOCKS_MIN))
                .rev()
                .find(|n| head.fits(&self.layout, part(*n)));
            let split = room.and_then(|n| front.split_front(n));
            out.split = split.as_ref().map(|first| first.owner);
            out.writes += usize::from(!urgent && split.is_some());
            out.taken.extend(split);
            break;
        }
        out
    }

    /// Makes a record of what was taken, and asks for its write.
    fn start(
        &mut self,
        taken: Vec<Append>,
        split: Option<AppendOwner>,
        kind: Option<Priority>,
        facts: &Facts,
        map: &mut Map,
    ) -> Option<Formed> {
        let head = self.head.as_mut()?;
        let seq = self.next_seq;
        self.next_seq = seq.next();
        self.clean.work_out(facts.progress, self.batches.written_upto(), map);
        let after = taken.iter().map(|a| a.after).max().unwrap_or_default();
        let mutant = |mutation| self.planted.is(mutation);
        let mut record = RecordHeader {
            generation: if mutant(Mutation::ForgetsGeneration) { 1 } else { self.layout.generation },
            segment_seq: map.segments().get(head.index).seq,
            seq,
            offset: head.offset(),
            durable_upto: self.batches.durable_upto(),
            clean_upto: self.clean.upto(),
            tail: self.tail,
            time_ns: facts.wall_ns,
            clean_stop: taken.iter().any(|a| a.owner == AppendOwner::Stop),
            ordered: facts.consistent,
            distance: Self::distance(seq, after),
            extents: taken.iter().filter_map(|a| a.extent).collect(),
            checksums: Vec::new(),
        };
        map.segments_mut().push_record(head.index, record.distance);
        if mutant(Mutation::OrderForgetsDistance) {
            record.distance = u16::MAX;
        }
        let covered = if mutant(Mutation::StaleSequenceInChecksum) { Seq(seq.0 - 1) } else { seq };
        record.checksums = checksums(&taken, covered);
        let mut bufs = Vec::with_capacity(taken.len() + 1);
        let pieces = lay_out(&self.layout, &record, taken, head.index, map, &mut bufs);
        let write_at = head.frame(&self.layout, map.segments().get(head.index), &record, &mut bufs);
        head.take(&self.layout, &record);
        map.segments_mut().ends_with(head.index, seq);
        self.claims.made(seq, record.tail, record.clean_upto, record.ordered);
        self.proven = record.durable_upto;
        if !record.extents.is_empty() {
            self.last_data = seq;
        }
        let durable = facts.durability == Durability::Write;
        self.batches.start(seq, pieces, durable);
        let offset = self.layout.segment_offset(head.index) + u64::from(write_at);
        let durable = durable && !self.planted.is(Mutation::WritesVolatile);
        let op = DeviceOp::Write { offset, bufs, durable };
        let ask = Ask { op, class: Class::Foreground, owner: Io::Batch(seq) };
        Some(Formed { seq, after, split, kind, ask })
    }

    /// The write of the next summary that can be written: all records of its segment are durable.
    pub(crate) fn next_summary(&mut self, wall_ns: u64, map: &Map) -> Option<Ask> {
        let durable = self.batches.durable_upto();
        let full = self.full.pop_front_if(|full| map.segments().get(full.index).last_seq <= durable)?;
        let (index, segment) = (full.index, map.segments().get(full.index));
        assert!(segment.last_seq <= durable, "a summary speaks only of durable records");
        let op = full.summary(&self.layout, segment, wall_ns);
        Some(Ask { op, class: Class::Background, owner: Io::Summary(index) })
    }
}
