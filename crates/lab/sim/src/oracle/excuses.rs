//! Departures from the promises that faults excuse.

use forebay_block::BLOCK_BYTES;

use super::Oracle;
use crate::stamp::SECTOR;

/// Sectors of a block.
pub(crate) const BLOCK_SECTORS: u64 = BLOCK_BYTES / SECTOR as u64;

impl Oracle {
    /// A block that was written anew as a whole, durably, no longer suffers from what happened to its old copy.
    pub(super) fn forgive(&mut self, no: u32, now: u64) {
        let w = &self.writes[no as usize];
        let block = BLOCK_SECTORS;
        let whole = w.first.next_multiple_of(block)..((w.first + w.count) / block * block);
        for s in whole {
            let excuse = &mut self.sectors[s as usize].excuse;
            // What came to harm since then may be the new copy.
            if (1..w.issue).contains(&excuse.harmed) {
                (excuse.harmed, excuse.harmed_until) = (0, now);
            }
            if (1..w.issue).contains(&excuse.stale) {
                (excuse.stale, excuse.stale_until) = (0, now);
            }
        }
    }

    /// A copy of the sector was harmed: reading it may fail from now on.
    pub fn excuse_error(&mut self, sector: u64) {
        let now = self.clock;
        if let Some(s) = self.sectors.get_mut(sector as usize) {
            s.excuse.harmed = now;
        }
    }

    /// Any sector may have been given up, because the cache could not be read for long: reading it may fail.
    pub fn excuse_all_errors(&mut self) {
        let now = self.clock;
        self.sectors.iter_mut().for_each(|s| s.excuse.harmed = now);
    }

    /// Whether reading any sector of the range may fail, or might have since the time `since`.
    pub fn may_fail(&self, first: u64, count: u64, since: u64) -> bool {
        let end = (first + count).min(self.sectors.len() as u64);
        self.sectors[(first.min(end)) as usize..end as usize]
            .iter()
            .any(|s| s.excuse.harmed > 0 || s.excuse.harmed_until > since)
    }

    /// Whether an older version of the sector may be read.
    pub fn may_be_stale(&self, sector: u64) -> bool {
        self.sectors[sector as usize].excuse.stale > 0
    }

    /// Every sector may have gone back, to a copy that had come to harm, too: the newest writes were lost without a trace.
    /// With `errors`, reading any may fail.
    pub fn excuse_all_stale(&mut self, errors: bool) {
        let now = self.clock;
        self.writes.iter_mut().for_each(|w| w.through = false);
        for excuse in self.sectors.iter_mut().map(|s| &mut s.excuse) {
            excuse.stale = now;
            if errors || excuse.harmed_until > 0 {
                excuse.harmed = now;
            }
        }
    }
}
