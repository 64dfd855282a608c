//! Gatherings: blocks of the log for whoever writes them elsewhere, which are destaging and the journal's groups.
//!
//! A piece that fails, or brings a block that is damaged, is read again block by block, so that one bad block does not hold up
//! its neighbours. What the cache has lost is taken from the journal on the backing's side if a committed group has it, by the same checksum.

use std::collections::BTreeMap;

use forebay_block::{BLOCK_BYTES, Buf, DeviceResult};

use crate::interface::{Role, RunKey};
use crate::map::member::{Bad, Member};
use crate::mutation::Mutation;
use crate::reading::pieces::{Client, Piece, lies_behind};
use crate::reading::{Reading, Step, Told};

/// Names a gathering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GatherKey(u64);

/// Attempts to read a block from the cache; one more goes to the journal.
pub(super) const ATTEMPTS_MAX: u32 = 3;

/// Who wants the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Run(RunKey),
    /// Of the group under way, from this data block on.
    Group(usize),
}

struct Gathering {
    wanted: Wanted,
    outstanding: u32,
    /// What was read, by the first member of each piece.
    found: BTreeMap<usize, Buf>,
    bad: Vec<Bad>,
}

/// Gatherings under way.
#[derive(Default)]
pub(super) struct Gathers {
    under_way: BTreeMap<GatherKey, Gathering>,
    next: u64,
}

impl Reading {
    pub(super) fn begin_gathering(&mut self, wanted: Wanted, members: Vec<Member>, step: &mut Step) {
        self.gathers.next += 1;
        let key = GatherKey(self.gathers.next);
        let gathering = Gathering { wanted, outstanding: 0, found: BTreeMap::new(), bad: Vec::new() };
        self.gathers.under_way.insert(key, gathering);
        let mut at = 0;
        while let Some(start) = members.get(at) {
            let together = |(k, m): &(usize, &Member)| lies_behind(start, *k as u64, m);
            let versions: Vec<Member> =
                members[at..].iter().enumerate().take_while(together).map(|(_, m)| *m).collect();
            let count = versions.len();
            self.gather_piece((key, at), versions, 1, None, step);
            at += count;
        }
    }

    /// Reads versions from where they lie in the cache, or one from this byte offset in the journal.
    fn gather_piece(
        &mut self,
        (key, first): (GatherKey, usize),
        versions: Vec<Member>,
        attempt: u32,
        journal: Option<u64>,
        step: &mut Step,
    ) {
        let Some(gathering) = self.gathers.under_way.get_mut(&key) else {
            return;
        };
        let Some(Member { block, place, .. }) = versions.first().copied() else {
            return;
        };
        gathering.outstanding += 1;
        let (role, offset) = journal.map_or((Role::Cache, place), |offset| (Role::Journal, offset));
        let (client, count) = (Client::Gathering(key, first), versions.len() as u64);
        let piece = Piece { client, first: block, count, versions, attempt };
        self.start(piece, (role, offset, count * BLOCK_BYTES), step);
    }

    pub(super) fn gathering_ended(
        &mut self,
        (key, first): (GatherKey, usize),
        piece: Piece,
        result: DeviceResult,
        elsewhere: Option<u64>,
        step: &mut Step,
    ) {
        let unchecked = self.planted.is(Mutation::DestagesUnchecked);
        let Some(gathering) = self.gathers.under_way.get_mut(&key) else {
            return;
        };
        gathering.outstanding -= 1;
        let corrupt = result.is_ok();
        match result {
            Ok(Some(data)) if piece.damaged(&data, unchecked).is_empty() => {
                gathering.found.insert(first, data);
            }
            _ if piece.is_last_of_gathering() => {
                match corrupt {
                    true => step.seen.checksum_failures += 1,
                    false if piece.attempt > ATTEMPTS_MAX => step.seen.backing_errors += 1,
                    false => step.seen.cache_errors += 1,
                }
                if elsewhere.is_some() && piece.attempt == ATTEMPTS_MAX {
                    self.gather_piece((key, first), piece.versions, ATTEMPTS_MAX + 1, elsewhere, step);
                } else {
                    let bad = piece.versions.iter().map(|m| Bad { block: m.block, slot: m.slot, corrupt });
                    gathering.bad.extend(bad);
                }
            }
            _ => {
                for (k, version) in piece.versions.into_iter().enumerate() {
                    self.gather_piece((key, first + k), vec![version], piece.attempt + 1, None, step);
                }
            }
        }
        if self.gathers.under_way.get(&key).is_some_and(|gathering| gathering.outstanding == 0)
            && let Some(gathering) = self.gathers.under_way.remove(&key)
        {
            let Gathering { wanted, found, bad, .. } = gathering;
            let result = if bad.is_empty() { Ok(found.into_values().collect()) } else { Err(bad) };
            step.told = Some(Told::Gathered(wanted, result));
        }
    }
}
