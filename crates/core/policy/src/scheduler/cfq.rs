//! `cfq`: Linux 3.13's CFQ (`block/cfq-iosched.c`), which was the default scheduler where RCP was measured
//! (FAST'17, its evaluation).
//!
//! ```text
//!  class         lines                                     round robin by key: when it came to stand there,
//!  real time     ─┐                                        and later for a lower level
//!  best effort   ─┼─ sync: one for each task and level ─┐
//!  idle          ─┘  async: one for each level ─────────┴─► active: one line has a slice of time
//! ```
//!
//! - A *line* is what waits of one task, if somebody waits for it (sync), or of all tasks of one I/O priority.
//!   One line at a time is active. Its slice is 100 ms for sync and 40 ms for async at level 4, a fifth more or
//!   less for each level. It begins with the first end. It is shorter where so many lines are busy that their
//!   slices are more than 300 ms (`low_latency`). No more than 4 operations of a line are outstanding before
//!   its first one ends, 8 later, and any number if no other one is busy.
//! - In its slice a line starts what is due first, if it is overdue, and then goes by place: to what is
//!   nearest, where backwards counts twice.
//! - Async operations do not start beside sync ones. A slice has at most 4 times 8 - level of them. After a
//!   sync operation that took 125 ms an async line begins again with one operation at a time, and one more for
//!   each 100 ms.
//! - A line of a better class takes the slice at once, and so does a sync line from an async one.
//! - The idle class starts one operation at a time, when nothing else is there, or has come or ended for
//!   [`IDLE_GRACE_NS`].
//!
//! **What is different here.** *No idling.* CFQ keeps a disk idle for 8 ms (`slice_idle`) when a sync line is
//! empty, since the next read of the same task may lie near. A layer below the file system knows no seeks, does
//! not know when a task thinks, and the kernel itself does without on fast devices. Only the idle class has to
//! let these 8 ms pass. So neither the kinds of service trees nor the groups that exist for the sake of idling
//! are here; without cgroups there is one group. Lines that work close to each other are not joined. *Tasks*
//! are what the tracker tells; what is not known to be of a task stands in one line. *What is awaited* is not
//! known to CFQ: promotions change nothing. The one exception is destaging. It is Forebay's own, and is sync
//! from when somebody waits for it.
//!
//! **Bounds.** The kernel can starve a class for as long as a better one has work. Here it gets one operation
//! each [`CLASS_TURN_NS`], its oldest one of the line whose turn it is. An async line that is active keeps the
//! slice until its first start, beside sync operations if they take longer than [`ASYNC_EXPIRES_NS`]. A slice
//! in which nothing ends begins after the time of a slice.

use std::collections::BTreeMap;

use forebay_block::OpKind;

use super::sorted::Sorted;
use super::{IoClass, Operation, Purpose, Round, Scheduler};
use crate::priority::Priority;

const MS: u64 = 1_000_000;
/// A slice of a sync line at level 4, in nanoseconds (`slice_sync`).
const SLICE_SYNC_NS: u64 = 100 * MS;
/// A slice of an async line at level 4, in nanoseconds (`slice_async`).
const SLICE_ASYNC_NS: u64 = 40 * MS;
/// What the slices of all busy lines may take, in nanoseconds (`target_latency`).
const TARGET_LATENCY_NS: u64 = 300 * MS;
/// The level of whom none is known.
const LEVEL: u64 = 4;
/// A slice has twice as many async operations for each level from its own to 7 (`slice_async_rq`).
const SLICE_ASYNC_OPERATIONS: usize = 2;
/// A sync operation is overdue after so long, in nanoseconds (`fifo_expire_sync`).
const SYNC_EXPIRES_NS: u64 = 125 * MS;
/// An async one (`fifo_expire_async`).
pub(super) const ASYNC_EXPIRES_NS: u64 = 250 * MS;
/// Operations of one line that may be outstanding (`quantum`).
const QUANTUM: usize = 8;
/// What lies further back than this is not gone back to, in bytes (`back_seek_max`).
const BACK_BYTES_MAX: u64 = 16 << 20;
/// How much more a way back counts (`back_seek_penalty`).
const BACK_PENALTY: u64 = 2;
/// The idle class waits for so long for others to come again, in nanoseconds (`slice_idle`).
const IDLE_GRACE_NS: u64 = 8 * MS;
/// A class that waits behind a better one gets one operation each so long, in nanoseconds (the kernel puts idle
/// lines so far back, `CFQ_IDLE_DELAY`).
pub(super) const CLASS_TURN_NS: u64 = 200 * MS;

