//! The one interface to all models.

use forebay_block::Nanos;

use crate::disk::Disk;
use crate::flash::Flash;
use crate::machine::{Ends, Machine, Operation};
use crate::memory::Memory;
use crate::parameter::BadSetting;
use crate::remote::Remote;
use crate::settings::Settings;

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

    /// Of these the ones that wait in front of the device, as it takes no more at a time ([`Settings::depth`]).
    pub fn waiting(&self) -> usize {
        self.machine.waiting()
    }

    fn advance(&mut self, now: Nanos) {
        self.now = self.now.max(now);
        self.machine.advance(self.now, &mut self.ends);
    }
}
