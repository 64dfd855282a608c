//! The order at the backing, as the rest of the engine sees it: facts for [`Order`], and what it asks of the log, the journal and
//! the backing.

use std::collections::VecDeque;

use forebay_block::{BlockNo, Nanos, Seq};
use forebay_format::record::Consistent;
use forebay_policy::{PLAN_BLOCKS_LEAST, PLAN_BLOCKS_MAX};

use crate::engine::{Engine, Life};
use crate::interface::PartKey;
use crate::locks::BlockRange;
use crate::map::Map;
use crate::map::segments::SlotRef;
use crate::mutation::Mutation;
use crate::order::{Asking, Ended, Facts, Fill, Flushes, Followed, Order, Pacing, Turn};
use crate::wakes::Change;

impl Engine {
    fn order_facts(&self) -> Facts {
        Facts {
            written: self.log.written_upto(),
            durable: self.log.durable_upto(),
            clean: self.log.durable_clean_upto(),
            latched: self.failure.latched(),
            found: self.journal.found(),
            committed: self.journal.committed(),
            newest_part: self.requests.newest_part(),
            idle: self.destage.is_idle(),
        }
    }

    /// The volume begins to serve: the log's records up to `progress` are on the backing, which was `kept` so
    /// consistent until now.
    pub(super) fn order_begin(&mut self, progress: Seq, kept: Consistent) {
        let says = self.journal.exists().then(|| self.journal.says_consistent());
        let progress = self.order.begin(&mut self.map, progress, self.journal.found());
        self.order_pins_log();
        self.journal_begin(progress);
        let facts = self.order_facts();
        self.order.trust(&mut self.map, facts, kept, says);
    }

    /// The settings have changed, or what kept the policy from changing may be over.
    pub(super) fn order_follow_policy(&mut self) {
        let (exists, empty) = (self.journal.exists(), self.journal.is_empty());
        let facts = self.order_facts();
        match self.order.follow(&self.settings, exists, empty, facts) {
            Followed::As => return,
            Followed::Groups => {
                let progress = self.order.progress().unwrap_or_default();
                self.journal_begin(progress);
            }
            Followed::Begins => {
                self.log_work_out_clean();
                let progress = self.order.turn(Some(self.log.clean_upto()));
                self.order_pins_log();
                self.journal_begin(progress);
                self.order_catch_up();
            }
            Followed::Ends => {
                let progress = self.order.turn(None);
                self.order_pins_log();
                self.journal_begin(progress);
                Order::drop_versions(&mut self.map);
                self.wakes.raise(Change::Policy);
            }
        }
        self.destage_plan_anew();
    }

    /// The order cannot be kept, see [`Order::catch_up`].
    pub(super) fn order_catch_up(&mut self) {
        self.order.catch_up(self.requests.newest_part());
    }

    pub(super) fn order_dependence(&self) -> Seq {
        self.order.dependence(self.log.written_upto())
    }

    /// Whether a bypass of `range` that depends on records up to `after` may go to the backing now.
    pub(super) fn order_allows(&mut self, part: PartKey, after: Seq, range: BlockRange) -> bool {
        if !self.order.keeps_versions() {
            let allowed = self.order_is_renounced();
            if !allowed {
                self.order.bypass_has_to_wait(after, Seq(0));
            }
            return allowed;
        }
        if self.mutant(Mutation::OrderForgetsBypass) {
            return true;
        }
        let facts = self.order_facts();
        let (recorded, committed) = (self.order.recorded(facts), facts.committed);
        let asking = Asking { after, recorded, committed, latched: facts.latched };
        let (held, supersedes) = (|| self.journal.holds(range), || self.needs_supersede(range));
        let turn = self.order.turn_of(&self.map, asking, range, self.map.current_in(range), held, supersedes);
        let allowed = turn != Turn::Waits && self.order_is_renounced() && self.points_allow(part);
        if allowed && turn == Turn::GivesUp {
            // It overtakes what was acknowledged before, and may take away the last mark of a lost block.
            self.order_catch_up();
        }
        if !allowed {
            let newest = self.map.current_in(range).map(|slot| self.map.segments().seq(slot)).max();
            let newest = newest.unwrap_or_default().max(self.map.recalled_upto(range));
            self.order.bypass_has_to_wait(after.max(newest), self.log.durable_clean_upto());
        }
        allowed
    }

    /// Goes on where nothing is to be destaged, and notices that the backing has become consistent.
    pub(super) fn order_step(&mut self) {
        if self.order.is_leaving() {
            self.order_follow_policy();
        }
        if !self.order.keeps_versions() {
            return;
        }
        if self.order.may_end(&self.map, self.order_facts()) {
            self.order_complete();
        } else if self.order.slide_on(&self.map, self.order_facts()) {
            self.order_pins_log();
            self.wakes.raise(Change::Progress);
        }
        self.order.rest(&self.map, self.order_facts());
        self.order_pins_log();
        if self.order.bypass_waits() {
            if self.order.bypass_wants_record(self.order_facts()) {
                self.order_is_recorded();
            }
            self.journal.hurry();
            self.wakes.raise(Change::Turn);
        }
        if !self.order.is_catching_up() {
            return;
        }
        if self.order.is_journaled() {
            // Of what is not durable in the log the next start knows nothing: no head may speak of it.
            let progress = self.order.progress().unwrap_or_default();
            self.log.want_durable(progress.min(self.log.written_upto()));
        }
        let (facts, now) = (self.order_facts(), self.now);
        let flushes = Flushes {
            wanted: self.flushes.epoch_wanted(),
            done: self.flushes.epoch_done(),
            idle: self.flushes.is_idle(),
            failing: !self.flushes.is_worth_trying(),
        };
        let has_parts = |parts| self.requests.has_upto(parts);
        if self.order.catch_up_step(&self.map, facts, flushes, now, has_parts) {
            self.backing_flush_if_wanted();
        }
    }

