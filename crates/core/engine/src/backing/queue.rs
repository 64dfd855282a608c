//! The queue in front of the backing: what clients wait for goes first (RCP, FAST'17; `docs/design/promises.md`, I/O priority).
//!
//! ```text
//!              ┌───────────── waiting ─────────────┐   which: policy::Scheduler
//!  engine.io ──┤   ▲ promoted: somebody waits for it ├──────────► outstanding ──► ended
//!              └───┼───────────────────────────────┘                  │ keeps its place
//!                  └► withdrawn: a reissued bypass need not go there  ▼ promoted
//! ```
//!
//! An operation that waits here is to the rest of the engine as one that the device has not carried out yet: whoever asked
//! for it holds its blocks. So the order in which they start is a matter of speed only, and an object behind a small trait chooses it
//! ([`forebay_policy::Scheduler`]). The queue keeps the operations, and knows who waits for which.
//!
//! **Lending.** What waits for a write of somebody else lends it its own priority: a write that waits for room in the log, or a
//! critical bypass that waits for its turn or for room for its record, promotes all destaging; a critical write that waits for blocks promotes
//! what is on its way there. What has started cannot be hurried; what else starts beside it is the scheduler's choice.
//!
//! Invariants:
//! 1. The scheduler knows of exactly what is in `waiting` and in `outstanding`, by number. Numbers grow in the order of arrival.
//! 2. An operation is started once, or withdrawn before that.
//! 3. Each is promoted once at most, and never if it was critical from the beginning.

use std::collections::BTreeMap;

use forebay_block::{BLOCK_BYTES, BlockNo, DeviceOp, Nanos, OpKind};
use forebay_policy::{Issuer, Operation, Priority, Purpose, Round, Scheduler};

use crate::backing::planted_scheduler::PlantedScheduler;
use crate::interface::{IoId, PartKey};
use crate::locks::BlockRange;
use crate::mutation::{Mutation, Planted};
use crate::tables::Table;

/// Whose operation it is, as far as others come to wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Destaging's.
    Destage,
    /// That of a part that goes past the log.
    Bypass(PartKey),
    /// Somebody's for whom only the blocks count.
    Other,
}

/// An operation that has not been started.
#[derive(Clone)]
struct Queued {
    id: IoId,
    op: DeviceOp,
    owner: Owner,
    /// The blocks that it changes, or that are held until it has ended.
    range: Option<BlockRange>,
    priority: Priority,
    issuer: Issuer,
    arrived: Nanos,
}

/// An operation that has been started.
struct Started {
    number: u64,
    owner: Owner,
    range: Option<BlockRange>,
    /// As what it was started.
    priority: Priority,
    /// Somebody came to wait for it since.
    promoted: bool,
}

/// State of the queue. It holds at most what requests, runs and flushes under way ask for, each of which is bounded.
pub(crate) struct BackingQueue {
    scheduler: Box<dyn Scheduler>,
    /// By number, which is the order of arrival.
    waiting: BTreeMap<u64, Queued>,
    outstanding: Table<IoId, Started>,
    last: u64,
    /// Critical ones of those that wait.
    critical: usize,
    /// Those outstanding that were started as non-critical.
    noncritical: usize,
    promoted: u64,
    /// Operations that may be outstanding in this round.
    slots: usize,
    planted: Planted,
}

/// The blocks that an operation of the backing changes.
fn changes(op: &DeviceOp) -> Option<BlockRange> {
    let offset = op.offset().filter(|_| matches!(op.kind(), OpKind::Write | OpKind::Zero))?;
    Some(BlockRange::new(BlockNo::containing(offset), op.bytes().div_ceil(BLOCK_BYTES)))
}

/// What the scheduler is told of it.
fn described(number: u64, queued: &Queued) -> Operation {
    let purpose = match queued.owner {
        Owner::Destage => Purpose::Destage,
        Owner::Bypass(_) | Owner::Other => Purpose::Request,
    };
    Operation {
        number,
        kind: queued.op.kind(),
        purpose,
        priority: queued.priority,
        issuer: queued.issuer,
        offset: queued.op.offset(),
        len: queued.op.bytes(),
        durable: matches!(queued.op, DeviceOp::Write { durable: true, .. }),
        arrived_ns: queued.arrived.0,
    }
}

impl BackingQueue {
    pub(crate) fn new(scheduler: Box<dyn Scheduler>) -> Self {
        Self {
            scheduler,
            waiting: BTreeMap::new(),
            outstanding: Table::default(),
            last: 0,
            critical: 0,
            noncritical: 0,
            promoted: 0,
            slots: 0,
            planted: Planted::default(),
        }
    }

