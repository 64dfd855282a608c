//! What a device holds, and what of it a power cut leaves.
//!
//! The model; `docs/design/media-assumptions.md` is the list of assumptions that it follows:
//! - a sector of 512 bytes is written wholly or not at all; nothing larger is atomic;
//! - a write is durable when it was submitted as durable and has completed, or when a flush that was submitted after
//!   its completion has completed; until then each of its sectors survives a power cut or not, independently of all
//!   others and of the order of the writes; of several unflushed writes of one sector any one may be what is left;
//! - a durable write of a sector ends the chances of earlier unflushed ones of that sector;
//! - after a failed flush, what it should have covered is never made durable by a later flush, only by being written
//!   again (the behaviour of several kernels), as long as the same process has the device open;
//! - the death of the process loses nothing that was submitted and completed.

use forebay_block::Buf;

use crate::random::Random;
use crate::stamp::SECTOR;

/// The data of a write: buffers, or zeroes.
#[derive(Clone, Debug)]
pub enum Data {
    /// The concatenation of the buffers.
    Bufs(Vec<Buf>),
    /// Zeroes, this many bytes.
    Zeroes(usize),
}

impl Data {
    /// Bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Bufs(bufs) => bufs.iter().map(|b| b.len()).sum(),
            Self::Zeroes(len) => *len,
        }
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies everything to `target`, which is as long.
    pub fn copy_to(&self, target: &mut [u8]) {
        match self {
            Self::Bufs(bufs) => {
                let mut at = 0;
                for b in bufs {
                    target[at..at + b.len()].copy_from_slice(b);
                    at += b.len();
                }
            }
            Self::Zeroes(_) => target.fill(0),
        }
    }

    /// Copies the sector at byte `from` to `target`.
    fn copy_sector(&self, from: usize, target: &mut [u8]) {
        let mut at = 0;
        for b in if let Self::Bufs(bufs) = self { &bufs[..] } else { &[] } {
            if (at..at + b.len()).contains(&from) {
                target.copy_from_slice(&b[from - at..][..SECTOR]);
                return;
            }
            at += b.len();
        }
        target.fill(0);
    }

    /// One byte string with everything.
    pub fn flat(&self) -> Vec<u8> {
        let mut flat = vec![0; self.len()];
        self.copy_to(&mut flat);
        flat
    }
}

/// A write that has taken effect but may not survive a power cut, or a durable one above such.
#[derive(Clone)]
struct Entry {
    order: u64,
    offset: usize,
    data: Data,
    durable: bool,
    /// A flush that should have covered it failed.
    abandoned: bool,
}

/// How a power cut chooses what is left of unflushed writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Survival {
    /// None.
    Nothing,
    /// All, the newest of each sector.
    Everything,
    /// Each sector by itself: any of its unflushed versions, or the flushed one.
    Sectors,
    /// Each write wholly or not.
    Writes,
    /// The first few writes, the last of them torn.
    Prefix,
}

impl Survival {
    /// Every way.
    pub const ALL: [Self; 5] = [Self::Nothing, Self::Everything, Self::Sectors, Self::Writes, Self::Prefix];
}

/// A device's sectors. Offsets are bytes from the device's start; the first `start` bytes are not simulated.
#[derive(Clone)]
pub struct Media {
    start: u64,
    /// What a read sees.
    now: Vec<u8>,
    /// What is left if every unflushed write is lost.
    durable: Vec<u8>,
    unflushed: Vec<Entry>,
    order: u64,
    /// Bytes of the device; what lies behind in memory was used by a larger one before.
    len: usize,
    /// Whether a chunk was ever written, so that a medium is wiped in time proportional to its use.
    touched: Vec<bool>,
    /// What is read of places that were never written.
    zeroes: Buf,
    /// What has changed in each [`View`] since somebody looked.
    changed: [Changes; 2],
    /// Most contested sectors of which [`Media::cut_by_choice`] tries every combination.
    pub contested_max: usize,
}

/// What of a medium is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// What a read sees.
    Now,
    /// What is left if every unflushed write is lost.
    Durable,
}

/// Parts of a medium that have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changes {
    /// Byte offset and length of each, from the first simulated byte on.
    Some(Vec<(usize, usize)>),
    /// More than anybody has counted.
    All,
}

