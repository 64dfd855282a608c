//! Writes that begin or end within a block of the backing, for a volume without a cache: the rest of such a block is read
//! first and written back with them.
//!
//! ```text
//!   a write:            ░░░░░░░░░░░░░░░░░░░
//!   blocks:      ├───────────┼───────────┼───────────┤
//!   the edges:   ▒▒▒▒▒▒▒                 ....▒▒▒▒▒▒▒▒▒   are read, and written with it
//! ```
//!
//! Two writes must not change one block at a time if one of them takes a part of it from before the other: it would put back what
//! that has changed. So the later one waits (*in its turn*, whatever else goes past it).

use std::collections::VecDeque;

use forebay_block::{Buf, BufMut, DeviceOp, DeviceResult, IoError, Op};
use forebay_engine::RequestId;

/// First byte and the byte behind the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    start: u64,
    end: u64,
}

impl Span {
    /// What a write or zero changes; `None` of other requests.
    fn of(op: &Op) -> Option<Self> {
        match op {
            Op::Write { offset, data, .. } => Some(Self { start: *offset, end: offset + data.len() as u64 }),
            Op::Zero { offset, len, .. } => Some(Self { start: *offset, end: offset + len }),
            Op::Read { .. } | Op::Flush | Op::Status { .. } => None,
        }
    }

    fn widened(self, block: u64) -> Self {
        Self { start: self.start / block * block, end: self.end.next_multiple_of(block) }
    }
}

/// A write or zero that changes whole blocks only, or not.
#[derive(Clone, Copy, Debug)]
struct Claim {
    id: RequestId,
    blocks: Span,
    partial: bool,
}

impl Claim {
    fn excludes(&self, other: &Self) -> bool {
        (self.partial || other.partial)
            && self.blocks.start < other.blocks.end
            && other.blocks.start < self.blocks.end
    }
}

/// Which writes are under way and which wait for them. No more than the volume has requests.
#[derive(Default)]
pub(crate) struct Turns {
    under_way: Vec<Claim>,
    waiting: VecDeque<(Claim, Op)>,
}

impl Turns {
    /// Takes a write or zero in: returns it if it may begin.
    pub(crate) fn arrive(&mut self, id: RequestId, op: Op, block: u64) -> Option<Op> {
        let Some(span) = Span::of(&op) else { return Some(op) };
        let claim = Claim { id, blocks: span.widened(block), partial: span != span.widened(block) };
        let others = self.under_way.iter().chain(self.waiting.iter().map(|(claim, _)| claim));
        if others.into_iter().any(|other| claim.excludes(other)) {
            self.waiting.push_back((claim, op));
            return None;
        }
        self.under_way.push(claim);
        Some(op)
    }

    /// One has ended: returns those that may begin now.
    pub(crate) fn ended(&mut self, id: RequestId) -> Vec<(RequestId, Op)> {
        self.under_way.retain(|claim| claim.id != id);
        let mut begin = Vec::new();
        let mut still: VecDeque<(Claim, Op)> = VecDeque::new();
        for (claim, op) in std::mem::take(&mut self.waiting) {
            let mut earlier = self.under_way.iter().chain(still.iter().map(|(claim, _)| claim));
            if earlier.any(|other| claim.excludes(other)) {
                still.push_back((claim, op));
            } else {
                self.under_way.push(claim);
                begin.push((claim.id, op));
            }
        }
        self.waiting = still;
        begin
    }

