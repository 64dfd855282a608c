//! Damage that devices do not report: what it may cost, and what later writes prove.

use forebay_block::{BLOCK_BYTES, BlockNo, DeviceOp, Nanos, Seq};
use forebay_engine::Role;
use forebay_format::record::RecordHeader;
use forebay_format::{COUNTER_MAX, Layout};

use super::{SECTOR_BYTES, World};
use crate::device::Harm;
use crate::fault::{OpKind, Rot};
use crate::random::Random;
use crate::stamp::{self, Content, SECTOR};

const SECTORS_PER_BLOCK: u64 = BLOCK_BYTES / SECTOR_BYTES;
/// No life gives a block up before that which the cache cannot read.
const GIVEN_UP: Nanos = Nanos(50_000_000_000);

/// What a power cut leaves of a completed write, as far as the engine knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    /// Perhaps nothing: no flush has come since.
    Volatile,
    /// All of it, but not of what completed before.
    Behind,
    /// All of it, with everything before it: the only durability that the log proves.
    Known,
}

/// A write to the cache that did not do what was reported, until a later one proves that it should be there.
#[derive(Clone)]
pub(super) struct Breach {
    durable: Durability,
    /// When it came to be as durable as that.
    since: u64,
    completed: u64,
    /// See [`Harm::hidden`].
    hidden: bool,
}

impl World {
    /// A write to the cache completed that was submitted at `submitted`.
    pub fn cache_written(&mut self, submitted: u64, (offset, len, durable): (u64, u64, bool), harm: Harm) {
        if !self.decays {
            return;
        }
        // A summary speaks only of its own segment, and nothing waits for it.
        let is_summary =
            (offset + len - Layout::SEGMENTS_OFFSET).is_multiple_of(u64::from(self.shape.segment_bytes));
        let is_volatile = !durable && !is_summary;
        self.overtaken_until_now(submitted, is_volatile);
        let durable = match (durable, self.first_volatile(0) < u64::MAX) {
            (false, _) => Durability::Volatile,
            (true, true) => Durability::Behind,
            (true, false) => Durability::Known,
        };
        if harm == Harm::default() {
            if durable != Durability::Volatile {
                self.proof = self.proof.max(submitted);
            } else if is_volatile {
                self.unproven.push((submitted, self.steps));
            }
            let first = ((offset - Layout::SEGMENTS_OFFSET) / SECTOR_BYTES) as usize;
            let range = first..first + (len / SECTOR_BYTES) as usize;
            self.written[range.clone()].fill(self.steps);
            self.durable[range].fill(durable);
            return;
        }
        self.excuse_errors(&harm);
        let now = self.steps;
        self.breaches.push(Breach { durable, since: now, completed: now, hidden: harm.hidden });
    }

    /// When the first write from `from` on completed that no flush has covered yet.
    fn first_volatile(&self, from: u64) -> u64 {
        let harmed = self.breaches.iter().filter(|b| b.durable == Durability::Volatile).map(|b| b.completed);
        let all = self.unproven.iter().map(|w| w.1).chain(harmed);
        all.filter(|completed| *completed >= from).min().unwrap_or(u64::MAX)
    }

    /// A write completes that was submitted at `submitted`. What overtook it was not known to be durable before, and is not yet if
    /// this one `is_volatile`.
    fn overtaken_until_now(&mut self, submitted: u64, is_volatile: bool) {
        let now = self.steps;
        let now_is = |durable: Durability| match durable {
            Durability::Known if is_volatile => Durability::Behind,
            other => other,
        };
        for (written, durable) in
            self.written.iter_mut().zip(&mut self.durable).filter(|(w, _)| **w > submitted)
        {
            (*written, *durable) = (now, now_is(*durable));
        }
        for b in self.breaches.iter_mut().filter(|b| b.since > submitted) {
            (b.since, b.durable) = (now, now_is(b.durable));
        }
    }

    /// A flush of the cache completed that was submitted at `submitted`.
    pub fn cache_flushed(&mut self, submitted: u64) {
        if !self.decays {
            return;
        }
        let now = self.steps;
        let covered = |(_, completed): &(u64, u64)| *completed < submitted;
        let latest = self.unproven.iter().filter(|w| covered(w)).map(|w| w.0).max();
        self.proof = self.proof.max(latest.unwrap_or(0));
        self.unproven.retain(|w| !covered(w));
        // What completed while the flush was under way is not known to be durable if something volatile completed before it.
        let first = self.first_volatile(submitted);
        let known = |durable: Durability, at: u64| match durable {
            Durability::Volatile => (1..submitted).contains(&at),
            Durability::Behind => (1..first).contains(&at),
            Durability::Known => false,
        };
        for (written, durable) in self.written.iter_mut().zip(&mut self.durable) {
            if known(*durable, *written) {
                (*written, *durable) = (now, Durability::Known);
            }
        }
        for b in self.breaches.iter_mut().filter(|b| known(b.durable, b.since)) {
            (b.since, b.durable) = (now, Durability::Known);
        }
    }

