//! What waits to enter the log: two queues, and whether a small record waits a moment for company.
//!
//! ```text
//!  urgent: what makes room, or finishes a bypass ──┐
//!  patient: writes that nobody waits for ──────────┼──► records, see `form`
//!  writes: data, marks of writes, clean copies ────┘     (only when `urgent` is empty)
//! ```
//!
//! Writes are patient only while the throttle slows them down: then they keep nobody behind them waiting.
//!
//! 1. What is urgent never stands behind a write: it may be what makes the room for which the write waits (P7).
//! 2. Within a queue the order is that of arrival, and so is the order in the log. No write overtakes another on the same blocks: a block is
//!    never both in `patient` and in `writes`.
//! 3. A lone writer never waits for company: when it comes, nobody else is expected.

use std::collections::VecDeque;

use forebay_block::{BLOCK_BYTES, BlockNo, Buf, Nanos, Seq};
use forebay_format::record::Extent;
use forebay_policy::Priority;

use crate::interface::PartKey;

/// Where a header takes a whole block (an alignment of 4096), records of fewer blocks than this wait a moment for
/// company: four blocks share a header at a cost of 1.25 bytes for each byte.
const SHARED_BLOCKS_WANTED: u32 = 4;
/// How long such a record waits for the writers that were just answered.
const COMPANY_WAIT_NS: u64 = 25_000;

/// Who is told when an append is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppendOwner {
    /// Data or zeroes of a write.
    Part(PartKey),
    /// The supersede record that completes a bypass.
    Supersede(PartKey),
    /// The clean copy of a bypassed write.
    CleanCopy(PartKey),
    /// A clean block moved from the tail to the head.
    Relocation(BlockNo),
    /// The mark that a block is lost, moved from the tail to the head.
    Poison(BlockNo),
    /// The clean stop.
    Stop,
    /// A stop after which clean copies must not be believed.
    StopDistrusted,
    /// Nobody: the record carries only the tail and what is proven.
    Tick,
}

/// Something to be put into the log.
#[derive(Clone, Debug)]
pub(crate) struct Append {
    pub(crate) extent: Option<Extent>,
    pub(crate) data: Option<Buf>,
    pub(crate) owner: AppendOwner,
    /// The owner is told only when the record is durable.
    pub(crate) durable: bool,
    /// The newest record that it depends on.
    pub(crate) after: Seq,
}

impl Append {
    /// Nothing, for a record that is to carry the tail and what is proven.
    fn tick(durable: bool) -> Self {
        Self { extent: None, data: None, owner: AppendOwner::Tick, durable, after: Seq(0) }
    }

    /// Whether both speak of the same block.
    fn touches(&self, other: &Self) -> bool {
        let end = |e: &Extent| e.block.0 + u64::from(e.count);
        let both = self.extent.as_ref().zip(other.extent.as_ref());
        both.is_some_and(|(a, b)| a.block.0 < end(b) && b.block.0 < end(a))
    }

    /// Cuts the first `blocks` blocks off; both parts tell the owner, who counts pieces.
    pub(super) fn split_front(&mut self, blocks: u32) -> Option<Append> {
        let (e, data) = (self.extent.as_mut()?, self.data.as_mut()?);
        let bytes = blocks as usize * BLOCK_BYTES as usize;
        let front = Append {
            extent: Some(Extent { count: blocks, ..*e }),
            data: Some(data.slice(0, bytes)),
            owner: self.owner,
            durable: self.durable,
            after: self.after,
        };
        *data = data.slice(bytes, data.len() - bytes);
        e.block = e.block.plus(u64::from(blocks));
        e.count -= blocks;
        Some(front)
    }
}

/// Whether writes of a kind may enter the log now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Go {
    Not,
    /// They are slowed down: few go at a time.
    Slowly,
    Freely,
}

/// Which kinds of writes may enter the log now, as far as the throttle is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct May {
    pub(crate) awaited: Go,
    pub(crate) patient: Go,
}

