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

use std::collections::{BTreeMap, VecDeque};

use forebay_block::{BlockNo, Nanos, Seq};
use forebay_format::record::Consistent;
use forebay_policy::{Order as Dependence, Settings, WritePolicy};

use crate::destage::{COLLECT_BLOCKS_HURRIED, COLLECT_BLOCKS_MAX, wants_destage};
use crate::engine::{Engine, Life};
use crate::locks::BlockRange;
use crate::mutation::Mutation;
use crate::requests::PartKey;
use crate::segments::{DIRTY, SlotKind, SlotRef, UNREADABLE};

/// Most blocks that are collected at once and written durably, in place of a flush after them.
const DURABLE_BLOCKS_MAX: usize = 64;
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
struct Set {
    /// The last one.
    upto: Seq,
    /// It takes in more as its oldest records reach the backing.
    slides: bool,
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
    /// Versions in the set of whose blocks it holds newer ones, with their records, by the newest. They are void as soon as that one
    /// is on the backing, and count as missing until then.
    voids: BTreeMap<SlotRef, Vec<(SlotRef, Seq)>>,
    catch_up: Option<CatchUp>,
    /// Records up to this one are covered by a flush that was acknowledged.
    barrier: Seq,
    /// When the flush that the catch-up waits for is tried again.
    flush_again: Option<Nanos>,
    /// Bypasses wait for their turn, the first of them until records up to this one are on the backing.
    bypass_waits: Option<Seq>,
}

impl Order {
    pub(crate) fn new(settings: &Settings, journal: bool) -> Self {
        let (active, journaled, by) = Self::wanted(settings, journal);
        Self { active, journaled, by, ..Self::default() }
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
        let told = self.journal.says_consistent() || !self.journal.exists();
        let kept = if told { kept } else { Consistent::No };
        self.order.progress = progress;
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
        self.journal_begin(self.order.progress);
        self.order.set = None;
        self.order.voids.clear();
        self.order.catch_up = None;
        if active {
            self.order_catch_up();
        } else {
            self.order_drop_versions();
            self.requests.retry = true;
        }
        self.destage_plan_anew();
    }

    /// Versions that were overwritten are of no use under a policy without order.
    fn order_drop_versions(&mut self) {
        let dirty: Vec<SlotRef> = self.segments.dirty_after(Seq(0)).map(|(_, slot)| slot).collect();
        for slot in dirty {
            if self.index.get(self.segments.slot(slot).block(), &self.segments) != Some(slot) {
                self.segments.became_clean(slot);
            }
        }
    }

    /// From now on the backing is consistent again when all that is acknowledged now is on it.
    pub(crate) fn order_catch_up(&mut self) {
        if self.order.active && !self.mutant(Mutation::OrderClaimsTooEarly) {
            let parts = self.requests.newest_part();
            self.order.catch_up = Some(CatchUp { parts, upto: None });
        }
    }

    /// Data that was acknowledged will never be on the backing: its order cannot be kept.
    pub(crate) fn order_broken(&mut self) {
        self.order_catch_up();
    }

    /// The newest record that a write depends on which is issued now.
    pub(crate) fn order_dependence(&self) -> Seq {
        match self.order.by {
            Dependence::Completion => self.log.written_upto(),
            Dependence::Barrier => self.order.barrier,
        }
    }

