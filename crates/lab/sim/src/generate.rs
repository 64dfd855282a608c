//! Turns a seed into a plan.

use forebay_block::Criticality;
use forebay_emulate::{Kind, Settings as Emulation};
use forebay_engine::Role;
use forebay_policy::{
    Admission, BACKING_SLOTS_MAX, Durability, GroupEnds, JournalCaching, MaxStaleness, OnFull, Order,
    SchedulerKind, Settings, WritePolicy,
};

use crate::fault::{Damage, Effect, Fault, OpKind, Rot};
use crate::media::Survival;
use crate::plan::{Action, CrashKind, End, Plan, Round, Shape, Step};
use crate::random::Random;

mod exchange;
mod hints;
mod journals;
mod points;
mod remote;
mod scheduled;
mod shared_points;
mod staleness;
mod theme;

pub use theme::Theme;

const SECTOR: u64 = 512;
const BLOCK: u64 = 4096;

/// Steps that every recovery takes: a segment's header is read for each of at least six segments.
const RECOVERY_STEPS_MIN: u64 = 12;

/// What a campaign wants of its plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Most actions of a round.
    pub actions_max: u64,
    /// Most rounds of a plan.
    pub rounds_max: u64,
    /// Faults that devices report: errors, slowness.
    pub faults: bool,
    /// Damage that devices do not report: rot, lost and misdirected writes.
    pub decay: bool,
    /// What every plan is about; if empty, some are about one theme and most about none.
    pub themes: &'static [Theme],
}

impl Default for Options {
    fn default() -> Self {
        Self { actions_max: 100, rounds_max: 5, faults: true, decay: true, themes: &[] }
    }
}

/// Of so many plans without a theme of their own, one gets one.
const THEMED_ONE_IN: u64 = 4;
/// Label of the random stream that chooses it, apart from all others: the other plans are as if there were no themes.
const THEME_STREAM: u64 = 0x7468_656d;
/// Label of the stream that chooses the order at the backing.
const ORDER_STREAM: u64 = 0x6f72_6465;
/// Label of the stream that chooses where the journal lies.
const JOURNAL_STREAM: u64 = 0x6a6f_7572;

/// The manner of a world, drawn once, so that seeds differ from each other more than rounds do.
struct Manner {
    random: Random,
    shape: Shape,
    options: Options,
    /// Requests stay within so many sectors from `hot` on, most of the time.
    hot: (u64, u64),
    aligned_percent: u64,
    sectors_max: u64,
    reads_percent: u64,
    zero_percent: u64,
    flush_percent: u64,
    fua_percent: u64,
    busy: bool,
    settings: Settings,
    changes_settings: bool,
    faulty: bool,
    decaying: bool,
    /// Every run ends in a power cut of the cache.
    cuts: bool,
    /// Every other run ends in a clean stop.
    stops: bool,
}

/// The plan of `seed`.
pub fn plan(seed: u64, options: Options) -> Plan {
    let mut random = Random::new(seed);
    let shape = shape(&mut random);
    let sectors = shape.volume_bytes / SECTOR;
    let hot_len = random.between(1, sectors.min(256));
    let hot = (random.below(sectors - hot_len + 1), hot_len);
    let settings = settings(&mut random);
    let kind = random.below(10);
    let mut manner = Manner {
        shape,
        options,
        hot,
        aligned_percent: *random.pick(&[0, 30, 80, 100]),
        sectors_max: *random.pick(&[1, 8, 16, 64, 128]),
        reads_percent: *random.pick(&[5, 20, 50]),
        zero_percent: *random.pick(&[0, 0, 5, 20]),
        flush_percent: *random.pick(&[0, 2, 10, 30]),
        fua_percent: *random.pick(&[0, 10, 50]),
        busy: random.percent(60),
        settings,
        changes_settings: random.percent(30),
        faulty: options.faults && kind < 4,
        decaying: options.decay && kind == 9,
        cuts: false,
        stops: false,
        random,
    };
    for theme in themes(seed, options) {
        manner.adopt(theme);
    }
    let shape = manner.shape;
    let count = manner.random.between(1, manner.options.rounds_max.max(1));
    let mut rounds: Vec<Round> = Vec::new();
    for _ in 0..count {
        rounds.push(manner.round());
        // A crash in the recovery, and one in the recovery of the recovery.
        while manner.random.percent(30) {
            rounds.push(manner.recovery());
        }
    }
    if rounds.len() == count as usize {
        // Every seed crashes a recovery, and this one surely: it takes more steps than that.
        let crash = manner.crash();
        let end = End::CrashAfter(manner.random.between(1, RECOVERY_STEPS_MIN), crash);
        rounds.insert(1, Round { end, ..manner.recovery() });
    }
    rounds.push(Round {
        verify: true,
        faults: Vec::new(),
        damages: Vec::new(),
        steps: Vec::new(),
        end: End::Stop { destage: true },
        ..manner.recovery()
    });
    let exchanged = themes(seed, options).contains(&Theme::Exchanged);
    let rounds = exchange::exchange(seed, rounds, exchanged);
    let (cache_model, backing_model) = models(seed);
    let mut plan = Plan { seed, shape, cache_model, backing_model, rounds };
    choose_order(&mut plan, options);
    choose_place_of_journal(&mut plan);
    points::declare(&mut plan, options);
    shared_points::share(&mut plan, options);
    staleness::bound(&mut plan, options);
    hints::hint(&mut plan, options);
    scheduled::schedule(&mut plan, options);
    remote::sicken(&mut plan, options);
    journals::write_in_circles(&mut plan, options);
    plan
}