/// Which line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    class: IoClass,
    /// Async lines are behind sync ones that came at the same time.
    is_async: bool,
    level: u8,
    /// 0 of async ones.
    task: u32,
}

/// What waits of one task, or of one level.
#[derive(Debug, Default)]
struct Line {
    waiting: Sorted,
    outstanding: usize,
    /// Where what it started last ends.
    position: u64,
    /// The line with the lowest one has the next slice.
    turn: u64,
}

/// The line that has a slice.
#[derive(Debug)]
struct Active {
    key: Key,
    since_ns: u64,
    /// Something of it has ended.
    has_ended: bool,
    ends_ns: Option<u64>,
    started: usize,
}

/// An operation that waits or is outstanding.
#[derive(Clone, Copy, Debug)]
struct Known {
    key: Key,
    operation: Operation,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Cfq {
    /// What nobody waits for is of the idle class (`cfq-idle`).
    pub(super) background_is_idle: bool,
    lines: BTreeMap<Key, Line>,
    waiting: BTreeMap<u64, Known>,
    outstanding: BTreeMap<u64, Known>,
    active: Option<Active>,
    /// Operations outstanding of sync lines, and of the idle class.
    sync_outstanding: usize,
    idle_outstanding: usize,
    /// When the last operation of best effort and of idle started, or came to wait while none did.
    class_since_ns: BTreeMap<IoClass, u64>,
    /// When something came or ended that is not idle.
    busy_ns: Option<u64>,
    /// Since the last round something ended that is not idle.
    busy: bool,
    /// When the oldest sync operation came that ended since the last round.
    ended_sync_ns: Option<u64>,
    /// When a sync operation ended that took long.
    delayed_ns: Option<u64>,
    /// When the last round was.
    now_ns: u64,
    wake_ns: Option<u64>,
}

/// The time of a slice at this level.
fn slice_ns(is_async: bool, level: u8) -> u64 {
    let base = if is_async { SLICE_ASYNC_NS } else { SLICE_SYNC_NS };
    base / 5 * (5 + LEVEL).saturating_sub(u64::from(level))
}

impl Cfq {
    fn key(&self, operation: &Operation, awaited: bool) -> Key {
        let io_priority = operation.issuer.io_priority;
        let background = operation.priority == Priority::NonCritical && !awaited;
        let class = if self.background_is_idle && background { IoClass::Idle } else { io_priority.class() };
        let level = if class == IoClass::Idle { 7 } else { io_priority.level() };
        let is_async = !(operation.kind == OpKind::Read || operation.issuer.sync || awaited);
        Key { class, is_async, level, task: if is_async { 0 } else { operation.issuer.task } }
    }

    fn waits(&self, key: &Key) -> bool {
        self.lines.get(key).is_some_and(|line| !line.waiting.is_empty())
    }

    fn class_waits(&self, class: IoClass) -> bool {
        self.lines.iter().any(|(key, line)| key.class == class && !line.waiting.is_empty())
    }

    fn insert(&mut self, key: Key, operation: Operation) {
        let came_ns = operation.arrived_ns;
        if !self.class_waits(key.class) {
            self.class_since_ns.insert(key.class, came_ns);
        }
        if key.class != IoClass::Idle {
            self.busy_ns = self.busy_ns.max(Some(came_ns));
        }
        let turn = self.turn(&key, came_ns);
        let is_active = self.active.as_ref().is_some_and(|active| active.key == key);
        let line = self.lines.entry(key).or_default();
        if line.waiting.is_empty() && !is_active {
            line.turn = turn;
        }
        line.waiting.insert(&operation, if key.is_async { ASYNC_EXPIRES_NS } else { SYNC_EXPIRES_NS });
        self.waiting.insert(operation.number, Known { key, operation });
        self.preempt(key, came_ns.max(self.now_ns));
    }

