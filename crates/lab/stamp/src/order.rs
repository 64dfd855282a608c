//! Whether the backing of a recorded run was consistent at every instant of it (P4), whatever a kill or a power cut would
//! have left there and wherever the cache had been lost: of every two writes of which one came before the other was
//! issued, the later is there only if the earlier is, or something newer in its place.
//!
//! One pass over the record. `newest` is when the newest write was issued of which anything may be on the backing;
//! `missing` is the earliest moment from which on every write comes after some write that may be missing there. The backing is
//! consistent in all its possible states exactly as long as `newest` does not lie behind `missing`.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use forebay_format::label::LABEL_BYTES;
use forebay_record::{Action, Entry, Reader, Role};
use serde::Serialize;

use crate::acks::{Acks, Asked};
use crate::ring::{Effects, Ring};
use crate::stamp::{Found, SECTOR_BYTES};

const NEVER: u64 = u64::MAX;

/// Which writes come before which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependence {
    /// What was acknowledged comes before what is issued later.
    Completion,
    /// What a flush covers that was acknowledged, or was written with FUA, comes before what is issued later.
    Barrier,
}

impl FromStr for Dependence {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "completion" => Ok(Self::Completion),
            "barrier" => Ok(Self::Barrier),
            _ => Err("an order is completion or barrier".into()),
        }
    }
}

