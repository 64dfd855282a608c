//! The sets of ordered destaging: which versions may go to the backing at the same time, in what form, and when they are done.

use std::collections::VecDeque;

use forebay_block::{BlockNo, Seq};

use crate::backing::destage::{COLLECT_BLOCKS_LEAST, COLLECT_BLOCKS_MAX, wants_destage};
use crate::engine::Engine;
use crate::map::segments::{DIRTY, SlotKind, SlotRef};
use crate::mutation::Mutation;
use crate::wakes::Change;

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

impl Engine {
    /// What is to be destaged next, sorted by address; empty if there is nothing to be done now.
    pub(crate) fn order_collect(&mut self) -> VecDeque<(BlockNo, SlotRef)> {
        loop {
            let Some(set) = self.order.set else {
                self.order_outlives_log();
                let replayed = self.order_is_replayed();
                if !replayed && !self.mutant(Mutation::OrderForgetsProgress) && !self.order_is_recorded() {
                    return VecDeque::new();
                }
                // What goes in any order must not be taken for the work of a consistent run, nor what keeps to barriers
                // only for that of one which counts every acknowledgement.
                if !self.order_is_renounced() {
                    return VecDeque::new();
                }
                match self.order_set_end() {
                    Some(upto) => {
                        let slides = self.order.catch_up.is_none();
                        self.order.set = Some(Set { upto, slides, replayed });
                    }
                    None => return VecDeque::new(),
                }
                continue;
            };
            let slides = set.slides && self.order.catch_up.is_none();
            let members = self.order_members(Set { slides, ..set });
            if !members.is_empty() {
                return members;
            }
            if slides && self.order_slides(set.upto) {
                continue;
            }
            if !self.destage.is_idle() || !self.order_complete(set.upto) {
                return VecDeque::new();
            }
        }
    }

    /// What a committed group covers, its replay repeats.
    pub(crate) fn order_is_replayed(&self) -> bool {
        self.order.journaled && self.order.catch_up.is_none()
    }

    /// Takes in what depends on nothing that is still missing, beyond `upto`; false if there is no such, or if recovery would
    /// not go on from here yet.
    fn order_slides(&mut self, upto: Seq) -> bool {
        let end = self.order_set_end().filter(|end| *end > upto);
        let replayed = self.order_is_replayed();
        let early = replayed || self.mutant(Mutation::OrderForgetsProgress);
        let Some(end) = end.filter(|_| early || self.order_is_recorded()) else { return false };
        if !self.order_is_renounced() {
            return false;
        }
        self.order.set = Some(Set { upto: end, slides: true, replayed });
        true
    }

    /// Where the largest set ends that begins behind `progress` and of whose records none depends on another, or all of which
    /// are in committed groups; `None` if nothing is to be destaged. What is lost for good holds nobody up.
    fn order_set_end(&self) -> Option<Seq> {
        let written = self.log.written_upto();
        // Until the backing is consistent, what was acknowledged before goes in any order.
        let free = self.order.catch_up.map(|c| c.upto.map_or(written, |(upto, _)| upto));
        // What is committed goes in any order, too, and nothing else; as long as something is lost, or the log fails, which will
        // never say how far the backing has come, all of it.
        let (written, free) = match self.order.journaled {
            true if free.is_some() && (self.destage_has_lost() || self.failure.latched()) => {
                (written, Seq(u64::MAX))
            }
            true => (free.unwrap_or(self.journal.committed()), Seq(u64::MAX)),
            // What the journal is to say of a log that fails ends with what it durably has.
            false if self.failure.latched() && self.journal.found().is_some() => {
                (self.log.durable_upto(), free.unwrap_or_default())
            }
            false => (written, free.unwrap_or_default()),
        };
        let enough = if self.room_is_awaited() { COLLECT_BLOCKS_LEAST } else { COLLECT_BLOCKS_MAX };
        let replayed = self.order_is_replayed();
        let (mut set, mut last, mut blocks) = (Independent::default(), Seq(0), 0);
        for (seq, slot) in self.map.segments.dirty_after(self.order.progress) {
            if seq > written {
                break;
            }
            let free = seq <= free || self.mutant(Mutation::OrderIgnoresDependence);
            let full = seq != last && blocks >= enough;
            if full || !(free || set.admits(seq, self.map.segments.distance(slot))) {
                return set.oldest.map(|_| Seq(seq.0 - 1));
            }
            let s = self.map.segments.slot(slot);
            if s.kind() != SlotKind::Poison {
                set.oldest.get_or_insert(seq);
                // Where nothing depends on anything, what is on its way keeps nothing else back.
                blocks += usize::from(!replayed || wants_destage(s));
            }
            last = seq;
        }
        set.oldest.map(|_| written)
    }

