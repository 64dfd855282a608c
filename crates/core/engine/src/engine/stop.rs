//! Commands that take time, carried out: [`crate::stop`] says how far they have come.

use forebay_block::{BlockNo, ErrorKind, IoError, Seq};
use forebay_format::record::{Extent, ExtentKind};

use crate::backing::flushes::flush_failed_error;
use crate::engine::{Engine, Life};
use crate::interface::{Effect, RequestId};
use crate::log::{Append, AppendOwner};
use crate::map::segments::{DIRTY, SlotRef};
use crate::mutation::Mutation;
use crate::stop::{DestageAll, Last, Look, Phase, Settled, Standing, Verdict, unclean_error};
use crate::wakes::Change;

/// Attempts that the backing must fail in a row, which takes it about six seconds, before a command that waits for it
/// gives up.
const GIVES_UP_AFTER: u32 = 6;

impl Engine {
    pub(super) fn destage_command(&mut self, id: RequestId) {
        if self.life != Life::Running {
            let error = IoError::new(ErrorKind::Shutdown, "destage");
            self.effects.push(Effect::CommandDone { id, result: Err(error) });
            return;
        }
        let upto = self.log.written_upto();
        // A restart must not find an older record of a block than the one that was destaged (P3).
        self.log.want_durable(upto);
        let backing_epoch = self.flushes.epoch_wanted();
        self.destage_try_backing();
        self.failure.try_again(self.now);
        self.log_roll_head();
        let bypasses = self.flushes.acknowledged();
        self.commands.destage(DestageAll { id, upto, backing_epoch, bypasses });
        self.backing_flush_if_wanted();
        self.wakes.raise(Change::Command);
    }

    /// `old` is no longer the current version of `block`.
    pub(super) fn command_owes(&mut self, block: BlockNo, old: SlotRef) {
        if self.map.segments().slot(old).has(DIRTY) {
            self.commands.overwritten(block, self.map.segments().seq(old), old);
        }
    }

    pub(super) fn stop_command(&mut self, id: RequestId, destage: bool) {
        if self.life != Life::Running {
            let error = IoError::new(ErrorKind::Shutdown, "stop");
            self.effects.push(Effect::CommandDone { id, result: Err(error) });
            return;
        }
        self.life = Life::Stopping;
        self.failure.try_again(self.now);
        self.commands.stop(id, destage);
    }

    /// True if a stop has moved on.
    pub(super) fn commands_step(&mut self) -> bool {
        self.destages_answer();
        let mut moved = false;
        while let Some(phase) = self.commands.phase() {
            let moves = match phase {
                Phase::Draining => self.stop_drain(),
                Phase::Destaging => self.stop_destage(),
                Phase::Settling => self.stop_settle(),
                Phase::Recording => false,
                Phase::Closing => self.stop_close(),
            };
            if !moves {
                break;
            }
            moved = true;
        }
        moved
    }

    /// Whether something in records up to this one is dirty.
    fn lacks(&self, upto: Seq) -> bool {
        self.map.segments().dirty_after(Seq(0)).next().is_some_and(|(seq, _)| seq <= upto)
    }

    fn destages_answer(&mut self) {
        if !self.commands.waits_for_destage() {
            return;
        }
        self.log_work_out_clean();
        let standing = Standing {
            clean: self.log.clean_upto(),
            all_clean: self.map.segments().dirty() == 0,
            exhausted: self.destage_is_exhausted(),
            backing_fails: self.backing_is_given_up(),
            epoch: self.flushes.epoch_done(),
            durable: self.log.durable_upto(),
            latched: self.failure.latched(),
            retired: self.failure.retired(),
            stuck: self.failure.stuck(),
            forgets_owed: self.mutant(Mutation::DestageForgetsOwed),
        };
        let mut look = Look::default();
        while let Some(command) = self.commands.looked_at(&look) {
            // What is said to be on the backing stays so: a restart must not take it for dirty again.
            let told = self.log.recalls_clean(command.upto) || self.mutant(Mutation::DestageForgetsRecord);
            if self.commands.is_destaged(command, standing) && !told {
                self.log_tell_clean(command.upto);
            }
            let incomplete = self.destage_has_lost() || self.lacks(command.upto);
            let result = match self.commands.judge(&mut look, standing, told, incomplete) {
                Verdict::Waits => continue,
                Verdict::Done(lost) => {
                    match lost.or_else(|| self.flushes.take_command_error(command.bypasses)) {
                        Some(error) => {
                            look.told(&error);
                            Err(error)
                        }
                        None => Ok(()),
                    }
                }
                Verdict::Unreadable => Err(Self::unreadable_error()),
                Verdict::BackingFails => Err(self.backing_fails_error()),
                Verdict::LogFails => Err(Self::log_failed_error()),
            };
            self.effects.push(Effect::CommandDone { id: command.id, result });
        }
        self.commands.looked(look);
        if self.commands.wants_flush(standing.epoch) {
            self.backing_flush_if_wanted();
        }
    }

    /// Bypasses that destage commands wait for could not be made durable. How many requests with bypasses had been
    /// acknowledged when the last such command came, if there was one.
    pub(super) fn destages_fail(&mut self, error: &IoError) -> Option<u64> {
        let failed = self.commands.lose(self.flushes.epoch_done());
        for command in &failed {
            self.effects.push(Effect::CommandDone { id: command.id, result: Err(error.clone()) });
        }
        failed.last().map(|command| command.bypasses)
    }

