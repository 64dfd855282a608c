//! Destaging, carried out: [`crate::backing::destage`] says what goes, the policies how much of it.

use forebay_block::{BLOCK_BYTES, BlockNo, Buf, DeviceOp, DeviceResult, ErrorKind, IoError, Nanos, Seq};
use forebay_format::journal::GroupEntry;
use forebay_policy::{EDGE_PERCENT, Pressure, WritePolicy};

use crate::backing::destage::{Begun, Cleaned, FlushFacts, Outcome, Told, Unread};
use crate::engine::{Engine, IoOwner, Life};
use crate::interface::{Class, Role, RunKey};
use crate::locks::{BlockRange, Hold};
use crate::log::SEGMENTS_RESERVED;
use crate::map::member::Bad;
use crate::map::segments::SlotRef;
use crate::mutation::Mutation;
use crate::reading::gathers::Wanted;
use crate::wakes::{Change, Sleeper};

/// Age of dirty data, in milliseconds, from which on it is destaged even if there is room.
const DIRTY_AGE_MS_MAX: u64 = forebay_policy::DIRTY_AGE_S_MAX * 1000;
/// Runs on their way while groups wait to be destaged, at least.
const EAGER_RUNS: usize = 4;

impl Engine {
    pub(super) fn destage_step(&mut self) {
        self.destage.step(self.now, &mut self.map);
        let pressure = self.destage_pressure();
        // Clients' records come in time, and cost the cache nothing, as long as they come.
        let presses = pressure.presses() || !self.order.lacks_for_good() || self.log.is_quiet();
        if self.destage.press(presses) {
            // What was left because nothing pressed is looked at again.
            self.wakes.raise(Change::Plan);
        }
        let allowed = match self.commands.settling() {
            true => 0,
            // What is committed goes on at once: the journal needs its room (P7).
            false if self.order.is_journaled() && self.order.lags(self.journal.committed()) => {
                pressure.runs().max(EAGER_RUNS)
            }
            false => pressure.runs(),
        };
        // One that waits in the queue holds its blocks, and counts as coming, for nothing.
        let allowed = allowed.min(self.backing_slots.saturating_sub(1).max(1));
        self.destage.hurry(self.room_is_awaited() && !self.order.keeps_versions());
        if !self.destage.is_paused() {
            let in_order = self.order.keeps_versions();
            let evenly = self.is_slowed().then(|| self.log.blocks());
            while self.destage.may_begin(allowed, in_order, evenly) && self.destage_start_run() {}
        }
        self.destage_flush_if_due(allowed);
    }

    /// The log wants room, or somebody waits for the backing.
    pub(super) fn destage_is_pressed(&self) -> bool {
        self.destage_pressure().runs() > 0
    }

    /// Somebody waits who cannot go on before something is destaged.
    pub(super) fn destage_is_urgent(&self) -> bool {
        self.destage_pressure().hurries()
    }

    pub(super) fn destage_pressure(&self) -> Pressure {
        let oldest = self.oldest_dirty_or_young_ns(DIRTY_AGE_MS_MAX);
        let age_ns = oldest.map_or(0, |t| self.wall_ns().saturating_sub(t));
        let staleness_percent = self.staleness_percent();
        Pressure {
            // Writes never get the reserve, so that the log is full without it.
            segments: self.map.segments().count().saturating_sub(SEGMENTS_RESERVED).max(1) as u64,
            segments_free: self.map.segments().free_count().saturating_sub(SEGMENTS_RESERVED) as u64,
            segments_held: self.destage.segments_held() as u64,
            blocks_per_segment: u64::from(self.layout.segment_bytes) / BLOCK_BYTES,
            blocks_dirty: self.map.segments().dirty(),
            oldest_dirty_s: age_ns / 1_000_000_000,
            tail_dirty: self.reclaim_wants_clean_tail(),
            staleness_percent,
            urgent: staleness_percent >= EDGE_PERCENT
                || self.room_is_awaited()
                || self.failure.latched()
                || self.order.bypass_waits()
                || self.order.is_pacing(),
            asked: self.commands.destaging(),
            draining: self.settings.write_policy == WritePolicy::WriteThrough || self.order.is_catching_up(),
            in_order: self.order.lacks_for_good(),
        }
    }

