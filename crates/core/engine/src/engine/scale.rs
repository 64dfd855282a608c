//! What a write costs, counted in segments and slots that the engine looks at: however many segments are clean, it is the same.

use std::collections::{BTreeMap, VecDeque};

use forebay_block::{Buf, BufMut, DeviceOp, Nanos, Op, Origin, Seq};
use forebay_format::Layout;
use forebay_format::journal::Head;
use forebay_policy::{Settings, WritePolicy};

use crate::{Command, Effect, Engine, Event, Params, RequestId, Role};

const VOLUME_BYTES: u64 = 4096 << 24;
/// Writes that are measured; a few segments full.
const WRITES: u64 = 96;
/// Bytes of the cache that are read again: the newest ones.
const KEPT_WRITES: usize = 4096;

/// An engine whose devices end everything at once.
struct Rig {
    engine: Engine,
    now: Nanos,
    /// What was written to the cache last, each by its offset; the rest reads as zeroes.
    cache: BTreeMap<u64, Buf>,
    order: VecDeque<u64>,
    answered: u64,
    asked: u64,
}

impl Rig {
    fn new(segment_count: u32) -> Self {
        let layout =
            Layout { cache_id: [1; 16], generation: 1, align: 512, segment_bytes: 64 << 10, segment_count };
        let params = Params {
            layout,
            volume_bytes: VOLUME_BYTES,
            settings: Settings::default(),
            wall_offset_ns: 1 << 60,
            clean_stop: false,
            journal: Some(Head::new([8; 16], layout.cache_id, VOLUME_BYTES, 16 << 20)),
            prepared: None,
            commits_in_place: false,
            journal_left: false,
            backing_depth: 256,
            backing_unit_bytes: None,
            backing_forgets: false,
            read_only: false,
        };
        let mut rig = Self {
            engine: Engine::new(params),
            now: Nanos(0),
            cache: BTreeMap::new(),
            order: Default::default(),
            answered: 0,
            asked: 1,
        };
        rig.settle();
        rig
    }

    /// Until everything that was asked for is answered and nothing is under way.
    fn settle(&mut self) {
        for _ in 0..10_000_000 {
            let mut effects = Vec::new();
            self.engine.poll(self.now, &mut effects);
            if effects.is_empty() {
                if self.answered == self.asked {
                    return;
                }
                self.now = self.engine.next_wake().expect("something is to come").max(Nanos(self.now.0 + 1));
            }
            for effect in effects {
                match effect {
                    Effect::Io { id, role, op, .. } => {
                        let result = Ok(self.perform(role, &op));
                        self.engine.handle(Event::Io { id, result }, self.now);
                    }
                    Effect::Recovered(report) => {
                        report.unwrap();
                        self.answered += 1;
                    }
                    Effect::Reply { result, .. } => {
                        result.unwrap();
                        self.answered += 1;
                    }
                    Effect::CommandDone { result, .. } => {
                        result.unwrap();
                        self.answered += 1;
                    }
                    _ => {}
                }
            }
        }
        panic!("it does not settle");
    }

    fn perform(&mut self, role: Role, op: &DeviceOp) -> Option<Buf> {
        match op {
            DeviceOp::Read { offset, len } => {
                let mut data = BufMut::zeroed(*len);
                let before = offset.saturating_sub(2 << 20);
                for (at, buf) in
                    self.cache.range(before..offset + *len as u64).filter(|_| role == Role::Cache)
                {
                    let (from, end) = ((*at).max(*offset), (at + buf.len() as u64).min(offset + *len as u64));
                    if from < end {
                        data[(from - offset) as usize..(end - offset) as usize]
                            .copy_from_slice(&buf[(from - at) as usize..(end - at) as usize]);
                    }
                }
                Some(data.freeze())
            }
            DeviceOp::Write { offset, bufs, .. } if role == Role::Cache => {
                let mut at = *offset;
                for buf in bufs {
                    self.cache.insert(at, buf.clone());
                    self.order.push_back(at);
                    at += buf.len() as u64;
                }
                while self.order.len() > KEPT_WRITES {
                    self.order.pop_front().map(|at| self.cache.remove(&at));
                }
                None
            }
            _ => None,
        }
    }

    /// Writes a block; the `n`-th may be any, but is always the same.
    fn write(&mut self, n: u64) {
        let block = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let op = Op::Write { offset: block * 4096, data: BufMut::zeroed(4096).freeze(), fua: false };
        let id = RequestId(self.asked);
        self.asked += 1;
        self.engine.handle(Event::Request { id, op, origin: Origin::default() }, self.now);
        self.settle();
    }

    fn command(&mut self, command: Command) {
        let id = RequestId(self.asked);
        self.asked += 1;
        self.engine.handle(Event::Command { id, command }, self.now);
        self.settle();
    }

    fn segments_in_use(&self) -> usize {
        self.engine.map.segments().count() - self.engine.map.segments().free_count()
    }

    /// Segments and slots that are looked at for each of so many steps.
    fn visits(&mut self, mut step: impl FnMut(&mut Self)) -> f64 {
        let before = self.engine.map.segments().visits();
        (0..WRITES).for_each(|_| step(self));
        (self.engine.map.segments().visits() - before) as f64 / WRITES as f64
    }
}

/// For each policy the visits of a write by itself, and of one that is destaged at once, in a cache with so many clean segments.
fn costs(clean: u32) -> [(WritePolicy, f64, f64); 4] {
    // Reclaiming keeps one in 32 free, and a few more.
    let mut rig = Rig::new(clean + clean / 31 + 5);
    // Each destaging ends the segment that it finds. At last the log goes round: for each segment that is opened one leaves it.
    loop {
        rig.write(rig.asked);
        rig.command(Command::Destage);
        if rig.engine.map.segments().first_seq() > Seq(WRITES) {
            break;
        }
    }
    let in_use = rig.segments_in_use() as f64 / f64::from(clean);
    assert!((0.98..1.02).contains(&in_use), "{in_use} of {clean} segments are in use");
    assert_eq!(rig.engine.map.segments().dirty(), 0);
    let policies =
        [WritePolicy::WriteBack, WritePolicy::WriteThrough, WritePolicy::Ordered, WritePolicy::Journaled];
    policies.map(|write_policy| {
        rig.command(Command::Set(Settings { write_policy, ..Settings::default() }));
        rig.command(Command::Destage);
        let written = rig.visits(|rig| rig.write(rig.asked));
        let destaged = rig.visits(|rig| {
            rig.write(rig.asked);
            rig.command(Command::Destage);
        });
        (write_policy, written, destaged)
    })
}

#[test]
fn a_write_costs_the_same_however_many_segments_are_clean() {
    let all = [512, 16_384, 60_000].map(costs);
    println!("{all:.1?}");
    for large in &all[1..] {
        for ((policy, written, destaged), (_, written_small, destaged_small)) in large.iter().zip(&all[0]) {
            let more = (written / written_small, destaged / destaged_small);
            assert!(more.0 <= 1.3 && more.1 <= 1.3, "{policy:?}: {more:.1?} times the visits in {all:.1?}");
        }
    }
}
