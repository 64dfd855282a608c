//! What critical tasks wait for, and how long (ATC'15, table 2).

use std::collections::BTreeMap;
use std::time::Duration;

/// What a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wait {
    /// A kernel mutex.
    Mutex,
    /// A kernel rwsem, such as an inode's.
    Rwsem,
    /// A user-space lock.
    Futex,
    /// A commit of the file system's journal, or room in it.
    Journal,
    /// A page that is being written.
    Writeback,
    /// The lock of a page, of which is not known who holds it.
    Buffer,
    /// A slot of the disk's queue, or of the block layer's write-back throttle.
    Slot,
    /// A flush of the device's volatile cache.
    Flush,
    /// Its own read or write.
    Io,
    /// A lightweight lock of PostgreSQL.
    Lwlock,
    /// Something of user space that has no owner - a condition variable, a semaphore - in the midst of a request.
    Condition,
    /// Less dirty memory, before it may change more pages (`balance_dirty_pages`): the limit of the system, or of the device.
    Dirty,
}

impl Wait {
    /// Every kind.
    pub const ALL: [Self; 12] = [
        Self::Mutex,
        Self::Rwsem,
        Self::Futex,
        Self::Journal,
        Self::Writeback,
        Self::Buffer,
        Self::Slot,
        Self::Flush,
        Self::Io,
        Self::Lwlock,
        Self::Condition,
        Self::Dirty,
    ];

    /// The spelling in texts and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Rwsem => "rwsem",
            Self::Futex => "futex",
            Self::Journal => "journal",
            Self::Writeback => "writeback",
            Self::Buffer => "buffer",
            Self::Slot => "slot",
            Self::Flush => "flush",
            Self::Io => "io",
            Self::Lwlock => "lwlock",
            Self::Condition => "condition",
            Self::Dirty => "dirty",
        }
    }

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get((number as usize).checked_sub(1)?).copied()
    }
}

/// Waits of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitFigures {
    /// How many there were.
    pub count: u64,
    /// How long in all.
    pub total: Duration,
    /// The longest.
    pub longest: Duration,
}

/// Waits of critical tasks by kind.
#[derive(Clone, Debug, Default)]
pub struct Waits(BTreeMap<Wait, WaitFigures>);

impl Waits {
    pub(crate) fn add(&mut self, wait: Wait, time: Duration) {
        let figures = self.0.entry(wait).or_default();
        figures.count += 1;
        figures.total += time;
        figures.longest = figures.longest.max(time);
    }

    /// The kinds that there were, with their figures.
    pub fn iter(&self) -> impl Iterator<Item = (Wait, WaitFigures)> + '_ {
        self.0.iter().map(|(wait, figures)| (*wait, *figures))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_added_up_by_kind() {
        let mut waits = Waits::default();
        waits.add(Wait::Journal, Duration::from_millis(5));
        waits.add(Wait::Journal, Duration::from_millis(3));
        waits.add(Wait::Mutex, Duration::from_millis(1));
        let all: Vec<_> = waits.iter().collect();
        assert_eq!(all.len(), 2);
        let (wait, figures) = all[1];
        assert_eq!(
            (wait, figures.count, figures.total.as_millis(), figures.longest.as_millis()),
            (Wait::Journal, 2, 8, 5)
        );
    }
}
