//! The queue in front of the backing: what clients wait for goes first (RCP, FAST'17; design, section 8).
//!
//! ```text
//!              ┌─ critical ──────── first in, first out ─┐   which: policy::BackingPriority
//!  engine.io ──┤        ▲ promoted                       ├──────────► outstanding ──► ended
//!              └─ non-critical ──── first in, first out ─┘                  │ keeps its place, and the calm ends
//!                 (destaging and bypasses apart)
//!                       └► withdrawn: a reissued bypass need not go there   ▼ promoted
//! ```
//!
//! An operation that waits here is to the rest of the engine as one that the device has not carried out yet: whoever asked
//! for it holds its blocks. So the order in which they start is a matter of speed only.
//!
//! **Lending.** What waits for a write of somebody else lends it its own priority: a write that waits for room in the log, or a
//! critical bypass that waits for its turn or for room for its record, promotes all destaging; a critical write that waits for blocks promotes
//! what is on its way there. What has started cannot be hurried, but nothing more that nobody waits for is started for its calm; and nothing at all
//! if the device leaves it for last ([`Overtaking`]).

use std::collections::VecDeque;

use forebay_block::{BLOCK_BYTES, BlockNo, DeviceOp, Nanos};
use forebay_policy::{
    Background, BackingPriority, NONCRITICAL_BESIDE_CRITICAL, NONCRITICAL_BYTES_EACH, Overtaking, Priority,
    Standing, Waiting,
};

use crate::engine::{Engine, IoOwner};
use crate::interface::{Effect, IoId, PartKey, Role};
use crate::locks::BlockRange;
use crate::mutation::{Mutation, Planted};
use crate::tables::Table;

/// An operation that has not been started.
struct Queued {
    id: IoId,
    op: DeviceOp,
    owner: IoOwner,
    /// The blocks that it changes, or that are held until it has ended.
    range: Option<BlockRange>,
}

/// An operation that has been started.
struct Started {
    /// As what it was started.
    priority: Priority,
    /// It is non-critical, and somebody came to wait for it since.
    promoted: bool,
    /// Among all that were started; see [`Overtaking`].
    number: u64,
    owner: IoOwner,
    /// The blocks that it changes, or that are held until it has ended.
    range: Option<BlockRange>,
    bytes: u64,
}

impl Started {
    /// Bytes and bypasses that count as non-critical.
    fn noncritical(&self) -> (u64, usize) {
        match self.priority {
            Priority::Critical => (0, 0),
            Priority::NonCritical => (self.bytes, usize::from(!makes_room(self.owner))),
        }
    }
}

/// Whether it is destaging.
fn makes_room(owner: IoOwner) -> bool {
    matches!(owner, IoOwner::DestageWrite(_) | IoOwner::DestageFlush)
}

/// State of the queue. It holds at most what requests, runs and flushes under way ask for, each of which is bounded.
#[derive(Default)]
pub(crate) struct BackingQueue {
    chooser: BackingPriority,
    overtaking: Overtaking,
    critical: VecDeque<Queued>,
    /// Non-critical operations: what makes room in the log, and what goes past it.
    destaging: VecDeque<Queued>,
    bypasses: VecDeque<Queued>,
    /// What was started.
    outstanding: Table<IoId, Started>,
    /// Bytes of those of them that are non-critical.
    noncritical_bytes: u64,
    /// Bypasses among these.
    bypasses_outstanding: usize,
    /// How many there may be, if the log fills: destaging goes before them then.
    bypasses_max: Option<usize>,
    /// Non-critical operations that may be outstanding beside critical ones.
    beside_critical: usize,
    promoted: u64,
}

/// The blocks that an operation of the backing changes.
fn changes(op: &DeviceOp) -> Option<BlockRange> {
    let (offset, len) = match op {
        DeviceOp::Write { offset, .. } => (*offset, op.write_bytes()),
        DeviceOp::Zero { offset, len, .. } => (*offset, *len),
        DeviceOp::Read { .. } | DeviceOp::Flush => return None,
    };
    Some(BlockRange::new(BlockNo::containing(offset), len.div_ceil(BLOCK_BYTES)))
}

impl BackingQueue {
    fn push(&mut self, queued: Queued, priority: Priority) {
        self.chooser.arrived(priority);
        match priority {
            Priority::Critical => self.critical.push_back(queued),
            Priority::NonCritical if makes_room(queued.owner) => self.destaging.push_back(queued),
            Priority::NonCritical => self.bypasses.push_back(queued),
        }
    }

