//! A simulated device: a medium, a queue whose operations complete out of order, and faults.

use forebay_block::{BLOCK_BYTES, Buf, Commit, DeviceOp, DeviceResult, ErrorKind, IoError, Move, Nanos};
use forebay_emulate::Operation;
use forebay_engine::{IoId, Role};
use forebay_format::Layout;
use forebay_format::record::RecordHeader;

use crate::emulated::Emulated;
use crate::fault::{Effect, Fault, OpKind};
use crate::media::{Data, Media, Survival};
use crate::random::Random;
use crate::stamp::{self, Content, SECTOR};

mod remote;

pub use remote::Promise;
use remote::Remote;

/// What a fault that the device does not report has done to the volume's data on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Harm {
    /// Sectors of the volume of which a copy was harmed.
    pub sectors: Vec<u64>,
    /// Something else than the volume's data was harmed: headers, summaries.
    pub structure: bool,
    /// Where a record is missing lies one of the same number that a crash had torn: nothing tells it from the missing
    /// one with damaged data.
    pub hidden: bool,
    /// The device was reset: whatever no flush had covered is gone, `sectors` among it.
    pub reset: bool,
}

impl Harm {
    /// Adds what lay in `data` (whole sectors).
    pub fn add(&mut self, data: &[u8]) {
        for s in data.chunks_exact(SECTOR) {
            match stamp::read(s) {
                Content::Stamp { sector, .. } => self.sectors.push(sector),
                Content::Zero | Content::Foreign => self.structure = true,
            }
        }
    }
}

impl Harm {
    /// Adds the volume's blocks that the records in `data`, which lies at `offset` of the device, speak of: one that is
    /// lost may uncover what an earlier fault has left of them. A forged record may speak of billions beyond.
    fn add_records(&mut self, layout: &Layout, volume_bytes: u64, offset: u64, data: &[u8]) {
        let volume_blocks = volume_bytes.div_ceil(BLOCK_BYTES);
        for e in records(layout, offset, data).iter().flat_map(|h| &h.extents) {
            let blocks = e.block.0..(e.block.0 + u64::from(e.count)).min(volume_blocks);
            self.sectors.extend(blocks.map(|b| b * (BLOCK_BYTES / SECTOR as u64)));
        }
    }
}

/// The headers of records in `data`, which lies at `offset` of the device.
fn records(layout: &Layout, offset: u64, data: &[u8]) -> Vec<RecordHeader> {
    let place = (offset - Layout::SEGMENTS_OFFSET) % u64::from(layout.segment_bytes);
    (0..data.len())
        .step_by(layout.align as usize)
        .filter_map(|at| {
            let rest = &data[at..];
            let segment_seq = RecordHeader::segment_seq_of(rest)?;
            RecordHeader::decode(layout, segment_seq, place as u32 + at as u32, rest).ok()
        })
        .collect()
}

/// An operation that has not completed.
#[derive(Clone)]
pub struct InFlight {
    /// The engine's name for it.
    pub id: IoId,
    /// What is to be done.
    pub op: DeviceOp,
    effect: Option<Effect>,
    flush_mark: u64,
    /// How much later it completes than an emulated device says.
    late_ns: u64,
    /// The outcome of a read that the device carried out as soon as it arrived.
    early: Option<Buf>,
    /// It arrived when the world's counter of steps stood here.
    pub step: u64,
    /// What came of it when another host took the device over.
    fenced: Option<(DeviceResult, Harm)>,
}

/// How long operations take: `base + below(spread)`, with one in `tail_one_in` ten times as long.
#[derive(Clone, Copy, Debug)]
struct Latency {
    base_ns: u64,
    spread_ns: u64,
    tail_one_in: u64,
}

/// Numbers of faults that came to pass, by effect in the order of [`Effect::ALL`].
pub type EffectCounts = [u64; Effect::ALL.len()];

/// A device of the simulated world.
#[derive(Clone)]
pub struct Device {
    /// Which one.
    pub role: Role,
    /// What it holds.
    pub media: Media,
    /// What it is doing.
    pub in_flight: Vec<InFlight>,
    faults: Vec<Fault>,
    counts: [u64; OpKind::ALL.len()],
    latency: Latency,
    /// Decides in place of the latencies when operations complete.
    pub emulated: Option<Emulated>,
    random: Random,
    /// Bytes of the volume. On a backing the label lies behind them.
    pub volume_bytes: u64,
    /// The log that lies on the device, if it is a cache: a misdirected write lands within one of its segments.
    pub layout: Option<Layout>,
    /// Sectors that cannot be read until they are written again.
    pub unreadable: Vec<u64>,
    /// Faults that came to pass since the world began.
    pub effects: EffectCounts,
    /// Errors that were reported in this round, by kind of operation in the order of [`OpKind::ALL`].
    pub errors: [u64; OpKind::ALL.len()],
    /// What a store behind a network adds.
    remote: Remote,
}

