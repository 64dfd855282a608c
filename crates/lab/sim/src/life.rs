//! One life of the process: hands events to the engine, carries out its effects, and checks every answer.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use forebay_block::{DeviceOp, ErrorKind, IoError, Nanos};
use forebay_engine::{Effect, Event, IoId, RecoveryError, RecoveryReport, RequestId, Role, State};
use forebay_policy::{Order, Settings, WritePolicy};

use crate::device::InFlight;
use crate::emulated::Emulated;
use crate::fault::OpKind;
use crate::oracle::{Kept, Ticket};
use crate::random::Random;
use crate::stamp::{SECTOR, WriteNo};
use crate::subject::Subject;
use crate::trace;
use crate::violation::{Interrupt, broken};
use crate::wall;
use crate::world::{Retirement, World};

mod death;
mod fence;
mod lag;
mod queue;
mod requests;
mod rounds;

pub use death::{Death, Watch};

const SECTOR_BYTES: u64 = SECTOR as u64;
/// Most steps of one life: far more than any plan needs (P7).
const STEPS_MAX: u64 = 400_000;
/// How often in a row the engine may ask to be woken at an instant that has come, without doing anything.
const IDLE_WAKES_MAX: u32 = 100;

/// What is to be checked when a request is answered.
pub(crate) enum Asked {
    Read(Ticket),
    Write(WriteNo),
    Flush(Ticket),
    Status(Ticket),
}

/// A request under way.
pub(crate) struct Pending {
    pub(crate) id: RequestId,
    pub(crate) asked: Asked,
    pub(crate) first: u64,
    pub(crate) count: u64,
    pub(crate) settings: Settings,
    pub(crate) errors: Errors,
    pub(crate) after_stop: bool,
    /// When, on the oracle's clock.
    pub(crate) issued: u64,
}

/// What a control command under way promises.
pub(crate) enum Ordered {
    Set(Order),
    Mark { label: String, in_groups: bool, shared: bool },
    Destage { floors: Vec<u64>, ticket: Ticket },
    Stop { destage: bool },
}

/// Errors that devices had reported at some moment of this life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errors {
    pub(crate) cache: [u64; OpKind::ALL.len()],
    pub(crate) backing: [u64; OpKind::ALL.len()],
}

/// Something that will reach the engine at a known time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Cache(IoId),
    Backing(IoId),
    Retired(IoId),
    /// A model may have something to say.
    CacheModel,
    BackingModel,
    Journal(IoId),
    /// The coordinator of a consistency group goes on.
    Coordinator,
}

/// The end of an operation of a device.
const fn ended(device: Role, id: IoId) -> Due {
    match device {
        Role::Cache => Due::Cache(id),
        Role::Backing => Due::Backing(id),
        Role::Journal => Due::Journal(id),
    }
}

/// One life of the process.
pub struct Life<'w, S> {
    /// The world in which it takes place.
    pub world: &'w mut World,
    engine: S,
    /// Virtual time.
    pub now: Nanos,
    due: BinaryHeap<Reverse<(Nanos, u64, Due)>>,
    retiring: Vec<IoId>,
    /// Steps of this life.
    pub step: u64,
    /// The plan's crash is due at this step.
    pub crash_at: u64,
    effects: Vec<Effect>,
    pub(crate) pending: Vec<Pending>,
    pub(crate) commands: Vec<(RequestId, Ordered)>,
    next_id: u64,
    /// Settings for writes that are issued now.
    pub(crate) settings: Settings,
    /// What the engine has been asked to keep in order, and has confirmed; less from the moment it is asked.
    pub(crate) order: Order,
    /// Outcome of recovery.
    pub recovered: Option<Result<RecoveryReport, RecoveryError>>,
    /// Outcome of a stop.
    pub stopped: Option<Result<(), IoError>>,
    pub(crate) stopping: bool,
    random: Random,
    /// Effects of one poll are carried out in a random order.
    pub shuffles: bool,
    idle_wakes: u32,
    /// No device fails in this life, and none is slow.
    pub healthy: bool,
    /// What the backing's side lacks.
    lag: lag::Lag,
    /// What is to be expected of the backing's queue.
    pub(crate) queue: queue::Queue,
    /// The backing was reset, and what the engine had to say before it knew has not been carried out.
    pub(crate) reset_unseen: bool,
    /// When something was last answered.
    pub progress: Nanos,
    /// The round of the consistency group that is under way.
    coordinator: Option<rounds::Coordinator>,
    /// Steps of rounds that are not answered, and whether the volume was a member then.
    asked_common: Vec<(RequestId, bool)>,
    /// The engine knows that another host has taken over what is on the backing's side.
    pub(crate) knows_of_fence: bool,
    /// Looks on.
    pub watch: Option<Watch<'w>>,
}

