//! Requests of clients: what the coordinator asks for them elsewhere, and what it does with what they say. See [`crate::client`].

use forebay_block::{Buf, DeviceOp, DeviceResult, IoError, Origin, Reply, Seq};
use forebay_policy::{
    Admission, AdmissionReason, Decision, Durability, Issuer, JournalCaching, OnFull, WriteContext,
    WritePolicy,
};

use crate::backing::flushes::flush_failed_error;
use crate::client::cut::Cut;
use crate::client::flushes::{Flush, Reached};
use crate::client::parts::{Next, Path};
use crate::client::reissue::Reissued;
use crate::client::requests::{Answered, Terms, Way};
use crate::engine::{Engine, IoOwner};
use crate::failure::Gate;
use crate::interface::{Effect, PartKey, RequestId, Role};
use crate::locks::{BlockRange, Hold};
use crate::log::{AppendOwner, SEGMENTS_RESERVED};
use crate::map::segments::SlotRef;
use crate::mutation::Mutation;
use crate::wakes::{Change, Sleeper};

// Requests that change data.

impl Engine {
    pub(super) fn write_request(&mut self, id: RequestId, offset: u64, data: Buf, fua: bool, origin: Origin) {
        match data.is_empty() {
            true => self.effects.push(Effect::Reply { id, result: Ok(Reply::Done) }),
            false => {
                self.journals.write(offset, data.len() as u64);
                self.cut_arrived(id, Cut::write(offset, data), fua, origin);
            }
        }
    }

    pub(super) fn zero_request(
        &mut self,
        id: RequestId,
        offset: u64,
        len: u64,
        unmap: bool,
        fua: bool,
        origin: Origin,
    ) {
        match len {
            0 => self.effects.push(Effect::Reply { id, result: Ok(Reply::Done) }),
            _ => self.cut_arrived(id, Cut::zero(offset, len, unmap, self.volume_bytes), fua, origin),
        }
    }

    fn cut_arrived(&mut self, id: RequestId, cut: Cut, fua: bool, origin: Origin) {
        let reason = self.choose(cut.bytes, cut.entering, origin, fua);
        let way = Way::of(reason, origin, fua);
        self.requests.open(id, &cut, fua, reason);
        for part in cut.parts {
            let forced = fua && !self.mutant(Mutation::ForgetsFua);
            let terms = Terms {
                durable: forced || self.settings.durability == Durability::Write,
                reissuable: self.settings.write_policy != WritePolicy::WriteThrough,
                after: self.order_dependence(),
            };
            let key = self.requests.arrive(id, part, way, terms);
            if self.requests.must_wait(key) || !self.part_try_start(key) {
                self.requests.wait(key);
            }
        }
    }

    /// Which way a write of these bytes goes, and why. So many blocks of it would enter the log.
    fn choose(
        &mut self,
        (offset, len): (u64, u64),
        entering: u64,
        origin: Origin,
        fua: bool,
    ) -> AdmissionReason {
        let in_range = self.ranges.touch(offset, len);
        let in_journal = self.journals.contain(offset);
        let roomy = self.settings.admission == Admission::Adaptive && self.is_roomy();
        let (to_points, sync) = (self.points_are_kept(), origin.is_sync(fua));
        let context = WriteContext { origin, fua, in_range, in_journal, roomy };
        match self.settings.admission.decide(&context) {
            Decision::Bypass(_) if to_points => AdmissionReason::GroupEnds,
            Decision::Cache(reason) if to_points => reason,
            Decision::Bypass(reason) => reason,
            // Where it decides what enters, it decides that.
            Decision::Cache(_)
                if in_journal
                    && self.settings.journal_caching == JournalCaching::Bypass
                    && self.settings.admission != Admission::Journal =>
            {
                AdmissionReason::PastJournal
            }
            Decision::Cache(_) if self.failure.latched() => AdmissionReason::CacheFailed,
            Decision::Cache(_) if self.settings.write_policy == WritePolicy::WriteThrough => {
                AdmissionReason::WriteThrough
            }
            Decision::Cache(_) if self.settings.on_full == OnFull::Bypass && !self.log_has_room() => {
                AdmissionReason::NoRoom
            }
            // Where an order is kept a bypass would wait for all before it, and everybody for the bypass.
            Decision::Cache(AdmissionReason::Reissued)
                if !self.order.keeps_versions() && entering > self.reissue_spare(sync) =>
            {
                AdmissionReason::NoRoom
            }
            Decision::Cache(AdmissionReason::Reissued) => AdmissionReason::Reissued,
            Decision::Cache(reason) => {
                self.demand.add(self.now.0, entering);
                reason
            }
        }
    }

