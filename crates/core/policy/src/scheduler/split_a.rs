//! `split-a`: Split-AFQ, actually fair queuing (Yang et al., SOSP'15, Split-Level I/O Scheduling, section 5.1,
//! and the authors' code).
//!
//! Stride scheduling by cause. Each task has an account. What it starts costs its length and a seek, if it does
//! not go on where the task's last one ended; the account advances by the cost over the weight, which is 8 for
//! I/O level 0 and 1 for level 7. The account that is furthest behind has the next batch: up to [`BATCH_MAX`]
//! operations in the order in which they came, and further accounts' if those are fewer than [`BATCH_MIN`]. The
//! next batch begins when this one has ended, or after [`BATCH_NS_MAX`].
//!
//! What others wait for goes at once, before all batches, and is charged to its task all the same: below a
//! journal an operation of little weight may be what a weighty `fsync` needs, so that the paper does not hold
//! back writes at the block level.
//!
//! **What cannot be carried out.** The paper schedules writes and `fsync` where they are called, above the page
//! cache, and reads below it. Here all is below: writes are scheduled as they come, flushes with them, and a
//! task that fills the page cache is not stopped there. The cause of a page that is written back is one task,
//! which the tracker tells, and not a set of tasks. What is of no known task shares an account; Forebay's
//! destaging has one of its own. Costs are not corrected later by what a batch cost as a whole. Classes of I/O
//! priority are unknown to it: idle counts as level 7. It does not keep a disk idle for a task that reads in
//! sequence, for the reason that [CFQ](super::cfq) here does not.
//!
//! **Bounds.** An account that has waited comes to be the one furthest behind, since all others advance. One
//! that comes back stands where the one that is furthest behind stands, at least; so no account saves up. New
//! accounts could come without end, each behind all others: what has waited for [`AGING_NS`] goes before batches,
//! the oldest first, and alternately with the rest. Of
//! the starts while both wait, one in 16 is of a batch. At most [`ACCOUNTS_MAX`] accounts that are not waiting
//! are remembered, and none once nothing waits or is outstanding.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use forebay_block::OpKind;

use super::deadline::AGING_NS;
use super::fifo::take;
use super::turns::Turns;
use super::{IoClass, Operation, Purpose, Round, Scheduler};

/// Operations of a batch that one account has at most.
const BATCH_MAX: usize = 100;
/// Operations of a batch, as far as there are so many.
const BATCH_MIN: usize = 5;
/// After so long the next batch begins whatever is outstanding of the last one, in nanoseconds.
pub(super) const BATCH_NS_MAX: u64 = 200_000_000;
/// What a seek costs, in bytes of sequential I/O.
const SEEK_BYTES: u64 = 256 << 10;
/// What a pass is counted in, so that each weight divides it.
const TOTAL_SHARE: u64 = 840;
/// Accounts that are remembered although nothing of them waits.
const ACCOUNTS_MAX: usize = 1024;

/// Who is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    Task(u32),
    Destaging,
}

#[derive(Debug, Default)]
struct Account {
    waiting: VecDeque<Operation>,
    /// What it has had, by its weight.
    pass: u64,
    /// Where its last operation ended.
    position: u64,
}

/// The batch whose operations start, or are outstanding.
#[derive(Debug, Default)]
struct Batch {
    outstanding: BTreeSet<u64>,
    since_ns: u64,
    /// Whose operations start, and how many of it have.
    account: Option<(Cause, usize)>,
    started: usize,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct SplitA {
    accounts: BTreeMap<Cause, Account>,
    causes: BTreeMap<u64, Cause>,
    /// What somebody came to wait for.
    wanted: VecDeque<Operation>,
    before_batches: Turns,
    batch: Batch,
    outstanding: BTreeSet<u64>,
    /// The pass of the account that was furthest behind last.
    pass: u64,
    wake_ns: Option<u64>,
    /// What started last had aged.
    was_aged: bool,
}

/// What it costs, in bytes.
fn cost(operation: &Operation, position: u64) -> u64 {
    let goes_on = operation.kind != OpKind::Flush && operation.offset == Some(position);
    operation.len.saturating_add(if goes_on { 0 } else { SEEK_BYTES })
}

fn weight(operation: &Operation) -> u64 {
    let io_priority = operation.issuer.io_priority;
    let level = if io_priority.class() == IoClass::Idle { 7 } else { io_priority.level() };
    8 - u64::from(level.min(7))
}

impl SplitA {
    /// Whether anything waits for a batch.
    fn is_waiting(&self) -> bool {
        !self.causes.is_empty()
    }

