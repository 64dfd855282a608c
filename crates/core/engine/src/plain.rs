//! The backing's queue by itself, for a volume without a cache: the very one that stands in front of a cached volume's backing
//! ([`crate::backing::queue`]), with the same schedulers.

use forebay_block::{DeviceOp, Nanos};
use forebay_policy::{BACKING_SLOTS_MAX, Issuer, Round, SchedulerKind};

use crate::backing::queue::{BackingQueue, Owner};
use crate::interface::{Class, IoId, PartKey, RequestId, Status};

/// Operations that wait for the backing of a volume without a cache, and those that it carries out.
///
/// Whoever fills it keeps the order of what touches the same bytes: the queue may start operations in any order.
pub struct PlainQueue {
    queue: BackingQueue,
    round: Round,
}

impl PlainQueue {
    /// An empty one; `depth`: operations that the backing takes at a time, of which at least 1 and at most [`BACKING_SLOTS_MAX`] are
    /// started.
    pub fn new(kind: SchedulerKind, depth: usize) -> Self {
        let round = Round { slots: depth.clamp(1, BACKING_SLOTS_MAX), ..Round::default() };
        Self { queue: BackingQueue::new(kind.build()), round }
    }

    /// An operation comes to wait. `id` is new; `request`: on whose behalf, if it is on a client's.
    pub fn push(
        &mut self,
        (id, op): (IoId, DeviceOp),
        request: Option<RequestId>,
        (class, issuer): (Class, Issuer),
        now: Nanos,
    ) {
        let owner = request.map_or(Owner::Other, |request| Owner::Bypass(PartKey(request.0)));
        self.queue.push((id, op), owner, None, (class.into(), issuer), now);
    }

    /// All that starts now, in this order.
    pub fn start(&mut self, now: Nanos) -> Vec<(IoId, DeviceOp, Class)> {
        let mut started = Vec::new();
        if self.queue.begin_round(self.round, now) {
            while let Some((id, op, priority)) = self.queue.next(now) {
                started.push((id, op, priority.into()));
            }
        }
        started
    }

    /// An operation that was started has ended.
    pub fn ended(&mut self, id: IoId) {
        self.queue.ended(id);
    }

    /// Somebody waits for what these requests have asked for.
    pub fn promote(&mut self, requests: &[RequestId]) {
        let is_wanted = |owner, _| match owner {
            Owner::Bypass(PartKey(key)) => requests.contains(&RequestId(key)),
            _ => false,
        };
        self.queue.promote(is_wanted);
    }

    /// Another scheduler chooses from here on.
    pub fn use_scheduler(&mut self, kind: SchedulerKind) {
        self.queue.use_scheduler(kind.build());
    }

    /// When [`PlainQueue::start`] may start something although nothing has come or ended; `None` if it will not.
    pub fn next_wake(&self) -> Option<Nanos> {
        self.queue.next_wake()
    }

    /// Writes its figures into a volume's.
    pub fn tell(&self, status: &mut Status) {
        let (critical, noncritical) = self.queue.waiting();
        status.backing_outstanding = self.queue.outstanding() as u64;
        status.backing_waiting_critical = critical as u64;
        status.backing_waiting_noncritical = noncritical as u64;
        status.backing_promoted = self.queue.promoted();
        status.backing_holds = self.queue.holds();
    }
}
