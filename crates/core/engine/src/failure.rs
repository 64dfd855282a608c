//! When the cache fails a durable write (P9): the failure latches. What was acknowledged from the log is still there
//! and is evacuated; nothing that was not is retried as if it had held.
//!
//! ```text
//!  Healthy ──a durable write or flush of the cache fails──► Evacuating ──all on the backing──► Retiring ──► Retired
//!                                                              │ some blocks cannot be read       │ not recorded
//!                                                              └────────────► Stuck ◄─────────────┘
//! ```
//!
//! From the failure on the log takes nothing. A write goes to the backing directly if no record that a restart could
//! replay speaks of its blocks. Otherwise it waits until the log is *retired*: everything is on the backing and the
//! superblock or the backing's label says, durably, that the log is void. Acknowledging such a write earlier would
//! let a restart bring the older version back (P3): the record of a failed batch may well be on the medium.

use forebay_block::{DeviceResult, IoError, Nanos};

use crate::engine::{Engine, IoOwner, Life};
use crate::interface::{Effect, PartKey};
use crate::locks::BlockRange;
use crate::log::AppendOwner;
use crate::mutation::Mutation;
use crate::wakes::Change;

/// Whoever records that the log is void may fail at once; it is asked again after so long.
const RETIRE_RETRY_MS: u64 = 1000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Healthy,
    Evacuating,
    Retiring,
    Retired,
    Stuck,
}

/// State of the cache's failure.
#[derive(Default)]
pub(crate) struct Failure {
    phase: Phase,
    /// When it came.
    since: Option<Nanos>,
    /// Before that the log is not retired: that has just failed.
    retire_from: Nanos,
    /// Blocks that records speak of which failed, or were queued or in flight when the failure came. Bounded by
    /// what may be queued and in flight.
    tainted: Vec<BlockRange>,
}

/// Whether a write may go to the backing now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    Pass,
    Wait,
    Refuse,
}

impl Failure {
    /// A durable write to the cache has failed since the start.
    pub(crate) fn latched(&self) -> bool {
        self.phase != Phase::Healthy
    }

    /// When that was.
    pub(crate) fn since(&self) -> Option<Nanos> {
        self.since
    }

    /// The log is void and the backing holds everything.
    pub(crate) fn retired(&self) -> bool {
        self.phase == Phase::Retired
    }

    /// The log still holds blocks that the backing lacks and that cannot be read.
    pub(crate) fn stuck(&self) -> bool {
        self.phase == Phase::Stuck
    }
}

impl Engine {
    pub(crate) fn failure_latch(&mut self, _error: IoError) {
        if self.failure.latched() {
            return;
        }
        self.failure.phase = Phase::Evacuating;
        self.failure.since = Some(self.now);
        self.wakes.raise(Change::CacheFailed);
        let (mut restart, mut visible): (Vec<PartKey>, Vec<PartKey>) = Default::default();
        for (owner, extent) in self.log.abandon() {
            if let Some(e) = extent {
                self.failure.tainted.push(BlockRange::new(e.block, u64::from(e.count)));
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

    /// Records speak of `range` that a restart could replay, though the index does not know them any more.
    pub(crate) fn failure_taint(&mut self, range: BlockRange) {
        self.failure.tainted.push(range);
    }

    /// Whether a write to `range` may start.
    pub(crate) fn failure_gate(&self, range: BlockRange) -> Gate {
        if matches!(self.failure.phase, Phase::Healthy | Phase::Retired) {
            return Gate::Pass;
        }
        let tainted = self.failure.tainted.iter().any(|t| t.overlaps(range));
        if !tainted && !self.needs_supersede(range) || self.mutant(Mutation::IgnoresTaint) {
            return Gate::Pass;
        }
        if self.failure.stuck() { Gate::Refuse } else { Gate::Wait }
    }

    /// Goes on when everything has been evacuated, or nothing more can be; whether it did.
    pub(crate) fn failure_step(&mut self) -> bool {
        let phase = self.failure.phase;
        if !matches!(phase, Phase::Evacuating | Phase::Stuck) {
            return false;
        }
        // A replay must not find groups in the journal any more when the log is void.
        let evacuated = self.now >= self.failure.retire_from
            && self.map.segments().dirty() == 0
            && self.destage.is_idle()
            && self.journal_retires();
        if evacuated || self.mutant(Mutation::RetiresEarly) {
            self.failure.phase = Phase::Retiring;
            let id = self.new_io(IoOwner::RetireLog);
            self.effects.push(Effect::RetireLog { id });
        } else if self.failure.phase == Phase::Evacuating && self.destage_is_exhausted() {
            self.failure_stuck();
        }
        self.failure.phase != phase
    }

    /// A command wants to know now whether the log can be retired.
    pub(crate) fn failure_try_again(&mut self) {
        self.failure.retire_from = self.now;
    }

    /// When the log may be retired again.
    pub(crate) fn failure_next_wake(&self) -> Option<Nanos> {
        let waits = self.failure.stuck() && self.failure.retire_from > self.now;
        waits.then_some(self.failure.retire_from)
    }

    pub(crate) fn retire_done(&mut self, result: DeviceResult) {
        if result.is_err() {
            self.failure.retire_from = self.now.plus_ms(RETIRE_RETRY_MS);
            self.failure_stuck();
            return;
        }
        self.failure.phase = Phase::Retired;
        self.failure.tainted.clear();
        self.void_all();
        self.bypass_after_retirement();
        self.wakes.raise(Change::CacheEnded);
    }

    /// The log cannot be voided: writes that depend on that fail, clearly and at once.
    fn failure_stuck(&mut self) {
        self.failure.phase = Phase::Stuck;
        self.parts_refuse_retirement();
        self.wakes.raise(Change::CacheEnded);
    }

    /// Whether a clean-stop mark can be left.
    pub(crate) fn may_stop_cleanly(&self) -> bool {
        !self.failure.latched() && self.life == Life::Stopping
    }
}