/// What is judged.
#[derive(Clone, Debug)]
pub struct OrderOptions {
    /// The record of the run.
    pub record: PathBuf,
    /// Acknowledgements of the run, which began with a blank volume and zeroed nothing.
    pub acks: PathBuf,
    /// Which order is to hold.
    pub order: Dependence,
    /// Judge what a replay of the journal would make of the backing; without it, the backing as it lies there.
    pub journal: bool,
    /// Exchange the data of so many pairs of neighbouring writes of which one comes before the other, which must be found.
    pub swaps: u64,
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OrderReport {
    /// Entries of the record about the backing, after each of which it was judged.
    pub instants: u64,
    /// Instants at which it could have been out of order.
    pub violations: u64,
    /// Writes to the backing that a replay would not hide and that no group has committed.
    pub between_groups: u64,
    /// Groups that the journal has committed.
    pub groups: u64,
    /// Writes of the client that were acknowledged.
    pub writes: u64,
    /// Writes that had others behind them in the order, and so are a test.
    pub writes_before_others: u64,
    /// Of those the ones that were durable on the backing, or overwritten there, before the last request was answered.
    pub on_backing_during_the_run: u64,
    /// Writes to the backing whose data was exchanged.
    pub swapped: u64,
    /// The first violations, in words.
    #[serde(skip)]
    pub told: Vec<String>,
}

/// A write of the client's.
#[derive(Clone, Copy)]
struct Change {
    seq: u64,
    issued: u64,
    before: u64,
}

/// A write to the backing that has begun: for each sector the place of its version in the sector's history, from 1.
struct Pending {
    versions: Vec<(u64, usize)>,
    durable: bool,
    ended: bool,
}

/// Judges a run.
///
/// # Errors
/// A file cannot be read or is damaged, or the run zeroed sectors.
pub fn order(options: &OrderOptions) -> io::Result<OrderReport> {
    let acks = Acks::load(&options.acks)?;
    let mut judge = Judge::new(&acks, options.order)?;
    judge.ring = options.journal.then(Ring::default);
    let swaps =
        if options.swaps > 0 { swaps(&options.record, &judge, options.swaps)? } else { HashMap::new() };
    let mut reader = Reader::open(&options.record)?;
    while let Some(mut entry) = reader.next_entry()? {
        if let (Action::Write { offset, data, .. }, Some(other)) =
            (&mut entry.action, swaps.get(&entry.number))
        {
            (*offset, *data) = other.clone();
            judge.report.swapped += 1;
        }
        judge.take(entry)?;
    }
    Ok(judge.report)
}

/// Place and data of a write.
type Written = (u64, Vec<u8>);

/// Of so many pairs of neighbouring writes to the backing, spread over the record, of which one comes before the other: what
/// each is to be, by the number of its entry.
fn swaps(record: &Path, judge: &Judge, count: u64) -> io::Result<HashMap<u64, Written>> {
    let mut reader = Reader::open(record)?;
    let mut last: Option<(u64, (u64, Written))> = None;
    let mut pairs: Vec<[(u64, Written); 2]> = Vec::new();
    while let Some(entry) = reader.next_entry()? {
        let Action::Write { offset, data, .. } = entry.action else { continue };
        if entry.role != Role::Backing {
            continue;
        }
        let Some((issued, before)) = judge.times(offset, &data)? else { continue };
        let this = (entry.number, (offset, data));
        last = match last {
            Some((comes_before, earlier)) if comes_before < issued => {
                pairs.push([earlier, this]);
                None
            }
            _ => Some((before, this)),
        };
    }
    let every = (pairs.len() / count.max(1) as usize).max(1);
    let chosen = pairs.into_iter().step_by(every).take(count as usize);
    Ok(chosen.flat_map(|[(a, x), (b, y)]| [(a, y), (b, x)]).collect())
}

struct Judge {
    volume: u64,
    /// The versions of each sector, in their order.
    sectors: Vec<Vec<Change>>,
    /// How many versions of each sector are surely there, after a replay if there is a journal.
    settled: Vec<usize>,
    /// How many are surely in place.
    in_place: Vec<usize>,
    ring: Option<Ring>,
    /// Where on the backing the ring lies, if it has no device of its own.
    behind: Option<Range<u64>>,
    /// For each `before` of a version that may be missing next in a sector, how many sectors.
    missing: BTreeMap<u64, u64>,
    /// When the newest write was issued that may be there.
    newest: u64,
    pending: BTreeMap<u64, Pending>,
    /// Flushes under way, and the writes that each covers.
    flushes: HashMap<u64, Vec<u64>>,
    last_answer: u64,
    report: OrderReport,
}

impl Judge {
    fn new(acks: &Acks, order: Dependence) -> io::Result<Self> {
        let answers = acks.requests.iter().filter_map(|r| r.acknowledged_ns);
        let mut flushes: Vec<(u64, u64)> = acks
            .requests
            .iter()
            .filter(|r| r.asked == Asked::Flush)
            .filter_map(|r| Some((r.issued_ns, r.acknowledged_ns?)))
            .collect();
        flushes.sort_unstable();
        // For each flush the earliest answer of it and of all that were issued later.
        let mut earliest = NEVER;
        for (_, answered) in flushes.iter_mut().rev() {
            earliest = earliest.min(*answered);
            *answered = earliest;
        }
        let barrier = |at: u64| {
            let next = flushes.partition_point(|(issued, _)| *issued <= at);
            flushes.get(next).map_or(NEVER, |(_, answered)| *answered)
        };
        let last_issue = acks.requests.iter().map(|r| r.issued_ns).max().unwrap_or(0);
        let mut report = OrderReport::default();
        let mut sectors: Vec<Vec<Change>> = vec![Vec::new(); acks.sectors as usize];
        for r in &acks.requests {
            let Asked::Change { first, sectors: count, version, fua } = r.asked else { continue };
            if version.is_zero() {
                return Err(io::Error::other("the run zeroed sectors, which do not say who zeroed them"));
            }
            let before = match (order, r.acknowledged_ns) {
                (_, None) => NEVER,
                (Dependence::Barrier, Some(at)) if !fua => barrier(at),
                (_, Some(at)) => at,
            };
            report.writes += u64::from(r.acknowledged_ns.is_some());
            report.writes_before_others += u64::from(before < last_issue);
            let change = Change { seq: version.seq(), issued: r.issued_ns, before };
            for sector in first..first + count {
                sectors[sector as usize].push(change);
            }
        }
        let mut missing = BTreeMap::new();
        for history in &mut sectors {
            history.sort_unstable_by_key(|c| c.seq);
            *missing.entry(history.first().map_or(NEVER, |c| c.before)).or_default() += 1;
        }
        let (settled, in_place) = (vec![0; sectors.len()], vec![0; sectors.len()]);
        Ok(Self {
            volume: acks.volume,
            sectors,
            settled,
            in_place,
            ring: None,
            behind: None,
            missing,
            newest: 0,
            pending: BTreeMap::new(),
            flushes: HashMap::new(),
            last_answer: answers.max().unwrap_or(0),
            report,
        })
    }

