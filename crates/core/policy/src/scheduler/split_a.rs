//! `split-a`: Split-AFQ, actually fair queuing (Yang et al., SOSP'15, Split-Level I/O Scheduling, section 5.1, and the authors' code).
//!
//! Stride scheduling by cause. Each task has an account. What it starts costs its length and a seek, if it does not go on where the task's last one
//! ended; the account advances by the cost over the weight, which is 8 for I/O level 0 and 1 for level 7. The account that is furthest behind has the next
//! batch: up to [`BATCH_MAX`] operations in the order in which they came, and further accounts' if those are fewer than [`BATCH_MIN`].
//! The next batch begins when this one has ended, or after [`BATCH_NS_MAX`].
//!
//! What others wait for goes at once, before all batches, and is charged to its task all the same: below a journal an operation of little weight
//! may be what a weighty `fsync` needs, so that the paper does not hold back writes at the block level.
//!
//! **What cannot be carried out.** The paper schedules writes and `fsync` where they are called, above the page cache, and reads below it. Here
//! all is below: writes are scheduled as they come, flushes with them, and a task that fills the page cache is not stopped there. The cause of a page that
//! is written back is one task, which the tracker tells, and not a set of tasks. What is of no known task shares an account; Forebay's destaging
//! has one of its own. Costs are not corrected later by what a batch cost as a whole. Classes of I/O priority are unknown to it: idle counts as level 7. It does not keep a
//! disk idle for a task that reads in sequence, for the reason that [CFQ](super::cfq) here does not.
//!
//! **Bounds.** An account that has waited comes to be the one furthest behind, since all others advance. One that comes back stands where the
//! one that is furthest behind stands, at least; so no account saves up. Of the starts while both wait, one in 16 is of a batch. At most [`ACCOUNTS_MAX`] accounts that are not
//! waiting are remembered, and none once nothing waits or is outstanding.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use forebay_block::OpKind;

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
    /// The pass of the account that had the last turn.
    pass: u64,
    wake_ns: Option<u64>,
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

    /// Charges an operation that starts to its cause.
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
    fn furthest_behind(&self) -> Option<Cause> {
        let waiting = self.accounts.iter().filter(|(_, account)| !account.waiting.is_empty());
        waiting.min_by_key(|(cause, account)| (account.pass, **cause)).map(|(cause, _)| *cause)
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

    fn start_wanted(&mut self) -> Option<u64> {
        let operation = self.wanted.pop_front()?;
        self.before_batches.first_started(self.is_waiting());
        Some(self.started(&operation))
    }

    fn start_of_batch(&mut self, now_ns: u64) -> Option<u64> {
        let cause = self.account(now_ns)?;
        let account = self.accounts.get_mut(&cause)?;
        let operation = account.waiting.pop_front()?;
        self.pass = self.pass.max(account.pass);
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

    /// Accounts of which nothing waits are remembered while they are ahead of the others: they would get more than their share without.
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
        let pass = self.pass;
        let account = self.accounts.entry(cause).or_default();
        if account.waiting.is_empty() {
            account.pass = account.pass.max(pass);
        }
        account.waiting.push_back(operation);
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
        match self.before_batches.is_second() {
            false => self.start_wanted().or_else(|| self.start_of_batch(now_ns)),
            true => self.start_of_batch(now_ns).or_else(|| self.start_wanted()),
        }
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
