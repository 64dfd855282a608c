//! A replay: clients, engine and devices, one event after the other.

use std::collections::HashMap;

use forebay_block::{Buf, Nanos, Op, STATUS_EXTENTS_MAX};
use forebay_emulate::{BadSetting, Settings as Model};
use forebay_engine::{Effect, Engine, Event, Params, RequestId, Role, Status};
use forebay_format::Layout;
use forebay_format::journal::{Head, JOURNAL_RING_OFFSET};
use forebay_policy::{Settings, WritePolicy};
use thiserror::Error;

use crate::client::{Action, Client};
use crate::device::Device;
use crate::request_log::{Kind, Request};
use crate::trace::{Step, Trace};

/// Wall-clock time of the beginning, nanoseconds since 1970.
const EPOCH_NS: u64 = 1_700_000_000_000_000_000;
/// Staleness is looked at so often.
const LOOK_EVERY_MS: u64 = 10;
/// Virtual time without any answer after which a replay is given up.
const PATIENCE_NS: u64 = 60_000_000_000;
/// The ring of the journal on the backing's side, as `serve` makes it.
const RING_BYTES: u64 = 128 << 20;
const BLOCK_BYTES: u64 = 4096;

/// The volume on which a trace is replayed.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its policies.
    pub settings: Settings,
    /// Size of the cache device in bytes.
    pub cache_bytes: u64,
    /// The cache device.
    pub cache: Model,
    /// The backing, and the journal on its side, which is a device of its own.
    pub backing: Model,
    /// Requests that each client has under way at most, above 0; a trace that says what waited for what has no such limit.
    pub depth: usize,
}

/// What came of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Requests answered: reads, writes, trims and flushes.
    pub requests: u64,
    /// Virtual time that they took, in seconds.
    pub seconds: f64,
    /// The most that the backing was behind, in seconds.
    pub stale_seconds: f64,
    /// The same in bytes.
    pub stale_bytes: f64,
    /// Bytes of writes acknowledged.
    pub bytes_acknowledged: u64,
    /// Bytes that the backing has got.
    pub bytes_to_backing: u64,
    /// Bytes that the journal on the backing's side has got.
    pub bytes_to_journal: u64,
}

impl Outcome {
    /// Requests a second.
    pub fn per_second(&self) -> f64 {
        self.requests as f64 / self.seconds.max(1e-9)
    }
}

/// Why there is no outcome.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// A model cannot be made.
    #[error("the {0} cannot be modelled: {1}")]
    Model(&'static str, BadSetting),
    /// No log fits the cache.
    #[error("a cache of {} is too small for a log: take a trace that touches more, or a larger cache", forebay_block::size::show(*.0))]
    Cache(u64),
    /// The volume does not start, or a request fails: an error of the engine, for devices are well here.
    #[error("the replay has failed: {0}; please report this with the trace")]
    Failed(String),
}

struct Run<'a> {
    engine: Engine,
    devices: [Device; 3],
    clients: Vec<Client<'a>>,
    /// Whose a request is, and which step.
    asked: HashMap<RequestId, (usize, usize)>,
    effects: Vec<Effect>,
    now: Nanos,
    answered_at: Nanos,
    look_at: Nanos,
    outcome: Outcome,
    zeroes: Buf,
    /// The volume has started.
    starts: bool,
}

pub(crate) fn number(role: Role) -> usize {
    match role {
        Role::Cache => 0,
        Role::Backing => 1,
        Role::Journal => 2,
    }
}

fn ring_bytes(layout: &Layout) -> u64 {
    RING_BYTES.max(4 * u64::from(layout.segment_bytes))
}

/// A volume of so many bytes that has just been made.
pub(crate) fn fresh(
    volume_bytes: u64,
    cache_bytes: u64,
    align: u32,
    settings: &Settings,
) -> Result<Params, ReplayError> {
    let (segment_bytes, segment_count) =
        Layout::geometry_for(cache_bytes).ok_or(ReplayError::Cache(cache_bytes))?;
    let layout = Layout { cache_id: [1; 16], generation: 1, align, segment_bytes, segment_count };
    let head = Head::new([2; 16], layout.cache_id, volume_bytes, ring_bytes(&layout));
    let head = Head { update: 1, generation: 1, ..head };
    Ok(Params {
        layout,
        volume_bytes,
        settings: *settings,
        wall_offset_ns: EPOCH_NS,
        clean_stop: false,
        journal: (settings.write_policy == WritePolicy::Journaled).then_some(head),
        prepared: None,
        commits_in_place: false,
        journal_left: false,
        backing_depth: 128,
        backing_unit_bytes: None,
        backing_forgets: false,
        read_only: false,
    })
}

/// A modelled device; if it does not `keep` data, it reads as zeroes.
pub(crate) fn model(
    name: &'static str,
    model: &Model,
    bytes: u64,
    keep: bool,
) -> Result<Device, ReplayError> {
    Device::new(model, bytes, keep).map_err(|e| ReplayError::Model(name, e))
}

/// What a request asks the engine for. `zeroes` is at least as long as any write.
fn op(request: &Request, zeroes: &Buf) -> Op {
    let Request { kind, offset, len, .. } = *request;
    match kind {
        Kind::Read => Op::Read { offset, len: len as usize },
        Kind::Write { fua } => Op::Write { offset, data: zeroes.slice(0, len as usize), fua },
        Kind::Flush => Op::Flush,
        Kind::Zero { unmap, fua } => Op::Zero { offset, len, unmap, fua },
        Kind::Status => Op::Status { offset, len, extents_max: STATUS_EXTENTS_MAX },
    }
}

