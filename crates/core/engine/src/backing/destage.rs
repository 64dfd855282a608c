//! Destaging: dirty blocks go to the backing, oldest segments first, neighbours merged into runs.
//!
//! ```text
//!   collected ─► run: blocks locked on the backing, DESTAGING ─► read from the log, checked ─► written to the backing
//!        ▲                                                                                         │
//!        └──────────── backing write or flush failed: dirty as before ◄── awaits the backing's flush ──► clean
//! ```
//!
//! A block is clean only after the backing's flush covers it (hazard 2), and only if it has not been overwritten
//! meanwhile. A failure leaves everything dirty and slows the next try down (P9).

use std::collections::{BTreeMap, VecDeque};

use forebay_block::{BLOCK_BYTES, BlockNo, Buf, DeviceOp, DeviceResult, ErrorKind, IoError, Nanos, Seq};
use forebay_format::journal::GroupEntry;
use forebay_policy::{EDGE_PERCENT, List, Pressure, WritePolicy};

use crate::client::gather::Wanted;
use crate::engine::{Engine, IoOwner, Life};
use crate::interface::{Class, Role};
use crate::locks::{BlockRange, Hold};
use crate::log::SEGMENTS_RESERVED;
use crate::map::member::{Bad, Member};
use crate::map::segments::{DESTAGING, DIRTY, FREQUENT, Slot, SlotKind, SlotRef, TRACKED, UNREADABLE};
use crate::mutation::Mutation;
use crate::tables::Table;
use crate::wakes::{Change, Sleeper};

/// Names a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RunKey(u64);

/// Age of dirty data, in milliseconds, from which on it is destaged even if there is room.
const DIRTY_AGE_MS_MAX: u64 = forebay_policy::DIRTY_AGE_S_MAX * 1000;
/// Longest run, in blocks (1 MiB).
const RUN_BLOCKS_MAX: usize = 256;
/// Blocks on their way (8 MiB) beyond which no run begins: long runs keep a device busy with few of them, and what is wanted first, the
/// log's tail or what a client waits for, would stand behind all that are there.
const UNDER_WAY_BLOCKS_MAX: usize = 2048;
/// Dirty blocks looked at to form runs; sorting them is what merges neighbours. Where nothing goes in an order an eighth of a small log, if that is more
/// than while writers wait for room: what is newer may yet be overwritten.
pub(crate) const COLLECT_BLOCKS_MAX: usize = 8192;
/// A plan has so many of them at least, if there are; but one segment's alone, the tail's, while writers wait for room: of a larger plan, sorted by
/// address, it might come last.
pub(crate) const COLLECT_BLOCKS_LEAST: usize = 512;
/// Written blocks after which the backing is flushed even if more are on their way.
const FLUSH_AFTER_BLOCKS: usize = 4096;
/// The same while writers wait for room.
const FLUSH_AFTER_BLOCKS_HURRIED: usize = 512;
/// The same in a small log: an eighth of it, or else it would be full before what was written counts as room. No less than so
/// many blocks share a flush, however small the log is.
const FLUSH_AFTER_BLOCKS_LEAST: usize = 64;
/// Runs on their way while groups wait to be destaged, at least.
const EAGER_RUNS: usize = 4;
/// First and longest pause after the backing has failed, in milliseconds.
const BACKOFF_MS: (u64, u64) = (100, 5000);
/// Pause before a block that could not be read from the cache is tried again.
const UNREADABLE_RETRY_MS: u64 = 5000;
/// After a minute of them the block counts as lost: where room is wanted its mark takes its place in the log, so that a
/// single bad sector does not keep every writer waiting for good.
const UNREADABLE_ATTEMPTS_MAX: u32 = 12;

/// A run on the backing.
type WrittenRun = (BlockRange, Vec<Member>);

struct Run {
    range: BlockRange,
    zero: bool,
    /// It needs no flush.
    durable: bool,
    members: Vec<Member>,
}

/// A version that could not be read back from the log.
struct Unreadable {
    slot: SlotRef,
    attempts: u32,
    /// Its checksum is wrong, or the device has refused it for so long that nobody should wait for it any more.
    for_good: bool,
}

