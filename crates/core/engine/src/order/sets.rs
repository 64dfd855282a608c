//! The sets of ordered destaging: which versions may go to the backing at the same time, in what form, and when they are done.

use std::collections::VecDeque;

use forebay_block::{BlockNo, Seq};

use crate::map::Map;
use crate::map::segments::{SlotKind, SlotRef};
use crate::mutation::Mutation;

use super::{Facts, Order};

/// Most stretches of blocks that are collected at once and written durably, in place of a flush after them.
const DURABLE_RUNS_MAX: usize = 64;

/// Records that follow each other in the log and of which none depends on another.
#[derive(Default)]
struct Independent {
    oldest: Option<Seq>,
}

impl Independent {
    /// Whether the record, so far behind the newest one that it depends on, depends on none of these.
    fn admits(&self, seq: Seq, distance: u16) -> bool {
        let after = Seq(seq.0.saturating_sub(u64::from(distance.max(1))));
        self.oldest.is_none_or(|oldest| after < oldest)
    }
}

/// Records that are destaged at the same time.
#[derive(Clone, Copy)]
pub(super) struct Set {
    /// The last one.
    pub(super) upto: Seq,
    /// It takes in more as its oldest records reach the backing.
    pub(super) slides: bool,
    /// Committed groups hold all of it: whatever a crash leaves undone, their replay does.
    pub(super) replayed: bool,
}

/// What has become of a set of which nothing is on its way any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Some of it has to be destaged yet.
    NotYet,
    /// All of it is on the backing but these versions, which are lost for good: their marks move to the log's head, out of the set's way.
    Lost(Vec<SlotRef>),
    /// All of it is on the backing.
    Complete,
}

impl Order {
    /// Where the set in flight ends.
    pub(crate) fn set_upto(&self) -> Option<Seq> {
        self.set.map(|set| set.upto)
    }

    /// The set in flight takes in more.
    fn slides(&self) -> bool {
        self.set.is_some_and(|set| set.slides) && !self.catch_up.is_under_way()
    }

    /// What a committed group covers, its replay repeats.
    pub(crate) fn is_replayed(&self) -> bool {
        self.journaled && !self.catch_up.is_under_way()
    }

    /// The next set ends here; it is `replayed` if committed groups held all of it when it was chosen.
    pub(crate) fn begin_set(&mut self, upto: Seq, replayed: bool) {
        self.set = Some(Set { upto, slides: !self.catch_up.is_under_way(), replayed });
    }

    /// Where the set in flight would end if it slid over what depends on nothing that is still missing; `None` if it takes in nothing
    /// more.
    pub(crate) fn slides_to(&self, map: &Map, facts: Facts, enough: usize) -> Option<Seq> {
        let upto = self.set_upto().filter(|_| self.slides())?;
        self.set_end(map, facts, enough).filter(|end| *end > upto)
    }

    /// The set in flight slides.
    pub(crate) fn slide(&mut self, upto: Seq, replayed: bool) {
        self.set = Some(Set { upto, slides: true, replayed });
    }

    /// Where the largest set ends that begins behind `progress` and of whose records none depends on another, or all of which
    /// are in committed groups; `None` if nothing is to be destaged. What is lost for good holds nobody up. A set has `enough` blocks
    /// and no record more.
    pub(crate) fn set_end(&self, map: &Map, facts: Facts, enough: usize) -> Option<Seq> {
        let written = facts.written;
        // Until the backing is consistent, what was acknowledged before goes in any order.
        let free = self.catch_up.upto(written);
        // What is committed goes in any order, too, and nothing else; as long as something is lost, or the log fails, which will
        // never say how far the backing has come, all of it.
        let (written, free) = match self.journaled {
            true if free.is_some() && (map.segments().lost() > 0 || facts.latched) => {
                (written, Seq(u64::MAX))
            }
            true => (free.unwrap_or(facts.committed), Seq(u64::MAX)),
            // What the journal is to say of a log that fails ends with what it durably has.
            false if facts.latched && facts.found.is_some() => (facts.durable, free.unwrap_or_default()),
            false => (written, free.unwrap_or_default()),
        };
        let replayed = self.is_replayed();
        let (mut set, mut last, mut blocks) = (Independent::default(), Seq(0), 0);
        for (seq, slot) in map.segments().dirty_after(self.progress) {
            if seq > written {
                break;
            }
            let free = seq <= free || self.planted.is(Mutation::OrderIgnoresDependence);
            let full = seq != last && blocks >= enough;
            if full || !(free || set.admits(seq, map.segments().distance(slot))) {
                return set.oldest.map(|_| Seq(seq.0 - 1));
            }
            let s = map.segments().slot(slot);
            if s.kind() != SlotKind::Poison {
                set.oldest.get_or_insert(seq);
                // Where nothing depends on anything, what is on its way keeps nothing else back.
                blocks += usize::from(!replayed || s.wants_destage());
            }
            last = seq;
        }
        set.oldest.map(|_| written)
    }