/// One journal in three lies on a device of its own, and takes part of the backing's faults there. A stream of its own again.
fn choose_place_of_journal(plan: &mut Plan) {
    let mut random = Random::derived(plan.seed, JOURNAL_STREAM);
    plan.shape.journal_apart = plan.shape.journal_bytes > 0 && random.below(3) == 0;
    let faults = plan.rounds.iter_mut().flat_map(|round| &mut round.faults);
    let theirs = faults.filter(|fault| fault.role == Role::Backing && plan.shape.journal_apart);
    theirs.filter(|_| random.percent(40)).for_each(|fault| fault.role = Role::Journal);
}

/// In one plan of three most of what would be write-back keeps an order. A stream of its own, so that the rest of a plan is
/// that of the same seed without.
fn choose_order(plan: &mut Plan, options: Options) {
    let mut random = Random::derived(plan.seed, ORDER_STREAM);
    let wanted = random.below(3) == 0
        || [Theme::Consistent, Theme::Points, Theme::Common].iter().any(|t| options.themes.contains(t));
    let order = if random.percent(50) { Order::Completion } else { Order::Barrier };
    let strays = *random.pick(&[0, 0, 15, 40]);
    let changes = *random.pick(&[0, 0, 25]);
    let grouped = [Theme::Points, Theme::Common].iter().any(|t| options.themes.contains(t));
    let journaled = match grouped {
        true => 90,
        false => *random.pick(&[0, 90, 100]),
    };
    let segment_bytes = u64::from(plan.shape.segment_bytes);
    let journal_bytes = *random.pick(&[2 * segment_bytes, 2 * segment_bytes + 3 * BLOCK, 5 * segment_bytes]);
    if wanted && (journaled > 0 || random.percent(50)) {
        plan.shape.journal_bytes = journal_bytes;
    }
    for settings in plan.settings_mut().filter(|_| wanted) {
        settings.order = match order {
            Order::Completion if random.percent(changes) => Order::Barrier,
            Order::Barrier if random.percent(changes) => Order::Completion,
            order => order,
        };
        if settings.write_policy == WritePolicy::WriteBack && !random.percent(strays) {
            settings.write_policy = WritePolicy::Ordered;
            if random.percent(journaled) {
                settings.write_policy = WritePolicy::Journaled;
                settings.group_bytes = *random.pick(&[BLOCK, 4 * BLOCK, 16 * BLOCK, 100 * BLOCK]);
                settings.group_age_ms = *random.pick(&[1, 5, 50, 5000]);
            }
        }
    }
}

/// Puts such an action behind so many steps of a hundred, at once or a little later.
fn sprinkle(
    plan: &mut Plan,
    random: &mut Random,
    percent: u64,
    mut action: impl FnMut(&mut Random) -> Action,
) {
    for round in &mut plan.rounds {
        let mut steps = Vec::with_capacity(round.steps.len() * 2);
        for step in std::mem::take(&mut round.steps) {
            steps.push(step);
            if random.percent(percent) {
                let delay_us = if random.percent(50) { 0 } else { random.below(2000) };
                steps.push(Step { delay_us, action: action(random) });
            }
        }
        round.steps = steps;
    }
}

