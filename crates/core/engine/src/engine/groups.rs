//! The journal and its points, as the rest of the engine sees them: facts for [`crate::groups`], and what their answers ask for.

use std::sync::Arc;

use forebay_block::{Buf, DeviceOp, DeviceResult, Nanos, Seq};
use forebay_format::journal::GroupEntry;
use forebay_policy::{GroupEnd, GroupEnds, OpenGroup, Settings};

use crate::engine::{Engine, IoOwner, Life};
use crate::groups::journal::{Collected, HeadStep, Step, Written};
use crate::groups::points::{Allowed, Point};
use crate::groups::{Facts, Told};
use crate::interface::{Class, CommonStep, Effect, PartKey, RequestId, Role};
use crate::locks::{BlockRange, Hold};
use crate::map::Map;
use crate::map::member::Bad;
use crate::map::segments::SlotRef;
use crate::mutation::Mutation;
use crate::reading::gathers::Wanted;
use crate::wakes::Change;

impl Engine {
    fn group_facts(&self) -> Facts {
        Facts {
            now: self.now,
            wall_offset_ns: self.wall_offset_ns,
            settings: self.settings,
            generation: self.layout.generation,
            running: self.life == Life::Running,
            latched: self.failure.latched(),
            given_up: self.backing_is_given_up(),
            settling: self.commands.settling(),
            journaled: self.order.is_journaled(),
            leaving: self.order.is_leaving(),
            consistent: self.order.is_consistent(),
            progress: self.order.progress().unwrap_or_default(),
            written: self.log.written_upto(),
            durable: self.log.durable_upto(),
            clean: self.log.durable_clean_upto(),
            losses: self.flushes.losses(),
            newest_part: self.requests.newest_part(),
        }
    }

    pub(super) fn groups_told(&mut self, told: Vec<Told>) {
        for told in told {
            match told {
                Told::Marked(id, result) => self.effects.push(Effect::Marked { id, result }),
                Told::Common(id, result) => {
                    let state = self.common.state(&self.journal, self.group_facts());
                    self.effects.push(Effect::CommonDone { id, result: result.map(|()| state) });
                }
                Told::Point => self.figures.points += 1,
            }
        }
    }

    // The journal.

    /// The volume begins to serve, with everything up to `progress` on the backing.
    pub(super) fn journal_begin(&mut self, progress: Seq) {
        let facts = self.group_facts();
        self.journal.begin(&self.map, progress, facts);
    }

    pub(super) fn journal_step(&mut self) {
        if !self.journal.exists() {
            return;
        }
        let (facts, at_rest) = (self.group_facts(), self.log.is_written());
        let urgent = facts.shares_points() && self.destage_is_urgent();
        let told = self.common.step(&mut self.journal, &mut self.points, facts, urgent, at_rest);
        self.groups_told(told);
        let told = self.points.step(&self.journal, facts);
        self.groups_told(told);
        if !self.journal.is_paused(self.now) {
            // A group that is given up makes place for the next one.
            self.group_go_on();
            self.group_start_if_due();
            self.group_go_on();
            self.head_write_if_due();
        }
        let told = self.common.tell(&self.journal);
        self.groups_told(told);
    }

    /// The log is to become void: from here on the backing has everything, and the journal is of no use. Whether it is empty.
    pub(super) fn journal_retires(&mut self) -> bool {
        self.journal.retire();
        let renounced = self.journal.is_renounced();
        if !renounced {
            self.journal_step();
        }
        renounced
    }

    /// What is not committed, see [`crate::groups::journal::Journal::missing`].
    pub(super) fn journal_missing(&self) -> Option<(u64, Option<u64>)> {
        self.journal.missing(self.order.is_journaled(), self.wall_offset_ns)
    }

    pub(super) fn journal_is_settled(&self) -> bool {
        let facts = self.group_facts();
        self.journal.is_settled(&self.map, &self.points, facts)
    }

    pub(super) fn journal_next_wake(&self) -> Option<Nanos> {
        if !self.journal.exists() {
            return None;
        }
        self.journal.next_wake(self.group_facts(), &self.points)
    }

    fn journal_open(&self) -> OpenGroup {
        let (pressed, urgent) = (self.destage_is_pressed(), self.destage_is_urgent());
        self.journal.open_group(self.now, pressed, urgent, &self.points)
    }

    fn journal_write(&mut self, ops: Vec<DeviceOp>) {
        for op in ops {
            self.io(Role::Journal, op, Class::Background, IoOwner::GroupWrite);
        }
    }

    // Groups.

