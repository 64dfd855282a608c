//! How hard to destage: the answer to how full the log is and who waits.

use crate::priority::NONCRITICAL_BESIDE_CRITICAL;

use crate::{EDGE_PERCENT, HARDER_PERCENT};

/// What the chooser may look at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pressure {
    /// Segments of the cache that writes may fill.
    pub segments: u64,
    /// Those of them that are free.
    pub segments_free: u64,
    /// Segments from the oldest one on that the backing lacks something of: the log is freed in its order, so that whatever is clean
    /// among them makes no room.
    pub segments_held: u64,
    /// Blocks that one segment holds, about.
    pub blocks_per_segment: u64,
    /// Blocks that the backing lacks.
    pub blocks_dirty: u64,
    /// Age in seconds of the oldest write that the backing lacks.
    pub oldest_dirty_s: u64,
    /// The stock of free segments is low, and what would be freed next is dirty.
    pub tail_dirty: bool,
    /// How much of the bound of staleness is used up, in percent; 0 without one.
    pub staleness_percent: u64,
    /// A writer waits for room, the cache is failing, or the bound of staleness is near.
    pub urgent: bool,
    /// Somebody has asked for all to be destaged: that is begun at once, and stands behind what clients wait for.
    pub asked: bool,
    /// Nothing new enters the log as dirty (write-through), so that waiting for overwrites gains nothing; or the backing is to become consistent.
    pub draining: bool,
    /// Whatever enters the log has to reach the backing, one step after the other (ordered): waiting gains nothing, and makes what
    /// has to be caught up with longer.
    pub in_order: bool,
}

/// Dirty blocks looked at to plan what is destaged next, at most; sorting them is what merges neighbours. Where nothing goes in an order an eighth
/// of a small log, if that is more than [`PLAN_BLOCKS_LEAST`]: what is newer may yet be overwritten.
pub const PLAN_BLOCKS_MAX: usize = 8192;
/// A plan has so many of them at least, if there are; but one segment's alone, the tail's, while writers wait for room: of a larger plan, sorted by
/// address, it might come last.
pub const PLAN_BLOCKS_LEAST: usize = 512;
/// Most runs (of at most 1 MiB) on their way to the backing at once.
pub const DESTAGE_RUNS_MAX: usize = 32;
/// Runs on their way at once where destaging begins.
const DESTAGE_RUNS_LEAST: usize = 4;
/// Part of the log in percent that may be dirty before destaging begins: the lower half coalesces overwrites, the upper half takes bursts.
const DIRTY_PERCENT: u64 = 50;
/// Part of the log in percent that may be held by its oldest dirty block before destaging begins. Where much is overwritten, few blocks
/// hold most of the log, and half of it dirty would be never. What lies behind is wanted for bursts as much as with the other half: from three
/// quarters on, what is reissued during a snapshot of Redis would use up the last one.
const HELD_PERCENT: u64 = 50;
/// Part of the log in percent that may be dirty before nothing enters it but what has to. Where destaging begins is about where a log stands
/// that is written to all the time, so that it is not that.
const SPARE_DIRTY_PERCENT: u64 = 75;
/// Part of it that is left for what has to enter beyond what its oldest dirty block holds: as much as that took lately, within these, and one
/// segment if the most allows. Where much is overwritten the block holds nine tenths of a log as long as the load lasts, and who waits for what was
/// refused waits for a disk.
const HELD_LEAVES_PERCENT: (u64, u64) = (3, 13);
/// Of the runs that may be on their way, one in so many may be at the backing beside what clients wait for there.
const RUNS_FOR_EACH_BESIDE_CRITICAL: usize = 4;
/// After destaging had to begin because of what is in the log it is not roomy for so many nanoseconds.
const ROOMY_AGAIN_NS: u64 = 10_000_000_000;
/// Fill of the log in percent up to which any number of steps may enter it.
const STEPS_FREE_PERCENT: u64 = 25;
/// Steps of an order that a bypass may find before it.
const STEPS_BEFORE_BYPASS: usize = 64;
/// Runs on their way at once that nothing presses for.
const DESTAGE_RUNS_EAGER: usize = 8;
/// Writes stay in the log at most about this long before they are destaged even if there is room.
pub const DIRTY_AGE_S_MAX: u64 = 30;

/// What may enter a log that is emptied in an order, against what leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Steps of the order that may enter before something has to leave.
    pub steps: u64,
    /// Steps that then have to leave; 0 if any part of one will do.
    pub leaving: u64,
}

