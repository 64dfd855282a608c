//! An engine whose devices answer at once, in virtual time, and keep nothing. Blocks hold zeroes, so that whatever the engine reads
//! back is zeroes. `forebay-replay` is no such world: it models the devices and keeps what the log says, for hours of a trace; here
//! what is beside the engine costs next to nothing, so that what is measured is the engine.

use forebay_block::{Buf, DeviceOp, Nanos, Op, Origin};
use forebay_engine::{Command, Effect, Engine, Event, Params, RequestId, Role, Status};
use forebay_format::Layout;
use forebay_format::journal::Head;
use forebay_policy::{Settings, WritePolicy};

use crate::cpu::thread_cpu_time;
use crate::dice::Dice;
use crate::{BenchError, Options};

const BLOCK_BYTES: usize = 4096;
/// The smallest segments, so that many of them need little memory in the index.
const SEGMENT_BYTES: u32 = Layout::SEGMENT_BYTES_MIN;
const ALIGN: u32 = 4096;
/// The ring of the journal on the backing's side.
const RING_BYTES: u64 = 16 << 20;
/// Wall-clock time of the beginning, nanoseconds since 1970.
const EPOCH_NS: u64 = 1_700_000_000_000_000_000;
/// Virtual time in which the devices answer.
const ANSWER_NS: u64 = 10_000;
/// Rounds without an answer after which the engine is given up.
const PATIENCE_ROUNDS: u32 = 1_000_000;
/// How a cache is filled: writes between two destagings, and how many of them are under way.
const FILL: Load = Load { writes: 1024, outstanding: 128, destage: true };

/// What one measurement does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Durable writes of a block each, anywhere in the volume.
    pub(super) writes: u64,
    /// Of them under way at a time.
    pub(super) outstanding: u64,
    /// Then everything is destaged.
    pub(super) destage: bool,
}

/// See the module's documentation.
pub(super) struct World {
    engine: Engine,
    now: Nanos,
    /// What the engine is told next.
    events: Vec<Event>,
    effects: Vec<Effect>,
    zeroes: Buf,
    dice: Dice,
    volume_blocks: u64,
    /// The backing does not answer.
    backing_rests: bool,
    under_way: u64,
    asked: u64,
    answered: u64,
    failed: Option<String>,
}

impl World {
    /// A volume of so many bytes whose cache holds so many segments, all of them clean, and few free ones.
    pub(super) fn new(options: &Options, clean_segments: u32, volume_bytes: u64) -> Result<Self, BenchError> {
        let layout = Layout {
            cache_id: [1; 16],
            generation: 1,
            align: ALIGN,
            segment_bytes: SEGMENT_BYTES,
            // The engine keeps a thirty-second of them free, and a few.
            segment_count: clean_segments + clean_segments / 31 + 8,
        };
        let head = Head::new([2; 16], layout.cache_id, volume_bytes, RING_BYTES);
        let params = Params {
            layout,
            volume_bytes,
            settings: Settings::default(),
            wall_offset_ns: EPOCH_NS,
            clean_stop: false,
            journal: Some(Head { update: 1, generation: 1, ..head }),
            prepared: None,
            commits_in_place: false,
            journal_left: false,
            backing_depth: 256,
            backing_unit_bytes: None,
            backing_forgets: false,
            read_only: false,
        };
        let mut world = Self {
            engine: Engine::new(params),
            now: Nanos(1),
            events: Vec::new(),
            effects: Vec::new(),
            zeroes: Buf::zeroed(SEGMENT_BYTES as usize),
            dice: Dice::new(clean_segments.into()),
            volume_blocks: volume_bytes / BLOCK_BYTES as u64,
            backing_rests: false,
            under_way: 0,
            asked: 0,
            answered: 0,
            failed: None,
        };
        // Recovery.
        world.under_way = 1;
        world.settle()?;
        let blocks = u64::from(clean_segments) * u64::from(SEGMENT_BYTES) / BLOCK_BYTES as u64;
        while world.status().cache_used_bytes < u64::from(clean_segments) * u64::from(SEGMENT_BYTES) {
            options.go_on()?;
            if world.asked > 4 * blocks + 8 * FILL.writes {
                return Err(world.error("the cache does not fill"));
            }
            world.load(FILL)?;
        }
        Ok(world)
    }

    /// Changes the write policy, when everything is destaged.
    pub(super) fn set_policy(&mut self, write_policy: WritePolicy) -> Result<(), BenchError> {
        for command in [Command::Set(Settings { write_policy, ..Settings::default() }), Command::Destage] {
            self.command(command)?;
        }
        Ok(())
    }

