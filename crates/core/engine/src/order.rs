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
//! - A bypass is a member of the same order (design, section 6): it goes to the backing when everything that it depends
//!   on is there and recorded, and is acknowledged when it is durable there.
//! - When the policy is chosen, or after acknowledged data was lost, the backing is not consistent yet: what was
//!   acknowledged until then goes in any order, with a flush at its end ([`CatchUp`]). `docs/design/consistency.md` has the argument.

use std::collections::BTreeMap;

use forebay_block::{BlockNo, Nanos, Seq};
use forebay_format::record::Consistent;
use forebay_policy::{Order as Dependence, Settings, WritePolicy};

use crate::client::locks::BlockRange;
use crate::client::requests::PartKey;
use crate::engine::{Engine, Life};
use crate::map::segments::{DIRTY, SlotKind, SlotRef, UNREADABLE};
use crate::mutation::Mutation;
use crate::wakes::Change;

use self::pace::Pace;
use self::sets::Set;

mod pace;
mod sets;

/// Pause before a backing that has just failed to flush is asked again.
const FLUSH_RETRY_MS: u64 = 1000;

/// What has to be on the backing before it is consistent.
#[derive(Clone, Copy, Debug)]
struct CatchUp {
    /// Writes up to this one came before; bypasses among them did not wait for their turn.
    parts: PartKey,
    /// Once these have ended: the log's last record, and the flush that covers them.
    upto: Option<(Seq, u64)>,
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
    /// Versions in the set of whose blocks it holds newer ones, with their records, oldest first. Each is void as soon as a newer one
    /// is on the backing, and counts as missing until then.
    voids: BTreeMap<BlockNo, Vec<(SlotRef, Seq)>>,
    catch_up: Option<CatchUp>,
    /// Records up to this one are covered by a flush that was acknowledged.
    barrier: Seq,
    /// When the flush that the catch-up waits for is tried again.
    flush_again: Option<Nanos>,
    /// Groups of the last run may be left in a journal that this one has not.
    journal_left: bool,
    pace: Pace,
    /// Bypasses wait for their turn, the first of them until records up to this one are on the backing.
    bypass_waits: Option<Seq>,
}

impl Order {
    pub(crate) fn new(settings: &Settings, journal: bool, journal_left: bool) -> Self {
        let (active, journaled, by) = Self::wanted(settings, journal);
        Self { active, journaled, by, journal_left, ..Self::default() }
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
        self.active && self.catch_up.is_none()
    }

    /// It is not yet, and is to be: no point can be declared before that.
    pub(crate) fn is_catching_up(&self) -> bool {
        self.active && self.catch_up.is_some()
    }

    /// How consistent it is, for the log to say.
    pub(crate) fn consistent(&self) -> Consistent {
        match (self.is_consistent(), self.by) {
            (false, _) => Consistent::No,
            (true, Dependence::Barrier) => Consistent::Barriers,
            (true, Dependence::Completion) => Consistent::Completion,
        }
    }

    /// A flush was acknowledged that covers records up to `seq`.
    pub(crate) fn flushed(&mut self, seq: Seq) {
        self.barrier = self.barrier.max(seq);
    }

    /// A bypass waits until more is on the backing.
    pub(crate) fn bypass_waits(&self) -> bool {
        self.bypass_waits.is_some()
    }

    pub(crate) fn forget_bypass_waits(&mut self) {
        self.bypass_waits = None;
    }

    /// A bypass waits for records up to `upto` to be recorded as destaged, beyond those up to `recorded`, if it is not
    /// `allowed`.
    fn note_bypass(&mut self, upto: Seq, recorded: Seq, allowed: bool) {
        if !allowed {
            let first = self.bypass_waits.filter(|first| *first > recorded && upto > recorded);
            self.bypass_waits = match (first, self.bypass_waits) {
                (Some(first), _) => Some(first.min(upto)),
                (None, Some(waits)) if upto <= recorded => Some(waits),
                _ => Some(upto),
            };
        }
    }
}

