//! How far the backing lags behind, and the bound that the user has set: near it destaging goes on whatever there would be to gain
//! from waiting, and at its edge writers are held back.
//!
//! When a record was made is remembered in steps, for a segment's own time may be far older than what is dirty in it.

use std::collections::VecDeque;

use forebay_block::{BLOCK_BYTES, Nanos, Seq};
use forebay_policy::{EDGE_PERCENT, HARDER_PERCENT, HOLD_MS_MAX, MaxStaleness, Staleness};

use crate::engine::{Engine, Life};
use crate::map::Map;
use crate::map::segments::{SlotKind, SlotRef};
use crate::mutation::Mutation;

/// Most records of which the time is remembered; beyond, every other one is forgotten.
const MOMENTS_MAX: usize = 4096;
/// Records that follow within this time share a moment, in nanoseconds.
const STEP_NS: u64 = 5_000_000;

/// When records were made.
#[derive(Default)]
pub(crate) struct Moments {
    /// Record, and wall-clock time in nanoseconds; ascending.
    known: VecDeque<(Seq, u64)>,
}

impl Moments {
    /// A record is made.
    pub(crate) fn note(&mut self, seq: Seq, time_ns: u64) {
        if self.known.back().is_some_and(|(_, last)| time_ns < last.saturating_add(STEP_NS)) {
            return;
        }
        if self.known.len() == MOMENTS_MAX {
            let mut even = false;
            self.known.retain(|_| {
                even = !even;
                even
            });
        }
        self.known.push_back((seq, time_ns));
    }

    /// A time at or before which no later one than this record was made; `None` if it is older than all that is known.
    fn of(&self, seq: Seq) -> Option<u64> {
        let after = self.known.partition_point(|(first, _)| *first <= seq);
        Some(self.known.get(after.checked_sub(1)?)?.1)
    }
}

/// Writers that are held back.
#[derive(Clone, Copy)]
struct Hold {
    /// Since when the backing has made no progress.
    since: Nanos,
    /// What it had done then.
    progress: u64,
}

/// State of the bound.
#[derive(Default)]
pub(crate) struct Lag {
    pub(crate) moments: Moments,
    hold: Option<Hold>,
}

impl Lag {
    /// When this record was made, or a little before; it lies in this segment.
    pub(crate) fn time_of_record(&self, map: &Map, seq: Seq, segment: u32) -> u64 {
        let opened = map.segments.get(segment).time_first_ns;
        self.moments.of(seq).unwrap_or(0).max(opened)
    }
}

impl Engine {
    /// How far the backing lags behind at `now`.
    pub fn staleness(&self, now: Nanos) -> Staleness {
        let status = self.status(now);
        let wall_ns = self.wall_offset_ns.saturating_add(now.0);
        let age_ns = status.oldest_missing_ns.map_or(0, |oldest| wall_ns.saturating_sub(oldest));
        Staleness { bytes: status.missing_bytes, age_ms: age_ns / 1_000_000 }
    }

    /// Wall-clock time of the oldest write that the backing lacks, or a little before.
    pub(crate) fn oldest_dirty_ns(&self) -> Option<u64> {
        let (seq, slot) = self.map.segments.dirty_after(Seq(0)).next()?;
        Some(self.time_of_record(seq, slot.segment()))
    }

    /// When this record was made, or a little before.
    pub(crate) fn time_of_record(&self, seq: Seq, segment: u32) -> u64 {
        self.lag.time_of_record(&self.map, seq, segment)
    }

    /// As [`Engine::oldest_dirty_ns`] for the backing and the journal on its side, without what is lost.
    fn oldest_missing_ns(&self, young_ms: u64) -> Option<u64> {
        match self.journal_missing() {
            Some((_, oldest)) => oldest,
            None => self.oldest_dirty_or_young_ns(young_ms),
        }
    }