    /// Whether the log has room for what nobody waits for, and the endurance budget lasts.
    fn is_roomy(&mut self) -> bool {
        let pressure = self.destage_pressure();
        // It counts the days, also those without room.
        let lasts = self.endurance.lasts(self.figures.bytes_to_cache, self.now.0 / 1_000_000_000);
        self.roominess.look(&pressure, self.now.0) && self.log_has_room() && lasts
    }

    /// Tries those that wait, if something has changed for them, and answers flushes.
    pub(super) fn requests_start_waiting(&mut self) {
        // Segments become free when their last reader has gone, too.
        let room = self.requests.supersede_waits() && self.log_room_for_supersedes() > 0;
        if self.wakes.is_awake(Sleeper::Parts) || room {
            self.wakes.tried(Sleeper::Parts, true);
            self.order.forget_bypass_waits();
            let mut round = self.requests.round();
            while let Some(key) = self.requests.next_waiting(&mut round) {
                let has_started = self.part_try_start(key);
                self.requests.tried(&mut round, has_started);
            }
        }
        self.flushes_answer();
    }

    /// Refuses the bypasses that wait for what only the backing could do.
    pub(super) fn requests_refuse_bypasses(&mut self, error: &IoError) {
        for answered in self.requests.refuse_bypasses(error) {
            self.answer(answered);
        }
    }

    /// Somebody waits for room in the log: writers, or a bypass whose supersede record would find none.
    pub(super) fn room_is_awaited(&self) -> bool {
        self.log.waits_for_room() || self.requests.supersede_waits() && self.log_room_for_supersedes() == 0
    }

    fn answer(&mut self, answered: Answered) {
        let Answered { id, error, bytes, reason, bypassed, fua } = answered;
        let result = match error {
            None => {
                if bypassed {
                    self.flushes.acknowledge();
                }
                self.figures.writes += 1;
                self.figures.bytes_acknowledged += bytes;
                if fua {
                    self.order.flushed(self.log.written_upto());
                }
                self.figures.reasons.count(reason);
                self.effects.push(Effect::Admitted { id, reason, bytes });
                match reason.is_cached() {
                    true => self.figures.writes_admitted += 1,
                    false => self.figures.writes_bypassed += 1,
                }
                Ok(Reply::Done)
            }
            Some(error) => {
                self.figures.errors += 1;
                Err(error)
            }
        };
        self.effects.push(Effect::Reply { id, result });
    }

    /// Locks are given back, and who waits for them may go on.
    pub(super) fn release(&mut self, range: BlockRange, hold: Hold) {
        self.locks.release(range, hold);
        self.locks_released();
    }

    /// Wakes who waits for locks, if some were given back.
    fn locks_released(&mut self) {
        if self.locks.take_released() && !self.mutant(Mutation::ForgetsWaiters) {
            self.wakes.raise(Change::Released { lost: self.destage_has_lost() });
        }
    }
}

// Parts.

impl Engine {
    /// Starts the part if it may; false if it must wait.
    fn part_try_start(&mut self, key: PartKey) -> bool {
        let latched = self.failure.latched();
        let Some(part) = self.requests.candidate(key, latched) else {
            return true;
        };
        match self.failure_gate(part.range) {
            Gate::Pass => {}
            Gate::Wait => return false,
            Gate::Refuse => {
                let answered = self.requests.end(key, Some(Self::log_failed_error()));
                self.part_ended(answered);
                return true;
            }
        }
        let is_bypass = part.path == Path::Bypass;
        let supersedes = is_bypass && !latched && self.needs_supersede(part.range);
        if supersedes && !self.requests.may_supersede(self.log_room_for_supersedes())
            || is_bypass && !self.order_allows(key, part.after, part.range)
        {
            return false;
        }
        let next = self.requests.start(key, supersedes, &mut self.locks);
        let has_started = next.is_some();
        next.into_iter().for_each(|next| self.part_goes_on(key, next));
        has_started
    }

