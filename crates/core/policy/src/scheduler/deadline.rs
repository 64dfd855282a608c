//! `deadline`: Linux's `mq-deadline` (`block/mq-deadline.c`, Linux 6.x): each operation is due some time after it came, and goes in batches
//! by its place until then.
//!
//! Three classes by I/O priority, real time, best effort and idle. Of a class nothing starts while a better one waits, but for what has
//! waited for [`AGING_NS`]. Within a class reads go before writes, in [batches](super::batches).
//!
//! **What is different here.** Neighbours are not merged: the layers above have done that. The kernel looks for what has aged at the place
//! where a class's batch goes on, and may miss it for as long as others come there. Here the oldest one of a class goes, as soon as it has
//! aged, and alternately with the better class: so whatever waits starts within [`AGING_NS`] and twice the time of what is older.
//! `async_depth` is no matter of this file, since the queue's slots are not the scheduler's. Who waits for what is not known to it:
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
const AGING_NS: u64 = 10_000_000_000;

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
            OpKind::Write | OpKind::Zero | OpKind::Flush => (Direction::Second, WRITE_EXPIRES_NS),
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
