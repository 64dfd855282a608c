//! The oracle: for each 512-byte sector the set of values that the promises allow, refined by what reads returned.
//!
//! Every event has a time on one counter. A write may take effect at any moment between its issue and its end (its
//! acknowledgement, its failure, or the crash that cut it short). A version is gone for reads that start later once
//! another, issued after its end, is certain to have taken effect (P2). What a crash may take back depends on how well
//! a version is [`Kept`]: by the death of the process none that was acknowledged (P1), by a power cut none that was
//! acknowledged as durable. What a read has returned after a crash stays (P3).

use std::collections::BTreeSet;

use crate::stamp::WriteNo;
pub(crate) use excuses::BLOCK_SECTORS;

mod crashes;
mod excuses;
mod reading;

const NEVER: u64 = u64::MAX;

/// What a version survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kept {
    /// Nothing is promised.
    #[default]
    No,
    /// The death of the process.
    Kill,
    /// A power cut.
    Cut,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// What survives for sure: [`Kept::Kill`] if only the process died, [`Kept::Cut`] if a device lost power.
    pub survives: Kept,
    /// Nothing volatile is left anywhere: both devices lost power.
    pub all_settled: bool,
}

/// A write (or zero) in the history of the world.
#[derive(Clone, Debug)]
pub struct Write {
    /// First sector.
    pub first: u64,
    /// Number of sectors.
    pub count: u64,
    /// It wrote zeroes.
    pub zero: bool,
    /// Durable against power cuts as soon as it is acknowledged.
    pub durable: bool,
    issue: u64,
    /// Latest moment at which it may have taken effect.
    end: u64,
    /// From here on it has surely taken effect.
    certain: u64,
    kept: Kept,
    run: u32,
    failed: bool,
    /// The backing was reset and has lost it, but a write of a part of the same block was under way that may put it back with
    /// the rest of the block.
    returns: bool,
    /// The backing has it as soon as it is acknowledged.
    through: bool,
}

/// A version that a sector may have.
#[derive(Clone, Debug)]
struct Version {
    write: u32,
    /// When a read returned it.
    seen: u64,
    kept: Kept,
    /// Reads that start later cannot return it, though a crash may bring it back.
    hidden: u64,
    /// Nothing can bring it back.
    dead: u64,
}

/// Departures from the promises that faults excuse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Excuse {
    /// Reading the block may fail: a copy of it was harmed at this time; 0 if not.
    harmed: u64,
    /// An older version may be read: the newest was lost without a trace, which was known at this time; 0 if not.
    stale: u64,
    /// Until when the one or the other was so before the block was written anew.
    harmed_until: u64,
    stale_until: u64,
}

#[derive(Clone, Debug, Default)]
struct Sector {
    versions: Vec<Version>,
    /// Latest issue of an acknowledged write.
    floor: u64,
    excuse: Excuse,
}

/// What is wrong with a sector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The promise that is broken.
    pub promise: &'static str,
    /// The sector.
    pub sector: u64,
    /// In words.
    pub message: String,
}

/// See the module's documentation.
#[derive(Clone)]
pub struct Oracle {
    clock: u64,
    run: u32,
    settled_since_crash: bool,
    writes: Vec<Write>,
    sectors: Vec<Sector>,
    open: Vec<u32>,
    /// Writes of this run that failed.
    failed: Vec<u32>,
    unflushed: Vec<u32>,
    /// Acknowledged, not durable, and never going to be: the flush that should have covered them failed.
    doubtful: Vec<u32>,
    /// Acknowledged, and gone for good at the next crash unless a flush covers them first: the cache was reset.
    shaken: Vec<u32>,
    /// Versions of an earlier run that a read returned: sector, write, time.
    recovered: Vec<(u64, u32, u64)>,
    open_reads: Vec<u64>,
    /// When the backing last lost what was volatile in it, in the middle of a run.
    reset_at: u64,
}

/// A read or a flush under way; remembers when it was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

impl Ticket {
    /// When it was issued, on the oracle's clock.
    pub fn time(self) -> u64 {
        self.0
    }
}

