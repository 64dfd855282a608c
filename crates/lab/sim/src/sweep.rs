//! Sweeps: one fixed script, and something bad at every place where it can happen.
//!
//! - [`crashes`]: a power cut of both devices at every write, flush and trim of theirs, with four ways of losing what
//!   was not flushed, under every combination of policies;
//! - [`failures`]: every n-th operation of a device fails, once or for good, under every combination of policies;
//! - [`decays`]: every sector of a small, full log is damaged in five ways.

use std::collections::HashMap;

use forebay_block::Criticality;
use forebay_engine::{Engine, Role};
use forebay_format::Layout;
use forebay_policy::{
    Admission, BACKING_SLOTS_MAX, Durability, JournalCaching, OnFull, Order, Settings, WritePolicy,
};

use crate::fault::{Effect, Fault, OpKind};
use crate::media::Survival;
use crate::plan::{Action, CrashKind, End, Plan, Round, Shape, Step};
use crate::random::Random;
use crate::run::{Outcome, Simulator};
use crate::stamp::SECTOR;
use crate::trace::{Detail, Line};
use crate::violation::Violation;
use crate::world::{Stats, World};

/// Actions of the script whose every crash is tried.
const CRASH_SCRIPT_ACTIONS: u64 = 1000;
/// Actions of the script whose every operation fails once.
const FAILURE_SCRIPT_ACTIONS: u64 = 150;
/// Actions of the script before the one that fills the log which then decays.
const FILL_SCRIPT_ACTIONS: u64 = 150;
/// Writes of the script that fills the log for good, and blocks of each: as much as fits it besides its reserve.
const FULL_WRITES: u64 = 22;
const FULL_WRITE_BLOCKS: u64 = 2;
/// Seed of all scripts.
const SCRIPTS: u64 = 0x5357_4550;
/// Broken promises after which a sweep ends.
const FOUND_MAX: usize = 5;

/// Which cases of a sweep are run: one in `of`, counted from the case `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The first case.
    pub first: u64,
    /// One in so many, at least 1.
    pub of: u64,
}

impl Share {
    /// Every case.
    pub const ALL: Self = Self { first: 0, of: 1 };

    fn takes(self, case: u64) -> bool {
        case % self.of.max(1) == self.first
    }
}

/// A broken promise.
#[derive(Clone, Debug)]
pub struct Broken {
    /// The case, in words.
    pub case: String,
    /// What broke.
    pub violation: Violation,
    /// The plan; of [`decays`] it is only what came before and after the damage.
    pub plan: Plan,
}

/// What came of a sweep.
#[derive(Clone, Debug, Default)]
pub struct Swept {
    /// Cases that there are.
    pub cases: u64,
    /// Cases that were run.
    pub ran: u64,
    /// Of these, such in which nothing was noticed: every read was right.
    pub right: u64,
    /// Such in which something was answered with an error.
    pub errors: u64,
    /// Such in which the volume refused to start.
    pub refused: u64,
    /// Totals of the worlds.
    pub stats: Stats,
    /// Broken promises, at most a few.
    pub found: Vec<Broken>,
}

impl Swept {
    /// Runs the next case, if the share takes it.
    fn case(&mut self, share: Share, run: impl FnOnce() -> Case) {
        let takes = share.takes(self.cases) && self.found.len() < FOUND_MAX;
        self.cases += 1;
        if !takes {
            return;
        }
        let Case { name, plan, stats, violation } = run();
        self.ran += 1;
        self.stats.add(&stats);
        match (stats.refusals, stats.errors) {
            (0, 0) => self.right += 1,
            (0, _) => self.errors += 1,
            _ => self.refused += 1,
        }
        if let Some(violation) = violation {
            self.found.push(Broken { case: name, violation, plan });
        }
    }