/// State of destaging.
#[derive(Default)]
pub(crate) struct Destage {
    plan: VecDeque<(BlockNo, SlotRef)>,
    /// The plan's blocks are written durably.
    durable: bool,
    runs: BTreeMap<RunKey, Run>,
    next_run: u64,
    /// Runs on the backing that await its flush.
    written: Vec<WrittenRun>,
    written_blocks: usize,
    /// Runs that the flush under way covers, and [`Engine::backing_losses`] when it began.
    flushing: Option<(u64, Vec<WrittenRun>)>,
    paused_until: Option<Nanos>,
    failures: u32,
    /// Blocks whose log copy could not be read the last time.
    unreadable: Table<BlockNo, Unreadable>,
    unreadable_retry: Option<Nanos>,
    /// Blocks that became clean by a flush, since start.
    cleaned: u64,
    /// Destaging is worth records of its own in the log.
    presses: bool,
    /// [`crate::map::segments::SegmentTable::held`] at the last step.
    segments_held: usize,
    /// Writers waited for room when the plan was last looked at.
    hurried: bool,
    /// The newest run of before the plan that was made while they do.
    before_plan: RunKey,
}

impl Destage {
    /// What goes to the backing is worth records of its own in the log, beside those of clients.
    pub(crate) fn presses(&self) -> bool {
        self.presses
    }

    /// Runs on their way.
    pub(crate) fn runs(&self) -> usize {
        self.runs.len()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.runs.is_empty() && self.written.is_empty() && self.flushing.is_none()
    }

    /// Attempts in a row that the backing has failed, with a pause after each.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether the slot's data is known to be damaged for good.
    pub(crate) fn is_corrupt(&self, block: BlockNo, slot: SlotRef) -> bool {
        self.unreadable.get(&block).is_some_and(|u| u.slot == slot && u.for_good)
    }
}

