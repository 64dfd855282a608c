//! `split-d`: Split-Deadline (Yang et al., SOSP'15, Split-Level I/O Scheduling, section 5.2, and the authors' code).
//!
//! Reads have deadlines, and so has `fsync`; a write that nobody waits for has none. A block scheduler's deadlines of writes are
//! of no use to an `fsync`, which needs many of them. So the paper writes back what is dirty a little at a time, without a deadline, before the
//! `fsync` comes to the device: just so much that others keep their deadlines.
//!
//! 1. What is overdue goes first, the earliest deadline before others: a read after 500 ms, what an `fsync` waits for
//!    (a synchronous write, or what is promoted) after 5 ms if a client's request waits for it, else after 200 ms. A flush is due when it comes.
//! 2. Then reads and synchronous writes go in [batches](super::batches), as the block-level deadline scheduler has them.
//! 3. Write-back goes in portions: up to 400 KiB each 10 ms, and none before the last one has ended. A portion is halved when
//!    an `fsync`'s operation ends after its deadline, and grows by an eighth when one is in time. Without reads and `fsync` for a second there are no portions.
//!
//! The figures are those of the authors' code: two kinds of tasks with 5 and 200 ms, 100 pages of write-back, then a sleep of 10 ms.
//!
//! **What cannot be carried out.** The paper holds the call of `fsync` back, and counts what a file has dirty. Here an `fsync` is known by its
//! operations alone, when they come; a deadline is that of each one, and not of the call. The kernel's write-back is not asked for anything; it is
//! slowed down. Of which task a deadline is depends on whether the operation is critical, and not on what an administrator sets for the task.
//!
//! **Bounds.** Deadlines are kept in their order, so that whatever has one goes before all that comes 500 ms later. Of write-back one operation starts each
//! [`WRITE_BACK_NS_MAX`], whatever else there is, its oldest one if that has waited for 5 s.

use std::collections::BTreeMap;

use forebay_block::OpKind;

use super::batches::{Batch, Batches, Direction};
use super::deadline::{READ_EXPIRES_NS, WRITE_EXPIRES_NS};
use super::sorted::Sorted;
use super::{Operation, Round, Scheduler};
use crate::priority::Priority;

const MS: u64 = 1_000_000;
/// The deadline of what an `fsync` that a client's request waits for needs, in nanoseconds.
const FSYNC_CRITICAL_NS: u64 = 5 * MS;
/// Of what another one needs.
const FSYNC_NS: u64 = 200 * MS;
/// A portion of write-back at most, in bytes: 100 pages.
const PORTION_BYTES_MAX: u64 = 100 * 4096;
/// And at least.
const PORTION_BYTES_MIN: u64 = 4096;
/// From one portion to the next, in nanoseconds.
const PORTION_NS: u64 = 10 * MS;
/// Longest time in which nothing is written back although something waits, in nanoseconds.
pub(super) const WRITE_BACK_NS_MAX: u64 = 100 * MS;
/// After so long without a deadline there are no portions, in nanoseconds.
const CALM_NS: u64 = 1_000 * MS;

/// Something that has started.
#[derive(Clone, Copy, Debug)]
enum Started {
    Read,
    /// What an `fsync` waits for, and until when.
    Fsync(u64),
    WriteBack,
}

/// Write-back: what has no deadline.
#[derive(Debug)]
struct WriteBack {
    waiting: Sorted,
    position: u64,
    outstanding: usize,
    portion_bytes: u64,
    /// Bytes of the portion that have not started.
    left_bytes: u64,
    /// When the portion began.
    since_ns: Option<u64>,
    /// When one started last, or came while none waited.
    started_ns: u64,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct SplitD {
    waiting: BTreeMap<u64, Operation>,
    /// Reads first, and then what an `fsync` waits for.
    awaited: Batches,
    batch: Batch,
    write_back: WriteBack,
    outstanding: BTreeMap<u64, Started>,
    /// Deadlines of what ended since the last round: the earliest one, and how many.
    ended: Option<u64>,
    /// When something with a deadline came or ended last.
    awaited_ns: Option<u64>,
    now_ns: u64,
    wake_ns: Option<u64>,
}

impl Default for WriteBack {
    fn default() -> Self {
        Self {
            waiting: Sorted::default(),
            position: 0,
            outstanding: 0,
            portion_bytes: PORTION_BYTES_MAX,
            left_bytes: 0,
            since_ns: None,
            started_ns: 0,
        }
    }
}

/// After which time it is due that an operation of an `fsync` has ended.
fn fsync_ns(operation: &Operation) -> u64 {
    match operation.priority {
        Priority::Critical => FSYNC_CRITICAL_NS,
        Priority::NonCritical => FSYNC_NS,
    }
}

impl SplitD {
    fn insert_awaited(&mut self, operation: &Operation) {
        self.awaited_ns = self.awaited_ns.max(Some(operation.arrived_ns));
        let (direction, expires_ns) = match operation.kind {
            OpKind::Read => (Direction::First, READ_EXPIRES_NS),
            OpKind::Flush => (Direction::Second, 0),
            OpKind::Write | OpKind::Zero => (Direction::Second, fsync_ns(operation)),
        };
        self.awaited.of(direction).insert(operation, expires_ns);
    }