    /// Plants a bug.
    #[cfg(feature = "mutations")]
    pub(crate) fn plant(&mut self, planted: Planted) {
        self.planted = planted;
        let none = Box::<forebay_policy::Fifo>::default();
        self.scheduler = PlantedScheduler::around(std::mem::replace(&mut self.scheduler, none), planted);
    }

    /// An operation comes to wait. `holds`: blocks that are held until it has ended, beside those that it changes.
    pub(crate) fn push(
        &mut self,
        (id, op): (IoId, DeviceOp),
        owner: Owner,
        holds: Option<BlockRange>,
        (priority, issuer): (Priority, Issuer),
        now: Nanos,
    ) {
        let range = holds.or_else(|| changes(&op));
        self.add(Queued { id, op, owner, range, priority, issuer, arrived: now });
    }

    /// Another scheduler chooses from here on.
    pub(crate) fn use_scheduler(&mut self, scheduler: Box<dyn Scheduler>) {
        let mut scheduler = PlantedScheduler::around(scheduler, self.planted);
        if !self.planted.is(Mutation::ExchangeForgetsWaiting) {
            self.waiting.iter().for_each(|(number, queued)| scheduler.arrived(described(*number, queued)));
        }
        self.scheduler = scheduler;
    }

    fn add(&mut self, queued: Queued) {
        self.last += 1;
        self.critical += usize::from(queued.priority == Priority::Critical);
        self.scheduler.arrived(described(self.last, &queued));
        self.waiting.insert(self.last, queued);
    }

    fn remove(&mut self, number: u64) -> Option<Queued> {
        let queued = self.waiting.remove(&number)?;
        self.critical -= usize::from(queued.priority == Priority::Critical);
        Some(queued)
    }

    /// Begins a round of starts; whether anything may start in it.
    pub(crate) fn begin_round(&mut self, round: Round, now: Nanos) -> bool {
        self.slots = round.slots;
        self.outstanding.len() < self.slots && self.scheduler.begin_round(round, now.0)
    }

    /// What starts next in this round.
    pub(crate) fn next(&mut self, now: Nanos) -> Option<(IoId, DeviceOp, Priority)> {
        if self.outstanding.len() >= self.slots {
            return None;
        }
        let number = self.scheduler.next(now.0)?;
        let Queued { id, op, owner, range, priority, .. } = self.remove(number)?;
        self.noncritical += usize::from(priority == Priority::NonCritical);
        self.outstanding.insert(id, Started { number, owner, range, priority, promoted: false });
        Some((id, op, priority))
    }

    /// An operation has ended; those of other devices are none of its business.
    pub(crate) fn ended(&mut self, id: IoId) {
        let keeps_slot = self.planted.is(Mutation::EndedKeepsSlot)
            && self.outstanding.get(&id).is_some_and(|o| o.promoted);
        if keeps_slot {
            return;
        }
        if let Some(started) = self.outstanding.remove(&id) {
            self.noncritical -= usize::from(started.priority == Priority::NonCritical);
            self.scheduler.ended(started.number);
        }
    }

