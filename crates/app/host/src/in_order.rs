//! The order of requests that touch the same bytes, for a volume without a cache: none of them overtakes another, unless both only read.
//!
//! Requests that are under way at a time have no order by themselves. But a scheduler may leave a write for later for as long as others
//! are more urgent, and what comes after it must not find the older state for so long, nor be overwritten by it in the end. So the later
//! one of two waits until the earlier one has ended. Whoever waits here lends its urgency to those before it.
//!
//! Who comes is compared with all others, and who ends with none: it knows whom it held up. The host admits 1,024 requests at a time (P7), so
//! that there are at most half a million pairs of them.

use std::collections::BTreeMap;

use forebay_block::Op;
use forebay_engine::{Class, RequestId};
use forebay_policy::Issuer;

/// First byte and the byte behind the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Span {
    /// What a read, write or zero touches; `None` of other requests.
    pub(crate) fn of(op: &Op) -> Option<Self> {
        let (start, len) = match op {
            Op::Read { offset, len } => (*offset, *len as u64),
            Op::Write { offset, data, .. } => (*offset, data.len() as u64),
            Op::Zero { offset, len, .. } => (*offset, *len),
            Op::Flush | Op::Status { .. } => return None,
        };
        Some(Self { start, end: start + len })
    }

    /// Whole blocks.
    pub(crate) fn widened(self, block: u64) -> Self {
        Self { start: self.start / block * block, end: self.end.next_multiple_of(block) }
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// What a request touches, and whether it changes that.
#[derive(Clone, Copy, Debug)]
struct Claim {
    blocks: Span,
    changes: bool,
}

impl Claim {
    fn excludes(&self, other: &Self) -> bool {
        #[cfg(test)]
        tests::COMPARED.with(|compared| compared.set(compared.get() + 1));
        (self.changes || other.changes) && self.blocks.overlaps(&other.blocks)
    }
}

/// A request that has not ended.
struct Held {
    claim: Claim,
    /// It waits for so many that came before it.
    waits_for: usize,
    /// What is to begin then.
    op: Option<Op>,
    /// Those that wait for it, in the order in which they came.
    holds_up: Vec<RequestId>,
}

/// Which requests are under way and which wait for them.
#[derive(Default)]
pub(crate) struct Turns {
    held: BTreeMap<RequestId, Held>,
    waiting: usize,
}

impl Turns {
    /// Takes a request in: returns it if it may begin. `block`: what is touched is whole blocks of so many bytes.
    pub(crate) fn arrive(&mut self, id: RequestId, op: Op, block: u64) -> Option<Op> {
        let Some(span) = Span::of(&op) else { return Some(op) };
        let claim = Claim { blocks: span.widened(block), changes: op.changes().is_some() };
        let mut waits_for = 0;
        for other in self.held.values_mut().filter(|other| claim.excludes(&other.claim)) {
            other.holds_up.push(id);
            waits_for += 1;
        }
        let (op, begins) = if waits_for > 0 { (Some(op), None) } else { (None, Some(op)) };
        self.waiting += usize::from(op.is_some());
        self.held.insert(id, Held { claim, waits_for, op, holds_up: Vec::new() });
        begins
    }

    /// One has ended: returns those that may begin now. Nothing is looked at but those that it held up.
    pub(crate) fn ended(&mut self, id: RequestId) -> Vec<(RequestId, Op)> {
        let Some(ended) = self.held.remove(&id) else { return Vec::new() };
        let mut begin = Vec::new();
        for id in ended.holds_up {
            let Some(next) = self.held.get_mut(&id) else { continue };
            next.waits_for -= 1;
            if next.waits_for == 0 {
                begin.extend(next.op.take().map(|op| (id, op)));
            }
        }
        self.waiting -= begin.len();
        begin
    }

    /// Requests that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }
}

/// Who asked for a request that is not answered, and whether somebody waits for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub(crate) issuer: Issuer,
    pub(crate) class: Class,
    /// What it touches, in whole blocks.
    pub(crate) blocks: Option<Span>,
}

/// Those of all requests, in the order in which they came.
#[derive(Default)]
pub(crate) struct Askers {
    all: BTreeMap<RequestId, Asker>,
    /// Of these nobody waits for so many.
    background: usize,
}

impl Askers {
    pub(crate) fn arrive(&mut self, id: RequestId, asker: Asker) {
        self.background += usize::from(asker.class == Class::Background);
        self.all.insert(id, asker);
    }

    pub(crate) fn ended(&mut self, id: RequestId) {
        if let Some(asker) = self.all.remove(&id) {
            self.background -= usize::from(asker.class == Class::Background);
        }
    }

    /// Who asked, and whether somebody waits by now; of what is no request, Forebay itself does.
    pub(crate) fn of(&self, id: Option<RequestId>) -> (Class, Issuer) {
        let asker = id.and_then(|id| self.all.get(&id));
        asker.map_or((Class::Foreground, Issuer::default()), |asker| (asker.class, asker.issuer))
    }