    /// Adds what another share of the same sweep saw.
    pub fn add(&mut self, other: Self) {
        self.cases = self.cases.max(other.cases);
        self.ran += other.ran;
        self.right += other.right;
        self.errors += other.errors;
        self.refused += other.refused;
        self.stats.add(&other.stats);
        self.found.extend(other.found);
    }

    /// One line of figures.
    pub fn line(&self) -> String {
        format!(
            "{} of {} cases: {} without an error, {} with errors, {} refused; {} events, {} sectors checked, {} broken",
            self.ran,
            self.cases,
            self.right,
            self.errors,
            self.refused,
            self.stats.events,
            self.stats.sectors_checked,
            self.found.len()
        )
    }
}

/// A case that was run.
struct Case {
    name: String,
    plan: Plan,
    stats: Stats,
    violation: Option<Violation>,
}

/// Of the admissions those that differ in what the engine does; the others differ in whom they admit.
const ADMISSIONS: [Admission; 3] = [Admission::All, Admission::Sync, Admission::CpPiIoi];

/// Every combination of policies.
pub fn combinations() -> Vec<Settings> {
    let mut all = Vec::new();
    for write_policy in WritePolicy::ALL {
        let orders = if *write_policy == WritePolicy::Ordered { Order::ALL } else { &Order::ALL[..1] };
        for order in orders {
            for admission in ADMISSIONS {
                for on_full in OnFull::ALL {
                    for durability in Durability::ALL {
                        all.push(Settings {
                            write_policy: *write_policy,
                            order: *order,
                            group_bytes: 16 * 4096,
                            group_age_ms: 5,
                            group_ends: forebay_policy::GroupEnds::default(),
                            max_staleness: forebay_policy::MaxStaleness::None,
                            admission,
                            journal_caching: JournalCaching::Keep,
                            on_full: *on_full,
                            durability: *durability,
                            scheduler: forebay_policy::SchedulerKind::default(),
                        });
                    }
                }
            }
        }
    }
    all
}

const SHAPE: Shape = Shape {
    volume_bytes: 96 * 4096,
    segment_bytes: Layout::SEGMENT_BYTES_MIN,
    segment_count: Layout::SEGMENT_COUNT_MIN,
    align: 512,
    stamped: true,
    journal_bytes: 2 * Layout::SEGMENT_BYTES_MIN as u64,
    journal_apart: true,
    commits_in_place: false,
};

/// A fixed script: writes of all kinds, zeroes, reads and flushes, some of them in bursts.
fn script(label: u64, count: u64) -> Vec<Step> {
    let mut random = Random::derived(SCRIPTS, label);
    let sectors = SHAPE.volume_bytes / SECTOR as u64;
    let mut step = || {
        let (mut first, mut len) = (random.below(sectors), random.between(1, 40));
        if random.percent(70) {
            (first, len) = (first / 8 * 8, len.next_multiple_of(8));
        }
        let (offset, len) = (first * SECTOR as u64, len.min(sectors - first) * SECTOR as u64);
        let fua = random.percent(10);
        let action = match random.below(100) {
            0..70 => {
                let sync = random.percent(50);
                let criticality = if sync { Criticality::Direct } else { Criticality::None };
                Action::Write { offset, len, fua, sync, criticality }
            }
            70..73 => Action::Promote { offset, len },
            73..78 => {
                let unmap = random.percent(50);
                Action::Zero { offset, len, fua, unmap, criticality: Criticality::None }
            }
            78..90 => Action::Read { offset, len },
            90..99 => Action::Flush,
            _ => Action::Destage,
        };
        let delay_us = if random.percent(50) { 0 } else { random.below(1_000) };
        Step { delay_us, action }
    };
    (0..count).map(|_| step()).collect()
}

/// Writes of whole blocks, spread over the volume, some of them over others.
fn full_script() -> Vec<Step> {
    let mut random = Random::derived(SCRIPTS, 4);
    let mut write = || {
        let first = random.below(SHAPE.volume_bytes / 4096 - FULL_WRITE_BLOCKS);
        let (offset, len) = (first * 4096, FULL_WRITE_BLOCKS * 4096);
        Step {
            delay_us: 0,
            action: Action::Write { offset, len, fua: false, sync: true, criticality: Criticality::None },
        }
    };
    (0..FULL_WRITES).map(|_| write()).collect()
}