    /// The dirty versions of the set: the newest of each block. Older ones are void; in a set that slides only when that one
    /// is on the backing, for what depends on them must not come before, unless a replay would write it. Then they are void as
    /// soon as a committed group holds a newer one, in the set or not.
    fn order_members(&mut self, set: Set) -> VecDeque<(BlockNo, SlotRef)> {
        let Set { upto, slides, replayed } = set;
        let dirty = self.map.segments.dirty_after(self.order.progress).take_while(|(seq, _)| *seq <= upto);
        let mut dirty: Vec<(BlockNo, usize, SlotRef)> =
            dirty.enumerate().map(|(n, (_, r))| (self.map.segments.slot(r).block(), n, r)).collect();
        dirty.sort_unstable_by_key(|(block, n, _)| (*block, *n));
        let mut members = VecDeque::new();
        self.order.voids.clear();
        let mut older = Vec::new();
        for (at, (block, _, slot)) in dirty.iter().enumerate() {
            let newest = dirty.get(at + 1).is_none_or(|(next, ..)| next != block);
            if !newest && slides && !replayed && !self.mutant(Mutation::OrderVoidsEarly) {
                older.push((*slot, self.map.segments.seq(*slot)));
                continue;
            }
            if !older.is_empty() {
                self.order.voids.insert(*block, std::mem::take(&mut older));
            }
            if !newest || replayed && slides && self.destage_may_skip(*block, *slot) {
                self.map.segments.became_clean(*slot);
            } else if wants_destage(self.map.segments.slot(*slot)) {
                members.push_back((*block, *slot));
            }
        }
        members
    }

    /// A version is on the backing, durably: older ones of its set are void. That counts at once even if the set has slid over a
    /// newer one meanwhile, for that one may be lost yet.
    pub(crate) fn order_destaged(&mut self, block: BlockNo, slot: SlotRef, seq: Seq) {
        let Some(mut void) = self.order.voids.remove(&block) else { return };
        let is_older = |(older, of): &(SlotRef, Seq)| (*of, *older) < (seq, slot);
        let kept = void.split_off(void.partition_point(is_older));
        if !kept.is_empty() {
            self.order.voids.insert(block, kept);
        }
        for (slot, seq) in void {
            // It may be gone by now, and its slot in use anew.
            let holds = self.map.segments.holds(slot) && self.map.segments.slot(slot).has(DIRTY);
            if holds && self.map.segments.seq(slot) == seq {
                self.map.segments.became_clean(slot);
            }
        }
    }

    /// How the backing takes this plan: a few stretches durably, each for itself, so that what depends on them need not wait for a
    /// flush.
    pub(crate) fn order_writes_durably(&self, plan: &VecDeque<(BlockNo, SlotRef)>) -> bool {
        let follows = |(a, b): &(&(BlockNo, _), &(BlockNo, _))| a.0.plus(1) == b.0;
        let joints = plan.iter().zip(plan.iter().skip(1)).filter(follows).count();
        self.order.set.is_some_and(|set| set.slides && !set.replayed)
            && plan.len() - joints <= DURABLE_RUNS_MAX
    }