impl Exchange {
    /// What it is at a log of `blocks`, of which the backing lacks `dirty`, in so many steps that are `under_way`.
    ///
    /// Any number may enter while most of the log is empty, for a burst, and so that a backing that pauses is hidden (P9); then four
    /// steps, and one from half full on, so that what lasts is not a cliff (P7). While a bypass waits for what was acknowledged
    /// before it, it is one, however empty the log is, and one for two as long as they are more than a bypass should find there.
    pub fn of(dirty: u64, blocks: u64, under_way: usize, bypass_waits: bool) -> Self {
        let steps = match dirty * 100 / blocks.max(1) {
            _ if bypass_waits => 1,
            0..STEPS_FREE_PERCENT => u64::MAX,
            fill => (100 / fill).max(1),
        };
        let leaving = if bypass_waits && under_way > STEPS_BEFORE_BYPASS { 2 } else { 0 };
        Self { steps, leaving }
    }
}

/// Whether the log is roomy: may take what nobody waits for, under [`crate::Admission::Adaptive`].
///
/// It is until destaging has to begin because of what is in it, and again when that has not been so for 10 s. Without the pause a load that lasts would keep
/// it at just that fill, half of it with what nobody waits for, and all of that would have to be destaged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Roominess {
    /// In nanoseconds.
    from: u64,
}

impl Roominess {
    /// Whether it is, under this pressure, by any clock in nanoseconds that does not go back.
    pub fn look(&mut self, pressure: &Pressure, now_ns: u64) -> bool {
        if pressure.fills() {
            self.from = now_ns.saturating_add(ROOMY_AGAIN_NS);
        }
        now_ns >= self.from
    }
}

impl Pressure {
    /// How many runs may be at the backing beside operations that clients wait for: one, and more as the log fills, so that
    /// reads do not keep it from being emptied until it is full.
    pub fn runs_beside_critical(&self) -> usize {
        let by_itself = Self { asked: false, ..*self };
        (by_itself.runs_wanted() / RUNS_FOR_EACH_BESIDE_CRITICAL).max(NONCRITICAL_BESIDE_CRITICAL)
    }

    /// Whether all is to be destaged as soon as can be.
    pub fn hurries(&self) -> bool {
        self.urgent || self.asked
    }

    /// Whether there is a reason to destage beyond that it could be done now: one that is worth a record of its own.
    pub fn presses(&self) -> bool {
        self.hurries() || self.runs_wanted() > 0
    }

    /// Whether the log is so full that destaging begins because of that.
    pub fn fills(&self) -> bool {
        self.runs_beyond_fill() > 0
    }

    /// Blocks that may enter the log beyond what has to, whoever waits: until so much of it is dirty, or held by its oldest dirty block,
    /// that the rest should be left for what has to, which took so many blocks lately ([`crate::Demand::lately`]).
    pub fn blocks_to_spare(&self, lately: u64) -> u64 {
        let blocks = self.segments * self.blocks_per_segment;
        let dirty = SPARE_DIRTY_PERCENT.saturating_sub(self.dirty_percent());
        let (least, most) = HELD_LEAVES_PERCENT;
        let left = lately.max(blocks * least / 100).max(self.blocks_per_segment).min(blocks * most / 100);
        let behind = self.segments.saturating_sub(self.segments_held) * self.blocks_per_segment;
        (blocks * dirty / 100).min(behind.saturating_sub(left))
    }

    /// How many writes that nobody waits for may be at the backing beside so many runs; `None`: any number, the log does not fill. A smaller share
    /// as it fills, down to one: what is at a device at a time is served about alike, and who waits for room waits for the runs. It begins about where
    /// destaging does: where more enters the log than leaves it, the bypasses' half of the backing is what it fills up by.
    pub fn bypasses_beside(&self, runs: usize) -> Option<usize> {
        let wanted = self.runs_by_fill();
        (wanted > DESTAGE_RUNS_LEAST).then(|| (runs * (DESTAGE_RUNS_MAX - wanted) / DESTAGE_RUNS_MAX).max(1))
    }

    /// How many runs may be on their way to the backing at once; 0 for none.
    ///
    /// From where destaging begins to a full log the number grows, so that this is reached gently and not as a cliff (P7). Below,
    /// only what stands where the log goes on next is destaged.
    pub fn runs(&self) -> usize {
        match self.runs_wanted() {
            0 if self.in_order && self.blocks_dirty > 0 => DESTAGE_RUNS_EAGER,
            wanted => wanted,
        }
    }