    /// Which of the non-critical operations is next.
    fn background(&mut self) -> Background {
        // Numbers are given in the order in which operations come.
        match (self.destaging.front(), self.bypasses.front()) {
            (Some(destage), Some(bypass)) => match self.bypasses_max {
                None if destage.id < bypass.id => Background::Destage,
                None => Background::Bypass,
                Some(_) => self.chooser.background(self.bypass_may_start()),
            },
            (Some(_), _) => Background::Destage,
            (None, _) => Background::Bypass,
        }
    }

    fn bypass_may_start(&self) -> bool {
        self.bypasses_max.is_none_or(|max| self.bypasses_outstanding < max)
    }

    /// What is to be started next.
    fn pop(&mut self, now: Nanos) -> Option<(IoId, DeviceOp, Priority)> {
        let critical = self.critical.len();
        let noncritical =
            self.destaging.len() + if self.bypass_may_start() { self.bypasses.len() } else { 0 };
        let (beside_critical, noncritical_bytes) = (self.beside_critical, self.noncritical_bytes);
        let priority =
            self.chooser.start(Waiting { critical, noncritical, beside_critical, noncritical_bytes })?;
        let queue = match priority {
            Priority::Critical => &mut self.critical,
            Priority::NonCritical if self.background() == Background::Destage => &mut self.destaging,
            Priority::NonCritical => &mut self.bypasses,
        };
        let Queued { id, op, owner, range } = queue.pop_front()?;
        let standing = match (&op, priority) {
            (DeviceOp::Flush | DeviceOp::Zero { .. }, _) => Standing::Apart,
            (_, Priority::Critical) => Standing::Awaited,
            (_, Priority::NonCritical) => Standing::Unawaited,
        };
        let started = Started {
            priority,
            promoted: false,
            number: self.overtaking.started(standing, now.0),
            range,
            owner,
            bytes: op.write_bytes().min(NONCRITICAL_BYTES_EACH),
        };
        let (bytes, bypasses) = started.noncritical();
        self.noncritical_bytes += bytes;
        self.bypasses_outstanding += bypasses;
        self.outstanding.insert(id, started);
        Some((id, op, priority))
    }

    /// An operation has ended; those of other devices are none of its business.
    pub(crate) fn ended(&mut self, id: IoId) {
        if let Some(started) = self.outstanding.remove(&id) {
            let (bytes, bypasses) = started.noncritical();
            self.noncritical_bytes -= bytes;
            self.bypasses_outstanding -= bypasses;
            self.chooser.ended(started.priority, started.promoted);
            self.overtaking.ended(started.number);
        }
    }

    /// Operations that wait: critical, and not.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        (self.critical.len(), self.destaging.len() + self.bypasses.len())
    }

    /// Whether what waits has to wait until something that somebody waits for, and that the device leaves for last, has ended.
    fn holds_back(&mut self, now: Nanos) -> bool {
        self.waiting() != (0, 0) && self.overtaking.holds_back(now.0)
    }

    /// When it need not wait any longer.
    pub(crate) fn next_wake(&self) -> Option<Nanos> {
        self.overtaking.held_until().filter(|_| self.waiting() != (0, 0)).map(Nanos)
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.chooser.outstanding()
    }

    /// Non-critical operations that somebody came to wait for, since start.
    pub(crate) fn promoted(&self) -> u64 {
        self.promoted
    }

    /// How often nothing was started for a while for the sake of one, since start.
    pub(crate) fn holds(&self) -> u64 {
        self.overtaking.holds()
    }

    fn has_noncritical(&self) -> bool {
        self.waiting().1 > 0 || self.chooser.outstanding_noncritical() > 0
    }

    /// Somebody waits for the operations that are `wanted`: they go behind the critical ones that are there already.
    fn promote(&mut self, wanted: impl Fn(IoOwner, Option<BlockRange>) -> bool, planted: Planted) {
        if !self.has_noncritical() {
            return;
        }
        for queue in [&mut self.destaging, &mut self.bypasses] {
            let mut at = 0;
            while let Some(queued) = queue.get(at) {
                if !wanted(queued.owner, queued.range) {
                    at += 1;
                    continue;
                }
                let Some(queued) = queue.remove(at) else { break };
                self.promoted += 1;
                if planted.is(Mutation::PromotionForgets) {
                    continue;
                }
                if planted.is(Mutation::PromotionStartsTwice) {
                    let (op, range) = (queued.op.clone(), queued.range);
                    queue.insert(at, Queued { id: queued.id, op, owner: queued.owner, range });
                    at += 1;
                }
                self.chooser.arrived(Priority::Critical);
                self.critical.push_back(queued);
            }
        }
        for started in self.outstanding.values_mut() {
            let counts = started.priority == Priority::NonCritical && !started.promoted;
            if counts && wanted(started.owner, started.range) {
                started.promoted = true;
                self.chooser.promoted();
                self.overtaking.promoted(started.number);
                self.promoted += 1;
            }
        }
    }

    /// Takes the operation back if it has not been started.
    fn withdraw(&mut self, owner: IoOwner) -> Option<IoId> {
        for queue in [&mut self.bypasses, &mut self.critical] {
            if let Some(at) = queue.iter().position(|q| q.owner == owner) {
                return queue.remove(at).map(|q| q.id);
            }
        }
        None
    }
}

