//! Two devices in memory, a clock, and a model of what each sector may hold.

use std::collections::BTreeMap;

use forebay_block::{Buf, BufMut, DeviceOp, ErrorKind, IoError, Nanos, Op, Origin, Reply};
use forebay_engine::{Command, Effect, Engine, Event, IoId, Params, RequestId, Role, Status};
use forebay_format::Layout;
use forebay_format::journal::{Head, JOURNAL_RING_OFFSET};
use forebay_policy::{Settings, WritePolicy};

pub fn settings() -> Settings {
    Settings::default()
}

/// What a sector holds: newest acknowledged stamp, and stamps of writes that may or may not have happened.
#[derive(Clone, Default)]
struct Sector {
    acknowledged: u64,
    possible: Vec<u64>,
}

/// Of the journal on the backing's side.
const RING_BYTES: u64 = 16 << 20;

pub struct World {
    engine: Engine,
    params: Params,
    cache: Vec<u8>,
    backing: Vec<u8>,
    /// On the backing's side, under `journaled`.
    journal: Vec<u8>,
    now: Nanos,
    rng: u64,
    ios: Vec<(IoId, Role, DeviceOp)>,
    sectors: Vec<Sector>,
    requests: BTreeMap<u64, (Op, u64)>,
    answers: BTreeMap<u64, Result<Reply, IoError>>,
    commands: BTreeMap<u64, Result<(), IoError>>,
    next_id: u64,
    next_stamp: u64,
    recovered: bool,
    pub check_reads: bool,
    /// What requests come from.
    pub origin: Origin,
    /// The cache answers writes with an error.
    pub cache_fails: bool,
    /// How often the log was to be retired; nobody can record it.
    pub retirements: u64,
    retiring: Option<IoId>,
    /// The backing answers writes with an error.
    pub backing_fails: bool,
    /// The backing's flushes fail.
    pub flushes_fail: bool,
    /// Another host has taken over the backing and the journal on its side.
    pub backing_fenced: bool,
    /// The backing ends nothing.
    pub backing_rests: bool,
    /// While nothing is under way no time passes.
    pub clock_rests: bool,
    /// Reads of damaged blocks may fail.
    pub errors_expected: bool,
    /// Why recovery has refused, where errors are expected.
    pub refused: Option<String>,
    /// Most segments that were being read as a whole at the same time while it recovered.
    pub whole_segments_max: usize,
    /// A byte of the cache that cannot be read until it is written again.
    pub unreadable: Option<usize>,
    /// Summaries of segments cannot be read alone, only with all of their segment.
    pub summaries_unreadable: bool,
}

impl World {
    pub fn new(seed: u64, settings: Settings, volume_blocks: u64, segments: u32) -> Self {
        let align = if seed.is_multiple_of(2) { 512 } else { 4096 };
        let layout = Layout {
            cache_id: [7; 16],
            generation: 1,
            align,
            segment_bytes: 128 << 10,
            segment_count: segments,
        };
        let volume_bytes = volume_blocks * 4096 - (seed % 7) * 512;
        let ring = RING_BYTES * u64::from(settings.write_policy == WritePolicy::Journaled);
        let params = Params {
            layout,
            volume_bytes,
            settings,
            wall_offset_ns: 1 << 60,
            clean_stop: false,
            journal: (ring > 0).then(|| Head::new([8; 16], layout.cache_id, volume_bytes, ring)),
            prepared: None,
            commits_in_place: false,
            journal_left: false,
            backing_depth: 256,
            backing_unit_bytes: None,
            backing_forgets: false,
            read_only: false,
        };
        let mut world = Self {
            engine: Engine::new(params.clone()),
            params,
            cache: vec![0; layout.cache_bytes() as usize],
            backing: vec![0; volume_bytes as usize],
            journal: vec![0; (JOURNAL_RING_OFFSET + ring) as usize],
            now: Nanos(0),
            rng: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            ios: Vec::new(),
            sectors: vec![Sector::default(); (volume_bytes / 512) as usize],
            requests: BTreeMap::new(),
            answers: BTreeMap::new(),
            commands: BTreeMap::new(),
            next_id: 0,
            next_stamp: 0,
            recovered: false,
            check_reads: true,
            origin: Origin::default(),
            cache_fails: false,
            retirements: 0,
            retiring: None,
            backing_fails: false,
            flushes_fail: false,
            backing_fenced: false,
            backing_rests: false,
            clock_rests: false,
            errors_expected: false,
            unreadable: None,
            summaries_unreadable: false,
            refused: None,
            whole_segments_max: 0,
        };
        world.recover();
        world
    }

