//! Committed groups in the journal's ring: where they lie, what they hold, what the head may leave behind.
//!
//! ```text
//!   positions:  0 ─────────── tail ─────────────────── head ─────────────── tail + ring_bytes
//!                              ├ group 7 ┼ group 8 ┼ 9 ┤ ····· room ······· ┤
//!   offset = ring begins + position mod ring_bytes:  a write that crosses the end of the ring goes in two
//!
//!   a group:  ├ descriptor ┼ data of its first block that is not zero ┼ data of the next ┼ ···
//! ```
//!
//! 1. Groups follow each other without a gap, oldest first; each ends where the next begins.
//! 2. Only the oldest leave, when the head on the medium says so: until then a replay could write their blocks again.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_block::{BLOCK_BYTES, BlockNo, Buf, Seq};
use forebay_format::journal::{Group as Descriptor, GroupEntry, Head, Moment};

use crate::locks::BlockRange;

use super::points::forget;

/// A group whose blocks a replay could write.
pub(super) struct InRing {
    /// Position of its first byte.
    pub(super) position: u64,
    /// Position behind it.
    pub(super) end: u64,
    pub(super) moment: Moment,
    /// In ascending order of their blocks.
    pub(super) entries: Arc<Vec<GroupEntry>>,
}

impl InRing {
    fn entry(&self, block: BlockNo) -> Option<(usize, &GroupEntry)> {
        let n = self.entries.binary_search_by_key(&block, |entry| entry.block).ok()?;
        Some((n, self.entries.get(n)?))
    }
}

/// The groups that the head has not left behind.
#[derive(Default)]
pub(super) struct Ring {
    groups: VecDeque<InRing>,
}

impl Ring {
    pub(super) fn len(&self) -> usize {
        self.groups.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The newest group.
    pub(super) fn newest(&self) -> Option<&InRing> {
        self.groups.back()
    }

    /// A group is committed.
    pub(super) fn push(&mut self, group: InRing) {
        self.groups.push_back(group);
    }

    /// The head on the medium says that groups up to this position are left behind.
    pub(super) fn leave_behind(&mut self, tail: u64) {
        while self.groups.pop_front_if(|group| group.end <= tail).is_some() {}
    }

    /// The newest group up to which all are on the backing, by the order's `progress`.
    pub(super) fn applied(&self, progress: Seq) -> Option<&InRing> {
        self.groups.iter().take_while(|group| group.moment.seq <= progress).last()
    }

    /// None of them ends at a point any more.
    pub(super) fn forget_points(&mut self) {
        self.groups.iter_mut().for_each(|group| forget(&mut group.moment));
    }

    /// A replay could write one of the blocks again.
    pub(super) fn holds(&self, range: BlockRange) -> bool {
        self.groups.iter().flat_map(|group| group.entries.iter()).any(|entry| range.contains(entry.block))
    }

    /// One of the groups has a newer version of the block than that of record `seq`.
    pub(super) fn has_newer(&self, block: BlockNo, seq: Seq) -> bool {
        let within = |group: &&InRing| group.moment.seq >= seq;
        let newer = |group: &InRing| group.entry(block).is_some_and(|(_, entry)| entry.seq > seq);
        self.groups.iter().rev().take_while(within).any(newer)
    }

    /// Position of the data that a group has of this version of a block; zeroes have none.
    pub(super) fn copy(&self, block: BlockNo, seq: Seq) -> Option<u64> {
        self.groups.iter().find_map(|group| {
            let (n, _) = group.entry(block).filter(|(_, entry)| entry.seq == seq && !entry.zero)?;
            let before = group.entries.iter().take(n).filter(|entry| !entry.zero).count();
            Some(data_position(group.position, group.entries.len(), before))
        })
    }
}

/// Bytes of the ring that no group has.
pub(super) fn room(head: &Head) -> u64 {
    head.ring_bytes - (head.head - head.tail)
}

/// Position of a group's data block `n`, of those that have data; it begins at `position`, with so many entries.
pub(super) fn data_position(position: u64, entries: usize, n: usize) -> u64 {
    position + Descriptor::descriptor_bytes(entries) + n as u64 * BLOCK_BYTES
}

/// Where these bytes go that begin at `position`, as byte offsets in the journal: in two stretches where the ring begins anew.
pub(super) fn stretches(head: &Head, position: u64, bufs: Vec<Buf>) -> impl Iterator<Item = (u64, Vec<Buf>)> {
    let len: u64 = bufs.iter().map(|b| b.len() as u64).sum();
    let first = len.min(head.run_of(position));
    let (offset, again) = (head.offset_of(position), head.offset_of(position + first));
    let (mut front, mut back, mut left) = (Vec::new(), Vec::new(), first as usize);
    for buf in bufs {
        let n = buf.len().min(left);
        left -= n;
        if n > 0 {
            front.push(buf.slice(0, n));
        }
        if n < buf.len() {
            back.push(buf.slice(n, buf.len() - n));
        }
    }
    [(offset, front), (again, back)].into_iter().filter(|(_, bufs)| !bufs.is_empty())
}

#[cfg(test)]
mod tests;
