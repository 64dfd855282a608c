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

/// Flows that are followed: of half of them little is known yet.
const FLOWS_MAX: usize = 128;
/// Writes after which a flow has its place among those that no lone write displaces.
const KNOWN_WRITES: u32 = 4;
/// A write belongs to a flow if it begins so many blocks before its end at most: a page of 16 KiB that is written again.
const OVERLAP_BLOCKS: u64 = 4;
/// The least of a track: 1 MiB, in so many writes. ext4's smallest journal has 4 MiB.
const TRACK_BLOCKS_MIN: u64 = 256;
const TRACK_WRITES_MIN: u32 = 32;
/// More in each write on average, and it is a file that is copied: 256 KiB are XFS's largest.
const WRITE_BLOCKS_MAX: u64 = 64;
/// Writes that a flow makes over a track before that is a loop.
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
    /// When it was last written to.
    used: u64,
    /// Writes since it ran over the beginning of the track that begins there.
    again: Option<(u64, u32)>,
}

impl Flow {
    /// It could be a journal's: files are copied in larger pieces.
    fn is_of_small_writes(&self) -> bool {
        self.end - self.first <= WRITE_BLOCKS_MAX.saturating_mul(self.writes.into())
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
    flows: Vec<Flow>,
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
        let goes_on = |flow: &Flow| (first..=first.saturating_add(OVERLAP_BLOCKS)).contains(&flow.end) && flow.first <= first;
        let Some(at) = self.flows.iter().position(goes_on) else {
            let begun = self.tracks.contains_key(&first);
            self.begin(first, end, begun);
            return begun;
        };
        let (was, at) = (self.flows[at].end, self.end_reached(at, end));
        // The beginning of a track that this write has come to.
        let reached = (was < end).then(|| self.tracks.range(was..end).next().map(|(first, _)| *first)).flatten();
        let flow = &mut self.flows[at];
        flow.end = flow.end.max(end);
        flow.writes = flow.writes.saturating_add(1);
        flow.used = self.writes;
        if let Some(reached) = reached {
            flow.again = Some((reached, 0));
        } else if let Some((track, writes)) = &mut flow.again {
            *writes += 1;
            if *writes == AGAIN_WRITES {
                let track = *track;
                self.close(at, track);
            }
        }
        true
    }

    /// Another flow whose beginning this one comes to with a write up to `end` has ended; where this one is then.
    fn end_reached(&mut self, at: usize, end: u64) -> usize {
        let coming = self.flows[at].end..end;
        match self.flows.iter().position(|other| coming.contains(&other.first)) {
            Some(reached) if reached != at => {
                let ended = self.flows.swap_remove(reached);
                self.leave(ended);
                // The last one is now in the place of the one that is gone.
                if at == self.flows.len() { reached } else { at }
            }
            _ => at,
        }
    }

    /// A flow begins, perhaps where a track does. One of before makes room.
    fn begin(&mut self, first: u64, end: u64, begun: bool) {
        // Whoever begins here again has come to its end.
        if let Some(at) = self.flows.iter().position(|flow| flow.first == first) {
            let ended = self.flows.swap_remove(at);
            self.leave(ended);
        }
        if self.flows.len() == FLOWS_MAX {
            let known = |flow: &Flow| flow.writes >= KNOWN_WRITES;
            let many = self.flows.iter().filter(|flow| known(flow)).count() > FLOWS_MAX / 2;
            let oldest = (0..FLOWS_MAX).filter(|at| known(&self.flows[*at]) == many).min_by_key(|at| self.flows[*at].used);
            if let Some(at) = oldest {
                let ended = self.flows.swap_remove(at);
                self.leave(ended);
            }
        }
        let begun = begun || self.tracks.contains_key(&first);
        let again = begun.then_some((first, 0));
        self.flows.push(Flow { first, end, writes: 1, used: self.writes, again });
    }

    /// A flow has ended: what it leaves, if it was long.
    fn leave(&mut self, flow: Flow) {
        let blocks = flow.end - flow.first;
        let is_long = blocks >= TRACK_BLOCKS_MIN && flow.writes >= TRACK_WRITES_MIN;
        if !is_long || !flow.is_of_small_writes() {
            return;
        }
        // A loop that it lies in stays as it is; other tracks that it has touched are of the past.
        let touched: Vec<u64> = self.touched(flow.first, flow.end);
        if touched.iter().any(|first| self.tracks[first].is_loop) {
            return;
        }
        for first in touched {
            self.tracks.remove(&first);
        }
        let track = Track { end: flow.end, used: self.writes, is_loop: false, in_turn: 0, strays: 0 };
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
    fn close(&mut self, at: usize, track: u64) {
        let Some(known) = self.tracks.get(&track).copied() else { return };
        let flow = &mut self.flows[at];
        flow.again = None;
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
        let Some((first, mut track)) = self.track_at(block) else { return false };
        track.used = self.writes;
        if in_turn {
            track.in_turn += 1;
        } else {
            track.strays += 1;
        }
        if track.in_turn + track.strays >= JUDGED_WRITES {
            if track.strays * 4 > track.in_turn * STRAYS_OF_FOUR {
                self.tracks.remove(&first);
                return false;
            }
            (track.in_turn, track.strays) = (0, 0);
        }
        self.tracks.insert(first, track);
        track.is_loop
    }
}

#[cfg(test)]
mod tests;
