//! What one device holds at an instant: what no crash can take away, and what is still open.
//!
//! The rules are those of `docs/design/media-assumptions.md`:
//! - a durable write is *settled* when it has ended; any other write or zero when a flush has ended that was submitted
//!   after its end (M1);
//! - until then each of its sectors of 512 bytes is there after a power cut or not, for itself (M2, M3);
//! - what has ended is there after a kill; what was under way may be (M4);
//! - what has failed may be there, in part, for ever, and no later flush settles what a failed flush should have (M9);
//! - a settled sector ends the chances of writes of it that had ended before its own was submitted.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::entry::{Action, Entry};
use crate::survivor::{Cause, Crash, Fate};

/// The unit in which writes are torn, in bytes.
pub const SECTOR_BYTES: usize = 512;
const PAGE_BYTES: usize = 4096;

/// Where a pending operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Submitted.
    UnderWay,
    /// Ended well, and no flush covers it.
    Done,
    /// It failed, or the flush that should have covered it did.
    Doubtful,
}

/// What an operation writes.
#[derive(Clone, Debug)]
enum Content {
    Data(Vec<u8>),
    Zeroes,
}

static ZEROES: [u8; SECTOR_BYTES] = [0; SECTOR_BYTES];

/// A write or zero that is not settled.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) op: u64,
    pub(crate) progress: Progress,
    /// Number of the entry at which it began.
    begun: u64,
    /// Number of the entry at which it ended.
    ended: Option<u64>,
    durable: bool,
    first: u64,
    sectors: u64,
    content: Content,
}

impl Pending {
    fn sector(&self, i: u64) -> &[u8] {
        match &self.content {
            Content::Data(data) => &data[i as usize * SECTOR_BYTES..][..SECTOR_BYTES],
            Content::Zeroes => &ZEROES,
        }
    }

    fn touches(&self, other: &Self) -> bool {
        self.first < other.first + other.sectors && other.first < self.first + self.sectors
    }
}

/// See the module's documentation. What was settled since the record's beginning is held in memory, the rest is read
/// from the image that the device began with.
#[derive(Debug)]
pub struct Disk {
    base: Option<Arc<File>>,
    size_bytes: u64,
    settled: BTreeMap<u64, Box<[u8; PAGE_BYTES]>>,
    /// For each settled sector the beginning of the operation that it is from.
    since: HashMap<u64, u64>,
    pending: BTreeMap<u64, Pending>,
    /// Flushes under way, with the entry at which they began.
    flushes: HashMap<u64, u64>,
    overlaps: u64,
    /// See [`Disk::lie`]: how often, and how many were settled since.
    lies: Option<(u64, u64)>,
    /// Added to the numbers of entries and of operations, which begin anew with each record.
    before: (u64, u64),
    /// The greatest of either until now.
    last: (u64, u64),
}

impl Disk {
    /// A device that began as the image in `base`, or blank.
    ///
    /// # Errors
    /// As the system gives them.
    pub fn new(base: Option<File>) -> io::Result<Self> {
        let size_bytes = base.as_ref().map_or(Ok(0), |file| file.metadata().map(|m| m.len()))?;
        Ok(Self {
            base: base.map(Arc::new),
            size_bytes,
            settled: BTreeMap::new(),
            since: HashMap::new(),
            pending: BTreeMap::new(),
            flushes: HashMap::new(),
            overlaps: 0,
            lies: None,
            before: (0, 0),
            last: (0, 0),
        })
    }

    /// Size in bytes: that of the image, or where the last write has ended.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Operations that were submitted while another of the same sectors was under way: their order is not known, and
    /// who relies on one of them being last relies on luck.
    pub fn overlaps(&self) -> u64 {
        self.overlaps
    }

    /// Writes and zeroes that are not settled.
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    pub(crate) fn base(&self) -> Option<&File> {
        self.base.as_deref()
    }

    /// Reads a sector as far as it is settled.
    ///
    /// # Errors
    /// As the system gives them.
    pub fn read_settled(&self, sector: u64, bytes: &mut [u8; SECTOR_BYTES]) -> io::Result<()> {
        let offset = sector * SECTOR_BYTES as u64;
        match (self.settled.get(&(offset / PAGE_BYTES as u64)), &self.base) {
            (Some(page), _) => {
                bytes.copy_from_slice(&page[offset as usize % PAGE_BYTES..][..SECTOR_BYTES]);
                Ok(())
            }
            (None, base) => {
                bytes.fill(0);
                base.as_ref().map_or(Ok(()), |base| read_up_to(base, bytes, offset))
            }
        }
    }

    /// Pages that differ from the base, as offset and content.
    pub(crate) fn settled_pages(&self) -> impl Iterator<Item = (u64, &[u8; PAGE_BYTES])> {
        self.settled.iter().map(|(page, bytes)| (page * PAGE_BYTES as u64, &**bytes))
    }