impl May {
    /// All of them do.
    pub(crate) const FREELY: Self = Self { awaited: Go::Freely, patient: Go::Freely };

    pub(super) fn go(self, kind: Priority) -> Go {
        match kind {
            Priority::Critical => self.awaited,
            Priority::NonCritical => self.patient,
        }
    }
}

/// What waits to enter the log.
#[derive(Default)]
pub(super) struct Queue {
    urgent: VecDeque<Append>,
    patient: VecDeque<Append>,
    writes: VecDeque<Append>,
    /// Writers that were answered last and have not come again, and until when they are waited for.
    expected: u32,
    expected_until: Nanos,
}

impl Queue {
    /// Behind everything queued before that touches the same blocks.
    pub(super) fn push(&mut self, append: Append) {
        self.expected = self.expected.saturating_sub(1);
        if !self.patient.is_empty() {
            self.promote(|patient| patient.touches(&append));
        }
        self.writes.push_back(append);
    }

    /// Behind those that nobody waits for either. One that touches blocks of a write that is not patient stands behind that one.
    pub(super) fn push_patient(&mut self, append: Append) {
        if self.writes.iter().any(|write| write.touches(&append)) {
            return self.push(append);
        }
        self.expected = self.expected.saturating_sub(1);
        self.patient.push_back(append);
    }

    /// Those of the patient writes that are `awaited` go on as others do; with the other pieces of the same part, and with what touches the
    /// blocks of one that goes, earlier or later: so none overtakes another there.
    pub(super) fn promote(&mut self, awaited: impl Fn(&Append) -> bool) {
        let mut go: Vec<bool> = self.patient.iter().map(awaited).collect();
        let mut followed: Vec<usize> = (0..go.len()).filter(|n| go[*n]).collect();
        if followed.is_empty() {
            return;
        }
        while let Some(at) = followed.pop() {
            for (n, patient) in self.patient.iter().enumerate() {
                if !go[n] && (patient.owner == self.patient[at].owner || patient.touches(&self.patient[at])) {
                    go[n] = true;
                    followed.push(n);
                }
            }
        }
        let (gone, left): (Vec<_>, Vec<_>) = self.patient.drain(..).zip(go).partition(|(_, goes)| *goes);
        self.writes.extend(gone.into_iter().map(|(append, _)| append));
        self.patient.extend(left.into_iter().map(|(append, _)| append));
    }

    /// Ahead of writes.
    pub(super) fn push_urgent(&mut self, append: Append) {
        self.urgent.push_back(append);
    }

    /// Sees to it that a record is formed, whether or not a write comes.
    pub(super) fn tick(&mut self, durable: bool) {
        match self.urgent.back_mut() {
            Some(last) => last.durable |= durable,
            None => self.push_urgent(Append::tick(durable)),
        }
    }