    /// Does what is next for the part.
    fn part_goes_on(&mut self, key: PartKey, next: Next) {
        self.locks_released();
        match next {
            Next::Nothing => {}
            Next::ReadBase(bases) => {
                for (block, is_first) in bases {
                    self.read_base(key, block, is_first);
                }
            }
            Next::GoOn(Path::Log) if self.failure.latched() => self.part_restart(key),
            Next::GoOn(Path::Log) => self.part_append(key),
            Next::GoOn(Path::Bypass) => self.bypass_begin(key),
            Next::Append(appends) => {
                appends.into_iter().for_each(|append| self.throttle_append(key, append));
            }
            Next::Write(op, class) => self.io(Role::Backing, op, class, IoOwner::BypassWrite(key)),
            Next::Flush(class) => {
                self.io(Role::Backing, DeviceOp::Flush, class, IoOwner::BypassFlush(key));
            }
            Next::OnBacking { volatile } => {
                if volatile {
                    self.flushes.bypass_ended();
                }
                self.bypass_on_backing(key);
            }
            Next::Answer(answered) => self.answer(answered),
        }
    }

    /// The part has ended, and with it maybe its request.
    fn part_ended(&mut self, answered: Option<Answered>) {
        self.locks_released();
        answered.into_iter().for_each(|answered| self.answer(answered));
    }

    /// A base block has been read (4096 bytes, zero beyond the volume's end).
    pub(super) fn base_read(&mut self, key: PartKey, is_first: bool, result: Result<Buf, IoError>) {
        let next = self.requests.base_read(key, is_first, result, &mut self.locks);
        self.part_goes_on(key, next);
    }

    fn part_append(&mut self, key: PartKey) {
        let next = self.requests.append(key, self.log.piece_blocks_max(), &mut self.locks);
        self.part_goes_on(key, next);
    }

    /// One more piece of a part is under way: the log has split one.
    pub(super) fn part_piece_split(&mut self, owner: AppendOwner) {
        self.requests.piece_split(owner);
    }

    pub(super) fn part_piece_done(&mut self, key: PartKey) {
        let answered = self.requests.piece_done(key, &mut self.locks);
        self.part_ended(answered);
    }

    /// A piece of a part that will never be in the log.
    pub(super) fn part_piece_refused(&mut self, key: PartKey, error: IoError) {
        let answered = self.requests.piece_refused(key, error, &mut self.locks);
        self.part_ended(answered);
    }

    /// The part has come to its end: its locks are given back and its request answered if it was the last.
    pub(super) fn part_finish(&mut self, key: PartKey, error: Option<IoError>) {
        let answered = self.requests.finish(key, error, &mut self.locks);
        self.part_ended(answered);
    }

    /// Sends a part that the log will not take (any more) back to the start; it goes to the backing then.
    pub(super) fn part_restart(&mut self, key: PartKey) {
        self.requests.restart(key, &mut self.locks);
        self.locks_released();
    }
}

// Bypasses.

impl Engine {
    /// Writes the part to the backing.
    fn bypass_begin(&mut self, key: PartKey) {
        let Some(range) = self.requests.range_of(key) else {
            return;
        };
        // What comes after it in the order of writes must not outlive it.
        let durable =
            self.requests.wants_durable(key) || self.needs_supersede(range) || self.order.keeps_versions();
        let next = self.requests.write(key, durable);
        self.part_goes_on(key, next);
    }

    /// Whether recovery could take a record of one of the blocks for newer than the backing.
    pub(super) fn needs_supersede(&self, range: BlockRange) -> bool {
        let clean = self.log.durable_clean_upto();
        self.map.current_in(range).any(|slot| self.map.segments().seq(slot) > clean)
            || self.map.recalled_upto(range) > clean
    }

    pub(super) fn bypass_write_done(&mut self, key: PartKey, result: DeviceResult) {
        if self.landed(key, &result) {
            return;
        }
        match result {
            Ok(_) => {
                let next = self.requests.written(key, self.flushes.losses());
                self.part_goes_on(key, next);
            }
            Err(error) => self.bypass_failed(key, error),
        }
    }

    pub(super) fn bypass_flush_done(&mut self, key: PartKey, result: DeviceResult) {
        let covered = self.requests.is_flushing_since(key, self.flushes.losses());
        match result {
            Ok(_) if covered => self.bypass_on_backing(key),
            Ok(_) => self.bypass_failed(key, flush_failed_error()),
            Err(error) => {
                self.backing_flush_failed(&error);
                self.bypass_failed(key, error);
            }
        }
    }

    /// What the backing holds now is unknown, and a clean copy may not be what it holds. Dirty data stays: it is what
    /// the blocks are, and is destaged over whatever the bypass has left.
    fn bypass_failed(&mut self, key: PartKey, error: IoError) {
        self.figures.backing_errors += 1;
        if let Some(range) = self.requests.range_of(key)
            && !self.mutant(Mutation::FailedBypassKeepsCopy)
        {
            self.forget_clean(range);
            self.destage_void(range);
        }
        self.part_finish(key, Some(error));
    }