impl Device {
    /// A device of `len` zero bytes from `start` on.
    pub fn new(role: Role, start: u64, len: usize) -> Self {
        Self {
            role,
            media: Media::new(start, len),
            in_flight: Vec::new(),
            faults: Vec::new(),
            counts: [0; OpKind::ALL.len()],
            latency: Latency { base_ns: 10_000, spread_ns: 1, tail_one_in: 0 },
            emulated: None,
            random: Random::new(0),
            volume_bytes: len as u64,
            layout: None,
            unreadable: Vec::new(),
            effects: EffectCounts::default(),
            errors: Default::default(),
            remote: Remote::default(),
        }
    }

    /// Makes it a new device.
    pub fn wipe(&mut self, len: usize) {
        self.media.wipe(0, len);
        // A run that a violation ended leaves some.
        self.in_flight.clear();
        self.emulated = None;
        self.unreadable.clear();
        self.effects = EffectCounts::default();
        self.errors = Default::default();
        self.remote.reset();
    }

    /// Prepares for a round: `seed` decides the latencies.
    pub fn start_round(&mut self, faults: &[Fault], seed: u64) {
        let label = match self.role {
            Role::Cache => 1,
            Role::Backing => 2,
            Role::Journal => 7,
        };
        self.random = Random::derived(seed, label);
        let (slowest_base, slowest_spread) = match self.role {
            Role::Cache => (20, 60),
            Role::Backing | Role::Journal => (400, 3000),
        };
        // Whole tens of microseconds, so that completions coincide and reach the engine before one poll.
        self.latency = Latency {
            base_ns: 10_000 * self.random.between(1, slowest_base / 10),
            spread_ns: 10_000 * self.random.between(1, slowest_spread / 10),
            tail_one_in: self.random.between(5, 60),
        };
        if let Some(emulated) = &mut self.emulated {
            let bytes = if self.role == Role::Backing { self.volume_bytes } else { self.media.end() };
            emulated.start_round(self.random.bits(), bytes);
        }
        self.faults = faults.iter().filter(|f| f.role == self.role).copied().collect();
        self.counts = Default::default();
        self.in_flight.clear();
        self.errors = Default::default();
    }

    /// Ends all faults of the round; what was unreadable can be read again.
    pub fn heal(&mut self) {
        self.faults.clear();
        self.unreadable.clear();
        self.end_session();
    }

    /// Takes an operation; returns after how long it completes.
    pub fn submit(&mut self, id: IoId, op: DeviceOp, step: u64) -> Nanos {
        let effect = self.effect_of(&op);
        let mut ns = self.latency.base_ns + self.random.below(self.latency.spread_ns / 10_000) * 10_000;
        if self.random.below(self.latency.tail_one_in) == 0 {
            ns *= 10;
        }
        match effect {
            Some(Effect::Slow) => ns *= 30,
            Some(Effect::Stuck) => ns += 2_000_000_000,
            Some(Effect::Late) => ns += 3_000_000_000,
            Some(Effect::Away) => ns += 5_000_000_000,
            _ => {}
        }
        let late = matches!(effect, Some(Effect::Slow | Effect::Stuck | Effect::Late | Effect::Away));
        let late_ns = if late { ns } else { 0 };
        let early = match &op {
            DeviceOp::Read { offset, len } if self.random.percent(50) && !self.is_unknown(*offset, *len) => {
                Some(self.media.read_buf(*offset, *len))
            }
            _ => None,
        };
        self.in_flight.push(InFlight {
            id,
            op,
            effect,
            flush_mark: self.media.flush_mark(),
            late_ns,
            early,
            step,
            fenced: self.refusal(),
        });
        Nanos(ns)
    }

    /// Hands the operation that was submitted last to the model; false if the device has none.
    pub fn emulate(&mut self, now: Nanos) -> bool {
        if let (Some(emulated), Some(io)) = (&mut self.emulated, self.in_flight.last()) {
            emulated.submit(io.id, Operation::from(&io.op), now);
        }
        self.emulated.is_some()
    }