/// One plan in 64 has devices whose operations take the time of real ones, and complete in their order. A stream of
/// its own, so that the rest of a plan is that of the same seed with random latencies.
fn models(seed: u64) -> (Option<Emulation>, Option<Emulation>) {
    let mut random = Random::derived(seed, 6);
    let wanted = random.below(64) == 0;
    let mut model = |kinds: &[Kind]| wanted.then(|| Emulation::of(*random.pick(kinds)));
    let cache = model(&[Kind::SsdSata, Kind::SsdNvme, Kind::Nvdram, Kind::Hdd10k]);
    (cache, model(&Kind::ALL))
}

fn themes(seed: u64, options: Options) -> Vec<Theme> {
    let mut random = Random::derived(seed, THEME_STREAM);
    if !options.themes.is_empty() {
        return options.themes.to_vec();
    }
    let theme = *random.pick(&Theme::ALL);
    let fair = match theme {
        Theme::Failing => options.faults,
        Theme::Decaying => options.decay,
        _ => true,
    };
    if fair && random.below(THEMED_ONE_IN) == 0 { vec![theme] } else { Vec::new() }
}

fn shape(random: &mut Random) -> Shape {
    let blocks = *random.pick(&[1, 3, 16, 32, 64, 128, 200]);
    let odd = if random.percent(25) { random.between(1, 7) * SECTOR } else { 0 };
    Shape {
        volume_bytes: blocks * BLOCK + odd,
        segment_bytes: *random.pick(&[64 << 10, 64 << 10, 96 << 10, 128 << 10]),
        segment_count: random.between(6, 10) as u32,
        align: *random.pick(&[512, 4096]),
        stamped: random.percent(60),
        journal_bytes: 0,
        journal_apart: false,
        commits_in_place: false,
    }
}

fn settings(random: &mut Random) -> Settings {
    Settings {
        write_policy: if random.percent(70) { WritePolicy::WriteBack } else { WritePolicy::WriteThrough },
        order: Order::default(),
        group_bytes: Settings::default().group_bytes,
        group_age_ms: Settings::default().group_age_ms,
        group_ends: GroupEnds::Anywhere,
        max_staleness: MaxStaleness::None,
        admission: if random.percent(75) { Admission::All } else { Admission::Sync },
        journal_caching: JournalCaching::Keep,
        on_full: if random.percent(65) { OnFull::Wait } else { OnFull::Bypass },
        durability: if random.percent(60) { Durability::Write } else { Durability::Flush },
        scheduler: SchedulerKind::default(),
    }
}

impl Manner {
    fn round(&mut self) -> Round {
        let most = self.options.actions_max.max(1);
        let actions =
            if self.random.percent(30) { self.random.between(1, 8) } else { self.random.between(1, most) };
        if self.changes_settings {
            self.settings = settings(&mut self.random);
        }
        let settings = self.settings;
        let steps: Vec<Step> = (0..actions).map(|_| self.step()).collect();
        let end = self.end(actions * 7);
        let (faults, damages) = (self.faults(actions), self.damages(actions));
        self.assemble(settings, faults, damages, steps, end)
    }

    fn assemble(
        &mut self,
        settings: Settings,
        faults: Vec<Fault>,
        damages: Vec<Damage>,
        steps: Vec<Step>,
        end: End,
    ) -> Round {
        Round {
            between: Vec::new(),
            settings,
            depth: *self.random.pick(&[1, 2, 4, 8, 16, 32]),
            backing_depth: BACKING_SLOTS_MAX,
            schedule: self.random.below(1 << 32),
            verify: self.random.percent(60),
            faults,
            damages,
            steps,
            end,
        }
    }

    /// A round that ends while it recovers.
    fn recovery(&mut self) -> Round {
        let after = self.random.between(1, 40);
        let crash = self.crash();
        let faults = if self.random.percent(20) { self.faults(3) } else { Vec::new() };
        self.assemble(self.settings, faults, Vec::new(), Vec::new(), End::CrashAfter(after, crash))
    }

    fn crash(&mut self) -> CrashKind {
        let survival = *self.random.pick(&Survival::ALL);
        match self.random.below(10) {
            0..3 => CrashKind::Kill,
            3..5 => CrashKind::Cut { cache: true, backing: false, survival },
            5..7 => CrashKind::Cut { cache: false, backing: true, survival },
            _ => CrashKind::Cut { cache: true, backing: true, survival },
        }
    }

