//! Segments in memory: their state, and for each block that a record in them carries a 16-byte slot.

use std::collections::VecDeque;

use forebay_block::{BlockNo, Seq};

use crate::mutation::{Mutation, Planted};

/// Names a slot: physical segment number (upper 16 bits) and place in the segment's slots (lower 16 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SlotRef(pub(crate) u32);

/// Most slots of one segment, which recovery holds the log to; one value is kept so that no `SlotRef` equals the index's mark for "empty".
pub(crate) const SEGMENT_SLOTS_MAX: usize = forebay_format::rules::SEGMENT_BLOCKS_MAX as usize;

impl SlotRef {
    fn new(segment: u32, slot: usize) -> Self {
        debug_assert!(slot < SEGMENT_SLOTS_MAX);
        Self(segment << 16 | slot as u32)
    }

    pub(crate) fn segment(self) -> u32 {
        self.0 >> 16
    }

    fn place(self) -> usize {
        (self.0 & 0xFFFF) as usize
    }
}

/// What a slot holds of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotKind {
    /// A data block in the log.
    Data,
    /// Zeroes; nothing in the log's data.
    Zero,
    /// Lost to a damaged medium: an I/O error.
    Poison,
}

/// One block of a record, packed into 16 bytes:
///
/// ```text
///  place  = block (40 bits) · offset of the data in the segment, in sectors (24 bits)
///  detail = checksum (32 bits) · record's place in the segment (20 bits) · flags (12 bits)
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    place: u64,
    detail: u64,
}

/// The backing may lack the slot's version.
pub(crate) const DIRTY: u64 = 1;
/// A destage of this version is under way, or done and waits for the backing's flush.
pub(crate) const DESTAGING: u64 = 1 << 1;
/// Used since replacement last looked.
pub(crate) const REFERENCED: u64 = 1 << 2;
/// On the list of blocks used more than once (ARC's T2).
pub(crate) const FREQUENT: u64 = 1 << 3;
/// Known to replacement (a clean copy).
pub(crate) const TRACKED: u64 = 1 << 4;
/// Reading it back failed; destaging leaves it alone until it is overwritten or the volume restarts.
pub(crate) const UNREADABLE: u64 = 1 << 5;
const ZERO: u64 = 1 << 6;
const POISON: u64 = 1 << 7;

impl Slot {
    /// A slot of a record `seq` in a segment whose first record is `first_seq`; `offset` in bytes.
    pub(crate) fn new(
        block: BlockNo,
        offset: u32,
        checksum: u32,
        kind: SlotKind,
        seq: Seq,
        first_seq: Seq,
    ) -> Self {
        let delta = seq.0 - first_seq.0;
        assert!(block.0 < 1 << 40 && delta < 1 << 20);
        let kind = match kind {
            SlotKind::Data => 0,
            SlotKind::Zero => ZERO,
            SlotKind::Poison => POISON,
        };
        Self {
            place: block.0 << 24 | u64::from(offset / 512),
            detail: u64::from(checksum) << 32 | delta << 12 | kind,
        }
    }

    pub(crate) fn block(&self) -> BlockNo {
        BlockNo(self.place >> 24)
    }

    /// Byte offset of the data in the segment.
    pub(crate) fn offset(&self) -> u32 {
        ((self.place & 0xFF_FFFF) * 512) as u32
    }

    pub(crate) fn checksum(&self) -> u32 {
        (self.detail >> 32) as u32
    }

    pub(crate) fn kind(&self) -> SlotKind {
        match self.detail & (ZERO | POISON) {
            0 => SlotKind::Data,
            ZERO => SlotKind::Zero,
            _ => SlotKind::Poison,
        }
    }

    fn delta(&self) -> u64 {
        self.detail >> 12 & 0xF_FFFF
    }

    pub(crate) fn has(&self, flag: u64) -> bool {
        self.detail & flag != 0
    }

    /// Whether the backing lacks it, can be given it, and is not being given it already.
    pub(crate) fn wants_destage(&self) -> bool {
        self.has(DIRTY) && !self.has(DESTAGING) && !self.has(UNREADABLE) && self.kind() != SlotKind::Poison
    }

    fn set(&mut self, flag: u64, on: bool) {
        if on {
            self.detail |= flag;
        } else {
            self.detail &= !flag;
        }
    }
}