    fn take(&mut self, number: u64) -> Option<Operation> {
        let account = self.accounts.get_mut(&self.causes.remove(&number)?)?;
        let at = account.waiting.binary_search_by_key(&number, |operation| operation.number).ok()?;
        account.waiting.remove(at)
    }

    /// Charges an operation that starts to its cause. Who was behind because it was away has saved nothing.
    fn started(&mut self, operation: &Operation) -> u64 {
        let account = self.accounts.entry(cause(operation)).or_default();
        account.pass = account.pass.max(self.pass);
        let cost = cost(operation, account.position).saturating_mul(TOTAL_SHARE) / weight(operation);
        account.pass = account.pass.saturating_add(cost);
        if let Some(offset) = operation.offset {
            account.position = offset.saturating_add(operation.len);
        }
        self.outstanding.insert(operation.number);
        operation.number
    }

    /// The account that is furthest behind, of those that wait.
    fn furthest_behind(&mut self) -> Option<Cause> {
        let waiting = self.accounts.iter().filter(|(_, account)| !account.waiting.is_empty());
        let (pass, cause) = waiting.map(|(cause, account)| (account.pass, *cause)).min()?;
        self.pass = self.pass.max(pass);
        Some(cause)
    }

    /// The account of which an operation starts in this batch, or in the next one.
    fn account(&mut self, now_ns: u64) -> Option<Cause> {
        if let Some((cause, started)) = self.batch.account {
            let waits = self.accounts.get(&cause).is_some_and(|account| !account.waiting.is_empty());
            if waits && started < BATCH_MAX {
                return Some(cause);
            }
            if !waits && self.batch.started < BATCH_MIN && self.is_waiting() {
                return self.furthest_behind();
            }
            self.batch.account = None;
        }
        let lasts_until = self.batch.since_ns.saturating_add(BATCH_NS_MAX);
        if !self.batch.outstanding.is_empty() && now_ns < lasts_until {
            self.wake_ns = Some(lasts_until);
            return None;
        }
        self.batch = Batch { since_ns: now_ns, ..Batch::default() };
        self.furthest_behind()
    }

    /// Starts the oldest of what waits for a batch, if it has waited for too long.
    fn start_aged(&mut self, now_ns: u64) -> Option<u64> {
        let (number, cause) = self.causes.first_key_value()?;
        let oldest = self.accounts.get(cause)?.waiting.front()?;
        if oldest.arrived_ns.saturating_add(AGING_NS) > now_ns {
            return None;
        }
        let operation = self.take(*number)?;
        Some(self.started(&operation))
    }

    fn start_wanted(&mut self) -> Option<u64> {
        let operation = self.wanted.pop_front()?;
        self.before_batches.first_started(self.is_waiting());
        Some(self.started(&operation))
    }

    fn start_of_batch(&mut self, now_ns: u64) -> Option<u64> {
        let cause = self.account(now_ns)?;
        let account = self.accounts.get_mut(&cause)?;
        let operation = account.waiting.pop_front()?;
        self.causes.remove(&operation.number);
        self.before_batches.second_started();
        let started = match self.batch.account {
            Some((before, started)) if before == cause => started,
            _ => 0,
        };
        self.batch.account = Some((cause, started + 1));
        self.batch.started += 1;
        self.batch.outstanding.insert(operation.number);
        Some(self.started(&operation))
    }

    /// Accounts of which nothing waits are remembered while they are ahead of the others: they would get more
    /// than their share without.
    fn forget(&mut self) {
        if !self.is_waiting() && self.wanted.is_empty() && self.outstanding.is_empty() {
            (self.accounts, self.pass) = (BTreeMap::new(), 0);
            return;
        }
        let pass = self.pass;
        self.accounts.retain(|_, account| !account.waiting.is_empty() || account.pass > pass);
        let idle = |(_, account): &(&Cause, &Account)| account.waiting.is_empty();
        while self.accounts.iter().filter(idle).count() > ACCOUNTS_MAX {
            let least =
                self.accounts.iter().filter(idle).min_by_key(|(cause, account)| (account.pass, **cause));
            let Some(cause) = least.map(|(cause, _)| *cause) else { return };
            self.accounts.remove(&cause);
        }
    }
}

fn cause(operation: &Operation) -> Cause {
    match operation.purpose {
        Purpose::Destage => Cause::Destaging,
        Purpose::Request => Cause::Task(operation.issuer.task),
    }
}

impl Scheduler for SplitA {
    fn arrived(&mut self, operation: Operation) {
        let cause = cause(&operation);
        self.accounts.entry(cause).or_default().waiting.push_back(operation);
        self.causes.insert(operation.number, cause);
    }

