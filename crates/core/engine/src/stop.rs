//! Commands that take time: destage everything, and stop.
//!
//! ```text
//!  Stop ─► Draining: requests finish ─► Destaging, if asked ─► Settling: nothing is in flight ─► Recording ─► Closing ─► Stopped
//! ```

use std::collections::BTreeMap;

use forebay_block::{BlockNo, ErrorKind, IoError, Seq};
use forebay_format::record::{Extent, ExtentKind};

use crate::backing::flushes::flush_failed_error;
use crate::engine::{Engine, Life};
use crate::interface::{Effect, RequestId};
use crate::log::{Append, AppendOwner};
use crate::map::segments::{DIRTY, SlotRef};
use crate::mutation::Mutation;
use crate::wakes::Change;

/// Attempts that the backing must fail in a row, which takes it about six seconds, before a command that waits for it
/// gives up.
const GIVES_UP_AFTER: u32 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Draining,
    Destaging,
    Settling,
    Recording,
    Closing,
}

struct Stop {
    id: RequestId,
    destage: bool,
    phase: Phase,
    error: Option<IoError>,
}

/// A command to destage everything acknowledged before it.
struct DestageAll {
    id: RequestId,
    /// The log's last record then.
    upto: Seq,
    /// The flush of the backing that covers the bypasses acknowledged before.
    backing_epoch: u64,
    /// Requests with volatile bypasses that had been acknowledged then.
    bypasses: u64,
    /// What a failed flush had taken away when it was told to another command: this one had come before that.
    error: Option<IoError>,
}

/// Commands under way.
#[derive(Default)]
pub(crate) struct Commands {
    destages: Vec<DestageAll>,
    /// Blocks that were dirty when a destage command came and were overwritten since: the backing lacks them until
    /// this or a later version is on it; of the versions in a record, that in the later slot. At most one for each cached block,
    /// and none without a command.
    owed: BTreeMap<BlockNo, (Seq, SlotRef)>,
    stop: Option<Stop>,
}

impl Commands {
    /// Somebody waits for everything to be destaged.
    pub(crate) fn destaging(&self) -> bool {
        !self.destages.is_empty() || self.stop.as_ref().is_some_and(|s| s.phase == Phase::Destaging)
    }

    /// A command waits for this block, which has been written again since it came.
    pub(crate) fn owes(&self, block: BlockNo) -> bool {
        self.owed.contains_key(&block)
    }

    /// Nothing new is to be started: what is in flight comes to its end.
    pub(crate) fn settling(&self) -> bool {
        self.stop
            .as_ref()
            .is_some_and(|s| matches!(s.phase, Phase::Settling | Phase::Recording | Phase::Closing))
    }
}

impl Engine {
    pub(crate) fn destage_command(&mut self, id: RequestId) {
        if self.life != Life::Running {
            let error = IoError::new(ErrorKind::Shutdown, "destage");
            self.effects.push(Effect::CommandDone { id, result: Err(error) });
            return;
        }
        let upto = self.log.written_upto();
        // A restart must not find an older record of a block than the one that was destaged (P3).
        self.log_want_durable(upto);
        let backing_epoch = self.flushes.epoch_wanted();
        self.destage_try_backing();
        self.failure_try_again();
        self.log_roll_head();
        let bypasses = self.flushes.acknowledged();
        self.commands.destages.push(DestageAll { id, upto, backing_epoch, bypasses, error: None });
        self.backing_flush_if_wanted();
        self.wakes.raise(Change::Command);
    }

    /// `old` is no longer the current version of `block`; if a destage command waits for it, then so from now on for
    /// the version that replaces it.
    pub(crate) fn command_owes(&mut self, block: BlockNo, old: SlotRef) {
        let Some(last) = self.commands.destages.last() else { return };
        let (slot, seq) = (self.map.segments.slot(old), self.map.segments.seq(old));
        if slot.has(DIRTY) && seq <= last.upto {
            self.commands.owed.insert(block, (seq, old));
        }
    }

    /// The backing has the version of `block` that is in this slot, of this record, durably.
    pub(crate) fn command_paid(&mut self, block: BlockNo, seq: Seq, slot: SlotRef) {
        if self.commands.owed.get(&block).is_some_and(|owed| *owed <= (seq, slot)) {
            self.commands.owed.remove(&block);
        }
    }

    pub(crate) fn stop_command(&mut self, id: RequestId, destage: bool) {
        if self.life != Life::Running || self.commands.stop.is_some() {
            let error = IoError::new(ErrorKind::Shutdown, "stop");
            self.effects.push(Effect::CommandDone { id, result: Err(error) });
            return;
        }
        self.life = Life::Stopping;
        self.failure_try_again();
        self.commands.stop = Some(Stop { id, destage, phase: Phase::Draining, error: None });
    }