impl Engine {
    /// The volume begins to serve: the log's records up to `progress` are on the backing, which was `kept` so
    /// consistent until now.
    pub(crate) fn order_begin(&mut self, progress: Seq, kept: Consistent) {
        let progress = match self.journal.found() {
            Some(found) if found > progress && self.order.active => {
                self.journal_clean_upto(found);
                found
            }
            _ => progress,
        };
        let told = self.journal.says_consistent() || !self.journal.exists() && !self.order.journal_left;
        let kept = if told { kept } else { Consistent::No };
        self.order.progress = progress;
        self.order_pins_log();
        self.journal_begin(progress);
        // What a crash may have cut short comes before all that follows, as if a flush had been acknowledged.
        self.order.barrier = self.log.written_upto();
        let trusts = kept > Consistent::No && self.mutant(Mutation::OrderTrustsWeaker);
        // Recovery has met what was lost.
        let broken = self.order.catch_up.is_some();
        if (broken || kept < self.order.consistent()) && !trusts {
            // Versions of which a bypass has made all void, and others that nobody needs any more.
            self.order_drop_versions();
            self.order_catch_up();
        }
    }

    /// The settings have changed, or what kept the policy from changing may be over.
    pub(crate) fn order_follow_policy(&mut self) {
        let (active, journaled, order) = Order::wanted(&self.settings, self.journal.exists());
        let before = (self.order.active, self.order.journaled);
        self.order.leaving = before.1 && !journaled && !self.journal.is_empty();
        if self.order.leaving {
            return;
        }
        let by = std::mem::replace(&mut self.order.by, order);
        // What counted for nothing between barriers has been destaged in any order, and what is left may be.
        let stricter = by == Dependence::Barrier && order == Dependence::Completion;
        if before.0 == active && active && stricter && !self.mutant(Mutation::OrderTrustsWeaker) {
            self.order_catch_up();
        }
        if before == (active, journaled) {
            return;
        }
        self.order.journaled = journaled;
        if before.0 == active {
            self.journal_begin(self.order.progress);
            return self.destage_plan_anew();
        }
        if active {
            self.log_work_out_clean();
            self.order.progress = self.log.clean_upto();
        }
        self.order.active = active;
        self.order_pins_log();
        self.order.pace = Pace::default();
        self.journal_begin(self.order.progress);
        self.order.set = None;
        self.order.voids.clear();
        self.order.catch_up = None;
        if active {
            self.order_catch_up();
        } else {
            self.order_drop_versions();
            self.wakes.raise(Change::Policy);
        }
        self.destage_plan_anew();
    }

    /// Versions that were overwritten are of no use under a policy without order.
    pub(crate) fn order_drop_versions(&mut self) {
        let dirty: Vec<SlotRef> = self.map.segments.dirty_after(Seq(0)).map(|(_, slot)| slot).collect();
        for slot in dirty {
            if self.map.index.get(self.map.segments.slot(slot).block(), &self.map.segments) != Some(slot) {
                self.map.segments.became_clean(slot);
            }
        }
    }

    /// The policy is chosen, or data that was acknowledged will never be on the backing, so that its order cannot be kept: from now on
    /// the backing is consistent again when all that is acknowledged now is on it.
    pub(crate) fn order_catch_up(&mut self) {
        if self.order.active && !self.mutant(Mutation::OrderClaimsTooEarly) {
            let parts = self.requests.newest_part();
            self.order.catch_up = Some(CatchUp { parts, upto: None });
        }
    }

    /// The newest record that a write depends on which is issued now.
    pub(crate) fn order_dependence(&self) -> Seq {
        match self.order.by {
            Dependence::Completion => self.log.written_upto(),
            Dependence::Barrier => self.order.barrier,
        }
    }

