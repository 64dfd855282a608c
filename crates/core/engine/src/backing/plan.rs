//! The plan: which dirty blocks go to the backing next, and which of them together.
//!
//! Without an order the oldest segments are emptied first: their dirty blocks are collected and sorted by address, which merges
//! neighbours. Where an order is kept the coordinator gives the plan, and only what is in it goes along.
//!
//! While writers wait for room the plan is *hurried*: room comes from the tail of the log, so that it has the tail's blocks alone.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use forebay_block::BlockNo;
use forebay_policy::{PLAN_BLOCKS_LEAST, PLAN_BLOCKS_MAX};

use crate::backing::runs::{Member, Run};
use crate::interface::RunKey;
use crate::locks::{BlockRange, Hold, Locks};
use crate::map::Map;
use crate::map::segments::{Slot, SlotKind, SlotRef};
use crate::mutation::{Mutation, Planted};

/// Longest run, in blocks (1 MiB), where the backing has no larger unit.
const RUN_BLOCKS_MAX: u64 = 256;
/// Longest run of a backing with larger units, in blocks (4 MiB).
const RUN_BLOCKS_OF_UNIT_MAX: u64 = 1024;

/// Where segments are to become free evenly, a plan has such a part of the log at most.
const EVENLY_ONE_IN: usize = 32;

/// What goes next, in this order.
#[derive(Default)]
pub(super) struct Plan {
    blocks: VecDeque<(BlockNo, SlotRef)>,
    /// They are written durably.
    durable: bool,
    /// Writers waited for room when the plan was last looked at.
    hurried: bool,
    /// The newest run of before the plan that was made while they do.
    before: RunKey,
    /// Blocks that the backing takes best together, if that makes a difference.
    unit: Option<NonZeroU64>,
}

impl Plan {
    /// Runs end where units of the backing do, of so many blocks each.
    pub(super) fn of_units(unit: Option<NonZeroU64>) -> Self {
        Self { unit, ..Self::default() }
    }