    /// Somebody waits for what touches these bytes, and so for whatever that has to wait for. Returns the requests for which nobody
    /// waited before.
    pub(crate) fn are_awaited(&mut self, span: Span) -> Vec<RequestId> {
        let mut turned = Vec::new();
        if self.background == 0 {
            return turned;
        }
        let mut awaited = vec![span];
        for (id, asker) in self.all.iter_mut().rev() {
            let Some(blocks) = asker.blocks else { continue };
            if !awaited.iter().any(|span| span.overlaps(&blocks)) {
                continue;
            }
            awaited.push(blocks);
            if asker.class == Class::Background {
                asker.class = Class::Foreground;
                turned.push(*id);
            }
        }
        self.background -= turned.len();
        turned
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use forebay_block::Buf;

    use super::*;

    thread_local! {
        /// How often two requests were compared.
        pub(super) static COMPARED: Cell<u64> = const { Cell::new(0) };
    }

    fn write(offset: u64, len: usize) -> Op {
        Op::Write { offset, data: Buf::zeroed(len), fua: true }
    }

    #[test]
    fn what_touches_the_same_bytes_takes_turns_unless_both_read() {
        let mut turns = Turns::default();
        let arrive = |turns: &mut Turns, id, op: Op| turns.arrive(RequestId(id), op, 512).is_some();
        let begun = |turns: &mut Turns, id| -> Vec<u64> {
            turns.ended(RequestId(id)).into_iter().map(|(id, _)| id.0).collect()
        };
        assert!(arrive(&mut turns, 1, write(0, 4096)) && arrive(&mut turns, 2, write(4096, 512)));
        assert!(!arrive(&mut turns, 3, Op::Read { offset: 512, len: 4096 }), "behind two writes");
        assert!(!arrive(&mut turns, 4, write(512, 512)), "it must not go past what waits for the same bytes");
        assert!(!arrive(&mut turns, 5, Op::Read { offset: 0, len: 512 }));
        assert!(arrive(&mut turns, 6, Op::Flush), "it is for what has been answered");
        assert!(arrive(&mut turns, 7, Op::Read { offset: 8192, len: 512 }));
        assert!(arrive(&mut turns, 8, Op::Read { offset: 8192, len: 512 }), "both only read");
        assert!(!arrive(&mut turns, 9, Op::Zero { offset: 8192, len: 512, unmap: true, fua: false }));
        assert_eq!((begun(&mut turns, 6), turns.waiting()), (vec![], 4));
        assert_eq!(begun(&mut turns, 1), [5]);
        assert_eq!(begun(&mut turns, 2), [3]);
        assert_eq!(begun(&mut turns, 5), [0_u64; 0]);
        assert_eq!(begun(&mut turns, 3), [4]);
        assert_eq!((begun(&mut turns, 7), begun(&mut turns, 8)), (vec![], vec![9]));
        assert_eq!((begun(&mut turns, 4), begun(&mut turns, 9)), (vec![], vec![]));
        assert_eq!((turns.waiting(), turns.held.len()), (0, 0));
    }

    #[test]
    fn who_ends_is_compared_with_nobody() {
        let mut turns = Turns::default();
        // Two writes to each of many places.
        for n in 0..1024 {
            let begins = turns.arrive(RequestId(n), write(n % 512 * 4096, 4096), 512).is_some();
            assert_eq!(begins, n < 512);
        }
        COMPARED.set(0);
        for n in 0..512 {
            let begun = turns.ended(RequestId(n));
            assert!(begun.len() == 1 && begun[0].0 == RequestId(512 + n));
            assert_eq!(turns.waiting() as u64, 511 - n);
        }
        assert_eq!(COMPARED.get(), 0);
    }

    #[test]
    fn parts_of_one_block_are_the_same_bytes_where_the_backing_takes_blocks() {
        let mut turns = Turns::default();
        assert!(turns.arrive(RequestId(1), write(0, 512), 4096).is_some());
        assert!(turns.arrive(RequestId(2), write(3584, 512), 4096).is_none());
        assert!(turns.arrive(RequestId(3), write(4096, 512), 4096).is_some());
    }

    #[test]
    fn who_waits_lends_its_urgency_to_those_before_it() {
        let mut askers = Askers::default();
        let span = |start, end| Span { start, end };
        let arrive = |askers: &mut Askers, id, blocks, class| {
            askers.arrive(RequestId(id), Asker { issuer: Issuer::default(), class, blocks });
        };
        use Class::{Background, Foreground};
        arrive(&mut askers, 1, Some(span(0, 1024)), Background);
        arrive(&mut askers, 2, Some(span(4096, 8192)), Background);
        arrive(&mut askers, 3, Some(span(512, 2048)), Background);
        arrive(&mut askers, 4, None, Foreground);
        arrive(&mut askers, 5, Some(span(0, 512)), Background);
        // The third touches these bytes, and waits for the first, which does not; the fifth comes after the first.
        let turned = |askers: &mut Askers, at: Span| -> Vec<u64> {
            askers.are_awaited(at).into_iter().map(|id| id.0).collect()
        };
        assert_eq!(turned(&mut askers, span(1536, 1537)), [3, 1]);
        assert_eq!(turned(&mut askers, span(1536, 1537)), [0_u64; 0], "once");
        assert_eq!(
            (askers.of(Some(RequestId(3))).0, askers.of(Some(RequestId(5))).0),
            (Foreground, Background)
        );
        assert_eq!(askers.of(None).0, Foreground);
        (1..6).for_each(|id| askers.ended(RequestId(id)));
        assert!(askers.all.is_empty() && askers.background == 0);
    }
}
