//! Segments in memory: their state, and for each block that a record in them carries a 16-byte slot.

#[cfg(test)]
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

use forebay_block::{BlockNo, Seq};

use crate::map::slot::POISON;
pub(crate) use crate::map::slot::{
    DESTAGING, DIRTY, FREQUENT, REFERENCED, SEGMENT_SLOTS_MAX, Slot, SlotKind, SlotRef, TRACKED, UNREADABLE,
};
use crate::mutation::{Mutation, Planted};

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
    /// Place of the first dirty slot, if there is one.
    first_dirty: u16,
    /// Slots that are current.
    current: u32,
    /// Reads in flight.
    pub(crate) pins: u32,
    /// Wall-clock time of its first record, nanoseconds since 1970.
    pub(crate) time_first_ns: u64,
    slots: Vec<Slot>,
    /// For each record how far back the newest one lies that it depends on.
    distances: Vec<u16>,
}

/// All segments of the cache. Invariants: `live` holds, in the order of the log, exactly the segments that are
/// neither `Free` nor `Draining`, with consecutive `seq`; only the last may be `Open`, and those that are `Retiring` come first.
///
/// What one write costs here does not grow with the segments that are clean: no function but those of recovery walks over them.
pub(crate) struct SegmentTable {
    segments: Vec<Segment>,
    live: VecDeque<u32>,
    /// Those of them that have dirty slots, by their first record.
    with_dirty: BTreeMap<Seq, u32>,
    /// How many of them, from the oldest on, are leaving the log.
    retiring: usize,
    /// In the order in which they will be opened. Segments leave the log in its order, so that physically, too, the
    /// log goes round: recovery knows where the next segment would have been opened.
    free: VecDeque<u32>,
    /// Out of the log but still read, in the order in which they left.
    draining: VecDeque<u32>,
    /// Sum of `dirty` over all segments.
    dirty: u64,
    /// Marks of lost blocks among them.
    lost: u64,
    /// Those of them and the ones that cannot be read.
    hopeless: u64,
    /// What stands before this place in the order of the log is complete and clean, and stays so.
    clean_below: u64,
    slots_capacity: usize,
    distances_capacity: usize,
    planted: Planted,
    /// Segments and slots that were looked at.
    #[cfg(test)]
    visits: Cell<u64>,
}

impl SegmentTable {
    pub(crate) fn new(count: u32, planted: Planted) -> Self {
        let segment = || Segment {
            state: SegmentState::Free,
            seq: 0,
            generation: 0,
            first_seq: Seq(0),
            last_seq: Seq(0),
            dirty: 0,
            first_dirty: 0,
            current: 0,
            pins: 0,
            time_first_ns: 0,
            slots: Vec::new(),
            distances: Vec::new(),
        };
        Self {
            segments: (0..count).map(|_| segment()).collect(),
            live: VecDeque::new(),
            with_dirty: BTreeMap::new(),
            retiring: 0,
            free: (0..count).collect(),
            draining: VecDeque::new(),
            dirty: 0,
            lost: 0,
            hopeless: 0,
            clean_below: 0,
            slots_capacity: 0,
            distances_capacity: 0,
            planted,
            #[cfg(test)]
            visits: Cell::new(0),
        }
    }

    /// Something is looked at. Tests count it, so that they see what a write costs whatever the machine's speed.
    fn visit(&self) {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
    }

    /// Segments and slots that were looked at until now.
    #[cfg(test)]
    pub(crate) fn visits(&self) -> u64 {
        self.visits.get()
    }

    pub(crate) fn get(&self, index: u32) -> &Segment {
        self.visit();
        &self.segments[index as usize]
    }