    /// Where a line stands that comes to wait now: the lower its level, and the more there are, the further
    /// back.
    fn turn(&self, key: &Key, now_ns: u64) -> u64 {
        let others =
            self.lines.iter().filter(|(other, l)| other.class == key.class && !l.waiting.is_empty()).count();
        let more = slice_ns(false, 0).saturating_sub(slice_ns(key.is_async, key.level));
        now_ns.saturating_add(more * others.saturating_sub(1) as u64)
    }

    /// A line to which something has come takes the slice, if the active one has to give way.
    fn preempt(&mut self, key: Key, now_ns: u64) {
        let Some(active) = &self.active else { return };
        let gives_way = key.class < active.key.class
            || key.class == active.key.class && active.key.is_async && !key.is_async && active.started > 0;
        if gives_way {
            self.begin_slice(key, now_ns);
        }
    }

    fn begin_slice(&mut self, key: Key, now_ns: u64) {
        self.end_slice(None);
        self.active = Some(Active { key, since_ns: now_ns, has_ended: false, ends_ns: None, started: 0 });
    }

    /// The active line's slice is over: it stands at the end of the round, as of this time, or where it stood.
    fn end_slice(&mut self, now_ns: Option<u64>) {
        let Some(Active { key, .. }) = self.active.take() else { return };
        let turn = now_ns.map(|now_ns| self.turn(&key, now_ns));
        if let (Some(turn), Some(line)) = (turn, self.lines.get_mut(&key)) {
            line.turn = turn;
        }
        self.forget(&key);
    }

    /// Of a line that has nothing to do nothing is kept.
    fn forget(&mut self, key: &Key) {
        let is_active = self.active.as_ref().is_some_and(|active| active.key == *key);
        let is_over = |line: &Line| line.waiting.is_empty() && line.outstanding == 0;
        if !is_active && self.lines.get(key).is_some_and(is_over) {
            self.lines.remove(key);
        }
    }

    /// Takes an operation out of those that wait.
    fn take(&mut self, number: u64) -> Option<Known> {
        let known = self.waiting.remove(&number)?;
        if let Some(line) = self.lines.get_mut(&known.key) {
            line.waiting.remove(number);
        }
        Some(known)
    }

    /// Takes an async operation out of those that wait, for whoever knows better where it belongs.
    pub(super) fn take_async(&mut self, number: u64) -> Option<Operation> {
        self.waiting.get(&number).filter(|known| known.key.is_async)?;
        let known = self.take(number)?;
        self.forget(&known.key);
        Some(known.operation)
    }

    /// Sees to what ended since the last round.
    fn observe(&mut self, now_ns: u64) {
        (self.now_ns, self.wake_ns) = (now_ns, None);
        if std::mem::take(&mut self.busy) {
            self.busy_ns = Some(now_ns);
        }
        if self.ended_sync_ns.take().is_some_and(|came| now_ns >= came.saturating_add(SYNC_EXPIRES_NS)) {
            self.delayed_ns = Some(now_ns);
        }
        let busy = self.lines.values().filter(|line| !line.waiting.is_empty()).count() as u64;
        if let Some(active) = &mut self.active {
            let full = slice_ns(active.key.is_async, active.key.level);
            // What all would take is no more than the target.
            let all = SLICE_SYNC_NS * busy;
            let slice = if all > TARGET_LATENCY_NS { full * TARGET_LATENCY_NS / all } else { full };
            if active.ends_ns.is_none()
                && (active.has_ended || now_ns >= active.since_ns.saturating_add(full))
            {
                active.ends_ns = Some(now_ns.saturating_add(slice));
            }
        }
    }

    fn wake(&mut self, at_ns: u64) {
        self.wake_ns = Some(self.wake_ns.map_or(at_ns, |wake| wake.min(at_ns)));
    }

    /// The line of this class that has the next turn.
    fn first_line(&self, class: IoClass) -> Option<Key> {
        let lines = self.lines.iter().filter(|(key, line)| key.class == class && !line.waiting.is_empty());
        lines.min_by_key(|(key, line)| (line.turn, **key)).map(|(key, _)| *key)
    }