fn round(settings: Settings, steps: Vec<Step>, end: End) -> Round {
    let (faults, damages) = (Vec::new(), Vec::new());
    let between = Vec::new();
    let backing_depth = BACKING_SLOTS_MAX;
    Round {
        between,
        settings,
        depth: 8,
        backing_depth,
        schedule: 1,
        verify: true,
        faults,
        damages,
        steps,
        end,
    }
}

/// A plan whose rounds are `first` and then two that find out what is left.
fn judged(settings: Settings, mut rounds: Vec<Round>) -> Plan {
    rounds.push(round(settings, Vec::new(), End::CrashIdle(cut(Survival::Nothing))));
    rounds.push(round(settings, Vec::new(), End::Stop { destage: true }));
    Plan { seed: 0, shape: SHAPE, cache_model: None, backing_model: None, rounds }
}

/// The steps at which the first round starts an operation of a device that `of` accepts.
fn operations(simulator: &mut Simulator, plan: &Plan, of: impl Fn(&str) -> bool) -> Vec<u64> {
    let lines = simulator.run(plan, Detail::Lines).lines;
    let started = |l: &&Line| l.round == 0 && l.text.starts_with("start") && of(&l.text);
    lines.iter().filter(started).map(|l| l.step).collect()
}

fn run(simulator: &mut Simulator, name: String, plan: Plan) -> Case {
    let outcome = simulator.run(&plan, Detail::Hash);
    Case { name, plan, stats: outcome.stats, violation: outcome.violation }
}

/// A power cut of both devices.
const fn cut(survival: Survival) -> CrashKind {
    CrashKind::Cut { cache: true, backing: true, survival }
}

/// Power cuts at every write, flush and trim of both devices in a script of 1,000 actions.
pub fn crashes(share: Share) -> Swept {
    let mut simulator = Simulator::default();
    let mut swept = Swept::default();
    let ways = [
        ("kept", Survival::Everything),
        ("none", Survival::Nothing),
        ("half", Survival::Writes),
        ("torn", Survival::Sectors),
    ];
    let steps = script(1, CRASH_SCRIPT_ACTIONS);
    for settings in combinations() {
        let until = |after: u64, survival: Survival| {
            judged(settings, vec![round(settings, steps.clone(), End::CrashAfter(after, cut(survival)))])
        };
        let whole = until(u64::MAX, Survival::Nothing);
        let changes = operations(&mut simulator, &whole, |text| !text.contains(" read "));
        let mut forks: HashMap<u64, Vec<CrashKind>> = HashMap::new();
        let cases = changes.iter().flat_map(|at| ways.map(|(_, survival)| (*at, cut(survival))));
        for (at, kind) in (swept.cases..).zip(cases).filter(|(case, _)| share.takes(*case)).map(|(_, c)| c) {
            forks.entry(at).or_default().push(kind);
        }
        let mut outcomes = simulator.run_forks(&whole, &forks);
        for at in changes {
            for (way, survival) in ways {
                swept.case(share, || {
                    let name = format!("{settings:?}, cut at step {at}, {way}");
                    let plan = until(at, survival);
                    match outcomes.remove(&(at, cut(survival))) {
                        Some(Outcome { stats, violation, .. }) => Case { name, plan, stats, violation },
                        None => run(&mut simulator, name, plan),
                    }
                });
            }
        }
    }
    swept
}