impl<'w, S: Subject> Life<'w, S> {
    /// A life that begins.
    pub fn new(world: &'w mut World, engine: S, settings: Settings, random: Random, crash_at: u64) -> Self {
        let now = Nanos(1_000_000);
        world.consistency.points.follow(&settings);
        Self {
            world,
            engine,
            now,
            due: BinaryHeap::new(),
            retiring: Vec::new(),
            step: 0,
            crash_at,
            effects: Vec::new(),
            pending: Vec::new(),
            commands: Vec::new(),
            next_id: 0,
            settings,
            order: settings.order,
            recovered: None,
            stopped: None,
            stopping: false,
            random,
            shuffles: true,
            idle_wakes: 0,
            healthy: false,
            lag: lag::Lag::default(),
            queue: queue::Queue::default(),
            reset_unseen: false,
            progress: now,
            coordinator: None,
            asked_common: Vec::new(),
            knows_of_fence: false,
            watch: None,
        }
    }

    /// Requests and commands that are not answered.
    pub fn outstanding(&self) -> usize {
        self.pending.len() + self.commands.len() + self.asked_common.len()
    }

    /// Whether a device is doing anything.
    pub fn is_busy(&self) -> bool {
        self.due.iter().any(|Reverse((_, _, due))| *due != Due::Coordinator)
    }

    /// Whether the backing is to be kept consistent now.
    pub(crate) fn keeps_order(&self) -> bool {
        self.settings.write_policy == WritePolicy::Ordered && self.engine.knows_order()
    }

    /// Whether groups are to be kept.
    pub(crate) fn keeps_groups(&self) -> bool {
        self.settings.write_policy == WritePolicy::Journaled && self.world.shape.journal_bytes > 0
    }

    /// Whether the engine says that it is.
    pub(crate) fn says_consistent(&self) -> bool {
        self.engine.backing_is_consistent()
    }

    /// The engine's state.
    pub fn state(&self) -> Option<State> {
        self.engine.state(self.now)
    }

    fn count_step(&mut self) -> Result<(), Interrupt> {
        if self.step >= self.crash_at {
            return Err(Interrupt::Crash);
        }
        if let Some(watch) = self.watch.take() {
            watch(self.world, self.death());
            self.watch = Some(watch);
        }
        self.step += 1;
        self.world.steps += 1;
        self.world.stats.events += 1;
        if self.step > STEPS_MAX {
            return Err(broken("P7", format!("the life took more than {STEPS_MAX} steps")));
        }
        Ok(())
    }

    pub(crate) fn note(&mut self, numbers: &[u64], words: impl FnOnce() -> (String, Vec<(u64, u64)>)) {
        self.world.trace.note((self.now, self.step), numbers, words);
    }

    /// Polls the engine until it has no more to say, and carries out what it says.
    ///
    /// # Errors
    /// A violation, or the crash.
    pub fn pump(&mut self) -> Result<(), Interrupt> {
        loop {
            self.engine.poll(self.now, &mut self.effects);
            if matches!(self.recovered, Some(Ok(_))) {
                let consistent = self.engine.backing_is_consistent();
                if self.world.consistency.claim(consistent, self.order) {
                    self.world.judge_order()?;
                }
            }
            if self.effects.is_empty() {
                self.reset_unseen = false;
                return self.check_lag();
            }
            self.idle_wakes = 0;
            self.judge_queue()?;
            let mut effects = std::mem::take(&mut self.effects);
            if self.shuffles && self.random.percent(50) {
                self.random.shuffle(&mut effects);
            }
            for effect in effects.drain(..) {
                self.count_step()?;
                self.carry_out(effect)?;
            }
            self.effects = effects;
            self.reset_unseen = false;
        }
    }

