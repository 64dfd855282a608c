//! Destaging: dirty blocks go to the backing, oldest segments first, neighbours merged into runs.
//!
//! ```text
//!   plan ─► run: blocks locked on the backing, DESTAGING ─► read from the log, checked ─► written to the backing
//!     ▲                       │ not readable: set aside                                        │
//!     └───────────────────────┴── backing write or flush failed: dirty as before ◄── awaits the backing's flush ──► clean
//! ```
//!
//! A block is clean only after the backing's flush covers it (hazard 2), and only if it has not been overwritten
//! meanwhile. A failure leaves everything dirty and slows the next try down (P9).
//!
//! [`Destage`] owns the [plan](crate::backing::plan), the [runs](crate::backing::runs) and what is
//! [unreadable](crate::backing::unreadable). It changes the map's flags and takes the locks of what it starts. It asks for nothing and
//! gives no lock back: the coordinator does, as the answers say. How much may be on its way is the policy's choice.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use forebay_block::{BLOCK_BYTES, BlockNo, Buf, DeviceOp, Nanos, Seq};

use crate::backing::plan::Plan;
use crate::backing::portions::Portions;
use crate::backing::runs::Runs;
use crate::backing::unreadable::Unreadable;
use crate::interface::RunKey;
use crate::locks::{BlockRange, Locks};
use crate::map::Map;
use crate::map::segments::{DIRTY, SlotKind, SlotRef};
use crate::mutation::{Mutation, Planted};

pub(crate) use crate::backing::runs::Outcome;
pub(crate) use crate::backing::unreadable::Unread;

/// Blocks on their way (8 MiB) beyond which no run begins: long runs keep a device busy with few of them, and what is wanted first, the
/// log's tail or what a client waits for, would stand behind all that are there.
const UNDER_WAY_BLOCKS_MAX: usize = 2048;
/// Written blocks after which the backing is flushed even if more are on their way.
const FLUSH_AFTER_BLOCKS: usize = 4096;
/// The same while writers wait for room.
const FLUSH_AFTER_BLOCKS_HURRIED: usize = 512;
/// The same in a small log: an eighth of it, or else it would be full before what was written counts as room. No less than so
/// many blocks share a flush, however small the log is.
const FLUSH_AFTER_BLOCKS_LEAST: usize = 64;

/// Written blocks after which the backing is flushed where a log of so many fills: a sixteenth of it at most, so that room comes in portions that
/// are small against it.
fn flush_after_hurried(log_blocks: u64) -> usize {
    FLUSH_AFTER_BLOCKS_HURRIED.min(log_blocks as usize / 16).max(FLUSH_AFTER_BLOCKS_LEAST)
}

/// A run has begun.
pub(crate) struct Begun {
    pub(crate) key: RunKey,
    /// Its blocks, locked on the backing.
    pub(crate) range: BlockRange,
    /// They are zeroes: there is nothing to be read before it is written.
    pub(crate) zero: bool,
    /// The version of each block.
    pub(crate) slots: Vec<SlotRef>,
}

/// What is to be known to decide whether the backing is flushed now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlushFacts {
    /// Runs that may be on their way.
    pub(crate) runs_allowed: usize,
    /// Blocks that the log has room for.
    pub(crate) log_blocks: u64,
    /// Somebody waits for room in it, or is slowed down for it.
    pub(crate) room_awaited: bool,
    /// An order is kept, and somebody waits for its next step.
    pub(crate) step_awaited: bool,
}

/// The backing has a version, durably, and the map says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cleaned {
    pub(crate) block: BlockNo,
    pub(crate) slot: SlotRef,
    pub(crate) seq: Seq,
    /// Its slot is still in the log.
    pub(crate) held: bool,
    /// The block's current version, if that is the one.
    pub(crate) current: Option<SlotRef>,
}

/// What became of a run that ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// One of its blocks is clean.
    Cleaned(Cleaned),
    /// All of them have been told.
    RunEnded,
}

/// State of destaging.
#[derive(Default)]
pub(crate) struct Destage {
    plan: Plan,
    runs: Runs,
    unreadable: Unreadable,
    portions: Portions,
    /// Versions that the backing has got, since start.
    cleaned: u64,
    /// Destaging is worth records of its own in the log.
    presses: bool,
    /// [`crate::map::segments::SegmentTable::held`] at the last step.
    segments_held: usize,
}

