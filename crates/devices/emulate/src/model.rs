//! The one interface to all models.

use forebay_block::{DeviceOp, Nanos};

use crate::disk::Disk;
use crate::flash::Flash;
use crate::memory::Memory;
use crate::remote::Remote;
use crate::settings::{BadSetting, Settings};

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
}

/// A device of a certain size. See the crate's documentation.
pub struct Model {
    machine: Box<dyn Machine + Send>,
    size_bytes: u64,
    now: Nanos,
    under_way: usize,
    ends: Ends,
}

impl Model {
    /// A device of `size_bytes` bytes at time 0, idle.
    ///
    /// # Errors
    /// If the parameters contradict each other or the size; the sentence says which.
    pub fn new(settings: &Settings, size_bytes: u64) -> Result<Self, BadSetting> {
        settings.check()?;
        let machine: Box<dyn Machine + Send> = match settings {
            Settings::Disk(_, disk) => Box::new(Disk::new(disk, size_bytes)?),
            Settings::Flash(_, flash) => Box::new(Flash::new(flash)),
            Settings::Remote(remote) => Box::new(Remote::new(remote)),
            Settings::Memory(memory) => Box::new(Memory::new(memory)),
        };
        Ok(Self { machine, size_bytes, now: Nanos(0), under_way: 0, ends: Vec::new() })
    }

    /// Starts an operation. `tag` is the caller's name for it. Time never goes back: an earlier `now` than the last one
    /// counts as the last one. What lies past the device's end is left out of account.
    pub fn submit(&mut self, tag: u64, op: Operation, now: Nanos) {
        self.advance(now);
        let offset = op.offset.min(self.size_bytes);
        let len = op.len.min(self.size_bytes - offset);
        self.machine.submit(tag, Operation { offset, len, ..op }, self.now);
        self.under_way += 1;
    }

    /// Appends the operations that have completed by `now`, with the instants at which they did, in that order.
    pub fn poll(&mut self, now: Nanos, done: &mut Vec<(u64, Nanos)>) {
        self.advance(now);
        self.under_way -= self.ends.len();
        done.append(&mut self.ends);
    }

    /// When [`Model::poll`] should be called next: no operation completes before; one may complete then. `None` if
    /// nothing is under way.
    pub fn next_event(&self) -> Option<Nanos> {
        if let Some((_, at)) = self.ends.first() {
            return Some(*at);
        }
        if self.under_way == 0 { None } else { self.machine.next_event().map(|at| at.max(self.now)) }
    }

    /// Operations that have not been handed back by [`Model::poll`].
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    fn advance(&mut self, now: Nanos) {
        self.now = self.now.max(now);
        self.machine.advance(self.now, &mut self.ends);
    }
}
