//! The journal of a recorded run under `journaled`: what a replay would make of the backing at every instant.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;

use forebay_format::journal::{Group, Head, JOURNAL_RING_OFFSET};

use crate::stamp::{Found, SECTOR_BYTES};

/// Sectors of a block.
const BLOCK_SECTORS: u64 = 4096 / SECTOR_BYTES as u64;

/// A group that a head has committed.
pub struct Committed {
    /// Position behind it.
    end: u64,
    /// What it holds of each sector.
    pub sectors: HashMap<u64, Found>,
}

/// A write to the journal that has begun.
struct Pending {
    offset: u64,
    len: u64,
    ended: bool,
    durable: bool,
    /// The head that it writes, and the groups that only this one commits.
    head: Option<(Head, Vec<Committed>)>,
}

/// What follows for the judge.
#[derive(Default)]
pub struct Effects {
    /// Sectors that a replay writes from now on.
    pub may_show: Vec<(u64, Found)>,
    /// Sectors of which it is to be worked out anew what is surely there.
    pub changed: Vec<u64>,
    /// What must not happen, in words.
    pub wrong: Option<String>,
}

/// See the module's documentation.
#[derive(Default)]
pub struct Ring {
    bytes: Vec<u8>,
    head: Option<Head>,
    /// Groups that every head that may be there says are committed, oldest first.
    live: VecDeque<Committed>,
    pending: BTreeMap<u64, Pending>,
    flushes: HashMap<u64, Vec<u64>>,
}

impl Ring {
    /// What a replay surely makes of the sector; `None` if it leaves it alone.
    pub fn covers(&self, sector: u64) -> Option<&Found> {
        self.live.iter().rev().find_map(|group| group.sectors.get(&sector))
    }

    /// A write begins.
    ///
    /// # Errors
    /// A head or group that cannot be read.
    pub fn begin(&mut self, op: u64, offset: u64, durable: bool, data: &[u8]) -> io::Result<Effects> {
        let mut effects = Effects::default();
        let end = offset as usize + data.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        let mut head = None;
        // A start writes what is there once more, to see that there is room.
        let changes = self.bytes[offset as usize..end] != *data;
        if offset < JOURNAL_RING_OFFSET && changes {
            let new =
                Head::decode(data).map_err(|e| io::Error::other(format!("a head of the journal: {e}")))?;
            let groups = self.committed_by(&new, &mut effects)?;
            let gone = self.live.iter().take_while(|group| group.end <= new.tail).count();
            for group in self.live.drain(..gone) {
                effects.changed.extend(group.sectors.into_keys());
            }
            head = Some((new, groups));
        } else if let Some(now) = self.head.as_ref().filter(|_| offset >= JOURNAL_RING_OFFSET) {
            let hit = |at: u64| (now.tail..now.head).any(|p| p % 4096 == 0 && now.offset_of(p) == at);
            if (offset..end as u64).step_by(4096).any(hit) && !self.live.is_empty() {
                effects.wrong =
                    Some(format!("the journal is overwritten at {offset} while a replay needs it"));
            }
        }
        self.bytes[offset as usize..end].copy_from_slice(data);
        self.pending.insert(op, Pending { offset, len: data.len() as u64, ended: false, durable, head });
        Ok(effects)
    }

    /// The groups that a head commits and the one before it did not.
    fn committed_by(&self, new: &Head, effects: &mut Effects) -> io::Result<Vec<Committed>> {
        let mut position = self.head.as_ref().map_or(new.tail, |head| head.head.max(new.tail));
        let mut groups = Vec::new();
        while position < new.head {
            let read = |from: u64, len: u64| -> Vec<u8> {
                (from..from + len)
                    .step_by(4096)
                    .flat_map(|p| {
                        let at = new.offset_of(p) as usize;
                        self.bytes.get(at..at + 4096).unwrap_or(&[0; 4096]).to_vec()
                    })
                    .collect()
            };
            let bad =
                |e: forebay_format::FormatError| io::Error::other(format!("a group of the journal: {e}"));
            let len = Group::descriptor_bytes_of(&read(position, 4096)).map_err(bad)?;
            let group = Group::decode(&read(position, len)).map_err(bad)?;
            let data = read(position + len, group.data_bytes());
            let mut blocks = data.chunks_exact(4096);
            let mut sectors = HashMap::new();
            for entry in &group.entries {
                let block = if entry.zero { None } else { blocks.next() };
                for n in 0..BLOCK_SECTORS {
                    let bytes = block.map(|b| &b[n as usize * SECTOR_BYTES..][..SECTOR_BYTES]);
                    sectors
                        .insert(entry.block.0 * BLOCK_SECTORS + n, bytes.map_or(Found::Zeroes, Found::look));
                }
            }
            let unsettled = |p: &Pending| {
                (position..position + group.bytes()).step_by(4096).any(|at| {
                    let at = new.offset_of(at);
                    p.offset < at + 4096 && at < p.offset + p.len
                })
            };
            if self.pending.values().any(unsettled) {
                effects.wrong =
                    Some(format!("group {} is committed before it is durable", group.moment.group));
            }
            position += group.bytes();
            groups.push(Committed { end: position, sectors });
        }
        Ok(groups)
    }

    /// A flush begins.
    pub fn flush(&mut self, op: u64) {
        let covered = self.pending.iter().filter(|(_, p)| p.ended).map(|(op, _)| *op).collect();
        self.flushes.insert(op, covered);
    }

    /// An operation has ended.
    pub fn end(&mut self, op: u64, done: bool) -> Effects {
        let mut effects = Effects::default();
        if let Some(covered) = self.flushes.remove(&op) {
            covered.into_iter().filter(|_| done).for_each(|op| _ = self.pending.remove(&op));
            return effects;
        }
        let Some(pending) = self.pending.get_mut(&op) else { return effects };
        pending.ended = done;
        if done
            && pending.durable
            && let Some(Pending { head: Some((head, groups)), .. }) = self.pending.remove(&op)
        {
            // The head lies in one sector: all of it is there, or nothing.
            effects.may_show = groups.iter().flat_map(|g| g.sectors.iter().map(|(s, f)| (*s, *f))).collect();
            effects.changed.extend(groups.iter().flat_map(|g| g.sectors.keys().copied()));
            self.live.extend(groups);
            self.head = Some(head);
        }
        effects
    }
}
