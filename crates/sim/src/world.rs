//! The world between the lives of the process: devices, oracle, what the host remembers, and what a crash does.

use forebay_block::{BLOCK_BYTES, DeviceOp};
use forebay_engine::{Params, Role};
use forebay_format::Layout;

use crate::device::{Device, Harm};
use crate::fault::Rot;
use crate::media::Survival;
use crate::oracle::{Crash, Kept, Oracle};
use crate::plan::{CrashKind, Round, Shape};
use crate::random::Random;
use crate::stamp::{self, Content, SECTOR, WriteNo};
use crate::trace::Trace;
use crate::violation::Interrupt;

const SECTOR_BYTES: u64 = SECTOR as u64;
const SECTORS_PER_BLOCK: u64 = BLOCK_BYTES / SECTOR_BYTES;

/// Totals of a world, or of many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events handed to the engine and effects carried out.
    pub events: u64,
    /// Requests of clients.
    pub requests: u64,
    /// Bytes that clients wrote.
    pub bytes_written: u64,
    /// Starts of the engine, each with a recovery.
    pub starts: u64,
    /// Recoveries that were cut short by a crash.
    pub crashes_in_recovery: u64,
    /// Deaths of the process.
    pub kills: u64,
    /// Power cuts of the cache device.
    pub cuts_cache: u64,
    /// Power cuts of the backing.
    pub cuts_backing: u64,
    /// Clean stops.
    pub stops: u64,
    /// Faults of operations, by effect in the order of [`crate::fault::Effect::ALL`].
    pub faults: crate::device::EffectCounts,
    /// Sectors damaged at rest.
    pub damages: u64,
    /// Refusals to start, all excused by damage.
    pub refusals: u64,
    /// Logs that were retired after the cache failed.
    pub retired: u64,
    /// Requests answered with an error, all excused by faults.
    pub errors: u64,
    /// Sectors whose value was checked.
    pub sectors_checked: u64,
}

impl Stats {
    /// Adds another world's totals.
    pub fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.requests += other.requests;
        self.bytes_written += other.bytes_written;
        self.starts += other.starts;
        self.crashes_in_recovery += other.crashes_in_recovery;
        self.kills += other.kills;
        self.cuts_cache += other.cuts_cache;
        self.cuts_backing += other.cuts_backing;
        self.stops += other.stops;
        for (mine, theirs) in self.faults.iter_mut().zip(other.faults) {
            *mine += theirs;
        }
        self.damages += other.damages;
        self.refusals += other.refusals;
        self.retired += other.retired;
        self.errors += other.errors;
        self.sectors_checked += other.sectors_checked;
    }

    /// Crashes of every kind.
    pub fn crashes(&self) -> u64 {
        self.kills + self.cuts_cache.max(self.cuts_backing)
    }
}

/// A write to the cache that did not do what was reported, until a later one proves that it should be there.
struct Breach {
    /// When it was durable as far as the engine could know; never, if no flush has come since.
    durable: Option<u64>,
    completed: u64,
    /// See [`Harm::hidden`].
    hidden: bool,
}

/// Devices, oracle and what the host remembers of them.
pub struct World {
    /// The volume and its cache.
    pub shape: Shape,
    /// Where the log lies now.
    pub layout: Layout,
    /// The cache device.
    pub cache: Device,
    /// The backing.
    pub backing: Device,
    /// What may be read.
    pub oracle: Oracle,
    /// Totals.
    pub stats: Stats,
    /// The history.
    pub trace: Trace,
    /// Steps since the world began.
    pub steps: u64,
    /// The last run stopped cleanly.
    pub clean_stop: bool,
    /// The log was retired: the next start is without this cache.
    pub void_log: bool,
    /// Headers or summaries of the log were damaged, so that a start may be refused.
    pub structure_harmed: bool,
    /// Damage or silent faults are part of the plan, so that the order of cache writes is worth knowing.
    pub decays: bool,
    breaches: Vec<Breach>,
    /// The log has been damaged at rest.
    damaged: bool,
    /// When each sector of the cache was last written, in steps of the world; 0 if never.
    written: Vec<u64>,
    /// Whether it was durable then, as far as the engine could know.
    durable: Vec<bool>,
    /// When the latest submitted cache write that is durable was submitted: what was durable before is proven by it.
    proof: u64,
    /// Completed writes (submission, completion) that no flush has covered yet.
    unproven: Vec<(u64, u64)>,
}