    fn stop_drain(&mut self) -> bool {
        let idle = self.requests.is_idle()
            && self.reading.has_no_reads()
            && !self.commands.waits_for_destage()
            && !self.points.is_marked();
        if !idle {
            if self.backing_is_given_up() {
                if self.log.waits_for_room() {
                    self.stop_refuse_waiting();
                }
                let error = IoError::new(ErrorKind::Shutdown, "write that waited for the backing");
                self.requests_refuse_bypasses(&error);
            }
            return false;
        }
        if self.commands.drained() {
            self.destage_try_backing();
        }
        self.wakes.raise(Change::Command);
        true
    }

    /// The backing has failed for so long that nobody should wait for it who wants an end.
    pub(super) fn backing_is_given_up(&self) -> bool {
        self.destage.failures().max(self.journal.failures()) >= GIVES_UP_AFTER
    }

    fn backing_fails_error(&self) -> IoError {
        let answer = self.watch.trouble(self.now);
        let (kind, cause) =
            answer.map_or((ErrorKind::Io, None), |answer| (answer.kind, answer.cause.clone()));
        let context = "destaging to a backing that fails (dirty data stays cached and is tried again)";
        IoError { kind, context, cause }
    }

    /// Refuses the writes that wait for room in the log, which only the backing could make.
    fn stop_refuse_waiting(&mut self) {
        for part in self.log.withdraw_parts() {
            self.part_piece_refused(part, IoError::new(ErrorKind::Shutdown, "write that waited for room"));
        }
    }

    fn stop_destage(&mut self) -> bool {
        let error = if self.map.segments().dirty() == 0 && self.destage.is_idle() {
            None
        } else if self.backing_is_given_up() {
            Some(self.backing_fails_error())
        } else if self.destage_is_exhausted() {
            Some(Self::unreadable_error())
        } else {
            return false;
        };
        self.commands.destaged(error);
        true
    }

    /// Nothing is in flight any more: leaves the clean-stop mark.
    fn stop_settle(&mut self) -> bool {
        if self.log.waits_for_room() {
            // Nobody makes room any more.
            self.relocations_cancel();
        }
        let quiet = self.log.is_idle()
            && self.destage.is_idle()
            && self.journal_is_settled()
            && self.reclaim.is_idle()
            && self.flushes.is_idle()
            && self.ios_under_way() == 0;
        if !quiet {
            return false;
        }
        assert!(self.locks.is_empty(), "nothing in flight holds a lock");
        let unflushed = self.flushes.is_lacking() && !self.mutant(Mutation::StopsUnflushed);
        let flush_may_help = self.flushes.is_worth_trying();
        let last = self.commands.settled(&Settled {
            unflushed,
            flush_may_help,
            may_record: self.may_stop_cleanly(),
        });
        if last == Last::Flush {
            self.backing_flush_if_wanted();
            return false;
        }
        // A client may have no time to hear of what a failed flush has lost.
        let mut lost = self.flushes.take_client_error(u64::MAX).or(unflushed.then(flush_failed_error));
        // One may have heard of it, but not whoever asks for a complete backing.
        if self.commands.stop_destages() {
            lost = lost.or(self.flushes.take_command_error(u64::MAX));
        }
        lost.into_iter().for_each(|error| self.commands.stop_fails(error));
        match last {
            Last::Flush => {}
            Last::Record => self.stop_record(unflushed),
            Last::Close if self.failure.retired() => {}
            Last::Close => self.commands.stop_fails(unclean_error()),
        }
        true
    }

    /// Copies that bypasses made untrue are named, else a restart after this stop would believe them (hazard 1).
    /// More names than have room in the log are none.
    fn stop_record(&mut self, unflushed: bool) {
        let untrue = self.map.untrue_blocks().filter(|_| !unflushed);
        let owner = if untrue.is_some() { AppendOwner::Stop } else { AppendOwner::StopDistrusted };
        for range in untrue.unwrap_or_default() {
            let count = range.count.min(u64::from(u32::MAX)) as u32;
            let extent = Some(Extent { block: range.first, count, kind: ExtentKind::Supersede });
            self.log.append_urgent(Append {
                extent,
                data: None,
                owner: AppendOwner::Tick,
                durable: false,
                after: Seq(0),
            });
        }
        let durable = !self.mutant(Mutation::StopsVolatile);
        self.log.append_urgent(Append { extent: None, data: None, owner, durable, after: Seq(0) });
    }

    pub(super) fn stop_record_done(&mut self) {
        self.commands.recorded();
    }

    /// The log's last record could not be written.
    pub(super) fn stop_failed(&mut self) {
        self.commands.recorded();
        self.commands.stop_fails(unclean_error());
    }

    /// The last record may have opened a segment: the summary of the one before is on its way then.
    fn stop_close(&mut self) -> bool {
        if self.ios_under_way() == 0
            && let Some((id, result)) = self.commands.closed()
        {
            self.life = Life::Stopped;
            self.effects.push(Effect::CommandDone { id, result });
        }
        false
    }
}