/// Life of a segment:
///
/// ```text
///  Free ──open──► Open ──full──► Full ──all records durable, summary written──► Sealed
///   ▲                                                                             │ clean, tail moves past it
///   └── record with the new tail is durable, no read in flight ── Retiring ◄──────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentState {
    /// Not part of the log; may be overwritten.
    Free,
    /// The log's head: records are appended.
    Open,
    /// Takes no more records; its summary is not written yet.
    Full,
    /// Complete.
    Sealed,
    /// Clean, and the tail has moved past it, but that is not durable yet: still part of the log.
    Retiring,
    /// Out of the log, but a read of it is in flight (hazard 6).
    Draining,
}

/// A physical segment.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) state: SegmentState,
    /// Place in the order of the log.
    pub(crate) seq: u64,
    pub(crate) generation: u64,
    pub(crate) first_seq: Seq,
    /// Last record so far; `first_seq - 1` if none.
    pub(crate) last_seq: Seq,
    /// Slots that are dirty: current ones, and under `ordered` older ones that have not been destaged.
    pub(crate) dirty: u32,
    /// Slots that are current.
    pub(crate) current: u32,
    /// Reads in flight.
    pub(crate) pins: u32,
    /// Wall-clock time of its first record, nanoseconds since 1970.
    pub(crate) time_first_ns: u64,
    slots: Vec<Slot>,
    /// For each record how far back the newest one lies that it depends on.
    distances: Vec<u16>,
}

/// All segments of the cache. Invariants: `live` holds, in the order of the log, exactly the segments that are
/// neither `Free` nor `Draining`, with consecutive `seq`; only the last may be `Open`.
pub(crate) struct SegmentTable {
    segments: Vec<Segment>,
    pub(crate) live: VecDeque<u32>,
    /// In the order in which they will be opened. Segments leave the log in its order, so that physically, too, the
    /// log goes round: recovery knows where the next segment would have been opened.
    free: VecDeque<u32>,
    /// Out of the log but still read, in the order in which they left.
    draining: VecDeque<u32>,
    /// Sum of `dirty` over all segments.
    dirty: u64,
    /// Marks of lost blocks among them.
    lost: u64,
    /// What stands before this place in the order of the log is complete and clean, and stays so.
    clean_below: u64,
    slots_capacity: usize,
    distances_capacity: usize,
    pub(crate) planted: Planted,
}

impl SegmentTable {
    pub(crate) fn new(count: u32) -> Self {
        let segment = || Segment {
            state: SegmentState::Free,
            seq: 0,
            generation: 0,
            first_seq: Seq(0),
            last_seq: Seq(0),
            dirty: 0,
            current: 0,
            pins: 0,
            time_first_ns: 0,
            slots: Vec::new(),
            distances: Vec::new(),
        };
        Self {
            segments: (0..count).map(|_| segment()).collect(),
            live: VecDeque::new(),
            free: (0..count).collect(),
            draining: VecDeque::new(),
            dirty: 0,
            lost: 0,
            clean_below: 0,
            slots_capacity: 0,
            distances_capacity: 0,
            planted: Planted::default(),
        }
    }

    /// Takes back what recovery has opened until now.
    pub(crate) fn forget_all(&mut self) {
        *self = Self { planted: self.planted, ..Self::new(self.segments.len() as u32) };
    }

    pub(crate) fn get(&self, index: u32) -> &Segment {
        &self.segments[index as usize]
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> &mut Segment {
        &mut self.segments[index as usize]
    }

    /// The oldest record of the log; later than any if there is none.
    pub(crate) fn first_seq(&self) -> Seq {
        self.live.front().map_or(Seq(u64::MAX), |index| self.get(*index).first_seq)
    }

    pub(crate) fn count(&self) -> usize {
        self.segments.len()
    }

    /// Segments that may be opened.
    pub(crate) fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Takes a free segment, the one that has been free longest.
    pub(crate) fn take_free(&mut self) -> Option<u32> {
        self.free.pop_front()
    }

    /// The segments that will be opened next, in that order.
    pub(crate) fn next_free(&self) -> impl Iterator<Item = u32> + '_ {
        self.free.iter().copied()
    }

    /// Puts the free segments in the order in which they follow the newest one of the log, after recovery.
    pub(crate) fn order_free(&mut self) {
        let count = self.segments.len() as u32;
        let newest = self.live.back().map_or(count - 1, |i| *i);
        let is_free = |i: &u32| self.get(*i).state == SegmentState::Free;
        self.free = (1..=count).map(|d| (newest + d) % count).filter(is_free).collect();
    }