impl Changes {
    /// Whether anything has changed in the bytes `start..end`.
    pub fn touch(&self, start: u64, end: u64) -> bool {
        match self {
            Self::Some(ranges) => {
                ranges.iter().any(|(at, len)| (*at as u64) < end && start < (at + len) as u64)
            }
            Self::All => true,
        }
    }

    fn add(&mut self, at: usize, len: usize) {
        match self {
            Self::Some(ranges) if ranges.len() < CHANGES_MAX => ranges.push((at, len)),
            _ => *self = Self::All,
        }
    }
}

/// Most parts that are kept apart.
const CHANGES_MAX: usize = 64;
const CHUNK: usize = 4 << 10;
/// As many contested sectors are combined in every way unless another limit is set.
pub const CONTESTED_MAX: usize = 10;

impl Media {
    /// A medium of `len` zero bytes from device offset `start` on.
    pub fn new(start: u64, len: usize) -> Self {
        Self {
            start,
            now: vec![0; len],
            durable: vec![0; len],
            unflushed: Vec::new(),
            order: 0,
            len,
            touched: vec![false; len.div_ceil(CHUNK)],
            zeroes: Buf::zeroed(0),
            changed: [Changes::All, Changes::All],
            contested_max: CONTESTED_MAX,
        }
    }

    /// Makes this a medium of `len` zero bytes again, reusing its memory.
    pub fn wipe(&mut self, start: u64, len: usize) {
        for chunk in self.touched.iter().enumerate().filter(|(_, t)| **t).map(|(i, _)| i * CHUNK) {
            let end = (chunk + CHUNK).min(self.now.len());
            self.now[chunk..end].fill(0);
            self.durable[chunk..end].fill(0);
        }
        self.start = start;
        self.len = len;
        if self.now.len() < len {
            self.now.resize(len, 0);
            self.durable.resize(len, 0);
        }
        self.changed = [Changes::All, Changes::All];
        self.touched.clear();
        self.touched.resize(len.div_ceil(CHUNK), false);
        self.unflushed.clear();
        self.order = 0;
    }

    /// First byte past the device's end.
    pub fn end(&self) -> u64 {
        self.start + self.len as u64
    }

    /// First simulated byte.
    pub fn start(&self) -> u64 {
        self.start
    }

    fn at(&self, offset: u64) -> usize {
        (offset - self.start) as usize
    }

    fn touch(&mut self, at: usize, len: usize) {
        if len > 0 {
            self.touched[at / CHUNK..=(at + len - 1) / CHUNK].fill(true);
        }
    }

    /// What a read of the range sees.
    pub fn read(&self, offset: u64, len: usize) -> &[u8] {
        let at = self.at(offset);
        &self.now[at..at + len]
    }

    /// The same in a buffer, which is shared with other reads where nothing was ever written.
    pub fn read_buf(&mut self, offset: u64, len: usize) -> Buf {
        let at = self.at(offset);
        if len == 0 || self.touched[at / CHUNK..=(at + len - 1) / CHUNK].contains(&true) {
            return Buf::copy_of(self.read(offset, len));
        }
        if self.zeroes.len() < len {
            self.zeroes = Buf::zeroed(len);
        }
        self.zeroes.slice(0, len)
    }

    /// Writes all of the first `len` bytes, durably, while nothing is volatile.
    pub fn fill(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) {
        self.touch(0, len);
        fill(&mut self.now[..len]);
        self.durable[..len].copy_from_slice(&self.now[..len]);
    }

    /// What has changed since the last call.
    pub fn take_changes(&mut self, view: View) -> Changes {
        std::mem::replace(&mut self.changed[view as usize], Changes::Some(Vec::new()))
    }

    /// What the range would hold if every unflushed write were lost.
    pub fn read_durable(&self, offset: u64, len: usize) -> &[u8] {
        let at = self.at(offset);
        &self.durable[at..at + len]
    }

    /// What the range holds in a view.
    pub fn view(&self, view: View, offset: u64, len: usize) -> &[u8] {
        match view {
            View::Now => self.read(offset, len),
            View::Durable => self.read_durable(offset, len),
        }
    }

    /// A completed write.
    pub fn write(&mut self, offset: u64, data: Data, durable: bool) {
        let (at, len) = (self.at(offset), data.len());
        self.touch(at, len);
        data.copy_to(&mut self.now[at..at + len]);
        self.changed[View::Now as usize].add(at, len);
        self.order += 1;
        if durable {
            self.changed[View::Durable as usize].add(at, len);
            self.durable[at..at + len].copy_from_slice(&self.now[at..at + len]);
            if self.unflushed.is_empty() {
                return;
            }
        }
        self.unflushed.push(Entry { order: self.order, offset: at, data, durable, abandoned: false });
    }