    /// As [`Engine::oldest_dirty_ns`], but without what is lost, and what is surely younger than that is not looked for: it is told
    /// older than it is.
    pub(crate) fn oldest_dirty_or_young_ns(&self, young_ms: u64) -> Option<u64> {
        let segment = self.map.segments.get(self.map.segments.with_dirty().next()?);
        let age_ms = self.wall_ns().saturating_sub(segment.time_first_ns) / 1_000_000;
        if age_ms < young_ms {
            return Some(segment.time_first_ns);
        }
        let there = |(_, slot): &(Seq, SlotRef)| self.map.segments.slot(*slot).kind() != SlotKind::Poison;
        let (seq, slot) = self.map.segments.dirty_after(Seq(0)).find(there)?;
        Some(self.time_of_record(seq, slot.segment()))
    }

    /// How much of the bound is used up, in percent. What is lost for good counts for nothing: neither destaging harder nor
    /// waiting brings it to the backing.
    pub(crate) fn staleness_percent(&self) -> u64 {
        let bound = self.settings.max_staleness;
        if self.mutant(Mutation::StalenessIgnored) {
            return 0;
        }
        let mut now = Staleness::default();
        match bound {
            MaxStaleness::None => return 0,
            MaxStaleness::Age(ms) => {
                let oldest = self.oldest_missing_ns(MaxStaleness::part(ms, HARDER_PERCENT));
                now.age_ms = oldest.map_or(0, |at| self.wall_ns().saturating_sub(at) / 1_000_000);
            }
            MaxStaleness::Bytes(_) if self.mutant(Mutation::StalenessByAgeAlone) => return 0,
            MaxStaleness::Bytes(_) => {
                let lost = self.journal_missing().map_or(self.map.segments.lost() * BLOCK_BYTES, |_| 0);
                now.bytes = self.missing_bytes().saturating_sub(lost);
            }
        }
        bound.percent(now)
    }

    /// Bytes that the backing and the journal on its side lack.
    pub(crate) fn missing_bytes(&self) -> u64 {
        self.journal_missing().map_or(self.map.segments.dirty(), |(blocks, _)| blocks) * BLOCK_BYTES
    }

    /// Whether writers are held back now.
    pub(crate) fn staleness_holds(&mut self) -> bool {
        let waits = self.life == Life::Running && self.log.has_writers() && !self.failure.latched();
        let edge = waits && self.staleness_percent() >= EDGE_PERCENT;
        if !edge {
            self.lag.hold = None;
            return false;
        }
        let (now, progress) = (self.now, self.destage_progress());
        let hold = self.lag.hold.get_or_insert_with(|| {
            self.figures.holds += 1;
            Hold { since: now, progress }
        });
        if hold.progress != progress {
            *hold = Hold { since: now, progress };
        }
        // A backing that does nothing is no reason to wait for good.
        let over = now >= hold.since.plus_ms(HOLD_MS_MAX);
        if over {
            hold.since = now;
        }
        !over
    }

    pub(crate) fn staleness_next_wake(&self) -> Option<Nanos> {
        let hold = self.lag.hold.map(|hold| hold.since.plus_ms(HOLD_MS_MAX));
        let harder = match self.settings.max_staleness {
            MaxStaleness::Age(ms) if self.life == Life::Running => {
                let oldest = self.oldest_missing_ns(MaxStaleness::part(ms, HARDER_PERCENT));
                let at = oldest.map(|at| Nanos(at.saturating_sub(self.wall_offset_ns)));
                let due = [HARDER_PERCENT, EDGE_PERCENT].map(|percent| MaxStaleness::part(ms, percent) + 1);
                let due = due.map(|ms| at.map(|at| at.plus_ms(ms)));
                due.into_iter().flatten().find(|at| *at > self.now)
            }
            _ => None,
        };
        [hold, harder].into_iter().flatten().filter(|at| *at > self.now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_never_taken_for_younger_than_it_is() {
        let mut moments = Moments::default();
        let time = |n: u64| n * 1_700_000;
        for n in 1..=40_000u64 {
            moments.note(Seq(n), time(n));
        }
        assert!(moments.known.len() <= MOMENTS_MAX);
        assert_eq!(moments.of(Seq(0)), None);
        for n in [1, 2, 3, 77, 39_999, 40_000] {
            // What is old is known less exactly, by a small part of its age.
            let (known, age) = (moments.of(Seq(n)).unwrap(), time(40_000) - time(n));
            assert!(known <= time(n) && time(n) - known < 2 * STEP_NS + age / 100, "{n}: {known}");
        }
    }
}