    fn group_start_if_due(&mut self) {
        let facts = self.group_facts();
        if !self.journal.may_start(facts) {
            return;
        }
        let (open, shared) = (self.journal_open(), self.settings.group_ends == GroupEnds::Common);
        let urgent = open.urgent && (!shared || self.common.is_impatient(facts));
        let end = OpenGroup { urgent, ..open }.end(&self.settings);
        if end == GroupEnd::Wait {
            return;
        }
        self.log.want_durable(facts.written);
        let destage = &self.destage;
        let is_lost = |map: &Map, slot: SlotRef| destage.is_lost(map, slot);
        match self.journal.collect(&self.map, end, &self.points, facts, is_lost) {
            Collected::Nothing => {}
            Collected::GivesUp => self.order_catch_up(),
            Collected::Stretch(stretch) => {
                let ops = self.journal.start(&mut self.map, stretch, &self.layout, facts);
                self.journal_write(ops);
            }
        }
    }

    /// Moves the group under way forward.
    fn group_go_on(&mut self) {
        loop {
            let facts = self.group_facts();
            match self.journal.go_on(&mut self.map, facts) {
                None => return,
                Some(Step::Gather(first, members)) => self.gather(Wanted::Group(first), members),
                Some(Step::Flush) if self.mutant(Mutation::JournalSkipsFlush) => {
                    return self.group_flush_done(Ok(None));
                }
                Some(Step::Flush) => {
                    let wrong = self.mutant(Mutation::JournalFlushesBacking);
                    let role = if wrong { Role::Backing } else { Role::Journal };
                    return self.io(role, DeviceOp::Flush, Class::Background, IoOwner::GroupFlush);
                }
                Some(Step::Hold(places)) if self.hold_places(&places) => self.journal.hold_places(),
                // It is asked for again when something has ended.
                Some(Step::Hold(_)) => return,
                Some(Step::Gone(held)) => {
                    self.release_places(held);
                    return self.groups_changed();
                }
            }
        }
    }

    /// What waited until nothing is left of a group may go on.
    fn groups_changed(&mut self) {
        self.wakes.raise(Change::Groups { awaited: self.order.bypass_waits() });
    }

    pub(super) fn group_gathered(&mut self, first: usize, result: Result<Vec<Buf>, Vec<Bad>>) {
        match result {
            Ok(bufs) => {
                let ops = self.journal.gathered(first, bufs);
                self.journal_write(ops);
            }
            Err(bad) => {
                self.journal.lacks();
                self.destage_unreadable(&bad);
            }
        }
    }

    pub(super) fn group_write_done(&mut self, result: DeviceResult) {
        if self.journal.group_written(result.is_ok(), self.now) {
            self.figures.backing_errors += 1;
        }
    }

    pub(super) fn group_flush_done(&mut self, result: DeviceResult) {
        let failed = self.journal.group_flushed(result.is_ok(), self.flushes.losses(), self.now);
        if let Err(error) = result
            && failed
        {
            // The journal may lie on the backing's own device.
            self.backing_flush_failed(&error);
            self.figures.backing_errors += 1;
        }
        let told = self.journal.tell_early(&mut self.points);
        self.groups_told(told);
        if self.mutant(Mutation::JournalDestagesUncommitted) {
            self.wakes.raise(Change::Plan);
        }
    }

    // The head.

    fn head_write_if_due(&mut self) {
        let facts = self.group_facts();
        match self.journal.head_step(&self.map, &self.points, facts, self.volume_bytes) {
            HeadStep::Nothing => {}
            HeadStep::Durable => self.log.want_durable(facts.written),
            HeadStep::Write(op) => self.io(Role::Journal, op, Class::Background, IoOwner::JournalHead),
        }
    }

    pub(super) fn head_write_done(&mut self, result: DeviceResult) {
        let facts = self.group_facts();
        let good = result.is_ok();
        let written = self.journal.head_written(good, &mut self.map, &mut self.points, facts);
        self.figures.backing_errors += u64::from(!good);
        let Some(Written { committed, in_place, cut, told, goes }) = written else { return };
        if let Some(entries) = committed {
            self.group_committed(&entries, cut);
        }
        if let Some(places) = in_place {
            self.group_is_in_place(places);
        }
        self.groups_told(told);
        if goes {
            self.group_go_on();
        }
        self.groups_changed();
    }

    fn group_committed(&mut self, entries: &Arc<Vec<GroupEntry>>, cut: bool) {
        self.destage_replaced(entries);
        self.figures.groups_cut += u64::from(cut);
        self.figures.groups += 1;
    }

