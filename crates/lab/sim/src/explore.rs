//! Exhaustive exploration of small worlds: every schedule of a short script, a crash at every step of it, every image
//! that the media model allows the crash to leave, and a crash at every step of the recovery from each.
//!
//! Engines cannot be copied, so each path is run from its beginning with the choices spelled out. Paths that lead to
//! the same images, judged by the same oracle, are continued once.

use std::collections::HashSet;

use forebay_block::Nanos;
use forebay_engine::Params;
use forebay_policy::{BACKING_SLOTS_MAX, Settings};

use crate::life::Life;
use crate::media::Survival;
use crate::plan::{Action, CrashKind, End, Round, Shape};
use crate::random::Random;
use crate::subject::Subject;
use crate::trace::{Detail, Line, Trace};
use crate::violation::{Interrupt, Violation, broken};
use crate::world::World;

/// Most steps of a path: schedules that go on for longer (an engine that keeps waking itself up) end there.
const STEPS_MAX: u64 = 2000;

/// A path through a tree of choices, and how to find the next one.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    taken: Vec<(usize, usize)>,
    at: usize,
}

impl Choices {
    /// One of `0..of`; on a new path the first.
    pub fn choose(&mut self, of: usize) -> usize {
        if of <= 1 {
            return 0;
        }
        if self.at == self.taken.len() {
            self.taken.push((0, of));
        }
        self.at += 1;
        self.taken[self.at - 1].0
    }

    /// Starts over on the same path.
    pub fn rewind(&mut self) {
        self.at = 0;
    }

    /// Turns to the next path; false if there is none. Returns through `changed` the first choice that differs.
    pub fn next_path(&mut self, changed: &mut usize) -> bool {
        self.at = 0;
        while let Some((chosen, of)) = self.taken.pop() {
            if chosen + 1 < of {
                *changed = self.taken.len();
                self.taken.push((chosen + 1, of));
                return true;
            }
        }
        false
    }
}

/// A world small enough to be seen whole.
#[derive(Clone, Debug)]
pub struct SmallWorld {
    /// The volume.
    pub shape: Shape,
    /// Settings of every life.
    pub settings: Settings,
    /// The script; issued in order, at any moment.
    pub script: Vec<Action>,
    /// Most requests outstanding at once.
    pub depth: usize,
    /// Ways of crashing; what survives is explored, not drawn.
    pub crashes: Vec<CrashKind>,
    /// Paths after which the exploration ends even if it is not complete.
    pub paths_max: u64,
    /// Most contested sectors of a device of which every combination is tried; of more, the typical ones.
    pub contested_max: usize,
    /// Of the steps of a recovery every so manieth is crashed at.
    pub recovery_stride: u64,
    /// Only schedules in which at most so many choices differ from "the oldest first" are walked; `usize::MAX`: all.
    pub detours_max: usize,
}

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Schedules of the script.
    pub schedules: u64,
    /// Crashes: pairs of a schedule's beginning and a way of crashing.
    pub crashes: u64,
    /// Images that crashes left, over all crashes.
    pub images: u64,
    /// Different states of the world after a crash.
    pub states: u64,
    /// Crashes in the recovery from those.
    pub crashes_in_recovery: u64,
    /// Whether everything was seen.
    pub complete: bool,
    /// The first broken promise, with the history that led to it.
    pub violation: Option<(Violation, Vec<Line>)>,
}

/// Power cuts of either device and of both, and the death of the process.
pub const EVERY_CRASH: [CrashKind; 4] = [
    CrashKind::Kill,
    CrashKind::Cut { cache: true, backing: false, survival: Survival::Sectors },
    CrashKind::Cut { cache: false, backing: true, survival: Survival::Sectors },
    CrashKind::Cut { cache: true, backing: true, survival: Survival::Sectors },
];

/// How a path through the first life ended.
struct Walked {
    steps: u64,
    /// For each step, how many choices had been made before it.
    choices_at: Vec<usize>,
    interrupt: Option<Interrupt>,
}

/// Walks a small world.
pub struct Explorer<'a, F> {
    small: &'a SmallWorld,
    make: F,
    world: World,
    seen: Seen,
    states: HashSet<u64>,
    detail: Detail,
}

/// Sees the whole of `small`, run against what `make` makes.
pub fn explore<S: Subject>(small: &SmallWorld, make: impl FnMut(Params) -> S) -> Seen {
    let seen = Seen { complete: true, ..Seen::default() };
    let mut explorer =
        Explorer { small, make, world: World::new(), seen, states: HashSet::new(), detail: Detail::Hash };
    explorer.schedules();
    explorer.seen.states = explorer.states.len() as u64;
    explorer.seen
}