    /// The data is on the backing, as durable as was asked for.
    fn bypass_on_backing(&mut self, key: PartKey) {
        let Some(range) = self.requests.range_of(key) else {
            return;
        };
        let needed = self.needs_supersede(range) && !self.mutant(Mutation::DropsSupersede);
        if self.failure.retired() || !needed {
            self.bypass_acknowledge(key);
        } else if self.failure.latched() {
            self.bypass_await_retirement(key);
        } else if let Some(append) = self.requests.supersede(key) {
            self.log.append_urgent(append);
        }
    }

    pub(super) fn supersede_done(&mut self, key: PartKey) {
        if let Some(range) = self.requests.range_of(key) {
            self.forget(range, false);
        }
        self.bypass_acknowledge(key);
    }

    /// The supersede record cannot be written any more: the bypass is acknowledged when the log is void. Its blocks,
    /// durable on the backing, are no longer to be destaged: their locks would keep the log from being retired.
    pub(super) fn bypass_await_retirement(&mut self, key: PartKey) {
        let Some(range) = self.requests.await_retirement(key) else {
            return;
        };
        self.failure.taint(range);
        self.forget(range, false);
        if self.failure.stuck() {
            // It never will be.
            self.part_finish(key, Some(Self::log_failed_error()));
        }
    }

    /// The log can never come back: what waited for a supersede record needs none.
    pub(super) fn bypass_after_retirement(&mut self) {
        for key in self.requests.awaiting_retirement() {
            self.bypass_acknowledge(key);
        }
    }

    /// The log can never be void: what waited for that fails.
    pub(super) fn parts_refuse_retirement(&mut self) {
        for key in self.requests.awaiting_retirement() {
            self.part_finish(key, Some(Self::log_failed_error()));
        }
    }

    fn bypass_acknowledge(&mut self, key: PartKey) {
        let Some(range) = self.requests.range_of(key) else {
            return;
        };
        if !self.mutant(Mutation::BypassKeepsIndex) {
            self.forget(range, true);
        }
        let copies = self.settings.write_policy == WritePolicy::WriteThrough
            && self.requests.is_copyable(key)
            && !self.failure.latched()
            && self.map.segments().free_count() > SEGMENTS_RESERVED + 1;
        if !copies {
            return self.part_finish(key, None);
        }
        let (answered, appends) = self.requests.copy(key, self.log.piece_blocks_max());
        self.part_ended(answered);
        appends.into_iter().for_each(|append| self.log.append(append));
    }

    pub(super) fn clean_copy_done(&mut self, key: PartKey) {
        let losses = self.flushes.losses();
        let Some(copied) = self.requests.copied(key, losses, &mut self.locks) else {
            return;
        };
        if copied.is_untrue {
            self.forget_clean(copied.range);
        }
        for block in copied.range.iter() {
            if let Some(slot) = self.map.lookup(block) {
                self.map.admit(slot);
            }
        }
        self.locks_released();
    }

    /// The clean copy will never be in the log.
    pub(super) fn clean_copy_refused(&mut self, key: PartKey) {
        self.requests.copy_refused(key, &mut self.locks);
        self.locks_released();
    }
}

// Reissues.

impl Engine {
    /// Somebody waits for outstanding writes of these bytes: each bypass of them that can goes to the log. A hint (P8): it may
    /// come at any time, for any bytes, and changes no data.
    pub(super) fn promote(&mut self, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        let mut keys = self.requests.promote(offset, len);
        let wanted = !keys.is_empty()
            && self.settings.admission.reissues()
            && self.settings.write_policy != WritePolicy::WriteThrough
            && !self.failure.latched();
        if wanted {
            let mut spare = [false, true].map(|sync| self.reissue_spare(sync));
            keys.retain(|key| match self.reissue(*key, spare) {
                Some(blocks) => {
                    spare = spare.map(|left| left.saturating_sub(blocks));
                    false
                }
                None => true,
            });
        }
        // What has gone to the log is waited for there, whatever of it is still at the backing.
        self.backing_promote(&keys);
    }

