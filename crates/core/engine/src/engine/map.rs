//! What others hear when versions become current or are forgotten: [`crate::map`] does it.

use forebay_block::Seq;

use crate::engine::Engine;
use crate::locks::BlockRange;
use crate::map::Gone;
use crate::map::segments::SlotRef;
use crate::wakes::Change;

impl Engine {
    /// Makes `slot` its block's current version; true if there was one before.
    pub(super) fn make_current(&mut self, slot: SlotRef, dirty: bool) -> bool {
        let replaced = self.map.put(slot, dirty);
        if dirty {
            let missing = replaced.filter(|old| old.was_dirty);
            self.journal.version_added(self.now, missing.map(|old| old.seq));
        }
        if let Some(old) = replaced {
            self.command_owes(old.block, old.slot);
            if !self.order_keeps(old.slot) {
                self.map.cleaned(old.slot);
            }
            self.destage.is_readable(old.block);
        }
        self.wakes.raise(Change::Current);
        replaced.is_some()
    }

    /// The index forgets a range. `untrue` says that the log itself still holds clean copies as if they were true.
    pub(super) fn forget(&mut self, range: BlockRange, untrue: bool) {
        let gone = match untrue {
            true => self.map.forget_untrue(range),
            false => self.map.forget(range),
        };
        self.versions_gone(gone);
    }

    /// The index forgets the clean copies of a range, which are not true any more, or of no use.
    pub(super) fn forget_clean(&mut self, range: BlockRange) {
        let gone = self.map.forget_clean(range, self.log.durable_clean_upto());
        self.versions_gone(gone);
    }

    fn versions_gone(&mut self, gone: Vec<Gone>) {
        for Gone { block, slot, .. } in gone {
            // What made a dirty block void is durable on the backing.
            self.commands.paid(block, Seq(u64::MAX), slot);
            self.destage.is_readable(block);
            self.wakes.raise(Change::Current);
        }
    }

    /// The log is void, and the backing holds everything.
    pub(super) fn void_all(&mut self) {
        for Gone { block, .. } in self.map.void_all() {
            self.destage.is_readable(block);
            self.wakes.raise(Change::Current);
        }
    }
}