impl<S: Subject, F: FnMut(Params) -> S> Explorer<'_, F> {
    fn schedules(&mut self) {
        let mut schedule = Choices::default();
        let mut changed = 0;
        loop {
            let walked = self.walk(&mut schedule, u64::MAX);
            self.seen.schedules += 1;
            if let Some(Interrupt::Violation(_)) = &walked.interrupt {
                self.report(&mut schedule, |me, schedule| me.walk(schedule, u64::MAX).interrupt);
                return;
            }
            // What lies before the first choice that is new was crashed in on an earlier path.
            let first = walked.choices_at.iter().position(|n| *n > changed).unwrap_or(0) as u64;
            let first = if self.seen.schedules == 1 { 0 } else { first };
            for step in first..=walked.steps {
                for kind in 0..self.small.crashes.len() {
                    if !self.crashes(&mut schedule, step, self.small.crashes[kind]) {
                        return;
                    }
                }
            }
            if !self.next_schedule(&mut schedule, &mut changed) {
                return;
            }
            if self.seen.images >= self.small.paths_max {
                self.seen.complete = false;
                return;
            }
        }
    }

    fn next_schedule(&mut self, schedule: &mut Choices, changed: &mut usize) -> bool {
        let mut first = usize::MAX;
        loop {
            let mut at = 0;
            if !schedule.next_path(&mut at) {
                return false;
            }
            first = first.min(at);
            if schedule.taken.iter().filter(|(chosen, _)| *chosen > 0).count() <= self.small.detours_max {
                *changed = first;
                return true;
            }
            self.seen.complete = false;
        }
    }

    /// Runs the script on a new world along `schedule`, up to step `crash_at`.
    fn walk(&mut self, schedule: &mut Choices, crash_at: u64) -> Walked {
        schedule.rewind();
        self.world.begin(self.small.shape, false, Trace::new(self.detail));
        self.world.cache.media.contested_max = self.small.contested_max;
        self.world.backing.media.contested_max = self.small.contested_max;
        let round = self.round();
        let params = match self.world.start(&round) {
            Ok(params) => params,
            Err(i) => {
                return Walked { steps: 0, choices_at: Vec::new(), interrupt: Some(i) };
            }
        };
        let engine = (self.make)(params);
        let mut life = Life::new(&mut self.world, engine, self.small.settings, Random::new(1), crash_at);
        life.shuffles = false;
        let mut choices_at = Vec::new();
        let outcome = script(&mut life, self.small, schedule, &mut choices_at);
        let interrupt = outcome.err().map(|i| at(i, 0, life.step));
        Walked { steps: life.step, choices_at, interrupt }
    }

    fn round(&self) -> Round {
        Round {
            between: Vec::new(),
            settings: self.small.settings,
            depth: self.small.depth,
            backing_depth: BACKING_SLOTS_MAX,
            schedule: 1,
            verify: true,
            faults: Vec::new(),
            damages: Vec::new(),
            steps: Vec::new(),
            end: End::CrashIdle(CrashKind::Kill),
        }
    }

    /// Crashes at `step` of `schedule` in the way `kind`, with every image that this can leave. False on a violation.
    fn crashes(&mut self, schedule: &mut Choices, step: u64, kind: CrashKind) -> bool {
        self.seen.crashes += 1;
        let mut images = Choices::default();
        loop {
            self.walk(schedule, step);
            images.rewind();
            self.world.crash_by_choice(kind, &mut |n| images.choose(n));
            self.seen.images += 1;
            if self.states.insert(self.world.fingerprint())
                && !self.recoveries(schedule, step, kind, &mut images)
            {
                return false;
            }
            if !images.next_path(&mut 0) {
                return true;
            }
        }
    }

    /// Recovers, and crashes at every step of the recovery as well.
    fn recoveries(
        &mut self,
        schedule: &mut Choices,
        step: u64,
        kind: CrashKind,
        images: &mut Choices,
    ) -> bool {
        let mut crash_at = u64::MAX;
        let mut steps = None;
        loop {
            let outcome = self.recover(crash_at);
            if let Err(Interrupt::Violation(_)) = outcome {
                self.report(schedule, |me, schedule| {
                    me.crash_again(schedule, step, kind, images);
                    me.recover(crash_at).err()
                });
                return false;
            }
            // The first recovery is whole and says how many steps there are to crash at.
            let total = *steps.get_or_insert(outcome.unwrap_or(0));
            let stride = self.small.recovery_stride.max(1);
            crash_at = if crash_at == u64::MAX { stride } else { crash_at + stride };
            if crash_at > total {
                return true;
            }
            self.seen.crashes_in_recovery += 1;
            self.crash_again(schedule, step, kind, images);
        }
    }

    fn crash_again(&mut self, schedule: &mut Choices, step: u64, kind: CrashKind, images: &mut Choices) {
        self.walk(schedule, step);
        images.rewind();
        self.world.crash_by_choice(kind, &mut |n| images.choose(n));
    }

    /// Recovers and reads everything; with a crash at `crash_at` (a power cut that loses what it can), twice.
    fn recover(&mut self, crash_at: u64) -> Result<u64, Interrupt> {
        let recovered = self.recover_once(1, crash_at);
        if !matches!(recovered, Err(Interrupt::Crash)) {
            return recovered;
        }
        let all = CrashKind::Cut { cache: true, backing: true, survival: Survival::Nothing };
        self.world.crash_by_choice(all, &mut |_| 0);
        self.recover_once(2, u64::MAX)
    }

    fn recover_once(&mut self, round: usize, crash_at: u64) -> Result<u64, Interrupt> {
        self.world.trace.round = round;
        let template = self.round();
        self.world.judge_order().map_err(|i| at(i, round, 0))?;
        let params = self.world.start(&template).map_err(|i| at(i, round, 0))?;
        let volume = self.world.shape.volume_bytes;
        let engine = (self.make)(params);
        let mut life = Life::new(&mut self.world, engine, self.small.settings, Random::new(1), crash_at);
        life.shuffles = false;
        let mut run = || -> Result<u64, Interrupt> {
            life.pump()?;
            while life.recovered.is_none() {
                if !life.advance()? {
                    return Err(broken("P7", "recovery is stuck"));
                }
            }
            let steps = life.step;
            if let Some(Err(e)) = &life.recovered {
                return Err(broken("P1", format!("recovery refuses without a reason: {e}")));
            }
            life.issue(Action::Read { offset: 0, len: volume })?;
            life.pump()?;
            while life.outstanding() > 0 {
                if !life.advance()? {
                    return Err(broken("P7", "the read after recovery is stuck"));
                }
            }
            Ok(steps)
        };
        let outcome = run();
        let step = life.step;
        outcome.map_err(|i| at(i, round, step))
    }

    /// Walks the failing path again, with lines.
    fn report(
        &mut self,
        schedule: &mut Choices,
        again: impl FnOnce(&mut Self, &mut Choices) -> Option<Interrupt>,
    ) {
        self.detail = Detail::Lines;
        if let Some(Interrupt::Violation(v)) = again(self, schedule) {
            self.seen.violation = Some((v, std::mem::take(&mut self.world.trace.lines)));
        }
        self.seen.complete = false;
    }
}

