//! The open group: what has come into the log behind the last group, and how much of it the next one takes.
//!
//! ```text
//!  log:  ── committed ──┤ record │ record │ record │ lost │ record ··· durable │ record ··►
//!                       └──── the next group ────┘ ▲
//!                        newest version of each     ends before what is lost or unreadable, before what does not fit,
//!                        block of these records      and behind whole records only
//! ```
//!
//! How many blocks it would have is counted, about: it says only when a group is due, not what is in it.

use std::collections::BTreeMap;

use forebay_block::{BLOCK_BYTES, BlockNo, Nanos, Seq};
use forebay_format::journal::{GROUP_ENTRIES_MAX, Group as Descriptor};

use crate::map::Map;
use crate::map::segments::{SlotKind, SlotRef, UNREADABLE};
use crate::mutation::{Mutation, Planted};

/// What the open group would have.
#[derive(Default)]
pub(super) struct Open {
    /// Blocks, about.
    blocks: u64,
    /// When the first of them came.
    since: Option<Nanos>,
}

impl Open {
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(super) fn since(&self) -> Option<Nanos> {
        self.since
    }

    /// One more block.
    pub(super) fn added(&mut self, now: Nanos) {
        self.blocks += 1;
        self.since.get_or_insert(now);
    }

    /// Counts anew what is dirty behind `after`; its oldest write came at the instant that `oldest` gives. What is left may have waited
    /// for long: its age is that of its oldest write, not that of the group's beginning.
    pub(super) fn count(&mut self, map: &Map, after: Seq, oldest: impl FnOnce() -> Nanos) {
        self.blocks = map.segments().dirty_after(after).count() as u64;
        self.since = (self.blocks > 0).then(oldest);
    }
}

/// What a group may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Records behind this one,
    pub(super) after: Seq,
    /// and up to this one.
    pub(super) durable: Seq,
    /// Bytes of the ring.
    pub(super) room: u64,
    /// Blocks; the record with which they are reached goes along.
    pub(super) most: usize,
}

/// The stretch that a group could take.
#[derive(Debug)]
pub(super) struct Found {
    /// The last record of it.
    pub(super) upto: Seq,
    /// The newest version of each block.
    pub(super) newest: BTreeMap<BlockNo, SlotRef>,
    /// Nothing was left.
    pub(super) all: bool,
    /// The next record does not fit.
    pub(super) full: bool,
    /// The next record holds something that is lost for good.
    pub(super) lost: bool,
}

/// The newest version of each block in the stretch that the next group covers, and where that ends. A stretch that holds
/// something lost or unreadable waits.
pub(super) fn look(
    map: &Map,
    bounds: Bounds,
    is_lost: impl Fn(&Map, SlotRef) -> bool,
    planted: Planted,
) -> Found {
    let Bounds { after, durable, room, most } = bounds;
    let mut found = Found { upto: after, newest: BTreeMap::new(), all: false, full: false, lost: false };
    let mut data = 0;
    let mut versions = map.segments().dirty_after(after).take_while(|(seq, _)| *seq <= durable).peekable();
    while let Some((seq, _)) = versions.peek().copied() {
        let record: Vec<SlotRef> =
            std::iter::from_fn(|| versions.next_if(|(s, _)| *s == seq)).map(|(_, slot)| slot).collect();
        let bad = |slot: &&SlotRef| {
            let s = map.segments().slot(**slot);
            s.kind() == SlotKind::Poison || s.has(UNREADABLE)
        };
        if let Some(slot) = record.iter().find(bad) {
            found.lost = is_lost(map, *slot);
            return found;
        }
        let slots = || record.iter().map(|slot| map.segments().slot(*slot));
        let new = slots().filter(|s| !found.newest.contains_key(&s.block())).count();
        let entries = found.newest.len() + new;
        data += slots().filter(|s| s.kind() == SlotKind::Data).count() as u64;
        let bytes = Descriptor::descriptor_bytes(entries) + data * BLOCK_BYTES;
        found.full = bytes > room || entries > GROUP_ENTRIES_MAX;
        if planted.is(Mutation::JournalCutsRecords) && record.len() > 1 && !found.full {
            found.newest.insert(map.segments().slot(record[0]).block(), record[0]);
            found.upto = Seq(seq.0 - 1);
            return found;
        }
        if found.full || found.newest.len() >= most {
            return found;
        }
        found.newest.extend(record.iter().map(|slot| (map.segments().slot(*slot).block(), *slot)));
        found.upto = seq;
    }
    found.all = true;
    found.upto = durable.max(found.upto);
    found
}

/// What is known when it is decided whether the stretch that was found becomes a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    /// It has no blocks.
    pub(super) empty: bool,
    /// As in [`Found`].
    pub(super) all: bool,
    pub(super) full: bool,
    pub(super) lost: bool,
    /// It is to end at a point.
    pub(super) at_point: bool,
    /// The backing moves from point to point: a stretch up to one is taken whole, whatever its size, if it can be had.
    pub(super) whole: bool,
    /// The descriptor of a group without blocks fits.
    pub(super) fits_empty: bool,
    /// No group is in the journal.
    pub(super) ring_empty: bool,
    /// The cache fails, and has something that it has not made durable.
    pub(super) stranded: bool,
}

/// What is to be done with the stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It becomes a group.
    Take,
    /// It waits.
    Wait {
        /// Until the head leaves groups behind.
        hurry: bool,
        /// It can never be one: all goes in any order.
        gives_up: bool,
    },
}

impl Choice {
    pub(super) fn verdict(self) -> Verdict {
        let ends = self.at_point && self.all;
        if ends && self.empty && self.fits_empty {
            return Verdict::Take;
        }
        let full = self.full || ends && self.empty;
        // Cut is only what the empty ring does not hold, and what comes before something lost.
        let cut = if full { self.ring_empty } else { self.lost };
        if self.empty || self.whole && !self.all && !cut {
            // Room comes when the head leaves groups behind. A record that would never fit goes in any order; and what a failing cache
            // has not made durable may be gone at the next start: it is saved, in any order.
            let too_large = full && self.ring_empty;
            let gives_up = self.lost || self.stranded && !full || too_large;
            return Verdict::Wait { hurry: full, gives_up };
        }
        Verdict::Take
    }
}

#[cfg(test)]
mod tests;