    fn end(&mut self, steps: u64) -> End {
        let crash = self.crash();
        if self.cuts {
            let survival = *self.random.pick(&[Survival::Sectors, Survival::Writes, Survival::Nothing]);
            let backing = self.random.percent(50);
            let crash = CrashKind::Cut { cache: true, backing, survival };
            return End::CrashAfter(self.random.between(1, steps + 20), crash);
        }
        let destage = self.random.percent(50);
        if self.stops && self.random.percent(50) {
            return End::Stop { destage };
        }
        match self.random.below(10) {
            0..6 => End::CrashAfter(self.random.between(1, steps + 20), crash),
            6 => End::CrashIdle(crash),
            7 => End::CrashSettled(crash),
            8 => End::Stop { destage },
            _ => End::CrashInStop { destage, after: self.random.between(1, 60), crash },
        }
    }

    fn range(&mut self) -> (u64, u64) {
        let sectors = self.shape.volume_bytes / SECTOR;
        let (first, len) = if self.random.percent(85) { self.hot } else { (0, sectors) };
        let mut start = first + self.random.below(len);
        let mut count = 1 + self.random.below(self.sectors_max);
        if self.random.percent(self.aligned_percent) {
            start = start / 8 * 8;
            count = count.next_multiple_of(8);
        }
        (start * SECTOR, count.min(sectors - start) * SECTOR)
    }

    fn step(&mut self) -> Step {
        let delay_us = match self.random.below(10) {
            0..5 if self.busy => 0,
            0..8 => self.random.below(300),
            8 => self.random.below(5_000),
            _ => self.random.below(200_000),
        };
        Step { delay_us, action: self.action() }
    }

    fn action(&mut self) -> Action {
        let rare = self.random.below(1000);
        if rare < 15 {
            return Action::Destage;
        }
        if rare < 25 {
            return Action::Drain;
        }
        if rare < 40 && self.changes_settings {
            return Action::Set(settings(&mut self.random));
        }
        if self.random.percent(self.flush_percent) {
            return Action::Flush;
        }
        let (offset, len) = self.range();
        if self.random.percent(self.reads_percent) {
            if self.random.percent(4) {
                return Action::Status { offset, len };
            }
            return Action::Read { offset, len };
        }
        let fua = self.random.percent(self.fua_percent);
        if self.random.percent(self.zero_percent) {
            let whole = self.random.percent(5);
            let (offset, len) = if whole { (0, self.shape.volume_bytes) } else { (offset, len) };
            let unmap = self.random.percent(50);
            return Action::Zero { offset, len, fua, unmap, criticality: Criticality::None };
        }
        let sync = self.random.percent(50);
        Action::Write { offset, len, fua, sync, criticality: Criticality::None }
    }

    fn faults(&mut self, actions: u64) -> Vec<Fault> {
        let mut faults = Vec::new();
        if !(self.faulty && self.random.percent(70) || self.decaying && self.random.percent(40)) {
            return faults;
        }
        for _ in 0..self.random.between(1, 3) {
            let first = self.random.between(1, actions + 3);
            let count = *self.random.pick(&[1, 1, 1, 2, 5, 40, u64::MAX]);
            let role = if self.random.percent(40) { Role::Cache } else { Role::Backing };
            let fault = if self.decaying {
                let effect = *self.random.pick(&[Effect::Lost, Effect::Misdirected]);
                Fault { role: Role::Cache, on: OpKind::Write, effect, first, count: 1 }
            } else {
                let (on, _) = *self.random.pick(&OpKind::ALL);
                let effect = *self.random.pick(&[
                    Effect::Eio,
                    Effect::Eio,
                    Effect::EioDone,
                    Effect::EioTorn,
                    Effect::NoSpace,
                    Effect::Slow,
                    Effect::Stuck,
                    Effect::Reset,
                ]);
                // Only a flush knows what a reset is; of other operations it would be any error.
                let on = if effect == Effect::Reset { OpKind::Flush } else { on };
                Fault { role, on, effect, first, count }
            };
            faults.push(fault);
        }
        faults
    }

    fn damages(&mut self, actions: u64) -> Vec<Damage> {
        if !self.decaying {
            return Vec::new();
        }
        (0..self.random.below(4))
            .map(|_| {
                let role = if self.random.percent(85) { Role::Cache } else { Role::Backing };
                Damage {
                    role,
                    rot: self.random.pick(&Rot::ALL).0,
                    after: self.random.below(actions + 1) as usize,
                    pick: self.random.below(1 << 32),
                }
            })
            .collect()
    }
}
