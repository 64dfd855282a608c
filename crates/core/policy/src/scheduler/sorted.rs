//! Operations that wait, by where they are and by when they are due: what every scheduler with an elevator
//! keeps of them.

use std::collections::{BTreeMap, BTreeSet};

use super::Operation;

/// See the module's documentation. Whoever is due at the same time, or lies at the same place, stands in the
/// order of numbers.
#[derive(Debug, Default)]
pub(super) struct Sorted {
    /// Position and due time by number.
    waiting: BTreeMap<u64, (u64, u64)>,
    by_position: BTreeSet<(u64, u64)>,
    by_due: BTreeSet<(u64, u64)>,
}

impl Sorted {
    /// It comes to wait, due so long after it came.
    pub fn insert(&mut self, operation: &Operation, expires_ns: u64) {
        let position = operation.offset.unwrap_or(0);
        let due = operation.arrived_ns.saturating_add(expires_ns);
        self.waiting.insert(operation.number, (position, due));
        self.by_position.insert((position, operation.number));
        self.by_due.insert((due, operation.number));
    }

    /// It starts, or is withdrawn. Whether it waited here.
    pub fn remove(&mut self, number: u64) -> bool {
        let Some((position, due)) = self.waiting.remove(&number) else { return false };
        self.by_position.remove(&(position, number));
        self.by_due.remove(&(due, number));
        true
    }

    /// Where it lies, if it waits here.
    pub fn position(&self, number: u64) -> Option<u64> {
        self.waiting.get(&number).map(|(position, _)| *position)
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// When the first one is due, and its number.
    pub fn first_due(&self) -> Option<(u64, u64)> {
        self.by_due.first().copied()
    }

    /// The first one due, if it is by now.
    pub fn expired(&self, now_ns: u64) -> Option<u64> {
        self.first_due().filter(|(due, _)| *due <= now_ns).map(|(_, number)| number)
    }

    /// Position and number of the first one that lies here or behind.
    pub fn at_or_behind(&self, position: u64) -> Option<(u64, u64)> {
        self.by_position.range((position, 0)..).next().copied()
    }

    /// Position and number of the nearest one that lies before.
    pub fn before(&self, position: u64) -> Option<(u64, u64)> {
        let (nearest, _) = *self.by_position.range(..(position, 0)).next_back()?;
        self.at_or_behind(nearest)
    }

    /// The next one on the way of an elevator that only goes up, and begins anew at the lowest one.
    pub fn upwards(&self, position: u64) -> Option<u64> {
        self.at_or_behind(position).or_else(|| self.by_position.first().copied()).map(|(_, number)| number)
    }
}
