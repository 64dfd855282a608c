//! Commands that take time: destage everything, and stop.
//!
//! ```text
//!  Stop ─► Draining: requests finish ─► Destaging, if asked ─► Settling: nothing is in flight ─► Recording ─► Closing ─► Stopped
//! ```
//!
//! [`Commands`] knows who waits for what. The coordinator tells it how far the log and the backing have come, and does what its answers
//! ask for: it appends records, flushes the backing and answers the commands.
//!
//! Invariants:
//! 1. A command to destage is answered well only when the backing has, durably, what was acknowledged before it, and the log says so.
//! 2. What was overwritten since such a command came is *owed* until the backing has that version or a later one.
//! 3. A stop passes its phases in their order, each once; it is answered in the last one.

use std::collections::BTreeMap;

use forebay_block::{BlockNo, ErrorKind, IoError, Seq};

use crate::interface::RequestId;
use crate::map::segments::SlotRef;

/// How far a stop has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Requests finish.
    Draining,
    /// All that is dirty goes to the backing.
    Destaging,
    /// Nothing new starts; what is in flight ends.
    Settling,
    /// The log's last record is on its way.
    Recording,
    /// Whatever that started ends.
    Closing,
}

struct Stop {
    id: RequestId,
    destage: bool,
    phase: Phase,
    error: Option<IoError>,
}

/// A command to destage everything acknowledged before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DestageAll {
    pub(crate) id: RequestId,
    /// The log's last record then.
    pub(crate) upto: Seq,
    /// The flush of the backing that covers the bypasses acknowledged before.
    pub(crate) backing_epoch: u64,
    /// Requests with volatile bypasses that had been acknowledged then.
    pub(crate) bypasses: u64,
}

struct Waiting {
    command: DestageAll,
    /// What a failed flush had taken away when it was told to another command: this one had come before that.
    error: Option<IoError>,
}

/// How far the log and the backing have come, for commands to destage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Standing {
    /// Up to this record the log's data is on the backing.
    pub(crate) clean: Seq,
    /// Nothing at all is dirty.
    pub(crate) all_clean: bool,
    /// What is dirty will not become clean: none of it can be read.
    pub(crate) exhausted: bool,
    /// The backing has failed for so long that nobody should wait for it.
    pub(crate) backing_fails: bool,
    /// Flushes of the backing that are done.
    pub(crate) epoch: u64,
    /// Up to this record the log is durable.
    pub(crate) durable: Seq,
    /// The cache has failed; its log is void; its log can never be void.
    pub(crate) latched: bool,
    pub(crate) retired: bool,
    pub(crate) stuck: bool,
    /// Blocks that were overwritten since a command came count as destaged: a planted bug.
    pub(crate) forgets_owed: bool,
}

/// What becomes of a command to destage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It waits.
    Waits,
    /// Everything is on the backing, and the log says so; but some of it may have been lost by a failed flush.
    Done(Option<IoError>),
    /// Some of it cannot be read, or is lost for good.
    Unreadable,
    /// The backing fails.
    BackingFails,
    /// The log cannot say so any more.
    LogFails,
}

/// A look at all commands to destage, one after the other.
#[derive(Default)]
pub(crate) struct Look {
    at: usize,
    /// What one of them was told: of those that came before it was known, all hear it.
    lost: Option<IoError>,
}

impl Look {
    /// A command was told of a failed flush that has lost something: those that wait, and came before that was known, are told, too.
    pub(crate) fn told(&mut self, error: &IoError) {
        self.lost.get_or_insert_with(|| error.clone());
    }
}

/// Commands under way.
#[derive(Default)]
pub(crate) struct Commands {
    destages: Vec<Waiting>,
    /// Blocks that were dirty when a destage command came and were overwritten since: the backing lacks them until
    /// this or a later version is on it; of the versions in a record, that in the later slot. At most one for each cached block,
    /// and none without a command.
    owed: BTreeMap<BlockNo, (Seq, SlotRef)>,
    stop: Option<Stop>,
}

