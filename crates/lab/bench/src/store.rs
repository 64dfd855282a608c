//! A volume as a file system or a database sees it: requests that are waited for, alone or many at a time.

use std::sync::{Arc, mpsc};

use forebay_block::{BlockService, Buf, BufMut, IoError, Op, Origin, Reply};

use crate::BenchError;

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: u64 = 4096;
/// Longest request, as kernels cut them.
const REQUEST_BLOCKS_MAX: u64 = 128;
/// Requests of one batch under way at a time, as of a block device's queue.
const QUEUE_DEPTH: usize = 32;

/// A stretch of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) first: u64,
    pub(crate) blocks: u64,
}

impl Stretch {
    /// Sorted blocks as few stretches, none longer than a request may be.
    pub(crate) fn of_sorted(blocks: impl IntoIterator<Item = u64>) -> Vec<Self> {
        let mut stretches: Vec<Self> = Vec::new();
        for block in blocks {
            match stretches.last_mut() {
                Some(s) if s.first + s.blocks == block && s.blocks < REQUEST_BLOCKS_MAX => s.blocks += 1,
                _ => stretches.push(Self { first: block, blocks: 1 }),
            }
        }
        stretches
    }
}

/// See the module's documentation. Cloning it is cheap.
#[derive(Clone)]
pub(crate) struct Store {
    volume: Arc<dyn BlockService>,
    data: Buf,
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Forebay(format!("volume: {error}"))
}

impl Store {
    pub(crate) fn new(volume: Arc<dyn BlockService>) -> Self {
        let mut data = BufMut::zeroed((REQUEST_BLOCKS_MAX * BLOCK_BYTES) as usize);
        data.iter_mut().enumerate().for_each(|(n, b)| *b = (n * 31 % 251) as u8);
        Self { volume, data: data.freeze() }
    }

    /// Carries out requests, as many at a time as the queue takes. `sync` says that somebody waits for them (`REQ_SYNC`).
    fn all(&self, ops: impl IntoIterator<Item = Op>, sync: bool) -> Result<(), BenchError> {
        let (sender, ended) = mpsc::sync_channel::<Result<Reply, IoError>>(QUEUE_DEPTH);
        let next = || ended.recv().map_err(failed).and_then(|result| result.map_err(failed));
        let mut under_way = 0;
        for op in ops {
            if under_way == QUEUE_DEPTH {
                next()?;
                under_way -= 1;
            }
            let sender = sender.clone();
            // There is room for all that are under way; who has given up after an error asks no more.
            let done = move |result| drop(sender.send(result));
            self.volume.submit(op, Origin { sync, ..Origin::default() }, Box::new(done));
            under_way += 1;
        }
        (0..under_way).try_for_each(|_| next().map(drop))
    }

    pub(crate) fn read(&self, stretches: &[Stretch]) -> Result<(), BenchError> {
        self.all(
            stretches
                .iter()
                .map(|s| Op::Read { offset: s.first * BLOCK_BYTES, len: (s.blocks * BLOCK_BYTES) as usize }),
            true,
        )
    }

    /// What is written back in the background.
    pub(crate) fn write_back(&self, stretches: &[Stretch]) -> Result<(), BenchError> {
        self.all(stretches.iter().map(|s| self.op(*s, false)), false)
    }

    /// Writes that are flagged synchronous.
    pub(crate) fn write_sync(&self, stretches: &[Stretch]) -> Result<(), BenchError> {
        self.all(stretches.iter().map(|s| self.op(*s, false)), true)
    }

    /// One forced write, as of a journal's commit record.
    pub(crate) fn write_forced(&self, block: u64) -> Result<(), BenchError> {
        self.all([self.op(Stretch { first: block, blocks: 1 }, true)], true)
    }

    pub(crate) fn flush(&self) -> Result<(), BenchError> {
        self.all([Op::Flush], true)
    }

    fn op(&self, stretch: Stretch, fua: bool) -> Op {
        let data = self.data.slice(0, (stretch.blocks * BLOCK_BYTES) as usize);
        Op::Write { offset: stretch.first * BLOCK_BYTES, data, fua }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_make_one_stretch_up_to_a_request() {
        let s = |first, blocks| Stretch { first, blocks };
        assert_eq!(Stretch::of_sorted([1, 2, 3, 7, 9, 10]), [s(1, 3), s(7, 1), s(9, 2)]);
        assert_eq!(Stretch::of_sorted(0..200), [s(0, 128), s(128, 72)]);
    }
}
