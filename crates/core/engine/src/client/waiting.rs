//! Parts that wait: for blocks that somebody else holds, for room, or for their turn in the order of writes.
//!
//! Invariants:
//! - W1: They stand in the order of their arrival.
//! - W2: No part overtakes another on the same blocks: one that arrives waits if one before it does, and in a [`Round`] those that go on
//!   waiting hold up those behind them.
//!
//! Searches are linear. There are at most [`PARTS_MAX`] parts, as a client's requests are bounded where they are admitted (P7).

use std::collections::VecDeque;

use crate::interface::PartKey;
use crate::locks::BlockRange;

/// Most parts that wait: the host admits 1,024 requests at a time, and none has more than three parts.
pub(crate) const PARTS_MAX: usize = 3 * 1024;

/// Parts that wait, each with its blocks.
#[derive(Default)]
pub(crate) struct Waiting {
    parts: VecDeque<(PartKey, BlockRange)>,
}

/// One look at everybody who waits, in the order of arrival.
#[derive(Default)]
pub(crate) struct Round {
    at: usize,
    /// The blocks of those that go on waiting.
    ahead: Vec<BlockRange>,
}

impl Waiting {
    /// One of them touches these blocks.
    pub(crate) fn overlaps(&self, range: BlockRange) -> bool {
        self.parts.iter().any(|(_, waiting)| waiting.overlaps(range))
    }

    /// The part waits: behind those that arrived before it, ahead of those that arrived after it (W1).
    pub(crate) fn add(&mut self, key: PartKey, range: BlockRange) {
        let at = self.parts.partition_point(|(before, _)| *before < key);
        self.parts.insert(at, (key, range));
        debug_assert!(self.parts.len() <= PARTS_MAX, "requests are bounded");
    }

    /// The next part that may be tried: nobody before it waits for its blocks.
    pub(crate) fn next(&self, round: &mut Round) -> Option<PartKey> {
        while let Some((key, range)) = self.parts.get(round.at).copied() {
            if !round.ahead.iter().any(|ahead| ahead.overlaps(range)) {
                return Some(key);
            }
            round.goes_on_waiting(range);
        }
        None
    }

    /// The part that was tried last has started, or goes on waiting.
    pub(crate) fn tried(&mut self, round: &mut Round, has_started: bool) {
        if has_started {
            self.parts.remove(round.at);
        } else if let Some((_, range)) = self.parts.get(round.at) {
            round.goes_on_waiting(*range);
        }
    }

    /// Takes those out that are `wanted`.
    pub(crate) fn take(&mut self, wanted: impl Fn(PartKey) -> bool) -> Vec<PartKey> {
        let (taken, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.parts).into_iter().partition(|(key, _)| wanted(*key));
        self.parts = kept.into();
        taken.into_iter().map(|(key, _)| key).collect()
    }

    /// Everybody who waits.
    pub(crate) fn iter(&self) -> impl Iterator<Item = PartKey> + '_ {
        self.parts.iter().map(|(key, _)| *key)
    }

    /// Those of `keys` (sorted) that wait, and whoever waits before one of them for the same blocks, or for those of one that does.
    pub(crate) fn in_the_way_of(&self, keys: &[PartKey]) -> Vec<PartKey> {
        let (mut found, mut awaited): (Vec<PartKey>, Vec<BlockRange>) = Default::default();
        for (key, range) in self.parts.iter().rev() {
            if keys.binary_search(key).is_ok() || awaited.iter().any(|a| a.overlaps(*range)) {
                found.push(*key);
                awaited.push(*range);
            }
        }
        found
    }
}

impl Round {
    fn goes_on_waiting(&mut self, range: BlockRange) {
        self.ahead.push(range);
        self.at += 1;
    }
}
