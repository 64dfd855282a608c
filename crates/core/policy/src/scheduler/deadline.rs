//! `deadline`: Linux's `mq-deadline` (`block/mq-deadline.c`, Linux 6.x): each operation is due some time after
//! it came, and goes in batches by its place until then.
//!
//! Three classes by I/O priority, real time, best effort and idle. Of a class nothing starts while a better one
//! waits, but for what has waited for [`AGING_NS`]. Within a class reads go before writes, in
//! [batches](super::batches).
//!
//! **What is different here.** Neighbours are not merged: the layers above have done that. The kernel looks for
//! what has aged at the place where a class's batch goes on, and may miss it for as long as others come there.
//! Here the oldest one of a class goes, as soon as it has aged, and alternately with the better class: so
//! whatever waits starts within [`AGING_NS`] and twice the time of what is older. `async_depth` is no matter of
//! this file, since the queue's slots are not the scheduler's. Who waits for what is not known to it:
//! promotions change nothing.

use std::collections::BTreeMap;

use forebay_block::OpKind;

use super::batches::{Batch, Batches, Direction};
use super::sorted::Sorted;
use super::{IoClass, Operation, Round, Scheduler};

/// A read is due after so long, in nanoseconds (`read_expire`).
pub(super) const READ_EXPIRES_NS: u64 = 500_000_000;
/// A write is due after so long, in nanoseconds (`write_expire`).
pub(super) const WRITE_EXPIRES_NS: u64 = 5_000_000_000;
/// After so long an operation does not wait for better classes any more, in nanoseconds (`prio_aging_expire`).
pub(super) const AGING_NS: u64 = 10_000_000_000;

/// What waits of one class.
#[derive(Debug, Default)]
struct Class {
    batches: Batches,
    /// By when they came.
    by_age: Sorted,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Deadline {
    classes: BTreeMap<IoClass, Class>,
    batch: Batch,
    /// What started last had aged.
    was_aged: bool,
}

impl Deadline {
    /// What has aged, of the classes that wait behind a better one; the oldest one.
    fn aged(&self, now_ns: u64) -> Option<(IoClass, u64)> {
        let of_class = |(class, waiting): (&IoClass, &Class)| {
            waiting
                .by_age
                .first_due()
                .filter(|(due, _)| *due <= now_ns)
                .map(|(due, number)| (due, number, *class))
        };
        let waiting = self.classes.iter().filter(|(_, waiting)| !waiting.by_age.is_empty());
        waiting.skip(1).filter_map(of_class).min().map(|(_, number, class)| (class, number))
    }
}

impl Scheduler for Deadline {
    fn arrived(&mut self, operation: Operation) {
        let class = self.classes.entry(operation.issuer.io_priority.class()).or_default();
        let (direction, expires_ns) = match operation.kind {
            OpKind::Read => (Direction::First, READ_EXPIRES_NS),
            OpKind::Write | OpKind::Zero | OpKind::Flush | OpKind::Commit => {
                (Direction::Second, WRITE_EXPIRES_NS)
            }
        };
        class.batches.of(direction).insert(&operation, expires_ns);
        class.by_age.insert(&operation, AGING_NS);
    }

    fn promoted(&mut self, _: u64) {}

    fn withdrawn(&mut self, number: u64) {
        for class in self.classes.values_mut() {
            if class.by_age.remove(number) {
                class.batches.remove(number);
            }
        }
    }

    fn begin_round(&mut self, _: Round, _: u64) -> bool {
        self.classes.values().any(|class| !class.by_age.is_empty())
    }

    fn next(&mut self, now_ns: u64) -> Option<u64> {
        let aged = if self.was_aged { None } else { self.aged(now_ns) };
        self.was_aged = aged.is_some();
        if let Some((class, number)) = aged {
            let class = self.classes.get_mut(&class)?;
            class.by_age.remove(number);
            class.batches.remove(number);
            return Some(number);
        }
        let class = self.classes.values_mut().find(|class| !class.by_age.is_empty())?;
        let number = class.batches.next(&mut self.batch, now_ns)?;
        class.by_age.remove(number);
        Some(number)
    }

