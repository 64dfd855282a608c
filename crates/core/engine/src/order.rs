//! The policy `ordered`: the backing alone is consistent at every instant (P4; FAST'13, section 3.1).
//!
//! A write depends on another exactly if that one was acknowledged before it was issued (or, with `order = barrier`,
//! covered by a flush that was acknowledged before). The log acknowledges its records in their order. So one number
//! for each record says everything: the newest record that one of its writes depends on. A record may be destaged
//! as soon as that number is below the oldest record that has not been; no graph, no links. The records that may go at
//! the same time follow each other in the log: they are a *set*.
//!
//! ```text
//!  log:  ── on the backing ──┤ set in flight: newest version of each block, sorted, merged ├── later ──►
//!                         progress                                                     set's end
//!        set written ─► backing flushed ─► progress = set's end ─► a durable record says so ─► next set
//! ```
//!
//! - Versions that were overwritten stay in the log, dirty, until their set has been destaged; within a set the newest
//!   version of a block stands for all: none of them depends on another.
//! - Progress is durable in the log before the next set starts (hazard 3): recovery repeats only the set in flight.
//!   Nothing leaves the log before its set is complete.
//! - A bypass is a member of the same order (`docs/design/promises.md`, Admission): it goes to the backing when everything that it depends
//!   on is there and recorded, and is acknowledged when it is durable there.
//! - When the policy is chosen, or after acknowledged data was lost, the backing is not consistent yet: what was
//!   acknowledged until then goes in any order, with a flush at its end ([`CatchUp`]). `docs/design/consistency.md` has the argument.
//!
//! 1. `progress` never falls, and nothing behind it is void: recovery goes on from there.
//! 2. A set is in flight, or nothing is; the next one begins when a durable record says how far the last one has come.
//! 3. It never calls the backing consistent while it catches up.
//! 4. It knows the log and the journal by [`Facts`] alone, and asks for no device operation.

use forebay_block::{Nanos, Seq};
use forebay_format::record::Consistent;
use forebay_policy::{Order as Dependence, Settings, WritePolicy};

use crate::interface::PartKey;
use crate::locks::BlockRange;
use crate::map::Map;
use crate::map::segments::{DIRTY, SlotKind, SlotRef, UNREADABLE};
use crate::mutation::{Mutation, Planted};

use self::catch_up::CatchUp;
use self::pace::Pace;
use self::sets::Set;
use self::turns::Turns;
use self::voids::Voids;

pub(crate) use self::catch_up::Flushes;
pub(crate) use self::pace::{Fill, Pacing};
pub(crate) use self::sets::Ended;
pub(crate) use self::turns::{Asking, Turn};

mod catch_up;
mod pace;
mod sets;
#[cfg(test)]
mod tests;
mod turns;
mod voids;

/// What the order has to know of the others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Facts {
    /// The log's last record that is acknowledged.
    pub(crate) written: Seq,
    /// Its last one that survives a power cut.
    pub(crate) durable: Seq,
    /// What it durably says is clean.
    pub(crate) clean: Seq,
    /// It has failed.
    pub(crate) latched: bool,
    /// What the journal durably says the backing has; `None` if there is none, or it says that the backing is not consistent.
    pub(crate) found: Option<Seq>,
    /// Committed groups end here.
    pub(crate) committed: Seq,
    /// The last part of a request that has come.
    pub(crate) newest_part: PartKey,
    /// Nothing is on its way to the backing.
    pub(crate) idle: bool,
}

/// What a change of settings means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Followed {
    /// Nothing of the order has changed, or it will when the journal is empty.
    As,
    /// Groups begin, or end, and the order stays.
    Groups,
    /// An order begins; [`Order::turn`] is to follow.
    Begins,
    /// It ends; [`Order::turn`] is to follow.
    Ends,
}

/// State of ordered destaging.
#[derive(Default)]
pub(crate) struct Order {
    /// The policy keeps an order.
    active: bool,
    /// What comes after what; records before a change may be less ordered than this.
    by: Dependence,
    /// It is `journaled`: any stretch of the log may go that a committed group covers.
    journaled: bool,
    /// The policy is to change as soon as no group is left in the journal.
    leaving: bool,
    /// Everything in records up to this one is on the backing, durably, or void.
    progress: Seq,
    /// The set in flight.
    set: Option<Set>,
    voids: Voids,
    catch_up: CatchUp,
    /// Records up to this one are covered by a flush that was acknowledged.
    barrier: Seq,
    /// Groups of the last run may be left in a journal that this one has not.
    journal_left: bool,
    pace: Pace,
    turns: Turns,
    planted: Planted,
}

impl Order {
    pub(crate) fn new(settings: &Settings, journal: bool, journal_left: bool) -> Self {
        let (active, journaled, by) = Self::wanted(settings, journal);
        Self { active, journaled, by, journal_left, ..Self::default() }
    }