    /// Whether a bypass of `range` that depends on records up to `after` may go to the backing now: all of that is there,
    /// and recovery would not repeat it (hazard 3). A version of its own blocks that is on its way counts, too.
    pub(crate) fn order_allows(&mut self, part: PartKey, after: Seq, range: BlockRange) -> bool {
        if !self.order.active {
            let allowed = self.order_is_renounced();
            self.order.note_bypass(after, Seq(0), allowed);
            return allowed;
        }
        if self.mutant(Mutation::OrderForgetsBypass) {
            return true;
        }
        let recorded = self.order_recorded();
        let own = |slot: SlotRef| {
            let (s, seq) = (self.map.segments.slot(slot), self.map.segments.seq(slot));
            !s.has(DIRTY) || s.kind() == SlotKind::Poison && recorded >= Seq(seq.0 - 1)
        };
        // A supersede record would void the newest version only: older ones of its blocks must be recorded, too.
        let committed =
            self.order.journaled && self.order.catch_up.is_none() && self.journal.committed() >= after;
        let in_turn = (recorded >= after || committed)
            && !self.journal_holds(range)
            && (self.failure.latched()
                || !self.needs_supersede(range)
                || self.mutant(Mutation::OrderSupersedesNewest))
            && self.current_in(range).all(own);
        let gives_up = !in_turn && self.order_gives_up_on(range);
        let allowed = (in_turn || gives_up) && self.order_is_renounced() && self.points_allow(part);
        if allowed && gives_up {
            // It overtakes what was acknowledged before, and may take away the last mark of a lost block.
            self.order_catch_up();
        }
        let newest = self.current_in(range).map(|slot| self.map.segments.seq(slot)).max().unwrap_or_default();
        let newest = newest.max(self.drops.recalled_upto(range));
        self.order.note_bypass(after.max(newest), self.log.durable_clean_upto(), allowed);
        allowed
    }

    /// The mark of what is lost stays in the log, and progress before it; the order is broken as long as it does, and a
    /// bypass waits only for older versions of its own blocks.
    fn order_gives_up_on(&mut self, range: BlockRange) -> bool {
        if self.order.catch_up.is_none() || !self.destage_has_lost() {
            return false;
        }
        let theirs = |(_, slot): (Seq, SlotRef)| {
            let s = self.map.segments.slot(slot);
            s.kind() != SlotKind::Poison && range.contains(s.block())
        };
        !self.map.segments.dirty_after(Seq(0)).any(theirs)
    }

    /// Records up to this one need not be destaged again after a crash; `None` if the policy has no order.
    pub(crate) fn order_progress(&self) -> Option<Seq> {
        self.order.active.then_some(self.order.progress)
    }

    /// Not everything in records up to `upto` is on the backing.
    pub(crate) fn order_lags(&self, upto: Seq) -> bool {
        self.order.progress < upto
    }

    /// Goes on where nothing is to be destaged, and notices that the backing has become consistent.
    pub(crate) fn order_step(&mut self) {
        if self.order.leaving {
            self.order_follow_policy();
        }
        if !self.order.active {
            return;
        }
        let there = |e: &Self| {
            let first = e.map.segments.dirty_after(e.order.progress).next();
            first.map_or(e.log.written_upto(), |(seq, _)| Seq(seq.0 - 1))
        };
        if let Some(set) = self.order.set {
            let upto = there(self);
            if upto >= set.upto && self.destage.is_idle() {
                self.order_complete(set.upto);
            } else if set.slides && upto.min(set.upto) > self.order.progress {
                self.order.progress = upto.min(set.upto);
                self.order_pins_log();
                self.wakes.raise(Change::Progress);
            }
        }
        if self.order.set.is_none() {
            self.order.progress = self.order.progress.max(there(self));
            self.order_pins_log();
        }
        if let Some(after) = self.order.bypass_waits {
            if after > self.log.durable_clean_upto() && after <= self.order.progress {
                self.order_is_recorded();
            }
            self.journal.hurry();
            self.wakes.raise(Change::Turn);
        }
        let Some(catch_up) = self.order.catch_up else { return };
        if self.order.journaled {
            // Of what is not durable in the log the next start knows nothing: no head may speak of it.
            self.log_want_durable(self.order.progress.min(self.log.written_upto()));
        }
        match catch_up.upto {
            None if !self.requests.has_upto(catch_up.parts) => {
                let upto = Some((self.log.written_upto(), self.drops.flush_epoch_wanted()));
                self.order.catch_up = Some(CatchUp { upto, ..catch_up });
                self.backing_flush_if_wanted();
            }
            Some((upto, epoch))
                if self.drops.flush_epoch_done() >= epoch
                    && self.map.segments.dirty_after(Seq(0)).next().is_none_or(|(seq, _)| seq > upto)
                    && self.order.progress >= upto
                    && (!self.order.journaled
                        || self.order.set.is_none() && self.order.progress <= self.log.durable_upto())
                    && !self.destage_has_lost()
                    && !self.mutant(Mutation::OrderNeverCaughtUp) =>
            {
                self.order.catch_up = None;
            }
            Some((_, epoch)) if self.drops.flush_epoch_done() < epoch && self.drops.is_idle() => {
                self.order_flush_again();
            }
            _ => {}
        }
    }