    /// Forms the next run and starts it; false if there is nothing to start now.
    fn destage_start_run(&mut self) -> bool {
        if !self.destage.has_plan() && !self.destage_collect() {
            return false;
        }
        let in_order = self.order.keeps_versions();
        let Some(begun) = self.destage.begin_run(&mut self.map, &mut self.locks, in_order, self.planted)
        else {
            return false;
        };
        let Begun { key, range, zero, slots } = begun;
        if self.mutant(Mutation::UnlocksEarly) {
            range.iter().for_each(|b| self.release(BlockRange::new(b, 1), Hold::Backing));
        }
        if zero {
            self.destage_write(key, Vec::new());
        } else {
            let members = slots.into_iter().map(|slot| self.member(slot)).collect();
            self.gather(Wanted::Run(key), members);
        }
        true
    }

    /// Makes a plan, if something has changed since there was nothing; false if there is nothing to be had.
    fn destage_collect(&mut self) -> bool {
        if !self.wakes.is_awake(Sleeper::Destage) {
            return false;
        }
        if self.order.keeps_versions() {
            let plan = self.order_collect();
            let durable = self.order.writes_durably(&plan);
            self.destage.follow(plan, durable);
        } else if !self.order_is_renounced() || self.destage.waits_for_tail(&self.map) {
            return false;
        } else {
            let evenly = self.is_slowed();
            self.destage.collect(&self.map, self.log.blocks(), evenly);
        }
        self.wakes.tried(Sleeper::Destage, !self.destage.has_plan());
        self.destage.has_plan()
    }

    pub(super) fn destage_gathered(&mut self, key: RunKey, result: Result<Vec<Buf>, Vec<Bad>>) {
        match result {
            Ok(bufs) => self.destage_write(key, bufs),
            Err(bad) => {
                // Its readable blocks are collected again, the others wait.
                self.destage_unreadable(&bad);
                if let Some(range) = self.destage.give_up(key, &mut self.map) {
                    self.destage_unlock(range);
                    self.wakes.raise(Change::Destaged);
                }
            }
        }
    }

    /// Versions that could not be read from the log.
    pub(super) fn destage_unreadable(&mut self, bad: &[Bad]) {
        for Bad { block, slot, corrupt } in bad.iter().copied() {
            let unread = self.destage.unreadable(block, slot, corrupt, self.now, &mut self.map);
            // Of what a committed group has anew nothing is missing.
            if unread == Unread::Skipped
                && !(self.order.is_replayed() && self.journal.replaces(&self.map, block, slot))
            {
                self.order_catch_up();
            }
        }
    }

    fn destage_write(&mut self, key: RunKey, bufs: Vec<Buf>) {
        if let Some(op) = self.destage.write(key, bufs, self.volume_bytes, self.planted) {
            // Until somebody waits for it: see the backing's queue.
            self.io(Role::Backing, op, Class::Background, IoOwner::DestageWrite(key));
        }
    }

    pub(super) fn destage_write_done(&mut self, key: RunKey, result: DeviceResult) {
        let ended = self.destage.written(key, result.is_ok(), self.now, &mut self.map, self.planted);
        let Some((range, outcome)) = ended else { return };
        self.destage_unlock(range);
        self.destage_ended(outcome);
    }

    /// A flush of the backing failed: what is written there and not flushed has to be written again.
    pub(super) fn destage_write_again(&mut self) {
        if self.destage.write_again(&mut self.map) {
            self.wakes.raise(Change::Destaged);
        }
    }

    /// A bypass of `range` failed, and may have changed the backing all the same: what had been destaged there and awaits
    /// the flush has to go again.
    pub(super) fn destage_void(&mut self, range: BlockRange) {
        self.destage.void(range, &mut self.map);
        self.wakes.raise(Change::Plan);
    }

    /// Grows with whatever the backing, or the journal on its side, takes durably.
    pub(super) fn destage_progress(&self) -> u64 {
        self.destage.cleaned() + self.figures.groups
    }

    fn destage_unlock(&mut self, range: BlockRange) {
        if self.mutant(Mutation::UnlocksEarly) {
            return;
        }
        for block in range.iter() {
            self.release(BlockRange::new(block, 1), Hold::Backing);
        }
    }

    /// Tries the backing at once, however often it has failed before: somebody asks for it.
    pub(super) fn destage_try_backing(&mut self) {
        self.destage.try_again();
        self.journal.try_again();
    }