// Destaging everything.
impl Commands {
    /// Somebody waits for everything to be destaged.
    pub(crate) fn destaging(&self) -> bool {
        self.waits_for_destage() || self.stop.as_ref().is_some_and(|s| s.phase == Phase::Destaging)
    }

    /// A command to destage waits.
    pub(crate) fn waits_for_destage(&self) -> bool {
        !self.destages.is_empty()
    }

    /// A command waits for this block, which has been written again since it came.
    pub(crate) fn owes(&self, block: BlockNo) -> bool {
        self.owed.contains_key(&block)
    }

    /// A command to destage has come.
    pub(crate) fn destage(&mut self, command: DestageAll) {
        self.destages.push(Waiting { command, error: None });
    }

    /// A dirty version of `block` is overwritten; if a destage command waits for it, then so from now on for
    /// the version that replaces it.
    pub(crate) fn overwritten(&mut self, block: BlockNo, seq: Seq, slot: SlotRef) {
        if self.destages.last().is_some_and(|last| seq <= last.command.upto) {
            self.owed.insert(block, (seq, slot));
        }
    }

    /// The backing has the version of `block` that is in this slot, of this record, durably.
    pub(crate) fn paid(&mut self, block: BlockNo, seq: Seq, slot: SlotRef) {
        if self.owed.get(&block).is_some_and(|owed| *owed <= (seq, slot)) {
            self.owed.remove(&block);
        }
    }

    /// The command at which the look has arrived.
    pub(crate) fn looked_at(&self, look: &Look) -> Option<DestageAll> {
        self.destages.get(look.at).map(|waiting| waiting.command)
    }

    /// Whether all that the log had of it is on the backing: it is time for the log to say so.
    pub(crate) fn is_destaged(&self, command: DestageAll, standing: Standing) -> bool {
        let paid = self.owed.is_empty() || standing.forgets_owed;
        (command.upto <= standing.clean || standing.all_clean) && paid || standing.retired
    }

    /// How it stands with the command at which the look has arrived, and if it is to be answered, takes it away. `told`: the log says,
    /// durably, that everything is clean up to it. `incomplete`: something up to it is lost, or passed over.
    pub(crate) fn judge(
        &mut self,
        look: &mut Look,
        standing: Standing,
        told: bool,
        incomplete: bool,
    ) -> Verdict {
        let Standing { exhausted, backing_fails, epoch, durable, latched, retired, stuck, .. } = standing;
        let Some(command) = self.looked_at(look) else { return Verdict::Waits };
        let destaged = self.is_destaged(command, standing);
        let recorded = command.upto <= durable && told || retired;
        let verdict = match destaged && recorded && command.backing_epoch <= epoch {
            // The mark of a lost block may have moved on in the log, away from what the command waits for; and where no mark
            // can be written any more, the order goes on past what is lost.
            true if incomplete && !retired => Verdict::Unreadable,
            true => Verdict::Done(None),
            false if !destaged && exhausted => Verdict::Unreadable,
            // Where the cache has failed nothing is recorded any more, and the end of it waits for the backing.
            false if (!destaged || latched) && backing_fails => Verdict::BackingFails,
            false if !recorded && stuck => Verdict::LogFails,
            false => Verdict::Waits,
        };
        if verdict == Verdict::Waits {
            look.at += 1;
            return verdict;
        }
        let error = self.destages.remove(look.at).error;
        match verdict {
            Verdict::Done(_) => Verdict::Done(error.or_else(|| look.lost.clone())),
            other => other,
        }
    }

    /// All commands have been looked at.
    pub(crate) fn looked(&mut self, look: Look) {
        if let Some(lost) = look.lost {
            self.destages.iter_mut().for_each(|waiting| {
                waiting.error.get_or_insert_with(|| lost.clone());
            });
        }
        if self.destages.is_empty() {
            self.owed.clear();
        }
    }