/// Replays traces, each by a client of its own, on a fresh volume.
///
/// # Errors
/// [`ReplayError`].
pub fn replay(traces: &[Trace], setup: &Setup) -> Result<Outcome, ReplayError> {
    let volume_bytes = traces.iter().map(|t| t.volume_bytes).max().unwrap_or(0).next_multiple_of(BLOCK_BYTES);
    let mut params = fresh(volume_bytes, setup.cache_bytes, 4096, &setup.settings)?;
    params.backing_depth = setup.backing.depth();
    let journal_bytes = JOURNAL_RING_OFFSET + ring_bytes(&params.layout);
    let devices = [
        model("cache", &setup.cache, setup.cache_bytes, true)?,
        model("backing", &setup.backing, volume_bytes, false)?,
        model("journal", &setup.backing, journal_bytes, false)?,
    ];
    let requests = traces.iter().flat_map(|t| &t.steps).filter_map(Step::request);
    let most = requests.filter(|r| matches!(r.kind, Kind::Write { .. })).map(|r| r.len).max();
    Run {
        engine: Engine::new(params),
        devices,
        clients: traces.iter().map(|t| Client::new(t, setup.depth)).collect(),
        asked: HashMap::new(),
        effects: Vec::new(),
        now: Nanos(1),
        answered_at: Nanos(1),
        look_at: Nanos(1),
        outcome: Outcome::default(),
        zeroes: Buf::zeroed(most.unwrap_or(0) as usize),
        starts: false,
    }
    .finish()
}

impl Run<'_> {
    fn finish(mut self) -> Result<Outcome, ReplayError> {
        while !self.starts {
            self.pump()?;
            self.advance()?;
        }
        let begun = self.now;
        loop {
            self.pump()?;
            // What is answered at once lets a client go on at once.
            if self.ask() {
                continue;
            }
            if self.clients.iter().all(Client::is_done) {
                break;
            }
            self.advance()?;
        }
        let status = self.engine.status(self.now);
        self.look(&status);
        self.outcome.seconds = self.now.since(begun) as f64 / 1e9;
        self.outcome.bytes_acknowledged = status.bytes_acknowledged;
        self.outcome.bytes_to_backing = self.devices[1].written;
        self.outcome.bytes_to_journal = self.devices[2].written;
        Ok(self.outcome)
    }

    /// Each client does what it may; false if none may do anything.
    fn ask(&mut self) -> bool {
        let mut some = false;
        for (n, client) in self.clients.iter_mut().enumerate() {
            while let Some(action) = client.next() {
                some = true;
                let event = match action {
                    Action::Promote { offset, len } => Event::Promote { offset, len },
                    Action::Ask(step, request) => {
                        let id = RequestId(self.outcome.requests + self.asked.len() as u64 + 1);
                        self.asked.insert(id, (n, step));
                        Event::Request { id, op: op(&request, &self.zeroes), origin: request.origin }
                    }
                };
                self.engine.handle(event, self.now);
            }
        }
        some
    }

    /// Lets the engine say all that it has to say now.
    fn pump(&mut self) -> Result<(), ReplayError> {
        loop {
            self.engine.poll(self.now, &mut self.effects);
            if self.effects.is_empty() {
                return Ok(());
            }
            for effect in std::mem::take(&mut self.effects) {
                match effect {
                    Effect::Io { id, role, op, .. } => self.devices[number(role)].submit(id, &op, self.now),
                    Effect::Reply { id, result } => {
                        result.map_err(|e| ReplayError::Failed(e.to_string()))?;
                        if let Some((client, step)) = self.asked.remove(&id) {
                            self.clients[client].answered(step);
                            self.outcome.requests += 1;
                            self.answered_at = self.now;
                        }
                    }
                    Effect::Recovered(Ok(_)) => self.starts = true,
                    Effect::Recovered(Err(e)) => return Err(ReplayError::Failed(e.to_string())),
                    Effect::RetireLog { .. } => {
                        return Err(ReplayError::Failed("the cache is taken for failed".into()));
                    }
                    Effect::Admitted { .. }
                    | Effect::CommandDone { .. }
                    | Effect::Marked { .. }
                    | Effect::CommonDone { .. } => {}
                }
            }
        }
    }

    /// Time passes to the next event.
    fn advance(&mut self) -> Result<(), ReplayError> {
        let devices = self.devices.iter().filter_map(Device::next_event);
        let next = devices.chain(self.engine.next_wake()).chain([self.look_at]).min();
        self.now = self.now.max(next.unwrap_or(self.now));
        if self.now.since(self.answered_at) > PATIENCE_NS {
            return Err(ReplayError::Failed("nothing was answered for a minute".into()));
        }
        if self.now >= self.look_at {
            let status = self.engine.status(self.now);
            self.look(&status);
            self.look_at = self.now.plus_ms(LOOK_EVERY_MS);
        }
        for device in &mut self.devices {
            for (id, data) in device.ended(self.now) {
                self.engine.handle(Event::Io { id, result: Ok(data) }, self.now);
            }
        }
        Ok(())
    }

    fn look(&mut self, status: &Status) {
        let oldest_ns = status.oldest_missing_ns.map_or(0, |t| (EPOCH_NS + self.now.0).saturating_sub(t));
        let outcome = &mut self.outcome;
        outcome.stale_seconds = outcome.stale_seconds.max(oldest_ns as f64 / 1e9);
        outcome.stale_bytes = outcome.stale_bytes.max(status.missing_bytes as f64);
    }
}
