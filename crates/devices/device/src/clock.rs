//! The monotonic clock of a volume.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use forebay_block::Nanos;

/// Monotonic time since the clock was made.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    wall_offset_ns: u64,
}

impl Clock {
    /// A clock that reads 0 now.
    pub fn start() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall_offset_ns = u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX);
        Self { origin: Instant::now(), wall_offset_ns }
    }

    /// Nanoseconds since the clock was made.
    pub fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Wall-clock time in nanoseconds since 1970 at which this clock read 0.
    pub fn wall_offset_ns(&self) -> u64 {
        self.wall_offset_ns
    }
}