    fn carry_out(&mut self, effect: Effect) -> Result<(), Interrupt> {
        match effect {
            Effect::Io { id, role, op, class } => {
                self.asks_after_fence()?;
                if role == Role::Backing {
                    self.queue.starts(id, class)?;
                }
                self.start_io(id, role, op)
            }
            Effect::Admitted { .. } => Ok(()),
            Effect::Reply { id, result } => self.reply(id, result),
            Effect::CommandDone { id, result } => self.command_done(id, result),
            Effect::Marked { id, result } => self.marked(id, result),
            Effect::CommonDone { id, result } => self.common_done(id, result),
            Effect::Recovered(result) => {
                self.note(&[1, u64::from(result.is_ok())], || (format!("recovered: {result:?}"), Vec::new()));
                if self.recovered.is_some() {
                    return Err(broken("wall", "recovery ended twice"));
                }
                self.progress = self.now;
                let dirty = result.as_ref().map_or(0, |report| report.blocks_dirty);
                self.recovered = Some(result);
                self.lag_begins()?;
                self.world.check_not_repeated(dirty)
            }
            Effect::RetireLog { id } => {
                self.note(&[2, id.0], || ("retire the log".to_owned(), Vec::new()));
                self.world.retirement = Retirement::Asked;
                self.retiring.push(id);
                self.schedule(1_000_000, Due::Retired(id));
                Ok(())
            }
        }
    }

    fn schedule(&mut self, ns: u64, due: Due) {
        self.due.push(Reverse((Nanos(self.now.0 + ns), self.world.steps, due)));
    }

    fn start_io(&mut self, id: IoId, role: Role, op: DeviceOp) -> Result<(), Interrupt> {
        self.world.trace.note((self.now, self.step), &[3, id.0, op.write_bytes()], || {
            let (text, sectors) = trace::describe_op(role, &op);
            (format!("start  {:>4} {text}", id.0), sectors)
        });
        if let DeviceOp::Write { bufs, .. } = &op {
            bufs.iter().for_each(|b| self.world.trace.data(b));
        }
        let (layout, volume_bytes) = (self.world.layout, self.world.shape.volume_bytes);
        let journal = self.world.journal_offset();
        let step = self.world.steps;
        let device = self.world.device(role);
        wall::check(device, id, role, &op, &layout, volume_bytes)?;
        let op = if role == Role::Journal { op.moved(journal) } else { op };
        let ns = device.submit(id, op, step).0;
        let place = device.role;
        if device.emulate(self.now) {
            self.arm(role);
            return Ok(());
        }
        self.schedule(ns, ended(place, id));
        Ok(())
    }

    /// Looks at a model again when it may have something to say.
    fn arm(&mut self, role: Role) {
        let due = match role {
            Role::Cache => Due::CacheModel,
            Role::Backing | Role::Journal => Due::BackingModel,
        };
        if let Some(at) = self.world.device(role).emulated.as_mut().and_then(Emulated::arm) {
            self.due.push(Reverse((at, self.world.steps, due)));
        }
    }

    fn model_ends(&mut self, role: Role) {
        let now = self.now;
        for (id, late_ns) in self.world.device(role).emulated_ends(now) {
            self.schedule(late_ns, ended(role, id));
        }
        self.arm(role);
    }