    fn take(&mut self, entry: Entry) -> io::Result<()> {
        let time_ns = entry.time_ns;
        match (entry.role, entry.action) {
            (Role::Backing, Action::Open { size_bytes, .. }) => {
                let volume_bytes = (self.sectors.len() * SECTOR_BYTES) as u64;
                let label = (size_bytes / 4096 * 4096).saturating_sub(LABEL_BYTES as u64);
                self.behind = self.ring.is_some().then_some(volume_bytes.next_multiple_of(4096)..label);
                return Ok(());
            }
            (Role::Journal, Action::Open { .. }) => {
                self.behind = None;
                return Ok(());
            }
            (Role::Backing, action) => self.take_backing(action, time_ns)?,
            (Role::Journal, action) if self.ring.is_some() => self.take_journal(action, time_ns)?,
            _ => return Ok(()),
        }
        self.judge(entry.number);
        Ok(())
    }

    fn take_backing(&mut self, action: Action, time_ns: u64) -> io::Result<()> {
        match (&action, &self.behind) {
            (Action::Write { offset, .. }, Some(ring)) if !ring.contains(offset) => {}
            (Action::Write { op, offset, durable, data }, Some(ring)) => {
                let (offset, data) = (offset - ring.start, data.clone());
                return self
                    .take_journal(Action::Write { op: *op, offset, durable: *durable, data }, time_ns);
            }
            // A flush is one of both, and the other side knows nothing of a write's end.
            (Action::Flush { .. } | Action::End { .. }, Some(_)) => {
                self.take_journal(action.clone(), time_ns)?
            }
            _ => {}
        }
        match action {
            Action::Open { .. } => {}
            Action::Write { op, offset, durable, data } => self.begin(op, offset, durable, &data)?,
            Action::Zero { .. } => return Err(io::Error::other("the backing was zeroed in this run")),
            Action::Flush { op } => {
                let covered = self.pending.iter().filter(|(_, p)| p.ended).map(|(op, _)| *op).collect();
                self.flushes.insert(op, covered);
            }
            Action::End { op, errno } => self.end(op, errno == 0, time_ns)?,
        }
        Ok(())
    }

    fn take_journal(&mut self, action: Action, time_ns: u64) -> io::Result<()> {
        let Some(ring) = &mut self.ring else { return Ok(()) };
        let effects = match action {
            Action::Write { op, offset, durable, data } => ring.begin(op, offset, durable, &data)?,
            Action::Flush { op } => {
                ring.flush(op);
                Effects::default()
            }
            Action::End { op, errno } => ring.end(op, errno == 0),
            Action::Open { .. } => Effects::default(),
            Action::Zero { .. } => return Err(io::Error::other("the journal was zeroed in this run")),
        };
        self.follow(effects, time_ns)
    }

    /// What an event of the journal means for what a replay would make of the backing.
    fn follow(&mut self, effects: Effects, time_ns: u64) -> io::Result<()> {
        if let Some(wrong) = effects.wrong {
            self.report.violations += 1;
            self.report.told.push(wrong);
        }
        self.report.groups += u64::from(!effects.may_show.is_empty());
        for (sector, found) in effects.may_show {
            let place = self.place(sector, found)?;
            self.shows(sector, place);
        }
        for sector in effects.changed {
            self.work_out(sector, time_ns)?;
        }
        Ok(())
    }

    fn judge(&mut self, number: u64) {
        self.report.instants += 1;
        let missing = self.missing.first_key_value().map_or(NEVER, |(before, _)| *before);
        if self.newest > missing {
            self.report.violations += 1;
            if self.report.told.len() < 10 {
                let late = (self.newest - missing) / 1000;
                let told = format!(
                    "entry {number}: a write may be there that was issued {late} us after one had come before it that may be missing"
                );
                self.report.told.push(told);
            }
        }
    }

    /// Which of the sector's versions this is, counted from 1; 0 for none of them.
    fn place(&self, sector: u64, found: Found) -> io::Result<usize> {
        let Some(history) = self.sectors.get(sector as usize) else { return Ok(0) };
        match found {
            Found::Zeroes => Ok(0),
            Found::Stamp(s) if s.volume == self.volume && (s.sector == sector || self.report.swapped > 0) => {
                Ok(history.partition_point(|c| c.seq <= s.seq))
            }
            other => Err(io::Error::other(format!("sector {sector} was written with {other}"))),
        }
    }