impl Engine {
    pub(crate) fn destage_step(&mut self) {
        if self.destage.paused_until.is_some_and(|until| self.now >= until) {
            self.destage.paused_until = None;
        }
        self.destage.segments_held = self.map.segments.held();
        let pressure = self.destage_pressure();
        // Clients' records come in time, and cost the cache nothing, as long as they come.
        let presses = pressure.presses() || !self.order.lacks_for_good() || self.log.is_quiet();
        // What was left because nothing pressed is looked at again.
        let pressed = std::mem::replace(&mut self.destage.presses, presses);
        if presses && !pressed {
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
        self.destage_hurries();
        if self.destage.paused_until.is_none() {
            while self.destage.runs.len() < allowed && self.destage_has_capacity() && self.destage_start_run()
            {
            }
        }
        self.destage_flush_if_due(allowed);
    }

    /// Whether a device could do with more than what is on its way. What goes in an order waits for all of a set.
    fn destage_has_capacity(&self) -> bool {
        let under_way = || self.destage.runs.values().map(|run| run.members.len()).sum::<usize>();
        self.order.keeps_versions() || under_way() < UNDER_WAY_BLOCKS_MAX
    }

    /// Room comes from the tail of the log. A plan from before writers waited for it is sorted by address, so that the tail's blocks may
    /// be its last: it is made anew. What goes in an order goes in that order.
    fn destage_hurries(&mut self) {
        let hurried = self.room_is_awaited() && !self.order.keeps_versions();
        let since = std::mem::replace(&mut self.destage.hurried, hurried);
        if hurried && !since {
            self.destage.plan.clear();
            self.destage.before_plan = RunKey::default();
        }
    }

    /// Whether blocks of the tail are on their way since before the last plan: a device that takes what lies near first would leave them
    /// for as long as others come.
    fn destage_waits_for_tail(&self) -> bool {
        if !self.destage.hurried {
            return false;
        }
        let Some(tail) = self.map.segments.tail() else {
            return false;
        };
        let older = self.destage.runs.range(..=self.destage.before_plan);
        older.flat_map(|(_, run)| &run.members).any(|member| member.slot.segment() == tail)
    }

    /// Whether writers wait for room, and nothing but the flush is missing for the tail of the log to become free.
    fn destage_has_written_tail(&self) -> bool {
        if !self.destage.hurried || self.destage.flushing.is_some() || self.destage.written.is_empty() {
            return false;
        }
        let Some(tail) = self.map.segments.tail() else {
            return false;
        };
        let members = self.destage.written.iter().flat_map(|(_, members)| members);
        let of_tail =
            members.filter(|m| m.slot.segment() == tail && self.map.segments.slot(m.slot).has(DIRTY));
        let written = of_tail.count();
        written > 0 && written == self.map.segments.get(tail).dirty as usize
    }

    /// The log wants room, or somebody waits for the backing.
    pub(crate) fn destage_is_pressed(&self) -> bool {
        self.destage_pressure().runs() > 0
    }

    /// Somebody waits who cannot go on before something is destaged.
    pub(crate) fn destage_is_urgent(&self) -> bool {
        self.destage_pressure().urgent
    }

    pub(crate) fn destage_pressure(&self) -> Pressure {
        let oldest = self.oldest_dirty_or_young_ns(DIRTY_AGE_MS_MAX);
        let age_ns = oldest.map_or(0, |t| self.wall_ns().saturating_sub(t));
        let staleness_percent = self.staleness_percent();
        Pressure {
            // Writes never get the reserve, so that the log is full without it.
            segments: self.map.segments.count().saturating_sub(SEGMENTS_RESERVED).max(1) as u64,
            segments_free: self.map.segments.free_count().saturating_sub(SEGMENTS_RESERVED) as u64,
            segments_held: self.destage.segments_held as u64,
            blocks_per_segment: u64::from(self.layout.segment_bytes) / BLOCK_BYTES,
            blocks_dirty: self.map.segments.dirty(),
            oldest_dirty_s: age_ns / 1_000_000_000,
            tail_dirty: self.reclaim_wants_clean_tail(),
            staleness_percent,
            urgent: staleness_percent >= EDGE_PERCENT
                || self.room_is_awaited()
                || self.commands.destaging()
                || self.failure.latched()
                || self.order.bypass_waits()
                || self.order.is_pacing(),
            draining: self.settings.write_policy == WritePolicy::WriteThrough || self.order.is_catching_up(),
            in_order: self.order.lacks_for_good(),
        }
    }

    /// Forms the next run and starts it; false if there is nothing to start now.
    fn destage_start_run(&mut self) -> bool {
        if self.destage.plan.is_empty() && !self.destage_collect() {
            return false;
        }
        while let Some((block, slot)) = self.destage.plan.pop_front() {
            // What a bypass holds now is left for a later plan.
            if !self.destageable(block, slot)
                || !self.locks.try_take(BlockRange::new(block, 1), Hold::Backing)
            {
                continue;
            }
            let zero = self.map.segments.slot(slot).kind() == SlotKind::Zero;
            let mut members = vec![self.member(slot)];
            self.extend_run(block, zero, &mut members);
            self.launch(block, zero, members);
            return true;
        }
        false
    }

    /// A dirty, current, readable version that is not on its way already.
    fn destageable(&self, block: BlockNo, slot: SlotRef) -> bool {
        let current = || self.map.index.get(block, &self.map.segments) == Some(slot);
        (self.order.keeps_versions() || current()) && self.map.segments.slot(slot).wants_destage()
    }

    /// Adds the dirty blocks that follow in the volume, from whichever segment.
    fn extend_run(&mut self, first: BlockNo, zero: bool, members: &mut Vec<Member>) {
        while members.len() < RUN_BLOCKS_MAX {
            let next = first.plus(members.len() as u64);
            // In order, only what is in the same set may go along; in a hurry, what makes room.
            let planned =
                self.destage.plan.front().filter(|(block, _)| *block == next).map(|(_, slot)| *slot);
            let follows = match self.order.keeps_versions() || self.destage.hurried {
                true => planned,
                false => self.map.index.get(next, &self.map.segments),
            };
            let Some(slot) = follows else {
                break;
            };
            let same_kind = (self.map.segments.slot(slot).kind() == SlotKind::Zero) == zero;
            if !(same_kind || zero && self.mutant(Mutation::MergesIntoZeroes))
                || !self.map.segments.slot(slot).wants_destage()
                || !self.locks.try_take(BlockRange::new(next, 1), Hold::Backing)
            {
                break;
            }
            if planned == Some(slot) {
                self.destage.plan.pop_front();
            }
            members.push(self.member(slot));
        }
    }

    /// Collects dirty blocks from the oldest segments, sorted by address; false if there are none to be had.
    fn destage_collect(&mut self) -> bool {
        if !self.wakes.is_awake(Sleeper::Destage) {
            return false;
        }
        if self.order.keeps_versions() {
            self.destage.plan = self.order_collect();
            self.destage.durable = self.order.writes_durably(&self.destage.plan);
            self.wakes.tried(Sleeper::Destage, self.destage.plan.is_empty());
            return !self.destage.plan.is_empty();
        }
        self.destage.durable = false;
        if !self.order_is_renounced() || self.destage_waits_for_tail() {
            return false;
        }
        self.destage.before_plan = RunKey(self.destage.next_run);
        let mut found: Vec<(BlockNo, SlotRef)> = Vec::new();
        let enough = match self.destage.hurried {
            true => 1,
            false => COLLECT_BLOCKS_MAX.min(self.log_blocks() as usize / 8).max(COLLECT_BLOCKS_LEAST),
        };
        for index in self.map.segments.with_dirty() {
            if found.len() >= enough {
                break;
            }
            found.extend(self.map.segments.slot_refs(index).filter_map(|r| {
                let s = self.map.segments.slot(r);
                s.wants_destage().then(|| (s.block(), r))
            }));
        }
        // A run takes the blocks that follow its first; looking at each once keeps the plan linear.
        found.sort_unstable();
        self.wakes.tried(Sleeper::Destage, found.is_empty());
        self.destage.plan = found.into();
        !self.destage.plan.is_empty()
    }

    fn launch(&mut self, first: BlockNo, zero: bool, members: Vec<Member>) {
        self.destage.next_run += 1;
        let key = RunKey(self.destage.next_run);
        for m in &members {
            self.map.segments.mark(m.slot, DESTAGING, true);
            self.map.segments.pin(m.slot.segment());
        }
        let range = BlockRange::new(first, members.len() as u64);
        let durable = self.destage.durable && !zero;
        self.destage.runs.insert(key, Run { range, zero, durable, members: members.clone() });
        if self.mutant(Mutation::UnlocksEarly) {
            range.iter().for_each(|b| self.release(BlockRange::new(b, 1), Hold::Backing));
        }
        if zero {
            self.destage_write(key, Vec::new());
        } else {
            self.gather(Wanted::Run(key), members);
        }
    }

    pub(crate) fn destage_gathered(&mut self, key: RunKey, result: Result<Vec<Buf>, Vec<Bad>>) {
        match result {
            Ok(bufs) => self.destage_write(key, bufs),
            Err(bad) => {
                // Its readable blocks are collected again, the others wait.
                if let Some(run) = self.destage.runs.remove(&key) {
                    self.destage_unreadable(&bad);
                    self.destage_unlock(run.range);
                    self.destage_undo(run.members);
                }
            }
        }
    }

    /// Versions that could not be read from the log.
    pub(crate) fn destage_unreadable(&mut self, bad: &[Bad]) {
        for Bad { block, slot, corrupt } in bad.iter().copied() {
            if self.map.index.get(block, &self.map.segments) != Some(slot) {
                // Overwritten meanwhile; nobody will ever see it.
                if self.map.segments.holds(slot) && self.map.segments.slot(slot).has(DIRTY) {
                    let void = self.order.is_replayed()
                        && self.journal.replaces(&self.map, block, slot, self.planted);
                    self.map.segments.became_clean(slot);
                    if !void {
                        self.order_catch_up();
                    }
                }
            } else {
                // A group and a run may read the same version at the same time: that is one attempt.
                let counted = self.map.segments.slot(slot).has(UNREADABLE);
                self.map.segments.mark(slot, UNREADABLE, true);
                let before = self.destage.unreadable.get(&block).filter(|u| u.slot == slot);
                let attempts = before.map_or(1, |u| u.attempts + u32::from(!counted));
                let for_good = corrupt || attempts >= UNREADABLE_ATTEMPTS_MAX;
                self.destage.unreadable.insert(block, Unreadable { slot, attempts, for_good });
                self.destage.unreadable_retry.get_or_insert(self.now.plus_ms(UNREADABLE_RETRY_MS));
            }
        }
    }

    fn destage_write(&mut self, key: RunKey, mut bufs: Vec<Buf>) {
        let Some(run) = self.destage.runs.get(&key) else {
            return;
        };
        let (offset, durable) = (run.range.first.offset(), run.durable);
        let len = (run.range.count * BLOCK_BYTES).min(self.volume_bytes - offset);
        let op = if run.zero {
            DeviceOp::Zero { offset, len, unmap: true }
        } else {
            if self.planted.is(Mutation::DestagesSwapped) && bufs.len() > 1 {
                bufs.swap(0, 1);
            }
            // Cut what lies beyond the end of a volume whose last block is not a whole one.
            let cut = (run.range.count * BLOCK_BYTES - len) as usize;
            if let Some(last) = bufs.last_mut().filter(|_| cut > 0) {
                *last = last.slice(0, last.len() - cut);
            }
            DeviceOp::Write { offset, bufs, durable }
        };
        // Until somebody waits for it: see the backing's queue.
        self.io(Role::Backing, op, Class::Background, IoOwner::DestageWrite(key));
    }

    pub(crate) fn destage_write_done(&mut self, key: RunKey, result: DeviceResult) {
        let Some(run) = self.destage.runs.remove(&key) else {
            return;
        };
        self.destage_unlock(run.range);
        match result {
            Ok(_) if run.durable => {
                self.destage.failures = 0;
                self.destage_clean(run.range, run.members);
            }
            Ok(_) => {
                self.destage.written_blocks += run.members.len();
                self.destage.written.push((run.range, run.members));
            }
            Err(_) if self.mutant(Mutation::IgnoresFailedDestage) => {
                self.destage.written.push((run.range, run.members));
            }
            Err(_) => {
                self.destage_undo(run.members);
                self.backing_failed();
            }
        }
    }

    /// A flush of the backing failed: what is written there and not flushed has to be written again.
    pub(crate) fn destage_write_again(&mut self) {
        for (_, members) in std::mem::take(&mut self.destage.written) {
            self.destage_undo(members);
        }
        self.destage.written_blocks = 0;
    }

    /// A bypass of `range` failed, and may have changed the backing all the same: what had been destaged there and awaits
    /// the flush has to go again.
    pub(crate) fn destage_void(&mut self, range: BlockRange) {
        let d = &mut self.destage;
        let flushing = d.flushing.iter_mut().flat_map(|(_, runs)| runs);
        for (run, members) in d.written.iter_mut().chain(flushing) {
            for (_, member) in run.iter().zip(members).filter(|(b, m)| range.contains(*b) && !m.void) {
                member.void = true;
                // An order at the backing may ask for a version that was overwritten meanwhile, too.
                if self.map.segments.holds(member.slot) {
                    self.map.segments.mark(member.slot, DESTAGING, false);
                }
            }
        }
        self.wakes.raise(Change::Plan);
    }

    /// Grows with whatever the backing, or the journal on its side, takes durably.
    pub(crate) fn destage_progress(&self) -> u64 {
        self.destage.cleaned + self.figures.groups
    }

    fn destage_unlock(&mut self, range: BlockRange) {
        if self.mutant(Mutation::UnlocksEarly) {
            return;
        }
        for block in range.iter() {
            self.release(BlockRange::new(block, 1), Hold::Backing);
        }
    }

    /// The blocks are dirty as before; those overwritten meanwhile are nobody's concern any more. Until here the
    /// segments are pinned: a slot of a segment that was used anew could be taken for the one that was destaged.
    fn destage_undo(&mut self, members: Vec<Member>) {
        for Member { slot, void, .. } in members {
            if !void && self.map.segments.holds(slot) {
                self.map.segments.mark(slot, DESTAGING, false);
            }
            self.map.segments.unpin(slot.segment());
        }
        self.wakes.raise(Change::Destaged);
    }

    fn backing_failed(&mut self) {
        self.figures.backing_errors += 1;
        // What was under way at the same time and fails, too, is one failure with it, not one more in a row.
        if self.destage.paused_until.is_none() {
            let pause = BACKOFF_MS.0 << self.destage.failures.min(10);
            self.destage.failures += 1;
            self.destage.paused_until = Some(self.now.plus_ms(pause.min(BACKOFF_MS.1)));
        }
        self.destage.plan.clear();
        self.wakes.raise(Change::Destaged);
    }

    /// Tries the backing at once, however often it has failed before: somebody asks for it.
    pub(crate) fn destage_try_backing(&mut self) {
        self.destage.failures = 0;
        self.destage.paused_until = None;
        self.journal_try_again();
    }

    /// Flushes the backing when enough has been written, or nothing more is coming that could share the flush.
    fn destage_flush_if_due(&mut self, allowed: usize) {
        let d = &self.destage;
        let quiet = d.runs.is_empty() && (d.plan.is_empty() || allowed == 0 || d.paused_until.is_some())
            // What was written of the tail does not wait for the rest of it, nor for what else is on its way.
            || d.plan.is_empty() && self.destage_waits_for_tail()
            || self.destage_has_written_tail();
        // Sets that slide have no end at which it would be quiet.
        let awaited = self.order.bypass_waits()
            || self.order.is_pacing()
            || self.order.is_leaving()
            || self.commands.destaging();
        let most = match self.room_is_awaited() {
            _ if awaited && self.order.keeps_versions() => FLUSH_AFTER_BLOCKS_LEAST,
            true => FLUSH_AFTER_BLOCKS_HURRIED,
            false => FLUSH_AFTER_BLOCKS,
        };
        let enough = most.min((self.log_blocks() as usize / 8).max(FLUSH_AFTER_BLOCKS_LEAST));
        let due = !d.written.is_empty() && (d.written_blocks >= enough || quiet);
        if due && d.flushing.is_none() {
            self.destage.flushing = Some((self.backing_losses(), std::mem::take(&mut self.destage.written)));
            self.destage.written_blocks = 0;
            if self.mutant(Mutation::CleanBeforeFlush) {
                self.destage_flush_done(Ok(None));
                return;
            }
            self.io(Role::Backing, DeviceOp::Flush, Class::Background, IoOwner::DestageFlush);
        }
    }

    pub(crate) fn destage_flush_done(&mut self, result: DeviceResult) {
        let Some((losses, covered)) = self.destage.flushing.take() else { return };
        if let Err(error) = &result
            && !self.mutant(Mutation::IgnoresFailedFlush)
        {
            self.backing_flush_failed(error);
        }
        if losses != self.backing_losses() {
            // What the backing kept of the writes is unknown: all of them go again.
            for (_, members) in covered {
                self.destage_undo(members);
            }
            self.backing_failed();
            return;
        }
        self.destage.failures = 0;
        for (range, members) in covered {
            self.destage_clean(range, members);
        }
    }

    /// The run is on the backing, durably.
    fn destage_clean(&mut self, range: BlockRange, members: Vec<Member>) {
        for (block, Member { slot, seq, void, .. }) in range.iter().zip(members) {
            if !void {
                self.destage_ends(block, slot, seq);
            }
            self.map.segments.unpin(slot.segment());
        }
        self.wakes.raise(Change::Destaged);
        if self.map.segments.dirty() == 0 {
            self.log_is_clean();
        }
    }

    /// The backing has this version of the block, durably.
    fn destage_ends(&mut self, block: BlockNo, slot: SlotRef, seq: Seq) {
        self.destage.cleaned += 1;
        self.command_paid(block, seq, slot);
        if self.map.segments.holds(slot) {
            self.map.segments.became_clean(slot);
            self.order.destaged(&mut self.map, block, slot, seq);
        }
        let current = self.map.index.get(block, &self.map.segments);
        let newer = current.filter(|_| self.mutant(Mutation::CleansNewerVersion));
        if let Some(clean) = newer.or(current.filter(|c| *c == slot)) {
            self.map.segments.became_clean(clean);
            self.destage_readable(block);
            self.track(clean);
        }
    }

    /// The backing has the version without having been asked for it from the log: a write that was reissued has landed.
    pub(crate) fn destage_landed(&mut self, slot: SlotRef, seq: Seq) {
        let holds = self.map.segments.holds(slot) && self.map.segments.slot(slot).has(DIRTY);
        if holds && self.map.segments.seq(slot) == seq {
            self.destage_ends(self.map.segments.slot(slot).block(), slot, seq);
        }
    }

    /// A clean slot comes under the care of replacement.
    pub(crate) fn track(&mut self, slot: SlotRef) {
        let s = self.map.segments.slot(slot);
        if s.has(TRACKED) || s.has(DIRTY) || s.kind() == SlotKind::Poison {
            return;
        }
        let list = self.map.replacement.admitted(s.block());
        self.map.segments.mark(slot, FREQUENT, list == List::Frequent);
        self.map.segments.mark(slot, TRACKED, true);
    }

    /// What was to be destaged next is chosen anew.
    pub(crate) fn destage_plan_anew(&mut self) {
        self.destage.plan.clear();
        self.wakes.raise(Change::Plan);
    }

    /// A group is committed that has these blocks anew: what was planned of them is not worth writing any more.
    pub(crate) fn destage_replaced(&mut self, by: &[GroupEntry]) {
        let replaced = |block: &BlockNo| by.binary_search_by_key(block, |entry| entry.block).is_ok();
        let commands = &self.commands;
        self.destage.plan.retain(|(block, _)| !replaced(block) || commands.owes(*block));
    }

    /// A slot ceases to be current: replacement and destaging forget it.
    pub(crate) fn untrack(&mut self, slot: SlotRef) {
        let s = *self.map.segments.slot(slot);
        if s.has(TRACKED) {
            self.map.replacement.left(list_of(&s));
            self.map.segments.mark(slot, TRACKED, false);
        }
        self.destage_readable(s.block());
        self.wakes.raise(Change::Current);
    }

    /// What is known of a block's unreadable version is of no use any more.
    fn destage_readable(&mut self, block: BlockNo) {
        if !self.destage.unreadable.is_empty() {
            self.destage.unreadable.remove(&block);
        }
    }

    /// Blocks that could not be read are tried again now and then: the error may have passed (P9).
    pub(crate) fn destage_retry_unreadable(&mut self) {
        if self.destage.unreadable_retry.is_none_or(|at| at > self.now) {
            return;
        }
        self.destage.unreadable_retry = None;
        let mut again: Vec<SlotRef> =
            self.destage.unreadable.values().filter(|u| !u.for_good).map(|u| u.slot).collect();
        again.sort_unstable();
        for slot in again {
            self.map.segments.mark(slot, UNREADABLE, false);
        }
        self.wakes.raise(Change::Readable);
    }

    pub(crate) fn destage_next_wake(&self) -> Option<Nanos> {
        let aged = match self.oldest_dirty_or_young_ns(DIRTY_AGE_MS_MAX) {
            Some(t) if self.life == Life::Running => {
                let due = t.saturating_sub(self.wall_offset_ns);
                let at = Nanos(due).plus_ms(DIRTY_AGE_MS_MAX);
                (at > self.now).then_some(at)
            }
            _ => None,
        };
        [aged, self.destage.paused_until, self.destage.unreadable_retry].into_iter().flatten().min()
    }

    /// The error that a command gets when blocks could not be destaged.
    pub(crate) fn unreadable_error() -> IoError {
        IoError::new(ErrorKind::Corrupt, "destaging: some blocks cannot be read back from the cache")
    }

    /// Some block is marked as lost: the backing does not have its latest version, and never will.
    pub(crate) fn destage_has_lost(&self) -> bool {
        self.map.segments.lost() > 0
    }

    /// Blocks are dirty, but all of them are lost or cannot be read.
    pub(crate) fn destage_is_exhausted(&self) -> bool {
        let d = &self.destage;
        self.map.segments.dirty() > 0
            && !self.wakes.is_awake(Sleeper::Destage)
            && d.is_idle()
            && d.paused_until.is_none()
            && self.map.segments.all_hopeless()
    }
}

/// The replacement list of a tracked slot.
pub(crate) fn list_of(s: &Slot) -> List {
    if s.has(FREQUENT) { List::Frequent } else { List::Recent }
}
