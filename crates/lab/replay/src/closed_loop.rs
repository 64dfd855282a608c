//! Clients in a closed loop, on a volume or on what it stands on alone: how fast they are, and whether that is even.
//!
//! A client asks for a random block, waits for the answer, and asks again. [`Figures`] say what came of it after a
//! warm-up that should be long enough to fill the cache, and the buffers of the modelled devices. Equal loads on
//! equal volumes give equal figures.

use std::collections::HashMap;

use forebay_block::{Buf, DeviceOp, Nanos, Op, Origin};
use forebay_emulate::Settings as Model;
use forebay_engine::{Command, Effect, Engine, Event, IoId, Params, RequestId};
use forebay_policy::Settings;

use crate::device::Device;
use crate::run::{ReplayError, fresh, model, number};

const BLOCK_BYTES: u64 = 4096;
/// Length of the pieces of time whose answers are counted.
const BUCKET_NS: u64 = 10_000_000;
/// Virtual time without any answer after which it is given up.
const PATIENCE_NS: u64 = 60_000_000_000;
/// Requests of clients have smaller numbers.
const DESTAGE: RequestId = RequestId(u64::MAX);

/// The volume.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Its size in bytes.
    pub bytes: u64,
    /// What it stands on.
    pub backing: Model,
    /// Its cache, if it has one.
    pub cache: Option<Cache>,
}

/// A volume's cache.
#[derive(Clone, Debug)]
pub struct Cache {
    /// Its size in bytes.
    pub bytes: u64,
    /// The device.
    pub device: Model,
    /// Unit of the log in bytes, 512 or 4096.
    pub align: u32,
    /// Its policies.
    pub settings: Settings,
}

/// What clients do.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// How many clients there are, each with one request under way.
    pub depth: u64,
    /// Of 100 requests so many are reads of a block; the others are writes of one.
    pub reads_percent: u64,
    /// How a client's write is known ([`Origin`]).
    pub origin: Origin,
    /// Writes that are answered before anything is measured.
    pub warm_up: u64,
    /// Requests that are measured.
    pub requests: u64,
    /// A command to destage everything is under way all the time that is measured.
    pub destages: bool,
    /// Start of the random numbers.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// Requests answered in a second.
    pub per_second: f64,
    /// Reads answered in a second.
    pub reads_per_second: f64,
    /// Times in nanoseconds from the question to the answer, sorted.
    pub latencies_ns: Vec<u64>,
    /// Answers in each 10 ms, sorted.
    pub buckets: Vec<u64>,
    /// Bytes that the cache has got for each byte acknowledged since the beginning; 0 without a cache.
    pub to_cache: f64,
    /// How often a writer had to wait because the log was full.
    pub stalls: u64,
}

impl Figures {
    /// The time within which so many of 1000 requests were answered, in nanoseconds.
    pub fn within_ns(&self, per_mille: usize) -> u64 {
        let at = (self.latencies_ns.len() * per_mille / 1000).min(self.latencies_ns.len().saturating_sub(1));
        self.latencies_ns.get(at).copied().unwrap_or_default()
    }

    /// Answers in the worst 10 ms, as a share of those in the median 10 ms.
    pub fn evenness(&self) -> f64 {
        let median = self.buckets.get(self.buckets.len() / 2).copied().unwrap_or_default();
        self.buckets.first().copied().unwrap_or_default() as f64 / median.max(1) as f64
    }
}

struct Asked {
    at: Nanos,
    reads: bool,
}

/// See the module's documentation.
struct Clients {
    volume: Volume,
    load: Load,
    engine: Option<Engine>,
    devices: Vec<Device>,
    asked: HashMap<RequestId, Asked>,
    effects: Vec<Effect>,
    now: Nanos,
    answered_at: Nanos,
    next: u64,
    random: u64,
    zeroes: Buf,
    starts: bool,
    /// Requests answered.
    answered: u64,
    begun: Option<Nanos>,
    reads: u64,
    latencies_ns: Vec<u64>,
    buckets: Vec<u64>,
}

/// Runs clients on a fresh volume.
///
/// # Errors
/// [`ReplayError`].
pub fn closed_loop(volume: &Volume, load: &Load) -> Result<Figures, ReplayError> {
    let mut devices = Vec::new();
    let mut engine = None;
    if let Some(cache) = &volume.cache {
        let params = fresh(volume.bytes, cache.bytes, cache.align, &cache.settings)?;
        engine = Some(Engine::new(Params { backing_depth: volume.backing.depth(), ..params }));
        devices.push(model("cache", &cache.device, cache.bytes, true)?);
    }
    devices.push(model("backing", &volume.backing, volume.bytes, false)?);
    let clients = Clients {
        starts: engine.is_none(),
        volume: volume.clone(),
        load: *load,
        engine,
        devices,
        asked: HashMap::new(),
        effects: Vec::new(),
        now: Nanos(1),
        answered_at: Nanos(1),
        next: 0,
        random: load.seed,
        zeroes: Buf::zeroed(BLOCK_BYTES as usize),
        answered: 0,
        begun: None,
        reads: 0,
        latencies_ns: Vec::new(),
        buckets: Vec::new(),
    };
    clients.finish()
}