    /// True if a stop has moved on.
    pub(crate) fn commands_step(&mut self) -> bool {
        self.destages_answer();
        let mut moved = false;
        while let Some(phase) = self.commands.stop.as_ref().map(|s| s.phase) {
            let next = match phase {
                Phase::Draining => self.stop_drained(),
                Phase::Destaging => self.stop_destaged(),
                Phase::Settling => self.stop_settled(),
                Phase::Recording => None,
                Phase::Closing => self.stop_closed(),
            };
            match (next, self.commands.stop.as_mut()) {
                (Some(next), Some(stop)) => stop.phase = next,
                _ => break,
            }
            moved = true;
        }
        moved
    }

    /// Whether something in records up to this one is dirty.
    fn lacks(&self, upto: Seq) -> bool {
        self.map.segments.dirty_after(Seq(0)).next().is_some_and(|(seq, _)| seq <= upto)
    }

    fn destages_answer(&mut self) {
        if self.commands.destages.is_empty() {
            return;
        }
        self.log_work_out_clean();
        let clean = self.log.clean_upto();
        let all = self.map.segments.dirty() == 0;
        let exhausted = self.destage_is_exhausted();
        let backing_fails = self.backing_is_given_up();
        let (epoch, retired) = (self.flushes.epoch_done(), self.failure.retired());
        let forgets = self.mutant(Mutation::DestageForgetsOwed);
        let waiting = std::mem::take(&mut self.commands.destages);
        let mut lost: Option<IoError> = None;
        for mut command in waiting {
            command.error = command.error.take().or_else(|| lost.clone());
            let log_done =
                (command.upto <= clean || all) && (self.commands.owed.is_empty() || forgets) || retired;
            let recorded = command.upto <= self.log.durable_upto() || retired;
            // What is said to be on the backing stays so: a restart must not take it for dirty again.
            let told = self.log.recalls_clean(command.upto) || self.mutant(Mutation::DestageForgetsRecord);
            if log_done && !told {
                self.log_tell_clean(command.upto);
            }
            let recorded = recorded && (told || retired);
            let result = match log_done && recorded && command.backing_epoch <= epoch {
                // The mark of a lost block may have moved on in the log, away from what the command waits for; and where no mark
                // can be written any more, the order goes on past what is lost.
                true if !retired && (self.destage_has_lost() || self.lacks(command.upto)) => {
                    Err(Self::unreadable_error())
                }
                true => match command.error.or_else(|| self.flushes.take_command_error(command.bypasses)) {
                    Some(error) => {
                        lost.get_or_insert(error.clone());
                        Err(error)
                    }
                    None => Ok(()),
                },
                false if !log_done && exhausted => Err(Self::unreadable_error()),
                // Where the cache has failed nothing is recorded any more, and the end of it waits for the backing.
                false if (!log_done || self.failure.latched()) && backing_fails => {
                    Err(self.backing_fails_error())
                }
                false if !recorded && self.failure.stuck() => Err(Self::log_failed_error()),
                false => {
                    self.commands.destages.push(command);
                    continue;
                }
            };
            self.effects.push(Effect::CommandDone { id: command.id, result });
        }
        if let Some(lost) = lost {
            self.commands.destages.iter_mut().for_each(|c| c.error = c.error.take().or(Some(lost.clone())));
        }
        if self.commands.destages.is_empty() {
            self.commands.owed.clear();
        }
        if self.commands.destages.iter().any(|c| c.backing_epoch > epoch) {
            self.backing_flush_if_wanted();
        }
    }

    /// Bypasses that destage commands wait for could not be made durable. How many requests with bypasses had been
    /// acknowledged when the last such command came, if there was one.
    pub(crate) fn destages_fail(&mut self, error: &IoError) -> Option<u64> {
        let epoch = self.flushes.epoch_done();
        let (failed, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.commands.destages).into_iter().partition(|c| c.backing_epoch > epoch);
        self.commands.destages = waiting;
        for command in &failed {
            self.effects.push(Effect::CommandDone { id: command.id, result: Err(error.clone()) });
        }
        failed.last().map(|command| command.bypasses)
    }

    fn stop_drained(&mut self) -> Option<Phase> {
        let idle = self.requests.is_idle()
            && self.reading.has_no_reads()
            && self.commands.destages.is_empty()
            && !self.points.is_marked();
        let destage = self.commands.stop.as_ref().is_some_and(|s| s.destage);
        if !idle {
            if self.backing_is_given_up() {
                if self.log.waits_for_room() {
                    self.stop_refuse_waiting();
                }
                let error = IoError::new(ErrorKind::Shutdown, "write that waited for the backing");
                self.requests_refuse_bypasses(&error);
            }
            return None;
        }
        if destage {
            self.destage_try_backing();
        }
        self.wakes.raise(Change::Command);
        Some(if destage { Phase::Destaging } else { Phase::Settling })
    }

