//! What a volume may show: every write stamps its sectors with its number.

use std::collections::BTreeMap;

use forebay_block::{Buf, DeviceOp};

pub const SECTORS: u64 = 128;

/// The numbers on all sectors, 0 for zeroes.
pub type Content = Vec<u64>;

/// A change that was submitted.
#[derive(Clone, Debug)]
struct Change {
    start: u64,
    sectors: u64,
    stamp: u64,
    is_answered: bool,
    /// It is durable itself, or the next thing that was submitted was a flush.
    ends_group: bool,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Oracle {
    base: Content,
    changes: Vec<Change>,
    by_tag: BTreeMap<u64, usize>,
    /// So many changes are durable for sure.
    durable: usize,
    next_stamp: u64,
}

impl Default for Oracle {
    fn default() -> Self {
        Self {
            base: vec![0; SECTORS as usize],
            changes: Vec::new(),
            by_tag: BTreeMap::new(),
            durable: 0,
            next_stamp: 1,
        }
    }
}

pub fn content_of(bytes: &[u8]) -> Content {
    let sector = |sector: &[u8]| {
        let stamp = u64::from_le_bytes(sector[..8].try_into().unwrap());
        assert!(sector.chunks(8).all(|word| word == stamp.to_le_bytes()), "a sector is of one piece");
        stamp
    };
    bytes.chunks(512).map(sector).collect()
}

impl Oracle {
    /// A write, or zeroes, to be submitted.
    pub fn change(&mut self, tag: u64, start: u64, sectors: u64, zero: bool, durable: bool) -> DeviceOp {
        let stamp = if zero { 0 } else { self.next_stamp };
        self.next_stamp += 1;
        self.by_tag.insert(tag, self.changes.len());
        self.changes.push(Change { start, sectors, stamp, is_answered: false, ends_group: durable });
        if zero {
            return DeviceOp::Zero { offset: start * 512, len: sectors * 512, unmap: true };
        }
        let bytes = stamp.to_le_bytes().repeat(sectors as usize * 64);
        DeviceOp::Write { offset: start * 512, bufs: vec![Buf::copy_of(&bytes)], durable }
    }

    /// A flush is submitted; gives what [`Self::flushed`] is to be told.
    pub fn flush(&mut self) -> usize {
        if let Some(last) = self.changes.last_mut() {
            last.ends_group = true;
        }
        self.changes.len()
    }

    /// How many changes there are up to one.
    pub fn upto(&self, tag: u64) -> usize {
        self.by_tag[&tag] + 1
    }

    pub fn answered(&mut self, tag: u64) {
        let index = self.by_tag[&tag];
        self.changes[index].is_answered = true;
    }

    pub fn flushed(&mut self, upto: usize) {
        self.durable = self.durable.max(upto);
    }

    pub fn len(&self) -> usize {
        self.changes.len()
    }

    fn after(&self, changes: usize) -> Content {
        let mut content = self.base.clone();
        for change in &self.changes[..changes] {
            content[change.start as usize..(change.start + change.sectors) as usize].fill(change.stamp);
        }
        content
    }

    /// With all changes.
    pub fn newest(&self) -> Content {
        self.after(self.changes.len())
    }

    /// What a sector may show that is read now: the version as of the last answered change, or a later one.
    pub fn versions(&self, sector: u64) -> Vec<u64> {
        let touches = |change: &Change| (change.start..change.start + change.sectors).contains(&sector);
        let mut versions = vec![self.base[sector as usize]];
        for change in self.changes.iter().filter(|change| touches(change)) {
            if change.is_answered {
                versions.clear();
            }
            versions.push(change.stamp);
        }
        versions
    }

    /// Judges what a crash has left: how many changes are in it. `whole_groups`: each group of changes between two flushes is there wholly or
    /// not at all; else the last change may be there in part.
    pub fn judge(&self, found: &Content, whole_groups: bool) -> Result<usize, String> {
        for upto in (self.durable..=self.changes.len()).rev() {
            let is_end = upto == 0 || self.changes[upto - 1].ends_group;
            if whole_groups && !is_end {
                continue;
            }
            let mut content = self.after(upto);
            if *found == content {
                return Ok(upto);
            }
            if let (false, Some(next)) = (whole_groups, self.changes.get(upto)) {
                for sector in next.start..next.start + next.sectors {
                    let is_new = found[sector as usize] == next.stamp;
                    content[sector as usize] = if is_new { next.stamp } else { content[sector as usize] };
                }
                if *found == content {
                    return Ok(upto);
                }
            }
        }
        let (least, most) = (self.after(self.durable), self.after(self.changes.len()));
        Err(format!(
            "found    {found:?}\ndurable  {least:?} ({})\nnewest   {most:?} ({})",
            self.durable,
            self.changes.len()
        ))
    }

    /// Goes on from what was found.
    pub fn begin_with(&mut self, content: Content) {
        *self = Self { base: content, next_stamp: self.next_stamp, ..Self::default() };
    }
}