    /// When a class has its turn, whatever else there is.
    fn class_turn_ns(&self, class: IoClass) -> u64 {
        self.class_since_ns.get(&class).map_or(0, |since| since.saturating_add(CLASS_TURN_NS))
    }

    /// The operation of a class that has waited for its turn behind better ones, and its line.
    fn class_turn(&mut self, now_ns: u64) -> Option<(Key, u64)> {
        for class in [IoClass::BestEffort, IoClass::Idle] {
            let better = [IoClass::RealTime, IoClass::BestEffort]
                .into_iter()
                .any(|b| b < class && self.class_waits(b));
            if !better || !self.class_waits(class) {
                continue;
            }
            let turn = self.class_turn_ns(class);
            match now_ns >= turn {
                true => {
                    let key = self.first_line(class)?;
                    let (_, number) = self.lines.get(&key)?.waiting.first_due()?;
                    let turn = self.turn(&key, now_ns);
                    self.lines.entry(key).and_modify(|line| line.turn = turn);
                    return Some((key, number));
                }
                false => self.wake(turn),
            }
        }
        None
    }

    /// The line that is served: the active one, or the next one if its slice is over.
    fn select(&mut self, now_ns: u64) -> Option<Key> {
        if let Some(active) = &self.active {
            if self.waits(&active.key) && active.ends_ns.is_none_or(|ends| now_ns < ends) {
                return Some(active.key);
            }
            self.end_slice(Some(now_ns));
        }
        let next =
            [IoClass::RealTime, IoClass::BestEffort].into_iter().find_map(|class| self.first_line(class));
        let key = match next {
            Some(key) => key,
            None => {
                let key = self.first_line(IoClass::Idle)?;
                let turn = self.class_turn_ns(IoClass::Idle);
                let after = match (self.outstanding.len() > self.idle_outstanding, self.busy_ns) {
                    (true, _) => turn,
                    (false, None) => 0,
                    (false, Some(busy)) => busy.saturating_add(IDLE_GRACE_NS).min(turn),
                };
                if now_ns < after {
                    self.wake(after);
                    return None;
                }
                key
            }
        };
        self.begin_slice(key, now_ns);
        Some(key)
    }

    /// Whether one more of the active line may be outstanding.
    fn may_start(&mut self, key: Key, now_ns: u64) -> bool {
        let Some((line, active)) = self.lines.get(&key).zip(self.active.as_ref()) else { return false };
        let (outstanding, oldest) = (line.outstanding, line.waiting.first_due());
        let (slice_is_new, ends_ns) = (active.ends_ns.is_none(), active.ends_ns);
        let full_ns = active.since_ns.saturating_add(slice_ns(key.is_async, key.level));
        if key.class == IoClass::Idle {
            let turn = self.class_turn_ns(IoClass::Idle);
            if self.idle_outstanding > 0 && now_ns < turn {
                self.wake(turn);
                return false;
            }
            return true;
        }
        if key.is_async && self.sync_outstanding > 0 {
            let due = oldest.map_or(0, |(due, _)| due);
            if now_ns < due {
                self.wake(due);
                return false;
            }
        }
        let busy = |of: &dyn Fn(&Key) -> bool| {
            self.lines.iter().filter(|(k, l)| of(k) && !l.waiting.is_empty()).count()
        };
        let is_alone = busy(&|_| true) == 1 || !key.is_async && busy(&|key| !key.is_async) == 1;
        let mut most = match (is_alone, slice_is_new) {
            (true, _) => usize::MAX,
            (false, true) => QUANTUM / 2,
            (false, false) => QUANTUM,
        };
        if let Some(delayed) = self.delayed_ns.filter(|_| key.is_async) {
            let depth = (now_ns.saturating_sub(delayed) / SLICE_SYNC_NS) as usize;
            most = most.min(depth.max(1));
        }
        if outstanding >= most {
            // Another line has its turn when the slice is over, and this one more as time goes by.
            self.wake(ends_ns.unwrap_or(full_ns).max(now_ns + 1));
        }
        outstanding < most
    }

