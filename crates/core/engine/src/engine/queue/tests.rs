//! Who asked for what stands in the backing's queue.

use std::sync::{Arc, Mutex};

use forebay_block::{BufMut, Criticality, Nanos, Op, OpKind, Origin};
use forebay_format::Layout;
use forebay_policy::{
    Admission, AdmissionReason, Durability, Fifo, IoPriority, Issuer, Operation, Round, Scheduler, Settings,
};

use crate::{Command, Effect, Engine, Event, Params, RequestId, Role};

const BEST_EFFORT: u16 = 2 << 13 | 4;
const REAL_TIME: u16 = 1 << 13;
const IDLE: u16 = 3 << 13;

/// In the order of arrival, and all that it is told of is kept.
struct Listens(Fifo, Arc<Mutex<Vec<Operation>>>);

impl Scheduler for Listens {
    fn arrived(&mut self, operation: Operation) {
        self.1.lock().unwrap().push(operation);
        self.0.arrived(operation);
    }
    fn promoted(&mut self, number: u64) {
        self.0.promoted(number);
    }
    fn withdrawn(&mut self, number: u64) {
        self.0.withdrawn(number);
    }
    fn begin_round(&mut self, round: Round, now_ns: u64) -> bool {
        self.0.begin_round(round, now_ns)
    }
    fn next(&mut self, now_ns: u64) -> Option<u64> {
        self.0.next(now_ns)
    }
    fn ended(&mut self, number: u64) {
        self.0.ended(number);
    }
    fn next_wake_ns(&self) -> Option<u64> {
        None
    }
    fn holds(&self) -> u64 {
        0
    }
}

struct Rig {
    engine: Engine,
    heard: Arc<Mutex<Vec<Operation>>>,
    asked: u64,
}

impl Rig {
    fn new(settings: Settings) -> Self {
        let layout = Layout {
            cache_id: [1; 16],
            generation: 1,
            align: 512,
            segment_bytes: 64 << 10,
            segment_count: 64,
        };
        let mut engine = Engine::new(Params {
            layout,
            volume_bytes: 1 << 30,
            settings,
            wall_offset_ns: 1 << 60,
            clean_stop: true,
            journal: None,
            prepared: None,
            commits_in_place: false,
            journal_left: false,
            backing_depth: 256,
            backing_unit_bytes: None,
            backing_forgets: false,
            read_only: false,
        });
        let heard = Arc::default();
        engine.backing.use_scheduler(Box::new(Listens(Fifo::default(), Arc::clone(&heard))));
        let mut rig = Self { engine, heard, asked: 0 };
        rig.settle();
        rig
    }

    /// All that is asked of the devices is done, but for what the backing is asked first.
    fn settle(&mut self) {
        loop {
            let mut effects = Vec::new();
            self.engine.poll(Nanos(0), &mut effects);
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                if let Effect::Io { id, op, .. } = effect {
                    let data =
                        (op.kind() == OpKind::Read).then(|| BufMut::zeroed(op.bytes() as usize).freeze());
                    self.engine.handle(Event::Io { id, result: Ok(data) }, Nanos(0));
                }
            }
        }
    }

    fn ask(&mut self, op: Op, origin: Origin) {
        self.asked += 1;
        self.engine.handle(Event::Request { id: RequestId(self.asked), op, origin }, Nanos(0));
    }

    /// What has come to wait for the backing since the last time.
    fn heard(&mut self) -> Vec<(OpKind, Issuer)> {
        let heard = std::mem::take(&mut *self.heard.lock().unwrap());
        heard.into_iter().map(|operation| (operation.kind, operation.issuer)).collect()
    }
}

fn origin(pid: u32, ioprio: u16, sync: bool) -> Origin {
    Origin { pid, ioprio, sync, ..Origin::default() }
}

fn write(block: u64, len: usize) -> Op {
    Op::Write { offset: block * 4096, data: BufMut::zeroed(len).freeze(), fua: false }
}