    /// Pending operations in the order in which they have ended, those under way last.
    pub(crate) fn pending(&self) -> Vec<&Pending> {
        let mut pending: Vec<&Pending> = self.pending.values().collect();
        pending.sort_by_key(|p| (p.ended.unwrap_or(u64::MAX), p.op));
        pending
    }

    /// The sectors of a pending operation that may still come to be there, with what they would hold.
    pub(crate) fn open_sectors<'a>(&'a self, p: &'a Pending) -> impl Iterator<Item = (u64, &'a [u8])> {
        let open = |sector: u64| match (p.ended, self.since.get(&sector)) {
            (Some(ended), Some(since)) => *since < ended,
            _ => true,
        };
        (0..p.sectors).map(|i| (p.first + i, i)).filter(move |(s, _)| open(*s)).map(|(s, i)| (s, p.sector(i)))
    }

    /// Takes in the next entry of this device.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if it cannot follow those before.
    pub fn apply(&mut self, entry: Entry) -> io::Result<()> {
        let (entries_before, ops_before) = self.before;
        let number = entries_before + entry.number;
        self.last.0 = number;
        match entry.action {
            Action::Open { size_bytes, .. } => self.size_bytes = self.size_bytes.max(size_bytes),
            Action::Write { op, offset, durable, data } => {
                let len = data.len() as u64;
                self.begin(number, (ops_before + op, durable), offset, len, Content::Data(data))?;
            }
            Action::Zero { op, offset, len, .. } => {
                // A write says by its data how much it changes; this could say anything.
                if offset.checked_add(len).is_none_or(|end| end > self.size_bytes) {
                    return Err(impossible(number, "makes zero what is no part of the device"));
                }
                self.begin(number, (ops_before + op, false), offset, len, Content::Zeroes)?;
            }
            Action::Flush { op } => {
                let op = ops_before + op;
                if self.pending.contains_key(&op) || self.flushes.insert(op, number).is_some() {
                    return Err(impossible(number, "begins an operation again"));
                }
            }
            Action::End { op, errno } => {
                let op = ops_before + op;
                match self.flushes.remove(&op) {
                    Some(begun) => self.flushed(begun, errno == 0)?,
                    None => self.end(number, op, errno == 0)?,
                }
            }
        }
        Ok(())
    }

    fn begin(
        &mut self,
        begun: u64,
        (op, durable): (u64, bool),
        offset: u64,
        len: u64,
        content: Content,
    ) -> io::Result<()> {
        let unit = SECTOR_BYTES as u64;
        let in_reach = offset.checked_add(len).is_some_and(|end| end <= i64::MAX as u64);
        if !in_reach || !offset.is_multiple_of(unit) || !len.is_multiple_of(unit) {
            return Err(impossible(begun, "is not of whole sectors of a device"));
        }
        if self.pending.contains_key(&op) || self.flushes.contains_key(&op) {
            return Err(impossible(begun, "begins an operation again"));
        }
        let pending = Pending {
            op,
            progress: Progress::UnderWay,
            begun,
            ended: None,
            durable,
            first: offset / unit,
            sectors: len / unit,
            content,
        };
        self.size_bytes = self.size_bytes.max(offset + len);
        let mut under_way = self.pending.values().filter(|p| p.progress == Progress::UnderWay);
        self.overlaps += u64::from(under_way.any(|p| p.touches(&pending)));
        self.pending.insert(op, pending);
        self.last.1 = self.last.1.max(op);
        Ok(())
    }

    /// The device as a crash has left it, for the run that comes next, in a record of its own. After a power cut what is
    /// there is there; after a kill what no flush has covered still needs one.
    ///
    /// # Errors
    /// As the system gives them.
    pub fn crashed(&self, crash: Crash) -> io::Result<Self> {
        let mut next = self.successor();
        let ended = next.last.0;
        for p in self.pending() {
            if crash.cause == Cause::Kill && p.progress == Progress::Done {
                next.pending.insert(p.op, p.clone());
                continue;
            }
            for (sector, data) in self.open_sectors(p) {
                if !crash.keeps_sector(p.progress, p.op, sector) {
                    continue;
                }
                if crash.cause == Cause::PowerCut {
                    next.since.insert(sector, ended);
                    next.put(sector, data)?;
                    continue;
                }
                // What came later over what failed is still above it.
                next.landed(sector, data.to_vec(), p.begun, p.ended.unwrap_or(ended));
            }
        }
        next.before = next.last;
        Ok(next)
    }

    /// The device as the process that had it has left it at this instant, for the run that comes next, in a record of
    /// its own, and that began with `now`: of what was under way when the process died, or has failed, it is there what
    /// `now` shows. What no flush has covered still needs one.
    ///
    /// # Errors
    /// As the system gives them.
    pub fn left(&self, now: Option<&File>) -> io::Result<Self> {
        let mut next = self.successor();
        let begun = next.last.0;
        let (done, open): (Vec<&Pending>, Vec<&Pending>) =
            self.pending().into_iter().partition(|p| p.progress == Progress::Done);
        next.pending = done.into_iter().map(|p| (p.op, p.clone())).collect();
        let sectors: BTreeSet<u64> =
            open.into_iter().flat_map(|p| self.open_sectors(p)).map(|(sector, _)| sector).collect();
        let ended = self.survivor(Crash { cause: Cause::Kill, fate: Fate::Dropped, seed: 0 });
        for sector in sectors {
            let [mut known, mut found] = [[0; SECTOR_BYTES]; 2];
            ended.read(sector, &mut known)?;
            now.map_or(Ok(()), |now| read_up_to(now, &mut found, sector * SECTOR_BYTES as u64))?;
            if known != found {
                next.landed(sector, found.to_vec(), begun, begun);
            }
        }
        next.before = next.last;
        Ok(next)
    }

    /// The same device with nothing pending, before a record of its own begins.
    fn successor(&self) -> Self {
        Self {
            base: self.base.clone(),
            size_bytes: self.size_bytes,
            settled: self.settled.clone(),
            since: self.since.clone(),
            pending: BTreeMap::new(),
            flushes: HashMap::new(),
            overlaps: 0,
            lies: self.lies,
            before: (0, 0),
            last: (self.last.0 + 1, self.last.1),
        }
    }

    /// This sector is there, and no flush has covered it.
    fn landed(&mut self, sector: u64, data: Vec<u8>, begun: u64, ended: u64) {
        self.last.1 += 1;
        let op = self.last.1;
        let landed = Pending {
            op,
            progress: Progress::Done,
            begun,
            ended: Some(ended),
            durable: false,
            first: sector,
            sectors: 1,
            content: Content::Data(data),
        };
        self.pending.insert(op, landed);
    }

    fn end(&mut self, number: u64, op: u64, well: bool) -> io::Result<()> {
        let under_way = |p: &&mut Pending| p.progress == Progress::UnderWay;
        let Some(p) = self.pending.get_mut(&op).filter(under_way) else {
            return Err(impossible(number, "ends an operation that is not under way"));
        };
        p.ended = Some(number);
        p.progress = if well { Progress::Done } else { Progress::Doubtful };
        if well && p.durable {
            self.settle(vec![op])?;
        }
        Ok(())
    }

    /// A flush that began with entry `begun` has ended.
    fn flushed(&mut self, begun: u64, well: bool) -> io::Result<()> {
        let covered = |p: &&mut Pending| p.progress == Progress::Done && p.ended.is_some_and(|e| e < begun);
        let covered = self.pending.values_mut().filter(covered);
        if !well {
            covered.for_each(|p| p.progress = Progress::Doubtful);
            return Ok(());
        }
        let mut ops: Vec<(Option<u64>, u64)> = covered.map(|p| (p.ended, p.op)).collect();
        ops.sort_unstable();
        self.settle(ops.into_iter().map(|(_, op)| op).collect())
    }

    fn settle(&mut self, ops: Vec<u64>) -> io::Result<()> {
        for op in ops {
            let Some(p) = self.pending.remove(&op) else {
                continue;
            };
            if self.lies_now() {
                continue;
            }
            let sectors: Vec<u64> = self.open_sectors(&p).map(|(sector, _)| sector).collect();
            for sector in sectors {
                self.since.insert(sector, p.begun);
                self.put(sector, p.sector(sector - p.first))?;
            }
        }
        Ok(())
    }

    fn put(&mut self, sector: u64, bytes: &[u8]) -> io::Result<()> {
        let offset = sector * SECTOR_BYTES as u64;
        let number = offset / PAGE_BYTES as u64;
        if !self.settled.contains_key(&number) {
            let mut page = Box::new([0; PAGE_BYTES]);
            if let Some(base) = &self.base {
                read_up_to(base, &mut page[..], number * PAGE_BYTES as u64)?;
            }
            self.settled.insert(number, page);
        }
        if let Some(page) = self.settled.get_mut(&number) {
            page[offset as usize % PAGE_BYTES..][..SECTOR_BYTES].copy_from_slice(bytes);
        }
        Ok(())
    }

    /// Breaks M1, for a test of the test: from now on every so many-th operation is lost when it is settled.
    pub fn lie(&mut self, every: u64) {
        self.lies = Some((every, 0));
    }

    /// Whether the operation that is settled now is lost.
    fn lies_now(&mut self) -> bool {
        let Some((every, count)) = &mut self.lies else {
            return false;
        };
        *count += 1;
        count.is_multiple_of(*every)
    }
}

/// An entry that no device can have had.
fn impossible(number: u64, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("entry {number} {what}"))
}

/// Reads as much as the file has.
fn read_up_to(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], offset + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(())
}