    fn runs_wanted(&self) -> usize {
        if self.blocks_dirty == 0 {
            return 0;
        }
        if self.hurries() {
            return DESTAGE_RUNS_MAX;
        }
        // Up to the bound's edge, harder the nearer it is.
        let near = match self.staleness_percent {
            0..HARDER_PERCENT => 0,
            percent @ HARDER_PERCENT..EDGE_PERCENT => {
                let (range, most) =
                    (EDGE_PERCENT - HARDER_PERCENT, (DESTAGE_RUNS_MAX - DESTAGE_RUNS_LEAST) as u64);
                DESTAGE_RUNS_LEAST + ((percent - HARDER_PERCENT) * most / range) as usize
            }
            _ => DESTAGE_RUNS_MAX,
        };
        near.max(self.runs_by_fill())
    }

    /// How much of the log is dirty, with what cleaning may keep of the rest, 0 to 100.
    fn dirty_percent(&self) -> u64 {
        let used = self.segments - self.segments_free.min(self.segments);
        let dirty_segments = self.blocks_dirty / self.blocks_per_segment.max(1);
        let clean_segments = used.saturating_sub(dirty_segments);
        let room = self.segments_free + clean_segments - clean_segments.div_ceil(4);
        100 - (room.min(self.segments) * 100 / self.segments.max(1))
    }

    fn held_percent(&self) -> u64 {
        self.segments_held * 100 / self.segments.max(1)
    }

    /// Begins where so much of the log is held by its oldest dirty block, or half of it dirty.
    fn runs_beyond_fill(&self) -> usize {
        runs_beyond(self.dirty_percent(), DIRTY_PERCENT).max(runs_beyond(self.held_percent(), HELD_PERCENT))
    }

    fn runs_by_fill(&self) -> usize {
        match self.runs_beyond_fill() {
            0 if self.tail_dirty => DESTAGE_RUNS_LEAST,
            0 if self.draining || self.oldest_dirty_s >= DIRTY_AGE_S_MAX => 2,
            runs => runs,
        }
    }
}