    #[cfg(feature = "mutations")]
    pub(crate) fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }

    /// Whether the policy keeps an order, whether by groups, and which. Without a journal `journaled` is as good as
    /// `ordered`; with one it keeps the order of acknowledgement, whatever is asked for.
    fn wanted(settings: &Settings, journal: bool) -> (bool, bool, Dependence) {
        match settings.write_policy {
            WritePolicy::Journaled if journal => (true, true, Dependence::Completion),
            WritePolicy::Journaled | WritePolicy::Ordered => (true, false, settings.order),
            _ => (false, false, settings.order),
        }
    }

    // What it says.

    /// Destaging follows the groups of the journal.
    pub(crate) fn is_journaled(&self) -> bool {
        self.journaled
    }

    /// What the backing lacks has to reach it as it is: nothing that comes later can stand for it.
    pub(crate) fn lacks_for_good(&self) -> bool {
        let coalesces = self.by == Dependence::Barrier && self.progress >= self.barrier;
        self.is_consistent() && !self.journaled && !coalesces
    }

    /// No new group is begun.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Overwritten versions stay dirty until they have been destaged.
    pub(crate) fn keeps_versions(&self) -> bool {
        self.active
    }

    /// The backing alone is consistent, though stale.
    pub(crate) fn is_consistent(&self) -> bool {
        self.active && !self.catch_up.is_under_way()
    }

    /// It is not yet, and is to be: no point can be declared before that.
    pub(crate) fn is_catching_up(&self) -> bool {
        self.active && self.catch_up.is_under_way()
    }

    /// How consistent it is, for the log to say.
    pub(crate) fn consistent(&self) -> Consistent {
        match (self.is_consistent(), self.by) {
            (false, _) => Consistent::No,
            (true, Dependence::Barrier) => Consistent::Barriers,
            (true, Dependence::Completion) => Consistent::Completion,
        }
    }

    /// Records up to this one need not be destaged again after a crash; `None` if the policy has no order.
    pub(crate) fn progress(&self) -> Option<Seq> {
        self.active.then_some(self.progress)
    }

    /// Not everything in records up to `upto` is on the backing.
    pub(crate) fn lags(&self, upto: Seq) -> bool {
        self.progress < upto
    }

    /// The newest record that a write depends on which is issued now, when `written` is acknowledged.
    pub(crate) fn dependence(&self, written: Seq) -> Seq {
        match self.by {
            Dependence::Completion => written,
            Dependence::Barrier => self.barrier,
        }
    }

    /// A bypass waits until more is on the backing.
    pub(crate) fn bypass_waits(&self) -> bool {
        self.turns.first().is_some()
    }

    /// Writers wait until destaging has gone on.
    pub(crate) fn is_pacing(&self) -> bool {
        self.pace.waits()
    }

    /// Recovery would go on behind this record. A log that fails cannot say so: the journal does, or nobody.
    pub(crate) fn recorded(&self, facts: Facts) -> Seq {
        let recorded = match (facts.latched, facts.found) {
            (false, _) => facts.clean,
            (true, Some(found)) if !self.planted.is(Mutation::OrderRecordsNowhere) => found,
            (true, _) => Seq(u64::MAX),
        };
        recorded.min(self.progress)
    }

    // What it hears of the policy, and of the start.

    /// The volume begins to serve: the log's records up to `progress` are on the backing, or those up to what was `found` in the
    /// journal. Up to which they are.
    pub(crate) fn begin(&mut self, map: &mut Map, progress: Seq, found: Option<Seq>) -> Seq {
        self.progress = progress;
        if let Some(found) = found.filter(|found| *found > progress && self.active) {
            let known = map.segments().dirty_after(Seq(0)).take_while(|(seq, _)| *seq <= found);
            let known: Vec<SlotRef> = known.map(|(_, slot)| slot).collect();
            known.into_iter().for_each(|slot| map.cleaned(slot));
            self.progress = found;
        }
        self.progress
    }

    /// The backing was `kept` so consistent until now, by the log; by the journal, if there is one, it is if that `says` so.
    pub(crate) fn trust(&mut self, map: &mut Map, facts: Facts, kept: Consistent, says: Option<bool>) {
        let told = says.unwrap_or(!self.journal_left);
        let kept = if told { kept } else { Consistent::No };
        // What a crash may have cut short comes before all that follows, as if a flush had been acknowledged.
        self.barrier = facts.written;
        let trusts = kept > Consistent::No && self.planted.is(Mutation::OrderTrustsWeaker);
        // Recovery has met what was lost.
        let broken = self.catch_up.is_under_way();
        if (broken || kept < self.consistent()) && !trusts {
            // Versions of which a bypass has made all void, and others that nobody needs any more.
            Self::drop_versions(map);
            self.catch_up(facts.newest_part);
        }
    }

    /// The settings have changed, or what kept the policy from changing may be over: whether there is a journal, and whether no group
    /// is left in it.
    pub(crate) fn follow(
        &mut self,
        settings: &Settings,
        journal: bool,
        empty: bool,
        facts: Facts,
    ) -> Followed {
        let (active, journaled, order) = Self::wanted(settings, journal);
        self.leaving = self.journaled && !journaled && !empty;
        if self.leaving {
            return Followed::As;
        }
        let by = std::mem::replace(&mut self.by, order);
        // What counted for nothing between barriers has been destaged in any order, and what is left may be.
        let stricter = by == Dependence::Barrier && order == Dependence::Completion;
        if self.active == active && active && stricter && !self.planted.is(Mutation::OrderTrustsWeaker) {
            self.catch_up(facts.newest_part);
        }
        match (self.active == active, std::mem::replace(&mut self.journaled, journaled) == journaled) {
            (true, true) => Followed::As,
            (true, false) => Followed::Groups,
            (false, _) if active => Followed::Begins,
            (false, _) => Followed::Ends,
        }
    }

    /// An order begins, with records up to `clean` on the backing, or ends if there is none.
    pub(crate) fn turn(&mut self, clean: Option<Seq>) -> Seq {
        self.active = clean.is_some();
        self.progress = clean.unwrap_or(self.progress);
        self.pace = Pace::default();
        self.set = None;
        self.voids.clear();
        self.catch_up.forget();
        self.progress
    }

    /// Versions that were overwritten are of no use under a policy without order.
    pub(crate) fn drop_versions(map: &mut Map) {
        let dirty: Vec<SlotRef> = map.segments().dirty_after(Seq(0)).map(|(_, slot)| slot).collect();
        for slot in dirty {
            if map.lookup(map.segments().slot(slot).block()) != Some(slot) {
                map.cleaned(slot);
            }
        }
    }

    /// The policy is chosen, or data that was acknowledged will never be on the backing, so that its order cannot be kept: from now on
    /// the backing is consistent again when all that is acknowledged now is on it, and parts up to this one have ended.
    pub(crate) fn catch_up(&mut self, newest_part: PartKey) {
        if self.active && !self.planted.is(Mutation::OrderClaimsTooEarly) {
            self.catch_up.begin(newest_part);
        }
    }

    // What it hears of writes.

    /// A flush was acknowledged that covers records up to `seq`.
    pub(crate) fn flushed(&mut self, seq: Seq) {
        self.barrier = self.barrier.max(seq);
    }

    /// A record is formed whose writes depend on records up to `after`.
    pub(crate) fn formed(&mut self, seq: Seq, after: Seq) {
        if self.is_consistent() && !self.journaled {
            self.pace.formed(seq, after);
        }
    }

    /// Whether writers wait now until destaging has gone on; see [`Pace::step`].
    pub(crate) fn paces(&mut self, fill: Fill, queues_after: impl FnOnce(Seq) -> bool) -> Pacing {
        let works = fill.works && self.is_consistent() && !self.journaled;
        let (fill, waits) = (Fill { works, ..fill }, self.bypass_waits());
        self.pace.step(self.progress, waits, fill, queues_after, self.planted)
    }

    /// A version was overwritten; true if it has to be destaged all the same. While the log is `recovering`, parts of this run have yet
    /// to come.
    pub(crate) fn keeps(&mut self, map: &Map, slot: SlotRef, recovering: bool, newest_part: PartKey) -> bool {
        let s = *map.segments().slot(slot);
        let keeps = self.active && s.has(DIRTY);
        if keeps && (s.kind() == SlotKind::Poison || s.has(UNREADABLE)) {
            // What replaces it is not on the backing yet.
            if !self.planted.is(Mutation::OrderForgetsLost) {
                self.catch_up(newest_part);
            }
            return false;
        }
        let forgets = recovering && self.planted.is(Mutation::OrderRecoversNewest);
        keeps && !forgets && !self.planted.is(Mutation::OrderDropsVersions)
    }

    // The turn of bypasses.

    /// Whether a bypass of `range` may go to the backing now: all that it depends on is there, and recovery would not repeat it
    /// (hazard 3). `own` are the current versions of its blocks: one that is on its way counts, too. `held` says whether a replay of
    /// the journal could write them again, `supersedes` whether a record has to say that older ones in the log are void.
    pub(crate) fn turn_of(
        &self,
        map: &Map,
        asking: Asking,
        range: BlockRange,
        mut own: impl Iterator<Item = SlotRef>,
        held: impl Fn() -> bool,
        supersedes: impl Fn() -> bool,
    ) -> Turn {
        let Asking { after, recorded, committed, latched } = asking;
        let is_through = |slot: SlotRef| {
            let (s, seq) = (map.segments().slot(slot), map.segments().seq(slot));
            !s.has(DIRTY) || s.kind() == SlotKind::Poison && recorded >= Seq(seq.0 - 1)
        };
        // A supersede record would void the newest version only: older ones of its blocks must be recorded, too.
        let committed = self.journaled && !self.catch_up.is_under_way() && committed >= after;
        let now = (recorded >= after || committed)
            && !held()
            && (latched || !supersedes() || self.planted.is(Mutation::OrderSupersedesNewest))
            && own.all(is_through);
        match now {
            true => Turn::Now,
            false if self.gives_up_on(map, range) => Turn::GivesUp,
            false => Turn::Waits,
        }
    }

    /// The mark of what is lost stays in the log, and progress before it; the order is broken as long as it does, and a
    /// bypass waits only for older versions of its own blocks.
    fn gives_up_on(&self, map: &Map, range: BlockRange) -> bool {
        if !self.catch_up.is_under_way() || map.segments().lost() == 0 {
            return false;
        }
        let theirs = |(_, slot): (Seq, SlotRef)| {
            let s = map.segments().slot(slot);
            s.kind() != SlotKind::Poison && range.contains(s.block())
        };
        !map.segments().dirty_after(Seq(0)).any(theirs)
    }

    /// A bypass waits for records up to `upto` to be recorded as destaged, beyond those up to `recorded`.
    pub(crate) fn bypass_has_to_wait(&mut self, upto: Seq, recorded: Seq) {
        self.turns.note(upto, recorded);
    }

    /// All bypasses ask for their turn anew.
    pub(crate) fn forget_bypass_waits(&mut self) {
        self.turns.forget();
    }

    /// Somebody waits for a record that says how far the backing has come, which is far enough.
    pub(crate) fn bypass_wants_record(&self, facts: Facts) -> bool {
        self.turns.first().is_some_and(|after| after > facts.clean && after <= self.progress)
    }

    // How it goes on.

    /// Up to here everything is on the backing, by the map.
    fn there(&self, map: &Map, facts: Facts) -> Seq {
        let first = map.segments().dirty_after(self.progress).next();
        first.map_or(facts.written, |(seq, _)| Seq(seq.0 - 1))
    }

    /// The set in flight may have ended: nothing of it is dirty, and nothing is on its way.
    pub(crate) fn may_end(&self, map: &Map, facts: Facts) -> bool {
        self.set.is_some_and(|set| self.there(map, facts) >= set.upto && facts.idle)
    }

    /// Goes on where nothing is to be destaged; true if a set that slides has come further.
    pub(crate) fn slide_on(&mut self, map: &Map, facts: Facts) -> bool {
        let Some(set) = self.set else { return false };
        let upto = self.there(map, facts).min(set.upto);
        let further = set.slides && upto > self.progress;
        if further {
            self.progress = upto;
        }
        further
    }

    /// No set is in flight: what is clean counts at once.
    pub(crate) fn rest(&mut self, map: &Map, facts: Facts) {
        if self.set.is_none() {
            self.progress = self.progress.max(self.there(map, facts));
        }
    }

    /// Notices that the backing has become consistent; true if it is to be flushed for that. `has_parts` says whether parts up to that
    /// one are under way.
    pub(crate) fn catch_up_step(
        &mut self,
        map: &Map,
        facts: Facts,
        flushes: Flushes,
        now: Nanos,
        has_parts: impl Fn(PartKey) -> bool,
    ) -> bool {
        let (set, progress) = (self.set.is_none(), self.progress);
        let is_there = |upto| {
            map.segments().dirty_after(Seq(0)).next().is_none_or(|(seq, _)| seq > upto)
                && progress >= upto
                && (!self.journaled || set && progress <= facts.durable)
                && map.segments().lost() == 0
                && !self.planted.is(Mutation::OrderNeverCaughtUp)
        };
        self.catch_up.step(facts.written, flushes, now, has_parts, is_there)
    }

    /// The log fails, and its last records may be gone after a crash: their sets go in any order, once the journal does not
    /// call the backing consistent any more.
    pub(crate) fn outlives_log(&mut self, facts: Facts) {
        let all = facts.latched && facts.found.is_some() && self.progress >= facts.durable;
        if all && !self.catch_up.is_under_way() {
            self.catch_up(facts.newest_part);
        }
    }

    /// When something is to be done even if no event comes.
    pub(crate) fn next_wake(&self, now: Nanos) -> Option<Nanos> {
        [self.catch_up.next_wake(now), self.pace.next_wake(now)].into_iter().flatten().min()
    }
}
