//! `split-d`: Split-Deadline (Yang et al., SOSP'15, Split-Level I/O Scheduling, section 5.2, and the authors'
//! code).
//!
//! Reads have deadlines, and so has `fsync`; a write that nobody waits for has none. A block scheduler's
//! deadlines of writes are of no use to an `fsync`, which needs many of them. So the paper writes back what is
//! dirty a little at a time, without a deadline, before the `fsync` comes to the device: just so much that
//! others keep their deadlines.
//!
//! 1. What is overdue goes first, the earliest deadline before others: a read after 500 ms, what an `fsync`
//!    waits for (a synchronous write, or what is promoted) after 5 ms if a client's request waits for it, else
//!    after 200 ms. A flush is due when it comes.
//! 2. Then reads and synchronous writes go in [batches](super::batches), as the block-level deadline scheduler
//!    has them.
//! 3. Write-back goes in portions: up to 400 KiB each 10 ms, and none before the last one has ended. A portion
//!    is halved when an `fsync`'s operation ends after its deadline, and grows by an eighth when one is in
//!    time. Without reads and `fsync` for a second there are no portions.
//!
//! The figures are those of the authors' code: two kinds of tasks with 5 and 200 ms, 100 pages of write-back,
//! then a sleep of 10 ms.
//!
//! **What cannot be carried out.** The paper holds the call of `fsync` back, and counts what a file has dirty.
//! Here an `fsync` is known by its operations alone, when they come; a deadline is that of each one, and not of
//! the call. The kernel's write-back is not asked for anything; it is slowed down. Of which task a deadline is
//! depends on whether the operation is critical, and not on what an administrator sets for the task.
//!
//! **Bounds.** Deadlines are kept in their order, so that whatever has one goes before all that comes 500 ms
//! later. Of write-back one operation starts each [`WRITE_BACK_NS_MAX`], whatever else there is, its oldest one
//! if that has waited for 5 s.

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
            OpKind::Write | OpKind::Zero | OpKind::Commit => (Direction::Second, fsync_ns(operation)),
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

    /// Whether write-back may go on: nobody has deadlines, or there is something left of a portion, or it is
    /// time for the next one.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::tests::*;
    use super::*;

    fn background(operation: Operation) -> Operation {
        Operation { priority: Priority::NonCritical, ..operation }
    }

    #[test]
    fn order() {
        // What comes, what is promoted, when in milliseconds, and the order.
        type Case = (&'static str, Vec<Operation>, &'static [u64], u64, &'static [u64]);
        let cases: [Case; 6] = [
            (
                "by place, reads before what an fsync waits for, write-back last; a flush is due at once",
                vec![write(1), sync_write(2), read(3).at(9), read(4).at(8), flush(5).came(1)],
                &[],
                1,
                &[5, 4, 3, 2, 1],
            ),
            (
                "after 5 ms a critical write goes before reads, after 200 ms another one, after 500 ms a read",
                vec![
                    read(1).came(1),
                    sync_write(2).came(195),
                    background(sync_write(3)),
                    read(4).at(8).came(199),
                ],
                &[],
                200,
                &[2, 3, 1, 4],
            ),
            (
                "the earliest deadline before others",
                vec![
                    read(1),
                    background(sync_write(2)).came(300),
                    sync_write(3).came(494),
                    background(sync_write(4)).came(1).at(9),
                ],
                &[],
                500,
                &[4, 3, 1, 2],
            ),
            (
                "what is awaited has a deadline",
                vec![write(1), write(2).at(8), destage(3), read(4).at(1)],
                &[3, 4],
                0,
                &[4, 3, 1, 2],
            ),
            (
                "an earlier one than before, if it had one",
                vec![background(sync_write(1)).came(80), background(sync_write(2)).came(81), read(3)],
                &[2],
                90,
                &[2, 3, 1],
            ),
            (
                "write-back goes upwards, and what waits for 5 s first",
                vec![write(1).at(9), write(2).came(1).at(5), write(3).came(1).at(2)],
                &[],
                5000,
                &[1, 3, 2],
            ),
        ];
        for (what, operations, promoted, ms, wanted) in cases {
            let mut split: SplitD = given(operations);
            promoted.iter().for_each(|number| split.promoted(*number));
            let mut order = Vec::new();
            // At this very time, but for write-back, which has its times.
            for now in std::iter::repeat_n(ms, wanted.len()).chain(ms..ms + 30) {
                let started = start(&mut split, now, 1);
                started.iter().for_each(|number| split.ended(*number));
                order.extend(started);
            }
            assert_eq!(order, wanted, "{what}");
        }
    }

    /// When write-back starts, in milliseconds, and how many each time, in so long a time; each operation is of
    /// 64 KiB and takes so many milliseconds. With it come critical writes of an `fsync`, one each 50 ms, which
    /// end after so long.
    fn portions(write_back_ms: u64, fsync_ms: u64, lasts_ms: u64) -> Vec<(u64, usize)> {
        let mut split: SplitD = given((0..500).map(|n| Operation { len: 64 << 10, ..write(n) }.at(n << 16)));
        let (mut device, mut portions) = (BTreeSet::new(), Vec::new());
        for now in 0..lasts_ms {
            if now % 50 == 0 {
                split.arrived(sync_write(1000 + now).came(now));
            }
            let later: BTreeSet<(u64, u64)> = device.split_off(&(now + 1, 0));
            std::mem::replace(&mut device, later).iter().for_each(|(_, number)| split.ended(*number));
            let started = start(&mut split, now, 99);
            let write_back = started.iter().filter(|number| **number < 1000).count();
            for number in started {
                let takes = if number < 1000 { write_back_ms } else { fsync_ms };
                device.insert((now + takes, number));
            }
            portions.extend((write_back > 0).then_some((now, write_back)));
        }
        portions
    }

    #[test]
    fn write_back_goes_in_portions_that_let_deadlines_be_kept() {
        // 400 KiB are seven of 64 KiB, since the last one may go beyond.
        assert_eq!(portions(3, 1, 45), [(0, 7), (10, 7), (20, 7), (30, 7), (40, 7)]);
        assert_eq!(
            portions(25, 1, 90),
            [(0, 7), (25, 7), (50, 7), (75, 7)],
            "not before the last one has ended"
        );
        let late = portions(3, 6, 400);
        let at = |ms: u64| late.iter().find(|(now, _)| *now >= ms).map(|(_, count)| *count);
        assert_eq!(
            [0, 10, 60, 110, 390].map(at),
            [Some(7), Some(4), Some(2), Some(1), Some(1)],
            "halved each time"
        );
        assert_eq!(portions(3, 5, 400).iter().filter(|(_, count)| *count == 7).count(), 40, "in time");
    }

    #[test]
    fn a_portion_grows_again() {
        let mut split = SplitD::default();
        let mut fsync = |number: u64, takes_ms: u64| {
            split.arrived(sync_write(number).came(number * 10));
            assert_eq!(start(&mut split, number * 10, 9), [number]);
            split.ended(number);
            start(&mut split, number * 10 + takes_ms, 9);
            split.write_back.portion_bytes
        };
        assert_eq!(
            [(1, 5), (2, 6), (3, 9), (4, 5)].map(|(n, ms)| fsync(n, ms)),
            [409_600, 204_800, 102_400, 115_200]
        );
        (5..20).for_each(|number| _ = fsync(number, 9));
        assert_eq!(fsync(20, 9), PORTION_BYTES_MIN);
        (21..80).for_each(|number| _ = fsync(number, 1));
        assert_eq!(fsync(80, 1), PORTION_BYTES_MAX);
    }

    #[test]
    fn write_back_waits_for_its_time_and_not_longer() {
        let mut split: SplitD = given((0..20).map(|n| Operation { len: 400 << 10, ..write(n) }));
        split.arrived(read(50).at(1));
        assert_eq!(start(&mut split, 0, 99), [50, 0]);
        assert_eq!((start(&mut split, 1, 99), split.next_wake_ns()), (vec![], Some(WRITE_BACK_NS_MAX)));
        split.ended(0);
        assert_eq!((start(&mut split, 2, 99), split.next_wake_ns()), (vec![], Some(PORTION_NS)));
        assert_eq!(start(&mut split, 10, 99), [1]);
        assert_eq!(
            (start(&mut split, 109, 99), start(&mut split, 110, 99)),
            (vec![], vec![2]),
            "one is stuck"
        );
        split.withdrawn(5);
        assert_eq!(start(&mut split, 1000, 99).len(), 16, "a second without deadlines");
        // While deadlines are overdue all the time it has one each 100 ms.
        let mut split: SplitD = given((0..900).map(sync_write).chain((1000..1020).map(write)));
        let order = one_by_one(&mut split, 0, 450);
        assert_eq!((0..450).filter(|at| order[*at] >= 1000).collect::<Vec<_>>(), [100, 200, 300, 400]);
    }

    #[test]
    fn nothing_is_kept_of_what_has_ended() {
        let mut split: SplitD = given([read(1), write(2), flush(3), sync_write(4), destage(5)]);
        [1, 4, 5, 99].into_iter().for_each(|number| split.withdrawn(number));
        assert_eq!(one_by_one(&mut split, 0, 9), [3, 2]);
        assert!(!split.begin_round(Round::default(), 9) && split.next(9).is_none());
        assert!(
            split.waiting.is_empty() && split.outstanding.is_empty() && split.write_back.outstanding == 0
        );
    }
}
