//! What holds for every scheduler; and words for the tests of each.

use std::collections::BTreeMap;

use forebay_block::OpKind;
use proptest::prelude::*;

use super::{IoPriority, Issuer, Operation, Purpose, Round, Scheduler, SchedulerKind};
use crate::priority::Priority;

pub(super) const MS: u64 = 1_000_000;

/// A read by nobody in particular, of 4 KiB at 0, that came at 0.
pub(super) fn read(number: u64) -> Operation {
    Operation {
        number,
        kind: OpKind::Read,
        purpose: Purpose::Request,
        priority: Priority::Critical,
        issuer: Issuer { sync: true, ..Issuer::default() },
        offset: Some(0),
        len: 4096,
        durable: false,
        arrived_ns: 0,
    }
}

/// A write that somebody waits for.
pub(super) fn sync_write(number: u64) -> Operation {
    Operation { kind: OpKind::Write, ..read(number) }
}

/// A write that nobody waits for.
pub(super) fn write(number: u64) -> Operation {
    let issuer = Issuer { sync: false, ..read(0).issuer };
    Operation { priority: Priority::NonCritical, issuer, ..sync_write(number) }
}

pub(super) fn destage(number: u64) -> Operation {
    Operation { purpose: Purpose::Destage, ..write(number) }
}

pub(super) fn flush(number: u64) -> Operation {
    Operation { kind: OpKind::Flush, offset: None, len: 0, ..read(number) }
}

impl Operation {
    pub(super) fn at(self, position: u64) -> Self {
        Self { offset: Some(position), ..self }
    }

    pub(super) fn of(self, task: u32) -> Self {
        Self { issuer: Issuer { task, ..self.issuer }, ..self }
    }

    /// With the I/O priority of this class (1 real time, 2 best effort, 3 idle) and level.
    pub(super) fn with(self, class: u16, level: u16) -> Self {
        Self { issuer: Issuer { io_priority: IoPriority(class << 13 | level), ..self.issuer }, ..self }
    }

    pub(super) fn came(self, ms: u64) -> Self {
        Self { arrived_ns: ms * MS, ..self }
    }
}

/// A scheduler to which these have come.
pub(super) fn given<S: Scheduler + Default>(operations: impl IntoIterator<Item = Operation>) -> S {
    let mut scheduler = S::default();
    operations.into_iter().for_each(|operation| scheduler.arrived(operation));
    scheduler
}

/// What starts in a round at this time, and stays outstanding; at most so many.
pub(super) fn start(scheduler: &mut dyn Scheduler, ms: u64, most: usize) -> Vec<u64> {
    let begins = scheduler.begin_round(Round::default(), ms * MS);
    let started: Vec<u64> = std::iter::from_fn(|| scheduler.next(ms * MS)).take(most).collect();
    assert!(begins || started.is_empty());
    started
}

/// What starts one after the other, each when the last one has ended after a millisecond, from this time on.
pub(super) fn one_by_one(scheduler: &mut dyn Scheduler, ms: u64, most: usize) -> Vec<u64> {
    let mut order = Vec::new();
    for now in (ms..).take(most) {
        let [number] = start(scheduler, now, 1)[..] else { break };
        scheduler.ended(number);
        order.push(number);
    }
    order
}

/// A scheduler, what waits at it and what is outstanding, as the queue keeps them.
struct Beside {
    scheduler: Box<dyn Scheduler>,
    waiting: BTreeMap<u64, Operation>,
    outstanding: Vec<u64>,
    now_ns: u64,
    slots: usize,
}

impl Beside {
    fn new(kind: SchedulerKind, slots: usize) -> Self {
        let (waiting, outstanding) = (BTreeMap::new(), Vec::new());
        Self { scheduler: kind.build(), waiting, outstanding, now_ns: MS, slots }
    }

    fn arrive(&mut self, operation: Operation) {
        let operation = Operation { arrived_ns: self.now_ns, ..operation };
        self.scheduler.arrived(operation);
        self.waiting.insert(operation.number, operation);
    }

    /// A round as the queue has it; what started.
    fn round(&mut self) -> Result<Vec<u64>, TestCaseError> {
        let mut started = Vec::new();
        if self.outstanding.len() >= self.slots {
            return Ok(started);
        }
        let round = Round { slots: self.slots, ..Round::default() };
        let begins = self.scheduler.begin_round(round, self.now_ns);
        while begins && self.outstanding.len() < self.slots {
            let Some(number) = self.scheduler.next(self.now_ns) else { break };
            prop_assert!(self.waiting.remove(&number).is_some(), "{} does not wait", number);
            self.outstanding.push(number);
            started.push(number);
        }
        if self.outstanding.is_empty() && !self.waiting.is_empty() {
            let wake = self.scheduler.next_wake_ns();
            prop_assert!(
                wake.is_some_and(|wake| wake > self.now_ns),
                "{wake:?} at {}, nothing starts",
                self.now_ns
            );
        }
        Ok(started)
    }

    fn end(&mut self, at: usize) {
        if !self.outstanding.is_empty() {
            let ended = self.outstanding.remove(at % self.outstanding.len());
            self.scheduler.ended(ended);
        }
    }

    /// Starts and ends all that is there; how many rounds that takes.
    fn drain(&mut self) -> Result<usize, TestCaseError> {
        for rounds in 0..10_000 {
            self.round()?;
            if self.waiting.is_empty() && self.outstanding.is_empty() {
                return Ok(rounds);
            }
            match self.outstanding.is_empty() {
                true => self.now_ns = self.scheduler.next_wake_ns().unwrap_or(0),
                false => self.end(0),
            }
            self.now_ns += MS;
        }
        Err(TestCaseError::fail(format!("{:?} never start", self.waiting.keys())))
    }
}