    /// Sees to it that a durable record without data comes before all that is queued, if anything is.
    pub(super) fn begin(&mut self) {
        let is_there = self.urgent.front().is_some_and(|a| a.extent.is_none() && a.durable);
        let nothing_comes = self.is_empty();
        if !is_there && !nothing_comes {
            self.urgent.push_front(Append::tick(true));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.urgent.is_empty() && !self.has_writes()
    }

    pub(super) fn has_urgent(&self) -> bool {
        !self.urgent.is_empty()
    }

    pub(super) fn has_writes(&self) -> bool {
        !(self.writes.is_empty() && self.patient.is_empty())
    }

    pub(super) fn has_patient(&self) -> bool {
        !self.patient.is_empty()
    }

    /// Writes of which kind go next, if any `may`. What nobody waits for is let go seldom, and goes first then.
    pub(super) fn next_kind(&self, may: May) -> Option<Priority> {
        let goes = |kind: &Priority| may.go(*kind) != Go::Not && !self.kind(*kind).is_empty();
        [Priority::NonCritical, Priority::Critical].into_iter().find(goes)
    }

    fn kind(&self, kind: Priority) -> &VecDeque<Append> {
        match kind {
            Priority::Critical => &self.writes,
            Priority::NonCritical => &self.patient,
        }
    }

    /// Appends that go together where writers are slowed down: about [`SHARED_BLOCKS_WANTED`], and equally many each time, so that
    /// each writer waits about as long as any other.
    pub(super) fn portion(&self, kind: Priority) -> usize {
        let waiting = self.kind(kind).len();
        waiting.div_ceil((waiting / SHARED_BLOCKS_WANTED as usize).max(1))
    }

    /// Whether a write is queued that depends on this record or a later one.
    pub(super) fn depends_on(&self, seq: Seq) -> bool {
        self.patient.iter().chain(&self.writes).any(|a| a.after >= seq)
    }

    /// Blocks of the writes.
    pub(super) fn blocks(&self) -> u64 {
        let writes = self.patient.iter().chain(&self.writes);
        writes.filter_map(|a| a.extent.as_ref()).map(|e| u64::from(e.count)).sum()
    }

    /// Where the next piece of a record comes from: a write only if `writes` of some kind may go now.
    pub(super) fn next_from(&mut self, writes: Option<Priority>) -> Option<&mut VecDeque<Append>> {
        let queue = match (self.urgent.is_empty(), writes) {
            (false, _) => &mut self.urgent,
            (true, Some(Priority::Critical)) => &mut self.writes,
            (true, Some(Priority::NonCritical)) => &mut self.patient,
            (true, None) => return None,
        };
        Some(queue).filter(|queue| !queue.is_empty())
    }

    /// So many writers were answered together: they are expected to come again.
    pub(super) fn answered(&mut self, writers: u32, now: Nanos) {
        if writers > 0 {
            self.expected = writers;
            self.expected_until = Nanos(now.0 + COMPANY_WAIT_NS);
        }
    }

    /// Whether a small record would rather wait for others to share its header with: until a record in flight is
    /// done, if one is, or until the writers that were answered have come again. What nobody waits for has waited, and keeps nobody waiting.
    pub(super) fn waits_for_company(&self, kind: Priority, align: u32, in_flight: bool, now: Nanos) -> bool {
        if align == 512 || kind == Priority::NonCritical {
            return false;
        }
        let company = in_flight || (self.expected > 0 && now < self.expected_until);
        let mut blocks = 0u32;
        let small = |a: &Append| {
            blocks = blocks.saturating_add(a.extent.map_or(0, |e| e.count));
            blocks < SHARED_BLOCKS_WANTED
        };
        company && self.writes.iter().take(SHARED_BLOCKS_WANTED as usize).all(small)
    }

    /// When a write that waits for company while no record is in flight waits no more.
    pub(super) fn company_ends(&self, now: Nanos) -> Option<Nanos> {
        let waits = !self.writes.is_empty() && self.expected > 0;
        waits.then_some(self.expected_until).filter(|at| *at > now)
    }

    /// Takes the clean copies that are moved from the tail out again.
    pub(super) fn cancel_relocations(&mut self) -> Vec<BlockNo> {
        let mut cancelled = Vec::new();
        self.writes.retain(|a| match a.owner {
            AppendOwner::Relocation(block) => {
                cancelled.push(block);
                false
            }
            _ => true,
        });
        cancelled
    }

    /// Takes the pieces of writes out again; returns their owners, one for each piece.
    pub(super) fn withdraw_parts(&mut self) -> Vec<PartKey> {
        let mut parts = Vec::new();
        for queue in [&mut self.patient, &mut self.writes] {
            queue.retain(|a| match a.owner {
                AppendOwner::Part(key) => {
                    parts.push(key);
                    false
                }
                _ => true,
            });
        }
        parts
    }

    /// Takes everything out, what is urgent first.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Append> + '_ {
        self.urgent.drain(..).chain(self.patient.drain(..)).chain(self.writes.drain(..))
    }
}

#[cfg(test)]
mod tests {
    use forebay_format::record::ExtentKind;

