//! Where the newest version of each sector of the volume lies: extents, in memory.
//!
//! The volume is cut into chunks of 4 MiB. A chunk is a sorted list of extents of ten bytes each, shared with a snapshot until the next change.
//! What has no extent reads as zeroes.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};
use std::sync::Arc;

/// Sectors of a chunk.
pub(crate) const CHUNK_SECTORS: u32 = 8192;
/// What a chunk takes in memory beside its extents, in bytes: an entry of the map at its usual filling, the list, its count of owners.
const CHUNK_BYTES: u64 = 24 + 24 + 16;

/// A sector of data in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Which object, by its row in the table of objects.
    pub(crate) slot: u32,
    /// Which sector of its payload.
    pub(crate) pos: u32,
}

impl Place {
    /// So many sectors further on.
    pub(crate) const fn plus(self, sectors: u32) -> Self {
        Self { slot: self.slot, pos: self.pos + sectors }
    }
}

/// Consecutive sectors of the volume that lie one after the other in one object, or read as zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// First sector in the volume.
    pub(crate) start: u64,
    pub(crate) sectors: u64,
    /// Where the first one lies; `None` for zeroes.
    pub(crate) place: Option<Place>,
}

/// An extent within its chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    start: u16,
    sectors: u16,
    pos: u16,
    /// Low half first: no padding this way.
    slot: [u16; 2],
}

impl Packed {
    pub(crate) const fn new(start: u32, sectors: u32, place: Place) -> Self {
        Self {
            start: start as u16,
            sectors: sectors as u16,
            pos: place.pos as u16,
            slot: [place.slot as u16, (place.slot >> 16) as u16],
        }
    }

    pub(crate) const fn start(self) -> u32 {
        self.start as u32
    }

    pub(crate) const fn sectors(self) -> u32 {
        self.sectors as u32
    }

    const fn end(self) -> u32 {
        self.start() + self.sectors()
    }

    pub(crate) const fn place(self) -> Place {
        Place { slot: self.slot[0] as u32 | (self.slot[1] as u32) << 16, pos: self.pos as u32 }
    }

    /// Its sectors from `from` up to `end`, which lie in it.
    const fn part(self, from: u32, end: u32) -> Self {
        Self::new(from, end - from, self.place().plus(from - self.start()))
    }

    /// Whether the other one goes on where this one ends, in the volume and in the object.
    fn goes_on(self, other: Self) -> bool {
        self.end() == other.start() && self.place().plus(self.sectors()) == other.place()
    }
}

/// The chunks of an index, as they were at one instant.
pub(crate) type Chunks = BTreeMap<u32, Arc<Vec<Packed>>>;

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    chunks: Chunks,
    extents: u64,
    /// Room in all lists of extents.
    capacity: u64,
}

impl Index {
    /// Whether a range reads as zeroes.
    pub(crate) fn is_clear(&self, start: u64, sectors: u64) -> bool {
        let end = start + sectors;
        self.chunks.range(chunk_of(start)..=chunk_of(end - 1)).all(|(number, chunk)| {
            let base = chunk_start(*number);
            let first = chunk.partition_point(|e| base + u64::from(e.end()) <= start);
            chunk.get(first).is_none_or(|e| base + u64::from(e.start()) >= end)
        })
    }

    /// What lies where in a range, without a gap.
    pub(crate) fn pieces(&self, start: u64, sectors: u64) -> Vec<Piece> {
        let mut all: Vec<Piece> = Vec::new();
        let mut push = |start, sectors, place: Option<Place>| {
            let joins = |last: &Piece| match (last.place, place) {
                (None, None) => true,
                (Some(a), Some(b)) => a.slot == b.slot && u64::from(a.pos) + last.sectors == u64::from(b.pos),
                _ => false,
            };
            match all.last_mut() {
                Some(last) if joins(last) => last.sectors += sectors,
                _ => all.push(Piece { start, sectors, place }),
            }
        };
        let (mut at, end) = (start, start + sectors);
        let first = chunk_of(start);
        for (number, chunk) in self.chunks.range(first..).take_while(|(n, _)| chunk_start(**n) < end) {
            let base = chunk_start(*number);
            let from = chunk.partition_point(|e| base + u64::from(e.end()) <= at);
            for extent in &chunk[from..] {
                let (begins, ends) = (base + u64::from(extent.start()), base + u64::from(extent.end()));
                if begins >= end {
                    break;
                }
                if begins > at {
                    push(at, begins - at, None);
                    at = begins;
                }
                let ends = ends.min(end);
                push(at, ends - at, Some(extent.place().plus((at - begins) as u32)));
                at = ends;
            }
        }
        if at < end {
            push(at, end - at, None);
        }
        all
    }