/// An operation of any kind, from the dice.
fn any_operation(number: u64, dice: u32) -> Operation {
    let bits = |at: u32, width: u32| dice >> at & ((1 << width) - 1);
    let kinds = [read, read, sync_write, sync_write, write, write, destage, flush];
    let operation =
        kinds[bits(0, 3) as usize](number).of(bits(3, 2)).with(bits(5, 2) as u16, bits(7, 3) as u16);
    let operation = Operation { len: 4096 << bits(16, 3), ..operation };
    let priority = if bits(10, 1) == 0 { operation.priority } else { Priority::NonCritical };
    let operation = Operation { priority, ..operation };
    if operation.kind == OpKind::Flush { operation } else { operation.at(u64::from(bits(11, 5)) << 19) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whatever comes, is promoted, withdrawn and ends, also what is not there, and whichever scheduler takes
    /// another's place: each operation starts once, or is withdrawn before; nothing waits in vain.
    #[test]
    fn each_starts_once(
        first in 0..SchedulerKind::ALL.len(),
        slots in 1usize..6,
        steps in proptest::collection::vec((0u8..12, any::<u32>()), 1..300),
    ) {
        let mut beside = Beside::new(SchedulerKind::ALL[first], slots);
        for (n, (step, dice)) in steps.into_iter().enumerate() {
            let number = n as u64;
            match step {
                0..5 => beside.arrive(any_operation(number, dice)),
                5 => beside.scheduler.promoted(u64::from(dice) % (number + 2)),
                6 => {
                    let any = u64::from(dice) % (number + 2);
                    // The queue withdraws only what waits.
                    if beside.waiting.remove(&any).is_some() {
                        beside.scheduler.withdrawn(any);
                    }
                }
                7 if dice % 4 == 0 => {
                    beside.scheduler = SchedulerKind::ALL[dice as usize / 4 % SchedulerKind::ALL.len()].build();
                    beside.waiting.values().for_each(|operation| beside.scheduler.arrived(*operation));
                }
                7 | 8 => beside.now_ns += u64::from(dice % 300) * MS,
                9 => beside.end(dice as usize),
                _ => _ = beside.round()?,
            }
        }
        beside.drain()?;
        prop_assert!(!beside.scheduler.begin_round(Round::default(), beside.now_ns), "nothing is left");
    }
}

/// After which time, in milliseconds, the last one of eight operations starts beside an endless load of another
/// kind, of which six always wait; each takes 5 ms, and two are outstanding. Whether the first one that starts
/// is stuck at the device, which takes one more then.
fn starts_after(
    kind: SchedulerKind,
    eight: fn(u64) -> Operation,
    load: fn(u64) -> Operation,
    is_stuck: bool,
) -> u64 {
    let mut beside = Beside::new(kind, 2 + usize::from(is_stuck));
    let mut number = 0;
    let mut come = |beside: &mut Beside, operation: fn(u64) -> Operation| {
        beside.arrive(operation(number));
        number += 1;
        number - 1
    };
    (0..8).for_each(|_| _ = come(&mut beside, load));
    let mut wanted: Vec<u64> = (0..8).map(|_| come(&mut beside, eight)).collect();
    let begun = beside.now_ns;
    for _ in 0..12_000 {
        let started = beside.round().unwrap();
        wanted.retain(|number| !started.contains(number));
        if wanted.is_empty() {
            return (beside.now_ns - begun) / MS;
        }
        beside.end(usize::from(is_stuck && beside.outstanding.len() > 1));
        beside.now_ns += 5 * MS;
        while beside.waiting.len() < wanted.len() + 6 {
            come(&mut beside, load);
        }
    }
    panic!("{kind}: {wanted:?} starve");
}

/// However much of one kind comes, each of another kind starts within the bounds of
/// `docs/design/schedulers.md`.
#[test]
fn nothing_starves() {
    type Make = fn(u64) -> Operation;
    let kinds: [(&str, Make); 11] = [
        ("reads", |n| read(n).of(1).at(n << 12)),
        ("reads of another", |n| read(n).of(2).at(1 << 40)),
        ("reads in real time", |n| read(n).of(3).with(1, 0)),
        ("idle reads", |n| read(n).of(4).with(3, 0)),
        ("sync writes", |n| sync_write(n).of(1).at(n << 12)),
        ("writes", |n| write(n).of(1).at(n << 12)),
        ("writes in real time", |n| write(n).of(5).with(1, 7)),
        ("idle writes", |n| write(n).with(3, 7).at(0)),
        ("awaited writes", |n| Operation { priority: Priority::Critical, ..write(n) }),
        ("destaging", |n| destage(n).at(n << 12)),
        ("flushes", flush),
    ];
    for kind in SchedulerKind::ALL {
        let mut longest = (0, "", "");
        for (eight, (load_name, load)) in
            kinds.iter().flat_map(|eight| kinds.iter().map(move |load| (eight, *load)))
        {
            let took = [false, true].map(|is_stuck| starts_after(*kind, eight.1, load, is_stuck));
            longest = longest.max((took[0].max(took[1]), eight.0, load_name));
        }
        println!("{kind}: at most {} ms, {} beside {}", longest.0, longest.1, longest.2);
        // Eight operations, as the bounds of each have it.
        let bound = match kind {
            SchedulerKind::Deadline => 10_000 + 8 * 10,
            SchedulerKind::Cfq | SchedulerKind::CfqIdle | SchedulerKind::Qasio => 9 * 200 + 500,
            SchedulerKind::SplitA => 5_000,
            SchedulerKind::SplitD => 5_000 + 9 * 100 + 500,
            SchedulerKind::Rcp | SchedulerKind::Fifo => 1_000,
        };
        assert!(longest.0 <= bound, "{kind}: {longest:?} against {bound} ms");
    }
}