    /// What a record is to say of its dependence on `after`.
    pub(crate) fn order_distance(seq: Seq, after: Seq) -> u16 {
        u16::try_from(seq.0.saturating_sub(after.0)).unwrap_or(u16::MAX).max(1)
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
            let (s, seq) = (self.segments.slot(slot), self.segments.seq(slot));
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
            self.order_broken();
        }
        let newest = self.current_in(range).map(|slot| self.segments.seq(slot)).max().unwrap_or_default();
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
            let s = self.segments.slot(slot);
            s.kind() != SlotKind::Poison && range.contains(s.block())
        };
        !self.segments.dirty_after(Seq(0)).any(theirs)
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
            let first = e.segments.dirty_after(e.order.progress).next();
            first.map_or(e.log.written_upto(), |(seq, _)| Seq(seq.0 - 1))
        };
        if let Some(set) = self.order.set {
            let upto = there(self);
            if upto >= set.upto && self.destage.is_idle() {
                self.order_complete(set.upto);
            } else if set.slides && upto.min(set.upto) > self.order.progress {
                self.order.progress = upto.min(set.upto);
                self.requests.retry = true;
            }
        }
        if self.order.set.is_none() {
            self.order.progress = self.order.progress.max(there(self));
        }
        if let Some(after) = self.order.bypass_waits {
            if after > self.log.durable_clean_upto() && after <= self.order.progress {
                self.order_is_recorded();
            }
            self.journal.hurry();
            self.requests.retry = true;
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
                    && self.segments.dirty_after(Seq(0)).next().is_none_or(|(seq, _)| seq > upto)
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
        self.order.flush_again.filter(|at| *at > self.now)
    }

    /// What is to be destaged next, sorted by address; empty if there is nothing to be done now.
    pub(crate) fn order_collect(&mut self) -> VecDeque<(BlockNo, SlotRef)> {
        loop {
            let Some(Set { upto, slides }) = self.order.set else {
                self.order_outlives_log();
                // What a committed group covers, its replay repeats.
                let replayed = self.order.journaled && self.order.catch_up.is_none();
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
                        let slides = !self.order.journaled && self.order.catch_up.is_none();
                        self.order.set = Some(Set { upto, slides });
                    }
                    None => return VecDeque::new(),
                }
                continue;
            };
            let slides = slides && self.order.catch_up.is_none();
            let members = self.order_members(upto, slides);
            if !members.is_empty() {
                return members;
            }
            if slides && self.order_slides(upto) {
                continue;
            }
            if !self.destage.is_idle() || !self.order_complete(upto) {
                return VecDeque::new();
            }
        }
    }

    /// Takes in what depends on nothing that is still missing, beyond `upto`; false if there is no such, or if recovery would
    /// not go on from here yet.
    fn order_slides(&mut self, upto: Seq) -> bool {
        let end = self.order_set_end().filter(|end| *end > upto);
        let early = self.mutant(Mutation::OrderForgetsProgress);
        let Some(end) = end.filter(|_| early || self.order_is_recorded()) else { return false };
        if !self.order_is_renounced() {
            return false;
        }
        self.order.set = Some(Set { upto: end, slides: true });
        true
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

    /// Whether recovery would go on from here; sees to it that it will.
    fn order_is_recorded(&mut self) -> bool {
        let progress = self.order.progress;
        let recorded = self.order_recorded() >= progress;
        if !recorded {
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
        let enough = if self.log.waits_for_room() { COLLECT_BLOCKS_HURRIED } else { COLLECT_BLOCKS_MAX };
        let (mut set, mut last, mut blocks) = (Independent::default(), Seq(0), 0);
        for (seq, slot) in self.segments.dirty_after(self.order.progress) {
            if seq > written {
                break;
            }
            let free = seq <= free || self.mutant(Mutation::OrderIgnoresDependence);
            let full = seq != last && blocks >= enough;
            if full || !(free || set.admits(seq, self.segments.distance(slot))) {
                return set.oldest.map(|_| Seq(seq.0 - 1));
            }
            if self.segments.slot(slot).kind() != SlotKind::Poison {
                set.oldest.get_or_insert(seq);
                blocks += 1;
            }
            last = seq;
        }
        set.oldest.map(|_| written)
    }

    /// The dirty versions of the set that ends with `upto`: the newest of each block. Older ones are void; in a set that slides
    /// only when that one is on the backing, for what depends on them must not come before.
    fn order_members(&mut self, upto: Seq, slides: bool) -> VecDeque<(BlockNo, SlotRef)> {
        let dirty = self.segments.dirty_after(self.order.progress).take_while(|(seq, _)| *seq <= upto);
        let mut dirty: Vec<(BlockNo, usize, SlotRef)> =
            dirty.enumerate().map(|(n, (_, r))| (self.segments.slot(r).block(), n, r)).collect();
        dirty.sort_unstable_by_key(|(block, n, _)| (*block, *n));
        let mut members = VecDeque::new();
        self.order.voids.clear();
        let mut older = Vec::new();
        for (at, (block, _, slot)) in dirty.iter().enumerate() {
            let newest = dirty.get(at + 1).is_none_or(|(next, ..)| next != block);
            if !newest && slides && !self.mutant(Mutation::OrderVoidsEarly) {
                older.push((*slot, self.segments.seq(*slot)));
                continue;
            }
            if !older.is_empty() {
                self.order.voids.insert(*slot, std::mem::take(&mut older));
            }
            if !newest {
                self.segments.became_clean(*slot);
            } else if wants_destage(self.segments.slot(*slot)) {
                members.push_back((*block, *slot));
            }
        }
        members
    }

    /// A version is on the backing, durably: older ones of its set are void.
    pub(crate) fn order_destaged(&mut self, newest: SlotRef) {
        for (slot, seq) in self.order.voids.remove(&newest).unwrap_or_default() {
            // It may be gone by now, and its slot in use anew.
            let holds = self.segments.holds(slot) && self.segments.slot(slot).has(DIRTY);
            if holds && self.segments.seq(slot) == seq {
                self.segments.became_clean(slot);
            }
        }
    }

    /// How the backing takes what is collected now: a few blocks durably, each for itself, so that what depends on them need not
    /// wait for a flush.
    pub(crate) fn order_writes_durably(&self, blocks: usize) -> bool {
        self.order.set.is_some_and(|set| set.slides) && blocks <= DURABLE_BLOCKS_MAX
    }

    /// Nothing of the set is on its way any more; true if all of it is on the backing.
    fn order_complete(&mut self, upto: Seq) -> bool {
        let left: Vec<SlotRef> = self
            .segments
            .dirty_after(self.order.progress)
            .take_while(|(seq, _)| *seq <= upto)
            .map(|(_, slot)| slot)
            .collect();
        let lost = |e: &Self, slot: SlotRef| {
            let s = e.segments.slot(slot);
            s.kind() == SlotKind::Poison || e.destage.is_corrupt(s.block(), slot)
        };
        let is_void = |slot: &SlotRef| self.order.voids.values().flatten().any(|(void, _)| void == slot);
        if left.iter().any(|slot| !lost(self, *slot) && !is_void(slot)) {
            return false;
        }
        if !left.is_empty() {
            self.order_broken();
            // What is lost stands for its older versions, too.
            let (left, void): (Vec<_>, Vec<_>) = left.into_iter().partition(|slot| lost(self, *slot));
            void.into_iter().for_each(|slot| self.segments.became_clean(slot));
            if !self.failure.latched() {
                // The marks of what is lost move to the log's head, out of the set's way.
                self.move_poison(left.into_iter());
                return false;
            }
        }
        self.order.voids.clear();
        self.order.progress = upto;
        self.order.set = None;
        self.requests.retry = true;
        true
    }

    /// A version was overwritten; true if it has to be destaged all the same.
    pub(crate) fn order_keeps(&mut self, slot: SlotRef) -> bool {
        let s = *self.segments.slot(slot);
        let keeps = self.order.active && s.has(DIRTY);
        if keeps && (s.kind() == SlotKind::Poison || s.has(UNREADABLE)) {
            // What replaces it is not on the backing yet.
            if !self.mutant(Mutation::OrderForgetsLost) {
                self.order_broken();
            }
            return false;
        }
        let forgets = self.life == Life::Recovering && self.mutant(Mutation::OrderRecoversNewest);
        keeps && !forgets && !self.mutant(Mutation::OrderDropsVersions)
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
            self.distances.push(Engine::order_distance(seq, Seq(self.acknowledged)));
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
