//! How far the backing lags behind, and the bound that the user has set: near it destaging goes on whatever there would be to gain
//! from waiting, and at its edge writers are held back ([`crate::staleness`]).

use forebay_block::{BLOCK_BYTES, Nanos};
use forebay_policy::{EDGE_PERCENT, HARDER_PERCENT, MaxStaleness, Staleness};

use crate::engine::{Engine, Life};
use crate::mutation::Mutation;
use crate::staleness::Holding;

impl Engine {
    /// How far the backing lags behind at `now`.
    pub fn staleness(&self, now: Nanos) -> Staleness {
        let status = self.status(now);
        let wall_ns = self.wall_offset_ns.saturating_add(now.0);
        let age_ns = status.oldest_missing_ns.map_or(0, |oldest| wall_ns.saturating_sub(oldest));
        Staleness { bytes: status.missing_bytes, age_ms: age_ns / 1_000_000 }
    }

    /// As [`crate::map::Map::oldest_dirty_ns`] for the backing and the journal on its side, without what is lost.
    fn oldest_missing_ns(&self, young_ms: u64) -> Option<u64> {
        match self.journal_missing() {
            Some((_, oldest)) => oldest,
            None => self.oldest_dirty_or_young_ns(young_ms),
        }
    }

    /// See [`crate::map::Map::oldest_dirty_or_young_ns`].
    pub(super) fn oldest_dirty_or_young_ns(&self, young_ms: u64) -> Option<u64> {
        self.map.oldest_dirty_or_young_ns(self.wall_ns(), young_ms)
    }

    /// How much of the bound is used up, in percent. What is lost for good counts for nothing: neither destaging harder nor
    /// waiting brings it to the backing.
    pub(super) fn staleness_percent(&self) -> u64 {
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
                let lost = self.journal_missing().map_or(self.map.segments().lost() * BLOCK_BYTES, |_| 0);
                now.bytes = self.missing_bytes().saturating_sub(lost);
            }
        }
        bound.percent(now)
    }

    /// Bytes that the backing and the journal on its side lack.
    pub(super) fn missing_bytes(&self) -> u64 {
        self.journal_missing().map_or(self.map.segments().dirty(), |(blocks, _)| blocks) * BLOCK_BYTES
    }

    /// What becomes of writers now.
    pub(super) fn staleness_holds(&mut self) -> Holding {
        let waits = self.life == Life::Running && self.log.has_writers() && !self.failure.latched();
        let edge = waits && self.staleness_percent() >= EDGE_PERCENT;
        let holding = self.hold.step(edge, self.destage_progress(), self.now);
        self.figures.holds += u64::from(holding == Holding::Begins);
        holding
    }

    pub(super) fn staleness_next_wake(&self) -> Option<Nanos> {
        let hold = self.hold.until();
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
