//! Batches of reads and of writes in the order of their places, as Linux's deadline schedulers form them
//! (`block/mq-deadline.c`, `__dd_dispatch_request`).
//!
//! A batch goes upwards from where the last one of its direction ended. The next batch begins where that goes
//! on, or with the oldest one of its direction if that is overdue, or nothing lies further up.

use super::sorted::Sorted;

/// Operations in the order of their places that count as one batch (`fifo_batch`).
pub(super) const BATCH_MAX: usize = 16;
/// So many batches of the first direction may go before one of the second that waits (`writes_starved`).
pub(super) const BATCHES_BEFORE_SECOND: usize = 2;

/// What goes first, reads; and what goes second, writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Direction {
    First,
    #[default]
    Second,
}

/// What waits, in two directions.
#[derive(Debug, Default)]
pub(super) struct Batches {
    lists: [Sorted; 2],
    /// Where the last one of each direction lay.
    positions: [u64; 2],
}

/// The batch that is being formed. Whoever shares a device shares it.
#[derive(Debug, Default)]
pub(super) struct Batch {
    direction: Direction,
    started: usize,
    /// Batches of the first direction that began while the second one waited.
    starved: usize,
}

impl Batches {
    pub fn of(&mut self, direction: Direction) -> &mut Sorted {
        &mut self.lists[direction as usize]
    }

    pub fn remove(&mut self, number: u64) -> bool {
        self.lists.iter_mut().any(|list| list.remove(number))
    }

    /// The one that is due first, of both directions.
    pub fn first_due(&self) -> Option<(u64, u64)> {
        self.lists.iter().filter_map(Sorted::first_due).min()
    }

    /// What starts next.
    pub fn next(&mut self, batch: &mut Batch, now_ns: u64) -> Option<u64> {
        let goes_on = |of: &Self, direction: Direction| {
            of.lists[direction as usize].at_or_behind(of.positions[direction as usize])
        };
        let next = match goes_on(self, batch.direction) {
            Some(next) if (1..BATCH_MAX).contains(&batch.started) => next,
            _ => {
                batch.direction = self.direction(batch)?;
                batch.started = 0;
                let list = &self.lists[batch.direction as usize];
                let (_, oldest) = list.first_due()?;
                match goes_on(self, batch.direction) {
                    Some(next) if list.expired(now_ns).is_none() => next,
                    _ => (list.position(oldest)?, oldest),
                }
            }
        };
        batch.started += 1;
        self.positions[batch.direction as usize] = next.0;
        self.remove(next.1);
        Some(next.1)
    }

    /// Of which direction the next batch is.
    fn direction(&self, batch: &mut Batch) -> Option<Direction> {
        match self.lists.each_ref().map(Sorted::is_empty) {
            [true, true] => None,
            [false, true] => Some(Direction::First),
            [false, false] if batch.starved < BATCHES_BEFORE_SECOND => {
                batch.starved += 1;
                Some(Direction::First)
            }
            [_, false] => {
                batch.starved = 0;
                Some(Direction::Second)
            }
        }
    }
}
