//! A client that goes through its trace in a closed loop.

use forebay_block::{Buf, Op};

use crate::trace::Step;

/// See the module's documentation.
pub(crate) struct Client<'a> {
    steps: std::slice::Iter<'a, Step>,
    depth: usize,
    under_way: usize,
    /// A flush is to be asked for, or is under way: nothing else begins.
    syncs: bool,
}

impl<'a> Client<'a> {
    pub(crate) fn new(steps: &'a [Step], depth: usize) -> Self {
        Self { steps: steps.iter(), depth, under_way: 0, syncs: false }
    }

    /// The next request, if it may begin now. `zeroes` is at least as long as any.
    pub(crate) fn next(&mut self, zeroes: &Buf) -> Option<Op> {
        if self.under_way == 0 && self.syncs {
            self.under_way = 1;
            return Some(Op::Flush);
        }
        if self.syncs || self.under_way >= self.depth {
            return None;
        }
        let op = match *self.steps.next()? {
            Step::Sync => {
                self.syncs = true;
                return self.next(zeroes);
            }
            Step::Read { offset, len } => Op::Read { offset, len: len as usize },
            Step::Write { offset, len } => {
                Op::Write { offset, data: zeroes.slice(0, len as usize), fua: false }
            }
            Step::Trim { offset, len } => Op::Zero { offset, len, unmap: true, fua: false },
        };
        self.under_way += 1;
        Some(op)
    }

    /// A request of its own has been answered; `flush` if it was one.
    pub(crate) fn answered(&mut self, flush: bool) {
        self.under_way -= 1;
        self.syncs &= !flush;
    }

    /// Whether everything has been asked and answered.
    pub(crate) fn is_done(&self) -> bool {
        self.steps.len() == 0 && self.under_way == 0 && !self.syncs
    }
}