    fn promoted(&mut self, number: u64) {
        let wanted = self.take(number);
        self.wanted.extend(wanted);
    }

    fn withdrawn(&mut self, number: u64) {
        if take(&mut self.wanted, number).is_none() {
            self.take(number);
        }
    }

    fn begin_round(&mut self, _: Round, _: u64) -> bool {
        self.wake_ns = None;
        self.forget();
        self.is_waiting() || !self.wanted.is_empty()
    }

    fn next(&mut self, now_ns: u64) -> Option<u64> {
        let aged = if self.was_aged { None } else { self.start_aged(now_ns) };
        self.was_aged = aged.is_some();
        aged.or_else(|| match self.before_batches.is_second() {
            false => self.start_wanted().or_else(|| self.start_of_batch(now_ns)),
            true => self.start_of_batch(now_ns).or_else(|| self.start_wanted()),
        })
    }

    fn ended(&mut self, number: u64) {
        self.outstanding.remove(&number);
        self.batch.outstanding.remove(&number);
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
    use super::super::tests::*;
    use super::*;

    /// So many of each of these, by turns.
    fn many(each: u64, kinds: &[fn(u64) -> Operation]) -> Vec<Operation> {
        let count = kinds.len() as u64;
        (0..each * count).map(|n| kinds[(n % count) as usize](n + 1)).collect()
    }

    /// How many of so many starts each of these has, whose operations come by turns.
    fn shares(kinds: &[fn(u64) -> Operation], starts: usize) -> Vec<usize> {
        let mut split: SplitA = given(many(starts as u64, kinds));
        let order = one_by_one(&mut split, 0, starts);
        assert_eq!(order.len(), starts);
        let is_of = |number: &u64, at: usize| (number - 1) as usize % kinds.len() == at;
        (0..kinds.len()).map(|at| order.iter().filter(|number| is_of(number, at)).count()).collect()
    }

    #[test]
    fn a_task_has_its_share_by_weight_and_cost() {
        type Case = (&'static str, &'static [fn(u64) -> Operation], &'static [usize]);
        let cases: [Case; 6] = [
            ("alike", &[|n| read(n).of(1), |n| sync_write(n).of(2)], &[900, 900]),
            (
                "levels 0 and 4 weigh 8 and 4",
                &[|n| write(n).of(1).with(2, 0), |n| read(n).of(2)],
                &[1200, 600],
            ),
            (
                "level 7 and idle weigh 1",
                &[|n| read(n).of(1).with(2, 7), |n| read(n).of(2).with(3, 0)],
                &[900, 900],
            ),
            (
                "5 tasks",
                &[
                    |n| read(n).of(1),
                    |n| read(n).of(2),
                    |n| read(n).of(3),
                    |n| read(n).of(4),
                    |n| read(n).of(5),
                ],
                &[400, 400, 400, 300, 300],
            ),
            // A seek costs 256 KiB: 260 KiB against 4 KiB, in batches of 100.
            ("in sequence", &[|n| read(n).of(1).at(n << 30), |n| read(n).of(2).at(n << 11)], &[100, 1700]),
            (
                "destaging has an account, those of no known task share one",
                &[read, destage, write],
                &[450, 900, 450],
            ),
        ];
        for (what, kinds, wanted) in cases {
            let shares = shares(kinds, 1800);
            let is_near = |(share, wanted): (&usize, &usize)| share.abs_diff(*wanted) <= 100;
            assert!(shares.iter().zip(wanted).all(is_near), "{what}: {shares:?}");
        }
    }

    #[test]
    fn order() {
        // Promoted, withdrawn, and what starts in the first batch and in the second.
        type Case = (&'static [u64], &'static [u64], [&'static [u64]; 2]);
        // In batches: the account that is furthest behind first, and others as long as it is small.
        let came =
            || [read(1).of(1), write(2).of(2), read(3).of(1), flush(4).of(3), read(5).of(2), destage(6)];
        let cases: [Case; 4] = [
            (&[], &[], [&[1, 3, 2, 5, 4], &[6]]),
            (&[5, 4], &[], [&[5, 4, 1, 3, 6, 2], &[]]),
            (&[], &[1, 6, 99], [&[3, 2, 5, 4], &[]]),
            (&[6, 99], &[6], [&[1, 3, 2, 5, 4], &[]]),
        ];
        for (promoted, withdrawn, wanted) in cases {
            let mut split: SplitA = given(came());
            promoted.iter().for_each(|number| split.promoted(*number));
            withdrawn.iter().for_each(|number| split.withdrawn(*number));
            let first = start(&mut split, 0, 9);
            assert_eq!(first, wanted[0], "{promoted:?} {withdrawn:?}");
            first.iter().for_each(|number| split.ended(*number));
            assert_eq!(start(&mut split, 1, 9), wanted[1], "{promoted:?} {withdrawn:?}");
        }
    }

    #[test]
    fn a_batch_waits_for_the_last_one_but_what_is_awaited_does_not() {
        let mut split: SplitA = given((1..250).map(|n| read(n).of(1)));
        assert_eq!(start(&mut split, 0, 500).len(), 100);
        assert_eq!((start(&mut split, 1, 500).len(), split.next_wake_ns()), (0, Some(BATCH_NS_MAX)));
        split.promoted(240);
        assert_eq!(start(&mut split, 2, 500), [240]);
        assert_eq!(start(&mut split, 200, 500).len(), 100, "after 200 ms, whatever is outstanding");
        (101..201).for_each(|number| split.ended(number));
        assert_eq!(start(&mut split, 201, 500).len(), 48);
    }

    #[test]
    fn what_is_awaited_is_charged_and_does_not_starve_batches() {
        let mut split: SplitA = given((0..60).map(|n| read(n).of(1)).chain((60..120).map(|n| read(n).of(2))));
        (0..40).for_each(|number| split.promoted(number));
        let order = one_by_one(&mut split, 0, 200);
        let second: Vec<usize> = (0..120).filter(|at| order[*at] >= 60).collect();
        assert_eq!(second[..4], [15, 31, 42, 43], "one in 16");
        let first_rest = order.iter().position(|number| (40..60).contains(number));
        assert_eq!(first_rest, Some(100), "its account is 40 ahead");
    }

    #[test]
    fn who_was_away_saves_nothing_and_who_is_ahead_is_not_forgotten() {
        // One task alone for long, then both: alike from there on.
        let mut split: SplitA = given((0..1000).map(|n| read(n).of(1)));
        one_by_one(&mut split, 0, 500);
        (1000..1500).for_each(|n| split.arrived(read(n).of(2)));
        let order = one_by_one(&mut split, 500, 400);
        let second = order.iter().filter(|number| **number >= 1000).count();
        assert!((100..=300).contains(&second), "{second}");
        // Tasks that have one operation at a time do not get more than their share by going away each time.
        let mut split = SplitA::default();
        let mut of_second = 0;
        for now in 0..900 {
            // A round in which nothing of the one that has just had its turn waits.
            split.begin_round(Round::default(), now * MS);
            let waits = |split: &SplitA, task| split.causes.values().any(|cause| *cause == Cause::Task(task));
            for (task, level) in [(1, 0), (2, 7)] {
                if !waits(&split, task) {
                    split.arrived(read(10 * now + u64::from(task)).of(task).with(2, level));
                }
            }
            let started = start(&mut split, now, 1)[0];
            of_second += usize::from(started % 10 == 2);
            split.ended(started);
        }
        assert!((90..=110).contains(&of_second), "{of_second} of 900 with a weight of 1 against 8");
    }

    /// Each of them is behind whoever has had something before.
    #[test]
    fn who_has_had_much_does_not_starve_beside_tasks_that_are_always_new() {
        let mut split: SplitA = given([Operation { len: 1 << 20, ..read(0) }.of(1), read(1).of(2)]);
        assert_eq!(start(&mut split, 0, 2), [0, 1]);
        (2..5).for_each(|n| split.arrived(read(n).of(1)));
        (0..2).for_each(|n| split.ended(n));
        let aging_ms = AGING_NS / MS;
        let mut at = Vec::new();
        for now in 0..aging_ms + 10 {
            split.arrived(read(10 + now).of(10 + now as u32).came(now));
            let started = start(&mut split, now, 1)[0];
            split.ended(started);
            at.extend((2..5).contains(&started).then_some(now));
        }
        assert_eq!(at, [0, 2, 4].map(|turn| aging_ms + turn), "in turns with the rest");
    }

    #[test]
    fn few_accounts_are_kept() {
        let mut split: SplitA = given((0..5000).map(|n| read(n).of(n as u32)));
        for now in 0..4990 {
            let started = start(&mut split, now, 1);
            assert!(started.len() == 1 && split.accounts.len() <= 5000 - now as usize + ACCOUNTS_MAX);
            split.ended(started[0]);
        }
        one_by_one(&mut split, 4990, 99);
        assert!(!split.begin_round(Round::default(), 5000 * MS));
        assert_eq!((split.accounts.len(), split.causes.len(), split.pass), (0, 0, 0));
    }
}