impl Oracle {
    /// A volume of `sectors` sectors that holds zeroes, or the stamps of write 0 if `stamped`.
    pub fn new(sectors: u64, stamped: bool) -> Self {
        let mut oracle = Self {
            clock: 0,
            run: 0,
            settled_since_crash: true,
            writes: Vec::new(),
            sectors: Vec::new(),
            open: Vec::new(),
            failed: Vec::new(),
            unflushed: Vec::new(),
            doubtful: Vec::new(),
            shaken: Vec::new(),
            recovered: Vec::new(),
            open_reads: Vec::new(),
            reset_at: 0,
        };
        oracle.reset(sectors, stamped);
        oracle
    }

    /// Begins a new history, reusing memory.
    pub fn reset(&mut self, sectors: u64, stamped: bool) {
        self.clock = 1;
        self.run = 0;
        self.settled_since_crash = true;
        self.open.clear();
        self.failed.clear();
        self.unflushed.clear();
        self.doubtful.clear();
        self.shaken.clear();
        self.recovered.clear();
        self.open_reads.clear();
        self.reset_at = 0;
        self.writes.clear();
        self.writes.push(Write {
            first: 0,
            count: sectors,
            zero: !stamped,
            durable: true,
            issue: 0,
            end: 0,
            certain: 0,
            kept: Kept::Cut,
            run: 0,
            failed: false,
            returns: false,
            through: false,
        });
        self.sectors.resize_with(sectors as usize, Sector::default);
        for s in &mut self.sectors {
            s.versions.clear();
            s.versions.push(Version { write: 0, seen: NEVER, kept: Kept::Cut, hidden: NEVER, dead: NEVER });
            s.floor = 0;
            s.excuse = Excuse::default();
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The write numbered `no`.
    pub fn write(&self, no: WriteNo) -> Option<&Write> {
        self.writes.get(no.0 as usize)
    }

    /// Writes (and zeroes) issued so far.
    pub fn writes(&self) -> u64 {
        self.writes.len() as u64 - 1
    }

    /// How many blocks have been written, or may have been, by what had not ended at this time.
    pub fn blocks_written_after(&self, time: u64) -> usize {
        let later = self.writes.iter().skip(1).filter(|w| w.end > time);
        let blocks = later.flat_map(|w| w.first / BLOCK_SECTORS..(w.first + w.count).div_ceil(BLOCK_SECTORS));
        blocks.collect::<BTreeSet<u64>>().len()
    }

    /// A write (or zero) is handed to the volume.
    pub fn issue_write(&mut self, first: u64, count: u64, zero: bool, durable: bool) -> WriteNo {
        let issue = self.tick();
        let no = self.writes.len() as u32;
        let (end, certain, kept) = (NEVER, NEVER, Kept::No);
        self.writes.push(Write {
            first,
            count,
            zero,
            durable,
            issue,
            end,
            certain,
            kept,
            run: self.run,
            failed: false,
            returns: false,
            through: false,
        });
        for s in &mut self.sectors[first as usize..(first + count) as usize] {
            s.versions.push(Version { write: no, seen: NEVER, kept: Kept::No, hidden: NEVER, dead: NEVER });
        }
        self.open.push(no);
        WriteNo(no)
    }

    /// The volume acknowledges a write.
    pub fn acknowledge(&mut self, no: WriteNo) {
        let now = self.tick();
        self.open.retain(|o| *o != no.0);
        let w = &mut self.writes[no.0 as usize];
        (w.end, w.certain) = (now, now);
        w.kept = if w.durable { Kept::Cut } else { Kept::Kill };
        let (issue, range) = (w.issue, w.first..w.first + w.count);
        for s in &mut self.sectors[range.start as usize..range.end as usize] {
            s.floor = s.floor.max(issue);
        }
        if self.writes[no.0 as usize].durable {
            self.bury_older(no.0, now);
        } else {
            self.unflushed.push(no.0);
        }
        if self.writes[no.0 as usize].durable {
            self.forgive(no.0, now);
        }
    }

    /// An acknowledged write is on the backing, which keeps it as the volume would.
    pub fn is_through(&mut self, no: WriteNo) {
        self.writes[no.0 as usize].through = true;
    }

    /// The volume reports that a write failed: it may have taken effect until now, or not at all. As with any disk, a
    /// crash may reveal that it did after all, unless something was written over it.
    pub fn fail(&mut self, no: WriteNo) {
        let now = self.tick();
        self.open.retain(|o| *o != no.0);
        self.failed.push(no.0);
        let w = &mut self.writes[no.0 as usize];
        (w.end, w.failed) = (now, true);
    }

    /// A durable write puts an end to everything that ended before it was issued.
    fn bury_older(&mut self, no: u32, now: u64) {
        let w = &self.writes[no as usize];
        let horizon = self.open_reads.iter().copied().min().unwrap_or(NEVER);
        for s in &mut self.sectors[w.first as usize..(w.first + w.count) as usize] {
            for v in s.versions.iter_mut().filter(|v| v.write != no && v.dead == NEVER) {
                if self.writes[v.write as usize].end.min(v.seen) < w.issue {
                    v.dead = now;
                }
            }
            s.versions.retain(|v| v.dead >= horizon);
        }
    }

    /// A flush is handed to the volume.
    pub fn issue_flush(&mut self) -> Ticket {
        Ticket(self.tick())
    }

    /// The volume acknowledges a flush (or another command with its promise).
    pub fn acknowledge_flush(&mut self, ticket: Ticket) {
        let now = self.tick();
        let covered = |w: &Write| w.end < ticket.0;
        let unflushed = std::mem::take(&mut self.unflushed);
        for no in unflushed {
            if covered(&self.writes[no as usize]) {
                let w = &mut self.writes[no as usize];
                (w.kept, w.certain) = (Kept::Cut, w.certain.min(now));
                self.bury_older(no, now);
                self.forgive(no, now);
            } else {
                self.unflushed.push(no);
            }
        }
        for (sector, no, seen) in std::mem::take(&mut self.recovered) {
            if seen >= ticket.0 {
                self.recovered.push((sector, no, seen));
            } else if let Some(v) = self.sectors[sector as usize].versions.iter_mut().find(|v| v.write == no)
            {
                v.kept = Kept::Cut;
            }
        }
    }

    /// The volume reports that a flush failed: as with any disk, what it should have covered may be lost by a power
    /// cut, even if a later flush succeeds.
    pub fn fail_flush(&mut self, ticket: Ticket) {
        let (failed, unflushed): (Vec<u32>, Vec<u32>) = std::mem::take(&mut self.unflushed)
            .into_iter()
            .partition(|no| self.writes[*no as usize].end < ticket.0);
        self.unflushed = unflushed;
        self.doubtful.extend(&failed);
        for no in failed {
            let w = &self.writes[no as usize];
            for s in &mut self.sectors[w.first as usize..(w.first + w.count) as usize] {
                let sure = |v: &&Version| {
                    self.writes[v.write as usize].certain != NEVER && !self.doubtful.contains(&v.write)
                };
                let issue = |v: &Version| self.writes[v.write as usize].issue;
                s.floor = s.versions.iter().filter(sure).map(issue).max().unwrap_or(0);
            }
        }
        let (later, covered): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.recovered).into_iter().partition(|(_, _, seen)| *seen >= ticket.0);
        self.recovered = later;
        self.doubtful.extend(covered.iter().map(|(_, no, _)| *no));
    }

    /// A hash of what may be read from now on.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for (i, s) in self.sectors.iter().enumerate().filter(|(_, s)| s.versions.len() > 1 || s.floor > 0) {
            for v in s.versions.iter().filter(|v| v.dead == NEVER) {
                let w = &self.writes[v.write as usize];
                let certain = u64::from(w.certain != NEVER) << 1 | u64::from(v.seen != NEVER);
                let word =
                    (i as u64) << 40 | u64::from(v.write) << 8 | certain << 4 | w.kept.max(v.kept) as u64;
                hash = (hash ^ word).wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(29);
            }
        }
        hash
    }

    /// The time of the last event.
    pub fn now(&self) -> u64 {
        self.clock
    }
}

#[cfg(test)]
mod tests;