    /// Flushes the backing when enough has been written, or nothing more is coming that could share the flush.
    fn destage_flush_if_due(&mut self, runs_allowed: usize) {
        let step_awaited = self.order.bypass_waits()
            || self.order.is_pacing()
            || self.order.is_leaving()
            || self.commands.destaging();
        let facts = FlushFacts {
            runs_allowed,
            log_blocks: self.log.blocks(),
            room_awaited: self.room_is_awaited() || self.is_slowed(),
            step_awaited: step_awaited && self.order.keeps_versions(),
        };
        if !self.destage.flush_is_due(facts, &self.map) {
            return;
        }
        self.destage.begin_flush(self.flushes.losses());
        if self.mutant(Mutation::CleanBeforeFlush) {
            self.destage_flush_done(Ok(None));
            return;
        }
        self.io(Role::Backing, DeviceOp::Flush, Class::Background, IoOwner::DestageFlush);
    }

    pub(super) fn destage_flush_done(&mut self, result: DeviceResult) {
        if let Err(error) = &result
            && !self.mutant(Mutation::IgnoresFailedFlush)
        {
            self.backing_flush_failed(error);
        }
        if let Some(outcome) = self.destage.flushed(self.flushes.losses(), self.now, &mut self.map) {
            self.destage_ended(outcome);
        }
    }

    fn destage_ended(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Written => {}
            Outcome::Failed => {
                self.figures.backing_errors += 1;
                self.wakes.raise(Change::Destaged);
            }
            Outcome::Durable => {
                while let Some(told) = self.destage.next_told(&mut self.map, self.planted) {
                    match told {
                        Told::Cleaned(cleaned) => self.destage_cleaned(cleaned),
                        Told::RunEnded => {
                            self.wakes.raise(Change::Destaged);
                            if self.map.segments().dirty() == 0 {
                                self.log_is_clean();
                            }
                        }
                    }
                }
            }
        }
    }

    /// The backing has this version of the block, durably.
    fn destage_cleaned(&mut self, cleaned: Cleaned) {
        let Cleaned { block, slot, seq, held, current } = cleaned;
        self.commands.paid(block, seq, slot);
        if held {
            self.order.destaged(&mut self.map, block, slot, seq);
        }
        if let Some(current) = current {
            self.map.admit(current);
        }
    }

    /// The backing has the version without having been asked for it from the log: a write that was reissued has landed.
    pub(super) fn destage_landed(&mut self, slot: SlotRef, seq: Seq) {
        if let Some(cleaned) = self.destage.landed(slot, seq, &mut self.map, self.planted) {
            self.destage_cleaned(cleaned);
        }
    }

    /// What was to be destaged next is chosen anew.
    pub(super) fn destage_plan_anew(&mut self) {
        self.destage.plan_anew();
        self.wakes.raise(Change::Plan);
    }

    /// A group is committed that has these blocks anew: what was planned of them is not worth writing any more.
    pub(super) fn destage_replaced(&mut self, by: &[GroupEntry]) {
        let replaced = |block: BlockNo| by.binary_search_by_key(&block, |entry| entry.block).is_ok();
        let commands = &self.commands;
        self.destage.drop_planned(|block| replaced(block) && !commands.owes(block));
    }

    /// Blocks that could not be read are tried again now and then: the error may have passed (P9).
    pub(super) fn destage_retry_unreadable(&mut self) {
        if self.destage.retry_unreadable(self.now, &mut self.map) {
            self.wakes.raise(Change::Readable);
        }
    }

    pub(super) fn destage_next_wake(&self) -> Option<Nanos> {
        let aged = match self.oldest_dirty_or_young_ns(DIRTY_AGE_MS_MAX) {
            Some(t) if self.life == Life::Running => {
                let due = t.saturating_sub(self.wall_offset_ns);
                let at = Nanos(due).plus_ms(DIRTY_AGE_MS_MAX);
                (at > self.now).then_some(at)
            }
            _ => None,
        };
        [aged, self.destage.next_wake()].into_iter().flatten().min()
    }

    /// The error that a command gets when blocks could not be destaged.
    pub(super) fn unreadable_error() -> IoError {
        IoError::new(ErrorKind::Corrupt, "destaging: some blocks cannot be read back from the cache")
    }

    /// Some block is marked as lost: the backing does not have its latest version, and never will.
    pub(super) fn destage_has_lost(&self) -> bool {
        self.map.segments().lost() > 0
    }

    /// Blocks are dirty, but all of them are lost or cannot be read.
    pub(super) fn destage_is_exhausted(&self) -> bool {
        !self.wakes.is_awake(Sleeper::Destage) && self.destage.is_exhausted(&self.map)
    }
}