    /// The operations that have ended by the model's account, and by how much later they complete.
    pub fn emulated_ends(&mut self, now: Nanos) -> Vec<(IoId, u64)> {
        let ended = self.emulated.as_mut().map(|e| e.look(now)).unwrap_or_default();
        let late_ns = |id| self.in_flight.iter().find(|io| io.id == id).map_or(0, |io| io.late_ns);
        ended.into_iter().map(|id| (id, late_ns(id))).collect()
    }

    fn effect_of(&mut self, op: &DeviceOp) -> Option<Effect> {
        let kind = OpKind::of(op);
        for (count, (counted, _)) in self.counts.iter_mut().zip(OpKind::ALL) {
            *count += u64::from(counted.covers(kind));
        }
        let counts = &self.counts;
        let nth = |on: OpKind| OpKind::ALL.iter().position(|(k, _)| *k == on).map_or(0, |i| counts[i]);
        let effect = self.faults.iter().find(|f| f.on.covers(kind) && f.hits(nth(f.on))).map(|f| f.effect)?;
        if effect.is_silent() && kind != OpKind::Write {
            return None;
        }
        if let Some(i) = Effect::ALL.iter().position(|(e, _)| *e == effect) {
            self.effects[i] += 1;
        }
        Some(effect)
    }

    /// Whether such a fault has come to pass since the world began.
    pub fn has_been(&self, effect: Effect) -> bool {
        Effect::ALL.iter().zip(self.effects).any(|((e, _), count)| *e == effect && count > 0)
    }

    /// A durable write of the host's that goes well, while nothing else is in flight.
    pub fn write_alone(&mut self, offset: u64, bytes: Buf) {
        if self.is_fenced() {
            return;
        }
        self.media.write(offset, Data::Bufs(vec![bytes]), true);
    }

    /// A durable write of the host's during which a crash comes.
    pub fn begin_alone(&mut self, offset: u64, bytes: Buf, step: u64) {
        let op = DeviceOp::Write { offset, bufs: vec![bytes], durable: true };
        let flush_mark = self.media.flush_mark();
        let (effect, late_ns, early, fenced) = (None, 0, None, self.refusal());
        self.in_flight.push(InFlight { id: IoId(0), op, effect, flush_mark, late_ns, early, step, fenced });
    }

    /// A durable write of the host's while the engine runs, carried out at once: faults that the device reports hit it.
    ///
    /// # Errors
    /// Those of the fault.
    pub fn write_with_faults(&mut self, offset: u64, bytes: Buf) -> Result<(), IoError> {
        if let Some((Err(error), _)) = self.refusal() {
            return Err(error);
        }
        let data = Data::Bufs(vec![bytes]);
        let op = DeviceOp::Write { offset, bufs: Vec::new(), durable: true };
        let effect = self.effect_of(&op).filter(|effect| !effect.is_silent());
        let error = effect.and_then(Effect::error);
        self.write(offset, data, error.is_none(), effect, &mut Harm::default());
        self.count_error(OpKind::Write, error.is_some());
        error.map_or(Ok(()), |kind| Err(IoError::new(kind, "simulated fault")))
    }

    fn count_error(&mut self, kind: OpKind, failed: bool) {
        for (count, (counted, _)) in self.errors.iter_mut().zip(OpKind::ALL) {
            *count += u64::from(failed && counted.covers(kind));
        }
    }

    /// Completes an operation: its outcome, and what a silent fault did.
    ///
    /// # Panics
    /// If it is not in flight.
    pub fn complete(&mut self, id: IoId) -> (DeviceResult, Harm) {
        let at = self.in_flight.iter().position(|i| i.id == id);
        let io = self.in_flight.swap_remove(at.unwrap_or_else(|| panic!("{id:?} is not in flight")));
        let kind = OpKind::of(&io.op);
        self.let_unknown_land();
        let (result, harm) = self.outcome(io);
        self.count_error(kind, result.is_err());
        (result, harm)
    }

    fn outcome(&mut self, mut io: InFlight) -> (DeviceResult, Harm) {
        if let Some(fenced) = io.fenced.take() {
            return fenced;
        }
        if io.effect == Some(Effect::Away) {
            io.effect = Some(if self.random.percent(50) { Effect::Eio } else { Effect::EioDone });
        }
        let mut harm = Harm::default();
        (self.carry_out(io, &mut harm), harm)
    }