    fn ended(&mut self, _: u64) {}

    fn next_wake_ns(&self) -> Option<u64> {
        None
    }

    fn holds(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::super::FlushesFirst;
    use super::super::tests::*;
    use super::*;

    type Tested = FlushesFirst<Deadline>;

    const K: u64 = 1024;

    #[test]
    fn order() {
        let upwards = |range: std::ops::Range<u64>| range.map(|n| read(n).at(n * 4 * K));
        let by_16: Vec<u64> = (1..=32).chain([99]).chain(33..=40).collect();
        let cases: [(&str, Vec<Operation>, u64, Vec<u64>); 8] = [
            (
                "by place, reads before writes",
                vec![write(1).at(5), read(2).at(300 * K), read(3).at(100 * K), write(4), read(5).at(200 * K)],
                0,
                vec![3, 5, 2, 4, 1],
            ),
            (
                "two batches of reads, then one of writes",
                upwards(1..41).chain([write(99).at(0)]).collect(),
                0,
                by_16,
            ),
            (
                "an overdue read begins the batch, which goes up from there; then the oldest begins one",
                vec![
                    read(1).at(900 * K),
                    read(2).came(400).at(200 * K),
                    read(3).came(400).at(100 * K),
                    read(4).came(400).at(901 * K),
                ],
                500,
                vec![1, 4, 2, 3],
            ),
            ("it is not due before", vec![read(1).at(9 * K), read(2).came(1).at(8 * K)], 498, vec![2, 1]),
            (
                "writes are due later",
                vec![write(1).at(9 * K), write(2).came(1).at(8 * K), read(3).came(4000)],
                4997,
                vec![3, 2, 1],
            ),
            ("overdue writes", vec![write(1).at(9 * K), write(2).came(1).at(8 * K)], 5000, vec![1, 2]),
            (
                "classes, whatever is overdue in a lower one",
                vec![
                    read(1).with(3, 0),
                    read(2),
                    sync_write(3).with(1, 7),
                    read(4).with(2, 7),
                    read(5).with(1, 0),
                ],
                9000,
                vec![5, 3, 2, 4, 1],
            ),
            (
                "what has aged goes before better classes, the oldest first, in turns with them",
                vec![
                    read(1).with(3, 0),
                    write(2).came(1),
                    read(3).came(2),
                    read(4).came(9000).with(1, 0),
                    read(5).came(9000).with(1, 0),
                ],
                10_002,
                vec![1, 4, 2, 5, 3],
            ),
        ];
        for (what, operations, ms, wanted) in cases {
            assert_eq!(one_by_one(&mut given::<Tested>(operations), ms, 50), wanted, "{what}");
        }
    }

    #[test]
    fn flushes_take_turns_with_the_rest() {
        let mut deadline = given::<Tested>([read(1), read(2), flush(3), flush(4), flush(5), flush(6)]);
        deadline.withdrawn(5);
        assert_eq!(start(&mut deadline, 0, 9), [3, 1, 4, 2, 6]);
        assert_eq!(
            start(&mut given::<Tested>([flush(1), flush(2), flush(3)]), 0, 9),
            [1, 2, 3],
            "nothing else waits"
        );
    }

    #[test]
    fn what_is_withdrawn_does_not_start_and_promotions_change_nothing() {
        let mut deadline = given::<Tested>([read(1).at(8), read(2).at(4), write(3), read(4).at(2)]);
        [2, 9].into_iter().for_each(|number| deadline.withdrawn(number));
        [3, 1, 9].into_iter().for_each(|number| deadline.promoted(number));
        assert_eq!(start(&mut deadline, 0, 9), [4, 1, 3]);
        assert!(!deadline.begin_round(Round::default(), 0));
    }
}