impl World {
    /// A world without history; [`World::begin`] makes it one of a certain shape.
    pub fn new() -> Self {
        Self {
            shape: Shape {
                volume_bytes: 4096,
                segment_bytes: 4096,
                segment_count: 0,
                align: 512,
                stamped: false,
            },
            layout: Layout {
                cache_id: [0; 16],
                generation: 0,
                align: 512,
                segment_bytes: 4096,
                segment_count: 0,
            },
            cache: Device::new(Role::Cache, Layout::SEGMENTS_OFFSET, 0),
            backing: Device::new(Role::Backing, 0, 4096),
            oracle: Oracle::new(8, false),
            stats: Stats::default(),
            trace: Trace::default(),
            steps: 0,
            clean_stop: false,
            void_log: false,
            structure_harmed: false,
            decays: false,
            breaches: Vec::new(),
            damaged: false,
            written: Vec::new(),
            durable: Vec::new(),
            proof: 0,
            unproven: Vec::new(),
        }
    }

    /// Begins a history on new devices.
    pub fn begin(&mut self, shape: Shape, decays: bool, trace: Trace) {
        let cache_bytes = shape.segment_bytes as usize * shape.segment_count as usize;
        self.shape = shape;
        self.cache.wipe(Layout::SEGMENTS_OFFSET, cache_bytes);
        self.backing.wipe(0, shape.volume_bytes as usize);
        if shape.stamped {
            let mut data = forebay_block::BufMut::zeroed(shape.volume_bytes as usize);
            stamp::fill(&mut data, 0, WriteNo(0));
            self.backing.media.write(0, crate::media::Data::Bufs(vec![data.freeze()]), true);
        }
        self.oracle.reset(shape.volume_bytes / SECTOR_BYTES, shape.stamped);
        self.stats = Stats::default();
        self.trace = trace;
        self.steps = 1;
        self.layout = Layout {
            cache_id: [0x5a; 16],
            generation: 0,
            align: shape.align,
            segment_bytes: shape.segment_bytes,
            segment_count: shape.segment_count,
        };
        self.forget_log();
        self.decays = decays;
        if decays {
            self.written.clear();
            self.written.resize(cache_bytes / SECTOR, 0);
            self.durable.clear();
            self.durable.resize(cache_bytes / SECTOR, false);
        }
    }

    fn forget_log(&mut self) {
        self.clean_stop = false;
        self.void_log = false;
        self.structure_harmed = false;
        self.breaches.clear();
        self.damaged = false;
        self.proof = 0;
        self.unproven.clear();
        self.written.fill(0);
    }

    /// What the host hands to the engine at the next start.
    ///
    /// # Errors
    /// If the log was retired and the backing alone lacks something.
    pub fn start(&mut self, round: &Round) -> Result<Params, Interrupt> {
        if self.void_log {
            self.check_backing()?;
            // A new cache on the same device: what lies there is foreign to it.
            self.forget_log();
            self.layout.cache_id[0] = self.layout.cache_id[0].wrapping_add(1);
            self.layout.generation = 0;
        }
        self.layout.generation += 1;
        self.cache.layout = Some(self.layout);
        self.cache.start_round(&round.faults, round.schedule);
        self.backing.start_round(&round.faults, round.schedule);
        self.stats.starts += 1;
        Ok(Params {
            layout: self.layout,
            volume_bytes: self.shape.volume_bytes,
            settings: round.settings,
            wall_offset_ns: 1_700_000_000_000_000_000 + self.layout.generation * 1_000_000_000_000,
            clean_stop: std::mem::take(&mut self.clean_stop),
        })
    }

    /// The backing is all that there is: reads the whole volume from it.
    fn check_backing(&mut self) -> Result<(), Interrupt> {
        let ticket = self.oracle.issue_read();
        let data = self.backing.media.read(0, self.shape.volume_bytes as usize);
        self.stats.sectors_checked += data.len() as u64 / SECTOR_BYTES;
        self.oracle.finish_read(ticket, 0, data).map_err(|mut wrong| {
            wrong.message = format!("without the retired log: {}", wrong.message);
            Interrupt::from(wrong)
        })
    }