    /// When something happens next without a new request; `None` if never.
    pub fn next_event(&self) -> Option<Nanos> {
        let due = self.due.peek().map(|Reverse((at, ..))| *at);
        let wake = self.engine.next_wake().map(|at| at.max(self.now));
        match (due, wake) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// How many operations could complete next, if time did not decide.
    pub fn choices(&self) -> usize {
        self.due.len()
    }

    /// Completes the `n`th of the operations in flight, whatever its time, in the order in which they were started.
    ///
    /// # Errors
    /// A violation, or the crash.
    pub fn complete_nth(&mut self, n: usize) -> Result<(), Interrupt> {
        let mut due: Vec<_> = self.due.drain().collect();
        due.sort_unstable_by_key(|Reverse((_, order, what))| (*order, *what));
        let Reverse((_, _, what)) = due.remove(n);
        self.due.extend(due);
        self.now = Nanos(self.now.0 + 1000);
        self.count_step()?;
        self.deliver(what)?;
        self.pump()
    }

    /// Lets time pass to the next event and delivers everything that is due then; false if nothing ever is.
    ///
    /// # Errors
    /// A violation, or the crash.
    pub fn advance(&mut self) -> Result<bool, Interrupt> {
        let Some(at) = self.next_event() else {
            return Ok(false);
        };
        if self.due.peek().is_none_or(|Reverse((due, ..))| *due > at) {
            self.idle_wakes += 1;
            if self.idle_wakes > IDLE_WAKES_MAX && at == self.now {
                return Err(broken(
                    "P7",
                    "the engine asks to be woken at once, again and again, and does nothing",
                ));
            }
        }
        self.now = self.now.max(at);
        while let Some(Reverse((due, _, what))) = self.due.peek().copied() {
            if due > self.now {
                break;
            }
            self.due.pop();
            self.count_step()?;
            self.deliver(what)?;
        }
        self.pump()?;
        Ok(true)
    }

    fn deliver(&mut self, what: Due) -> Result<(), Interrupt> {
        let (id, result) = match what {
            Due::CacheModel | Due::BackingModel => {
                let role = if what == Due::CacheModel { Role::Cache } else { Role::Backing };
                self.model_ends(role);
                return Ok(());
            }
            Due::Coordinator => {
                self.coordinate();
                return Ok(());
            }
            Due::Retired(id) => {
                self.retiring.retain(|r| *r != id);
                let failed = || IoError::new(ErrorKind::Io, "neither side takes the mark");
                (id, if self.world.retire() { Ok(None) } else { Err(failed()) })
            }
            Due::Cache(id) => (id, self.complete_cache(id)),
            // A reset takes nothing that was acknowledged.
            Due::Journal(id) => (id, self.world.journal.complete(id).0),
            Due::Backing(id) => {
                let flush = |io: &InFlight| io.id == id && matches!(io.op, DeviceOp::Flush);
                let flush = self.world.backing.in_flight.iter().any(flush);
                let (result, harm) = self.world.backing.complete(id);
                if flush && result.is_err() && !self.world.consistency.is_claimed() {
                    // Bypasses from before there was an order are gone with it; the next flush is told (limits of `consistency.md`).
                    self.world.consistency.lose(Kept::Cut);
                }
                if harm.reset {
                    self.lose_unflushed();
                    self.reset_unseen = true;
                }
                (id, result)
            }
        };
        self.note(&[4, id.0, u64::from(result.is_ok())], || {
            let outcome = match &result {
                Ok(Some(data)) => format!("ok [{}]", trace::describe_data(data).0),
                Ok(None) => "ok".to_owned(),
                Err(e) => e.to_string(),
            };
            (format!("end    {:>4} {outcome}", id.0), Vec::new())
        });
        if let Ok(Some(data)) = &result {
            self.world.trace.data(data);
        }
        if matches!(what, Due::Backing(_) | Due::Journal(_)) && !matches!(result, Ok(Some(_))) {
            self.world.judge_order()?;
            self.lag.may_shrink = true;
        }
        self.queue.ended(id);
        if matches!(what, Due::Backing(_) | Due::Journal(_)) {
            self.may_know_of_fence(&result);
        }
        self.engine.handle(Event::Io { id, result }, self.now);
        Ok(())
    }

    /// The backing was reset.
    pub(crate) fn lose_unflushed(&mut self) {
        self.world.oracle.lose_unflushed();
        self.world.consistency.lose(Kept::Cut);
    }

    fn complete_cache(&mut self, id: IoId) -> forebay_block::DeviceResult {
        let change = self.world.cache.in_flight.iter().find(|io| io.id == id).and_then(|io| match &io.op {
            DeviceOp::Write { offset, durable, .. } => {
                Some((io.step, Some((*offset, io.op.write_bytes(), *durable))))
            }
            DeviceOp::Flush => Some((io.step, None)),
            _ => None,
        });
        let (result, harm) = self.world.cache.complete(id);
        if harm.reset {
            self.world.cache_reset(&harm);
            self.world.consistency.lose(Kept::Cut);
        }
        match (change, &result) {
            (Some((submitted, Some(write))), Ok(_)) => self.world.cache_written(submitted, write, harm),
            (Some((submitted, None)), Ok(_)) => self.world.cache_flushed(submitted),
            _ => {}
        }
        result
    }

    pub(crate) fn errors(&self) -> Errors {
        Errors { cache: self.world.cache.errors, backing: self.world.backing.errors }
    }

    fn new_id(&mut self) -> RequestId {
        self.next_id += 1;
        RequestId(self.next_id)
    }
}