    fn get_mut(&mut self, index: u32) -> &mut Segment {
        self.visit();
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

    /// A record is made in the log's open segment, its newest.
    pub(crate) fn ends_with(&mut self, index: u32, seq: Seq) {
        self.get_mut(index).last_seq = seq;
    }

    /// The segment takes no more records.
    pub(crate) fn fill(&mut self, index: u32) {
        self.get_mut(index).state = SegmentState::Full;
        self.shrink(index);
    }

    /// The segment is complete.
    pub(crate) fn seal(&mut self, index: u32) {
        self.get_mut(index).state = SegmentState::Sealed;
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
        self.visit();
        &self.segments[r.segment() as usize].slots[r.place()]
    }

    /// The slot's block: what the index compares in its tables. How many it compares hangs on how full these are; it is not counted.
    pub(crate) fn block(&self, r: SlotRef) -> BlockNo {
        self.segments[r.segment() as usize].slots[r.place()].block()
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

    /// The segments that have dirty slots, oldest first.
    pub(crate) fn with_dirty(&self) -> impl Iterator<Item = u32> + '_ {
        self.with_dirty.values().copied()
    }

    /// The dirty slots of records behind `after` in the order of the log, each with its record. While records are
    /// destaged in their order, these are all the dirty slots that there are. It costs nothing for what lies before the first of
    /// them, nor for segments that are clean.
    pub(crate) fn dirty_after(&self, after: Seq) -> impl Iterator<Item = (Seq, SlotRef)> + '_ {
        // Of those that begin before, only the last can reach beyond.
        let within =
            self.with_dirty.range(..=after).next_back().filter(|(_, i)| self.get(**i).last_seq > after);
        let behind = self.with_dirty.range((Excluded(after), Unbounded));
        within.into_iter().chain(behind).flat_map(move |(_, i)| {
            let s = self.get(*i);
            let skipped = match after < s.first_seq {
                true => 0,
                false => s.slots.partition_point(|slot| s.first_seq.0 + slot.delta() <= after.0),
            };
            let skipped = skipped.max(s.first_dirty.into());
            let dirty = move |(place, slot): (usize, &Slot)| {
                self.visit();
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

    pub(super) fn mark(&mut self, r: SlotRef, flag: u64, on: bool) {
        debug_assert!(flag & DIRTY == 0, "a slot becomes dirty as it becomes current");
        self.change(r, |slot| slot.set(flag, on));
    }

    /// Changes a slot, and what is counted of it.
    fn change(&mut self, r: SlotRef, change: impl FnOnce(&mut Slot)) {
        self.visit();
        let s = &mut self.segments[r.segment() as usize];
        let slot = &mut s.slots[r.place()];
        let before = *slot;
        change(slot);
        let after = *slot;
        self.hopeless = self.hopeless + u64::from(after.is_hopeless()) - u64::from(before.is_hopeless());
        let lost = u64::from(after.has(POISON));
        match (before.has(DIRTY), after.has(DIRTY)) {
            (false, true) => {
                self.dirty += 1;
                self.lost += lost;
                s.dirty += 1;
                let place = r.place() as u16;
                s.first_dirty = if s.dirty == 1 { place } else { s.first_dirty.min(place) };
                if s.dirty == 1 {
                    self.with_dirty.insert(s.first_seq, r.segment());
                }
            }
            (true, false) => {
                self.dirty -= 1;
                self.lost -= lost;
                s.dirty -= 1;
                if s.dirty == 0 {
                    self.with_dirty.remove(&s.first_seq);
                } else if usize::from(s.first_dirty) == r.place() {
                    // Slots become dirty in their order: over the life of a segment each is passed once.
                    let clean = s.slots[r.place()..].iter().take_while(|slot| !slot.has(DIRTY)).count();
                    s.first_dirty += clean as u16;
                }
            }
            _ => {}
        }
    }

    /// The slot has become its block's current version.
    pub(super) fn became_current(&mut self, r: SlotRef, dirty: bool) {
        let clean_below = self.clean_below;
        let s = self.get_mut(r.segment());
        debug_assert!(!dirty || s.seq >= clean_below, "what is complete and clean stays so");
        s.current += 1;
        self.change(r, |slot| slot.set(DIRTY, dirty));
    }

    /// The slot is no longer its block's current version; what it holds is void, unless it has to be destaged all the same.
    pub(super) fn ceased_current(&mut self, r: SlotRef, keep_dirty: bool) {
        if !keep_dirty {
            self.became_clean(r);
        }
        self.get_mut(r.segment()).current -= 1;
    }

    /// The backing has the slot's version, durably.
    pub(super) fn became_clean(&mut self, r: SlotRef) {
        self.change(r, |slot| slot.set(DIRTY | DESTAGING, false));
    }

    /// The log's tail moves on over the oldest segment that has not begun to leave it; its place in the order of the log.
    pub(crate) fn begin_retiring(&mut self) -> Option<u64> {
        let index = self.tail()?;
        self.retiring += 1;
        let s = self.get_mut(index);
        s.state = SegmentState::Retiring;
        Some(s.seq)
    }

    /// Takes a segment out of the log; it may be overwritten at once if nothing reads it.
    pub(super) fn retire(&mut self, index: u32) {
        assert_eq!(self.live.pop_front(), Some(index), "segments leave the log in its order");
        let s = &mut self.segments[index as usize];
        assert!(s.current == 0 && s.dirty == 0, "nothing current is thrown away");
        self.slots_capacity -= s.slots.capacity();
        self.distances_capacity -= s.distances.capacity();
        s.slots = Vec::new();
        s.distances = Vec::new();
        self.retiring -= usize::from(s.state == SegmentState::Retiring);
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
        self.live.get(self.retiring).copied()
    }

    /// Segments from the oldest one on that are leaving the log: behind them is its tail.
    pub(crate) fn retiring(&self) -> usize {
        self.retiring
    }

    /// The oldest segment of the log.
    pub(crate) fn oldest(&self) -> Option<u32> {
        self.live.front().copied()
    }

    /// Place of the newest segment in the order of the log.
    pub(crate) fn newest_place(&self) -> Option<u64> {
        self.live.back().map(|i| self.get(*i).seq)
    }

    /// The segments from this place in the order of the log on.
    pub(crate) fn live_from(&self, place: u64) -> impl Iterator<Item = &Segment> {
        let oldest = self.oldest().map_or(0, |i| self.get(i).seq);
        let skipped = (place.saturating_sub(oldest) as usize).min(self.live.len());
        self.live.range(skipped..).map(|i| self.get(*i))
    }

    /// Every dirty slot is marked as lost or as one that cannot be read.
    pub(crate) fn all_hopeless(&self) -> bool {
        self.hopeless == self.dirty
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
mod tests;