    /// The cache was reset, and has lost what no flush had covered: reading that fails, and the next start may not find it.
    pub fn cache_reset(&mut self, harm: &Harm) {
        self.forget_volatile();
        self.excuse_blocks(&harm.sectors);
        self.oracle.lose_unflushed_at_next_crash();
    }

    /// What is in flight may land: what lies there then is not what was written and proven before.
    pub(super) fn forget_in_flight(&mut self) {
        for io in &self.cache.in_flight {
            let DeviceOp::Write { offset, .. } = io.op else { continue };
            let Some(place) = offset.checked_sub(Layout::SEGMENTS_OFFSET) else { continue };
            let first = (place / SECTOR_BYTES) as usize;
            let sectors = first..first + (io.op.write_bytes() / SECTOR_BYTES) as usize;
            // Kept only where damage is part of the plan.
            self.written.get_mut(sectors).into_iter().flatten().for_each(|written| *written = 0);
        }
    }

    /// What the cache may have lost in a power cut proves nothing any more, and cannot be missed.
    pub(super) fn forget_volatile(&mut self) {
        self.unproven.clear();
        let unknown = self.written.iter_mut().zip(&self.durable).filter(|(_, d)| **d != Durability::Known);
        unknown.for_each(|(written, _)| *written = 0);
    }

    /// What was lost without a trace at the log's end cannot be missed: nothing that came later proves it.
    /// The end takes with it whatever stood there: the log goes back to an earlier moment, as a whole.
    pub(super) fn excuse_lost_tail(&mut self) {
        let proof = self.proof;
        let unproven = |b: &Breach| b.hidden || b.durable != Durability::Known || proof <= b.since;
        if self.breaches.iter().any(unproven) || self.traces_may_be_hidden() {
            self.excuse_all_stale();
        }
        self.breaches.retain(|b| !unproven(b));
    }

    /// Any acknowledged write may be lost without a trace, and with it its place in the order.
    /// If the log goes back behind what another fault has left of it, what is written there next may seem proven by that,
    /// and be an error where it was only torn. What it then takes for new it brings to the backing, over what had come there before.
    fn excuse_all_stale(&mut self) {
        self.on_backing.fill(0);
        self.oracle.excuse_all_stale(self.traces_may_be_hidden());
        self.consistency.release_all();
    }

    /// Of two faults one may have destroyed what would prove the other.
    fn traces_may_be_hidden(&self) -> bool {
        self.breaches.len() > 1 || (self.damaged && !self.breaches.is_empty())
    }

    /// Blocks whose copy on the cache was harmed may fail to be read, but never read wrong.
    fn excuse_errors(&mut self, harm: &Harm) {
        self.structure_harmed |= harm.structure;
        self.excuse_blocks(&harm.sectors);
    }

    pub(super) fn excuse_blocks(&mut self, sectors: &[u64]) {
        for s in sectors {
            let first = s / SECTORS_PER_BLOCK * SECTORS_PER_BLOCK;
            for sector in first..first + SECTORS_PER_BLOCK {
                self.oracle.excuse_error(sector);
            }
        }
    }

