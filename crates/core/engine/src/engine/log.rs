//! The log's part of the coordinator: gathers facts, carries its operations to the cache, and passes on what it tells.

use forebay_block::{BLOCK_BYTES, BlockNo, DeviceResult, ErrorKind, IoError, Seq};
use forebay_format::record::ExtentKind;
use forebay_policy::JournalCaching;

use crate::engine::{Engine, IoOwner, Life};
use crate::interface::Role;
use crate::locks::{BlockRange, Hold};
use crate::log::reclaim::Copies;
use crate::log::{AppendOwner, Ask, Facts, Io, May, Pinner, Told, Written, reclaim};
use crate::map::segments::SlotRef;
use crate::mutation::Mutation;
use crate::staleness::Holding;
use crate::wakes::Change;

impl Engine {
    pub(super) fn log_asks(&mut self, asks: impl IntoIterator<Item = Ask>) {
        for Ask { op, class, owner } in asks {
            self.io(Role::Cache, op, class, IoOwner::Log(owner));
        }
    }

    pub(super) fn log_io_done(&mut self, owner: Io, result: DeviceResult) {
        match owner {
            Io::Batch(seq) => self.batch_done(seq, result),
            Io::Summary(index) => {
                // One that could not be written costs recovery time, not data: the segment is read through then.
                self.figures.cache_errors += u64::from(result.is_err());
                self.map.segments_mut().seal(index);
            }
            Io::Flush(covers) => self.cache_flush_done(covers, result),
            Io::Copy(key) => {
                self.figures.cache_errors += u64::from(result.is_err());
                let takes = !self.failure.latched() && !self.room_is_awaited();
                let dropped = self.reclaim.read_done(key, result, takes, &mut self.log, &mut self.map);
                self.release_each(dropped);
            }
            Io::Recovery(step) => self.recovery_read_done(step, result),
        }
    }

    pub(super) fn log_tell_clean(&mut self, upto: Seq) {
        if !self.failure.latched() {
            self.log.tell_clean(upto);
        }
    }

    pub(super) fn log_has_room(&self) -> bool {
        self.log.has_room(&self.map)
    }

    pub(super) fn log_room_for_supersedes(&self) -> usize {
        self.log.room_for_supersedes(&self.map)
    }

    pub(super) fn log_roll_head(&mut self) {
        self.log.roll_head(&mut self.map);
    }

    pub(super) fn log_work_out_clean(&mut self) {
        self.log.work_out_clean(self.order.progress(), &self.map);
    }

    pub(super) fn log_is_clean(&mut self) {
        self.log.all_is_clean(self.now);
    }

    /// The error for writes that the log cannot take any more.
    pub(super) fn log_failed_error() -> IoError {
        IoError::new(ErrorKind::Io, "the cache failed a durable write")
    }

    /// What the order still has to do keeps its records in the log.
    pub(super) fn order_pins_log(&mut self) {
        self.log.pin(Pinner::Order, self.order.progress().map(Seq::next));
    }

    /// Forms records from what is queued, as many as may be in flight.
    pub(super) fn log_form_batches(&mut self) {
        self.throttle_look();
        if self.failure.latched() {
            return;
        }
        self.throttle_lend();
        let round = self.log.begin_round();
        let (paced, holding) = (self.order_paces(), self.staleness_holds());
        let held = paced || matches!(holding, Holding::Begins | Holding::GoesOn) || self.common_holds();
        loop {
            let may = match holding {
                // Who has waited that long does not wait for the throttle, too.
                Holding::LetGo => May::FREELY,
                _ => self.throttle_may(),
            };
            let facts = self.log_facts(held, may);
            let Some(formed) = self.log.form(round, &facts, &mut self.map) else { break };
            if let Some(kind) = formed.kind {
                self.throttle.entered(kind, formed.ask.op.write_bytes(), self.now.0);
            }
            self.map.note_moment(formed.seq, self.wall_ns());
            self.order.formed(formed.seq, formed.after);
            if let Some(owner) = formed.split {
                self.part_piece_split(owner);
            }
            self.figures.records += 1;
            if self.mutant(Mutation::IndexesAtSubmission) {
                self.log.newest_pieces().iter().for_each(|piece| self.piece_written(piece));
            }
            self.log_asks([formed.ask]);
        }
        self.figures.stalls += u64::from(self.log.has_stalled(round));
    }

    fn log_facts(&self, held: bool, may: May) -> Facts {
        Facts {
            now: self.now,
            wall_ns: self.wall_ns(),
            durability: self.settings.durability,
            consistent: self.backing_consistent(),
            progress: self.order.progress(),
            held,
            may,
            settling: self.commands.settling(),
        }
    }

    fn batch_done(&mut self, seq: Seq, result: DeviceResult) {
        if let Err(error) = result
            && !self.mutant(Mutation::IgnoresFailedWrite)
        {
            self.figures.cache_errors += 1;
            self.failure_latch(error);
        }
        self.log.batch_done(seq);
    }