    /// The process dies, perhaps because power fails.
    pub fn crash(&mut self, kind: CrashKind, random: &mut Random) {
        self.forget_in_flight();
        self.excuse_lost_tail();
        let (mut all_settled, mut survives) = (false, Kept::Kill);
        match kind {
            CrashKind::Kill => {
                self.stats.kills += 1;
                self.cache.lose_client(random);
                self.backing.lose_client(random);
            }
            CrashKind::Cut { cache, backing, survival } => {
                self.stats.cuts_cache += u64::from(cache);
                self.stats.cuts_backing += u64::from(backing);
                for (cut, device) in [(cache, &mut self.cache), (backing, &mut self.backing)] {
                    if cut { device.cut(survival, random) } else { device.lose_client(random) }
                }
                if cache {
                    self.forget_volatile();
                }
                (all_settled, survives) = (cache && backing, Kept::Cut);
            }
        }
        self.oracle.crash(Crash { survives, all_settled });
    }

    /// As [`World::crash`], with every outcome to be seen: `choose(n)` picks one of `0..n` at each fork.
    pub fn crash_by_choice(&mut self, kind: CrashKind, choose: &mut dyn FnMut(usize) -> usize) {
        let (mut all_settled, mut survives) = (false, Kept::Kill);
        match kind {
            CrashKind::Kill => {
                self.cache.lose_client_by_choice(choose);
                self.backing.lose_client_by_choice(choose);
            }
            CrashKind::Cut { cache, backing, .. } => {
                for (cut, device) in [(cache, &mut self.cache), (backing, &mut self.backing)] {
                    if cut { device.cut_by_choice(choose) } else { device.lose_client_by_choice(choose) }
                }
                (all_settled, survives) = (cache && backing, Kept::Cut);
            }
        }
        self.oracle.crash(Crash { survives, all_settled });
    }

    /// A hash of everything that the next start depends on and is judged by.
    pub fn fingerprint(&self) -> u64 {
        let rest = u64::from(self.void_log) << 1 | u64::from(self.clean_stop) | self.layout.generation << 8;
        let parts = [
            self.cache.media.fingerprint(),
            self.backing.media.fingerprint(),
            self.oracle.fingerprint(),
            rest,
        ];
        parts
            .iter()
            .fold(0, |hash: u64, part| (hash ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31))
    }

    /// A power cut after a clean stop: nothing may depend on what was not flushed.
    pub fn power_off(&mut self) {
        self.stats.stops += 1;
        self.excuse_lost_tail();
        let mut random = Random::new(0);
        self.cache.cut(Survival::Nothing, &mut random);
        self.forget_volatile();
        self.backing.cut(Survival::Nothing, &mut random);
        self.oracle.crash(Crash { survives: Kept::Cut, all_settled: true });
    }

    /// A write to the cache completed that was submitted at `submitted`.
    pub fn cache_written(&mut self, submitted: u64, (offset, len, durable): (u64, u64, bool), harm: Harm) {
        if !self.decays {
            return;
        }
        self.overtaken_until_now(submitted);
        if harm == Harm::default() {
            match durable {
                true => self.proof = self.proof.max(submitted),
                // A summary speaks only of its own segment.
                false
                    if (offset + len - Layout::SEGMENTS_OFFSET)
                        .is_multiple_of(u64::from(self.shape.segment_bytes)) => {}
                false => self.unproven.push((submitted, self.steps)),
            }
            let first = ((offset - Layout::SEGMENTS_OFFSET) / SECTOR_BYTES) as usize;
            let range = first..first + (len / SECTOR_BYTES) as usize;
            self.written[range.clone()].fill(self.steps);
            self.durable[range].fill(durable);
            return;
        }
        self.excuse_errors(&harm);
        let (durable, completed) = (durable.then_some(self.steps), self.steps);
        self.breaches.push(Breach { durable, completed, hidden: harm.hidden });
    }