    /// Damages a sector that was written a while ago: some later record must prove that it should be there.
    pub fn damage(&mut self, role: Role, rot: Rot, pick: u64) {
        let mut random = Random::new(pick);
        if role == Role::Backing {
            let sector = random.below(self.shape.volume_bytes / SECTOR_BYTES);
            self.backing.unreadable.push(sector);
            self.excuse_errors(&Harm { sectors: vec![sector], ..Harm::default() });
            self.stats.damages += 1;
            return;
        }
        let base = Layout::SEGMENTS_OFFSET;
        let place = |i: usize| base + (i * SECTOR) as u64;
        let eligible: Vec<usize> = (0..self.written.len())
            .filter(|i| self.durable[*i] == Durability::Known && (1..self.proof).contains(&self.written[*i]))
            .filter(|i| stamp::read(self.cache.media.read(place(*i), SECTOR)) != Content::Zero)
            .collect();
        if eligible.is_empty() {
            return;
        }
        let victim = place(*random.pick(&eligible));
        let mut harm = Harm::default();
        harm.add(self.cache.media.read(victim, SECTOR));
        match rot {
            Rot::Flip => {
                let bit = random.below(SECTOR_BYTES * 8) as usize;
                self.cache.media.damage(victim, |s| s[bit / 8] ^= 1 << (bit % 8));
            }
            Rot::Zeroed => self.cache.media.damage(victim, |s| s.fill(0)),
            Rot::Copied => {
                let other = self.cache.media.read(place(*random.pick(&eligible)), SECTOR).to_vec();
                self.cache.media.damage(victim, |s| s.copy_from_slice(&other));
            }
            Rot::Unreadable => self.cache.unreadable.push(victim / SECTOR_BYTES),
            Rot::Forged => {
                match eligible.iter().filter_map(|i| self.record_at(place(*i))).collect::<Vec<_>>() {
                    records if records.is_empty() => return,
                    records => {
                        // No block may be lost by it: recovery goes by the summary, or refuses.
                        harm = Harm { structure: true, ..Harm::default() };
                        let (at, header) = random.pick(&records);
                        self.forge(*at, header.clone(), &mut random);
                    }
                }
            }
        }
        self.stats.damages += 1;
        self.excuse_errors(&harm);
        self.damaged = true;
        if self.traces_may_be_hidden() {
            self.excuse_all_stale();
        }
    }

    /// The record of the log whose header lies at this byte of the cache.
    fn record_at(&self, at: u64) -> Option<(u64, RecordHeader)> {
        let layout = Layout { generation: COUNTER_MAX, ..self.layout };
        let place = (at - Layout::SEGMENTS_OFFSET) % u64::from(layout.segment_bytes);
        let rest = self.cache.media.read(at, (u64::from(layout.segment_bytes) - place) as usize);
        let segment_seq = RecordHeader::segment_seq_of(rest)?;
        RecordHeader::decode(&layout, segment_seq, place as u32, rest).ok().map(|header| (at, header))
    }

    /// Rewrites a record's header so that it says what cannot be, with a right checksum.
    fn forge(&mut self, at: u64, mut h: RecordHeader, random: &mut Random) {
        let blocks = self.shape.volume_bytes.div_ceil(BLOCK_BYTES);
        match (random.below(6), h.extents.last_mut()) {
            (0, Some(e)) => e.block = BlockNo(blocks + random.below(4)),
            (1, Some(e)) if !e.kind.has_data() => e.count = u32::MAX,
            (1, Some(e)) => e.block = BlockNo(blocks - u64::from(e.count) + 1),
            (2, _) => h.durable_upto = h.seq,
            (3, _) => h.tail = 0,
            (4, _) => h.tail = h.segment_seq + 1,
            _ => h.clean_upto = Seq(h.seq.0 + random.below(3)),
        }
        let mut bytes = vec![0; h.header_bytes(self.layout.align)];
        h.encode(&self.layout, &mut bytes);
        for (n, sector) in (0..).zip(bytes.chunks_exact(SECTOR)) {
            self.cache.media.damage(at + n * SECTOR_BYTES, |s| s.copy_from_slice(sector));
        }
    }

    /// Makes a sector of the cache, counted from its first segment on, hold something else. Whatever cannot be read
    /// afterwards is excused, and so is a refusal to start; what is read must still be right.
    pub fn tamper(&mut self, sector: usize, content: &[u8]) {
        let offset = Layout::SEGMENTS_OFFSET + (sector * SECTOR) as u64;
        self.cache.media.damage(offset, |s| s.copy_from_slice(content));
        self.stats.damages += 1;
        let sectors =
            (0..self.shape.volume_bytes / SECTOR_BYTES).step_by(SECTORS_PER_BLOCK as usize).collect();
        self.excuse_errors(&Harm { sectors, structure: true, ..Harm::default() });
    }

    /// Whether a block may have been given up by now because the cache could not be read for long.
    pub fn may_have_given_up(&self, now: Nanos) -> bool {
        self.cache.errors[OpKind::Read as usize] > 0 && now >= GIVEN_UP
    }

    /// A life ends in which that may have been.
    pub fn gives_up(&mut self) {
        self.gave_up = true;
        self.oracle.excuse_all_errors();
    }

    /// Whether that may have been in an earlier life.
    pub fn has_given_up(&self) -> bool {
        self.gave_up
    }

    /// Whether a refusal to start is excused.
    pub fn may_refuse(&self) -> bool {
        self.structure_harmed || !self.cache.unreadable.is_empty() || !self.breaches.is_empty()
    }
}
