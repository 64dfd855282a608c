//! What a crash may take back, and what the backing alone must have.

use super::{Crash, Kept, NEVER, Oracle, Sector, Wrong};
use crate::stamp::{self, Content, SECTOR, WriteNo};

impl Oracle {
    /// The run ended.
    pub fn crash(&mut self, crash: Crash) {
        let now = self.tick();
        self.run += 1;
        self.open_reads.clear();
        let failed = std::mem::take(&mut self.failed);
        for no in std::mem::take(&mut self.open).into_iter().chain(failed) {
            self.writes[no as usize].end = now;
        }
        if crash.survives == Kept::Cut {
            let doubtful = std::mem::take(&mut self.doubtful);
            for no in std::mem::take(&mut self.unflushed).into_iter().chain(doubtful) {
                let w = &mut self.writes[no as usize];
                (w.certain, w.kept) = (NEVER, Kept::No);
            }
            self.recovered.clear();
        }
        self.settled_since_crash = crash.all_settled;
        for s in &mut self.sectors {
            if s.versions.len() == 1 && s.versions[0].seen == NEVER {
                continue;
            }
            s.versions.retain(|v| v.dead == NEVER);
            s.floor = 0;
            for v in &mut s.versions {
                let w = &self.writes[v.write as usize];
                v.hidden = NEVER;
                if v.kept < crash.survives {
                    (v.seen, v.kept) = (NEVER, Kept::No);
                }
                if w.certain != NEVER {
                    s.floor = s.floor.max(w.issue);
                }
            }
        }
    }

    /// The acknowledged state now, for [`Oracle::check_alone`]; 0 where an older version is excused.
    pub fn floors(&self, first: u64, count: u64) -> Vec<u64> {
        let floor = |s: &Sector| if s.excuse.stale > 0 { 0 } else { s.floor };
        self.sectors[first as usize..(first + count) as usize].iter().map(floor).collect()
    }

    /// The issue of a write, as a floor for the sectors that it wrote.
    pub fn floor_of(&self, no: WriteNo) -> u64 {
        self.writes[no.0 as usize].issue
    }

    /// Checks that `data`, a copy of the volume's sectors from `first` on, has nothing older than the floors.
    ///
    /// # Errors
    /// The first sector that is.
    pub fn check_alone(
        &self,
        promise: &'static str,
        floors: &[u64],
        first: u64,
        data: &[u8],
    ) -> Result<(), Wrong> {
        for (i, (bytes, floor)) in data.chunks_exact(SECTOR).zip(floors).enumerate() {
            let sector = first + i as u64;
            let content = stamp::read(bytes);
            self.check_place(sector, content)?;
            let fresh = match content {
                Content::Stamp { write, .. } => self.write(write).is_some_and(|w| !w.zero && w.end >= *floor),
                Content::Zero => self
                    .writes
                    .iter()
                    .rev()
                    .any(|w| w.zero && w.end >= *floor && (w.first..w.first + w.count).contains(&sector)),
                Content::Foreign => false,
            };
            if !fresh && self.sectors[sector as usize].excuse.stale == 0 {
                let mut wrong = self.stale(sector, content);
                wrong.promise = promise;
                wrong.message = format!("the backing alone is too old: {}", wrong.message);
                return Err(wrong);
            }
        }
        Ok(())
    }
}
