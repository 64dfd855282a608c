//! Dirty blocks that cannot be read back from the log: tried again now and then, and at last given up.
//!
//! ```text
//!  read fails ─► UNREADABLE: destaging leaves it alone ──UNREADABLE_RETRY_MS──► tried again ─► readable: forgotten
//!                      ▲                                                          │ fails
//!                      └──────── fewer than UNREADABLE_ATTEMPTS_MAX ◄─────────────┤
//!                                                    for good, as a wrong checksum is at once ◄┘
//! ```
//!
//! What is known holds for one version: a newer one of the block, or none, makes it void.

use forebay_block::{BlockNo, Nanos};

use crate::map::Map;
use crate::map::segments::{DIRTY, SlotRef};
use crate::tables::Table;

/// Pause before a block that could not be read from the cache is tried again.
const UNREADABLE_RETRY_MS: u64 = 5000;
/// After a minute of them the block counts as lost: where room is wanted its mark takes its place in the log, so that a
/// single bad sector does not keep every writer waiting for good.
const UNREADABLE_ATTEMPTS_MAX: u32 = 12;

/// A version that could not be read back from the log.
struct Version {
    slot: SlotRef,
    attempts: u32,
    /// Its checksum is wrong, or the device has refused it for so long that nobody should wait for it any more.
    for_good: bool,
}

/// What becomes of a version that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// It was to go to the backing though a newer one was there, and never will: it counts as clean.
    Skipped,
    /// It was overwritten, and is nobody's concern.
    Overwritten,
    /// The backing has it by now.
    Clean,
    /// It is the block's current one, and is tried again or given up.
    Kept,
}

/// Blocks whose log copy could not be read the last time.
#[derive(Default)]
pub(super) struct Unreadable {
    versions: Table<BlockNo, Version>,
    retry_at: Option<Nanos>,
}

impl Unreadable {
    /// A read of this version has failed; `corrupt`: it was read, and its checksum is wrong.
    pub(super) fn failed(
        &mut self,
        block: BlockNo,
        slot: SlotRef,
        corrupt: bool,
        now: Nanos,
        map: &mut Map,
    ) -> Unread {
        if map.lookup(block) != Some(slot) {
            // Overwritten meanwhile; nobody will ever see it.
            if map.segments().holds(slot) && map.segments().slot(slot).has(DIRTY) {
                map.cleaned(slot);
                return Unread::Skipped;
            }
            return Unread::Overwritten;
        }
        if !map.segments().slot(slot).has(DIRTY) {
            // A group has read it, and a run has brought it to the backing meanwhile. Its segment may leave the log at any time.
            return Unread::Clean;
        }
        // A group and a run may read the same version at the same time: that is one attempt.
        let counted = map.cannot_read(slot);
        let before = self.versions.get(&block).filter(|version| version.slot == slot);
        let attempts = before.map_or(1, |version| version.attempts + u32::from(!counted));
        let for_good = corrupt || attempts >= UNREADABLE_ATTEMPTS_MAX;
        self.versions.insert(block, Version { slot, attempts, for_good });
        self.retry_at.get_or_insert(now.plus_ms(UNREADABLE_RETRY_MS));
        Unread::Kept
    }

    /// Whether the slot's data is known to be damaged for good.
    pub(super) fn is_for_good(&self, block: BlockNo, slot: SlotRef) -> bool {
        self.versions.get(&block).is_some_and(|version| version.slot == slot && version.for_good)
    }

    /// What is known of the block's version is of no use any more.
    pub(super) fn forget(&mut self, block: BlockNo) {
        if !self.versions.is_empty() {
            self.versions.remove(&block);
        }
    }

    /// Lets go again what may be readable by now, if it is time; whether it is.
    pub(super) fn retry(&mut self, now: Nanos, map: &mut Map) -> bool {
        if self.retry_at.take_if(|at| *at <= now).is_none() {
            return false;
        }
        let mut again: Vec<SlotRef> =
            self.versions.values().filter(|version| !version.for_good).map(|version| version.slot).collect();
        again.sort_unstable();
        for slot in again {
            map.try_reading(slot);
        }
        true
    }

    /// When [`Unreadable::retry`] has something to do.
    pub(super) fn retry_at(&self) -> Option<Nanos> {
        self.retry_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::sample::Sample;

    #[test]
    fn what_is_clean_by_now_is_not_tried_again() {
        let mut sample = Sample::new();
        let (clean, dirty) = (sample.block(7), sample.block(8));
        sample.clean(clean);
        let mut unreadable = Unreadable::default();
        let now = Nanos(0);
        assert_eq!(unreadable.failed(BlockNo(7), clean, true, now, &mut sample.map), Unread::Clean);
        assert!(!unreadable.is_for_good(BlockNo(7), clean));
        assert_eq!(unreadable.retry_at(), None);
        assert_eq!(unreadable.failed(BlockNo(8), dirty, false, now, &mut sample.map), Unread::Kept);
        assert!(unreadable.retry(now.plus_ms(UNREADABLE_RETRY_MS), &mut sample.map));
    }
}