impl Destage {
    /// To a backing that takes so many blocks best together, if that makes a difference.
    pub(crate) fn of_units(unit: Option<NonZeroU64>) -> Self {
        Self { plan: Plan::of_units(unit), ..Self::default() }
    }

    /// What goes to the backing is worth records of its own in the log, beside those of clients.
    pub(crate) fn presses(&self) -> bool {
        self.presses
    }

    /// Runs on their way.
    pub(crate) fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Whether nothing is on its way, or awaits a flush.
    pub(crate) fn is_idle(&self) -> bool {
        self.runs.is_idle()
    }

    /// Attempts in a row that the backing has failed, with a pause after each.
    pub(crate) fn failures(&self) -> u32 {
        self.runs.failures()
    }

    /// Whether nothing is started for a while because the backing has failed.
    pub(crate) fn is_paused(&self) -> bool {
        self.runs.paused_until().is_some()
    }

    /// Versions that the backing has got, since start.
    pub(crate) fn cleaned(&self) -> u64 {
        self.cleaned
    }

    /// Segments from the oldest dirty or incomplete one on, at the last step.
    pub(crate) fn segments_held(&self) -> usize {
        self.segments_held
    }

    /// Whether the version will never reach the backing: it is marked as lost, or its data is damaged for good.
    pub(crate) fn is_lost(&self, map: &Map, slot: SlotRef) -> bool {
        let s = map.segments().slot(slot);
        s.kind() == SlotKind::Poison || self.is_corrupt(s.block(), slot)
    }

    /// Whether the slot's data is known to be damaged for good.
    pub(crate) fn is_corrupt(&self, block: BlockNo, slot: SlotRef) -> bool {
        self.unreadable.is_for_good(block, slot)
    }

    /// When something is to be tried again.
    pub(crate) fn next_wake(&self) -> Option<Nanos> {
        [self.runs.paused_until(), self.unreadable.retry_at()].into_iter().flatten().min()
    }

    /// A step begins.
    pub(crate) fn step(&mut self, now: Nanos, map: &mut Map) {
        self.runs.wait_until(now);
        self.segments_held = map.segments_mut().held();
    }

    /// Whether it is worth records of its own in the log from now on; true if it has just become so.
    pub(crate) fn press(&mut self, presses: bool) -> bool {
        let pressed = std::mem::replace(&mut self.presses, presses);
        presses && !pressed
    }

    /// Whether writers wait for room that the log's tail makes, see [`Plan::hurry`].
    pub(crate) fn hurry(&mut self, hurried: bool) {
        self.plan.hurry(hurried);
    }

    /// Whether one more run may begin beside those on their way. What goes in an order waits for all of a set. `evenly`: room in a log of so
    /// many blocks is to come evenly.
    pub(crate) fn may_begin(&self, runs_allowed: usize, in_order: bool, evenly: Option<u64>) -> bool {
        // A disk's cache would take all of the log, to be flushed at once.
        let coming_max = evenly.map_or(usize::MAX, |log_blocks| 2 * flush_after_hurried(log_blocks));
        self.runs.len() < runs_allowed
            && (in_order
                || self.runs.blocks() < UNDER_WAY_BLOCKS_MAX && self.runs.blocks_coming() < coming_max)
    }

    pub(crate) fn has_plan(&self) -> bool {
        !self.plan.is_empty()
    }

    /// What is to be destaged next is chosen anew.
    pub(crate) fn plan_anew(&mut self) {
        self.plan.clear();
    }

    /// Drops what is not worth writing any more.
    pub(crate) fn drop_planned(&mut self, void: impl Fn(BlockNo) -> bool) {
        self.plan.drop_if(void);
    }

    /// The plan of an order; its blocks are written durably, if so chosen.
    pub(crate) fn follow(&mut self, plan: VecDeque<(BlockNo, SlotRef)>, durable: bool) {
        self.plan.follow(plan, durable);
    }

    /// Makes a plan of the oldest dirty blocks of a log of so many.
    pub(crate) fn collect(&mut self, map: &Map, log_blocks: u64, evenly: bool) {
        let segments = self.plan.collect(map, log_blocks, evenly, self.runs.last());
        self.portions.planned(&segments, map);
    }