    /// What a flush that is submitted now will cover when it completes.
    pub fn flush_mark(&self) -> u64 {
        self.order
    }

    /// A completed flush that was submitted when [`Media::flush_mark`] was `mark`.
    pub fn flush(&mut self, mark: u64) {
        for e in &mut self.unflushed {
            e.durable |= e.order <= mark && !e.abandoned;
            if e.durable {
                e.data.copy_to(&mut self.durable[e.offset..e.offset + e.data.len()]);
                self.changed[View::Durable as usize].add(e.offset, e.data.len());
            }
        }
        // A durable entry is kept only as long as it lies above a volatile one, or above a durable one that does.
        let mut kept: Vec<(usize, usize)> = Vec::new();
        self.unflushed.retain(|e| {
            let (start, end) = (e.offset, e.offset + e.data.len());
            let keep = !e.durable || kept.iter().any(|(s, t)| *s < end && start < *t);
            if keep {
                kept.push((start, end));
            }
            keep
        });
    }

    /// A failed flush: no later one covers what it should have. With `lose`, what was not durable is gone at once.
    pub fn fail_flush(&mut self, mark: u64, lose: bool) {
        for e in self.unflushed.iter_mut().filter(|e| e.order <= mark) {
            e.abandoned = true;
        }
        if lose {
            self.cut(Vec::new(), &mut |_, _| 0);
        }
    }

    /// The device is opened anew: its next flush covers all that it holds, whatever an earlier one failed to cover.
    pub fn forgive(&mut self) {
        self.unflushed.iter_mut().for_each(|e| e.abandoned = false);
    }

    /// What a power cut now could lose, each with its offset.
    pub fn volatile(&self) -> impl Iterator<Item = (u64, Vec<u8>)> {
        let lost = self.unflushed.iter().filter(|e| !e.durable);
        lost.map(|e| (self.start + e.offset as u64, e.data.flat()))
    }

    /// Whether a power cut now could lose anything.
    pub fn is_volatile(&self) -> bool {
        !self.unflushed.is_empty()
    }

    /// A power cut, with `in_flight` writes (offset, data) submitted but not completed. For each sector of which
    /// more than one version may be left, `choose(sector, n)` says which of 0 (the durable one) `..= n` (the newest).
    pub fn cut(&mut self, in_flight: Vec<(u64, Data)>, choose: &mut dyn FnMut(u64, usize) -> usize) {
        let ranges = self.expose(in_flight);
        self.settle(&ranges, choose);
    }

    /// A power cut whose choices are drawn from `random` in the manner of `survival`.
    pub fn cut_at_random(&mut self, in_flight: Vec<(u64, Data)>, survival: Survival, random: &mut Random) {
        let ranges = self.expose(in_flight);
        match survival {
            Survival::Nothing => self.settle(&ranges, &mut |_, _| 0),
            Survival::Everything => self.settle(&ranges, &mut |_, n| n),
            Survival::Sectors => self.settle(&ranges, &mut |_, n| random.below(n as u64 + 1) as usize),
            Survival::Writes => {
                self.unflushed.retain(|e| e.durable || random.percent(50));
                self.settle(&ranges, &mut |_, n| n);
            }
            Survival::Prefix => {
                let kept = random.below(self.unflushed.len() as u64 + 1) as usize;
                let torn = self.unflushed.get(kept).map(|e| (e.offset, e.offset + e.data.len()));
                let mut index = 0;
                self.unflushed.retain(|e| {
                    index += 1;
                    e.durable || index <= kept + 1
                });
                let start = self.start as usize / SECTOR;
                self.settle(&ranges, &mut |sector, n| {
                    let at = (sector as usize - start) * SECTOR;
                    let in_torn = torn.is_some_and(|(from, to)| (from..to).contains(&at));
                    if in_torn && random.percent(50) { n - 1 } else { n }
                });
            }
        }
    }