    /// Whether a command waits for a flush of the backing that is not done; `epoch`: those that are.
    pub(crate) fn wants_flush(&self, epoch: u64) -> bool {
        self.destages.iter().any(|waiting| waiting.command.backing_epoch > epoch)
    }

    /// A flush has failed: the commands that waited for it, in their order, to be answered with its error.
    pub(crate) fn lose(&mut self, epoch: u64) -> Vec<DestageAll> {
        let waits = |waiting: &mut Waiting| waiting.command.backing_epoch > epoch;
        self.destages.extract_if(.., waits).map(|waiting| waiting.command).collect()
    }
}

/// What a stop finds in the end.
pub(crate) struct Settled {
    /// Bypasses are not covered by any flush.
    pub(crate) unflushed: bool,
    /// A flush may cover them.
    pub(crate) flush_may_help: bool,
    /// A record that says so can be left behind.
    pub(crate) may_record: bool,
}

/// What a stop that has settled does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    /// It waits for a flush of the backing.
    Flush,
    /// It leaves the mark of a clean stop.
    Record,
    /// It ends without.
    Close,
}

// Stopping.
impl Commands {
    /// Nothing new is to be started: what is in flight comes to its end.
    pub(crate) fn settling(&self) -> bool {
        matches!(self.phase(), Some(Phase::Settling | Phase::Recording | Phase::Closing))
    }

    /// The commands that are not answered, which nothing comes of any more.
    pub(crate) fn give_up(&mut self) -> Vec<RequestId> {
        let destages = std::mem::take(&mut self.destages).into_iter().map(|waiting| waiting.command.id);
        destages.chain(self.stop.take().map(|stop| stop.id)).collect()
    }

    /// How far the stop has come, if there is one.
    pub(crate) fn phase(&self) -> Option<Phase> {
        self.stop.as_ref().map(|stop| stop.phase)
    }

    /// Whether the stop is to destage everything first.
    pub(crate) fn stop_destages(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.destage)
    }

    /// A command to stop has come.
    pub(crate) fn stop(&mut self, id: RequestId, destage: bool) {
        self.stop = Some(Stop { id, destage, phase: Phase::Draining, error: None });
    }

    /// Requests have finished. Whether everything is to be destaged now.
    pub(crate) fn drained(&mut self) -> bool {
        let destages = self.stop_destages();
        self.go_on(if destages { Phase::Destaging } else { Phase::Settling });
        destages
    }

    /// All is destaged, or as much as can be.
    pub(crate) fn destaged(&mut self, error: Option<IoError>) {
        if let Some(stop) = &mut self.stop {
            stop.error = error;
        }
        self.go_on(Phase::Settling);
    }

    /// Nothing is in flight any more.
    pub(crate) fn settled(&mut self, facts: &Settled) -> Last {
        if facts.unflushed && facts.flush_may_help {
            return Last::Flush;
        }
        let last = if facts.may_record { Last::Record } else { Last::Close };
        self.go_on(if last == Last::Record { Phase::Recording } else { Phase::Closing });
        last
    }

    /// The last record is durable, or there is none.
    pub(crate) fn recorded(&mut self) {
        self.go_on(Phase::Closing);
    }

    /// The stop is answered with this error, if with none that came before.
    pub(crate) fn stop_fails(&mut self, error: IoError) {
        if let Some(stop) = &mut self.stop {
            stop.error.get_or_insert(error);
        }
    }

    /// Nothing at all is under way: who is to be answered, and how.
    pub(crate) fn closed(&mut self) -> Option<(RequestId, Result<(), IoError>)> {
        self.stop.take().map(|stop| (stop.id, stop.error.map_or(Ok(()), Err)))
    }

    fn go_on(&mut self, phase: Phase) {
        if let Some(stop) = &mut self.stop {
            stop.phase = phase;
        }
    }
}

