//! The oracle: for each 512-byte sector the set of values that the promises allow, refined by what reads returned.
//!
//! Every event has a time on one counter. A write may take effect at any moment between its issue and its end (its
//! acknowledgement, its failure, or the crash that cut it short). A version is gone for reads that start later once
//! another, issued after its end, is certain to have taken effect (P2). What a crash may take back depends on how well
//! a version is [`Kept`]: by the death of the process none that was acknowledged (P1), by a power cut none that was
//! acknowledged as durable. What a read has returned after a crash stays (P3).

use crate::stamp::{self, Content, SECTOR, WriteNo};

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
    /// Versions of an earlier run that a read returned: sector, write, time.
    recovered: Vec<(u64, u32, u64)>,
    open_reads: Vec<u64>,
}

/// A read or a flush under way; remembers when it was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

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
            recovered: Vec::new(),
            open_reads: Vec::new(),
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
        self.recovered.clear();
        self.open_reads.clear();
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

    /// A block that was written anew as a whole, durably, no longer suffers from what happened to its old copy.
    fn forgive(&mut self, no: u32, now: u64) {
        let w = &self.writes[no as usize];
        let block = stamp_sectors_per_block();
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
                self.writes[no as usize].kept = Kept::Cut;
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
        self.resolve(start, now, sector, &matching);
        Ok(())
    }

    /// Whether the content can belong to the sector at all.
    fn check_place(&self, sector: u64, content: Content) -> Result<(), Wrong> {
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

    fn stale(&self, sector: u64, content: Content) -> Wrong {
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
            if w.end.min(v.seen) < start {
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

    /// A copy of the sector was harmed: reading it may fail from now on.
    pub fn excuse_error(&mut self, sector: u64) {
        let now = self.clock;
        if let Some(s) = self.sectors.get_mut(sector as usize) {
            s.excuse.harmed = now;
        }
    }

    /// Whether reading any sector of the range may fail, or might have since the time `since`.
    pub fn may_fail(&self, first: u64, count: u64, since: u64) -> bool {
        let end = (first + count).min(self.sectors.len() as u64);
        self.sectors[(first.min(end)) as usize..end as usize]
            .iter()
            .any(|s| s.excuse.harmed > 0 || s.excuse.harmed_until > since)
    }

    /// Every sector may have gone back, to a copy that had come to harm, too: the newest writes were lost without a trace.
    pub fn excuse_all_stale(&mut self) {
        let now = self.clock;
        for excuse in self.sectors.iter_mut().map(|s| &mut s.excuse) {
            excuse.stale = now;
            if excuse.harmed_until > 0 {
                excuse.harmed = now;
            }
        }
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

const fn stamp_sectors_per_block() -> u64 {
    forebay_block::BLOCK_BYTES / SECTOR as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILL: Crash = Crash { survives: Kept::Kill, all_settled: false };
    const CUT: Crash = Crash { survives: Kept::Cut, all_settled: true };

    fn content(value: Option<WriteNo>) -> Vec<u8> {
        let mut data = vec![0; SECTOR];
        if let Some(no) = value {
            stamp::fill(&mut data, 0, no);
        }
        data
    }

    /// Reads sector 0 and gets `value` (`None`: zeroes).
    fn read(o: &mut Oracle, value: Option<WriteNo>) -> Result<(), &'static str> {
        let ticket = o.issue_read();
        o.finish_read(ticket, 0, &content(value)).map_err(|w| w.promise)
    }

    fn write(o: &mut Oracle, durable: bool) -> WriteNo {
        let no = o.issue_write(0, 1, false, durable);
        o.acknowledge(no);
        no
    }

    #[test]
    fn an_acknowledged_write_is_what_is_read() {
        let mut o = Oracle::new(8, false);
        assert_eq!(read(&mut o, None), Ok(()));
        let a = write(&mut o, true);
        assert_eq!(read(&mut o, Some(a)), Ok(()));
        assert_eq!(read(&mut o, None), Err("P2"));
    }

    #[test]
    fn a_read_beside_a_write_may_see_either_and_then_the_order_is_fixed() {
        let mut o = Oracle::new(8, false);
        let a = o.issue_write(0, 1, false, true);
        let long = o.issue_read();
        assert_eq!(read(&mut o, None), Ok(()));
        assert_eq!(read(&mut o, Some(a)), Ok(()));
        assert_eq!(read(&mut o, None), Err("P2"), "it went back");
        o.acknowledge(a);
        assert!(o.finish_read(long, 0, &content(None)).is_ok(), "a read that began earlier may be slow");
        assert_eq!(read(&mut o, Some(a)), Ok(()));
    }

    #[test]
    fn concurrent_writes_may_end_in_either_order_but_not_in_both() {
        for first_wins in [true, false] {
            let mut o = Oracle::new(8, false);
            let a = o.issue_write(0, 1, false, true);
            let b = o.issue_write(0, 1, false, true);
            o.acknowledge(b);
            o.acknowledge(a);
            let (winner, loser) = if first_wins { (a, b) } else { (b, a) };
            assert_eq!(read(&mut o, Some(winner)), Ok(()));
            assert_eq!(read(&mut o, Some(loser)), Err("P2"));
        }
    }

    #[test]
    fn a_crash_keeps_what_was_promised_and_no_more() {
        let start = || {
            let mut o = Oracle::new(8, false);
            let a = write(&mut o, true);
            let b = write(&mut o, false);
            (o, a, b)
        };
        let (mut o, a, b) = start();
        o.crash(KILL);
        assert_eq!(read(&mut o, Some(a)), Err("P3"));
        assert_eq!(read(&mut o, Some(b)), Ok(()));
        let (mut o, a, b) = start();
        o.crash(CUT);
        assert_eq!(read(&mut o, None), Err("P3"));
        assert_eq!(read(&mut o, Some(a)), Ok(()));
        assert_eq!(read(&mut o, Some(b)), Err("P3"), "what was read after the crash stays");
        let (mut o, a, b) = start();
        let flush = o.issue_flush();
        o.acknowledge_flush(flush);
        o.crash(CUT);
        assert_eq!(read(&mut o, Some(a)), Err("P3"));
        assert_eq!(read(&mut o, Some(b)), Ok(()));
    }

    #[test]
    fn a_flush_covers_only_what_was_acknowledged_before_it() {
        let mut o = Oracle::new(8, false);
        let a = write(&mut o, true);
        let flush = o.issue_flush();
        let b = write(&mut o, false);
        o.acknowledge_flush(flush);
        o.crash(CUT);
        assert_eq!(read(&mut o, Some(a)), Ok(()));
        let _ = b;
        let mut o = Oracle::new(8, false);
        let _ = write(&mut o, false);
        let (failed, again) = (o.issue_flush(), o.issue_flush());
        o.fail_flush(failed);
        o.acknowledge_flush(again);
        o.crash(CUT);
        assert_eq!(read(&mut o, None), Ok(()), "a failed flush is not mended by a later one");
    }

    #[test]
    fn an_unacknowledged_write_may_be_there_after_a_crash_or_not_but_not_come_and_go() {
        for survived in [true, false] {
            let mut o = Oracle::new(8, false);
            let a = write(&mut o, true);
            let b = o.issue_write(0, 1, false, true);
            o.crash(KILL);
            let (seen, unseen) = if survived { (b, a) } else { (a, b) };
            assert_eq!(read(&mut o, Some(seen)), Ok(()));
            o.crash(KILL);
            assert_eq!(read(&mut o, Some(unseen)), Err("P3"));
        }
    }

    #[test]
    fn a_failed_write_may_have_happened() {
        let mut o = Oracle::new(8, false);
        let a = o.issue_write(0, 1, false, true);
        o.fail(a);
        assert_eq!(read(&mut o, None), Ok(()));
        assert_eq!(read(&mut o, Some(a)), Err("P2"), "but it cannot happen later");
        o.crash(KILL);
        assert_eq!(read(&mut o, Some(a)), Ok(()), "unless a crash reveals it");
        assert_eq!(read(&mut o, None), Err("P3"));
        let mut o = Oracle::new(8, false);
        let a = o.issue_write(0, 1, false, true);
        o.fail(a);
        let b = write(&mut o, true);
        o.crash(KILL);
        assert_eq!(read(&mut o, Some(a)), Err("P3"), "never over what was acknowledged later");
        assert_eq!(read(&mut o, Some(b)), Ok(()));
    }

    #[test]
    fn foreign_and_misplaced_data_is_never_right() {
        let mut o = Oracle::new(8, true);
        let mut other = vec![0; SECTOR];
        stamp::fill(&mut other, 5, WriteNo(0));
        let ticket = o.issue_read();
        assert_eq!(o.finish_read(ticket, 0, &other).map_err(|w| w.promise), Err("P5"));
        other[3] ^= 1;
        let ticket = o.issue_read();
        assert_eq!(o.finish_read(ticket, 5, &other).map_err(|w| w.promise), Err("P5"));
    }

    #[test]
    fn the_backing_alone_is_held_to_what_was_acknowledged() {
        let mut o = Oracle::new(1, false);
        let a = write(&mut o, true);
        let floors = o.floors(0, 1);
        let b = write(&mut o, true);
        assert!(o.check_alone("P1", &floors, 0, &content(None)).is_err());
        assert!(o.check_alone("P1", &floors, 0, &content(Some(a))).is_ok());
        assert!(o.check_alone("P1", &floors, 0, &content(Some(b))).is_ok());
        assert!(o.check_alone("P1", &o.floors(0, 1), 0, &content(Some(a))).is_err());
    }
}