    /// What has become clean of the segments from place `first` on that are being emptied, and what of them is on its way, both in
    /// segments' thousandths.
    pub(crate) fn made(&mut self, first: u64, map: &Map) -> (u64, u64) {
        self.portions.made(first, self.runs.blocks_coming() as u64, map)
    }

    /// Whether blocks of the tail are on their way since before the last plan: a device that takes what lies near first would leave them
    /// for as long as others come.
    pub(crate) fn waits_for_tail(&self, map: &Map) -> bool {
        let tail = map.segments().tail().filter(|_| self.plan.is_hurried());
        tail.is_some_and(|tail| self.runs.has_of(tail, self.plan.before()))
    }

    /// Whether writers wait for room, and nothing but the flush is missing for the tail of the log to become free.
    fn has_written_tail(&self, map: &Map) -> bool {
        let tail = map.segments().tail().filter(|_| self.plan.is_hurried() && !self.runs.is_flushing());
        tail.is_some_and(|tail| {
            let written = self.runs.written_of(tail, map);
            written > 0 && written == map.segments().get(tail).dirty as usize
        })
    }

    /// Begins the next run of the plan; `None` if nothing of it can go now. `in_order`: older versions go, too.
    pub(crate) fn begin_run(
        &mut self,
        map: &mut Map,
        locks: &mut Locks,
        in_order: bool,
        planted: Planted,
    ) -> Option<Begun> {
        let run = self.plan.next_run(map, locks, in_order, planted)?;
        let (range, zero, slots) = (run.range, run.zero, run.slots());
        Some(Begun { key: self.runs.begin(run, map), range, zero, slots })
    }

    /// What is to be written of a run in a volume of so many bytes: its blocks as they were read, none if they are zeroes.
    pub(crate) fn write(
        &self,
        key: RunKey,
        mut bufs: Vec<Buf>,
        volume_bytes: u64,
        planted: Planted,
    ) -> Option<DeviceOp> {
        let run = self.runs.get(key)?;
        let offset = run.range.first.offset();
        let len = (run.range.count * BLOCK_BYTES).min(volume_bytes - offset);
        if run.zero {
            return Some(DeviceOp::Zero { offset, len, unmap: true });
        }
        if planted.is(Mutation::DestagesSwapped) && bufs.len() > 1 {
            bufs.swap(0, 1);
        }
        // Cut what lies beyond the end of a volume whose last block is not a whole one.
        let cut = (run.range.count * BLOCK_BYTES - len) as usize;
        if let Some(last) = bufs.last_mut().filter(|_| cut > 0) {
            *last = last.slice(0, last.len() - cut);
        }
        Some(DeviceOp::Write { offset, bufs, durable: run.durable })
    }

    /// Some of the run could not be read: its readable blocks are collected again. Its blocks, for their locks to be given back.
    pub(crate) fn give_up(&mut self, key: RunKey, map: &mut Map) -> Option<BlockRange> {
        self.runs.give_up(key, map)
    }

    /// A run's write has ended. Its blocks, for their locks to be given back, and how it went.
    pub(crate) fn written(
        &mut self,
        key: RunKey,
        well: bool,
        now: Nanos,
        map: &mut Map,
        planted: Planted,
    ) -> Option<(BlockRange, Outcome)> {
        let believed = planted.is(Mutation::IgnoresFailedDestage);
        let ended = self.runs.written(key, well, believed, now, map)?;
        if ended.1 == Outcome::Failed {
            self.plan.clear();
        }
        Some(ended)
    }

    /// A flush of the backing failed: what is written there and not flushed has to be written again. Whether there was any.
    pub(crate) fn write_again(&mut self, map: &mut Map) -> bool {
        self.runs.write_again(map)
    }

    /// Something else was written to `range` on the backing, and may have changed it whatever it was answered: what had been destaged
    /// there and awaits the flush has to go again.
    pub(crate) fn void(&mut self, range: BlockRange, map: &mut Map) {
        self.runs.void(range, map);
    }

