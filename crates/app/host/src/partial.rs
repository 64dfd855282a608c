//! Writes that begin or end within a block of the backing, for a volume without a cache: the rest of such a block is read
//! first and written back with them.
//!
//! ```text
//!   a write:            ░░░░░░░░░░░░░░░░░░░
//!   blocks:      ├───────────┼───────────┼───────────┤
//!   the edges:   ▒▒▒▒▒▒▒                 ....▒▒▒▒▒▒▒▒▒   are read, and written with it
//! ```
//!
//! Meanwhile nobody else may change one of these blocks: what it had changed would be put back. So requests that touch the same
//! blocks take turns ([`crate::in_order`]).

use forebay_block::{Buf, BufMut, DeviceOp, DeviceResult, IoError, Op};

use crate::in_order::Span;

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
        let span = match Span::of(&op).filter(|_| op.changes().is_some()) {
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
                    DeviceOp::Flush | DeviceOp::Commit(_) => (None, Ok(None)),
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
    fn an_error_ends_it_before_anything_is_written() {
        let Ok((mut partial, reads)) = Partial::of(write(512, 4096, 1), 4096) else { panic!("partial") };
        assert_eq!(reads.len(), 2);
        let error = IoError::new(forebay_block::ErrorKind::Io, "reading");
        assert!(matches!(partial.ended(Some(0), Err(error)), Next::Wait));
        let last = partial.ended(Some(4096), Ok(Some(Buf::zeroed(4096))));
        assert!(matches!(last, Next::Done(Err(_))));
    }
}
