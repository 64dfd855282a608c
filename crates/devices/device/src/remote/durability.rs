//! Which changes a store that may go away is believed to have made durable.

/// Volatile changes, numbered in the order of their answers.
///
/// Invariants:
/// 1. `durable <= answered`, and `durable` is reached only by a flush that was sent after all changes that it covers had been answered, in
///    the same session.
/// 2. A change that was lost with its session is followed by a failed flush, in what its owner hears, before any flush succeeds.
#[derive(Debug, Default)]
pub(super) struct Durability {
    answered: u64,
    durable: u64,
    /// Some may be lost, and the owner has not heard of it yet.
    lost: bool,
    /// A flush that has failed for this is on its way to the owner, behind all that may be lost.
    telling: bool,
}

impl Durability {
    /// A volatile change was answered well.
    pub(super) fn changed(&mut self) {
        self.answered += 1;
    }

    /// So many changes does a flush cover that is sent now.
    pub(super) fn covered_now(&self) -> u64 {
        self.answered
    }

    /// A flush of this session was answered well that was sent when so many were covered.
    pub(super) fn flushed(&mut self, covered: u64) {
        self.durable = self.durable.max(covered);
        assert!(self.durable <= self.answered, "a flush covers what was answered before it was sent");
    }

    /// The session is lost, and with it what was not durable.
    pub(super) fn lose(&mut self) {
        if self.answered > self.durable {
            self.durable = self.answered;
            // A failure that is on its way speaks of an earlier session.
            (self.lost, self.telling) = (true, false);
        }
    }

    /// Whether flushes fail.
    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    /// A flush has failed because of that.
    pub(super) fn tell(&mut self) {
        self.telling = self.lost;
    }

    /// The owner has heard of all that has ended.
    pub(super) fn heard(&mut self) {
        if std::mem::take(&mut self.telling) {
            self.lost = false;
        }
    }
}