    /// Whether enough has been written for a flush, or nothing more is coming that could share it.
    pub(crate) fn flush_is_due(&self, facts: FlushFacts, map: &Map) -> bool {
        let FlushFacts { runs_allowed, log_blocks, room_awaited, step_awaited } = facts;
        let rests = || self.plan.is_empty() || runs_allowed == 0 || self.is_paused();
        let quiet = self.runs.len() == 0 && rests()
            // What was written of the tail does not wait for the rest of it, nor for what else is on its way.
            || self.plan.is_empty() && self.waits_for_tail(map)
            || self.has_written_tail(map);
        let most = match room_awaited {
            // Sets that slide have no end at which it would be quiet.
            _ if step_awaited => FLUSH_AFTER_BLOCKS_LEAST,
            true => flush_after_hurried(log_blocks),
            false => FLUSH_AFTER_BLOCKS,
        };
        let enough = most.min((log_blocks as usize / 8).max(FLUSH_AFTER_BLOCKS_LEAST));
        let due = self.runs.awaits_flush() && (self.runs.written_blocks() >= enough || quiet);
        due && !self.runs.is_flushing()
    }

    /// Begins the flush; `losses`: flushes of the backing that have failed until now.
    pub(crate) fn begin_flush(&mut self, losses: u64) {
        self.runs.begin_flush(losses);
    }

    /// The flush has ended; `losses`: flushes of the backing that have failed until now, this one included.
    pub(crate) fn flushed(&mut self, losses: u64, now: Nanos, map: &mut Map) -> Option<Outcome> {
        let outcome = self.runs.flushed(losses, now, map)?;
        if outcome == Outcome::Failed {
            self.plan.clear();
        }
        Some(outcome)
    }

    /// What became of runs that ended well, one after the other; the coordinator asks until there is nothing more.
    pub(crate) fn next_told(&mut self, map: &mut Map, planted: Planted) -> Option<Told> {
        Some(match self.runs.next_durable(map)? {
            Some((block, slot, seq)) => Told::Cleaned(self.clean(block, slot, seq, map, planted)),
            None => Told::RunEnded,
        })
    }

    /// The backing has this version of the block, durably.
    fn clean(&mut self, block: BlockNo, slot: SlotRef, seq: Seq, map: &mut Map, planted: Planted) -> Cleaned {
        self.cleaned += 1;
        let held = map.segments().holds(slot);
        if held {
            map.cleaned(slot);
        }
        let newest = map.lookup(block);
        let newer = newest.filter(|_| planted.is(Mutation::CleansNewerVersion));
        let current = newer.or(newest.filter(|newest| *newest == slot));
        if let Some(clean) = current {
            map.cleaned(clean);
            self.unreadable.forget(block);
        }
        Cleaned { block, slot, seq, held, current }
    }

    /// The backing has the version without having been asked for it from the log: a write that was reissued has landed. `None` if it is
    /// not dirty any more.
    pub(crate) fn landed(
        &mut self,
        slot: SlotRef,
        seq: Seq,
        map: &mut Map,
        planted: Planted,
    ) -> Option<Cleaned> {
        let holds = map.segments().holds(slot) && map.segments().slot(slot).has(DIRTY);
        if !holds || map.segments().seq(slot) != seq {
            return None;
        }
        let block = map.segments().slot(slot).block();
        Some(self.clean(block, slot, seq, map, planted))
    }

    /// A version could not be read from the log; `corrupt`: it was read, and its checksum is wrong.
    pub(crate) fn unreadable(
        &mut self,
        block: BlockNo,
        slot: SlotRef,
        corrupt: bool,
        now: Nanos,
        map: &mut Map,
    ) -> Unread {
        self.unreadable.failed(block, slot, corrupt, now, map)
    }

    /// What is known of the block's version is of no use any more.
    pub(crate) fn is_readable(&mut self, block: BlockNo) {
        self.unreadable.forget(block);
    }

    /// Blocks that could not be read are tried again now and then: the error may have passed (P9). Whether it is time.
    pub(crate) fn retry_unreadable(&mut self, now: Nanos, map: &mut Map) -> bool {
        self.unreadable.retry(now, map)
    }

    /// However often the backing has failed before it is tried at once: somebody asks for it.
    pub(crate) fn try_again(&mut self) {
        self.runs.try_again();
    }

    /// Blocks are dirty, but all of them are lost or cannot be read, and nothing is on its way.
    pub(crate) fn is_exhausted(&self, map: &Map) -> bool {
        map.segments().dirty() > 0 && self.is_idle() && !self.is_paused() && map.segments().all_hopeless()
    }
}

#[cfg(test)]
mod tests;