impl Engine {
    /// Puts an operation into the queue.
    pub(crate) fn backing_push(&mut self, id: IoId, op: DeviceOp, priority: Priority, owner: IoOwner) {
        let range = match owner {
            IoOwner::BypassFlush(key) => self.requests.range_of(key),
            _ => changes(&op),
        };
        self.backing.push(Queued { id, op, owner, range }, priority);
    }

    /// Starts what may start now.
    pub(crate) fn backing_start(&mut self) {
        self.backing_lend();
        if self.backing.waiting().1 > 0 {
            let pressure = self.destage_pressure();
            self.backing.beside_critical = pressure.runs_beside_critical();
            // What goes in an order makes room in that order, bypasses with it; and what has failed does not fill.
            let makes_room =
                !self.destage.is_idle() && !self.order.keeps_versions() && !self.failure.latched();
            let runs = self.destage.runs();
            self.backing.bypasses_max = if makes_room { pressure.bypasses_beside(runs) } else { None };
            if makes_room && self.log.waits_for_room() {
                // The runs are critical now: what is left gets as little as it can.
                (self.backing.beside_critical, self.backing.bypasses_max) =
                    (NONCRITICAL_BESIDE_CRITICAL, Some(1));
            }
        }
        if self.mutant(Mutation::QueueForgetsNonCritical) && self.backing.waiting().0 == 0 {
            return;
        }
        if self.backing.holds_back(self.now) {
            return;
        }
        while let Some((id, op, priority)) = self.backing.pop(self.now) {
            self.figures.bytes_to_backing += op.write_bytes();
            self.watch.started(id, Role::Backing, &op, self.now);
            self.effects.push(Effect::Io { id, role: Role::Backing, op, class: priority.into() });
        }
    }

    /// Whoever waits lends its priority to what it waits for.
    fn backing_lend(&mut self) {
        if !self.backing.has_noncritical() {
            return;
        }
        let planted = self.planted;
        // It waits for its turn, or for room for its record; for blocks it lends below.
        let bypass_waits = (self.order.bypass_waits() || self.requests.supersede_waits())
            && self.requests.critical_bypass_waits();
        if self.log.waits_for_room() || self.order.is_pacing() || bypass_waits {
            self.backing.promote(|owner, _| makes_room(owner), planted);
        }
        if self.log.waits_for_room() {
            // What the log has of these blocks is not destaged before, and may be what keeps its tail from being freed.
            let requests = &self.requests;
            let supersedes = |owner, _| match owner {
                IoOwner::BypassWrite(key) | IoOwner::BypassFlush(key) => requests.keeps_log(key),
                _ => false,
            };
            self.backing.promote(supersedes, planted);
        }
        let awaited: Vec<BlockRange> = self.requests.critical_waiting().collect();
        if !awaited.is_empty() {
            let overlaps =
                |_, range: Option<BlockRange>| range.is_some_and(|r| awaited.iter().any(|a| a.overlaps(r)));
            self.backing.promote(overlaps, planted);
        }
    }

    /// A critical task waits for these bypasses.
    pub(crate) fn backing_promote(&mut self, parts: &[PartKey]) {
        let wanted = |owner, _| match owner {
            IoOwner::BypassWrite(key) | IoOwner::BypassFlush(key) => parts.binary_search(&key).is_ok(),
            _ => false,
        };
        self.backing.promote(wanted, self.planted);
    }

    /// Takes back the part's write to the backing; false if it has been started.
    pub(crate) fn backing_withdraw(&mut self, key: PartKey) -> bool {
        let withdrawn = self.backing.withdraw(IoOwner::BypassWrite(key));
        if let Some(id) = withdrawn {
            self.forget_io(id);
        }
        withdrawn.is_some()
    }
}