    /// Adds the writes in flight to those that may or may not survive; returns the ranges of all of them.
    fn expose(&mut self, in_flight: Vec<(u64, Data)>) -> Vec<(usize, usize)> {
        for (offset, data) in in_flight {
            let at = self.at(offset);
            self.touch(at, data.len());
            self.order += 1;
            self.unflushed.push(Entry {
                order: self.order,
                offset: at,
                data,
                durable: false,
                abandoned: false,
            });
        }
        self.unflushed.iter().map(|e| (e.offset, e.data.len())).collect()
    }

    /// Sectors with more than one possible content after a power cut, each with the entries that compete for it.
    fn contested(&self) -> Vec<(usize, Vec<usize>)> {
        let mut versions: Vec<(usize, usize)> = Vec::new();
        for (i, e) in self.unflushed.iter().enumerate() {
            versions.extend((0..e.data.len() / SECTOR).map(|s| (e.offset / SECTOR + s, i)));
        }
        versions.sort_unstable();
        versions
            .chunk_by(|a, b| a.0 == b.0)
            .map(|same| {
                let last_durable = same.iter().rposition(|(_, i)| self.unflushed[*i].durable);
                let open = &same[last_durable.map_or(0, |p| p + 1)..];
                (same[0].0, open.iter().map(|(_, i)| *i).collect::<Vec<_>>())
            })
            .filter(|(_, open)| !open.is_empty())
            .collect()
    }

    /// Chooses for each sector of the entries that are left, and makes what a read sees in `ranges` the outcome.
    fn settle(&mut self, ranges: &[(usize, usize)], choose: &mut dyn FnMut(u64, usize) -> usize) {
        for (sector, open) in self.contested() {
            let chosen = choose((self.start as usize / SECTOR + sector) as u64, open.len());
            if let Some(i) = chosen.checked_sub(1).and_then(|c| open.get(c)) {
                let from = sector * SECTOR - self.unflushed[*i].offset;
                self.unflushed[*i].data.copy_sector(from, &mut self.durable[sector * SECTOR..][..SECTOR]);
            }
        }
        for (offset, len) in ranges {
            let range = *offset..offset + len;
            self.changed.iter_mut().for_each(|changes| changes.add(*offset, *len));
            self.now[range.clone()].copy_from_slice(&self.durable[range]);
        }
        self.unflushed.clear();
    }

    /// A power cut of which every outcome is to be seen: `choose(n)` picks one of `0..n` at each fork. Up to
    /// [`Media::contested_max`] contested sectors are combined freely. Of more, the outcomes are: all old, all new, one
    /// sector new, one sector old, and the first few new.
    pub fn cut_by_choice(&mut self, in_flight: Vec<(u64, Data)>, choose: &mut dyn FnMut(usize) -> usize) {
        let ranges = self.expose(in_flight);
        let contested = self.contested().len();
        if contested <= self.contested_max {
            return self.settle(&ranges, &mut |_, n| choose(n + 1));
        }
        let pattern = choose(2 + 3 * contested);
        let mut at = 0;
        self.settle(&ranges, &mut |_, n| {
            let i = at;
            at += 1;
            let new = match pattern {
                0 => false,
                1 => true,
                p if p < 2 + contested => p - 2 == i,
                p if p < 2 + 2 * contested => p - 2 - contested != i,
                p => i < p - 2 - 2 * contested,
            };
            if new { n } else { 0 }
        });
    }

    /// A hash of what the medium holds; equal for equal contents once nothing is volatile.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for (i, _) in self.touched.iter().enumerate().filter(|(_, t)| **t) {
            let chunk = &self.durable[i * CHUNK..((i + 1) * CHUNK).min(self.len)];
            for (at, word) in chunk.as_chunks::<8>().0.iter().enumerate() {
                let word = u64::from_le_bytes(*word);
                // Zeroes do not count: a chunk that was touched and is zero again is like one never touched.
                if word != 0 {
                    hash = (hash ^ word ^ ((i * CHUNK + at) as u64) << 40)
                        .wrapping_mul(0x2545_f491_4f6c_dd1d)
                        .rotate_left(29);
                }
            }
        }
        hash
    }

    /// Damages a sector for good, as wear or radiation would: no write is involved.
    pub fn damage(&mut self, offset: u64, change: impl Fn(&mut [u8])) {
        let at = self.at(offset);
        self.touch(at, SECTOR);
        self.changed.iter_mut().for_each(|changes| changes.add(at, SECTOR));
        change(&mut self.now[at..at + SECTOR]);
        change(&mut self.durable[at..at + SECTOR]);
    }
}

#[cfg(test)]
mod tests;