    /// From now on a range lies there, or reads as zeroes. `freed` is told how many sectors of which object it replaces.
    pub(crate) fn set(
        &mut self,
        start: u64,
        sectors: u64,
        place: Option<Place>,
        freed: &mut impl FnMut(u32, u32),
    ) {
        let (mut at, end) = (start, start + sectors);
        if place.is_none() {
            // Of a long range few chunks may be there.
            let last = chunk_of(end - 1);
            let mut next = self.chunks.range(chunk_of(at)..=last).next().map(|(n, _)| *n);
            while let Some(number) = next {
                let from = at.max(chunk_start(number));
                let to = end.min(chunk_start(number + 1));
                self.set_in_chunk(number, from, to, None, freed);
                let behind = (Excluded(number), Included(last));
                next = self.chunks.range(behind).next().map(|(n, _)| *n);
            }
            return;
        }
        while at < end {
            let number = chunk_of(at);
            let to = end.min(chunk_start(number + 1));
            self.set_in_chunk(number, at, to, place.map(|p| p.plus((at - start) as u32)), freed);
            at = to;
        }
    }

    fn set_in_chunk(
        &mut self,
        number: u32,
        from: u64,
        to: u64,
        place: Option<Place>,
        freed: &mut impl FnMut(u32, u32),
    ) {
        let base = chunk_start(number);
        let (from, to) = ((from - base) as u32, (to - base) as u32);
        let chunk = self.chunks.entry(number).or_default();
        self.capacity -= chunk.capacity() as u64;
        let before = chunk.len();
        let chunk = Arc::make_mut(chunk);
        replace(chunk, from, to, place, freed);
        self.capacity += chunk.capacity() as u64;
        self.extents = self.extents + chunk.len() as u64 - before as u64;
        if chunk.is_empty() {
            self.capacity -= chunk.capacity() as u64;
            self.chunks.remove(&number);
        }
    }

    /// Adds a chunk of a checkpoint; none of its number may be there.
    pub(crate) fn load(&mut self, number: u32, extents: Vec<Packed>) {
        self.extents += extents.len() as u64;
        self.capacity += extents.capacity() as u64;
        self.chunks.insert(number, Arc::new(extents));
    }

    /// The index as it is now, to be read while it changes.
    pub(crate) fn snapshot(&self) -> Chunks {
        self.chunks.clone()
    }

    pub(crate) const fn extents(&self) -> u64 {
        self.extents
    }

    /// Chunks that have an extent.
    pub(crate) fn chunks(&self) -> u64 {
        self.chunks.len() as u64
    }

    /// What it takes in memory, without snapshots.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.capacity * size_of::<Packed>() as u64 + self.chunks() * CHUNK_BYTES
    }
}

/// Puts one extent, or none, in the place of a range of a chunk.
fn replace(
    chunk: &mut Vec<Packed>,
    from: u32,
    to: u32,
    place: Option<Place>,
    freed: &mut impl FnMut(u32, u32),
) {
    let mut first = chunk.partition_point(|e| e.end() <= from);
    let mut behind = first + chunk[first..].partition_point(|e| e.start() < to);
    let mut parts: [Option<Packed>; 3] = [None; 3];
    for extent in &chunk[first..behind] {
        freed(extent.place().slot, extent.end().min(to) - extent.start().max(from));
        if extent.start() < from {
            parts[0] = Some(extent.part(extent.start(), from));
        }
        if extent.end() > to {
            parts[2] = Some(extent.part(to, extent.end()));
        }
    }
    if let Some(place) = place {
        let mut new = Packed::new(from, to - from, place);
        let left = parts[0].or_else(|| first.checked_sub(1).map(|n| chunk[n]));
        if let Some(left) = left.filter(|left| left.goes_on(new)) {
            new = Packed::new(left.start(), left.sectors() + new.sectors(), left.place());
            // The neighbour is taken out where it was not cut.
            first -= usize::from(parts[0].take().is_none());
        }
        let right = parts[2].or_else(|| chunk.get(behind).copied());
        if let Some(right) = right.filter(|right| new.goes_on(*right)) {
            new = Packed::new(new.start(), new.sectors() + right.sectors(), new.place());
            behind += usize::from(parts[2].take().is_none());
        }
        parts[1] = Some(new);
    }
    let count = parts.iter().flatten().count();
    let len = chunk.len() - (behind - first) + count;
    if len > chunk.capacity() {
        // Little room is left empty: most of the memory is this.
        chunk.reserve_exact((len + len / 8 + 1) - chunk.len());
    }
    chunk.splice(first..behind, parts.into_iter().flatten());
}