    fn random(&mut self, n: u64) -> u64 {
        self.rng ^= self.rng << 13;
        self.rng ^= self.rng >> 7;
        self.rng ^= self.rng << 17;
        self.rng.wrapping_mul(0x2545_F491_4F6C_DD1D) % n
    }

    fn recover(&mut self) {
        self.recovered = false;
        while !self.recovered {
            self.step();
        }
    }

    /// Kills the process (what is in flight happens or not, at random) or starts after a clean stop.
    pub fn restart(&mut self, clean: bool) {
        self.restart_unread(clean);
        self.read_everything();
    }

    /// As `restart`, without reading everything back.
    pub fn restart_unread(&mut self, clean: bool) {
        for (_, role, op) in std::mem::take(&mut self.ios) {
            if self.random(2) == 0 {
                self.perform(role, &op);
            }
        }
        self.requests.clear();
        self.params.layout.generation += 1;
        self.params.clean_stop = clean;
        self.engine = Engine::new(self.params.clone());
        self.recover();
    }

    /// Kills the process, or stops it cleanly, and only looks at what it has left.
    pub fn restart_read_only(&mut self, clean: bool) {
        self.params.read_only = true;
        self.params.journal_left = self.params.journal.take().is_some();
        self.restart_unread(clean);
    }

    /// What is on the devices.
    pub fn media(&self) -> [Vec<u8>; 3] {
        [self.cache.clone(), self.backing.clone(), self.journal.clone()]
    }

    /// Starts as ever after that.
    pub fn restart_for_writing(&mut self) {
        self.params.read_only = false;
        // Nothing says that there was a run.
        self.params.layout.generation -= 1;
        self.restart_unread(self.params.clean_stop);
    }

    /// Kills the process and starts it without its journal, which the label knows to be `left` or not.
    pub fn restart_without_journal(&mut self, write_policy: WritePolicy, left: bool) {
        self.params.journal = None;
        self.params.journal_left = left;
        self.params.settings.write_policy = write_policy;
        self.restart_unread(false);
    }

    /// Flips a bit in every sector of every segment, under the running engine.
    pub fn damage_all_segments(&mut self) {
        self.cache[1 << 20..].iter_mut().step_by(512).for_each(|b| *b ^= 1);
    }

    /// Flips a bit in the cache's copy of a sector as the newest write left it.
    pub fn damage_newest(&mut self, offset: u64) {
        let at = self.place_of_newest(offset);
        self.cache[at + 100] ^= 1;
    }

    /// Where the cache has a sector as the newest write left it.
    pub fn place_of_newest(&self, offset: u64) -> usize {
        let mut sector = [0; 512];
        stamp(&mut sector, offset / 512, self.next_stamp);
        512 * self.cache.chunks_exact(512).position(|s| s == sector).unwrap()
    }

    /// Which write the backing's copy of a sector is of.
    pub fn stamp_at_backing(&self, offset: u64) -> u64 {
        u64::from_le_bytes(self.backing[offset as usize + 8..][..8].try_into().unwrap())
    }

    pub fn read_everything(&mut self) {
        let mut offset = 0;
        while offset < self.params.volume_bytes {
            let len = (self.params.volume_bytes - offset).min(64 << 10) as usize;
            let id = self.submit(Op::Read { offset, len });
            self.run_until_answered(id).unwrap();
            offset += len as u64;
        }
        // What a read after the crash has returned is from now on the only possibility; `checked` has seen to that.
        assert!(self.sectors.iter().all(|s| s.possible.is_empty()));
    }

