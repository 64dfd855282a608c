//! The record of what happened: always as a hash, on demand as lines for a person.

use forebay_block::{DeviceOp, Nanos};
use forebay_engine::Role;

use crate::stamp::{self, Content, SECTOR};

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Round, from 0.
    pub round: usize,
    /// Step within the round.
    pub step: u64,
    /// Virtual time.
    pub now: Nanos,
    /// What happened.
    pub text: String,
    /// Sectors of the volume that it concerns (first, count); empty if it concerns all.
    pub sectors: Vec<(u64, u64)>,
}

/// How much of the history is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// A hash over what happened and in which order.
    #[default]
    Hash,
    /// The hash covers every byte written and read as well.
    HashData,
    /// Lines, too.
    Lines,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    hash: u64,
    detail: Detail,
    /// The lines, if they are wanted.
    pub lines: Vec<Line>,
    /// Round now.
    pub round: usize,
}

impl Trace {
    /// An empty history.
    pub fn new(detail: Detail) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, detail, lines: Vec::new(), round: 0 }
    }

    /// The hash so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    fn mix(&mut self, word: u64) {
        self.hash = (self.hash ^ word).wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(29);
    }

    /// An event: its numbers for the hash, its words for the lines.
    pub fn note(
        &mut self,
        (now, step): (Nanos, u64),
        numbers: &[u64],
        words: impl FnOnce() -> (String, Vec<(u64, u64)>),
    ) {
        self.mix(now.0);
        for n in numbers {
            self.mix(*n);
        }
        if self.detail == Detail::Lines {
            let (text, sectors) = words();
            self.lines.push(Line { round: self.round, step, now, text, sectors });
        }
    }

    /// Data that crossed the wall.
    pub fn data(&mut self, data: &[u8]) {
        if self.detail == Detail::Hash {
            return;
        }
        let (words, rest) = data.as_chunks::<8>();
        for w in words {
            self.mix(u64::from_le_bytes(*w));
        }
        rest.iter().for_each(|b| self.mix(u64::from(*b)));
    }
}

/// A device operation in words, and the sectors of the volume that it concerns.
pub fn describe_op(role: Role, op: &DeviceOp) -> (String, Vec<(u64, u64)>) {
    let sector = SECTOR as u64;
    let own = |offset: u64, len: u64| match role {
        Role::Backing => vec![(offset / sector, len / sector)],
        Role::Cache | Role::Journal => Vec::new(),
    };
    let name = match role {
        Role::Cache => "cache",
        Role::Backing => "backing",
        Role::Journal => "journal",
    };
    match op {
        DeviceOp::Read { offset, len } => (format!("{name} read {offset}+{len}"), own(*offset, *len as u64)),
        DeviceOp::Flush => (format!("{name} flush"), Vec::new()),
        DeviceOp::Commit(commit) => {
            let places = commit.in_place().map(|(offset, len)| (offset / sector, len / sector)).collect();
            let (moves, zeroes) = (commit.moves.len(), commit.zeroes.len());
            (format!("{name} commit {} [{moves} moves, {zeroes} zeroes]", commit.head_offset), places)
        }
        DeviceOp::Zero { offset, len, unmap } => {
            let how = if *unmap { "discard" } else { "zero" };
            (format!("{name} {how} {offset}+{len}"), own(*offset, *len))
        }
        DeviceOp::Write { offset, bufs, durable } => {
            let len = op.write_bytes();
            let durable = if *durable { " durable" } else { "" };
            let flat: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
            let (what, sectors) = describe_data(&flat);
            (format!("{name} write{durable} {offset}+{len} [{what}]"), sectors)
        }
    }
}

/// What lies in the data: runs of stamps as `sector+count:write`, zeroes as `0`, the rest as `meta`.
pub fn describe_data(data: &[u8]) -> (String, Vec<(u64, u64)>) {
    let mut words: Vec<String> = Vec::new();
    let mut sectors: Vec<(u64, u64)> = Vec::new();
    let contents: Vec<Content> = data.chunks(SECTOR).map(stamp::read).collect();
    let mut i = 0;
    while i < contents.len() {
        let same = |k: usize| match (contents[i], contents.get(i + k)) {
            (Content::Stamp { sector, write }, Some(Content::Stamp { sector: s, write: w })) => {
                sector + k as u64 == *s && write == *w
            }
            (a, Some(b)) => a == *b,
            (_, None) => false,
        };
        let count = (1..).find(|k| !same(*k)).unwrap_or(1);
        words.push(match contents[i] {
            Content::Stamp { sector, write } => {
                sectors.push((sector, count as u64));
                format!("{sector}+{count}:w{}", write.0)
            }
            Content::Zero => format!("zero*{count}"),
            Content::Foreign => format!("meta*{count}"),
        });
        i += count;
    }
    (words.join(" "), sectors)
}

/// The lines that concern any of the sectors of `blocks` (4 KiB blocks), as text.
pub fn timeline(lines: &[Line], sectors: &[u64]) -> String {
    let per_block = forebay_block::BLOCK_BYTES / SECTOR as u64;
    let blocks: Vec<u64> = sectors.iter().map(|s| s / per_block).collect();
    let concerned = |line: &Line| {
        line.sectors.is_empty()
            || line.sectors.iter().any(|(first, count)| {
                blocks
                    .iter()
                    .any(|b| first / per_block <= *b && *b <= (first + count.max(&1) - 1) / per_block)
            })
    };
    let mut text = String::new();
    for l in lines.iter().filter(|l| sectors.is_empty() || concerned(l)) {
        let us = l.now.0 / 1000;
        text.push_str(&format!("round {} step {:>5} {us:>9} us  {}\n", l.round, l.step, l.text));
    }
    text
}
