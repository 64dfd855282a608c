//! What all models have in common: operations, and what takes them.

use forebay_block::{DeviceOp, Nanos};

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads.
    Read,
    /// Writes.
    Write {
        /// Completes only when the data would survive a power cut (FUA).
        durable: bool,
    },
    /// Makes what completed before it was submitted survive a power cut.
    Flush,
    /// Zeroes.
    Zero {
        /// The device may forget the range instead of writing zeroes.
        unmap: bool,
    },
}

/// An operation, without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What it does.
    pub access: Access,
    /// Byte offset on the device.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub len: u64,
}

impl From<&DeviceOp> for Operation {
    fn from(op: &DeviceOp) -> Self {
        let (access, offset, len) = match op {
            DeviceOp::Read { offset, len } => (Access::Read, *offset, *len as u64),
            DeviceOp::Write { offset, durable, .. } => {
                (Access::Write { durable: *durable }, *offset, op.write_bytes())
            }
            DeviceOp::Flush => (Access::Flush, 0, 0),
            DeviceOp::Commit(commit) => {
                (Access::Write { durable: true }, commit.head_offset, commit.head.len() as u64)
            }
            DeviceOp::Zero { offset, len, unmap } => (Access::Zero { unmap: *unmap }, *offset, *len),
        };
        Self { access, offset, len }
    }
}

/// Ends of operations: their tags, and when they completed.
pub(crate) type Ends = Vec<(u64, Nanos)>;

/// What every kind of device can do.
pub(crate) trait Machine {
    /// Takes an operation that lies within the device; `advance` has been called for `now`.
    fn submit(&mut self, tag: u64, op: Operation, now: Nanos);
    /// Lets time pass until `now`, and says what completed on the way.
    fn advance(&mut self, now: Nanos, ends: &mut Ends);
    /// An instant at or before the next completion; asked only while operations are under way.
    fn next_event(&self) -> Option<Nanos>;
    /// Operations that it has not taken in, as it is full.
    fn waiting(&self) -> usize {
        0
    }
}
