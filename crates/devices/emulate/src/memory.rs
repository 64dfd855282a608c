//! NV-DRAM: memory that keeps its content. One channel of a certain bandwidth, and a little time for each command.

use std::collections::VecDeque;

use forebay_block::Nanos;

use crate::machine::{Access, Ends, Machine, Operation};
use crate::parameter::Parameter;

/// Parameters of NV-DRAM behind a block interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemorySettings {
    /// Time of a command besides the copying, in nanoseconds.
    pub latency_ns: u64,
    /// Bytes a second that can be copied, reads and writes together.
    pub rate_bytes: u64,
}

impl MemorySettings {
    /// The peak rate is that of one DDR4-2400 module (JEDEC JESD79-4: 2400 MT/s of 8 bytes), as NVDIMM-N modules are
    /// made of; they run at the speed of DRAM. One microsecond for a command is typical of a block driver for memory
    /// and from no data sheet.
    pub(crate) const NVDRAM: Self = Self { latency_ns: 1_000, rate_bytes: 19_200_000_000 };

    pub(crate) fn slots(&mut self) -> Vec<(Parameter, &mut u64)> {
        vec![
            (Parameter::time("latency", "time of a command besides the copying"), &mut self.latency_ns),
            (Parameter::rate("rate", "bandwidth, reads and writes together"), &mut self.rate_bytes),
        ]
    }
}

/// See the module's documentation.
pub(crate) struct Memory {
    settings: MemorySettings,
    channel_free: Nanos,
    /// Ends in the order of arrival, which is that of time, too.
    due: VecDeque<(u64, Nanos)>,
}

impl Memory {
    pub(crate) fn new(settings: &MemorySettings) -> Self {
        Self { settings: settings.clone(), channel_free: Nanos(0), due: VecDeque::new() }
    }
}

/// Nothing takes longer, about 200 days, so that no sum of times overflows.
pub(crate) const TRANSFER_NS_MAX: u64 = 1 << 54;

/// Nanoseconds that `bytes` take at `rate` bytes a second, rounded up.
pub(crate) fn transfer_ns(bytes: u64, rate: u64) -> u64 {
    let ns = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(rate.max(1)));
    u64::try_from(ns).unwrap_or(u64::MAX).min(TRANSFER_NS_MAX)
}

impl Machine for Memory {
    fn submit(&mut self, tag: u64, op: Operation, now: Nanos) {
        let bytes = match op.access {
            Access::Read | Access::Write { .. } | Access::Zero { unmap: false } => op.len,
            Access::Flush | Access::Zero { unmap: true } => 0,
        };
        let copied =
            self.channel_free.max(now).0.saturating_add(transfer_ns(bytes, self.settings.rate_bytes));
        self.channel_free = Nanos(copied);
        self.due.push_back((tag, Nanos(copied.saturating_add(self.settings.latency_ns))));
    }

    fn advance(&mut self, now: Nanos, ends: &mut Ends) {
        while let Some(end) = self.due.pop_front_if(|(_, at)| *at <= now) {
            ends.push(end);
        }
    }

    fn next_event(&self) -> Option<Nanos> {
        self.due.front().map(|(_, at)| *at)
    }
}