    /// The dirty versions of the set in flight: the newest of each block. Older ones are void; in a set that slides only when that one
    /// is on the backing, for what depends on them must not come before, unless a replay would write it. Then they are void as
    /// soon as a committed group holds a newer one, in the set or not, and `may_skip` says so.
    pub(crate) fn members(
        &mut self,
        map: &mut Map,
        may_skip: impl Fn(&Map, BlockNo, SlotRef) -> bool,
    ) -> VecDeque<(BlockNo, SlotRef)> {
        let Some(Set { upto, replayed, .. }) = self.set else { return VecDeque::new() };
        let slides = self.slides();
        let dirty = map.segments().dirty_after(self.progress).take_while(|(seq, _)| *seq <= upto);
        let mut dirty: Vec<(BlockNo, usize, SlotRef)> =
            dirty.enumerate().map(|(n, (_, r))| (map.segments().slot(r).block(), n, r)).collect();
        dirty.sort_unstable_by_key(|(block, n, _)| (*block, *n));
        let mut members = VecDeque::new();
        self.voids.clear();
        let mut older = Vec::new();
        for (at, (block, _, slot)) in dirty.iter().enumerate() {
            let newest = dirty.get(at + 1).is_none_or(|(next, ..)| next != block);
            if !newest && slides && !replayed && !self.planted.is(Mutation::OrderVoidsEarly) {
                older.push((*slot, map.segments().seq(*slot)));
                continue;
            }
            if !older.is_empty() {
                self.voids.wait(*block, std::mem::take(&mut older));
            }
            if !newest || replayed && slides && may_skip(map, *block, *slot) {
                map.cleaned(*slot);
            } else if map.segments().slot(*slot).wants_destage() {
                members.push_back((*block, *slot));
            }
        }
        members
    }

    /// A version is on the backing, durably.
    pub(crate) fn destaged(&mut self, map: &mut Map, block: BlockNo, slot: SlotRef, seq: Seq) {
        self.voids.destaged(map, block, slot, seq);
    }

    /// How the backing takes this plan: a few stretches durably, each for itself, so that what depends on them need not wait for a
    /// flush.
    pub(crate) fn writes_durably(&self, plan: &VecDeque<(BlockNo, SlotRef)>) -> bool {
        let follows = |(a, b): &(&(BlockNo, _), &(BlockNo, _))| a.0.plus(1) == b.0;
        let joints = plan.iter().zip(plan.iter().skip(1)).filter(follows).count();
        self.set.is_some_and(|set| set.slides && !set.replayed) && plan.len() - joints <= DURABLE_RUNS_MAX
    }

    /// Nothing of the set in flight is on its way any more. `is_lost` says which versions will never be on the backing; what is lost
    /// stands for its older versions, too.
    pub(crate) fn end_set(
        &mut self,
        map: &mut Map,
        facts: Facts,
        is_lost: impl Fn(&Map, SlotRef) -> bool,
    ) -> Ended {
        let Some(Set { upto, .. }) = self.set else { return Ended::NotYet };
        let left = map.segments().dirty_after(self.progress).take_while(|(seq, _)| *seq <= upto);
        let left: Vec<SlotRef> = left.map(|(_, slot)| slot).collect();
        if left.iter().any(|slot| !is_lost(map, *slot) && !self.voids.has(*slot)) {
            return Ended::NotYet;
        }
        if !left.is_empty() {
            self.catch_up(facts.newest_part);
            let (left, void): (Vec<_>, Vec<_>) = left.into_iter().partition(|slot| is_lost(map, *slot));
            void.into_iter().for_each(|slot| map.cleaned(slot));
            if !facts.latched {
                return Ended::Lost(left);
            }
        }
        self.voids.clear();
        self.progress = upto;
        self.set = None;
        Ended::Complete
    }
}

#[cfg(test)]
mod tests;