    /// Requests that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

/// A block that is changed in part.
struct Edge {
    offset: u64,
    /// What is in it, once that has been read.
    before: Option<Buf>,
}

/// A write or zero with such blocks on its way.
pub(crate) struct Partial {
    pub(crate) op: Op,
    span: Span,
    block: u64,
    edges: Vec<Edge>,
    /// Operations of the backing that have not ended.
    left: usize,
    written: bool,
    error: Option<IoError>,
}

/// What follows an operation's end.
pub(crate) enum Next {
    /// Others are under way.
    Wait,
    /// These are to be carried out.
    Carry(Vec<DeviceOp>),
    /// That was all.
    Done(Result<(), IoError>),
}

impl Partial {
    /// A write or zero that begins or ends within a block, and what is to be read first; the request itself if it does not.
    pub(crate) fn of(op: Op, block: u64) -> Result<(Self, Vec<DeviceOp>), Op> {
        let span = match Span::of(&op) {
            Some(span) if span.start < span.end && span != span.widened(block) => span,
            _ => return Err(op),
        };
        let blocks = span.widened(block);
        let mut offsets = Vec::with_capacity(2);
        if blocks.start < span.start {
            offsets.push(blocks.start);
        }
        let last = blocks.end - block;
        if span.end < blocks.end && offsets.last() != Some(&last) {
            offsets.push(last);
        }
        let reads = offsets.iter().map(|offset| DeviceOp::Read { offset: *offset, len: block as usize });
        let reads: Vec<DeviceOp> = reads.collect();
        let edges = offsets.into_iter().map(|offset| Edge { offset, before: None }).collect();
        let left = reads.len();
        Ok((Self { op, span, block, edges, left, written: false, error: None }, reads))
    }

    /// An operation has ended; `offset` is where it read, if it was one of those.
    pub(crate) fn ended(&mut self, offset: Option<u64>, result: DeviceResult) -> Next {
        self.left -= 1;
        match result {
            Ok(data) => {
                let edge = self.edges.iter_mut().find(|edge| Some(edge.offset) == offset);
                if let (Some(edge), Some(data)) = (edge, data) {
                    edge.before = Some(data);
                }
            }
            Err(error) => {
                self.error.get_or_insert(error);
            }
        }
        if self.left > 0 {
            return Next::Wait;
        }
        if let Some(error) = self.error.take() {
            return Next::Done(Err(error));
        }
        if self.written {
            return Next::Done(Ok(()));
        }
        self.written = true;
        let ops = self.writes();
        self.left = ops.len();
        Next::Carry(ops)
    }

    /// An edge with what the request makes of it.
    fn after(&self, edge: &Edge) -> Buf {
        let mut after = BufMut::zeroed(self.block as usize);
        if let Some(before) = &edge.before {
            after.copy_from_slice(before);
        }
        let start = self.span.start.max(edge.offset);
        let end = self.span.end.min(edge.offset + self.block);
        let changed = &mut after[(start - edge.offset) as usize..(end - edge.offset) as usize];
        match &self.op {
            Op::Write { data, .. } => {
                let from = (start - self.span.start) as usize;
                changed.copy_from_slice(&data[from..from + changed.len()]);
            }
            _ => changed.fill(0),
        }
        after.freeze()
    }