/// 0 below `from`, and from there to 100 percent from the least number of runs to the most.
fn runs_beyond(percent: u64, from: u64) -> usize {
    match percent.min(100).checked_sub(from) {
        None => 0,
        Some(beyond) => {
            DESTAGE_RUNS_LEAST
                + beyond as usize * (DESTAGE_RUNS_MAX - DESTAGE_RUNS_LEAST) / (100 - from) as usize
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_had_to_be_destaged_is_roomy_again_after_a_pause() {
        let at = |dirty: u64| Pressure {
            segments: 100,
            segments_free: 100 - dirty,
            segments_held: dirty,
            blocks_per_segment: 10,
            blocks_dirty: dirty * 10,
            ..Pressure::default()
        };
        let mut roominess = Roominess::default();
        let mut look = |second: u64, dirty| roominess.look(&at(dirty), second * 1_000_000_000);
        assert!(look(0, 0) && look(1, 49) && !look(2, 50), "until half of it is dirty");
        assert!(
            !look(3, 0) && !look(9, 60) && !look(18, 49) && look(19, 49),
            "ten seconds after the last time"
        );
        // Clean blocks are in nobody's way.
        let clean = Pressure { segments_free: 0, segments_held: 0, blocks_dirty: 0, ..at(0) };
        assert!(roominess.look(&clean, u64::MAX));
    }

    #[test]
    fn pressure_grows_with_the_fill() {
        let at = |free| Pressure {
            segments: 100,
            segments_free: free,
            blocks_per_segment: 100,
            blocks_dirty: (100 - free) * 100,
            ..Pressure::default()
        };
        assert_eq!(at(90).runs(), 0);
        let urgent = Pressure { urgent: true, ..at(90) };
        assert!(urgent.blocks_to_spare(0) == 6500 && at(25).blocks_to_spare(0) == 0);
        let clean_but_for = |blocks_dirty| Pressure { blocks_dirty, ..at(0) };
        assert_eq!(
            clean_but_for(2000).runs(),
            0,
            "a log that is full of clean copies has room for dirty blocks"
        );
        assert!(clean_but_for(5000).runs() > 0);
        assert!(
            Pressure { tail_dirty: true, ..clean_but_for(10) }.runs() > 0,
            "but not where it is needed next"
        );
        let in_order = |free| Pressure { in_order: true, ..at(free) };
        let held = |segments_held| Pressure { segments_held, ..clean_but_for(1000) };
        assert_eq!([0, 49, 50, 100].map(|n| held(n).runs()), [0, 0, DESTAGE_RUNS_LEAST, DESTAGE_RUNS_MAX]);
        let spare = |percent| [0, 500, 9000].map(|lately| held(percent).blocks_to_spare(lately));
        assert_eq!(
            (spare(85), spare(90)),
            ([1200, 1000, 200], [700, 500, 0]),
            "what was taken lately is left"
        );
        assert_eq!(spare(97), [0; 3]);
        let small = |segments_held| Pressure { segments: 10, segments_held, blocks_dirty: 100, ..held(0) };
        assert_eq!([8, 9].map(|n| small(n).blocks_to_spare(0)), [100, 0], "one segment at least");
        let smallest = Pressure { segments: 4, segments_held: 3, blocks_dirty: 100, ..held(0) };
        assert_eq!(smallest.blocks_to_spare(9000), 48, "but not more than the most");
        let beside = |runs| [50, 60, 75, 90, 100].map(|n| held(n).bypasses_beside(runs));
        assert_eq!(beside(8), [None, Some(5), Some(3), Some(1), Some(1)], "a smaller share as the log fills");
        assert_eq!(beside(32), [None, Some(23), Some(14), Some(6), Some(1)]);
        assert_eq!((urgent.bypasses_beside(8), in_order(90).bypasses_beside(8)), (None, None), "only then");
        assert_eq!(Pressure { oldest_dirty_s: 31, ..at(90) }.runs(), 2);
        let in_order = in_order(90);
        assert!(in_order.runs() == DESTAGE_RUNS_EAGER && !in_order.presses());
        assert_eq!(Pressure { blocks_dirty: 0, ..in_order }.runs(), 0);
        assert_eq!(in_order.runs_beside_critical(), 1, "as long as there is room it stands behind reads");
        assert_eq!(Pressure { urgent: true, ..at(90) }.runs(), DESTAGE_RUNS_MAX);
        let asked = Pressure { asked: true, ..at(90) };
        assert_eq!(
            (asked.runs(), asked.runs_beside_critical(), asked.presses()),
            (DESTAGE_RUNS_MAX, 1, true)
        );
        assert_eq!(Pressure { asked: true, ..at(0) }.runs_beside_critical(), 8, "the log fills");
        let stale = |staleness_percent| Pressure { staleness_percent, ..at(90) }.runs();
        let near: Vec<usize> = (0..200).map(stale).collect();
        assert!(
            near.is_sorted() && [49, 50, 70, 89, 90].map(|at| near[at]) == [0, 4, 18, 31, DESTAGE_RUNS_MAX],
            "{near:?}"
        );
        let runs: Vec<usize> = (0..=50).rev().map(|free| at(free).runs()).collect();
        assert!(runs.is_sorted() && runs[0] >= 4, "{runs:?}");
        assert_eq!(at(0).runs(), DESTAGE_RUNS_MAX);
        assert_eq!([90, 50, 0].map(|free| at(free).runs_beside_critical()), [1, 1, 8]);
        assert_eq!(Pressure { blocks_dirty: 0, urgent: true, ..at(0) }.runs(), 0);
    }

    #[test]
    fn each_reason_to_destage_presses_by_itself() {
        let calm = Pressure {
            segments: 100,
            segments_free: 90,
            blocks_per_segment: 100,
            blocks_dirty: 1000,
            oldest_dirty_s: 29,
            staleness_percent: 49,
            ..Pressure::default()
        };
        assert_eq!((calm.presses(), calm.runs()), (false, 0));
        for (reason, runs) in [
            (Pressure { urgent: true, ..calm }, DESTAGE_RUNS_MAX),
            (Pressure { tail_dirty: true, ..calm }, DESTAGE_RUNS_LEAST),
            (Pressure { draining: true, ..calm }, 2),
            (Pressure { oldest_dirty_s: 30, ..calm }, 2),
            (Pressure { staleness_percent: 50, ..calm }, DESTAGE_RUNS_LEAST),
            (Pressure { segments_held: 50, ..calm }, DESTAGE_RUNS_LEAST),
            (Pressure { segments_free: 50, blocks_dirty: 5000, ..calm }, DESTAGE_RUNS_LEAST),
            // Who waits for everything to be destaged is told at once that nothing is left.
            (Pressure { urgent: true, blocks_dirty: 0, ..calm }, 0),
        ] {
            assert_eq!((reason.presses(), reason.runs()), (true, runs), "{reason:?}");
        }
    }

    #[test]
    fn less_enters_the_fuller_the_log_is_and_while_a_bypass_waits() {
        let at = |dirty, bypass_waits| Exchange::of(dirty, 100, dirty as usize, bypass_waits);
        let steps = [0, 24, 25, 50, 51, 100, 120].map(|dirty| at(dirty, false).steps);
        assert_eq!(steps, [u64::MAX, u64::MAX, 4, 2, 1, 1, 1]);
        assert_eq!([0, 64, 65, 120].map(|dirty| at(dirty, true).leaving), [0, 0, 2, 2]);
        assert_eq!((at(0, true).steps, at(120, false).leaving), (1, 0));
    }
}
