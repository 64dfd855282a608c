//! What is counted.

use crate::device::EffectCounts;

/// Totals of a world, or of many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events handed to the engine and effects carried out.
    pub events: u64,
    /// Requests of clients.
    pub requests: u64,
    /// Hints that somebody waits for writes.
    pub promotions: u64,
    /// Bytes that clients wrote.
    pub bytes_written: u64,
    /// Starts of the engine, each with a recovery.
    pub starts: u64,
    /// Recoveries that were cut short by a crash.
    pub crashes_in_recovery: u64,
    /// Deaths of the process.
    pub kills: u64,
    /// Power cuts of the cache device.
    pub cuts_cache: u64,
    /// Power cuts of the backing.
    pub cuts_backing: u64,
    /// Clean stops.
    pub stops: u64,
    /// Faults of operations, by effect in the order of [`crate::fault::Effect::ALL`].
    pub faults: EffectCounts,
    /// Sectors damaged at rest.
    pub damages: u64,
    /// Refusals to start, all excused by damage.
    pub refusals: u64,
    /// Crashes while the host writes who belongs to whom at a start.
    pub crashes_in_start: u64,
    /// Older, foreign and used devices that were refused.
    pub pairs_refused: u64,
    /// Caches that were lost for good.
    pub caches_lost: u64,
    /// Stores that another host took over while their owner lived.
    pub taken_over: u64,
    /// Journals whose groups were applied before a start.
    pub replays: u64,
    /// Caches that were removed for good.
    pub caches_released: u64,
    /// Logs that were retired after the cache failed.
    pub retired: u64,
    /// Requests answered with an error, all excused by faults.
    pub errors: u64,
    /// Sectors whose value was checked.
    pub sectors_checked: u64,
    /// Images of the backing alone whose order was judged (P4).
    pub orders_judged: u64,
    /// Consistency points that were answered.
    pub points: u64,
    /// Common points of a consistency group that were prepared.
    pub common_prepared: u64,
    /// Those that were decided or forgotten.
    pub common_settled: u64,
    /// Images of the backing alone that were said to be at a point.
    pub points_judged: u64,
}

impl Stats {
    /// Adds another world's totals.
    pub fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.requests += other.requests;
        self.promotions += other.promotions;
        self.bytes_written += other.bytes_written;
        self.starts += other.starts;
        self.crashes_in_recovery += other.crashes_in_recovery;
        self.kills += other.kills;
        self.cuts_cache += other.cuts_cache;
        self.cuts_backing += other.cuts_backing;
        self.stops += other.stops;
        for (mine, theirs) in self.faults.iter_mut().zip(other.faults) {
            *mine += theirs;
        }
        self.damages += other.damages;
        self.refusals += other.refusals;
        self.crashes_in_start += other.crashes_in_start;
        self.pairs_refused += other.pairs_refused;
        self.caches_lost += other.caches_lost;
        self.taken_over += other.taken_over;
        self.replays += other.replays;
        self.caches_released += other.caches_released;
        self.retired += other.retired;
        self.errors += other.errors;
        self.sectors_checked += other.sectors_checked;
        self.orders_judged += other.orders_judged;
        self.points += other.points;
        self.common_prepared += other.common_prepared;
        self.common_settled += other.common_settled;
        self.points_judged += other.points_judged;
    }

    /// Crashes of every kind.
    pub fn crashes(&self) -> u64 {
        self.kills + self.cuts_cache.max(self.cuts_backing)
    }
}