    /// The flush that the catch-up waits for has failed, or was not its own; a backing that fails is asked now and then.
    fn order_flush_again(&mut self) {
        let failing = !self.drops.flush_is_worth_trying();
        let at = *self.order.flush_again.get_or_insert(match failing {
            true => self.now.plus_ms(FLUSH_RETRY_MS),
            false => self.now,
        });
        if at <= self.now {
            self.order.flush_again = None;
            self.backing_flush_if_wanted();
        }
    }

    pub(crate) fn order_next_wake(&self) -> Option<Nanos> {
        let flush = self.order.flush_again.filter(|at| *at > self.now);
        [flush, self.pace_next_wake()].into_iter().flatten().min()
    }

    /// Recovery would go on behind this record. A log that fails cannot say so: the journal does, or nobody.
    fn order_recorded(&self) -> Seq {
        let recorded = match (self.failure.latched(), self.journal.found()) {
            (false, _) => self.log.durable_clean_upto(),
            (true, Some(found)) if !self.mutant(Mutation::OrderRecordsNowhere) => found,
            (true, _) => Seq(u64::MAX),
        };
        recorded.min(self.order.progress)
    }

    /// Whether recovery would go on from here; sees to it that it will, where that is worth a record.
    fn order_is_recorded(&mut self) -> bool {
        let progress = self.order.progress;
        let recorded = self.order_recorded() >= progress;
        if !recorded && (self.destage.presses() || self.order.bypass_waits()) {
            match self.log.claim_of_clean(progress) {
                _ if self.failure.latched() => {
                    self.journal.hurry();
                    self.journal_step();
                }
                Some(seq) => self.log_want_durable(seq),
                None => self.log_tick(true),
            }
        }
        recorded
    }

    /// The log fails, and its last records may be gone after a crash: their sets go in any order, once the journal does not
    /// call the backing consistent any more.
    fn order_outlives_log(&mut self) {
        let last = self.log.durable_upto();
        if self.failure.latched() && self.journal.found().is_some() && self.order.progress >= last {
            self.order.catch_up.is_none().then(|| self.order_catch_up());
        }
    }

    /// Whether recovery would not take the backing for more consistent than it is kept now; sees to it that it will not.
    /// Nothing may be changed there before.
    pub(crate) fn order_is_renounced(&mut self) -> bool {
        // As long as it is consistent, the groups of the journal are part of it.
        let journal = match self.order.is_consistent() {
            // Only what groups hold leaves it at a point.
            true => self.order.journaled || self.points_are_renounced(),
            false => self.journal_is_renounced(),
        };
        let (said, last) = (self.log.said_more_than(self.order.consistent()), self.log.last_seq());
        let renounced = said == Seq(0) || self.log.durable_upto() > said || self.failure.latched();
        if !renounced {
            match last > said {
                true => self.log_want_durable(last),
                false => self.log_tick(true),
            }
        }
        renounced && journal || self.mutant(Mutation::OrderForgetsToRenounce)
    }

    /// A version was overwritten; true if it has to be destaged all the same.
    pub(crate) fn order_keeps(&mut self, slot: SlotRef) -> bool {
        let s = *self.map.segments.slot(slot);
        let keeps = self.order.active && s.has(DIRTY);
        if keeps && (s.kind() == SlotKind::Poison || s.has(UNREADABLE)) {
            // What replaces it is not on the backing yet.
            if !self.mutant(Mutation::OrderForgetsLost) {
                self.order_catch_up();
            }
            return false;
        }
        let forgets = self.life == Life::Recovering && self.mutant(Mutation::OrderRecoversNewest);
        keeps && !forgets && !self.mutant(Mutation::OrderDropsVersions)
    }
}