    pub fn submit(&mut self, op: Op) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        self.requests.insert(id, (op.clone(), self.next_stamp));
        self.engine.handle(Event::Request { id: RequestId(id), op, origin: self.origin }, self.now);
        id
    }

    /// One in four asks for force unit access.
    pub fn write(&mut self, offset: u64, len: usize) -> u64 {
        let fua = self.random(4) == 0;
        self.write_as(offset, len, fua)
    }

    pub fn write_as(&mut self, offset: u64, len: usize, fua: bool) -> u64 {
        self.next_stamp += 1;
        let mut data = BufMut::zeroed(len);
        for (n, sector) in data.chunks_exact_mut(512).enumerate() {
            stamp(sector, offset / 512 + n as u64, self.next_stamp);
        }
        for n in 0..len as u64 / 512 {
            self.sectors[(offset / 512 + n) as usize].possible.push(self.next_stamp);
        }
        self.submit(Op::Write { offset, data: data.freeze(), fua })
    }

    pub fn zero(&mut self, offset: u64, len: u64) -> u64 {
        // A zero is a write of stamp 0 that remembers its turn in the high bit.
        for n in 0..len / 512 {
            self.sectors[(offset / 512 + n) as usize].possible.push(0);
        }
        self.submit(Op::Zero { offset, len, unmap: true, fua: false })
    }

    pub fn traffic(&mut self, count: u64) {
        for _ in 0..count {
            let sectors = self.params.volume_bytes / 512;
            let len = [1, 1, 3, 8, 8, 8, 8, 16, 40, 256][self.random(10) as usize].min(sectors);
            let mut at = self.random(sectors - len + 1);
            if self.random(3) > 0 {
                at -= at % 8;
            }
            let busy = |w: &Self| {
                w.requests.values().any(|(op, _)| {
                    let (o, l) = span(op);
                    at * 512 < o + l && o < (at + len) * 512
                })
            };
            while busy(self) {
                self.step();
            }
            match self.random(10) {
                0..6 => self.write(at * 512, (len * 512) as usize),
                6 => self.zero(at * 512, len * 512),
                7 => self.submit(Op::Flush),
                _ => self.submit(Op::Read { offset: at * 512, len: (len * 512) as usize }),
            };
            for _ in 0..self.random(6) {
                self.step();
            }
        }
    }

    /// `depth` writers of one block each, every one of which writes again a moment after it has been answered.
    pub fn closed_loop(&mut self, depth: u64, count: u64) {
        let mut writers: Vec<u64> = Vec::new();
        for n in 0..count {
            while writers.len() as u64 >= depth {
                self.step();
                writers.retain(|id| self.answers.remove(id).is_none());
            }
            writers.push(self.write((n % 61) * 4096, 4096));
        }
    }

    pub fn run_until_answered(&mut self, id: u64) -> Result<Reply, IoError> {
        for _ in 0..1_000_000 {
            if let Some(answer) = self.answers.remove(&id) {
                return answer;
            }
            self.step();
        }
        panic!("request {id} is not answered: {:?}", self.engine.status(self.now));
    }

    pub fn is_answered(&self, id: u64) -> bool {
        self.answers.contains_key(&id)
    }

    /// Requests that were not answered yet.
    pub fn waiting(&self) -> usize {
        self.requests.len()
    }

    /// Lets the world go on for a while.
    pub fn run(&mut self, steps: u32) {
        (0..steps).for_each(|_| self.step());
    }

    /// Gives a command without waiting for its end.
    pub fn begin(&mut self, command: Command) -> u64 {
        self.next_id += 1;
        self.engine.handle(Event::Command { id: RequestId(self.next_id), command }, self.now);
        self.next_id
    }

    pub fn command(&mut self, command: Command) -> Result<(), IoError> {
        let id = self.begin(command.clone());
        for _ in 0..1_000_000 {
            if let Some(answer) = self.commands.remove(&id) {
                return answer;
            }
            self.step();
        }
        panic!("{command:?} does not end: {:?}", self.engine.status(self.now));
    }

    /// The time that the engine was told last, or will be next.
    pub fn now(&self) -> Nanos {
        self.now
    }

    pub fn pass_ms(&mut self, ms: u64) {
        self.now = self.now.plus_ms(ms);
    }

    pub fn next_wake(&self) -> Option<Nanos> {
        self.engine.next_wake()
    }

    pub fn status(&self) -> Status {
        self.engine.status(self.now)
    }

    /// The host knows without an operation that another one has taken the backing over.
    pub fn fence(&mut self) {
        self.engine.handle(Event::Fenced, self.now);
    }

    /// What comes of a command, if it has been answered.
    pub fn outcome(&self, command: u64) -> Option<&Result<(), IoError>> {
        self.commands.get(&command)
    }

    /// Operations under way, once the engine has been asked what is to be done.
    pub fn ios(&mut self) -> usize {
        self.poll();
        self.ios.len()
    }

    /// A hint that somebody waits.
    pub fn promote(&mut self, offset: u64, len: u64) {
        self.engine.handle(Event::Promote { offset, len }, self.now);
    }

    /// Where the backing is being written or read, once the engine has been asked what is to be done; nothing ends.
    pub fn at_backing(&mut self) -> Vec<u64> {
        self.poll();
        let backing = self.ios.iter().filter(|(_, role, _)| *role == Role::Backing);
        backing
            .filter_map(|(.., op)| match op {
                DeviceOp::Read { offset, .. } | DeviceOp::Write { offset, .. } => Some(*offset),
                _ => None,
            })
            .collect()
    }

    /// Flushes of the backing that are under way; nothing ends.
    pub fn flushes_at_backing(&mut self) -> usize {
        self.poll();
        self.ios
            .iter()
            .filter(|(_, role, op)| *role == Role::Backing && matches!(op, DeviceOp::Flush))
            .count()
    }

    /// Whether the cache is being read.
    pub fn is_reading_cache(&self) -> bool {
        self.ios.iter().any(|(_, role, op)| *role == Role::Cache && matches!(op, DeviceOp::Read { .. }))
    }

    /// Ends the operation of the backing that was started first.
    pub fn end_at_backing(&mut self) {
        self.end_first(Role::Backing);
    }

    /// Ends the one that was started last.
    pub fn end_newest_at_backing(&mut self) {
        let at = self.ios.iter().rposition(|(_, role, _)| *role == Role::Backing).unwrap();
        self.end(at);
    }

    /// Units of the log that each write to the cache has which is under way, once the engine has been asked what is to be done;
    /// nothing ends.
    pub fn writes_to_cache(&mut self) -> Vec<u64> {
        self.poll();
        let cache = self.ios.iter().filter(|(_, role, _)| *role == Role::Cache);
        let writes = cache.filter(|(.., op)| matches!(op, DeviceOp::Write { .. }));
        writes.map(|(.., op)| op.write_bytes() / u64::from(self.params.layout.align)).collect()
    }

    /// Whether one of them must survive a power cut when it ends.
    pub fn writes_to_cache_durably(&self) -> bool {
        let durably = |op: &DeviceOp| matches!(op, DeviceOp::Write { durable: true, .. });
        self.ios.iter().any(|(_, role, op)| *role == Role::Cache && durably(op))
    }

    /// Ends the operation of the cache that was started first.
    pub fn end_at_cache(&mut self) {
        self.end_first(Role::Cache);
    }

    /// Ends whatever the cache is doing, and what follows from that there.
    pub fn end_all_at_cache(&mut self) {
        self.poll();
        while self.ios.iter().any(|(_, role, _)| *role == Role::Cache) {
            self.end_at_cache();
            self.poll();
        }
    }

    fn end_first(&mut self, of: Role) {
        let at = self.ios.iter().position(|(_, role, _)| *role == of).unwrap();
        self.end(at);
    }

    /// One poll, then one completion at random; the clock moves if nothing else does.
    fn step(&mut self) {
        self.poll();
        if let Some(id) = self.retiring.take() {
            let result = Err(IoError::new(ErrorKind::Io, "label"));
            self.engine.handle(Event::Io { id, result }, self.now);
            return;
        }
        let ending = |(_, (_, role, _)): &(usize, &(IoId, Role, DeviceOp))| {
            !self.backing_rests || *role != Role::Backing
        };
        let ending: Vec<usize> = self.ios.iter().enumerate().filter(ending).map(|(at, _)| at).collect();
        if ending.is_empty() && self.clock_rests {
            return;
        }
        if ending.is_empty() {
            // An hour at most: a wake may be due at a time that never comes.
            let (soon, late) = (self.now.plus_ms(1), self.now.plus_ms(3_600_000));
            self.now = self.engine.next_wake().map_or(soon, |t| t.clamp(soon, late));
            return;
        }
        let at = self.random(ending.len() as u64) as usize;
        self.end(ending[at]);
    }

    /// Zeroes a segment of the log but for its last bytes.
    pub fn forget_segment(&mut self, index: u32, but_for: usize) {
        let layout = self.params.layout;
        let (start, bytes) = (layout.segment_offset(index) as usize, layout.segment_bytes as usize);
        self.cache[start..start + bytes - but_for].fill(0);
    }

    fn poll(&mut self) {
        let mut effects = Vec::new();
        self.engine.poll(self.now, &mut effects);
        for effect in effects {
            match effect {
                Effect::Io { id, role, op, .. } => self.ios.push((id, role, op)),
                Effect::Admitted { .. } => {}
                Effect::Reply { id, result } => self.answered(id.0, result),
                Effect::CommandDone { id, result } => {
                    self.commands.insert(id.0, result);
                }
                Effect::Recovered(result) => {
                    assert!(result.is_ok() || self.errors_expected, "{result:?}");
                    self.refused = result.err().map(|e| e.to_string());
                    self.recovered = true;
                }
                Effect::Marked { .. } | Effect::CommonDone { .. } => panic!("no points are declared here"),
                Effect::RetireLog { id } => {
                    assert!(self.cache_fails, "nothing fails here");
                    self.retirements += 1;
                    self.retiring = Some(id);
                }
            }
        }
        let whole = self.params.layout.segment_bytes as usize;
        let is_whole = |op: &DeviceOp| matches!(op, DeviceOp::Read { len, .. } if *len == whole);
        let reads = self.ios.iter().filter(|(_, role, op)| *role == Role::Cache && is_whole(op)).count();
        if !self.recovered {
            self.whole_segments_max = self.whole_segments_max.max(reads);
        }
    }

    fn end(&mut self, at: usize) {
        let (id, role, op) = self.ios.remove(at);
        self.now = Nanos(self.now.0 + 10_000);
        let changes = op.changes();
        let layout = self.params.layout;
        let fails = |op: &DeviceOp| {
            let DeviceOp::Read { offset, len } = *op else { return false };
            let covers = |at: usize| (offset as usize..offset as usize + len).contains(&at);
            let ends_segment =
                (offset + len as u64 - layout.segment_offset(0)).is_multiple_of(layout.segment_bytes.into());
            self.unreadable.is_some_and(covers)
                || self.summaries_unreadable && ends_segment && len < layout.segment_bytes as usize
        };
        let result = match role {
            Role::Backing | Role::Journal if self.backing_fenced => {
                Err(IoError::new(ErrorKind::Fenced, "backing"))
            }
            Role::Backing if changes && self.backing_fails => Err(IoError::new(ErrorKind::Io, "backing")),
            Role::Backing if matches!(op, DeviceOp::Flush) && self.flushes_fail => {
                Err(IoError::new(ErrorKind::Io, "backing"))
            }
            Role::Cache if changes && self.cache_fails => Err(IoError::new(ErrorKind::Io, "cache")),
            Role::Cache if fails(&op) => Err(IoError::new(ErrorKind::Io, "cache")),
            _ => Ok(self.perform(role, &op)),
        };
        self.engine.handle(Event::Io { id, result }, self.now);
    }

    fn perform(&mut self, role: Role, op: &DeviceOp) -> Option<Buf> {
        let device = match role {
            Role::Cache => &mut self.cache,
            Role::Backing => &mut self.backing,
            Role::Journal => &mut self.journal,
        };
        match op {
            DeviceOp::Read { offset, len } => Some(Buf::copy_of(&device[*offset as usize..][..*len])),
            DeviceOp::Write { offset, bufs, .. } => {
                let mut at = *offset as usize;
                let written = at..at + op.write_bytes() as usize;
                self.unreadable = self.unreadable.filter(|bad| role != Role::Cache || !written.contains(bad));
                for b in bufs {
                    device[at..at + b.len()].copy_from_slice(b);
                    at += b.len();
                }
                None
            }
            DeviceOp::Flush | DeviceOp::Commit(_) => None,
            DeviceOp::Zero { offset, len, .. } => {
                device[*offset as usize..][..*len as usize].fill(0);
                None
            }
        }
    }

    fn answered(&mut self, id: u64, result: Result<Reply, IoError>) {
        let Some((op, _)) = self.requests.remove(&id) else {
            panic!("{id} is answered twice");
        };
        let (offset, len) = span(&op);
        match (&op, &result) {
            (Op::Write { data, .. }, Ok(_)) => {
                let value = u64::from_le_bytes(data[8..16].try_into().unwrap());
                self.acknowledge(offset, len, value);
            }
            (Op::Zero { .. }, Ok(_)) => self.acknowledge(offset, len, 0),
            (Op::Read { .. }, Ok(Reply::Data(data))) => self.checked(offset, data),
            _ => {}
        }
        assert!(result.is_ok() || self.backing_fails || self.errors_expected, "{result:?}");
        self.answers.insert(id, result);
    }

    fn acknowledge(&mut self, offset: u64, len: u64, value: u64) {
        for n in offset / 512..(offset + len) / 512 {
            self.sectors[n as usize] = Sector { acknowledged: value, possible: Vec::new() };
        }
    }

    fn checked(&mut self, offset: u64, data: &[u8]) {
        let fresh = self.requests.is_empty();
        for (n, bytes) in data.chunks_exact(512).enumerate() {
            let number = offset / 512 + n as u64;
            let sector = &mut self.sectors[number as usize];
            let value = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
            let mut whole = [0; 512];
            if value != 0 {
                stamp(&mut whole, number, value);
            }
            assert_eq!(bytes, whole, "sector {number} holds foreign data");
            assert!(
                value == sector.acknowledged || sector.possible.contains(&value),
                "sector {number} holds {value}, not {} or {:?}",
                sector.acknowledged,
                sector.possible
            );
            if fresh {
                *sector = Sector { acknowledged: value, possible: Vec::new() };
            }
        }
    }

    pub fn assert_backing_complete(&mut self) {
        for n in 0..self.sectors.len() {
            let bytes = &self.backing[n * 512..][..512];
            let value = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
            let s = &self.sectors[n];
            assert!(value == s.acknowledged || s.possible.contains(&value), "backing sector {n}");
        }
    }
}

fn span(op: &Op) -> (u64, u64) {
    match op {
        Op::Read { offset, len } => (*offset, *len as u64),
        Op::Write { offset, data, .. } => (*offset, data.len() as u64),
        Op::Zero { offset, len, .. } | Op::Status { offset, len, .. } => (*offset, *len),
        Op::Flush => (0, 0),
    }
}

fn stamp(sector: &mut [u8], number: u64, value: u64) {
    for word in sector.chunks_exact_mut(16) {
        word[..8].copy_from_slice(&number.to_le_bytes());
        word[8..].copy_from_slice(&value.to_le_bytes());
    }
}
