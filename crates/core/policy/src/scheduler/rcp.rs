//! `rcp`: what clients wait for goes first, within bounds (RCP, FAST'17, section 4;
//! `docs/design/criticality.md`, The backing's queue).
//!
//! Three queues, first in first out: critical operations, and of the others destaging and requests apart.
//!
//! **As published**: two queues; critical operations first; one non-critical one outstanding beside them; what is
//! waited for is promoted; slots that non-critical ones never take all of ([`BackingPriority`]: a quarter is left,
//! and one where the device has two).
//!
//! **What is different here.** When nothing critical has come for a while more and more non-critical ones may be
//! outstanding, so that the device is used. Destaging goes before other non-critical writes while the log fills.
//! What a device leaves for last is waited for ([`Overtaking`]). What it has acknowledged and a flush would wait for
//! counts as outstanding ([`Backlog`]), but while the log fills. **Bound.** Of the starts while both wait, and a
//! non-critical one may start, one in 16 is non-critical. The backlog lets 4 MiB of them start in a second at least.

use std::collections::{BTreeMap, VecDeque};

use forebay_block::OpKind;

use super::{Operation, Purpose, Round, Scheduler};
use crate::backlog::Backlog;
use crate::overtaking::{Overtaking, Standing};
use crate::priority::{Background, BackingPriority, NONCRITICAL_BYTES_EACH, Priority, Waiting};

/// An operation that has started.
#[derive(Clone, Copy, Debug)]
struct Started {
    operation: Operation,
    /// Somebody came to wait for it since.
    promoted: bool,
    /// Its number among those that may be overtaken.
    overtaking: u64,
}