    fn carry_out(&mut self, io: InFlight, harm: &mut Harm) -> DeviceResult {
        let error = io.effect.and_then(Effect::error);
        let done = error.is_none() || io.effect == Some(Effect::EioDone);
        let mut outcome = None;
        match io.op {
            DeviceOp::Read { offset, len } => {
                let sectors = offset / SECTOR as u64..(offset + len as u64) / SECTOR as u64;
                if self.unreadable.iter().any(|s| sectors.contains(s)) {
                    return Err(IoError::new(ErrorKind::Io, "simulated latent sector error"));
                }
                if self.keeps_read_from_guessing(offset, len) {
                    return Err(IoError::new(ErrorKind::Io, "simulated read of what may still change"));
                }
                outcome = io.early.or_else(|| Some(self.media.read_buf(offset, len)));
            }
            DeviceOp::Write { offset, bufs, durable } => {
                self.write(offset, Data::Bufs(bufs), durable && error.is_none(), io.effect, harm);
            }
            DeviceOp::Zero { offset, len, .. } => {
                self.write(offset, Data::Zeroes(len as usize), false, io.effect, harm);
            }
            DeviceOp::Commit(commit) if error.is_none() => self.commit(*commit),
            // An error says that nothing of it was done.
            DeviceOp::Commit(_) => {}
            DeviceOp::Flush if done && self.keeps_flush_from_lying() => {
                self.media.fail_flush(io.flush_mark, false);
                return Err(IoError::new(ErrorKind::Io, "simulated flush over a write of unknown outcome"));
            }
            DeviceOp::Flush if done => self.media.flush(io.flush_mark),
            DeviceOp::Flush => {
                harm.reset = io.effect == Some(Effect::Reset);
                if harm.reset {
                    for (offset, data) in self.media.volatile() {
                        harm.add(&data);
                        // A block of zeroes carries no stamp; the record that it belongs to says whose it is.
                        if let Some(layout) =
                            self.layout.as_ref().filter(|_| offset >= Layout::SEGMENTS_OFFSET)
                        {
                            harm.add_records(layout, self.volume_bytes, offset, &data);
                        }
                    }
                }
                self.media.fail_flush(io.flush_mark, harm.reset);
            }
        }
        match error {
            Some(kind) => Err(IoError::new(kind, "simulated fault")),
            None => Ok(outcome),
        }
    }

    /// Carries out a commit, durably.
    fn commit(&mut self, commit: Commit) {
        for Move { from, to, len } in commit.moves {
            let moved = self.media.read_buf(from, len as usize);
            self.media.write(to, Data::Bufs(vec![moved]), true);
            self.media.write(from, Data::Zeroes(len as usize), true);
        }
        for (offset, len) in commit.zeroes {
            self.media.write(offset, Data::Zeroes(len as usize), true);
        }
        self.media.write(commit.head_offset, Data::Bufs(vec![commit.head]), true);
    }

    /// The commits in flight that may still be carried out, wholly or not at all.
    fn commits_in_flight(&mut self) -> Vec<Commit> {
        let reaches = |io: &mut InFlight| {
            matches!(io.op, DeviceOp::Commit(_)) && io.effect.and_then(Effect::error).is_none()
        };
        let under_way = self.in_flight.extract_if(.., reaches);
        let commit = |io: InFlight| if let DeviceOp::Commit(commit) = io.op { Some(*commit) } else { None };
        under_way.filter_map(commit).collect()
    }