    /// Makes `index` the newest segment of the log.
    pub(crate) fn open(&mut self, index: u32, seq: u64, first_seq: Seq, time_ns: u64, generation: u64) {
        if let Some(last) = self.live.back() {
            assert_eq!(self.get(*last).seq + 1, seq, "the log's segments are numbered without a gap");
        }
        let planted = self.planted;
        let s = self.get_mut(index);
        assert!(s.slots.is_empty() && s.dirty == 0);
        assert!(s.pins == 0 || planted.is(Mutation::ReusesUnderReader));
        s.state = SegmentState::Open;
        s.seq = seq;
        s.generation = generation;
        s.first_seq = first_seq;
        s.last_seq = Seq(first_seq.0 - 1);
        s.time_first_ns = time_ns;
        self.live.push_back(index);
    }

    /// Appends a slot; it is not current until the index says so.
    pub(crate) fn push(&mut self, index: u32, slot: Slot) -> SlotRef {
        let s = &mut self.segments[index as usize];
        let before = s.slots.capacity();
        s.slots.push(slot);
        let place = s.slots.len() - 1;
        self.slots_capacity = self.slots_capacity + s.slots.capacity() - before;
        SlotRef::new(index, place)
    }

    /// Appends a record's distance to the newest one that it depends on; records come in their order.
    pub(crate) fn push_record(&mut self, index: u32, distance: u16) {
        let s = &mut self.segments[index as usize];
        let before = s.distances.capacity();
        s.distances.push(distance);
        self.distances_capacity = self.distances_capacity + s.distances.capacity() - before;
    }

    /// Gives back the memory that growing lists keep in reserve.
    pub(crate) fn shrink(&mut self, index: u32) {
        let s = &mut self.segments[index as usize];
        let before = (s.slots.capacity(), s.distances.capacity());
        s.slots.shrink_to_fit();
        s.distances.shrink_to_fit();
        self.slots_capacity = self.slots_capacity + s.slots.capacity() - before.0;
        self.distances_capacity = self.distances_capacity + s.distances.capacity() - before.1;
    }

    pub(crate) fn slot(&self, r: SlotRef) -> &Slot {
        &self.segments[r.segment() as usize].slots[r.place()]
    }

    pub(crate) fn slots_len(&self, index: u32) -> usize {
        self.get(index).slots.len()
    }

    pub(crate) fn slot_refs(&self, index: u32) -> impl Iterator<Item = SlotRef> + use<> {
        (0..self.slots_len(index)).map(move |place| SlotRef::new(index, place))
    }

    /// Sequence number of the slot's record.
    pub(crate) fn seq(&self, r: SlotRef) -> Seq {
        let s = self.get(r.segment());
        Seq(s.first_seq.0 + s.slots[r.place()].delta())
    }

    /// How far back the newest record lies that the slot's record depends on; 0 if that is not known.
    pub(crate) fn distance(&self, r: SlotRef) -> u16 {
        let s = self.get(r.segment());
        s.distances.get(s.slots[r.place()].delta() as usize).copied().unwrap_or_default()
    }

