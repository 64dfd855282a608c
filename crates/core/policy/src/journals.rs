//! Finds journals by the shape of their writes alone (PDC: *Reducing Journaling Harm on Virtualized I/O Systems*, SYSTOR'16, section 4).
//!
//! A journal is written from its beginning to its end, a little at a time, over and over. So there are *flows*: writes each of which begins where
//! the last one ended, or shortly before it, as the last block of a database's log is written again with each commit. A flow that has been long is
//! remembered as a *track* when it ends. When another flow runs over the beginning of a track, or begins there, and goes on over it, the track is a
//! *loop*: a journal.
//!
//! That knows circular logs (ext4, XFS, NTFS, InnoDB), wherever in them the first flow began, and files that are used again one after the other
//! (PostgreSQL). It does not know logs that move, such as the log trees of btrfs.
//!
//! A loop whose blocks come to be written at random is forgotten. What is found changes where writes go, and never what is read (P8).
//!
//! All is bounded: a write looks at [`FLOWS_MAX`] flows, and at as many tracks or loops as a search takes. Nothing depends on time.

use std::collections::BTreeMap;

use forebay_block::BLOCK_BYTES;

/// Flows that are followed. The first half are young: each lone write begins one and displaces the oldest. The others have shown that they go on.
const FLOWS_MAX: usize = 128;
const YOUNG_MAX: usize = FLOWS_MAX / 2;
/// Writes after which a flow is no longer young.
const KNOWN_WRITES: u32 = 4;
/// Flows that are looked at together.
const TOGETHER: usize = 16;
/// What a place without a flow has instead of blocks.
const NONE: u64 = u64::MAX;
/// A write belongs to a flow if it begins so many blocks before its end at most: a page of 16 KiB that is written again.
const OVERLAP_BLOCKS: u64 = 4;
/// The least of a track: 1 MiB, in so many writes. ext4's smallest journal has 4 MiB.
const TRACK_BLOCKS_MIN: u64 = 256;
const TRACK_WRITES_MIN: u32 = 32;
/// More in each write on average, and it is a file that is copied: 256 KiB are XFS's largest.
const WRITE_BLOCKS_MAX: u64 = 64;
/// Writes by which a flow gets further over a track before that is a loop. A block that is written again and again gets no further.
const AGAIN_WRITES: u32 = 16;
/// Tracks that are remembered, and journals that are found.
const TRACKS_MAX: usize = 256;
/// Writes at random places that a loop has for each 4 in turn before it is none.
const STRAYS_OF_FOUR: u32 = 1;
/// They are judged by so many.
const JUDGED_WRITES: u32 = 64;

/// Writes in turn. In blocks.
#[derive(Clone, Copy, Debug)]
struct Flow {
    first: u64,
    /// Behind the last.
    end: u64,
    writes: u32,
    /// Of these by how many it got further.
    steps: u32,
    /// When it was last written to.
    used: u64,
    /// Steps since it ran over the beginning of the track that begins there.
    again: Option<(u64, u32)>,
}

impl Flow {
    const ABSENT: Self = Self { first: NONE, end: NONE, writes: 0, steps: 0, used: 0, again: None };

    /// It could be a journal's: files are copied in larger pieces.
    fn is_of_small_writes(&self) -> bool {
        self.end - self.first <= WRITE_BLOCKS_MAX.saturating_mul(self.writes.into())
    }
}

/// All flows. Where they begin and end stands apart, since each write asks all of them.
#[derive(Clone, Debug)]
struct Flows {
    firsts: [u64; FLOWS_MAX],
    ends: [u64; FLOWS_MAX],
    flows: [Flow; FLOWS_MAX],
    /// Where the oldest of the young is.
    next_young: usize,
}

impl Default for Flows {
    fn default() -> Self {
        let none = [NONE; FLOWS_MAX];
        Self { firsts: none, ends: none, flows: [Flow::ABSENT; FLOWS_MAX], next_young: 0 }
    }
}

/// The place of the first number within `len` from `from` on, if there is one. Without a branch for each.
fn place_of(numbers: &[u64; FLOWS_MAX], from: u64, len: u64) -> Option<usize> {
    let is_within = |number: &u64| number.wrapping_sub(from) < len;
    for (at, together) in numbers.chunks(TOGETHER).enumerate() {
        if together.iter().fold(false, |any, number| any | is_within(number)) {
            return together.iter().position(is_within).map(|n| at * TOGETHER + n);
        }
    }
    None
}