fn issuer(task: u32, ioprio: u16, sync: bool, reason: Option<AdmissionReason>) -> Issuer {
    Issuer { task, io_priority: IoPriority(ioprio), sync, reason }
}

#[test]
fn the_queue_is_told_who_asked() {
    use AdmissionReason::NotCritical;
    let mut rig = Rig::new(Settings { admission: Admission::Cp, ..Settings::default() });
    // Past the log; a part of a block reads the rest first.
    rig.ask(write(1, 4096), origin(7, IDLE, false));
    rig.settle();
    assert_eq!(rig.heard(), [(OpKind::Write, issuer(7, IDLE, false, Some(NotCritical)))]);
    rig.ask(write(2, 512), origin(8, 0, false));
    rig.settle();
    let base = issuer(8, 0, true, Some(NotCritical));
    assert_eq!(rig.heard(), [(OpKind::Read, base), (OpKind::Write, Issuer { sync: false, ..base })]);
    let zero = Op::Zero { offset: 8 << 20, len: 4096, unmap: false, fua: true };
    rig.ask(zero, origin(9, BEST_EFFORT, false));
    rig.settle();
    let zero = issuer(9, BEST_EFFORT, true, Some(NotCritical));
    assert_eq!(rig.heard(), [(OpKind::Zero, zero), (OpKind::Flush, zero)], "forced: it is waited for");
    rig.ask(Op::Read { offset: 0, len: 4096 }, origin(10, REAL_TIME, false));
    rig.settle();
    assert_eq!(rig.heard(), [(OpKind::Read, issuer(10, REAL_TIME, true, None))]);
    // What destaging asks for is nobody's.
    let critical = Origin { criticality: Criticality::Direct, ..origin(11, REAL_TIME, true) };
    rig.ask(write(3, 4096), critical);
    rig.settle();
    assert_eq!(rig.heard(), [], "it is in the log");
    rig.engine.handle(Event::Command { id: RequestId(0), command: Command::Destage }, Nanos(0));
    rig.settle();
    let heard = rig.heard();
    assert_eq!(heard.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [OpKind::Write, OpKind::Flush]);
    assert!(heard.iter().all(|(_, issuer)| *issuer == Issuer::default()), "{heard:?}");
}

/// A flush of the backing is for all clients that wait for it by then.
#[test]
fn a_flush_is_for_the_most_urgent_client() {
    let settings =
        Settings { admission: Admission::Range, durability: Durability::Flush, ..Settings::default() };
    let mut rig = Rig::new(settings);
    let volatile_write = |rig: &mut Rig, block| {
        rig.ask(write(block, 4096), origin(1, 0, true));
        let mut effects = Vec::new();
        rig.engine.poll(Nanos(0), &mut effects);
        let id = effects.into_iter().find_map(|effect| match effect {
            Effect::Io { id, role: Role::Backing, .. } => Some(id),
            _ => None,
        });
        rig.engine.handle(Event::Io { id: id.unwrap(), result: Ok(None) }, Nanos(0));
    };
    volatile_write(&mut rig, 1);
    rig.heard();
    // The first flush is on its way before the other clients ask.
    rig.ask(Op::Flush, origin(2, IDLE, false));
    assert_eq!(rig.heard(), [(OpKind::Flush, issuer(2, IDLE, true, None))]);
    let mut effects = Vec::new();
    rig.engine.poll(Nanos(0), &mut effects);
    volatile_write(&mut rig, 2);
    rig.heard();
    rig.ask(Op::Flush, origin(3, IDLE, false));
    rig.ask(Op::Flush, origin(4, REAL_TIME, false));
    rig.ask(Op::Flush, origin(5, BEST_EFFORT, false));
    assert_eq!(rig.heard(), [], "one at a time");
    for effect in effects {
        if let Effect::Io { id, .. } = effect {
            rig.engine.handle(Event::Io { id, result: Ok(None) }, Nanos(0));
        }
    }
    rig.settle();
    assert_eq!(rig.heard(), [(OpKind::Flush, issuer(4, REAL_TIME, true, None))]);
}
