//! What the journal says of itself to the others.

use super::*;

impl Journal {
    /// There is one.
    pub(crate) fn exists(&self) -> bool {
        self.heads.durable().is_some()
    }

    /// The newest record that the backing durably has, with a replay or without one, if it was left consistent.
    pub(crate) fn found(&self) -> Option<Seq> {
        self.heads.durable().filter(|head| head.consistent).map(|head| head.committed.seq)
    }

    /// As [`Journal::found`], with a group that is prepared.
    pub(crate) fn found_prepared(&self) -> Option<Seq> {
        let prepared = self.group.as_ref().map(Group::upto);
        self.found().map(|found| prepared.map_or(found, |prepared| prepared.max(found)))
    }

    /// Everything in records up to this one is in the journal or on the backing.
    pub(crate) fn committed(&self) -> Seq {
        self.committed
    }

    /// Where the group under way ends, or the last one has ended.
    pub(in crate::groups) fn boundary(&self) -> Seq {
        self.group.as_ref().map_or(self.committed, Group::upto)
    }

    /// Nothing of the journal is on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.group.as_ref().is_none_or(Group::is_prepared) && !self.heads.is_writing()
    }

    /// No group is left to be done again.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_idle() && self.group.is_none() && self.ring.is_empty()
    }

    /// Groups are under way or committed that have not been destaged.
    pub(crate) fn groups(&self) -> usize {
        self.ring.len() + usize::from(self.group.is_some())
    }

    /// What is on the medium says that the backing is consistent.
    pub(crate) fn says_consistent(&self) -> bool {
        self.heads.durable_says_consistent() && !self.heads.is_uncertain()
    }

    /// As [`Journal::says_consistent`], as far as is known.
    pub(in crate::groups) fn durable_says_consistent(&self) -> bool {
        self.heads.durable_says_consistent()
    }

    /// The point that a head names which may be on the medium, or 0.
    pub(crate) fn point(&self) -> u64 {
        self.heads.point()
    }

    /// The point at which the group under way ends.
    pub(in crate::groups) fn point_under_way(&self) -> Option<&Point> {
        self.group.as_ref().and_then(Group::point)
    }

    /// A head that may be on the medium speaks of a group that is prepared.
    pub(crate) fn tells_of_prepared(&self) -> bool {
        self.heads.tells_of_prepared()
    }

    /// Whether it may be said that the backing is consistent.
    pub(in crate::groups) fn claims(&self, facts: Facts) -> bool {
        facts.consistent && !self.retired
    }

    /// Attempts in a row that the journal has failed.
    pub(crate) fn failures(&self) -> u32 {
        self.pause.failures()
    }

    /// A group that a replay could write again holds one of the blocks.
    pub(crate) fn holds(&self, range: BlockRange) -> bool {
        let mut under_way = self.group.iter().flat_map(Group::entries);
        let held = self.ring.holds(range) || under_way.any(|entry| range.contains(entry.block));
        held && !self.planted.is(Mutation::JournalForgetsHeld)
    }

    /// A committed group that is not left behind has a newer version of the block than this one.
    pub(crate) fn replaces(&self, map: &Map, block: BlockNo, slot: SlotRef) -> bool {
        let seq = map.segments().seq(slot);
        let Some(current) = map.lookup(block).filter(|current| *current != slot) else {
            return false;
        };
        self.planted.is(Mutation::JournalReplacesEarly)
            || map.segments().seq(current) <= self.committed
            || self.ring.has_newer(block, seq)
    }

    /// Byte offset in the journal where a committed group has this version of a block, which the cache may have lost since.
    pub(crate) fn copy(&self, block: BlockNo, seq: Seq) -> Option<u64> {
        Some(self.heads.durable()?.offset_of(self.ring.copy(block, seq)?))
    }

    /// What is not committed: blocks, about, and the wall-clock time before which everything is; `None` if destaging does not follow
    /// groups, or the head does not say so.
    pub(crate) fn missing(&self, journaled: bool, wall_offset_ns: u64) -> Option<(u64, Option<u64>)> {
        if self.planted.is(Mutation::StalenessUntold) {
            return Some((0, None));
        }
        if !journaled || !self.says_consistent() {
            return None;
        }
        let under_way = self.group.as_ref().map_or(0, |g| g.entries().len() as u64);
        let blocks = self.open.blocks() + under_way;
        let oldest = self.group.as_ref().map(Group::since).or(self.open.since()).filter(|_| blocks > 0);
        Some((blocks, oldest.map(|at| wall_offset_ns.saturating_add(at.0))))
    }

    /// Whether no replay would change the backing, and nobody would take it for consistent. The head follows what the order
    /// claims by itself.
    pub(crate) fn is_renounced(&self) -> bool {
        if !self.exists() {
            return true;
        }
        !self.heads.durable_says_consistent() && !self.heads.is_uncertain() && self.is_empty()
            || self.planted.is(Mutation::JournalForgetsToRenounce)
    }

    /// Nothing of the journal is on its way, and the head says how far the backing has come, or cannot be told.
    pub(crate) fn is_settled(&self, map: &Map, points: &Points, facts: Facts) -> bool {
        let told = || self.with_truth(map, points, facts, |heads, truth| heads.says(truth));
        self.is_idle() && (self.pause.failures() > 0 || told())
    }

    pub(super) fn with_truth<T>(
        &self,
        map: &Map,
        points: &Points,
        facts: Facts,
        ask: impl FnOnce(&Heads, Truth<'_>) -> T,
    ) -> T {
        let planted = self.planted;
        let (claims, ring, group) = (self.claims(facts), &self.ring, self.group.as_ref());
        ask(&self.heads, Truth { facts, claims, map, ring, group, points, planted })
    }

    /// When something is to be done even if no event comes.
    pub(crate) fn next_wake(&self, facts: Facts, points: &Points) -> Option<Nanos> {
        let waits = facts.journaled && self.group.is_none() && self.says_consistent();
        let ends = facts.settings.group_ends == GroupEnds::Anywhere || points.next().is_some();
        let due = self.open.since().filter(|_| waits && ends && self.open.blocks() > 0);
        let due = due.map(|since| since.plus_ms(facts.settings.group_age_ms));
        let times = [due, self.heads.refresh_at(), self.pause.until()];
        times.into_iter().flatten().filter(|at| *at > facts.now).min()
    }
}