impl Started {
    /// Bytes and requests that count as non-critical.
    fn noncritical(&self) -> (u64, usize) {
        match (self.operation.priority, self.operation.kind) {
            (Priority::Critical, _) => (0, 0),
            (Priority::NonCritical, kind) => {
                let bytes = if kind == OpKind::Write { self.operation.len } else { 0 };
                let request = self.operation.purpose == Purpose::Request;
                (bytes.min(NONCRITICAL_BYTES_EACH), usize::from(request))
            }
        }
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Rcp {
    chooser: BackingPriority,
    overtaking: Overtaking,
    backlog: Backlog,
    critical: VecDeque<Operation>,
    destaging: VecDeque<Operation>,
    requests: VecDeque<Operation>,
    outstanding: BTreeMap<u64, Started>,
    /// Bytes of those of them that are non-critical.
    noncritical_bytes: u64,
    /// Requests among these.
    requests_outstanding: usize,
    round: Round,
}

impl Rcp {
    /// Which of the non-critical operations is next.
    fn background(&mut self) -> Background {
        match (self.destaging.front(), self.requests.front()) {
            (Some(destage), Some(request)) => match self.round.requests_max {
                None if destage.number < request.number => Background::Destage,
                None => Background::Bypass,
                Some(_) => self.chooser.background(self.request_may_start()),
            },
            (Some(_), _) => Background::Destage,
            (None, _) => Background::Bypass,
        }
    }

    /// Until when no non-critical operation starts for the sake of flushes. Whoever waits for room in the log waits for
    /// destaging, whatever a flush takes.
    fn background_held_until(&self) -> Option<u64> {
        let waits = !(self.destaging.is_empty() && self.requests.is_empty());
        self.backlog.held_until().filter(|_| waits && self.round.requests_max.is_none())
    }

    fn request_may_start(&self) -> bool {
        self.round.requests_max.is_none_or(|max| self.requests_outstanding < max)
    }

    /// Takes an operation out of those that wait and are not critical.
    fn take_noncritical(&mut self, number: u64) -> Option<Operation> {
        [&mut self.destaging, &mut self.requests].into_iter().find_map(|queue| {
            // They stand in the order in which they came.
            queue.binary_search_by_key(&number, |o| o.number).ok().and_then(|at| queue.remove(at))
        })
    }
}

impl Scheduler for Rcp {
    fn arrived(&mut self, operation: Operation) {
        self.chooser.arrived(operation.priority);
        match (operation.priority, operation.purpose) {
            (Priority::Critical, _) => self.critical.push_back(operation),
            (Priority::NonCritical, Purpose::Destage) => self.destaging.push_back(operation),
            (Priority::NonCritical, Purpose::Request) => self.requests.push_back(operation),
        }
    }

    /// It goes behind the critical ones that are there already. What has started cannot be hurried, but nothing
    /// more that nobody waits for is started for its calm.
    fn promoted(&mut self, number: u64) {
        if let Some(started) = self.outstanding.get_mut(&number) {
            if started.operation.priority == Priority::NonCritical && !started.promoted {
                started.promoted = true;
                self.chooser.promoted();
                self.overtaking.promoted(started.overtaking);
            }
        } else if let Some(operation) = self.take_noncritical(number) {
            self.arrived(Operation { priority: Priority::Critical, ..operation });
        }
    }

    fn withdrawn(&mut self, number: u64) {
        if self.take_noncritical(number).is_none() {
            self.critical.retain(|operation| operation.number != number);
        }
    }

    fn begin_round(&mut self, round: Round, now_ns: u64) -> bool {
        self.round = round;
        self.backlog.pass(now_ns);
        let waits = !(self.critical.is_empty() && self.destaging.is_empty() && self.requests.is_empty());
        waits && !self.overtaking.holds_back(now_ns)
    }

    fn next(&mut self, now_ns: u64) -> Option<u64> {
        let requests = if self.request_may_start() { self.requests.len() } else { 0 };
        let is_held = self.background_held_until().is_some();
        let noncritical = if is_held { 0 } else { self.destaging.len() + requests };
        let priority = self.chooser.start(Waiting {
            slots: self.round.slots,
            critical: self.critical.len(),
            noncritical,
            beside_critical: self.round.beside_critical,
            noncritical_bytes: self.noncritical_bytes,
        })?;
        let queue = match priority {
            Priority::Critical => &mut self.critical,
            Priority::NonCritical if self.background() == Background::Destage => &mut self.destaging,
            Priority::NonCritical => &mut self.requests,
        };
        let operation = queue.pop_front()?;
        let standing = match (operation.kind, priority) {
            (OpKind::Flush | OpKind::Zero, _) => Standing::Apart,
            (_, Priority::Critical) => Standing::Awaited,
            (_, Priority::NonCritical) => Standing::Unawaited,
        };
        match operation.kind {
            OpKind::Write if !operation.durable => {
                self.backlog.written(operation.len, priority == Priority::Critical);
            }
            // Not one that Forebay needs for itself.
            OpKind::Flush if operation.issuer.sync => self.backlog.flush_started(operation.number),
            _ => {}
        }
        let overtaking = self.overtaking.started(standing, now_ns);
        let started = Started { operation, promoted: false, overtaking };
        let (bytes, requests) = started.noncritical();
        self.noncritical_bytes += bytes;
        self.requests_outstanding += requests;
        self.outstanding.insert(operation.number, started);
        Some(operation.number)
    }

    fn ended(&mut self, number: u64) {
        self.backlog.ended(number);
        if let Some(started) = self.outstanding.remove(&number) {
            let (bytes, requests) = started.noncritical();
            self.noncritical_bytes -= bytes;
            self.requests_outstanding -= requests;
            self.chooser.ended(started.operation.priority, started.promoted);
            self.overtaking.ended(started.overtaking);
        }
    }

    fn next_wake_ns(&self) -> Option<u64> {
        let held = self.overtaking.held_until();
        held.or_else(|| self.background_held_until())
    }

    fn holds(&self) -> u64 {
        self.overtaking.holds()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::scheduler::Issuer;

    fn operation(number: u64, purpose: Purpose, priority: Priority) -> Operation {
        Operation {
            number,
            kind: OpKind::Write,
            purpose,
            priority,
            issuer: Issuer::default(),
            offset: Some(0),
            len: 4096,
            durable: false,
            arrived_ns: 0,
        }
    }

    /// All that start in a round; they end at once.
    fn round(scheduler: &mut Rcp, round: Round) -> Vec<u64> {
        let mut started = Vec::new();
        assert!(scheduler.begin_round(round, 0));
        while let Some(number) = scheduler.next(0) {
            scheduler.ended(number);
            started.push(number);
        }
        started
    }

    fn waiting(operations: &[(u64, Purpose, Priority)]) -> Rcp {
        let mut scheduler = Rcp::default();
        for (number, purpose, priority) in operations {
            scheduler.arrived(operation(*number, *purpose, *priority));
        }
        scheduler
    }

    #[test]
    fn order_of_starts() {
        use Priority::{Critical, NonCritical};
        use Purpose::{Destage, Request};
        let all = [
            (1, Request, NonCritical),
            (2, Destage, NonCritical),
            (3, Request, Critical),
            (4, Destage, NonCritical),
            (5, Request, Critical),
        ];
        let calm = Round::default();
        assert_eq!(round(&mut waiting(&all), calm), [3, 5, 1, 2, 4]);
        // Destaging goes first while the log fills, and others only as far as they may.
        let fills = Round { requests_max: Some(1), ..calm };
        assert_eq!(round(&mut waiting(&all), fills), [3, 5, 2, 4, 1]);
        assert_eq!(round(&mut waiting(&all), Round { requests_max: Some(0), ..calm }), [3, 5, 2, 4]);
        // What is promoted goes behind what is critical already.
        let mut promoted = waiting(&all);
        promoted.promoted(4);
        promoted.promoted(1);
        assert_eq!(round(&mut promoted, calm), [3, 5, 4, 1, 2]);
        let mut withdrawn = waiting(&all);
        [1, 3, 4].into_iter().for_each(|number| withdrawn.withdrawn(number));
        assert_eq!(round(&mut withdrawn, calm), [5, 2]);
        assert!(!withdrawn.begin_round(calm, 0), "nothing waits");
    }

    #[test]
    fn a_slot_is_left_for_what_comes_to_be_awaited() {
        let few = Round { slots: 4, beside_critical: 9, requests_max: None };
        let mut scheduler = Rcp::default();
        (0..9).for_each(|n| scheduler.arrived(operation(n, Purpose::Destage, Priority::NonCritical)));
        assert!(scheduler.begin_round(few, 0));
        assert_eq!(std::iter::from_fn(|| scheduler.next(0)).collect::<Vec<_>>(), [0, 1, 2]);
        scheduler.arrived(operation(9, Purpose::Request, Priority::Critical));
        assert_eq!(std::iter::from_fn(|| scheduler.next(0)).collect::<Vec<_>>(), [9]);
    }

    #[test]
    fn what_a_flush_would_wait_for_counts_as_outstanding() {
        const MS: u64 = 1_000_000;
        use crate::scheduler::tests::{flush, given, one_by_one, start, write};
        let long = |number| Operation { len: 128 << 10, ..write(number) };
        // Of a device that takes 30 ms for each flush, and acknowledges writes at once.
        let mut rcp: Rcp = given([]);
        for n in 0..40 {
            rcp.arrived(long(2 * n));
            rcp.arrived(flush(2 * n + 1));
            assert_eq!(start(&mut rcp, 100 * n, 9), [2 * n + 1, 2 * n], "nothing is left of what was before");
            rcp.ended(2 * n);
            rcp.ended(2 * n + 1);
            assert_eq!(start(&mut rcp, 100 * n + 90, 9), []);
        }
        (100..102).for_each(|number| rcp.arrived(long(number)));
        assert_eq!(one_by_one(&mut rcp, 4000, 9), [100], "one, of which enough is left");
        let wake = rcp.next_wake_ns().expect("it is held until then");
        assert!(
            wake > 4010 * MS && rcp.begin_round(Round::default(), wake - MS) && rcp.next(wake - MS).is_none()
        );
        let mut fills = given::<Rcp>([]);
        fills.backlog = rcp.backlog.clone();
        fills.arrived(long(200));
        assert!(fills.begin_round(Round { requests_max: Some(9), ..Round::default() }, wake - MS));
        assert_eq!(fills.next(wake - MS), Some(200), "room in the log is waited for");
        assert!(rcp.begin_round(Round::default(), wake));
        assert_eq!(rcp.next(wake), Some(101));
    }

    proptest! {
        /// Whatever comes, is promoted, withdrawn and ends: each operation starts once, or is withdrawn before.
        #[test]
        fn each_starts_once(steps in proptest::collection::vec((0u8..10, any::<u8>()), 1..300), max in 0usize..3) {
            let mut scheduler = Rcp::default();
            let (mut waiting, mut outstanding) = (BTreeSet::new(), Vec::new());
            let requests_max = (max > 0).then_some(max);
            let facts = Round { beside_critical: max, requests_max, ..Round::default() };
            let drain = (0..4000u32).map(|n| (8 + (n % 2) as u8, 0));
            for (n, (step, pick)) in steps.into_iter().chain(drain).enumerate() {
                let number = n as u64;
                match step {
                    0..4 => {
                        let purpose = if pick & 1 == 0 { Purpose::Destage } else { Purpose::Request };
                        let priority = if pick & 6 == 0 { Priority::Critical } else { Priority::NonCritical };
                        scheduler.arrived(operation(number, purpose, priority));
                        waiting.insert(number);
                    }
                    4 | 5 => {
                        let some = waiting.iter().chain(&outstanding).nth(usize::from(pick) % 8).copied();
                        some.into_iter().for_each(|number| scheduler.promoted(number));
                    }
                    6 => {
                        if let Some(number) = waiting.iter().nth(usize::from(pick) % 8).copied() {
                            waiting.remove(&number);
                            scheduler.withdrawn(number);
                        }
                    }
                    7 | 8 => {
                        let begins = scheduler.begin_round(facts, 0);
                        prop_assert_eq!(begins, !waiting.is_empty());
                        while let Some(number) = scheduler.next(0) {
                            prop_assert!(waiting.remove(&number), "{number} does not wait");
                            outstanding.push(number);
                        }
                    }
                    _ if outstanding.is_empty() => {}
                    _ => scheduler.ended(outstanding.swap_remove(usize::from(pick) % outstanding.len())),
                }
            }
            prop_assert!(waiting.is_empty() && outstanding.is_empty(), "{waiting:?} never start");
        }
    }
}