    /// The dirty slots of records behind `after` in the order of the log, each with its record. While records are
    /// destaged in their order, these are all the dirty slots that there are.
    pub(crate) fn dirty_after(&self, after: Seq) -> impl Iterator<Item = (Seq, SlotRef)> + '_ {
        let segments = self.live.iter().filter(move |i| {
            let s = self.get(**i);
            s.dirty > 0 && s.last_seq > after
        });
        segments.flat_map(move |i| {
            let s = self.get(*i);
            let skipped = s.slots.partition_point(|slot| s.first_seq.0 + slot.delta() <= after.0);
            let dirty = move |(place, slot): (usize, &Slot)| {
                let seq = Seq(s.first_seq.0 + slot.delta());
                slot.has(DIRTY).then(|| (seq, SlotRef::new(*i, skipped + place)))
            };
            s.slots[skipped..].iter().enumerate().filter_map(dirty)
        })
    }

    /// Whether the slot is still there: its segment has not left the log.
    pub(crate) fn holds(&self, r: SlotRef) -> bool {
        r.place() < self.get(r.segment()).slots.len()
    }

    pub(crate) fn mark(&mut self, r: SlotRef, flag: u64, on: bool) {
        debug_assert!(flag & DIRTY == 0, "dirty slots are counted");
        self.segments[r.segment() as usize].slots[r.place()].set(flag, on);
    }

    /// The slot has become its block's current version.
    pub(crate) fn became_current(&mut self, r: SlotRef, dirty: bool) {
        let clean_below = self.clean_below;
        let s = &mut self.segments[r.segment() as usize];
        debug_assert!(!dirty || s.seq >= clean_below, "what is complete and clean stays so");
        s.current += 1;
        s.slots[r.place()].set(DIRTY, dirty);
        if dirty {
            s.dirty += 1;
            self.dirty += 1;
            self.lost += u64::from(s.slots[r.place()].kind() == SlotKind::Poison);
        }
    }

    /// The slot is no longer its block's current version; what it holds is void, unless it has to be destaged all the same.
    pub(crate) fn ceased_current(&mut self, r: SlotRef, keep_dirty: bool) {
        if !keep_dirty {
            self.became_clean(r);
        }
        self.get_mut(r.segment()).current -= 1;
    }

    /// The backing has the slot's version, durably.
    pub(crate) fn became_clean(&mut self, r: SlotRef) {
        let s = &mut self.segments[r.segment() as usize];
        let slot = &mut s.slots[r.place()];
        slot.set(DESTAGING, false);
        if slot.has(DIRTY) {
            slot.set(DIRTY, false);
            self.lost -= u64::from(slot.kind() == SlotKind::Poison);
            s.dirty -= 1;
            self.dirty -= 1;
        }
    }

    /// Takes a segment out of the log; it may be overwritten at once if nothing reads it.
    pub(crate) fn retire(&mut self, index: u32) {
        assert_eq!(self.live.pop_front(), Some(index), "segments leave the log in its order");
        let s = &mut self.segments[index as usize];
        assert!(s.current == 0 && s.dirty == 0, "nothing current is thrown away");
        self.slots_capacity -= s.slots.capacity();
        self.distances_capacity -= s.distances.capacity();
        s.slots = Vec::new();
        s.distances = Vec::new();
        s.state = SegmentState::Draining;
        self.draining.push_back(index);
        self.free_drained();
    }

    fn free_drained(&mut self) {
        let unread = |e: &Self, i: u32| e.get(i).pins == 0 || e.planted.is(Mutation::ReusesUnderReader);
        while let Some(index) = self.draining.front().copied().filter(|i| unread(self, *i)) {
            self.draining.pop_front();
            self.get_mut(index).state = SegmentState::Free;
            self.free.push_back(index);
        }
    }

    pub(crate) fn pin(&mut self, index: u32) {
        self.get_mut(index).pins += 1;
    }

    pub(crate) fn unpin(&mut self, index: u32) {
        let s = self.get_mut(index);
        s.pins -= 1;
        if s.pins == 0 && s.state == SegmentState::Draining {
            self.free_drained();
        }
    }

    /// Blocks (under `ordered`, versions of blocks) that the backing may lack.
    pub(crate) fn dirty(&self) -> u64 {
        self.dirty
    }

    /// Segments from the oldest one on that is dirty or not complete: those before need nothing destaged to leave the log.
    pub(crate) fn held(&mut self) -> usize {
        let Some(oldest) = self.live.front().map(|i| self.get(*i).seq) else {
            return 0;
        };
        let mut clean = self.clean_below.saturating_sub(oldest) as usize;
        let complete = |s: &Segment| matches!(s.state, SegmentState::Sealed | SegmentState::Retiring);
        while self.live.get(clean).map(|i| self.get(*i)).is_some_and(|s| s.dirty == 0 && complete(s)) {
            clean += 1;
        }
        self.clean_below = oldest + clean as u64;
        self.live.len() - clean
    }

    /// The oldest segment that is not on its way out of the log: the next that has to go for there to be room.
    pub(crate) fn tail(&self) -> Option<u32> {
        self.live.get(self.retiring()).copied()
    }

    /// Segments from the oldest one on that are leaving the log: behind them is its tail.
    pub(crate) fn retiring(&self) -> usize {
        self.live.iter().take_while(|i| self.get(**i).state == SegmentState::Retiring).count()
    }

    /// Blocks that are marked as lost.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Memory of the slots in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.slots_capacity * size_of::<Slot>()
            + self.distances_capacity * size_of::<u16>()
            + self.segments.capacity() * size_of::<Segment>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_slot_keeps_all_its_fields_in_sixteen_bytes() {
        assert_eq!(size_of::<Slot>(), 16);
        let first = Seq(1 << 40);
        let mut s = Slot::new(
            BlockNo((1 << 40) - 1),
            (64 << 20) - 4096,
            u32::MAX,
            SlotKind::Zero,
            Seq(first.0 + 0xF_FFFF),
            first,
        );
        s.set(DIRTY, true);
        s.set(FREQUENT, true);
        s.set(DIRTY, false);
        assert_eq!(s.block(), BlockNo((1 << 40) - 1));
        assert_eq!(s.offset(), (64 << 20) - 4096);
        assert_eq!(s.checksum(), u32::MAX);
        assert_eq!(s.kind(), SlotKind::Zero);
        assert_eq!(s.delta(), 0xF_FFFF);
        assert!(s.has(FREQUENT) && !s.has(DIRTY));
    }

    /// What the table must know of a segment, kept plainly.
    #[derive(Default)]
    struct Plain {
        slots: Vec<(SlotRef, Option<bool>)>,
        pins: u32,
        complete: bool,
    }

    proptest! {
        /// Segments go round: taken when free, in the order in which they were freed; freed when nothing reads them.
        /// The counts are those of the slots.
        #[test]
        fn behaves_like_a_ring(ops in proptest::collection::vec((0u8..8, any::<u16>()), 1..600)) {
            const COUNT: u32 = 5;
            let mut table = SegmentTable::new(COUNT);
            let mut plain: BTreeMap<u32, Plain> = BTreeMap::new();
            let (mut live, mut draining): (VecDeque<u32>, VecDeque<u32>) = Default::default();
            let mut free: VecDeque<u32> = (0..COUNT).collect();
            let mut opened = 0;
            for (op, pick) in ops {
                let segment = |l: &VecDeque<u32>| l.get(usize::from(pick) % l.len().max(1)).copied();
                match op {
                    0 => {
                        prop_assert_eq!(table.take_free(), free.front().copied());
                        if let Some(index) = free.pop_front() {
                            opened += 1;
                            table.open(index, opened, Seq(1), 0, 1);
                            live.push_back(index);
                            plain.insert(index, Plain::default());
                        }
                    }
                    1 | 2 => if let Some(index) = segment(&live).filter(|i| !plain[i].complete) {
                        let kind = if pick % 3 == 0 { SlotKind::Poison } else { SlotKind::Zero };
                        let slot = Slot::new(BlockNo(pick.into()), 0, 0, kind, Seq(1), Seq(1));
                        let r = table.push(index, slot);
                        table.became_current(r, op == 1);
                        plain.entry(index).or_default().slots.push((r, Some(op == 1)));
                    },
                    3 | 4 => if let Some(p) = segment(&live).and_then(|i| plain.get_mut(&i)) {
                        let Some(n) = p.slots.iter().position(|s| s.1.is_some()) else { continue };
                        let r = p.slots[n].0;
                        if op == 3 { table.became_clean(r) } else { table.ceased_current(r, false) }
                        p.slots[n].1 = (op == 3).then_some(false);
                    },
                    7 => if let Some(index) = live.iter().copied().find(|i| !plain[i].complete) {
                        table.get_mut(index).state = SegmentState::Sealed;
                        plain.entry(index).or_default().complete = true;
                    },
                    5 => if let Some(index) = segment(&live) {
                        table.pin(index);
                        plain.entry(index).or_default().pins += 1;
                    },
                    _ => {
                        let all: VecDeque<u32> = draining.iter().chain(&live).copied().collect();
                        if let Some(p) = segment(&all).and_then(|i| plain.get_mut(&i)).filter(|p| p.pins > 0) {
                            p.pins -= 1;
                            table.unpin(segment(&all).unwrap());
                        } else if let Some(index) = live.front().copied().filter(|i| plain[i].slots.iter().all(|s| s.1.is_none())) {
                            table.retire(index);
                            live.pop_front();
                            draining.push_back(index);
                        }
                    }
                }
                while let Some(index) = draining.front().copied().filter(|i| plain[i].pins == 0) {
                    draining.pop_front();
                    free.push_back(index);
                    plain.remove(&index);
                }
                prop_assert_eq!(&table.live, &live);
                prop_assert_eq!(&table.free, &free);
                prop_assert_eq!(&table.draining, &draining);
                let count = |i: &u32, what: fn(&bool) -> bool| plain[i].slots.iter().filter(|s| s.1.as_ref().is_some_and(what)).count();
                for index in &live {
                    prop_assert_eq!(table.get(*index).dirty as usize, count(index, |dirty| *dirty));
                    prop_assert_eq!(table.get(*index).current as usize, count(index, |_| true));
                }
                let lost = |(r, dirty): &(SlotRef, Option<bool>)| *dirty == Some(true) && table.slot(*r).kind() == SlotKind::Poison;
                let lost = live.iter().map(|i| plain[i].slots.iter().filter(|s| lost(s)).count()).sum::<usize>();
                prop_assert_eq!(table.lost() as usize, lost);
                let held = live.iter().skip_while(|i| plain[i].complete && count(i, |dirty| *dirty) == 0).count();
                prop_assert_eq!(table.held(), held);
                prop_assert_eq!(table.dirty() as usize, live.iter().map(|i| count(i, |dirty| *dirty)).sum::<usize>());
            }
        }
    }
}
