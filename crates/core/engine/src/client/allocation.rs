//! Which parts of a range are cached, for clients that want to skip holes.
//!
//! ```text
//!   asked:    |-------------------------------------------------------------------|
//!   shards:   ....|     a     |    b    |        c        |    d    |      e   ...
//!   answered: |  hole  |data|   hole   |data|    hole     |  ->  the asker goes on here
//! ```
//!
//! An answer is short: it ends after [`SHARDS_MAX`] shards of the index, or after as many extents as are wanted. What it costs the volume's thread
//! is so bounded by the blocks of a few shards, however long the range is. A part without cached blocks costs one step.
//!
//! Here "hole" only says that the cache has nothing: a backing knows whether there is data, and must be asked *afterwards*. **Why that order
//! is right (P2)**: at the instant of this answer, whatever was acknowledged of a block that is not cached is on the backing. What the backing
//! says of it later is from an instant within the request's life, as it must be: a hole there is either one that was acknowledged before this answer and
//! still stands, or made by a zero since, which the request may see as well as not. Newer data that has come to the cache since is
//! concurrent with the request. The other way round data would be lost: the backing is asked and has a hole, the
//! block's dirty copy is destaged and dropped, and then the cache is asked and has nothing either.

use forebay_block::{Allocation, BLOCK_BYTES, BlockNo, STATUS_EXTENTS_MAX, StatusExtent};

use crate::map::Map;
use crate::mutation::{Mutation, Planted};

/// Shards of the index that are looked at for one answer, each of at most [`crate::map::index::SHARD_BLOCKS_MAX`] blocks.
const SHARDS_MAX: usize = 4;

/// Extents that grow from the front; neighbours alike become one.
struct Extents {
    /// Byte offset up to which the volume is described.
    at: u64,
    list: Vec<StatusExtent>,
}

impl Extents {
    fn extend(&mut self, to: u64, allocation: Allocation) {
        let len = to.saturating_sub(self.at);
        match self.list.last_mut() {
            _ if len == 0 => return,
            Some(last) if last.allocation == allocation => last.len += len,
            _ => self.list.push(StatusExtent { len, allocation }),
        }
        self.at = to;
    }
}

/// What is cached of these bytes, from the first of them on: at most so many extents, in as few steps as there may be for one answer.
pub(crate) fn extents(
    map: &Map,
    (offset, len): (u64, u64),
    extents_max: usize,
    planted: Planted,
) -> Vec<StatusExtent> {
    let extents_max = extents_max.clamp(1, STATUS_EXTENTS_MAX);
    let end = offset + len;
    let mut extents = Extents { at: offset, list: Vec::new() };
    let mut cached = Vec::new();
    for _ in 0..SHARDS_MAX {
        let range = (BlockNo::containing(extents.at), end.div_ceil(BLOCK_BYTES));
        let known = map.cached_from(range, &mut cached);
        let forgotten = usize::from(planted.is(Mutation::StatusForgetsBlock));
        for block in cached.iter().skip(forgotten) {
            extents.extend(block.offset().min(end), Allocation::Hole);
            extents.extend(block.plus(1).offset().min(end), Allocation::Data);
            if extents.list.len() > extents_max || extents.at == end {
                break;
            }
        }
        if extents.list.len() <= extents_max {
            extents.extend(known.0.saturating_mul(BLOCK_BYTES).min(end), Allocation::Hole);
        }
        if extents.list.len() > extents_max || extents.at == end {
            break;
        }
    }
    extents.list.truncate(extents_max);
    extents.list
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use forebay_block::Seq;
    use proptest::prelude::*;

    use super::*;
    use crate::map::segments::{Slot, SlotKind};

    /// The volume's end lies within a block.
    const VOLUME: u64 = 6000 * BLOCK_BYTES + 1536;

    fn map(cached: &BTreeSet<u64>) -> Map {
        let mut map = Map::of_segments(8);
        map.segments_mut().open(0, 1, Seq(1), 0, 1);
        for block in cached {
            let slot = Slot::new(BlockNo(*block), 8, 0, SlotKind::Data, Seq(1), Seq(1));
            let slot = map.segments_mut().push(0, slot);
            map.put(slot, false);
        }
        map
    }

    fn ask(map: &Map, offset: u64, len: u64, extents_max: usize) -> Vec<StatusExtent> {
        extents(map, (offset, len), extents_max, Planted::default())
    }

    /// Each sector of the range, told by asking again behind each short answer.
    fn told(map: &Map, offset: u64, len: u64, extents_max: usize) -> (Vec<bool>, usize) {
        let (mut sectors, mut at, mut answers) = (Vec::new(), offset, 0);
        while at < offset + len {
            let extents = ask(map, at, offset + len - at, extents_max);
            assert!(!extents.is_empty() && extents.len() <= extents_max);
            assert!(extents.windows(2).all(|two| two[0].allocation != two[1].allocation));
            for extent in extents {
                assert!(extent.len > 0 && extent.len.is_multiple_of(512));
                let cached = extent.allocation == Allocation::Data;
                sectors.extend(std::iter::repeat_n(cached, (extent.len / 512) as usize));
                at += extent.len;
            }
            answers += 1;
        }
        assert_eq!(at, offset + len);
        (sectors, answers)
    }

    proptest! {
        /// Whatever is cached, whatever is asked: what is told is what each block's own place in the index says.
        #[test]
        fn is_what_a_walk_over_all_blocks_finds(
            runs in proptest::collection::vec((0u64..6001, 1u64..200, 1u64..4), 0..40),
            (from, count) in (0u64..48_000, 1u64..48_000),
            extents_max in prop::sample::select(vec![1, 2, 7, 1024]),
        ) {
            let blocks = VOLUME.div_ceil(BLOCK_BYTES);
            let strided = |(first, count, stride): &(u64, u64, u64)| {
                let (first, stride) = (*first, *stride);
                (0..*count).map(move |n| first + n * stride).filter(move |b| *b < blocks)
            };
            let cached: BTreeSet<u64> = runs.iter().flat_map(strided).collect();
            let offset = from * 512;
            let len = (count * 512).min(VOLUME - offset);
            let (sectors, _) = told(&map(&cached), offset, len, extents_max);
            for (at, is_cached) in sectors.iter().enumerate() {
                let block = (offset + at as u64 * 512) / BLOCK_BYTES;
                prop_assert_eq!(*is_cached, cached.contains(&block), "sector {} of the answer", at);
            }
        }
    }

    #[test]
    fn answers_are_few_where_little_is_cached_and_short_where_much_is() {
        let empty = map(&BTreeSet::new());
        assert_eq!(told(&empty, 0, VOLUME, 1024).1, 1);
        let ends = map(&BTreeSet::from([0, 6000]));
        assert_eq!(told(&ends, 0, VOLUME, 1024).1, 1);
        assert_eq!(told(&ends, 0, VOLUME, 1).1, 3);
        let every_second = map(&(0..6000).step_by(2).collect());
        let extents = ask(&every_second, 0, VOLUME, usize::MAX);
        assert!(extents.len() <= STATUS_EXTENTS_MAX);
        let all = map(&(0..6001).collect());
        let extents = ask(&all, 0, VOLUME, usize::MAX);
        assert_eq!(extents.len(), 1);
        let blocks = extents[0].len / BLOCK_BYTES;
        assert!(
            blocks <= (SHARDS_MAX * crate::map::index::SHARD_BLOCKS_MAX) as u64,
            "{blocks} blocks in one answer"
        );
    }
}