/// The error of a stop that leaves no clean mark because the cache failed.
pub(crate) fn unclean_error() -> IoError {
    IoError::new(ErrorKind::Io, "stop: the cache failed, no clean mark is left")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(id: u64, upto: u64, backing_epoch: u64) -> DestageAll {
        DestageAll { id: RequestId(id), upto: Seq(upto), backing_epoch, bypasses: 0 }
    }

    fn lost() -> IoError {
        IoError::new(ErrorKind::Io, "a test")
    }

    #[test]
    fn when_a_command_to_destage_is_answered() {
        use Verdict::{BackingFails, Done, LogFails, Unreadable, Waits};
        // Everything that a command for records up to 5 and flush 2 waits for.
        let done = Standing { clean: Seq(5), durable: Seq(5), epoch: 2, ..Standing::default() };
        let dirty = Standing { clean: Seq(4), ..done };
        let cases = [
            // How it stands; whether the log says so; whether something is lost; what becomes of it.
            (done, true, false, Done(None)),
            (done, false, false, Waits),
            (Standing { epoch: 1, ..done }, true, false, Waits),
            (Standing { durable: Seq(4), ..done }, true, false, Waits),
            (dirty, true, false, Waits),
            (Standing { all_clean: true, ..dirty }, true, false, Done(None)),
            // What is lost or cannot be read.
            (done, true, true, Unreadable),
            (Standing { exhausted: true, ..dirty }, true, false, Unreadable),
            (Standing { exhausted: true, ..done }, false, false, Waits),
            // The backing fails.
            (Standing { backing_fails: true, ..dirty }, true, false, BackingFails),
            (Standing { backing_fails: true, ..done }, true, false, Done(None)),
            (Standing { backing_fails: true, ..done }, false, false, Waits),
            (Standing { backing_fails: true, latched: true, ..done }, false, false, BackingFails),
            (Standing { backing_fails: true, exhausted: true, ..dirty }, true, false, Unreadable),
            // The cache has failed.
            (Standing { latched: true, ..done }, false, false, Waits),
            (Standing { latched: true, stuck: true, ..done }, false, false, LogFails),
            (Standing { latched: true, stuck: true, ..dirty }, true, false, Waits),
            (Standing { latched: true, retired: true, ..dirty }, false, true, Done(None)),
            (Standing { latched: true, retired: true, epoch: 1, ..dirty }, false, false, Waits),
        ];
        for (standing, told, incomplete, verdict) in cases {
            let mut commands = Commands::default();
            commands.destage(command(1, 5, 2));
            let mut look = Look::default();
            let judged = commands.judge(&mut look, standing, told, incomplete);
            assert_eq!(judged, verdict, "{standing:?}, told {told}, incomplete {incomplete}");
            assert_eq!(commands.waits_for_destage(), verdict == Waits, "{standing:?}");
            assert_eq!(commands.looked_at(&look), None);
        }
    }

    #[test]
    fn what_was_overwritten_is_owed_until_a_later_version_is_there() {
        let mut commands = Commands::default();
        let (block, slot) = (BlockNo(3), SlotRef(1));
        commands.overwritten(block, Seq(4), slot);
        assert!(!commands.owes(block), "no command has come");
        commands.destage(command(1, 5, 0));
        commands.overwritten(block, Seq(6), slot);
        assert!(!commands.owes(block), "it was written after the command");
        commands.overwritten(block, Seq(5), slot);
        let done = Standing { clean: Seq(9), durable: Seq(9), ..Standing::default() };
        assert!(commands.owes(block) && !commands.is_destaged(command(1, 5, 0), done));
        commands.paid(block, Seq(5), SlotRef(0));
        commands.paid(block, Seq(4), SlotRef(9));
        assert!(commands.owes(block), "an older version, or one that the same record overwrites");
        commands.paid(block, Seq(7), SlotRef(0));
        assert!(!commands.owes(block) && commands.is_destaged(command(1, 5, 0), done));
        // With the last command goes what is owed.
        commands.overwritten(block, Seq(5), slot);
        let retired = Standing { retired: true, ..done };
        let mut look = Look::default();
        assert_eq!(commands.judge(&mut look, retired, true, false), Verdict::Done(None));
        commands.looked(look);
        assert!(!commands.owes(block));
    }

    #[test]
    fn who_came_before_a_loss_was_told_hears_of_it_too() {
        let mut commands = Commands::default();
        (1..=3).for_each(|id| commands.destage(command(id, id, 0)));
        let standing = |clean| Standing { clean: Seq(clean), durable: Seq(9), ..Standing::default() };
        let mut look = Look::default();
        assert_eq!(commands.judge(&mut look, standing(1), true, false), Verdict::Done(None));
        look.told(&lost());
        assert_eq!(commands.judge(&mut look, standing(1), true, false), Verdict::Waits);
        assert_eq!(commands.judge(&mut look, standing(3), true, false), Verdict::Done(Some(lost())));
        commands.looked(look);
        commands.destage(command(4, 2, 0));
        let mut look = Look::default();
        assert_eq!(commands.judge(&mut look, standing(2), true, false), Verdict::Done(Some(lost())));
        assert_eq!(commands.judge(&mut look, standing(2), true, false), Verdict::Done(None), "it came later");
        assert_eq!(commands.looked_at(&look), None);
    }

    #[test]
    fn a_failed_flush_ends_the_commands_that_wait_for_it() {
        let mut commands = Commands::default();
        for (id, epoch) in [(1, 1), (2, 2), (3, 1), (4, 3)] {
            commands.destage(command(id, 0, epoch));
        }
        assert!(commands.wants_flush(1) && !commands.wants_flush(3));
        let ids: Vec<u64> = commands.lose(1).iter().map(|command| command.id.0).collect();
        assert_eq!(ids, [2, 4]);
        assert!(commands.waits_for_destage() && !commands.wants_flush(1));
    }

    #[test]
    fn a_stop_passes_its_phases() {
        use Phase::{Closing, Destaging, Draining, Recording, Settling};
        let clean = Settled { unflushed: false, flush_may_help: true, may_record: true };
        for destages in [false, true] {
            let mut commands = Commands::default();
            assert!(commands.phase().is_none() && commands.closed().is_none());
            commands.stop(RequestId(7), destages);
            assert_eq!((commands.phase(), commands.settling()), (Some(Draining), false));
            assert_eq!(commands.drained(), destages);
            assert_eq!(commands.destaging(), destages);
            if destages {
                assert_eq!(commands.phase(), Some(Destaging));
                commands.destaged(None);
            }
            assert_eq!((commands.phase(), commands.settling()), (Some(Settling), true));
            assert_eq!(commands.settled(&Settled { unflushed: true, ..clean }), Last::Flush);
            assert_eq!(commands.phase(), Some(Settling), "it waits for the flush");
            let hopeless = Settled { unflushed: true, flush_may_help: false, ..clean };
            assert_eq!(commands.settled(if destages { &hopeless } else { &clean }), Last::Record);
            assert_eq!(commands.phase(), Some(Recording));
            commands.recorded();
            assert_eq!(commands.phase(), Some(Closing));
            assert_eq!(commands.closed(), Some((RequestId(7), Ok(()))));
            assert_eq!(commands.phase(), None);
        }
        let mut commands = Commands::default();
        commands.stop(RequestId(8), true);
        commands.drained();
        commands.destaged(Some(lost()));
        assert_eq!(commands.settled(&Settled { may_record: false, ..clean }), Last::Close);
        assert_eq!(commands.phase(), Some(Closing));
        commands.stop_fails(unclean_error());
        assert_eq!(commands.closed(), Some((RequestId(8), Err(lost()))), "the first error is told");
    }
}
