//! A cache full of dirty blocks: what it takes in memory, and that recovery finds all of it from the summaries.

use forebay_block::{Buf, BufMut, DeviceOp, Nanos, Op, Origin};
use forebay_engine::{Effect, Engine, Event, Params, RecoveryReport, RequestId, Role, State};
use forebay_format::Layout;
use forebay_policy::Settings;

/// A cache in memory, and a backing that never answers.
struct Full {
    engine: Engine,
    cache: Vec<u8>,
    recovered: Option<RecoveryReport>,
}

impl Full {
    fn start(layout: Layout, cache: Vec<u8>) -> Self {
        let params = Params {
            layout,
            volume_bytes: 1 << 40,
            settings: Settings::default(),
            wall_offset_ns: 0,
            clean_stop: false,
            journal: None,
            prepared: None,
            commits_in_place: false,
            journal_left: false,
            backing_depth: 256,
            backing_unit_bytes: None,
            backing_forgets: false,
            read_only: false,
        };
        let mut full = Self { engine: Engine::new(params), cache, recovered: None };
        while full.recovered.is_none() {
            full.step();
        }
        full
    }

    fn step(&mut self) {
        let mut effects = Vec::new();
        self.engine.poll(Nanos(0), &mut effects);
        for effect in effects {
            match effect {
                Effect::Io { id, role: Role::Cache, op, .. } => {
                    let data = self.perform(&op);
                    self.engine.handle(Event::Io { id, result: Ok(data) }, Nanos(0));
                }
                Effect::Recovered(report) => self.recovered = Some(report.unwrap()),
                _ => {}
            }
        }
    }

    fn perform(&mut self, op: &DeviceOp) -> Option<Buf> {
        match op {
            DeviceOp::Read { offset, len } => Some(Buf::copy_of(&self.cache[*offset as usize..][..*len])),
            DeviceOp::Write { offset, bufs, .. } => {
                let mut at = *offset as usize;
                for b in bufs {
                    self.cache[at..at + b.len()].copy_from_slice(b);
                    at += b.len();
                }
                None
            }
            _ => None,
        }
    }
}

/// `docs/design/promises.md`, Cost goals: at most 24 bytes of memory for each cached 4 KiB block, plus a constant.
#[test]
fn memory_stays_within_24_bytes_for_each_block_and_recovery_finds_them_all() {
    let layout =
        Layout { cache_id: [1; 16], generation: 1, align: 512, segment_bytes: 4 << 20, segment_count: 128 };
    let mut full = Full::start(layout, vec![0; layout.cache_bytes() as usize]);
    let mut block = 0x1234_5678u64;
    let mut n = 0u64;
    while full.engine.status(Nanos(0)).state != Some(State::Full) {
        for _ in 0..16 {
            block = block.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let offset = (block >> 40) * 4096;
            let data = BufMut::zeroed(4096).freeze();
            let op = Op::Write { offset, data, fua: false };
            full.engine.handle(Event::Request { id: RequestId(n), op, origin: Origin::default() }, Nanos(0));
            n += 1;
        }
        full.step();
    }
    let status = full.engine.status(Nanos(0));
    let constant = 64 << 10;
    let per_block = (status.index_bytes - constant) as f64 / status.index_blocks as f64;
    println!("{} blocks cached, {per_block:.1} bytes of memory for each", status.index_blocks);
    assert!(status.index_blocks > 100_000);
    assert!(per_block <= 24.0, "{per_block} bytes for each block");

    let layout = Layout { generation: 2, ..layout };
    let start = std::time::Instant::now();
    let again = Full::start(layout, full.cache);
    let report = again.recovered.unwrap();
    println!("recovered {} blocks in {:?}", report.blocks_dirty, start.elapsed());
    // What was written but not yet acknowledged when the first engine was dropped is there as well.
    assert!((0..=256).contains(&(report.blocks_dirty - status.dirty_bytes / 4096)));
    assert!(report.segments_scanned <= 2, "sealed segments are recovered from their summaries");
    let status = again.engine.status(Nanos(0));
    assert!((status.index_bytes - constant) as f64 / status.index_blocks as f64 <= 24.0);
}