    /// The backing has failed for so long that nobody should wait for it who wants an end.
    pub(crate) fn backing_is_given_up(&self) -> bool {
        self.destage.failures().max(self.journal_failures()) >= GIVES_UP_AFTER
    }

    fn backing_fails_error(&self) -> IoError {
        let (kind, cause) =
            self.watch.trouble(self.now).map_or((ErrorKind::Io, None), |answer| (answer.kind, answer.cause));
        let context = "destaging to a backing that fails (dirty data stays cached and is tried again)";
        IoError { kind, context, cause }
    }

    /// Refuses the writes that wait for room in the log, which only the backing could make.
    fn stop_refuse_waiting(&mut self) {
        for part in self.log.withdraw_parts() {
            self.part_piece_refused(part, IoError::new(ErrorKind::Shutdown, "write that waited for room"));
        }
    }

    fn stop_destaged(&mut self) -> Option<Phase> {
        let error = if self.map.segments.dirty() == 0 && self.destage.is_idle() {
            None
        } else if self.backing_is_given_up() {
            Some(self.backing_fails_error())
        } else if self.destage_is_exhausted() {
            Some(Self::unreadable_error())
        } else {
            return None;
        };
        if let Some(stop) = self.commands.stop.as_mut() {
            stop.error = error;
        }
        Some(Phase::Settling)
    }

    /// Nothing is in flight any more: leaves the clean-stop mark.
    fn stop_settled(&mut self) -> Option<Phase> {
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
            return None;
        }
        assert!(self.locks.is_empty(), "nothing in flight holds a lock");
        let unflushed = self.flushes.is_lacking() && !self.mutant(Mutation::StopsUnflushed);
        if unflushed && self.flushes.is_worth_trying() {
            self.backing_flush_if_wanted();
            return None;
        }
        // A client may have no time to hear of what a failed flush has lost.
        let mut lost = self.flushes.take_client_error(u64::MAX).or(unflushed.then(flush_failed_error));
        // One may have heard of it, but not whoever asks for a complete backing.
        if self.commands.stop.as_ref().is_some_and(|s| s.destage) {
            lost = lost.or(self.flushes.take_command_error(u64::MAX));
        }
        if let (Some(error), Some(stop)) = (lost, self.commands.stop.as_mut()) {
            stop.error.get_or_insert(error);
        }
        if !self.may_stop_cleanly() {
            self.stop_record_over(!self.failure.retired());
            return Some(Phase::Closing);
        }
        // Copies that bypasses made untrue are named, else a restart after this stop would believe them (hazard 1).
        // More names than have room in the log are none.
        let untrue = self.untrue_blocks().filter(|r| !unflushed && r.len() <= self.untrue_ranges_max());
        let owner = if untrue.is_some() { AppendOwner::Stop } else { AppendOwner::StopDistrusted };
        for range in untrue.unwrap_or_default() {
            let count = range.count.min(u64::from(u32::MAX)) as u32;
            let extent = Some(Extent { block: range.first, count, kind: ExtentKind::Supersede });
            self.log_append_urgent(Append {
                extent,
                data: None,
                owner: AppendOwner::Tick,
                durable: false,
                after: Seq(0),
            });
        }
        let durable = !self.mutant(Mutation::StopsVolatile);
        self.log_append_urgent(Append { extent: None, data: None, owner, durable, after: Seq(0) });
        Some(Phase::Recording)
    }

    pub(crate) fn stop_record_done(&mut self) {
        self.stop_record_over(false);
    }

    /// The log's last record could not be written.
    pub(crate) fn stop_failed(&mut self) {
        self.stop_record_over(true);
    }

    fn stop_record_over(&mut self, unclean: bool) {
        if let Some(stop) = self.commands.stop.as_mut() {
            stop.phase = Phase::Closing;
            if unclean {
                let error = IoError::new(ErrorKind::Io, "stop: the cache failed, no clean mark is left");
                stop.error.get_or_insert(error);
            }
        }
    }

    /// The last record may have opened a segment: the summary of the one before is on its way then.
    fn stop_closed(&mut self) -> Option<Phase> {
        if self.ios_under_way() == 0
            && let Some(stop) = self.commands.stop.take()
        {
            self.life = Life::Stopped;
            let result = stop.error.map_or(Ok(()), Err);
            self.effects.push(Effect::CommandDone { id: stop.id, result });
        }
        None
    }
}