impl Clients {
    fn finish(mut self) -> Result<Figures, ReplayError> {
        let most = self.load.warm_up + self.load.requests;
        while self.answered < most {
            self.pump()?;
            if !(self.starts && self.ask()) {
                self.advance()?;
            }
        }
        let seconds = self.now.since(self.begun.unwrap_or(self.now)).max(1) as f64 / 1e9;
        let per_second = self.latencies_ns.len() as f64 / seconds;
        let reads_per_second = self.reads as f64 / seconds;
        // The last one has not ended.
        self.buckets.pop();
        self.buckets.sort_unstable();
        self.latencies_ns.sort_unstable();
        let status = self.engine.as_ref().map(|engine| engine.status(self.now)).unwrap_or_default();
        let to_cache = status.bytes_to_cache as f64 / status.bytes_acknowledged.max(1) as f64;
        let (latencies_ns, buckets, stalls) = (self.latencies_ns, self.buckets, status.stalls);
        Ok(Figures { per_second, reads_per_second, latencies_ns, buckets, to_cache, stalls })
    }

    /// A number below `bound` (SplitMix64).
    fn random(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    /// Whoever has an answer asks again; false if nobody has.
    fn ask(&mut self) -> bool {
        let some = (self.asked.len() as u64) < self.load.depth;
        while (self.asked.len() as u64) < self.load.depth {
            self.next += 1;
            let id = RequestId(self.next);
            let reads = self.begun.is_some() && self.random(100) < self.load.reads_percent;
            let offset = self.random(self.volume.bytes / BLOCK_BYTES) * BLOCK_BYTES;
            self.asked.insert(id, Asked { at: self.now, reads });
            let data = self.zeroes.clone();
            match &mut self.engine {
                Some(engine) => {
                    let op = match reads {
                        true => Op::Read { offset, len: BLOCK_BYTES as usize },
                        false => Op::Write { offset, data, fua: false },
                    };
                    engine.handle(Event::Request { id, op, origin: self.load.origin }, self.now);
                }
                None => {
                    let op = match reads {
                        true => DeviceOp::Read { offset, len: BLOCK_BYTES as usize },
                        false => DeviceOp::Write { offset, bufs: vec![data], durable: false },
                    };
                    self.devices[0].submit(IoId(id.0), &op, self.now);
                }
            }
        }
        some
    }

    fn answered(&mut self, id: RequestId) {
        let Some(asked) = self.asked.remove(&id) else { return };
        self.answered += 1;
        self.answered_at = self.now;
        let Some(begun) = self.begun else {
            if self.answered == self.load.warm_up {
                self.begun = Some(self.now);
                self.destage();
            }
            return;
        };
        self.reads += u64::from(asked.reads);
        self.latencies_ns.push(self.now.since(asked.at));
        let bucket = (self.now.since(begun) / BUCKET_NS) as usize;
        self.buckets.resize(self.buckets.len().max(bucket + 1), 0);
        self.buckets[bucket] += 1;
    }

    fn destage(&mut self) {
        if let Some(engine) = self.engine.as_mut().filter(|_| self.load.destages) {
            engine.handle(Event::Command { id: DESTAGE, command: Command::Destage }, self.now);
        }
    }

    /// Lets the engine say all that it has to say now.
    fn pump(&mut self) -> Result<(), ReplayError> {
        loop {
            let Some(engine) = &mut self.engine else { return Ok(()) };
            engine.poll(self.now, &mut self.effects);
            if self.effects.is_empty() {
                return Ok(());
            }
            for effect in std::mem::take(&mut self.effects) {
                match effect {
                    Effect::Io { id, role, op, .. } => self.devices[number(role)].submit(id, &op, self.now),
                    Effect::Reply { id, result } => {
                        result.map_err(|e| ReplayError::Failed(e.to_string()))?;
                        self.answered(id);
                    }
                    Effect::CommandDone { .. } => self.destage(),
                    Effect::Recovered(result) => {
                        result.map_err(|e| ReplayError::Failed(e.to_string()))?;
                        self.starts = true;
                    }
                    _ => {}
                }
            }
        }
    }

    /// Time passes to the next event.
    fn advance(&mut self) -> Result<(), ReplayError> {
        let wake = self.engine.as_ref().and_then(Engine::next_wake);
        let next = self.devices.iter().filter_map(Device::next_event).chain(wake).min();
        let Some(next) = next else { return Err(ReplayError::Failed("nothing is under way".into())) };
        self.now = self.now.max(next);
        if self.now.since(self.answered_at) > PATIENCE_NS {
            return Err(ReplayError::Failed("nothing was answered for a minute".into()));
        }
        for n in 0..self.devices.len() {
            for (id, data) in self.devices[n].ended(self.now) {
                match &mut self.engine {
                    Some(engine) => engine.handle(Event::Io { id, result: Ok(data) }, self.now),
                    None => self.answered(RequestId(id.0)),
                }
            }
        }
        Ok(())
    }
}