    fn start_awaited(&mut self, number: u64) -> Option<u64> {
        let operation = self.waiting.remove(&number)?;
        let started = match operation.kind {
            OpKind::Read => Started::Read,
            _ => Started::Fsync(operation.arrived_ns.saturating_add(fsync_ns(&operation))),
        };
        self.outstanding.insert(number, started);
        Some(number)
    }

    fn start_write_back(&mut self, now_ns: u64) -> Option<u64> {
        let work = &mut self.write_back;
        let number = work.waiting.expired(now_ns).or_else(|| work.waiting.upwards(work.position))?;
        let operation = self.waiting.remove(&number)?;
        work.waiting.remove(number);
        work.position = operation.offset.unwrap_or(0).saturating_add(operation.len);
        work.outstanding += 1;
        work.left_bytes = work.left_bytes.saturating_sub(operation.len);
        work.started_ns = now_ns;
        self.outstanding.insert(number, Started::WriteBack);
        Some(number)
    }

    /// Whether write-back may go on: nobody has deadlines, or there is something left of a portion, or it is time for the next one.
    fn may_write_back(&mut self, now_ns: u64) -> bool {
        let calm_ns = self.awaited_ns.map_or(0, |awaited| awaited.saturating_add(CALM_NS));
        let work = &mut self.write_back;
        if work.waiting.is_empty() {
            return false;
        }
        if now_ns >= calm_ns || work.left_bytes > 0 {
            return true;
        }
        let next_ns = work.since_ns.map_or(0, |since| since.saturating_add(PORTION_NS));
        if work.outstanding == 0 && now_ns >= next_ns {
            (work.left_bytes, work.since_ns) = (work.portion_bytes, Some(now_ns));
            return true;
        }
        let latest_ns = work.started_ns.saturating_add(WRITE_BACK_NS_MAX);
        let wake = if work.outstanding == 0 { next_ns } else { latest_ns };
        self.wake_ns = Some(wake.min(calm_ns).max(now_ns + 1));
        false
    }
}

impl Scheduler for SplitD {
    fn arrived(&mut self, operation: Operation) {
        self.waiting.insert(operation.number, operation);
        let is_awaited = matches!(operation.kind, OpKind::Read | OpKind::Flush) || operation.issuer.sync;
        if is_awaited {
            self.insert_awaited(&operation);
        } else {
            if self.write_back.waiting.is_empty() {
                self.write_back.started_ns = self.write_back.started_ns.max(operation.arrived_ns);
            }
            self.write_back.waiting.insert(&operation, WRITE_EXPIRES_NS);
        }
    }

    /// Write-back has a deadline from now on, and what an `fsync` waits for an earlier one.
    fn promoted(&mut self, number: u64) {
        let Some(operation) = self.waiting.get_mut(&number) else { return };
        if operation.priority == Priority::Critical {
            return;
        }
        operation.priority = Priority::Critical;
        let was_write_back = self.write_back.waiting.remove(number);
        if was_write_back {
            operation.arrived_ns = operation.arrived_ns.max(self.now_ns);
        }
        let operation = *operation;
        if was_write_back || self.awaited.remove(number) {
            self.insert_awaited(&operation);
        }
    }

    fn withdrawn(&mut self, number: u64) {
        if self.waiting.remove(&number).is_some() && !self.write_back.waiting.remove(number) {
            self.awaited.remove(number);
        }
    }

    fn begin_round(&mut self, _: Round, now_ns: u64) -> bool {
        (self.now_ns, self.wake_ns) = (now_ns, None);
        if let Some(deadline) = self.ended.take() {
            let portion = &mut self.write_back.portion_bytes;
            *portion = if now_ns > deadline { *portion / 2 } else { *portion + *portion / 8 };
            *portion = (*portion).clamp(PORTION_BYTES_MIN, PORTION_BYTES_MAX);
            self.awaited_ns = Some(now_ns);
        }
        !self.waiting.is_empty()
    }

    fn next(&mut self, now_ns: u64) -> Option<u64> {
        self.wake_ns = None;
        let latest_ns = self.write_back.started_ns.saturating_add(WRITE_BACK_NS_MAX);
        if !self.write_back.waiting.is_empty() && now_ns >= latest_ns {
            return self.start_write_back(now_ns);
        }
        let overdue = self.awaited.first_due().filter(|(due, _)| *due <= now_ns).map(|(_, number)| number);
        if let Some(number) = overdue {
            self.awaited.remove(number);
            return self.start_awaited(number);
        }
        if let Some(number) = self.awaited.next(&mut self.batch, now_ns) {
            return self.start_awaited(number);
        }
        if self.may_write_back(now_ns) { self.start_write_back(now_ns) } else { None }
    }

    fn ended(&mut self, number: u64) {
        match self.outstanding.remove(&number) {
            Some(Started::Fsync(deadline)) => {
                self.ended = Some(self.ended.map_or(deadline, |earliest| earliest.min(deadline)));
            }
            Some(Started::WriteBack) => self.write_back.outstanding -= 1,
            Some(Started::Read) | None => {}
        }
    }

    fn next_wake_ns(&self) -> Option<u64> {
        self.wake_ns
    }

    fn holds(&self) -> u64 {
        0
    }
}