const fn chunk_of(sector: u64) -> u32 {
    (sector / CHUNK_SECTORS as u64) as u32
}

const fn chunk_start(number: u32) -> u64 {
    number as u64 * CHUNK_SECTORS as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECTORS: u64 = 3 * CHUNK_SECTORS as u64;

    fn place(slot: u32, pos: u32) -> Option<Place> {
        Some(Place { slot, pos })
    }

    #[test]
    fn an_extent_takes_ten_bytes() {
        assert_eq!((size_of::<Packed>(), align_of::<Packed>()), (10, 2));
        let extent = Packed::new(8191, 1, Place { slot: 0xDEAD_BEEF, pos: 32767 });
        assert_eq!(
            (extent.start(), extent.end(), extent.place()),
            (8191, 8192, Place { slot: 0xDEAD_BEEF, pos: 32767 })
        );
    }

    #[test]
    fn neighbours_in_volume_and_object_become_one_extent() {
        let mut index = Index::default();
        let mut freed = |_, _| panic!("nothing was there");
        index.set(8, 8, place(1, 0), &mut freed);
        index.set(24, 8, place(1, 16), &mut freed);
        index.set(16, 8, place(1, 8), &mut freed);
        assert_eq!(index.extents(), 1);
        assert_eq!(
            index.pieces(0, 40),
            [
                Piece { start: 0, sectors: 8, place: None },
                Piece { start: 8, sectors: 24, place: place(1, 0) },
                Piece { start: 32, sectors: 8, place: None },
            ]
        );
    }

    proptest! {
        #[test]
        fn it_is_an_array_of_sectors(
            changes in prop::collection::vec((0..SECTORS, 1..20_000_u64, prop::option::of((0..4_u32, 0..64_u32))), 1..60),
            looks in prop::collection::vec((0..SECTORS, prop_oneof![1..SECTORS, 1..4000_u64]), 9),
        ) {
            let mut index = Index::default();
            let mut model = vec![None; SECTORS as usize];
            let mut live = [0_i64; 4];
            for (start, sectors, to) in changes {
                let sectors = sectors.min(SECTORS - start);
                let snapshot = index.snapshot();
                let before: Vec<_> = snapshot.values().map(|chunk| chunk.to_vec()).collect();
                let to = to.map(|(slot, pos)| Place { slot, pos });
                index.set(start, sectors, to, &mut |slot, sectors| live[slot as usize] -= i64::from(sectors));
                if let Some(to) = to {
                    live[to.slot as usize] += sectors as i64;
                }
                for n in 0..sectors {
                    model[(start + n) as usize] = to.map(|p| p.plus(n as u32));
                }
                prop_assert!(snapshot.values().map(|chunk| chunk.to_vec()).eq(before), "a snapshot stays");
            }
            for (slot, live) in live.iter().enumerate() {
                let count = model.iter().flatten().filter(|p| p.slot as usize == slot).count();
                prop_assert_eq!(count as i64, *live);
            }
            for (start, sectors) in looks {
                let sectors = sectors.min(SECTORS - start);
                let mut at = start;
                let is_clear = model[start as usize..(start + sectors) as usize].iter().all(Option::is_none);
                prop_assert_eq!(index.is_clear(start, sectors), is_clear);
                for piece in index.pieces(start, sectors) {
                    prop_assert_eq!(piece.start, at);
                    for n in 0..piece.sectors {
                        prop_assert_eq!(model[(at + n) as usize], piece.place.map(|p| p.plus(n as u32)));
                    }
                    at += piece.sectors;
                }
                prop_assert_eq!(at, start + sectors);
            }
            let lists = index.chunks.values();
            prop_assert_eq!(index.extents(), lists.clone().map(|c| c.len() as u64).sum::<u64>());
            prop_assert_eq!(index.capacity, lists.map(|c| c.capacity() as u64).sum::<u64>());
        }
    }
}
