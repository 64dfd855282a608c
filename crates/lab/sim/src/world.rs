//! The world between the lives of the process: devices, oracle, what the host remembers, and what a crash does.

use forebay_engine::Role;
use forebay_format::Layout;
use forebay_format::identities::Identities;
use forebay_format::journal::{Group, Head};
use forebay_format::label::LABEL_BYTES;

use crate::consistency::Consistency;
use crate::device::{Device, Promise};
use crate::fault::Effect;
use crate::media::{Survival, View};
use crate::oracle::{Crash, Kept, Oracle};
use crate::plan::{CrashKind, Shape};
use crate::random::Random;
use crate::stamp::{self, SECTOR, WriteNo};
use crate::trace::Trace;
use crate::violation::{Interrupt, broken};

mod between;
mod decay;
mod journal;
mod owners;
mod stats;
mod takeover;

use decay::{Breach, Durability};
pub use owners::{Image, Protocol, Retirement};
pub use stats::Stats;

const SECTOR_BYTES: u64 = SECTOR as u64;

/// Devices, oracle and what the host remembers of them.
#[derive(Clone)]
pub struct World {
    /// The volume and its cache.
    pub shape: Shape,
    /// Where the log lies now.
    pub layout: Layout,
    /// The cache device.
    pub cache: Device,
    /// The backing.
    pub backing: Device,
    /// The journal, if it lies on a device of its own.
    pub journal: Device,
    /// What may be read.
    pub oracle: Oracle,
    /// What the backing alone may hold.
    pub consistency: Consistency,
    /// Totals.
    pub stats: Stats,
    /// The history.
    pub trace: Trace,
    /// Steps since the world began.
    pub steps: u64,
    /// What decides who belongs to whom.
    pub protocol: Protocol,
    /// What the stores promise.
    pub promise: Promise,
    /// What the running process knows of both devices.
    identities: Option<Identities>,
    /// Whether the log has been retired: the next start is without this cache then.
    pub retirement: Retirement,
    /// Starts that came through, and pairs that were made.
    runs: u64,
    /// Pairs that were made.
    pairs: u64,
    /// The head with which the run that is being started begins its journal.
    next_head: Option<Head>,
    /// The group that is prepared according to it.
    next_prepared: Option<Group>,
    /// The last round ended with a stop that destaged everything.
    pub destaged: bool,
    /// When the last destage command that was answered well had been given, on the oracle's clock: what had ended by then is on the
    /// backing, and the cache knows it.
    pub destaged_upto: Option<u64>,
    /// Something in the plan goes back to what devices were after an earlier round.
    pub keeps_images: bool,
    /// What they were, by the number of rounds that had ended.
    images: Vec<Image>,
    /// For each sector, the issue of a write that the backing alone was seen to have durably, or of one before it.
    on_backing: Vec<u64>,
    /// Headers or summaries of the log were damaged, so that a start may be refused.
    pub structure_harmed: bool,
    /// Damage or silent faults are part of the plan, so that the order of cache writes is worth knowing.
    pub decays: bool,
    breaches: Vec<Breach>,
    /// The log has been damaged at rest.
    damaged: bool,
    /// A block may have been given up in an earlier life; its mark is still in the log.
    gave_up: bool,
    /// When each sector of the cache was last written, in steps of the world; 0 if never.
    written: Vec<u64>,
    /// How durable it was then, as far as the engine could know.
    durable: Vec<Durability>,
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
                journal_bytes: 0,
                journal_apart: false,
                commits_in_place: false,
            },
            layout: Layout {
                cache_id: [0; 16],
                generation: 0,
                align: 512,
                segment_bytes: 4096,
                segment_count: 0,
            },
            cache: Device::new(Role::Cache, 0, Layout::SEGMENTS_OFFSET as usize),
            backing: Device::new(Role::Backing, 0, 4096),
            journal: Device::new(Role::Journal, 0, 4096),
            oracle: Oracle::new(8, false),
            consistency: Consistency::default(),
            stats: Stats::default(),
            trace: Trace::default(),
            steps: 0,
            protocol: Protocol::default(),
            promise: Promise::default(),
            identities: None,
            retirement: Retirement::None,
            runs: 0,
            pairs: 0,
            next_head: None,
            next_prepared: None,
            destaged: false,
            destaged_upto: None,
            keeps_images: false,
            images: Vec::new(),
            on_backing: Vec::new(),
            structure_harmed: false,
            decays: false,
            breaches: Vec::new(),
            damaged: false,
            gave_up: false,
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
        let label_end = self.label_offset() + LABEL_BYTES as u64;
        let (behind, journal) = match shape.journal_apart {
            true => (label_end, self.journal_len()),
            false => (label_end + self.journal_len(), 0),
        };
        self.cache.wipe(Layout::SEGMENTS_OFFSET as usize + cache_bytes);
        self.backing.wipe(behind as usize);
        self.journal.wipe(journal as usize);
        for device in [&mut self.cache, &mut self.backing, &mut self.journal] {
            device.volume_bytes = shape.volume_bytes;
            device.promises(self.promise);
        }
        if shape.stamped {
            let stamp = |data: &mut [u8]| stamp::fill(data, 0, WriteNo(0));
            self.backing.media.fill(shape.volume_bytes as usize, stamp);
        }
        self.oracle.reset(shape.volume_bytes / SECTOR_BYTES, shape.stamped);
        self.stats = Stats::default();
        self.trace = trace;
        self.steps = 1;
        self.consistency.reset(!shape.stamped);
        self.decays = decays;
        if decays {
            self.written.clear();
            self.written.resize(cache_bytes / SECTOR, 0);
            self.durable.clear();
            self.durable.resize(cache_bytes / SECTOR, Durability::Volatile);
        }
        (self.runs, self.pairs) = (0, 0);
        self.images.clear();
        self.on_backing.clear();
        self.on_backing.resize((shape.volume_bytes / SECTOR_BYTES) as usize, 0);
        // Without a crash there is nothing that could go wrong.
        let _ = self.form_pair(None);
        self.keep_image();
    }

    fn forget_log(&mut self) {
        self.identities = None;
        self.retirement = Retirement::None;
        self.destaged = false;
        self.destaged_upto = None;
        self.structure_harmed = false;
        self.breaches.clear();
        self.damaged = false;
        self.gave_up = false;
        self.proof = 0;
        self.unproven.clear();
        self.written.fill(0);
    }

    /// The backing is all that there is: reads the whole volume from it.
    fn check_backing(&mut self) -> Result<(), Interrupt> {
        let ticket = self.oracle.issue_read();
        let data = self.backing.media.read(0, self.shape.volume_bytes as usize);
        self.stats.sectors_checked += data.len() as u64 / SECTOR_BYTES;
        self.oracle.finish_read(ticket, 0, data).map_err(|mut wrong| {
            wrong.message = format!("without its cache: {}", wrong.message);
            Interrupt::from(wrong)
        })
    }

    /// The device on which something lies.
    pub fn device(&mut self, role: Role) -> &mut Device {
        match role {
            Role::Cache => &mut self.cache,
            Role::Journal if self.shape.journal_apart => &mut self.journal,
            Role::Backing | Role::Journal => &mut self.backing,
        }
    }

    /// What is on the backing's side: the backing, and the journal if it lies on a device of its own.
    fn storage(&mut self) -> impl Iterator<Item = &mut Device> {
        std::iter::once(&mut self.backing).chain(self.shape.journal_apart.then_some(&mut self.journal))
    }

    /// Ends all faults of the round.
    pub fn heal(&mut self) {
        self.cache.heal();
        self.storage().for_each(Device::heal);
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
                self.storage().for_each(|device| device.lose_client(random));
            }
            CrashKind::Cut { cache, backing, survival } => {
                self.stats.cuts_cache += u64::from(cache);
                self.stats.cuts_backing += u64::from(backing);
                if cache {
                    self.cache.cut(survival, random);
                    self.forget_volatile();
                } else {
                    self.cache.lose_client(random);
                }
                for device in self.storage() {
                    if backing { device.cut(survival, random) } else { device.lose_client(random) }
                }
                (all_settled, survives) = (cache && backing, Kept::Cut);
            }
        }
        self.oracle.crash(Crash { survives, all_settled });
        self.consistency.lose(survives);
    }

    /// Judges the backing alone, as it is and as a power cut would leave it at worst, if the engine calls it consistent, or
    /// the journal on it does.
    ///
    /// # Errors
    /// A violation of P4.
    pub fn judge_order(&mut self) -> Result<(), Interrupt> {
        let volume = self.shape.volume_bytes as usize;
        let journaled = self.shape.journal_bytes > 0;
        if !journaled && !self.consistency.is_claimed() {
            return Ok(());
        }
        let volatile = self.storage().any(|device| device.media.is_volatile());
        for view in [View::Now, View::Durable] {
            if view == View::Durable && !volatile {
                break;
            }
            let changes = self.backing.media.take_changes(view);
            let told = match journaled && self.may_tell_otherwise(view, &changes) {
                true => Some(self.told(view)?),
                false => None,
            };
            let data = self.backing.media.view(view, 0, volume);
            self.consistency.judge(view, &changes, data, told, volatile)?;
        }
        self.stats.orders_judged = self.consistency.judged;
        self.stats.points_judged = self.consistency.points.judged;
        Ok(())
    }

    /// As [`World::crash`], with every outcome to be seen: `choose(n)` picks one of `0..n` at each fork.
    pub fn crash_by_choice(&mut self, kind: CrashKind, choose: &mut dyn FnMut(usize) -> usize) {
        let (mut all_settled, mut survives) = (false, Kept::Kill);
        match kind {
            CrashKind::Kill => {
                self.cache.lose_client_by_choice(choose);
                self.storage().for_each(|device| device.lose_client_by_choice(choose));
            }
            CrashKind::Cut { cache, backing, .. } => {
                match cache {
                    true => self.cache.cut_by_choice(choose),
                    false => self.cache.lose_client_by_choice(choose),
                }
                for device in self.storage() {
                    if backing { device.cut_by_choice(choose) } else { device.lose_client_by_choice(choose) }
                }
                (all_settled, survives) = (cache && backing, Kept::Cut);
            }
        }
        self.oracle.crash(Crash { survives, all_settled });
        self.consistency.lose(survives);
    }

    /// A hash of everything that the next start depends on and is judged by.
    pub fn fingerprint(&self) -> u64 {
        let rest = self.retirement as u64 | self.layout.generation << 8;
        let parts = [
            self.cache.media.fingerprint(),
            self.backing.media.fingerprint(),
            self.journal.media.fingerprint(),
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
        self.storage().for_each(|device| device.cut(Survival::Nothing, &mut random));
        self.oracle.crash(Crash { survives: Kept::Cut, all_settled: true });
    }

    /// Checks that recovery repeats nothing of what a destage command was answered for. What the medium has lost silently may have
    /// been the record that said so.
    ///
    /// # Errors
    /// If more is dirty than was written since.
    pub fn check_not_repeated(&self, blocks_dirty: u64) -> Result<(), Interrupt> {
        let Some(upto) = self.destaged_upto.filter(|_| !self.decays && !self.cache.has_been(Effect::Reset))
        else {
            return Ok(());
        };
        let written = self.oracle.blocks_written_after(upto) as u64;
        match blocks_dirty > written {
            true => Err(broken(
                "P9",
                format!(
                    "{blocks_dirty} blocks are dirty after a restart, and {written} were written since all was destaged"
                ),
            )),
            false => Ok(()),
        }
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
        self.oracle.check_alone(promise, floors, first, data)?;
        if durable {
            for (sector, floor) in (first..).zip(floors).filter(|(s, _)| !self.oracle.may_be_stale(*s)) {
                let known = &mut self.on_backing[sector as usize];
                *known = (*known).max(*floor);
            }
        }
        Ok(())
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}