/// Every n-th operation of each device fails, once or for good, with EIO or ENOSPC.
pub fn failures(share: Share) -> Swept {
    let mut simulator = Simulator::default();
    let mut swept = Swept::default();
    let steps = script(2, FAILURE_SCRIPT_ACTIONS);
    let kind = cut(Survival::Nothing);
    for settings in combinations() {
        let with = |faults: Vec<Fault>| {
            let first = Round { faults, ..round(settings, steps.clone(), End::CrashIdle(kind)) };
            judged(settings, vec![first])
        };
        for (role, name) in [(Role::Cache, "cache"), (Role::Backing, "backing"), (Role::Journal, "journal")] {
            let count = operations(&mut simulator, &with(Vec::new()), |text| text.contains(name)).len();
            for first in 1..=count as u64 {
                for effect in [Effect::Eio, Effect::NoSpace] {
                    for times in [1, u64::MAX] {
                        swept.case(share, || {
                            let fault = Fault { role, on: OpKind::Any, effect, first, count: times };
                            let name = format!("{settings:?}, {fault:?}");
                            run(&mut simulator, name, with(vec![fault]))
                        });
                    }
                }
            }
        }
    }
    swept
}

/// What happens to a sector of the log.
const DAMAGES: [&str; 5] = ["flip", "zero", "stale", "swap", "misdirect"];

/// Every sector of a small, full log is damaged, and everything is read: the answer is right or an error, never wrong,
/// never silently old. All of the log's data is proven durable by a later record, so that damage to it is no torn
/// write.
pub fn decays(share: Share) -> Swept {
    let mut simulator = Simulator::default();
    let mut swept = Swept::default();
    let settings = Settings::default();
    let old = round(settings, script(3, FILL_SCRIPT_ACTIONS), End::Stop { destage: true });
    let full = round(settings, full_script(), End::CrashSettled(CrashKind::Kill));
    // Nothing is destaged: the log alone has the data.
    let (role, on, effect) = (Role::Backing, OpKind::Write, Effect::Eio);
    let faults = vec![Fault { role, on, effect, first: 1, count: u64::MAX }];
    let plan = judged(settings, vec![old, Round { faults, ..full }]);
    let mut before = Vec::new();
    let cache_bytes = u64::from(SHAPE.segment_bytes) * u64::from(SHAPE.segment_count);
    let all = |world: &World| world.cache.media.read(Layout::SEGMENTS_OFFSET, cache_bytes as usize).to_vec();
    simulator.run_between(&plan, Detail::Hash, Engine::new, |round, world| {
        if round == 1 {
            before = all(world);
        }
    });
    for sector in 0..cache_bytes as usize / SECTOR {
        for damage in DAMAGES {
            swept.case(share, || {
                let change = |round: usize, world: &mut World| {
                    if round == 2 {
                        let now = all(world);
                        harm(world, damage, sector, &before, &now);
                    }
                };
                let outcome = simulator.run_between(&plan, Detail::Hash, Engine::new, change);
                let name = format!("{damage} of sector {sector}");
                Case { name, plan: plan.clone(), stats: outcome.stats, violation: outcome.violation }
            });
        }
    }
    swept
}

/// Damages a sector of the log; `before` is the log as it was a while ago, `now` as it is.
fn harm(world: &mut World, damage: &str, sector: usize, before: &[u8], now: &[u8]) {
    let of = |image: &[u8], sector: usize| image[sector * SECTOR..][..SECTOR].to_vec();
    // Of another segment: a swap of the last data with the record that proves it takes both away, which M10 of the list
    // of assumptions excludes.
    let other = (sector + SHAPE.segment_bytes as usize / SECTOR + 19) % (now.len() / SECTOR);
    let (mine, theirs) = (of(now, sector), of(now, other));
    match damage {
        "flip" => {
            let mut flipped = mine;
            flipped[sector % SECTOR] ^= 1 << (sector % 8);
            world.tamper(sector, &flipped);
        }
        "zero" => world.tamper(sector, &[0; SECTOR]),
        "stale" => world.tamper(sector, &of(before, sector)),
        "swap" => {
            world.tamper(sector, &theirs);
            world.tamper(other, &mine);
        }
        _ => world.tamper(sector, &theirs),
    }
}
