//! A client that keeps so many operations under way, in virtual time.

use std::collections::HashMap;

use forebay_block::Nanos;
use forebay_emulate::{Access, Kind, Model, Operation, Settings};

pub const GB: u64 = 1_000_000_000;
pub const READ: Access = Access::Read;
pub const WRITE: Access = Access::Write { durable: false };
pub const DURABLE: Access = Access::Write { durable: true };

/// The capacity of the drive that a kind's figures are of.
pub fn capacity(kind: Kind) -> u64 {
    match kind {
        Kind::Hdd10k => 600 * GB,
        Kind::Hdd7k2 => 4000 * GB,
        Kind::SsdSata | Kind::SsdNvme | Kind::Remote => 960 * GB,
        Kind::Nvdram => 16 * GB,
    }
}

pub fn model(text: &str) -> Model {
    let settings: Settings = text.parse().unwrap();
    Model::new(&settings, capacity(settings.kind())).unwrap()
}

/// A pseudo-random sequence (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

/// What a run of a client came to.
pub struct Outcome {
    pub iops: f64,
    pub mb_s: f64,
    pub latency_us: f64,
    pub latency_us_p99: f64,
    pub latency_us_max: f64,
    pub ended: Nanos,
}

/// Keeps `depth` operations under way until `count` have ended; the first tenth is not counted.
pub fn run(
    model: &mut Model,
    depth: usize,
    count: usize,
    mut next: impl FnMut(usize) -> Operation,
) -> Outcome {
    run_from(model, Nanos(1_000_000), depth, count, &mut next)
}

pub fn run_from(
    model: &mut Model,
    start: Nanos,
    depth: usize,
    count: usize,
    next: &mut dyn FnMut(usize) -> Operation,
) -> Outcome {
    let (mut begun, mut ended, mut now) = (0, 0, start);
    let (mut submitted, mut done) = (HashMap::new(), Vec::new());
    let (mut latencies, mut bytes, mut counted_from) = (Vec::new(), 0, start);
    while ended < count {
        while begun < count && submitted.len() < depth {
            let op = next(begun);
            submitted.insert(begun as u64, (now, op.len));
            model.submit(begun as u64, op, now);
            begun += 1;
        }
        now = model.next_event().unwrap();
        model.poll(now, &mut done);
        for (tag, at) in done.drain(..) {
            let (since, len) = submitted.remove(&tag).unwrap();
            ended += 1;
            if ended > count / 10 {
                latencies.push(at.since(since) as f64 / 1e3);
                bytes += len;
            } else {
                counted_from = at;
            }
            assert_eq!(at, now, "an operation ended at an instant that was not foretold");
        }
    }
    latencies.sort_by(f64::total_cmp);
    let seconds = now.since(counted_from) as f64 / 1e9;
    Outcome {
        iops: latencies.len() as f64 / seconds,
        mb_s: bytes as f64 / 1e6 / seconds,
        latency_us: latencies.iter().sum::<f64>() / latencies.len() as f64,
        latency_us_p99: latencies[latencies.len() * 99 / 100],
        latency_us_max: latencies[latencies.len() - 1],
        ended: now,
    }
}

/// Random operations of 4 KiB over the whole device.
pub fn random_4k(text: &str, access: Access, depth: usize, count: usize) -> Outcome {
    random_4k_on(&mut model(text), text, access, depth, count)
}

pub fn random_4k_on(model: &mut Model, text: &str, access: Access, depth: usize, count: usize) -> Outcome {
    let blocks = capacity(text.parse::<Settings>().unwrap().kind()) / 4096;
    let mut random = Random(99);
    run(model, depth, count, |_| Operation { access, offset: random.below(blocks) * 4096, len: 4096 })
}

/// One sequential stream of 128 KiB operations from `start` on.
pub fn sequential(text: &str, access: Access, depth: usize, start: u64, bytes: u64) -> Outcome {
    const LEN: u64 = 128 << 10;
    let mut model = model(text);
    run(&mut model, depth, (bytes / LEN) as usize, |i| Operation {
        access,
        offset: start + i as u64 * LEN,
        len: LEN,
    })
}