    /// Operations that wait: critical, and not.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        (self.critical, self.waiting.len() - self.critical)
    }

    /// When a round may be begun again although nothing has ended; while the backing is full only that counts.
    pub(crate) fn next_wake(&self) -> Option<Nanos> {
        let may_start = !self.waiting.is_empty() && self.outstanding.len() < self.slots;
        self.scheduler.next_wake_ns().filter(|_| may_start).map(Nanos)
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Non-critical operations that somebody came to wait for, since start.
    pub(crate) fn promoted(&self) -> u64 {
        self.promoted
    }

    /// How often nothing was started for a while for the sake of one, since start.
    pub(crate) fn holds(&self) -> u64 {
        self.scheduler.holds()
    }

    /// Whether there is anything that could be promoted.
    pub(crate) fn has_noncritical(&self) -> bool {
        self.waiting().1 > 0 || self.noncritical > 0
    }

    /// Somebody waits for the operations that are `wanted`, by their owner and the blocks that they change or hold.
    pub(crate) fn promote(&mut self, wanted: impl Fn(Owner, Option<BlockRange>) -> bool) {
        if !self.has_noncritical() {
            return;
        }
        // What makes room goes first.
        for destages in [true, false] {
            let is_wanted = |queued: &Queued| {
                queued.priority == Priority::NonCritical
                    && (queued.owner == Owner::Destage) == destages
                    && wanted(queued.owner, queued.range)
            };
            let numbers: Vec<u64> = self
                .waiting
                .iter()
                .filter(|(_, queued)| is_wanted(queued))
                .map(|(number, _)| *number)
                .collect();
            numbers.into_iter().for_each(|number| self.promote_waiting(number));
        }
        for started in self.outstanding.values_mut() {
            let counts = started.priority == Priority::NonCritical && !started.promoted;
            if counts && wanted(started.owner, started.range) {
                started.promoted = true;
                self.scheduler.promoted(started.number);
                self.promoted += 1;
            }
        }
    }

    fn promote_waiting(&mut self, number: u64) {
        self.promoted += 1;
        if self.planted.is(Mutation::PromotionForgets) {
            self.scheduler.withdrawn(number);
            self.remove(number);
            return;
        }
        let planted = self.planted;
        let Some(queued) = self.waiting.get_mut(&number) else { return };
        if planted.is(Mutation::PromotionStartsTwice) {
            let twice = Queued { priority: Priority::Critical, ..queued.clone() };
            self.add(twice);
            return;
        }
        queued.priority = Priority::Critical;
        self.critical += 1;
        self.scheduler.promoted(number);
    }

    /// Takes the bypass of this part back, if it has not been started.
    pub(crate) fn withdraw(&mut self, part: PartKey) -> Option<IoId> {
        let is_its = |queued: &Queued| queued.owner == Owner::Bypass(part);
        let number = self.waiting.iter().find(|(_, queued)| is_its(queued)).map(|(number, _)| *number)?;
        if self.planted.is(Mutation::WithdrawnStarts) {
            return self.waiting.get(&number).map(|queued| queued.id);
        }
        self.scheduler.withdrawn(number);
        self.remove(number).map(|queued| queued.id)
    }
}

#[cfg(test)]
mod tests {
    use forebay_block::Buf;
    use forebay_policy::SchedulerKind;
    use proptest::prelude::*;

    use super::*;

    const NOW: Nanos = Nanos(0);
    const NOBODY: Issuer =
        Issuer { task: 0, io_priority: forebay_policy::IoPriority(0), sync: false, reason: None };

    fn write(block: u64) -> DeviceOp {
        DeviceOp::Write { offset: block * BLOCK_BYTES, bufs: vec![Buf::zeroed(4096)], durable: false }
    }

    /// All that starts in a round, as it is numbered by who asked for it.
    fn start(queue: &mut BackingQueue) -> Vec<(u64, Priority)> {
        let mut started = Vec::new();
        if queue.begin_round(Round::default(), NOW) {
            while let Some((id, _, priority)) = queue.next(NOW) {
                started.push((id.0, priority));
            }
        }
        started
    }

    #[test]
    fn who_is_waited_for_is_promoted_once_wherever_it_stands() {
        use Priority::{Critical, NonCritical};
        let mut queue = BackingQueue::new(SchedulerKind::default().build());
        queue.push((IoId(1), write(1)), Owner::Destage, None, (NonCritical, NOBODY), NOW);
        assert_eq!(start(&mut queue), [(1, NonCritical)]);
        queue.push((IoId(2), write(2)), Owner::Bypass(PartKey(7)), None, (NonCritical, NOBODY), NOW);
        let held = Some(BlockRange::new(BlockNo(1), 1));
        queue.push((IoId(3), DeviceOp::Flush), Owner::Bypass(PartKey(8)), held, (NonCritical, NOBODY), NOW);
        queue.push((IoId(4), write(4)), Owner::Other, None, (Critical, NOBODY), NOW);
        assert_eq!((queue.waiting(), queue.promoted()), ((1, 2), 0));
        let block_1 = |_: Owner, range: Option<BlockRange>| range.is_some_and(|r| r.contains(BlockNo(1)));
        for _ in 0..2 {
            queue.promote(block_1);
            assert_eq!(
                (queue.waiting(), queue.promoted()),
                ((2, 1), 2),
                "the run that has started, and the flush"
            );
        }
        assert_eq!(queue.withdraw(PartKey(7)), Some(IoId(2)));
        assert_eq!(queue.withdraw(PartKey(7)), None);
        assert_eq!(start(&mut queue), [(4, Critical), (3, Critical)]);
        assert_eq!(queue.withdraw(PartKey(8)), None, "it has started");
        (1..5).for_each(|id| queue.ended(IoId(id)));
        assert_eq!((queue.outstanding(), queue.has_noncritical()), (0, false));
    }

