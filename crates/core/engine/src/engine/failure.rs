//! What follows when the cache fails: [`crate::failure`] says how far that has come.

use forebay_block::{DeviceResult, IoError};

use crate::engine::{Engine, IoOwner, Life};
use crate::failure::{Gate, Step};
use crate::interface::{Effect, PartKey};
use crate::locks::BlockRange;
use crate::log::AppendOwner;
use crate::mutation::Mutation;
use crate::wakes::Change;

impl Engine {
    /// A durable write or flush of the cache has failed: the log takes nothing any more, and what waits for it goes another way.
    pub(super) fn failure_latch(&mut self, error: IoError) {
        if !self.failure.latch(error, self.now) {
            return;
        }
        self.wakes.raise(Change::CacheFailed);
        let (mut restart, mut visible): (Vec<PartKey>, Vec<PartKey>) = Default::default();
        for (owner, extent) in self.log.abandon() {
            if let Some(e) = extent {
                self.failure.taint(BlockRange::new(e.block, u64::from(e.count)));
            }
            match owner {
                AppendOwner::Part(key) if extent.is_none() => visible.push(key),
                AppendOwner::Part(key) => restart.push(key),
                AppendOwner::Supersede(key) => self.bypass_await_retirement(key),
                AppendOwner::CleanCopy(key) => self.clean_copy_refused(key),
                AppendOwner::Relocation(block) => self.relocation_dropped(block),
                AppendOwner::Poison(block) => self.poison_done(block),
                AppendOwner::Stop | AppendOwner::StopDistrusted => self.stop_failed(),
                AppendOwner::Tick => {}
            }
        }
        restart.sort_unstable();
        restart.dedup();
        // What is written and waited only to be durable is read already, and is evacuated with the rest: written anew, in
        // its turn, it would show older versions again for a while (P2).
        visible.retain(|key| restart.binary_search(key).is_err());
        for key in visible {
            self.requests.await_retirement(key);
        }
        for key in restart {
            self.part_restart(key);
        }
    }

    /// Whether a write to `range` may start.
    pub(super) fn failure_gate(&self, range: BlockRange) -> Gate {
        self.failure.gate(range, || self.needs_supersede(range), self.planted)
    }

    /// Goes on when everything has been evacuated, or nothing more can be; whether it did.
    pub(super) fn failure_step(&mut self) -> bool {
        if !self.failure.latched() {
            return false;
        }
        // A replay must not find groups in the journal any more when the log is void.
        let evacuated = self.failure.may_retire(self.now)
            && self.map.segments().dirty() == 0
            && self.destage.is_idle()
            && self.journal_retires();
        let exhausted = self.destage_is_exhausted();
        match self.failure.step(evacuated || self.mutant(Mutation::RetiresEarly), exhausted) {
            Some(Step::Retire) => {
                let id = self.new_io(IoOwner::RetireLog, None);
                self.effects.push(Effect::RetireLog { id });
                true
            }
            Some(Step::Stuck) => {
                self.failure_stuck();
                true
            }
            None => false,
        }
    }

    pub(super) fn retire_done(&mut self, result: DeviceResult) {
        self.failure.recorded(result.is_ok(), self.now);
        if self.failure.stuck() {
            self.failure_stuck();
            return;
        }
        self.void_all();
        self.bypass_after_retirement();
        self.wakes.raise(Change::CacheEnded);
    }

    /// The log cannot be voided: writes that depend on that fail, clearly and at once.
    fn failure_stuck(&mut self) {
        self.parts_refuse_retirement();
        self.wakes.raise(Change::CacheEnded);
    }

    /// Whether a clean-stop mark can be left.
    pub(super) fn may_stop_cleanly(&self) -> bool {
        !self.failure.latched() && self.life == Life::Stopping
    }
}
