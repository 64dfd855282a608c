//! Gathering blocks from the log, checked, for whoever writes them elsewhere.
//!
//! Blocks that lie together in the log are read together. A read that fails, or brings a block that does not match its
//! checksum (P5), is repeated block by block, so that one bad block does not hold up its neighbours. What the cache has lost is
//! taken from the journal on the backing's side if a committed group has it, by the same checksum.

use std::collections::BTreeMap;

use forebay_block::{BLOCK_BYTES, Buf, DeviceOp, DeviceResult, Seq};
use forebay_format::checksum::block_checksum;

use crate::backing::destage::RunKey;
use crate::engine::{Engine, IoOwner};
use crate::interface::{Class, Role};
use crate::map::member::{Bad, Member};
use crate::map::segments::SlotRef;
use crate::mutation::Mutation;

/// Names a gathering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GatherKey(u64);

/// Attempts to read a block from the cache; one more goes to the journal.
const ATTEMPTS_MAX: u32 = 3;

/// Who wants the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Run(RunKey),
    /// Of the group under way, from this data block on.
    Group(usize),
}

/// One device read: members `first .. first + count`.
struct GatherRead {
    first: usize,
    count: usize,
    attempt: u32,
    data: Option<Buf>,
}

struct Gather {
    wanted: Wanted,
    members: Vec<Member>,
    reads: Vec<GatherRead>,
    outstanding: u32,
    bad: Vec<Bad>,
}

/// Gatherings under way.
#[derive(Default)]
pub(crate) struct Gathers {
    under_way: BTreeMap<GatherKey, Gather>,
    next: u64,
}

impl Engine {
    pub(crate) fn member(&self, slot: SlotRef) -> Member {
        self.map.member(slot, &self.layout)
    }

    /// Reads the members; their segments are pinned.
    pub(crate) fn gather(&mut self, wanted: Wanted, members: Vec<Member>) {
        self.gathers.next += 1;
        let key = GatherKey(self.gathers.next);
        let mut reads = Vec::new();
        let mut at = 0;
        while at < members.len() {
            let start = members[at];
            let together = |k: usize, m: &Member| {
                m.slot.segment() == start.slot.segment() && m.place == start.place + k as u64 * BLOCK_BYTES
            };
            let count = members[at..].iter().enumerate().take_while(|(k, m)| together(*k, m)).count();
            reads.push(GatherRead { first: at, count, attempt: 1, data: None });
            at += count;
        }
        let count = reads.len();
        let gather = Gather { wanted, members, reads, outstanding: 0, bad: Vec::new() };
        self.gathers.under_way.insert(key, gather);
        for n in 0..count {
            self.gather_issue_read(key, n, None);
        }
    }

    /// Starts read `n`, from the cache or from `journal`, a byte offset there.
    fn gather_issue_read(&mut self, key: GatherKey, n: usize, journal: Option<u64>) {
        let Some(gather) = self.gathers.under_way.get_mut(&key) else {
            return;
        };
        gather.outstanding += 1;
        let read = &gather.reads[n];
        let place = gather.members[read.first].place;
        let len = read.count * BLOCK_BYTES as usize;
        let (role, offset) = journal.map_or((Role::Cache, place), |offset| (Role::Journal, offset));
        let op = DeviceOp::Read { offset, len };
        self.io(role, op, Class::Background, IoOwner::GatherRead(key, n as u32));
    }

    pub(crate) fn gather_read_done(&mut self, key: GatherKey, n: u32, result: DeviceResult) {
        let n = n as usize;
        let Some(gather) = self.gathers.under_way.get_mut(&key) else {
            return;
        };
        gather.outstanding -= 1;
        let GatherRead { first, count, attempt, .. } = gather.reads[n];
        let corrupt = result.is_ok();
        let good = |k: usize, data: &Buf| {
            let m = &gather.members[first + k];
            block_checksum(m.block, m.seq, &data[k * 4096..][..4096]) == m.checksum
                || self.planted.is(Mutation::DestagesUnchecked)
        };
        match result {
            Ok(Some(data)) if (0..count).all(|k| good(k, &data)) => {
                gather.reads[n].data = Some(data);
            }
            _ if count == 1 && attempt >= ATTEMPTS_MAX => {
                let Member { block, slot, seq, .. } = gather.members[first];
                match corrupt {
                    true => self.figures.checksum_failures += 1,
                    false if attempt > ATTEMPTS_MAX => self.figures.backing_errors += 1,
                    false => self.figures.cache_errors += 1,
                }
                self.gather_elsewhere(key, n, Bad { block, slot, corrupt }, seq);
            }
            _ => {
                gather.reads[n].count = 0;
                let begin = gather.reads.len();
                gather.reads.extend((first..first + count).map(|first| GatherRead {
                    first,
                    count: 1,
                    attempt: attempt + 1,
                    data: None,
                }));
                for n in begin..begin + count {
                    self.gather_issue_read(key, n, None);
                }
            }
        }
        if self.gathers.under_way.get(&key).is_some_and(|g| g.outstanding == 0) {
            self.gather_end(key);
        }
    }

    /// The cache does not have the block that this was to read.
    fn gather_elsewhere(&mut self, key: GatherKey, n: usize, bad: Bad, seq: Seq) {
        let copy = self.journal.copy(bad.block, seq);
        let Some(gather) = self.gathers.under_way.get_mut(&key) else { return };
        let GatherRead { first, attempt, .. } = gather.reads[n];
        if copy.is_none() || attempt > ATTEMPTS_MAX {
            gather.bad.push(bad);
            return;
        }
        gather.reads[n].count = 0;
        gather.reads.push(GatherRead { first, count: 1, attempt: ATTEMPTS_MAX + 1, data: None });
        let last = gather.reads.len() - 1;
        self.gather_issue_read(key, last, copy);
    }

    fn gather_end(&mut self, key: GatherKey) {
        let Some(mut gather) = self.gathers.under_way.remove(&key) else {
            return;
        };
        gather.reads.retain(|r| r.count > 0);
        gather.reads.sort_unstable_by_key(|r| r.first);
        let bufs: Vec<Buf> = gather.reads.into_iter().filter_map(|r| r.data).collect();
        let result = if gather.bad.is_empty() { Ok(bufs) } else { Err(gather.bad) };
        match gather.wanted {
            Wanted::Run(run) => self.destage_gathered(run, result),
            Wanted::Group(first) => self.group_gathered(first, result),
        }
    }
}