    /// Nothing of the set is on its way any more; true if all of it is on the backing.
    pub(super) fn order_complete(&mut self, upto: Seq) -> bool {
        let left: Vec<SlotRef> = self
            .map
            .segments
            .dirty_after(self.order.progress)
            .take_while(|(seq, _)| *seq <= upto)
            .map(|(_, slot)| slot)
            .collect();
        let lost = |e: &Self, slot: SlotRef| {
            let s = e.map.segments.slot(slot);
            s.kind() == SlotKind::Poison || e.destage.is_corrupt(s.block(), slot)
        };
        let is_void = |slot: &SlotRef| self.order.voids.values().flatten().any(|(void, _)| void == slot);
        if left.iter().any(|slot| !lost(self, *slot) && !is_void(slot)) {
            return false;
        }
        if !left.is_empty() {
            self.order_catch_up();
            // What is lost stands for its older versions, too.
            let (left, void): (Vec<_>, Vec<_>) = left.into_iter().partition(|slot| lost(self, *slot));
            void.into_iter().for_each(|slot| self.map.segments.became_clean(slot));
            if !self.failure.latched() {
                // The marks of what is lost move to the log's head, out of the set's way.
                self.move_poison(left.into_iter());
                return false;
            }
        }
        self.order.voids.clear();
        self.order.progress = upto;
        self.order_pins_log();
        self.order.set = None;
        self.wakes.raise(Change::Progress);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// The paper's graph (FAST'13, section 3.1), built as its text says: a link from each completed write to each write that
    /// is issued later.
    #[derive(Default)]
    struct Graph {
        completed: Vec<usize>,
        predecessors: Vec<Vec<usize>>,
    }

    impl Graph {
        fn issue(&mut self) {
            self.predecessors.push(self.completed.clone());
        }

        fn complete(&mut self, write: usize) {
            self.completed.push(write);
        }

        /// Writes of which no predecessor is left.
        fn ready(&self, left: &BTreeSet<usize>) -> BTreeSet<usize> {
            let free = |w: &&usize| self.predecessors[**w].iter().all(|p| !left.contains(p));
            left.iter().filter(free).copied().collect()
        }

        fn bytes(&self) -> usize {
            self.predecessors.iter().map(|p| size_of::<usize>() * p.len() + size_of::<Vec<usize>>()).sum()
        }
    }

    /// What the engine keeps: of each record, in the order of the log, one number.
    #[derive(Default)]
    struct Distances {
        acknowledged: u64,
        distances: Vec<u16>,
    }

    impl Distances {
        fn issue(&mut self) {
            let seq = Seq(self.distances.len() as u64 + 1);
            self.distances.push(crate::log::Log::distance(seq, Seq(self.acknowledged)));
        }

        /// The set that begins with record `first`, as a number of records.
        fn set(&self, first: usize) -> usize {
            self.set_of(first..self.distances.len()).count()
        }

        /// The first of these records of which none depends on another.
        fn set_of(&self, left: impl Iterator<Item = usize>) -> impl Iterator<Item = usize> {
            let mut set = Independent::default();
            left.take_while(move |n| {
                let seq = Seq(*n as u64 + 1);
                let admitted = set.admits(seq, self.distances[*n]);
                set.oldest.get_or_insert(seq);
                admitted
            })
        }
    }

    /// Writes that enter the log in the order of their issue, each with a record of its own, and are acknowledged in that
    /// order: true is an issue, false an acknowledgement.
    fn history(issues: Vec<bool>) -> (Graph, Distances) {
        let (mut graph, mut ours) = (Graph::default(), Distances::default());
        for issue in issues {
            if issue {
                graph.issue();
                ours.issue();
            } else if (ours.acknowledged as usize) < ours.distances.len() {
                graph.complete(ours.acknowledged as usize);
                ours.acknowledged += 1;
            }
        }
        (graph, ours)
    }

    proptest! {
        /// The sets are the maximal ones of the paper's graph, one after the other.
        #[test]
        fn sets_are_those_of_the_graph(issues in proptest::collection::vec(any::<bool>(), 1..200)) {
            let (graph, ours) = history(issues);
            let mut left: BTreeSet<usize> = (0..ours.distances.len()).collect();
            let mut first = 0;
            while !left.is_empty() {
                let count = ours.set(first);
                prop_assert!(count > 0);
                let set: BTreeSet<usize> = (first..first + count).collect();
                prop_assert_eq!(&set, &graph.ready(&left));
                left.retain(|w| !set.contains(w));
                first += count;
            }
        }
    }

    proptest! {
        /// Whichever of a set's writes ends next: it slides over what the graph allows then, and over nothing else.
        #[test]
        fn a_set_slides_as_the_graph_allows(
            issues in proptest::collection::vec(any::<bool>(), 1..200),
            ends in proptest::collection::vec(any::<prop::sample::Index>(), 200),
        ) {
            let (graph, ours) = history(issues);
            let mut left: BTreeSet<usize> = (0..ours.distances.len()).collect();
            for end in ends.iter().take(left.len()) {
                let set: Vec<usize> = ours.set_of(left.iter().copied()).collect();
                prop_assert_eq!(&set, &graph.ready(&left).into_iter().collect::<Vec<_>>());
                left.remove(&set[end.index(set.len())]);
            }
            prop_assert!(left.is_empty());
        }
    }

    /// Memory and work against the graph, at a depth of 16 and with 2,000 writes that have not been destaged.
    #[test]
    fn costs_less_than_the_graph() {
        const WRITES: usize = 2000;
        const DEPTH: usize = 16;
        let (mut graph, mut ours) = (Graph::default(), Distances::default());
        for n in 0..WRITES {
            graph.issue();
            ours.issue();
            if n >= DEPTH {
                graph.complete(n - DEPTH);
            }
            ours.acknowledged = (n + 1).saturating_sub(DEPTH) as u64;
        }
        let links: usize = graph.predecessors.iter().map(Vec::len).sum();
        let (mut first, mut comparisons) = (0, 0);
        while first < WRITES {
            let set = ours.set(first);
            comparisons += set + 1;
            first += set;
        }
        let bytes = (graph.bytes() / WRITES, size_of::<u16>());
        println!(
            "a write: {} bytes and {} links in the graph; {} bytes and {:.1} comparisons here",
            bytes.0,
            links / WRITES,
            bytes.1,
            comparisons as f64 / WRITES as f64
        );
        assert!(comparisons < 2 * WRITES && links > 100 * WRITES);
        assert!(bytes.0 > 100 * bytes.1);
    }
}