    /// When the newest version in the data was issued, and from when on what is issued comes after it; `None` if the data is
    /// not the volume's. The rest of its block may have been there before.
    fn times(&self, offset: u64, data: &[u8]) -> io::Result<Option<(u64, u64)>> {
        let mut times: Option<(u64, u64)> = None;
        for (sector, bytes) in (offset / SECTOR_BYTES as u64..).zip(data.chunks_exact(SECTOR_BYTES)) {
            let Some(history) = self.sectors.get(sector as usize) else { continue };
            let Some(change) = self.place(sector, Found::look(bytes))?.checked_sub(1).map(|n| history[n])
            else {
                continue;
            };
            if times.is_none_or(|(issued, _)| change.issued > issued) {
                times = Some((change.issued, change.before));
            }
        }
        Ok(times)
    }

    /// From now on this version may be there.
    fn shows(&mut self, sector: u64, place: usize) {
        let change = place.checked_sub(1).and_then(|n| self.sectors.get(sector as usize)?.get(n));
        self.newest = self.newest.max(change.map_or(0, |change| change.issued));
    }

    fn begin(&mut self, op: u64, offset: u64, durable: bool, data: &[u8]) -> io::Result<()> {
        let mut versions = Vec::new();
        for (sector, bytes) in (offset / SECTOR_BYTES as u64..).zip(data.chunks_exact(SECTOR_BYTES)) {
            if sector as usize >= self.sectors.len() {
                continue;
            }
            let place = self.place(sector, Found::look(bytes))?;
            // What a replay writes again hides it.
            let hidden = self.ring.as_ref().is_some_and(|ring| ring.covers(sector).is_some());
            if !hidden {
                self.shows(sector, place);
                let between = self.ring.is_some() && place != self.settled[sector as usize];
                self.report.between_groups += u64::from(between);
            }
            versions.push((sector, place));
        }
        self.pending.insert(op, Pending { versions, durable, ended: false });
        Ok(())
    }

    fn end(&mut self, op: u64, done: bool, time_ns: u64) -> io::Result<()> {
        if let Some(covered) = self.flushes.remove(&op) {
            for op in covered.into_iter().filter(|_| done) {
                self.settle(op, time_ns)?;
            }
            return Ok(());
        }
        let Some(pending) = self.pending.get_mut(&op) else { return Ok(()) };
        pending.ended = done;
        if done && pending.durable {
            self.settle(op, time_ns)?;
        }
        Ok(())
    }

    /// What the write wrote survives everything from now on.
    fn settle(&mut self, op: u64, time_ns: u64) -> io::Result<()> {
        let Some(pending) = self.pending.remove(&op) else { return Ok(()) };
        for (sector, place) in pending.versions {
            self.in_place[sector as usize] = place;
            self.work_out(sector, time_ns)?;
        }
        Ok(())
    }

    /// Which version of the sector is surely there.
    fn work_out(&mut self, sector: u64, time_ns: u64) -> io::Result<()> {
        if sector as usize >= self.sectors.len() {
            return Ok(());
        }
        let place = match self.ring.as_ref().and_then(|ring| ring.covers(sector)) {
            Some(found) => self.place(sector, *found)?,
            None => self.in_place[sector as usize],
        };
        let history = &self.sectors[sector as usize];
        let before = |place: usize| history.get(place).map_or(NEVER, |c| c.before);
        let old = std::mem::replace(&mut self.settled[sector as usize], place);
        if let Some(n) = self.missing.get_mut(&before(old)) {
            *n -= 1;
            if *n == 0 {
                self.missing.remove(&before(old));
            }
        }
        *self.missing.entry(before(place)).or_default() += 1;
        if time_ns < self.last_answer {
            // A write counts where its first sector is.
            let counts = |c: &&Change| c.before < self.last_answer;
            let first = |c: &&Change| {
                sector == 0 || !self.sectors[sector as usize - 1].iter().any(|other| other.seq == c.seq)
            };
            let new = history.get(old..place).unwrap_or_default();
            self.report.on_backing_during_the_run += new.iter().filter(counts).filter(first).count() as u64;
        }
        Ok(())
    }
}