    /// Acknowledges, in order, what is written; and what waited for durability.
    pub(super) fn log_acknowledge(&mut self) {
        while let Some(told) = self.log.tell(self.now) {
            match told {
                Told::Written(piece) => {
                    if !self.mutant(Mutation::IndexesAtSubmission) {
                        self.piece_written(&piece);
                    }
                    if let (AppendOwner::Part(key), Some(slots)) = (piece.owner, piece.slots) {
                        self.landing_is_logged(key, piece.seq, slots);
                    }
                    if piece.ends {
                        self.append_done(piece.owner);
                    }
                }
                Told::Durable(owner) => self.append_done(owner),
                Told::Claimed { tail } => {
                    // What waited for this to be durable may go on: the next set, and bypasses.
                    let awaited = self.order.bypass_waits() || self.requests.supersede_waits();
                    self.wakes.raise(Change::Claimed { awaited });
                    self.map.retire_below(tail);
                }
            }
        }
        while !self.failure.latched()
            && let Some(ask) = self.log.next_summary(self.wall_ns(), &self.map)
        {
            self.log_asks([ask]);
        }
        let runs = self.life == Life::Running && !self.failure.latched();
        self.log.prove(self.now, runs, &self.map);
    }

    /// Makes the piece's slots the current version of their blocks.
    fn piece_written(&mut self, piece: &Written) {
        let (Some(extent), Some((first, count))) = (piece.extent, piece.slots) else { return };
        let dirty = extent.kind != ExtentKind::Clean;
        for n in 0..count {
            let slot = SlotRef(first.0 + n);
            let referenced = self.make_current(slot, dirty);
            if dirty && referenced {
                self.map.used(slot);
            }
        }
    }

    fn append_done(&mut self, owner: AppendOwner) {
        match owner {
            AppendOwner::Part(part) => self.part_piece_done(part),
            AppendOwner::Supersede(part) => self.supersede_done(part),
            AppendOwner::CleanCopy(part) => self.clean_copy_done(part),
            AppendOwner::Relocation(block) => {
                if let Some((lock, stays)) = self.reclaim.copied(block, &mut self.log, &mut self.map) {
                    if !stays {
                        self.forget_clean(BlockRange::new(block, 1));
                    }
                    self.release_each([lock]);
                }
            }
            AppendOwner::Poison(block) => self.poison_done(block),
            AppendOwner::Stop | AppendOwner::StopDistrusted => self.stop_record_done(),
            AppendOwner::Tick => {}
        }
    }

    pub(super) fn log_flush_if_wanted(&mut self) {
        if !self.failure.latched() {
            let ask = self.log.flush_if_wanted();
            self.log_asks(ask);
        }
    }

    fn cache_flush_done(&mut self, covers: Seq, result: DeviceResult) {
        let covers = result.map(|_| covers).map_err(|error| {
            if !self.mutant(Mutation::RetriesFailedFlush) {
                self.figures.cache_errors += 1;
                self.failure_latch(error);
            }
        });
        self.log.flushed(covers.ok().filter(|_| !self.failure.latched()));
    }

    /// Whether a free segment is wanted and the segment that would become one has to wait for destaging.
    pub(super) fn reclaim_wants_clean_tail(&self) -> bool {
        reclaim::wants_clean_tail(&self.log, &self.map)
    }

    /// Moves the tail as far as it can and is wanted.
    pub(super) fn reclaim_step(&mut self) {
        if self.failure.latched() || self.commands.settling() {
            return;
        }
        let room_is_awaited = self.room_is_awaited() || self.is_slowed();
        let destage = &self.destage;
        let is_lost = |block, slot| destage.is_corrupt(block, slot);
        let (journals, skips) = (&self.journals, self.settings.journal_caching == JournalCaching::Skip);
        let unwanted = |block: BlockNo| skips && journals.contain(block.0 * BLOCK_BYTES);
        let copies = Copies { room_is_awaited, unwanted: &unwanted };
        let out = self.reclaim.step(copies, is_lost, &mut self.log, &mut self.map, &mut self.locks);
        self.log_asks(out.asks);
        self.release_each(out.released);
    }

    /// Moves the marks that blocks are lost, those among `slots`, to the head.
    pub(super) fn move_poison(&mut self, slots: impl Iterator<Item = SlotRef>) {
        let destage = &self.destage;
        let is_lost = |block, slot| destage.is_corrupt(block, slot);
        let released =
            self.reclaim.move_poison(slots, is_lost, &mut self.log, &mut self.map, &mut self.locks);
        self.release_each(released);
    }

    pub(super) fn poison_done(&mut self, block: BlockNo) {
        let lock = self.reclaim.poison_done(block);
        self.release_each([lock]);
    }

    /// Gives up the copies that are not in the log yet.
    pub(super) fn relocations_cancel(&mut self) {
        let released = self.reclaim.cancel(&mut self.log);
        self.release_each(released);
    }

    /// The block is not copied after all.
    pub(super) fn relocation_dropped(&mut self, block: BlockNo) {
        let released = self.reclaim.dropped(block, &mut self.log);
        self.release_each(released);
    }

    fn release_each(&mut self, locks: impl IntoIterator<Item = (BlockNo, Hold)>) {
        for (block, hold) in locks {
            self.release(BlockRange::new(block, 1), hold);
        }
    }
}