impl Flows {
    /// The flow that a write goes on with which begins here.
    fn going_on(&self, first: u64) -> Option<usize> {
        let at = place_of(&self.ends, first, OVERLAP_BLOCKS + 1)?;
        (self.firsts[at] <= first).then_some(at)
    }

    /// A flow that begins within these blocks.
    fn beginning_in(&self, from: u64, end: u64) -> Option<usize> {
        place_of(&self.firsts, from, end.saturating_sub(from))
    }

    fn put(&mut self, at: usize, flow: Flow) {
        (self.firsts[at], self.ends[at], self.flows[at]) = (flow.first, flow.end, flow);
    }

    /// Takes a flow out, if there is one.
    fn take(&mut self, at: usize) -> Option<Flow> {
        let flow = self.flows[at];
        self.put(at, Flow::ABSENT);
        (flow.writes > 0).then_some(flow)
    }

    /// Puts a young flow in the place of the oldest one, which is returned.
    fn begin(&mut self, flow: Flow) -> Option<Flow> {
        let at = self.next_young;
        self.next_young = (at + 1) % YOUNG_MAX;
        let ended = self.take(at);
        self.put(at, flow);
        ended
    }

    /// A young flow has gone on for long enough. Its new place, and the flow that was there.
    fn grow_up(&mut self, at: usize) -> (usize, Option<Flow>) {
        let to = (YOUNG_MAX..FLOWS_MAX).min_by_key(|to| self.flows[*to].used).unwrap_or(YOUNG_MAX);
        let ended = self.take(to);
        let flow = self.flows[at];
        self.put(at, Flow::ABSENT);
        self.put(to, flow);
        (to, ended)
    }
}

/// What a flow has left, by its first block.
#[derive(Clone, Copy, Debug)]
struct Track {
    end: u64,
    used: u64,
    /// It is a journal.
    is_loop: bool,
    /// Writes in turn and at random places, of late.
    in_turn: u32,
    strays: u32,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Journals {
    flows: Flows,
    /// Disjoint.
    tracks: BTreeMap<u64, Track>,
    writes: u64,
}

impl Journals {
    /// Takes a write into account; whether it is to a journal, as far as is known now. Bytes.
    pub fn write(&mut self, offset: u64, len: u64) -> bool {
        if len == 0 {
            return false;
        }
        self.writes += 1;
        let (first, end) = (offset / BLOCK_BYTES, offset.saturating_add(len).div_ceil(BLOCK_BYTES));
        let in_turn = self.follow(first, end);
        self.judge(first, in_turn)
    }

    /// Whether this lies in a journal that was found. Bytes.
    pub fn contain(&self, offset: u64) -> bool {
        self.track_at(offset / BLOCK_BYTES).is_some_and(|(_, track)| track.is_loop)
    }

    /// The journals that were found, from their first byte to the one behind their last, in order.
    pub fn found(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let found = self.tracks.iter().filter(|(_, track)| track.is_loop);
        found.map(|(first, track)| (first * BLOCK_BYTES, track.end * BLOCK_BYTES))
    }

    /// The track that a block lies in.
    fn track_at(&self, block: u64) -> Option<(u64, Track)> {
        let (first, track) = self.tracks.range(..=block).next_back()?;
        (block < track.end).then_some((*first, *track))
    }

    /// Puts a write to its flow; whether it had one, or begins a track again.
    fn follow(&mut self, first: u64, end: u64) -> bool {
        let Some(mut at) = self.flows.going_on(first) else { return self.begin(first, end) };
        let mut flow = self.flows.flows[at];
        let was = flow.end;
        // Another flow that this one has come to has ended.
        if let Some(reached) = self.flows.beginning_in(was, end).filter(|reached| *reached != at) {
            let ended = self.flows.take(reached);
            self.leave(ended);
        }
        // The beginning of a track that this write has come to.
        let mut tracks = self.tracks.range(was..end.max(was));
        let reached = tracks.next().map(|(first, _)| *first);
        let step = u32::from(was < end);
        (flow.end, flow.writes, flow.used) = (was.max(end), flow.writes.saturating_add(1), self.writes);
        flow.steps = flow.steps.saturating_add(step);
        flow.again = match (reached, flow.again) {
            (Some(reached), _) => Some((reached, 0)),
            (None, again) => again.map(|(track, steps)| (track, steps + step)),
        };
        let over = flow.again.filter(|(_, steps)| *steps == AGAIN_WRITES).map(|(track, _)| track);
        flow.again = flow.again.filter(|_| over.is_none());
        self.flows.put(at, flow);
        if at < YOUNG_MAX && flow.writes >= KNOWN_WRITES {
            let (to, ended) = self.flows.grow_up(at);
            at = to;
            self.leave(ended);
        }
        // It began where another one did: that one has come to its end.
        let anew = (step > 0 && flow.steps == AGAIN_WRITES).then_some(flow.first);
        if let Some(first) = anew {
            self.flows.put(at, Flow::ABSENT);
            while let Some(other) = self.flows.beginning_in(first, first + 1) {
                let ended = self.flows.take(other);
                self.leave(ended);
            }
            self.flows.put(at, flow);
        }
        for track in over.into_iter().chain(anew) {
            self.close(flow, track);
        }
        true
    }

