//! What a volume may show: every write stamps its sectors with its number.

use std::collections::BTreeMap;

use forebay_block::{Buf, Commit, DeviceOp, Move};

use crate::random::Random;

pub const SECTORS: u64 = 128;

/// The numbers on all sectors, 0 for zeroes.
pub type Content = Vec<u64>;

/// A change that was submitted.
#[derive(Clone, Debug)]
struct Change {
    /// First sector, how many, and what is on them then.
    parts: Vec<(u64, u64, Put)>,
    /// It is there wholly or not at all.
    is_whole: bool,
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

/// What a change puts on sectors.
#[derive(Clone, Copy, Debug)]
enum Put {
    Stamp(u64),
    /// What is on the sectors from this one on.
    From(u64),
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
        let parts = vec![(start, sectors, Put::Stamp(stamp))];
        self.changes.push(Change { parts, is_whole: false, is_answered: false, ends_group: durable });
        if zero {
            return DeviceOp::Zero { offset: start * 512, len: sectors * 512, unmap: true };
        }
        let bytes = stamp.to_le_bytes().repeat(sectors as usize * 64);
        DeviceOp::Write { offset: start * 512, bufs: vec![Buf::copy_of(&bytes)], durable }
    }

    /// A group to be submitted: some sectors are moved, some zeroed, one is written.
    pub fn group(&mut self, tag: u64, random: &mut Random) -> DeviceOp {
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        self.by_tag.insert(tag, self.changes.len());
        // Sectors in a random order, no two of the same.
        let mut sectors: Vec<u64> = (0..SECTORS / 4).collect();
        for n in (1..sectors.len()).rev() {
            sectors.swap(n, random.below(n as u64 + 1) as usize);
        }
        let mut places = sectors.into_iter().map(|n| n * 4);
        let mut place = || places.next().unwrap();
        let mut parts = Vec::new();
        let (head, zeroed) = (place(), place());
        let moves: Vec<Move> = (0..1 + random.below(4))
            .map(|_| {
                let (from, to, sectors) = (place(), place(), 1 + random.below(4));
                parts.push((to, sectors, Put::From(from)));
                Move { from: from * 512, to: to * 512, len: sectors * 512 }
            })
            .collect();
        parts.extend(moves.iter().map(|moved| (moved.from / 512, moved.len / 512, Put::Stamp(0))));
        parts.push((zeroed, 3, Put::Stamp(0)));
        parts.push((head, 1, Put::Stamp(stamp)));
        self.changes.push(Change { parts, is_whole: true, is_answered: false, ends_group: true });
        DeviceOp::Commit(Box::new(Commit {
            head_offset: head * 512,
            head: Buf::copy_of(&stamp.to_le_bytes().repeat(64)),
            moves,
            zeroes: vec![(zeroed * 512, 3 * 512)],
        }))
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
            change.carry_out(&mut content);
        }
        content
    }

    /// With all changes.
    pub fn newest(&self) -> Content {
        self.after(self.changes.len())
    }

    /// What the sectors may show that are read now: the version as of the last answered change, or a later one.
    pub fn versions(&self, start: u64, sectors: u64) -> Vec<Vec<u64>> {
        let answered = self.changes.iter().rposition(|change| change.is_answered).map_or(0, |last| last + 1);
        let mut content = self.after(answered);
        let range = start as usize..(start + sectors) as usize;
        let mut versions: Vec<Vec<u64>> = content[range.clone()].iter().map(|stamp| vec![*stamp]).collect();
        for change in &self.changes[answered..] {
            change.carry_out(&mut content);
            for (versions, stamp) in versions.iter_mut().zip(&content[range.clone()]) {
                versions.push(*stamp);
            }
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
            if let (false, Some(next)) = (whole_groups, self.changes.get(upto).filter(|next| !next.is_whole))
            {
                let mut newer = content.clone();
                next.carry_out(&mut newer);
                for (sector, newer) in newer.into_iter().enumerate().filter(|(n, newer)| found[*n] == *newer)
                {
                    content[sector] = newer;
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

impl Change {
    fn carry_out(&self, content: &mut Content) {
        let before = content.clone();
        for (start, sectors, put) in &self.parts {
            for n in 0..*sectors {
                content[(start + n) as usize] = match put {
                    Put::Stamp(stamp) => *stamp,
                    Put::From(from) => before[(from + n) as usize],
                };
            }
        }
    }
}
