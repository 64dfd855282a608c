//! Runs a plan: one life after the other on the same devices, until the plan ends or a promise is broken.

use forebay_block::Nanos;
use forebay_engine::{Engine, Params, RecoveryError, State};

use crate::device::Promise;
use crate::emulated::Emulated;
use crate::fault::{Effect, OpKind};
use crate::life::{Death, Life, Watch};
use crate::plan::{Action, Between, CrashKind, End, Plan, Round};
use crate::random::Random;
use crate::second_opinion;
use crate::subject::Subject;
use crate::trace::{Detail, Line, Trace};
use crate::violation::{Interrupt, Violation, broken};
use crate::world::{Protocol, Stats, World};

mod forks;

/// Virtual time without any answer after which the world heals; as much again, and the engine is stuck (P7).
const PATIENCE: Nanos = Nanos(30_000_000_000);
/// Most bytes of one read of the check after recovery.
const VERIFY_BYTES: u64 = 64 << 10;

/// How a round ended: a broken promise or whatever else ends the plan, and at which step.
type Ended = Result<(), (Interrupt, u64)>;

/// What came of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The first broken promise, if any.
    pub violation: Option<Violation>,
    /// Totals.
    pub stats: Stats,
    /// Hash of the whole history: equal for equal plans.
    pub hash: u64,
    /// The history, if it was asked for.
    pub lines: Vec<Line>,
}

/// Runs plans, reusing the memory of its world.
#[derive(Default)]
pub struct Simulator {
    world: World,
    /// The independent verifier looks at the cache before each start, and must see what recovery sees.
    pub second_opinion: bool,
    /// What decides who belongs to whom.
    pub protocol: Protocol,
    /// What the stores promise.
    pub promise: Promise,
}

impl Simulator {
    /// Runs `plan` against the engine.
    pub fn run(&mut self, plan: &Plan, detail: Detail) -> Outcome {
        self.run_with(plan, detail, Engine::new)
    }

    /// Runs `plan` against whatever `make` makes.
    pub fn run_with<S: Subject>(
        &mut self,
        plan: &Plan,
        detail: Detail,
        make: impl FnMut(Params) -> S,
    ) -> Outcome {
        self.run_between(plan, detail, make, |_, _| {})
    }

    /// As [`Simulator::run_with`]; before each round, `between` sees its number and the world, and may change it.
    pub fn run_between<S: Subject>(
        &mut self,
        plan: &Plan,
        detail: Detail,
        mut make: impl FnMut(Params) -> S,
        mut between: impl FnMut(usize, &mut World),
    ) -> Outcome {
        self.begin(plan, detail);
        self.rounds(plan, None, &mut make, &mut between)
    }

    fn begin(&mut self, plan: &Plan, detail: Detail) {
        let decays = plan
            .rounds
            .iter()
            .any(|r| !r.damages.is_empty() || r.faults.iter().any(|f| f.effect.is_silent()));
        (self.world.protocol, self.world.promise) = (self.protocol, self.promise);
        let older = |b: &Between| matches!(b, Between::Older { .. });
        self.world.keeps_images = plan.rounds.iter().flat_map(|r| &r.between).any(older);
        self.world.begin(plan.shape, decays, Trace::new(detail));
        self.world.cache.emulated = plan.cache_model.clone().map(Emulated::new);
        self.world.backing.emulated = plan.backing_model.clone().map(Emulated::new);
    }

    /// The rounds of a plan, of which the first has `ended` already or is run, too.
    fn rounds<S: Subject>(
        &mut self,
        plan: &Plan,
        mut ended: Option<Ended>,
        make: &mut impl FnMut(Params) -> S,
        between: &mut impl FnMut(usize, &mut World),
    ) -> Outcome {
        let mut violation = None;
        for (number, round) in plan.rounds.iter().enumerate() {
            self.world.trace.round = number;
            let ended = ended.take().unwrap_or_else(|| {
                between(number, &mut self.world);
                self.round(round, make, None)
            });
            match ended {
                Ok(()) => self.world.keep_image(),
                Err((Interrupt::Violation(mut v), step)) => {
                    (v.round, v.step) = (number, step);
                    violation = Some(v);
                    break;
                }
                Err(_) => break,
            }
        }
        let world = &mut self.world;
        for effects in [world.cache.effects, world.backing.effects, world.journal.effects] {
            world.stats.faults.iter_mut().zip(effects).for_each(|(sum, n)| *sum += n);
        }
        let lines = std::mem::take(&mut world.trace.lines);
        Outcome { violation, stats: world.stats, hash: world.trace.hash(), lines }
    }