    /// Which operation of its line is next.
    fn operation(&self, key: Key, now_ns: u64) -> Option<u64> {
        let line = self.lines.get(&key)?;
        let is_first = self.active.as_ref().is_some_and(|active| active.started == 0);
        // The oldest one is looked at once in a slice.
        let overdue = line.waiting.expired(now_ns).filter(|_| is_first);
        let distance = |(position, number): (u64, u64)| {
            let back = line.position.saturating_sub(position).saturating_mul(BACK_PENALTY);
            (position.saturating_sub(line.position).max(back), number)
        };
        let behind = line.waiting.at_or_behind(line.position).map(distance);
        let before = line
            .waiting
            .before(line.position)
            .filter(|(p, _)| line.position - p <= BACK_BYTES_MAX)
            .map(distance);
        let nearest = [behind, before].into_iter().flatten().min();
        overdue.or(nearest.map(|(_, number)| number)).or_else(|| line.waiting.upwards(line.position))
    }

    fn start(&mut self, key: Key, number: u64, now_ns: u64) -> Option<u64> {
        let known = self.take(number)?;
        let operation = known.operation;
        if let Some(line) = self.lines.get_mut(&key) {
            line.outstanding += 1;
            line.position = operation.offset.unwrap_or(0).saturating_add(operation.len);
        }
        self.sync_outstanding += usize::from(!key.is_async);
        self.idle_outstanding += usize::from(key.class == IoClass::Idle);
        self.class_since_ns.insert(key.class, now_ns);
        self.outstanding.insert(number, known);
        Some(number)
    }

    /// Whether anything waits.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether the line that is served now is a sync one.
    pub(super) fn serves_sync(&mut self, now_ns: u64) -> bool {
        self.select(now_ns).is_some_and(|key| !key.is_async)
    }
}

impl Scheduler for Cfq {
    fn arrived(&mut self, operation: Operation) {
        self.insert(self.key(&operation, false), operation);
    }

    /// Destaging that somebody waits for is sync. It makes no difference to anything else.
    fn promoted(&mut self, number: u64) {
        if self.waiting.get(&number).is_some_and(|known| known.operation.purpose == Purpose::Destage)
            && let Some(known) = self.take(number)
        {
            self.forget(&known.key);
            self.insert(self.key(&known.operation, true), known.operation);
        }
    }

    fn withdrawn(&mut self, number: u64) {
        if let Some(known) = self.take(number) {
            self.forget(&known.key);
        }
    }

    fn begin_round(&mut self, _: Round, now_ns: u64) -> bool {
        self.observe(now_ns);
        !self.waiting.is_empty()
    }

    fn next(&mut self, now_ns: u64) -> Option<u64> {
        self.wake_ns = None;
        if let Some((key, number)) = self.class_turn(now_ns) {
            return self.start(key, number, now_ns);
        }
        let key = self.select(now_ns)?;
        if !self.may_start(key, now_ns) {
            return None;
        }
        let number = self.operation(key, now_ns)?;
        let is_alone = self.lines.iter().all(|(other, line)| *other == key || line.waiting.is_empty());
        let active = self.active.as_mut()?;
        active.started += 1;
        let most = 2 * SLICE_ASYNC_OPERATIONS * (8 - usize::from(key.level.min(7)));
        let is_over = key.class == IoClass::Idle || key.is_async && active.started >= most;
        let started = self.start(key, number, now_ns);
        if is_over && !is_alone {
            self.end_slice(Some(now_ns));
        }
        started
    }

    fn ended(&mut self, number: u64) {
        let Some(Known { key, operation }) = self.outstanding.remove(&number) else { return };
        if let Some(line) = self.lines.get_mut(&key) {
            line.outstanding -= 1;
        }
        if let Some(active) = self.active.as_mut().filter(|active| active.key == key) {
            active.has_ended = true;
        }
        if !key.is_async {
            self.sync_outstanding -= 1;
            let came = operation.arrived_ns;
            self.ended_sync_ns = Some(self.ended_sync_ns.map_or(came, |ns| ns.min(came)));
        }
        self.idle_outstanding -= usize::from(key.class == IoClass::Idle);
        self.busy |= key.class != IoClass::Idle;
        self.forget(&key);
    }

    fn next_wake_ns(&self) -> Option<u64> {
        self.wake_ns
    }

    fn holds(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests;
