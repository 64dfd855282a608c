//! A group that is in its place as soon as it is committed, on a backing that takes a [`Commit`].
//!
//! ```text
//!   ring:  ├ descriptor ┼ block 7 ┼ block 8 ┼ block 40 ┤        one operation, wholly or not at all:
//!                            └────┬────┘         └─────────┐      move to 7, 8; move to 40; zero 90; write the head
//!   place: ······ 7 ┼ 8 ┼ ····· 40 ┼ ····· 90 (zeroes) ····
//! ```
//!
//! Nothing is sent twice, no replay has anything to do, and who reads the backing alone finds it at a group's end.

use forebay_block::{BLOCK_BYTES, Commit, DeviceOp, Move};
use forebay_format::journal::{Group as Descriptor, GroupEntry, Head};

use crate::locks::BlockRange;

use super::ring::data_position;

/// The write of a head that commits this group, and the group's way from the ring, where `before` says how it lies, to its place in
/// a volume of so many bytes.
pub(super) fn commit(write: DeviceOp, group: &Descriptor, before: &Head, volume_bytes: u64) -> DeviceOp {
    let DeviceOp::Write { offset: head_offset, bufs, .. } = write else { return write };
    let Some(head) = bufs.into_iter().next() else { return DeviceOp::Flush };
    let (mut moves, mut zeroes): (Vec<Move>, Vec<(u64, u64)>) = (Vec::new(), Vec::new());
    let mut with_data = 0;
    for entry in &group.entries {
        let to = entry.block.offset();
        // The last block of a volume may not be a whole one.
        let len = BLOCK_BYTES.min(volume_bytes - to);
        if entry.zero {
            match zeroes.last_mut() {
                Some((offset, zeroed)) if *offset + *zeroed == to => *zeroed += len,
                _ => zeroes.push((to, len)),
            }
            continue;
        }
        let from = before.offset_of(data_position(group.position, group.entries.len(), with_data));
        with_data += 1;
        match moves.last_mut() {
            Some(last) if (last.from + last.len, last.to + last.len) == (from, to) => last.len += len,
            _ => moves.push(Move { from, to, len }),
        }
    }
    DeviceOp::Commit(Box::new(Commit { head_offset, head, moves, zeroes }))
}

/// The places of a group's blocks: neighbours together.
pub(super) fn places(entries: &[GroupEntry]) -> Vec<BlockRange> {
    let runs = entries.chunk_by(|a, b| a.block.0 + 1 == b.block.0);
    runs.filter_map(|run| Some(BlockRange::new(run.first()?.block, run.len() as u64))).collect()
}

#[cfg(test)]
mod tests;