    #[test]
    fn nobody_is_woken_while_no_slot_is_free() {
        let mut queue = BackingQueue::new(SchedulerKind::CfqIdle.build());
        for id in 1..4 {
            let priority = if id == 1 { Priority::NonCritical } else { Priority::Critical };
            queue.push((IoId(id), write(id)), Owner::Other, None, (priority, NOBODY), NOW);
        }
        let one = Round { slots: 1, ..Round::default() };
        assert!(queue.begin_round(one, NOW) && queue.next(NOW).is_some() && queue.next(NOW).is_none());
        assert_eq!(queue.next_wake(), None, "it could do nothing");
        let two = Round { slots: 2, ..one };
        assert!(queue.begin_round(two, NOW) && queue.next(NOW).is_some() && queue.next(NOW).is_none());
        queue.ended(IoId(2));
        assert!(queue.begin_round(two, NOW) && queue.next(NOW).is_none());
        assert!(queue.next_wake().is_some_and(|wake| wake > NOW), "the idle one has its time");
    }

    /// Another scheduler: the newest first, whatever it is.
    #[derive(Default)]
    struct NewestFirst(Vec<u64>);

    impl Scheduler for NewestFirst {
        fn arrived(&mut self, operation: Operation) {
            self.0.push(operation.number);
        }
        fn promoted(&mut self, _: u64) {}
        fn withdrawn(&mut self, number: u64) {
            self.0.retain(|waiting| *waiting != number);
        }
        fn begin_round(&mut self, _: Round, _: u64) -> bool {
            true
        }
        fn next(&mut self, _: u64) -> Option<u64> {
            self.0.pop()
        }
        fn ended(&mut self, _: u64) {}
        fn next_wake_ns(&self) -> Option<u64> {
            None
        }
        fn holds(&self) -> u64 {
            0
        }
    }

    proptest! {
        /// Whichever scheduler chooses: each operation starts once, or is withdrawn before, and the counts are those of a plain list.
        #[test]
        fn keeps_what_it_is_given(newest: bool, steps in proptest::collection::vec((0u8..8, 0u64..6), 1..200)) {
            let mut queue = match newest {
                true => BackingQueue::new(Box::<NewestFirst>::default()),
                false => BackingQueue::new(SchedulerKind::default().build()),
            };
            // What waits, with its part and whether it is critical; and what has started.
            let (mut waiting, mut outstanding) = (BTreeMap::new(), Vec::new());
            let drain = [(5, 0), (7, 0)].into_iter().cycle().take(800);
            for (n, (step, pick)) in steps.into_iter().chain(drain).enumerate() {
                let id = n as u64;
                match step {
                    0..3 => {
                        let owner = if pick == 0 { Owner::Destage } else { Owner::Bypass(PartKey(id)) };
                        let priority = if pick == 1 { Priority::Critical } else { Priority::NonCritical };
                        queue.push((IoId(id), write(pick)), owner, None, (priority, NOBODY), NOW);
                        waiting.insert(id, (pick, priority));
                    }
                    3 => {
                        queue.promote(|_, range| range == Some(BlockRange::new(BlockNo(pick), 1)));
                        let its = waiting.values_mut().filter(|(block, _)| *block == pick);
                        its.for_each(|(_, priority)| *priority = Priority::Critical);
                    }
                    4 => {
                        let part = waiting.iter().find(|(_, (block, _))| *block == pick && pick > 0);
                        if let Some(id) = part.map(|(id, _)| *id) {
                            prop_assert_eq!(queue.withdraw(PartKey(id)), Some(IoId(id)));
                            waiting.remove(&id);
                        }
                    }
                    5 | 6 => {
                        for (id, priority) in start(&mut queue) {
                            prop_assert_eq!(waiting.remove(&id).map(|(_, priority)| priority), Some(priority));
                            outstanding.push(id);
                        }
                    }
                    _ if outstanding.is_empty() => {}
                    _ => queue.ended(IoId(outstanding.swap_remove(pick as usize % outstanding.len()))),
                }
                let critical = waiting.values().filter(|(_, priority)| *priority == Priority::Critical).count();
                prop_assert_eq!(queue.waiting(), (critical, waiting.len() - critical));
                prop_assert_eq!(queue.outstanding(), outstanding.len());
            }
            prop_assert!(waiting.is_empty() && outstanding.is_empty() && !queue.has_noncritical());
        }
    }
}