    /// A flow begins; whether a track does, there. One of before makes room.
    fn begin(&mut self, first: u64, end: u64) -> bool {
        let flow = Flow { first, end, writes: 1, steps: 1, used: self.writes, again: None };
        let ended = self.flows.begin(flow);
        self.leave(ended);
        self.tracks.contains_key(&first)
    }

    /// A flow has ended: what it leaves, if it was long.
    fn leave(&mut self, flow: Option<Flow>) {
        let Some(flow) = flow else { return };
        let blocks = flow.end - flow.first;
        let is_long = blocks >= TRACK_BLOCKS_MIN && flow.writes >= TRACK_WRITES_MIN;
        if !is_long || !flow.is_of_small_writes() {
            return;
        }
        // A loop that it lies in stays as it is; other tracks that it has touched are of the past.
        let touched: Vec<u64> = self.touched(flow.first, flow.end);
        let mut is_loop = false;
        for first in &touched {
            let known = &self.tracks[first];
            // One that begins with it and ends later has been the whole of it all along.
            is_loop |= known.is_loop && *first == flow.first && known.end < flow.end;
            if known.is_loop && !is_loop {
                return;
            }
        }
        for first in touched {
            self.tracks.remove(&first);
        }
        let track = Track { end: flow.end, used: self.writes, is_loop, in_turn: 0, strays: 0 };
        self.put(flow.first, track);
    }

    /// Beginnings of all tracks that have a block of these.
    fn touched(&self, first: u64, end: u64) -> Vec<u64> {
        let before = self.track_at(first).map(|(first, _)| first);
        let others = self.tracks.range(first..end).map(|(first, _)| *first);
        before.into_iter().filter(|before| *before < first).chain(others).collect()
    }

    /// A flow has gone over the beginning of a track and on: the track is a loop, with what the flow has written before that. Of a loop that was
    /// found from its middle on, the beginning is found so.
    fn close(&mut self, flow: Flow, track: u64) {
        let Some(known) = self.tracks.get(&track).copied() else { return };
        if !flow.is_of_small_writes() || known.is_loop && flow.first >= track {
            return;
        }
        let (first, end) = (flow.first.min(track), known.end.max(flow.end));
        for touched in self.touched(first, end) {
            self.tracks.remove(&touched);
        }
        self.put(first, Track { end, used: self.writes, is_loop: true, in_turn: 0, strays: 0 });
    }

    /// Remembers a track. The one that was used the longest time ago makes room.
    fn put(&mut self, first: u64, track: Track) {
        if self.tracks.len() == TRACKS_MAX {
            let oldest = self.tracks.iter().min_by_key(|(_, track)| (track.is_loop, track.used));
            if let Some(first) = oldest.map(|(first, _)| *first) {
                self.tracks.remove(&first);
            }
        }
        self.tracks.insert(first, track);
    }

    /// Whether a write that begins here is to a journal, and whether that is still one.
    fn judge(&mut self, block: u64, in_turn: bool) -> bool {
        let Some((first, track)) = self.tracks.range_mut(..=block).next_back() else { return false };
        if block >= track.end {
            return false;
        }
        track.used = self.writes;
        track.in_turn += u32::from(in_turn);
        track.strays += u32::from(!in_turn);
        if track.in_turn + track.strays >= JUDGED_WRITES {
            if track.strays * 4 > track.in_turn * STRAYS_OF_FOUR {
                let first = *first;
                self.tracks.remove(&first);
                return false;
            }
            (track.in_turn, track.strays) = (0, 0);
        }
        track.is_loop
    }
}

#[cfg(test)]
mod tests;