    fn write(&mut self, offset: u64, data: Data, durable: bool, effect: Option<Effect>, harm: &mut Harm) {
        match effect {
            Some(Effect::Eio | Effect::NoSpace | Effect::Reset | Effect::Away) => {}
            Some(Effect::Late) => self.forget_outcome(offset, &data),
            Some(Effect::EioTorn) => {
                for (i, sector) in data.flat().chunks_exact(SECTOR).enumerate() {
                    if self.random.percent(50) {
                        let at = offset + (i * SECTOR) as u64;
                        self.media.write(at, Data::Bufs(vec![Buf::copy_of(sector)]), false);
                    }
                }
            }
            Some(Effect::Lost) => self.harm(offset, &data.flat(), harm),
            Some(Effect::Misdirected) => {
                self.harm(offset, &data.flat(), harm);
                // Within one segment: a single fault does not damage two of them.
                let segment_bytes = self.layout.map_or(64 << 10, |l| u64::from(l.segment_bytes));
                let segments = (self.media.end() - Layout::SEGMENTS_OFFSET) / segment_bytes;
                let segment = Layout::SEGMENTS_OFFSET + self.random.below(segments) * segment_bytes;
                let room = segment_bytes - (data.len() as u64).min(segment_bytes);
                let elsewhere = segment + self.random.below(room / 4096 + 1) * 4096;
                harm.add(self.media.read(elsewhere, data.len()));
                if let Some(layout) = &self.layout {
                    // It may hit data without a stamp: then any block of the segment may be the one.
                    harm.add_records(
                        layout,
                        self.volume_bytes,
                        segment,
                        self.media.read(segment, segment_bytes as usize),
                    );
                }
                self.media.write(elsewhere, data, durable);
            }
            None | Some(Effect::EioDone | Effect::Slow | Effect::Stuck) => {
                let sectors = offset / SECTOR as u64..(offset + data.len() as u64) / SECTOR as u64;
                self.unreadable.retain(|s| !sectors.contains(s));
                self.supersede_unknown(offset, data.len());
                self.media.write(offset, data, durable);
            }
        }
    }

    /// Notes that `data`, which was to lie at `offset`, does not lie there.
    fn harm(&self, offset: u64, data: &[u8], harm: &mut Harm) {
        harm.add(data);
        if let Some(layout) = &self.layout {
            harm.add_records(layout, self.volume_bytes, offset, data);
            let there = self.media.read(offset, data.len());
            let (missing, torn) = (records(layout, offset, data), records(layout, offset, there));
            if torn.iter().any(|t| missing.iter().any(|m| m.seq == t.seq && m.segment_seq == t.segment_seq)) {
                harm.add_records(layout, self.volume_bytes, offset, there);
                harm.hidden = true;
            }
        }
    }

    /// The writes in flight that may still reach the medium.
    pub fn writes_in_flight(&mut self) -> Vec<(u64, Data)> {
        let reaches = |e: Option<Effect>| match e {
            Some(Effect::Away | Effect::Late) | None => true,
            Some(e) => e.error().is_none() && !e.is_silent(),
        };
        let unknown = self.unknown_at_death();
        self.in_flight
            .drain(..)
            .filter(|io| reaches(io.effect) && io.fenced.is_none())
            .filter_map(|io| match io.op {
                DeviceOp::Write { offset, bufs, .. } => Some((offset, Data::Bufs(bufs))),
                DeviceOp::Zero { offset, len, .. } => Some((offset, Data::Zeroes(len as usize))),
                _ => None,
            })
            .chain(unknown)
            .collect()
    }

    /// Each commit in flight is carried out wholly, or not at all.
    fn settle_commits(&mut self, choose: &mut dyn FnMut(usize) -> usize) {
        for commit in self.commits_in_flight() {
            if choose(2) == 1 {
                self.commit(commit);
            }
        }
    }

    /// The engine's process dies, the device lives on: each write in flight lands wholly or not at all.
    pub fn lose_client(&mut self, random: &mut Random) {
        self.settle_commits(&mut |_| usize::from(random.percent(50)));
        let mut writes = self.writes_in_flight();
        random.shuffle(&mut writes);
        for (offset, data) in writes {
            if random.percent(50) {
                self.media.write(offset, data, false);
            }
        }
        self.media.forgive();
    }

    /// As [`Device::lose_client`], with every outcome to be seen.
    pub fn lose_client_by_choice(&mut self, choose: &mut dyn FnMut(usize) -> usize) {
        self.settle_commits(choose);
        for (offset, data) in self.writes_in_flight() {
            if choose(2) == 1 {
                self.media.write(offset, data, false);
            }
        }
        self.media.forgive();
    }

    /// As [`Device::cut`], with every outcome to be seen.
    pub fn cut_by_choice(&mut self, choose: &mut dyn FnMut(usize) -> usize) {
        self.settle_commits(choose);
        let writes = self.writes_in_flight();
        self.media.cut_by_choice(writes, choose);
    }

    /// A power cut.
    pub fn cut(&mut self, survival: Survival, random: &mut Random) {
        self.settle_commits(&mut |_| usize::from(random.percent(50)));
        let mut writes = self.writes_in_flight();
        random.shuffle(&mut writes);
        self.media.cut_at_random(writes, survival, random);
    }
}

#[cfg(test)]
mod tests;