    use super::*;

    fn write(n: u64) -> Append {
        let extent = Some(Extent { block: BlockNo(n), count: 1, kind: ExtentKind::Zero });
        Append { extent, data: None, owner: AppendOwner::Part(PartKey(n)), durable: false, after: Seq(0) }
    }

    fn blocks(queue: &VecDeque<Append>) -> Vec<u64> {
        queue.iter().filter_map(|a| a.extent.map(|e| e.block.0)).collect()
    }

    #[test]
    fn what_nobody_waits_for_keeps_nobody_waiting_and_is_let_go_on_its_own() {
        let mut queue = Queue::default();
        (1..4).for_each(|n| queue.push_patient(write(n)));
        let awaited = May { patient: Go::Not, ..May::FREELY };
        assert_eq!((queue.next_kind(awaited), queue.has_writes()), (None, true));
        queue.push(write(4));
        assert_eq!(queue.next_kind(awaited), Some(Priority::Critical));
        assert_eq!(queue.next_from(Some(Priority::Critical)).map(|q| blocks(q)), Some(vec![4]));
        assert_eq!(
            queue.next_kind(May::FREELY),
            Some(Priority::NonCritical),
            "it is seldom let go, and goes then"
        );
        queue.promote(|patient| patient.owner == AppendOwner::Part(PartKey(9)));
        assert_eq!((blocks(&queue.patient), blocks(&queue.writes)), (vec![1, 2, 3], vec![4]));
        queue.promote(|patient| patient.owner == AppendOwner::Part(PartKey(2)));
        assert_eq!((blocks(&queue.patient), blocks(&queue.writes)), (vec![1, 3], vec![4, 2]));
        queue.promote(|_| true);
        assert_eq!((blocks(&queue.patient), blocks(&queue.writes)), (vec![], vec![4, 2, 1, 3]));
        queue.push_urgent(write(5));
        assert_eq!(queue.next_from(None).map(|q| blocks(q)), Some(vec![5]));
        assert_eq!((queue.blocks(), queue.withdraw_parts().len(), queue.has_writes()), (4, 4, false));
    }

    #[test]
    fn no_write_overtakes_another_on_the_same_blocks() {
        let mut queue = Queue::default();
        [1, 2].into_iter().for_each(|n| queue.push_patient(write(n)));
        queue.push(write(2));
        assert_eq!((blocks(&queue.patient), blocks(&queue.writes)), (vec![1], vec![2, 2]));
        [2, 3].into_iter().for_each(|n| queue.push_patient(write(n)));
        assert_eq!((blocks(&queue.patient), blocks(&queue.writes)), (vec![1, 3], vec![2, 2, 2]));
    }

    #[test]
    fn what_is_awaited_takes_along_what_its_blocks_and_its_part_hang_on() {
        let mut queue = Queue::default();
        // Each a part, its first block and how many: the third has two pieces.
        for (part, block, count) in
            [(1, 0, 2), (2, 1, 2), (3, 2, 2), (4, 50, 1), (3, 20, 2), (5, 21, 3), (6, 9, 1)]
        {
            let mut append = write(part);
            append.extent = append.extent.map(|e| Extent { block: BlockNo(block), count, ..e });
            queue.push_patient(append);
        }
        queue.promote(|patient| patient.owner == AppendOwner::Part(PartKey(2)));
        assert_eq!((blocks(&queue.patient), blocks(&queue.writes)), (vec![50, 9], vec![0, 1, 2, 20, 21]));
    }

    #[test]
    fn those_who_are_slowed_down_go_in_equal_portions() {
        let portions = |waiting: u64| {
            let mut queue = Queue::default();
            (0..waiting).for_each(|n| queue.push(write(n)));
            queue.portion(Priority::Critical)
        };
        assert_eq!([1, 3, 4, 5, 7, 8, 9, 12, 128].map(portions), [1, 3, 4, 5, 7, 4, 5, 4, 4]);
    }
}
