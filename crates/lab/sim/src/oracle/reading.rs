//! What a read may return, and what it then tells of the versions.

use super::{Kept, NEVER, Oracle, Sector, Ticket, Version, Wrong};
use crate::stamp::{self, Content, SECTOR};

impl Oracle {
    /// A read is handed to the volume.
    pub fn issue_read(&mut self) -> Ticket {
        let now = self.tick();
        self.open_reads.push(now);
        Ticket(now)
    }

    /// A read that returns its answer in parts goes on.
    pub fn reopen_read(&mut self, ticket: Ticket) {
        self.open_reads.push(ticket.0);
    }

    /// A read ended without data.
    pub fn fail_read(&mut self, ticket: Ticket) {
        if let Some(i) = self.open_reads.iter().position(|r| *r == ticket.0) {
            self.open_reads.swap_remove(i);
        }
    }

    /// A read returned `data`, from sector `first` on.
    ///
    /// # Errors
    /// The first sector with a value that no promise allows.
    pub fn finish_read(&mut self, ticket: Ticket, first: u64, data: &[u8]) -> Result<(), Wrong> {
        let now = self.tick();
        self.fail_read(ticket);
        for (i, bytes) in data.chunks_exact(SECTOR).enumerate() {
            let sector = first + i as u64;
            self.check_sector(ticket.0, now, sector, stamp::read(bytes))?;
        }
        Ok(())
    }

    fn holds(&self, version: &Version, content: Content) -> bool {
        let zero = self.writes[version.write as usize].zero;
        match content {
            Content::Zero => zero,
            Content::Stamp { write, .. } => !zero && write.0 == version.write,
            Content::Foreign => false,
        }
    }

    fn check_sector(&mut self, start: u64, now: u64, sector: u64, content: Content) -> Result<(), Wrong> {
        self.check_place(sector, content)?;
        let state = &self.sectors[sector as usize];
        if let [only] = &state.versions[..]
            && self.holds(only, content)
        {
            return Ok(());
        }
        let matching: Vec<u32> = state
            .versions
            .iter()
            .filter(|v| self.holds(v, content) && v.hidden >= start && v.dead >= start)
            .filter(|v| !self.is_overwritten(state, v, start))
            .map(|v| v.write)
            .collect();
        if matching.is_empty() {
            let history =
                !matches!(content, Content::Stamp { write, .. } if write.0 >= self.writes.len() as u32);
            if (state.excuse.stale > 0 || state.excuse.stale_until > start) && history {
                return Ok(());
            }
            return Err(self.stale(sector, content));
        }
        // What a read found before the backing was reset tells nothing of what is there now.
        if start > self.reset_at {
            self.resolve(start, now, sector, &matching);
        }
        Ok(())
    }

    /// Whether the content can belong to the sector at all.
    pub(super) fn check_place(&self, sector: u64, content: Content) -> Result<(), Wrong> {
        let message = match content {
            Content::Foreign => "data that nobody wrote, or half a sector".to_owned(),
            Content::Stamp { sector: from, write } if from != sector => {
                format!("data of sector {from} (write {}) in the place of sector {sector}", write.0)
            }
            _ => return Ok(()),
        };
        Err(Wrong { promise: "P5", sector, message })
    }

    fn is_overwritten(&self, state: &Sector, version: &Version, before: u64) -> bool {
        let end = self.writes[version.write as usize].end.min(version.seen);
        state.versions.iter().any(|u| {
            let w = &self.writes[u.write as usize];
            u.write != version.write && end < w.issue && w.certain.min(u.seen) < before
        })
    }

    pub(super) fn stale(&self, sector: u64, content: Content) -> Wrong {
        let state = &self.sectors[sector as usize];
        let expected: Vec<String> = state
            .versions
            .iter()
            .filter(|v| v.dead == NEVER && v.hidden == NEVER && !self.is_overwritten(state, v, self.clock))
            .map(|v| self.describe(v.write))
            .collect();
        let (got, run) = match content {
            Content::Stamp { write, .. } => {
                let run = self.writes.get(write.0 as usize).map_or(self.run, |w| w.run);
                (self.describe(write.0), run)
            }
            _ => ("zeroes".to_owned(), 0),
        };
        // A version that was overwritten before a crash and is back is a resurrection; else the read was stale.
        let promise = if run < self.run { "P3" } else { "P2" };
        Wrong { promise, sector, message: format!("got {got}, allowed: {}", expected.join(", ")) }
    }

    /// A write, for a person.
    pub fn describe(&self, no: u32) -> String {
        let Some(w) = self.writes.get(no as usize) else {
            return format!("write {no}, not yet issued");
        };
        let kind = if w.zero { "zero" } else { "write" };
        let fate = match (w.kept, w.end) {
            (_, NEVER) => "in flight",
            (Kept::No, _) => "not acknowledged",
            (Kept::Kill, _) => "acknowledged, not flushed",
            (Kept::Cut, _) => "acknowledged, durable",
        };
        format!("{kind} {no} of run {} ({fate})", w.run)
    }

    /// A read that started at `start` and ended `now` returned one of `matching`.
    fn resolve(&mut self, start: u64, now: u64, sector: u64, matching: &[u32]) {
        let horizon = self.open_reads.iter().copied().min().unwrap_or(NEVER);
        let state = &mut self.sectors[sector as usize];
        let mut kept = Kept::Cut;
        let mut ended = 0;
        for v in state.versions.iter_mut().filter(|v| matching.contains(&v.write)) {
            let w = &self.writes[v.write as usize];
            ended = ended.max(w.end.min(v.seen));
            if let [only] = matching {
                v.seen = v.seen.min(now);
                if w.run < self.run && w.kept.max(v.kept) < Kept::Cut {
                    v.kept = if self.settled_since_crash { Kept::Cut } else { Kept::Kill };
                    // What a failed flush should have covered is made durable by no later one.
                    if !self.doubtful.contains(only) {
                        self.recovered.push((sector, *only, now));
                    }
                }
            }
            kept = kept.min(w.kept.max(v.kept));
        }
        for v in state.versions.iter_mut().filter(|v| !matching.contains(&v.write)) {
            let w = &self.writes[v.write as usize];
            let returns = w.returns && w.run == self.run;
            if w.end.min(v.seen) < start && !returns {
                let may_return = w.failed && w.run == self.run;
                if !may_return && (kept == Kept::Cut || w.issue > ended) {
                    v.dead = v.dead.min(now);
                } else {
                    v.hidden = v.hidden.min(now);
                }
            }
        }
        state.versions.retain(|v| v.dead >= horizon);
    }
}