    fn round<S: Subject>(
        &mut self,
        round: &Round,
        make: &mut impl FnMut(Params) -> S,
        watch: Option<Watch<'_>>,
    ) -> Ended {
        let world = &mut self.world;
        let mut fate = Random::derived(round.schedule, 5);
        if !matches!(round.between.first(), Some(Between::Lose { .. })) {
            world.must_be_ours(&mut fate).map_err(|i| (i, 0))?;
        }
        for event in &round.between {
            world.happens(event, &mut fate).map_err(|i| (i, 0))?;
        }
        for d in round.damages.iter().filter(|d| d.after == 0) {
            world.damage(d.role, d.rot, d.pick);
        }
        let opinion = if self.second_opinion { second_opinion::of(world) } else { None };
        let params = match world.start(round) {
            Ok(params) => params,
            Err(Interrupt::Crash) => {
                world.stats.crashes_in_start += 1;
                world.crash(crash_of(round.end), &mut fate);
                return Ok(());
            }
            Err(other) => return Err((other, 0)),
        };
        let crash_at = match round.end {
            End::CrashAfter(steps, _) => steps,
            _ => u64::MAX,
        };
        let fences = round.steps.iter().any(|step| matches!(step.action, Action::Fence { .. }));
        let healthy = round.faults.is_empty() && !world.decays && world.backing.emulated.is_none() && !fences;
        let random = Random::derived(round.schedule, 3);
        let mut script =
            Script { life: Life::new(world, make(params), round.settings, random, crash_at), healed: false };
        script.life.healthy = healthy;
        script.life.queue.depth = round.backing_depth;
        script.life.watch = watch.map(|watch| watch as Watch<'_>);
        let outcome = script.live(round);
        let outcome = match (&opinion, &script.life.recovered) {
            (Some(verifier), Some(Ok(recovery))) => second_opinion::compare(verifier, recovery).and(outcome),
            _ => outcome,
        };
        let stopped = matches!(script.life.stopped, Some(Ok(())));
        let mut death = script.life.death();
        let step = death.step;
        death.leave(world);
        let crash = match (outcome, round.end) {
            (Ok(()), End::Stop { .. }) if stopped => world.end_run(None).err().map(|_| CrashKind::Kill),
            (Ok(()), End::CrashInLastWords { write, crash, .. }) if stopped => {
                world.end_run(Some(write)).err().map(|_| crash)
            }
            (Ok(()) | Err(Interrupt::Crash), end) => Some(crash_of(end)),
            (Err(other), _) => return Err((other, step)),
        };
        self.dies(death, round.end, crash).map_err(|i| (i, step))
    }

    /// The life of a round is over, as `end` wanted it or not: by a crash, or by a stop after which power fails.
    fn dies(&mut self, mut death: Death, end: End, crash: Option<CrashKind>) -> Result<(), Interrupt> {
        let world = &mut self.world;
        let errors = world.cache.errors;
        let failed = errors[OpKind::Write as usize] + errors[OpKind::Flush as usize] > 0;
        if world.may_have_given_up(death.now) {
            world.gives_up();
        }
        world.stats.crashes_in_recovery += u64::from(!death.recovered);
        let words = || (format!("end of the round: {end}"), Vec::new());
        world.trace.note((death.now, death.step), &[9], words);
        match crash {
            Some(kind) => world.crash(kind, &mut death.random),
            None => {
                world.power_off();
                world.destaged = matches!(end, End::Stop { destage: true });
            }
        }
        world.judge_order()?;
        if failed && crash.is_some() {
            world.consistency.excuse();
        }
        Ok(())
    }
}

/// The crash with which a round ends; a stop that failed is followed by the death of the process.
const fn crash_of(end: End) -> CrashKind {
    match end {
        End::CrashAfter(_, kind) | End::CrashIdle(kind) | End::CrashSettled(kind) => kind,
        End::CrashInStop { crash, .. }
        | End::CrashInStart { crash, .. }
        | End::CrashInLastWords { crash, .. } => crash,
        End::Stop { .. } => CrashKind::Kill,
    }
}

/// Drives one life through its round.
struct Script<'w, S> {
    life: Life<'w, S>,
    healed: bool,
}