fn at(interrupt: Interrupt, round: usize, step: u64) -> Interrupt {
    match interrupt {
        Interrupt::Violation(v) => Interrupt::Violation(Violation { round, step, ..v }),
        other => other,
    }
}

/// Issues the script and completes operations in the order that `schedule` chooses.
fn script<S: Subject>(
    life: &mut Life<'_, S>,
    small: &SmallWorld,
    schedule: &mut Choices,
    choices_at: &mut Vec<usize>,
) -> Result<(), Interrupt> {
    life.pump()?;
    while life.recovered.is_none() {
        if !life.advance()? {
            return Err(broken("P7", "the first start is stuck"));
        }
    }
    let mut next = 0;
    while life.step < STEPS_MAX {
        choices_at.resize(life.step as usize, schedule.at);
        let issues = next < small.script.len() && life.outstanding() < small.depth;
        let completes = life.choices();
        let options = completes + usize::from(issues);
        if options == 0 {
            // Only time can bring something new: a wake-up.
            if life.outstanding() == 0 && next == small.script.len() {
                choices_at.resize(life.step as usize, schedule.at);
                return Ok(());
            }
            if !life.advance()? {
                return Err(broken("P7", format!("stuck with {} requests outstanding", life.outstanding())));
            }
            continue;
        }
        let chosen = schedule.choose(options);
        if chosen < completes {
            life.complete_nth(chosen)?;
        } else {
            life.now = Nanos(life.now.0 + 1000);
            life.issue(small.script[next])?;
            life.pump()?;
            next += 1;
        }
    }
    Ok(())
}