    /// A write completes that was submitted at `submitted`. What overtook it was not known to be durable before: the log
    /// proves only what is durable with everything before it.
    fn overtaken_until_now(&mut self, submitted: u64) {
        let now = self.steps;
        self.written.iter_mut().filter(|w| **w > submitted).for_each(|w| *w = now);
        let since = |b: &&mut Breach| b.durable.is_some_and(|at| at > submitted);
        self.breaches.iter_mut().filter(since).for_each(|b| b.durable = Some(now));
    }

    /// A flush of the cache completed that was submitted at `submitted`.
    pub fn cache_flushed(&mut self, submitted: u64) {
        if !self.decays {
            return;
        }
        for (written, durable) in self.written.iter_mut().zip(&mut self.durable) {
            if !*durable && (1..submitted).contains(written) {
                (*written, *durable) = (self.steps, true);
            }
        }
        let covered = |(_, completed): &(u64, u64)| *completed < submitted;
        let latest = self.unproven.iter().filter(|w| covered(w)).map(|w| w.0).max();
        self.proof = self.proof.max(latest.unwrap_or(0));
        self.unproven.retain(|w| !covered(w));
        for b in self.breaches.iter_mut().filter(|b| b.completed < submitted) {
            b.durable.get_or_insert(self.steps);
        }
    }

    /// What is in flight may land: what lies there then is not what was written and proven before.
    fn forget_in_flight(&mut self) {
        for io in &self.cache.in_flight {
            let DeviceOp::Write { offset, .. } = io.op else { continue };
            let first = ((offset - Layout::SEGMENTS_OFFSET) / SECTOR_BYTES) as usize;
            let sectors = first..first + (io.op.write_bytes() / SECTOR_BYTES) as usize;
            // Kept only where damage is part of the plan.
            self.written.get_mut(sectors).into_iter().flatten().for_each(|written| *written = 0);
        }
    }

    /// What the cache may have lost in a power cut proves nothing any more, and cannot be missed.
    fn forget_volatile(&mut self) {
        self.unproven.clear();
        for (written, _) in self.written.iter_mut().zip(&self.durable).filter(|(_, durable)| !**durable) {
            *written = 0;
        }
    }

    /// What was lost without a trace at the log's end cannot be missed: nothing that came later proves it.
    /// The end takes with it whatever stood there: the log goes back to an earlier moment, as a whole.
    fn excuse_lost_tail(&mut self) {
        let proof = self.proof;
        let unproven = |b: &Breach| b.hidden || b.durable.is_none_or(|at| proof <= at);
        if self.breaches.iter().any(unproven) || self.traces_may_be_hidden() {
            self.oracle.excuse_all_stale();
        }
        self.breaches.retain(|b| !unproven(b));
    }

    /// Of two faults one may have destroyed what would prove the other.
    fn traces_may_be_hidden(&self) -> bool {
        self.breaches.len() > 1 || (self.damaged && !self.breaches.is_empty())
    }

    /// Blocks whose copy on the cache was harmed may fail to be read, but never read wrong.
    fn excuse_errors(&mut self, harm: &Harm) {
        self.structure_harmed |= harm.structure;
        for s in &harm.sectors {
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
            .filter(|i| self.durable[*i] && (1..self.proof).contains(&self.written[*i]))
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
        }
        self.stats.damages += 1;
        self.excuse_errors(&harm);
        self.damaged = true;
        if self.traces_may_be_hidden() {
            self.oracle.excuse_all_stale();
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
        self.excuse_errors(&Harm { sectors, structure: true, hidden: false });
    }

    /// Checks the backing's durable content (or, if not `durable`, what a read of it sees) against floors.
    ///
    /// # Errors
    /// The first sector that is older than its floor.
    pub fn check_alone(
        &mut self,
        promise: &'static str,
        floors: &[u64],
        first: u64,
        durable: bool,
    ) -> Result<(), Interrupt> {
        let (offset, len) = (first * SECTOR_BYTES, floors.len() * SECTOR);
        let media = &self.backing.media;
        let data = if durable { media.read_durable(offset, len) } else { media.read(offset, len) };
        self.stats.sectors_checked += floors.len() as u64;
        Ok(self.oracle.check_alone(promise, floors, first, data)?)
    }

    /// Whether a refusal to start is excused.
    pub fn may_refuse(&self) -> bool {
        self.structure_harmed || !self.cache.unreadable.is_empty() || !self.breaches.is_empty()
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}