impl<S: Subject> Script<'_, S> {
    fn live(&mut self, round: &Round) -> Result<(), Interrupt> {
        self.life.pump()?;
        while self.life.recovered.is_none() {
            self.wait()?;
        }
        if let Some(Err(e)) = &self.life.recovered {
            return Err(self.refused(&e.clone()));
        }
        if round.verify {
            self.verify()?;
        }
        self.script(round)?;
        self.end(round.end)
    }

    /// The volume does not start. With damage that is an answer; after an error of the device the next life tries again.
    fn refused(&mut self, error: &RecoveryError) -> Interrupt {
        let world = &mut self.life.world;
        if world.may_refuse() {
            world.stats.refusals += 1;
            return Interrupt::Refused;
        }
        let errors: u64 = world.cache.errors.iter().chain(&world.backing.errors).sum();
        if matches!(error, RecoveryError::Io(_)) && errors > 0 {
            return Interrupt::Crash;
        }
        broken("P1", format!("recovery refuses without a reason: {error}"))
    }

    /// Lets the next thing happen while something is awaited.
    fn wait(&mut self) -> Result<(), Interrupt> {
        let waited = self.life.now.since(self.life.progress);
        let moved = waited < PATIENCE.0 && self.life.advance()?;
        if moved {
            return Ok(());
        }
        if self.healed {
            let why =
                if waited < PATIENCE.0 { "nothing is in flight" } else { "nothing is answered for long" };
            let n = self.life.outstanding();
            return Err(broken("P7", format!("stuck: {why}, with {n} requests and commands outstanding")));
        }
        self.healed = true;
        self.life.progress = self.life.now;
        self.life.world.heal();
        self.life.pump()
    }

    fn drain(&mut self, most: usize) -> Result<(), Interrupt> {
        while self.life.outstanding() > most {
            self.wait()?;
        }
        Ok(())
    }

    fn verify(&mut self) -> Result<(), Interrupt> {
        let volume = self.life.world.shape.volume_bytes;
        for offset in (0..volume).step_by(VERIFY_BYTES as usize) {
            let len = VERIFY_BYTES.min(volume - offset);
            self.life.issue(Action::Read { offset, len })?;
            self.life.pump()?;
        }
        self.drain(0)
    }

    fn script(&mut self, round: &Round) -> Result<(), Interrupt> {
        let mut at = self.life.now;
        for (i, step) in round.steps.iter().enumerate() {
            at = Nanos(at.0.max(self.life.now.0) + step.delay_us * 1000);
            if step.delay_us > 0 || step.action == Action::Drain {
                self.life.pump()?;
            }
            while self.life.next_event().is_some_and(|next| next <= at) && step.delay_us > 0 {
                self.life.advance()?;
            }
            self.life.now = self.life.now.max(at);
            if step.action == Action::Drain {
                self.drain(0)?;
            } else {
                if self.life.outstanding() >= round.depth.max(1) {
                    self.life.pump()?;
                    self.drain(round.depth.max(1) - 1)?;
                }
                self.life.issue(step.action)?;
            }
            for d in round.damages.iter().filter(|d| d.after == i + 1) {
                self.life.world.damage(d.role, d.rot, d.pick);
                self.healed = false;
            }
        }
        self.life.pump()
    }

    fn end(&mut self, end: End) -> Result<(), Interrupt> {
        match end {
            End::CrashAfter(..) | End::CrashIdle(_) => self.drain(0),
            End::CrashSettled(_) => {
                self.drain(0)?;
                self.settle()?;
                self.life.let_lag_grow()?;
                self.consistent_again()
            }
            // A crash at the start comes before there is a life.
            End::CrashInStart { .. } => Ok(()),
            End::Stop { destage } | End::CrashInLastWords { destage, .. } => {
                self.life.stop(destage)?;
                self.life.pump()?;
                self.drain(0)?;
                self.stopped()
            }
            End::CrashInStop { destage, after, .. } => {
                self.life.crash_at = self.life.step + after;
                self.life.stop(destage)?;
                self.life.pump()?;
                self.drain(0)
            }
        }
    }

    /// Waits until no device is busy; the engine may go on waking itself up.
    fn settle(&mut self) -> Result<(), Interrupt> {
        let until = Nanos(self.life.now.0 + PATIENCE.0);
        while self.life.now < until && self.life.advance()? {
            if !self.life.is_busy()
                && self.life.next_event().is_none_or(|at| at > self.life.now.plus_ms(5000))
            {
                break;
            }
        }
        Ok(())
    }

    /// Once nothing is sick any more and everything is on the backing, a volume that is to keep it consistent must say that it
    /// is. Not asked where blocks may be lost for good, nor where the cache has failed in this life.
    fn consistent_again(&mut self) -> Result<(), Interrupt> {
        let errors = self.life.errors().cache;
        let keeps_order = self.life.keeps_order();
        let cache_failed = errors[OpKind::Write as usize] + errors[OpKind::Flush as usize] > 0;
        let now = self.life.now;
        let world = &mut self.life.world;
        let may_be_lost = world.decays
            || world.stats.damages > 0
            || world.cache.has_been(Effect::Reset)
            || world.has_given_up()
            || world.may_have_given_up(now);
        if cache_failed || may_be_lost || !keeps_order || world.is_fenced() {
            return Ok(());
        }
        world.heal();
        self.life.issue(Action::Destage)?;
        self.life.pump()?;
        self.drain(0)?;
        self.settle()?;
        if !self.life.says_consistent() {
            return Err(broken("P4", "everything is on the backing, which is not called consistent again"));
        }
        if !self.life.tells_no_lag() {
            return Err(broken("P7", "everything is on the backing, which is told to lag behind"));
        }
        Ok(())
    }

    fn stopped(&mut self) -> Result<(), Interrupt> {
        if matches!(self.life.stopped, Some(Ok(()))) {
            if self.life.is_busy() {
                return Err(broken("wall", "stopped, but operations are in flight"));
            }
            if self.life.state() != Some(State::Stopped) {
                return Err(broken("wall", "a completed stop does not leave the state 'stopped'"));
            }
        }
        Ok(())
    }
}