    /// Whole blocks: one write, or zeroes between the edges.
    fn writes(&self) -> Vec<DeviceOp> {
        let start = self.span.start.next_multiple_of(self.block);
        let end = self.span.end / self.block * self.block;
        let durable = matches!(self.op, Op::Write { fua: true, .. });
        let edge = |edge: &Edge| (edge.offset, self.after(edge));
        let mut parts: Vec<(u64, Buf)> = self.edges.iter().map(edge).collect();
        match &self.op {
            Op::Write { data, .. } => {
                if start < end {
                    let from = (start - self.span.start) as usize;
                    parts.push((start, data.slice(from, (end - start) as usize)));
                }
                parts.sort_by_key(|(offset, _)| *offset);
                let offset = self.span.widened(self.block).start;
                let bufs = parts.into_iter().map(|(_, buf)| buf).collect();
                vec![DeviceOp::Write { offset, bufs, durable }]
            }
            Op::Zero { unmap, .. } => {
                let write = |(offset, buf)| DeviceOp::Write { offset, bufs: vec![buf], durable: false };
                let mut ops: Vec<DeviceOp> = parts.into_iter().map(write).collect();
                if start < end {
                    ops.push(DeviceOp::Zero { offset: start, len: end - start, unmap: *unmap });
                }
                ops
            }
            Op::Read { .. } | Op::Flush | Op::Status { .. } => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(offset: u64, len: usize, fill: u8) -> Op {
        Op::Write { offset, data: Buf::copy_of(&vec![fill; len]), fua: true }
    }

    /// Carries a request out on bytes.
    fn carry_out(op: Op, medium: &mut [u8]) {
        let Ok((mut partial, mut ops)) = Partial::of(op, 4096) else { panic!("begins or ends in a block") };
        loop {
            let mut next = Next::Wait;
            for op in ops {
                let (offset, result) = match op {
                    DeviceOp::Read { offset, len } => {
                        (Some(offset), Ok(Some(Buf::copy_of(&medium[offset as usize..][..len]))))
                    }
                    DeviceOp::Write { offset, bufs, .. } => {
                        let mut at = offset as usize;
                        for buf in &bufs {
                            medium[at..at + buf.len()].copy_from_slice(buf);
                            at += buf.len();
                        }
                        assert!(offset.is_multiple_of(4096) && at.is_multiple_of(4096));
                        (None, Ok(None))
                    }
                    DeviceOp::Zero { offset, len, .. } => {
                        assert!(offset.is_multiple_of(4096) && len.is_multiple_of(4096));
                        medium[offset as usize..(offset + len) as usize].fill(0);
                        (None, Ok(None))
                    }
                    DeviceOp::Flush => (None, Ok(None)),
                };
                next = partial.ended(offset, result);
            }
            ops = match next {
                Next::Carry(ops) => ops,
                Next::Done(result) => return result.unwrap(),
                Next::Wait => panic!("nothing is under way"),
            };
        }
    }

    #[test]
    fn only_what_was_asked_for_changes() {
        let spans =
            [(512, 512), (0, 512), (3584, 512), (3584, 1024), (512, 3 * 4096), (0, 4608), (4096 - 512, 8192)];
        for (offset, len) in spans {
            for zero in [false, true] {
                let mut medium: Vec<u8> = (0..5 * 4096).map(|i| (i / 512) as u8 + 1).collect();
                let mut wanted = medium.clone();
                wanted[offset..offset + len].fill(if zero { 0 } else { 0xEE });
                let op = match zero {
                    true => Op::Zero { offset: offset as u64, len: len as u64, unmap: true, fua: false },
                    false => write(offset as u64, len, 0xEE),
                };
                carry_out(op, &mut medium);
                assert!(medium == wanted, "{offset}+{len}, zero: {zero}");
            }
        }
        assert!(Partial::of(write(4096, 8192, 1), 4096).is_err(), "whole blocks need nothing of this");
    }

    #[test]
    fn writes_of_one_block_take_turns_if_one_is_partial() {
        let mut turns = Turns::default();
        let arrive = |turns: &mut Turns, id, offset, len| {
            turns.arrive(RequestId(id), write(offset, len, 1), 4096).is_some()
        };
        let begun = |turns: &mut Turns, id| -> Vec<u64> {
            turns.ended(RequestId(id)).into_iter().map(|(id, _)| id.0).collect()
        };
        assert!(arrive(&mut turns, 1, 0, 4096) && arrive(&mut turns, 2, 0, 4096), "whole blocks do not");
        assert!(!arrive(&mut turns, 3, 512, 512));
        assert!(!arrive(&mut turns, 4, 0, 4096), "it must not go past what waits for the same block");
        assert!(arrive(&mut turns, 5, 4096, 512) && !arrive(&mut turns, 6, 4608, 512));
        assert_eq!(begun(&mut turns, 1), []);
        assert_eq!(begun(&mut turns, 2), [3]);
        assert_eq!(begun(&mut turns, 5), [6]);
        assert_eq!(begun(&mut turns, 3), [4]);
        assert_eq!((begun(&mut turns, 4), begun(&mut turns, 6)), (vec![], vec![]));
        assert_eq!((turns.waiting(), turns.under_way.len()), (0, 0));
    }

    #[test]
    fn an_error_ends_it_before_anything_is_written() {
        let Ok((mut partial, reads)) = Partial::of(write(512, 4096, 1), 4096) else { panic!("partial") };
        assert_eq!(reads.len(), 2);
        let error = IoError::new(forebay_block::ErrorKind::Io, "reading");
        assert!(matches!(partial.ended(Some(0), Err(error)), Next::Wait));
        let last = partial.ended(Some(4096), Ok(Some(Buf::zeroed(4096))));
        assert!(matches!(last, Next::Done(Err(_))));
    }
}