    /// The backing answers no more, and so much of what is cached becomes dirty.
    pub(super) fn soil(&mut self, percent: u64) -> Result<(), BenchError> {
        self.backing_rests = true;
        let lacks = |status: Status| status.dirty_bytes * 100 < status.cached_bytes * percent;
        while lacks(self.status()) {
            self.load(Load { destage: false, ..FILL })?;
        }
        Ok(())
    }

    /// Processor time of this thread in nanoseconds for each write of a load.
    pub(super) fn measure(&mut self, load: Load) -> Result<f64, BenchError> {
        let stalls = self.status().stalls;
        let before = thread_cpu_time();
        self.load(load)?;
        let time = thread_cpu_time().saturating_sub(before);
        let status = self.status();
        // A figure of an engine that does something else is none.
        let failures = status.errors + status.checksum_failures + status.cache_errors + status.backing_errors;
        match () {
            () if failures > 0 => Err(self.error("something fails that should not")),
            () if status.stalls > stalls => Err(self.error("a write has waited for room")),
            () if load.destage && status.dirty_bytes > 0 => Err(self.error("it is not clean")),
            () => Ok(time.as_nanos() as f64 / load.writes as f64),
        }
    }

    fn status(&self) -> Status {
        self.engine.status(self.now)
    }

    fn error(&self, what: &str) -> BenchError {
        let s = self.status();
        BenchError::Forebay(format!(
            "{what}; please report this: {} errors, {} of the cache, {} of the backing, {} checksums, {} stalls, {} bytes dirty",
            s.errors, s.cache_errors, s.backing_errors, s.checksum_failures, s.stalls, s.dirty_bytes
        ))
    }

    fn load(&mut self, load: Load) -> Result<(), BenchError> {
        for _ in 0..load.writes {
            while self.under_way >= load.outstanding {
                self.round()?;
            }
            self.ask(|world| {
                let offset = world.dice.below(world.volume_blocks) * BLOCK_BYTES as u64;
                let op = Op::Write { offset, data: world.zeroes.slice(0, BLOCK_BYTES), fua: false };
                Event::Request { id: RequestId(world.asked), op, origin: Origin::default() }
            });
        }
        self.settle()?;
        if load.destage { self.command(Command::Destage) } else { Ok(()) }
    }

    fn command(&mut self, command: Command) -> Result<(), BenchError> {
        self.ask(|world| Event::Command { id: RequestId(world.asked), command });
        self.settle()
    }

    fn ask(&mut self, event: impl FnOnce(&mut Self) -> Event) {
        self.asked += 1;
        self.under_way += 1;
        let event = event(self);
        self.events.push(event);
    }

    /// Until everything is answered that was asked.
    fn settle(&mut self) -> Result<(), BenchError> {
        while self.under_way > 0 {
            self.round()?;
        }
        Ok(())
    }

    /// The engine is told what there is, until it answers something.
    fn round(&mut self) -> Result<(), BenchError> {
        let answered = self.answered;
        for _ in 0..PATIENCE_ROUNDS {
            for event in self.events.drain(..) {
                self.engine.handle(event, self.now);
            }
            self.engine.poll(self.now, &mut self.effects);
            let wake = self.engine.next_wake();
            let mut effects = std::mem::take(&mut self.effects);
            effects.drain(..).for_each(|effect| self.carry_out(effect));
            self.effects = effects;
            if let Some(why) = self.failed.take() {
                return Err(self.error(&why));
            }
            if self.answered > answered {
                return Ok(());
            }
            // What has begun ends before time passes for another reason.
            let soon = Nanos(self.now.0 + ANSWER_NS);
            self.now = if self.events.is_empty() { wake.map_or(soon, |at| at.max(soon)) } else { soon };
        }
        Err(self.error("the engine does not answer"))
    }

    fn carry_out(&mut self, effect: Effect) {
        let failed = match effect {
            Effect::Io { role: Role::Backing, .. } if self.backing_rests => None,
            Effect::Io { id, op, .. } => {
                let read = match op {
                    DeviceOp::Read { len, .. } if len <= self.zeroes.len() => Some(self.zeroes.slice(0, len)),
                    DeviceOp::Read { len, .. } => Some(Buf::zeroed(len)),
                    _ => None,
                };
                self.events.push(Event::Io { id, result: Ok(read) });
                None
            }
            Effect::Reply { result, .. } => {
                self.done();
                result.err().map(|e| e.to_string())
            }
            Effect::CommandDone { result, .. } => {
                self.done();
                result.err().map(|e| e.to_string())
            }
            Effect::Recovered(result) => {
                self.done();
                result.err().map(|e| e.to_string())
            }
            Effect::RetireLog { .. } => Some("the cache is taken for failed".to_owned()),
            Effect::Admitted { .. } | Effect::Marked { .. } | Effect::CommonDone { .. } => None,
        };
        self.failed = self.failed.take().or(failed);
    }

    fn done(&mut self) {
        self.under_way -= 1;
        self.answered += 1;
    }
}