    /// Whether recovery would go on from here; sees to it that it will, where that is worth a record.
    fn order_is_recorded(&mut self) -> bool {
        let progress = self.order.progress().unwrap_or_default();
        let recorded = self.order.recorded(self.order_facts()) >= progress;
        if !recorded && (self.destage.presses() || self.order.bypass_waits()) {
            match self.log.claim_of_clean(progress) {
                _ if self.failure.latched() => {
                    self.journal.hurry();
                    self.journal_step();
                }
                Some(seq) => self.log.want_durable(seq),
                None => self.log.tick(true),
            }
        }
        recorded
    }

    /// Whether recovery would not take the backing for more consistent than it is kept now; sees to it that it will not.
    /// Nothing may be changed there before.
    pub(super) fn order_is_renounced(&mut self) -> bool {
        // As long as it is consistent, the groups of the journal are part of it.
        let journal = match self.order.is_consistent() {
            // Only what groups hold leaves it at a point.
            true => self.order.is_journaled() || self.points_are_renounced(),
            false => self.journal.is_renounced(),
        };
        let (said, last) = (self.log.said_more_than(self.order.consistent()), self.log.last_seq());
        let renounced = said == Seq(0) || self.log.durable_upto() > said || self.failure.latched();
        if !renounced {
            match last > said {
                true => self.log.want_durable(last),
                false => self.log.tick(true),
            }
        }
        renounced && journal || self.mutant(Mutation::OrderForgetsToRenounce)
    }

    /// A version was overwritten; true if it has to be destaged all the same.
    pub(super) fn order_keeps(&mut self, slot: SlotRef) -> bool {
        let recovering = self.life == Life::Recovering;
        self.order.keeps(&self.map, slot, recovering, self.requests.newest_part())
    }

    /// Whether writers wait now until destaging has gone on.
    pub(super) fn order_paces(&mut self) -> bool {
        let fill = Fill {
            dirty: self.map.segments().dirty(),
            blocks: self.log.blocks(),
            works: self.life == Life::Running && !self.failure.latched(),
            failing: self.destage.failures() > 0,
            now: self.now,
        };
        let pacing = self.order.paces(fill, |step| self.log.queues_after(step));
        if pacing == Pacing::Stop {
            self.figures.paces += 1;
            self.relocations_cancel();
        }
        pacing != Pacing::Enter
    }

    /// What is to be destaged next, sorted by address; empty if there is nothing to be done now.
    pub(super) fn order_collect(&mut self) -> VecDeque<(BlockNo, SlotRef)> {
        loop {
            if self.order.set_upto().is_none() {
                if !self.order_begin_set() {
                    return VecDeque::new();
                }
                continue;
            }
            let (journal, commands) = (&self.journal, &self.commands);
            // What a committed group has anew is not worth writing, unless somebody waits for the block to be on the backing: with a
            // block that is written all the time a command would wait for good (P7).
            let may_skip = |map: &Map, block: BlockNo, slot: SlotRef| {
                journal.replaces(map, block, slot) && !commands.owes(block)
            };
            let members = self.order.members(&mut self.map, may_skip);
            if !members.is_empty() {
                return members;
            }
            if !self.order_slide() && (!self.destage.is_idle() || !self.order_complete()) {
                return VecDeque::new();
            }
        }
    }

    /// Begins the next set, if there is one, recovery would go on from here, and does not trust what is to be broken.
    fn order_begin_set(&mut self) -> bool {
        self.order.outlives_log(self.order_facts());
        let replayed = self.order.is_replayed();
        let early = replayed || self.mutant(Mutation::OrderForgetsProgress);
        // What goes in any order must not be taken for the work of a consistent run, nor what keeps to barriers
        // only for that of one which counts every acknowledgement.
        if !early && !self.order_is_recorded() || !self.order_is_renounced() {
            return false;
        }
        let end = self.order.set_end(&self.map, self.order_facts(), self.order_enough());
        end.inspect(|upto| self.order.begin_set(*upto, replayed)).is_some()
    }

    /// Takes in what depends on nothing that is still missing; false if there is no such, or if recovery would not go on from here yet.
    fn order_slide(&mut self) -> bool {
        let end = self.order.slides_to(&self.map, self.order_facts(), self.order_enough());
        let replayed = self.order.is_replayed();
        let early = replayed || self.mutant(Mutation::OrderForgetsProgress);
        let Some(end) = end.filter(|_| early || self.order_is_recorded()) else { return false };
        let slides = self.order_is_renounced();
        if slides {
            self.order.slide(end, replayed);
        }
        slides
    }

    /// Blocks that one set has.
    fn order_enough(&self) -> usize {
        if self.room_is_awaited() { PLAN_BLOCKS_LEAST } else { PLAN_BLOCKS_MAX }
    }

    /// Nothing of the set is on its way any more; true if all of it is on the backing.
    fn order_complete(&mut self) -> bool {
        let (facts, destage) = (self.order_facts(), &self.destage);
        let is_lost = |map: &Map, slot: SlotRef| destage.is_lost(map, slot);
        match self.order.end_set(&mut self.map, facts, is_lost) {
            Ended::NotYet => return false,
            Ended::Lost(marks) => {
                self.move_poison(marks.into_iter());
                return false;
            }
            Ended::Complete => {}
        }
        self.order_pins_log();
        self.wakes.raise(Change::Progress);
        true
    }

    pub(super) fn order_next_wake(&self) -> Option<Nanos> {
        self.order.next_wake(self.now)
    }
}