    /// Takes these places on the backing, all or none.
    fn hold_places(&mut self, places: &[BlockRange]) -> bool {
        if self.mutant(Mutation::CommitForgetsPlaces) {
            return true;
        }
        let is_taken = |range: &BlockRange| !self.locks.try_take(*range, Hold::Backing);
        let Some(taken) = places.iter().position(is_taken) else { return true };
        places[..taken].iter().for_each(|range| self.locks.release(*range, Hold::Backing));
        false
    }

    fn release_places(&mut self, places: Vec<BlockRange>) {
        if !self.mutant(Mutation::CommitForgetsPlaces) {
            places.into_iter().for_each(|range| self.release(range, Hold::Backing));
        }
    }

    /// A group has come to its place with its commit, and with it all that the log has up to its end.
    fn group_is_in_place(&mut self, places: Vec<BlockRange>) {
        let (after, upto) = (self.order.progress().unwrap_or_default(), self.journal.committed());
        let dirty = self.map.segments().dirty_after(after).take_while(|(seq, _)| *seq <= upto);
        let dirty: Vec<_> = dirty.collect();
        let block = |engine: &Self, slot: SlotRef| engine.map.segments().slot(slot).block();
        for (n, (seq, slot)) in dirty.iter().copied().enumerate() {
            let is_older = |engine: &Self| {
                dirty[n + 1..].iter().any(|(_, later)| block(engine, *later) == block(engine, slot))
            };
            if self.mutant(Mutation::CommitKeepsOlder) && is_older(self) {
                continue;
            }
            self.destage_landed(slot, seq);
        }
        self.release_places(places);
        self.wakes.raise(Change::Destaged);
        if self.map.segments().dirty() == 0 {
            self.log_is_clean();
        }
    }

    // Points.

    /// What is acknowledged now and nothing else is to be a point.
    pub(super) fn point_now(&self) -> Point {
        Point::now(self.group_facts(), String::new(), None)
    }

    pub(super) fn mark_command(&mut self, id: RequestId, label: String) {
        let facts = self.group_facts();
        if let Err(error) = self.points.mark(id, label, &mut self.journal, facts) {
            self.effects.push(Effect::Marked { id, result: Err(error) });
        }
    }

    /// A flush was answered that came at this point.
    pub(super) fn points_flushed(&mut self, point: Point) {
        let facts = self.group_facts();
        self.points.flushed(point, &self.journal, facts);
    }

    /// The backing moves only from point to point: nothing goes past the groups by choice.
    pub(super) fn points_are_kept(&self) -> bool {
        self.order.is_journaled() && self.group_facts().keeps_points()
    }

    /// Whether a bypass that came as this part may be written in place without making a point untrue; sees to it.
    pub(super) fn points_allow(&mut self, part: PartKey) -> bool {
        if self.mutant(Mutation::PointForgetsBypass) {
            return true;
        }
        match self.points.allow(part, &self.journal, self.common.cut()) {
            Allowed::Yes => true,
            Allowed::No => false,
            Allowed::Renounced => self.points_are_renounced(),
        }
    }

    /// Whether the head names no point; sees to it that it will not.
    pub(super) fn points_are_renounced(&mut self) -> bool {
        let named = self.points.is_named(&self.journal);
        if named && self.points.renounce() {
            self.journal_step();
        }
        // What is prepared is named, too: it is committed, or forgotten, before long.
        !named && !self.journal.tells_of_prepared()
    }

    // Points that are shared.

    pub(super) fn common_command(&mut self, id: RequestId, round: u64, run: u64, step: CommonStep) {
        let facts = self.group_facts();
        let told = self.common.command((id, round, run, step), &mut self.journal, &mut self.points, facts);
        self.groups_told(told);
    }

    /// The members should declare a point: this one would commit a group now if it were alone, or an earlier round has left
    /// something behind.
    pub(super) fn common_presses(&self) -> bool {
        let open = OpenGroup { marked: false, flushed: false, ..self.journal_open() };
        let alone = Settings { group_ends: GroupEnds::Anywhere, ..self.settings };
        open.end(&alone) != GroupEnd::Wait || self.journal.common_state().1 > 0
    }

    /// The volume's points are shared, or would be.
    pub(super) fn common_is_wanted(&self) -> bool {
        self.group_facts().shares_points()
    }

    /// Writers are held back until all members have cut.
    pub(super) fn common_holds(&self) -> bool {
        self.life == Life::Running && !self.failure.latched() && self.common.holds(self.now)
    }

    pub(super) fn common_next_wake(&self) -> Option<Nanos> {
        if !self.journal.exists() {
            return None;
        }
        self.common.next_wake(self.group_facts(), || self.destage_is_urgent())
    }
}