    /// Blocks that the log takes of what is only awaited, issued synchronously or not. Writes that are waited for in their own right will
    /// want as much as they took lately. What was issued synchronously is one of them; the rest leaves them that in all of what the log has to spare. Where
    /// an order is kept a bypass has all before it to wait for, and others for it, so that no more is held back from it than from those.
    fn reissue_spare(&self, sync: bool) -> u64 {
        if !self.log_has_room() {
            return 0;
        }
        let lately = self.demand.lately(self.now.0);
        let held_back = if sync || self.order.keeps_versions() { 0 } else { lately };
        self.destage_pressure().blocks_to_spare(lately).saturating_sub(self.log.entering() + held_back)
    }

    /// Sends the bypass to the log if that has so many blocks to `spare`, for what was issued synchronously last. Blocks that it takes there;
    /// `None` if it stays a bypass.
    fn reissue(&mut self, key: PartKey, spare: [u64; 2]) -> Option<u64> {
        let part =
            self.requests.reissuable(key).filter(|part| part.blocks <= spare[usize::from(part.sync)])?;
        let withdrawn = part.is_at_backing && self.backing_withdraw(key);
        match self.requests.reissue(key, withdrawn, &mut self.locks)? {
            Reissued::Waits => self.wakes.raise(Change::Turned),
            Reissued::ReadsBase => {}
            Reissued::Lands if self.mutant(Mutation::ReissueSkipsLog) => self.part_finish(key, None),
            Reissued::GoesOn | Reissued::Lands => self.part_append(key),
        }
        Some(part.blocks)
    }

    /// The log has a piece of the part, in these slots of a record.
    pub(super) fn landing_is_logged(&mut self, key: PartKey, seq: Seq, slots: (SlotRef, u32)) {
        self.requests.landing_is_logged(key, seq, slots);
    }

    /// The backing write of a reissued part has ended; false if the write is none of these.
    fn landed(&mut self, key: PartKey, result: &DeviceResult) -> bool {
        let Some(landing) = self.requests.landed(key) else {
            return false;
        };
        let (range, logged) = (landing.range, landing.logged);
        self.figures.backing_errors += u64::from(result.is_err());
        // Where the log has no version of it yet, a clean copy of an older one is not what the backing holds.
        self.forget_clean(range);
        self.destage_void(range);
        if !self.mutant(Mutation::ReissueUnlocksBacking) {
            self.release(range, Hold::Backing);
        }
        if result.is_ok() && landing.durable && !self.order.keeps_versions() {
            let logged = match self.mutant(Mutation::LandingCleansNewer) {
                true => {
                    self.map.current_in(range).map(|slot| (slot, self.map.segments().seq(slot))).collect()
                }
                false => logged,
            };
            logged.into_iter().for_each(|(slot, seq)| self.destage_landed(slot, seq));
        }
        let answered = self.requests.ends_landed(key);
        self.part_ended(answered);
        true
    }
}

// Flushes.

impl Engine {
    pub(super) fn flush_request(&mut self, id: RequestId, origin: Origin) {
        let mut log_upto = self.log.written_upto();
        self.log.want_durable(log_upto);
        let mut backing_epoch = self.flushes.epoch_wanted();
        if self.mutant(Mutation::FlushForgetsLog) {
            log_upto = Seq(0);
        }
        if self.mutant(Mutation::FlushForgetsBacking) {
            backing_epoch = 0;
        }
        let bypasses = self.flushes.acknowledged();
        let point = self.point_now();
        let issuer = Issuer::of(&origin, false).waits();
        self.requests.flush(Flush { id, log_upto, point, backing_epoch, bypasses, issuer });
        self.backing_flush_if_wanted();
        self.flushes_answer();
    }

    /// Answers flushes whose wait is over.
    pub(super) fn flushes_answer(&mut self) {
        let Some(bypasses) = self.requests.flushes_asked() else {
            return;
        };
        let reached = Reached {
            durable_upto: self.log.durable_upto(),
            retired: self.failure.retired(),
            lost: self.failure.stuck().then(Self::log_failed_error),
            backing_epoch: self.flushes.epoch_done(),
            backing_error: self.flushes.take_client_error(bypasses),
        };
        for flushed in self.requests.flushed(&reached) {
            match flushed.error {
                None => {
                    self.figures.flushes += 1;
                    if !self.mutant(Mutation::OrderForgetsBarrier) {
                        self.order.flushed(flushed.log_upto);
                    }
                    self.points_flushed(flushed.point);
                }
                Some(_) => self.figures.errors += 1,
            }
            let result = flushed.error.map_or(Ok(Reply::Done), Err);
            self.effects.push(Effect::Reply { id: flushed.id, result });
        }
    }
}
