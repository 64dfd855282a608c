//! What a crash may take back, and what the backing alone must have.

use super::excuses::BLOCK_SECTORS;
use super::{Crash, Excuse, Kept, NEVER, Oracle, Sector, Version, Write, Wrong};
use crate::order::Held;
use crate::stamp::{self, Content, SECTOR, WriteNo};

impl Oracle {
    /// Nothing is promised of a write any more, unless a flush covers it later.
    fn lose(&mut self, no: u32) {
        let w = &mut self.writes[no as usize];
        if w.kept < Kept::Cut {
            (w.certain, w.kept) = (NEVER, Kept::No);
        }
    }

    /// The backing was reset: what no flush has covered may be gone, as with any disk, and an older version be back.
    /// A flush that is acknowledged later promises it all the same, unless the process dies before and with it the
    /// knowledge of the reset.
    pub fn lose_unflushed(&mut self) {
        self.reset_at = self.tick();
        self.shaken.extend(self.unflushed.iter().chain(&self.doubtful));
        for no in self.unflushed.clone().into_iter().chain(self.doubtful.clone()) {
            self.lose(no);
            let blocks = |w: &Write| w.first / BLOCK_SECTORS..(w.first + w.count).div_ceil(BLOCK_SECTORS);
            let lost = blocks(&self.writes[no as usize]);
            let shares = |other: &u32| {
                let other = blocks(&self.writes[*other as usize]);
                other.start < lost.end && lost.start < other.end
            };
            self.writes[no as usize].returns |= self.open.iter().any(shares);
            let w = &self.writes[no as usize];
            for sector in w.first..w.first + w.count {
                self.reopen(sector);
            }
        }
        // What reads have shown of writes that were never acknowledged may be gone, too.
        for no in self.open.clone().into_iter().chain(self.failed.clone()) {
            let w = &self.writes[no as usize];
            for sector in w.first..w.first + w.count {
                self.reopen(sector);
            }
        }
        for (sector, _, _) in std::mem::take(&mut self.recovered) {
            self.reopen(sector);
        }
    }

    /// What the sector holds has to be read anew.
    fn reopen(&mut self, sector: u64) {
        let state = &mut self.sectors[sector as usize];
        for v in &mut state.versions {
            v.hidden = NEVER;
            if v.kept < Kept::Cut {
                (v.seen, v.kept) = (NEVER, Kept::No);
            }
        }
        let issue = |v: &Version| {
            Some(&self.writes[v.write as usize]).filter(|w| w.certain != NEVER).map(|w| w.issue)
        };
        state.floor = state.versions.iter().filter_map(issue).max().unwrap_or(0);
    }

    /// The cache was reset: what no flush has covered is gone, but not forgotten before the next crash.
    pub fn lose_unflushed_at_next_crash(&mut self) {
        // What is under way may have lost what has been written of it so far, and be acknowledged all the same.
        let open = self.open.iter().filter(|no| !self.writes[**no as usize].durable);
        self.shaken.extend(self.unflushed.iter().chain(&self.doubtful).chain(open));
        for (sector, no, _) in std::mem::take(&mut self.recovered) {
            if let Some(v) = self.sectors[sector as usize].versions.iter_mut().find(|v| v.write == no) {
                v.kept = Kept::No;
            }
        }
    }

    /// The run ended.
    pub fn crash(&mut self, crash: Crash) {
        let now = self.tick();
        self.run += 1;
        self.open_reads.clear();
        let failed = std::mem::take(&mut self.failed);
        for no in std::mem::take(&mut self.open).into_iter().chain(failed) {
            self.writes[no as usize].end = now;
        }
        let shaken = std::mem::take(&mut self.shaken);
        for no in &shaken {
            self.lose(*no);
        }
        // The next run cannot know of what is gone: its flushes cover what it has shown.
        self.unflushed.retain(|no| !shaken.contains(no));
        self.doubtful.retain(|no| !shaken.contains(no));
        if crash.survives == Kept::Cut {
            let doubtful = std::mem::take(&mut self.doubtful);
            for no in std::mem::take(&mut self.unflushed).into_iter().chain(doubtful) {
                self.lose(no);
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

    /// What the backing alone must have after a power cut of it: what it was seen to have, and what went through to it.
    pub fn floors_of_backing(&self, seen: &[u64]) -> Vec<u64> {
        let mut floors = seen.to_vec();
        for w in self.writes.iter().filter(|w| w.through && w.certain != NEVER) {
            floors[w.first as usize..(w.first + w.count) as usize]
                .iter_mut()
                .for_each(|f| *f = (*f).max(w.issue));
        }
        let stale = floors.iter_mut().zip(&self.sectors).filter(|(_, s)| s.excuse.stale > 0);
        stale.for_each(|(floor, _)| *floor = 0);
        floors
    }

    /// The cache is lost for good: `data`, which the backing holds durably, is the volume from here on.
    pub fn rebase(&mut self, data: &[u8]) {
        let now = self.tick();
        for (sector, bytes) in (0..).zip(data.chunks_exact(SECTOR)) {
            let zeroed = |w: &Write| w.zero && (w.first..w.first + w.count).contains(&sector);
            let no = match stamp::read(bytes) {
                Content::Stamp { write, .. } => write.0,
                _ => self.writes.iter().rposition(zeroed).unwrap_or(0) as u32,
            };
            let (kept, issue) = (Kept::Cut, self.writes[no as usize].issue);
            let only = Version { write: no, seen: now, kept, hidden: NEVER, dead: NEVER };
            self.sectors[sector as usize] =
                Sector { versions: vec![only], floor: issue, excuse: Excuse::default() };
        }
    }

    /// The issue of a write, as a floor for the sectors that it wrote.
    pub fn floor_of(&self, no: WriteNo) -> u64 {
        self.writes[no.0 as usize].issue
    }

    /// Whether what the backing holds of a sector is older than its newest acknowledged write, and nothing excuses that.
    pub fn lacks(&self, sector: u64, held: Held) -> bool {
        let state = &self.sectors[sector as usize];
        let is_there = |v: &Version| {
            let w = &self.writes[v.write as usize];
            let holds = match held {
                Held::Write(no) => v.write as usize == no + 1 && !w.zero,
                Held::Zero => w.zero,
                Held::Nothing => v.write == 0,
            };
            holds && w.end >= state.floor
        };
        let excused = state.excuse.stale > 0 || state.excuse.harmed > 0;
        !excused && !state.versions.iter().any(is_there)
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