    /// Blocks of the longest run that begins with this one: whole units from the first unit's end on.
    fn run_max(&self, first: BlockNo) -> usize {
        let Some(unit) = self.unit.map(NonZeroU64::get) else { return RUN_BLOCKS_MAX as usize };
        let longest = unit.clamp(RUN_BLOCKS_MAX, RUN_BLOCKS_OF_UNIT_MAX);
        let end = (first.0 + longest) / unit * unit;
        end.checked_sub(first.0).filter(|len| *len > 0).unwrap_or(longest) as usize
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(super) fn is_hurried(&self) -> bool {
        self.hurried
    }

    /// The newest run of before the hurried plan.
    pub(super) fn before(&self) -> RunKey {
        self.before
    }

    /// It is to be made anew.
    pub(super) fn clear(&mut self) {
        self.blocks.clear();
    }

    /// Whether writers wait for room that the tail of the log makes. A plan from before they did is sorted by address, so that the
    /// tail's blocks may be its last: it is made anew.
    pub(super) fn hurry(&mut self, hurried: bool) {
        let since = std::mem::replace(&mut self.hurried, hurried);
        if hurried && !since {
            self.blocks.clear();
            self.before = RunKey::default();
        }
    }

    /// Drops what is not worth writing any more.
    pub(super) fn drop_if(&mut self, void: impl Fn(BlockNo) -> bool) {
        self.blocks.retain(|(block, _)| !void(*block));
    }

    /// The plan of an order.
    pub(super) fn follow(&mut self, blocks: VecDeque<(BlockNo, SlotRef)>, durable: bool) {
        (self.blocks, self.durable) = (blocks, durable);
    }

    /// Collects dirty blocks from the oldest segments of a log of so many blocks, sorted by address; `last`: the newest run so far.
    /// `evenly`: writers are slowed down to the rate at which segments become free, so that few of them are emptied at a time. Returns the
    /// segments that it looked at.
    pub(super) fn collect(&mut self, map: &Map, log_blocks: u64, evenly: bool, last: RunKey) -> Vec<u32> {
        self.durable = false;
        self.before = last;
        let mut found: Vec<(BlockNo, SlotRef)> = Vec::new();
        let enough = match (self.hurried, evenly) {
            (true, _) => 1,
            (_, true) => PLAN_BLOCKS_MAX.min(log_blocks as usize / EVENLY_ONE_IN).max(1),
            _ => PLAN_BLOCKS_MAX.min(log_blocks as usize / 8).max(PLAN_BLOCKS_LEAST),
        };
        let most = if evenly { (map.segments().count() / EVENLY_ONE_IN).max(1) } else { usize::MAX };
        let mut looked_at = Vec::new();
        for index in map.segments().with_dirty() {
            if found.len() >= enough || looked_at.len() >= most && !found.is_empty() {
                break;
            }
            looked_at.push(index);
            found.extend(map.segments().slot_refs(index).filter_map(|r| {
                let s = map.segments().slot(r);
                s.wants_destage().then(|| (s.block(), r))
            }));
        }
        // A run takes the blocks that follow its first; looking at each once keeps the plan linear.
        found.sort_unstable();
        self.blocks = found.into();
        looked_at
    }

    /// Takes the next run out of the plan, and locks its blocks on the backing; `None` if nothing of it can go now. `in_order`: older
    /// versions go, too, and no block that is not planned.
    pub(super) fn next_run(
        &mut self,
        map: &Map,
        locks: &mut Locks,
        in_order: bool,
        planted: Planted,
    ) -> Option<Run> {
        while let Some((block, slot)) = self.blocks.pop_front() {
            // What is not current may have left the log with its segment.
            let current = || map.lookup(block) == Some(slot);
            // What a bypass holds now is left for a later plan.
            if !(in_order || current())
                || !map.segments().slot(slot).wants_destage()
                || !locks.try_take(BlockRange::new(block, 1), Hold::Backing)
            {
                continue;
            }
            let zero = is_zero(map.segments().slot(slot));
            let mut members = vec![Member::new(slot, map)];
            self.extend((block, zero), &mut members, map, locks, in_order, planted);
            let range = BlockRange::new(block, members.len() as u64);
            return Some(Run { range, zero, durable: self.durable && !zero, members });
        }
        None
    }

    /// Adds the dirty blocks that follow in the volume, from whichever segment.
    fn extend(
        &mut self,
        (first, zero): (BlockNo, bool),
        members: &mut Vec<Member>,
        map: &Map,
        locks: &mut Locks,
        in_order: bool,
        planted: Planted,
    ) {
        let run_max = self.run_max(first);
        while members.len() < run_max {
            let next = first.plus(members.len() as u64);
            // In order, only what is in the same set may go along; in a hurry, what makes room.
            let planned = self.blocks.front().filter(|(block, _)| *block == next).map(|(_, slot)| *slot);
            let follows = match in_order || self.hurried {
                true => planned,
                false => map.lookup(next),
            };
            let Some(slot) = follows else {
                break;
            };
            let s = map.segments().slot(slot);
            if !(is_zero(s) == zero || zero && planted.is(Mutation::MergesIntoZeroes))
                || !s.wants_destage()
                || !locks.try_take(BlockRange::new(next, 1), Hold::Backing)
            {
                break;
            }
            if planned == Some(slot) {
                self.blocks.pop_front();
            }
            members.push(Member::new(slot, map));
        }
    }
}

fn is_zero(slot: &Slot) -> bool {
    slot.kind() == SlotKind::Zero
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_where_units_do() {
        let ends = |unit, first: u64| {
            let plan = Plan::of_units(NonZeroU64::new(unit));
            first + plan.run_max(BlockNo(first)) as u64
        };
        // Without units; in small ones; in those of an object; in larger ones than a run can be.
        assert_eq!([0, 5, 300].map(|first| ends(0, first)), [256, 261, 556]);
        assert_eq!([0, 5, 16, 250].map(|first| ends(16, first)), [256, 256, 272, 496]);
        assert_eq!([0, 1, 1023, 1024, 3000].map(|first| ends(1024, first)), [1024, 1024, 1024, 2048, 3072]);
        assert_eq!([0, 7, 1024, 5000].map(|first| ends(4096, first)), [1024, 1031, 2048, 6024]);
    }
}
