//! Flushes of the backing: whom one must cover, and who hears of one that failed.
//!
//! A bypass may be acknowledged before it is durable, as any write to a disk with a cache may be. Such a write is *volatile*. Whoever asks
//! for durability later needs a flush that began after the write had ended. *Epochs* number these flushes:
//!
//! ```text
//!  a volatile write ends ──► wanted = 1 + the epoch that has begun      wanted > done: a flush is due, unless one is under way
//!  a flush begins          it is to reach `wanted`
//!  it ends well            done = that epoch, if no other flush has failed meanwhile
//!  any flush fails         a loss: no later flush covers what was written before
//! ```
//!
//! Of a loss each client that asks for a flush hears once, whatever has succeeded meanwhile, and so does each command that promises a
//! complete backing.
//!
//! Invariants:
//! 1. `done <= wanted`, and `done` is reached only by a flush that began after all writes that it covers had ended.
//! 2. What a loss may have taken is told to somebody who asked after it was acknowledged: who asked earlier does not settle it.
//!
//! It neither asks for the flush nor answers anybody: the coordinator does.

use forebay_block::{ErrorKind, IoError};

use crate::mutation::{Mutation, Planted};

/// A failed flush of which not everybody has heard.
///
/// Who asked before one of the bypasses was acknowledged that it may have lost is told, too, but takes it for that of the
/// bypasses before: the next one to ask must still hear of it.
struct Untold {
    error: IoError,
    /// [`Flushes::acknowledged`] when it failed.
    acknowledged: u64,
}

impl Untold {
    /// The error for somebody who asked when so many requests had been acknowledged.
    fn tell(untold: &mut Option<Self>, asked: u64) -> Option<IoError> {
        let known = untold.take_if(|untold| asked >= untold.acknowledged);
        known.as_ref().or(untold.as_ref()).map(|untold| untold.error.clone())
    }
}

/// A flush for those who asked.
#[derive(Clone, Copy)]
struct UnderWay {
    epoch: u64,
    losses: u64,
}

/// Which volatile bypasses are durable, and who has not heard yet of those that may be lost.
#[derive(Default)]
pub(crate) struct Flushes {
    /// Number of the flush that makes every volatile bypass so far durable.
    wanted: u64,
    done: u64,
    under_way: Option<UnderWay>,
    /// Requests acknowledged, with volatile bypasses in them.
    acknowledged: u64,
    /// What the next client to flush is told, and the next command that promises a complete backing.
    client_error: Option<Untold>,
    command_error: Option<Untold>,
    /// The last flush that was to cover bypasses failed.
    fails: bool,
    losses: u64,
}

impl Flushes {
    /// The last run may have acknowledged bypasses that no flush has covered, unless it stopped cleanly: the first
    /// flush has to reach the backing then.
    pub(crate) fn new(clean_stop: bool) -> Self {
        Self { wanted: u64::from(!clean_stop), ..Self::default() }
    }

    /// Number of the flush that covers all volatile bypasses that have ended.
    pub(crate) fn epoch_wanted(&self) -> u64 {
        self.wanted
    }

    /// The newest flush that is known to have covered what it had to.
    pub(crate) fn epoch_done(&self) -> u64 {
        self.done
    }

    /// Whether there are volatile bypasses that no flush has covered.
    pub(crate) fn is_lacking(&self) -> bool {
        self.wanted > self.done
    }

    /// Flushes of the backing that failed, whoever had asked for them. What was written before such a flush is not
    /// made durable by any later one: only writing it again does that.
    pub(crate) fn losses(&self) -> u64 {
        self.losses
    }

    /// Requests with volatile bypasses acknowledged so far: whoever asks for durability now asks for theirs.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Whether the backing has not just refused to flush.
    pub(crate) fn is_worth_trying(&self) -> bool {
        !self.fails
    }

    /// Whether no flush for those who asked is on its way.
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way.is_none()
    }

    /// A volatile bypass has ended well: a flush that begins from now on covers it.
    pub(crate) fn bypass_ended(&mut self) {
        self.wanted = self.under_way.map_or(self.done, |flush| flush.epoch) + 1;
    }

    /// A request with volatile bypasses is acknowledged.
    pub(crate) fn acknowledge(&mut self) {
        self.acknowledged += 1;
    }

    /// Begins the flush that is due; false if none is, or one is under way.
    pub(crate) fn begin(&mut self) -> bool {
        let begins = self.under_way.is_none() && self.is_lacking();
        if begins {
            self.under_way = Some(UnderWay { epoch: self.wanted, losses: self.losses });
        }
        begins
    }

    /// The flush that [`Flushes::begin`] began has ended; if not well, [`Flushes::failed`] is told, too.
    pub(crate) fn ended(&mut self, well: bool) {
        // What failed meanwhile has told the clients already.
        if let Some(flush) = self.under_way.take()
            && well
            && flush.losses == self.losses
        {
            self.done = self.done.max(flush.epoch);
            self.fails = false;
        }
    }

    /// Any flush of the backing has failed. Whether volatile bypasses may be lost, of which clients and commands have to hear:
    /// [`Flushes::commands_told`] is called then with those who hear at once.
    pub(crate) fn failed(&mut self, error: &IoError, planted: Planted) -> bool {
        self.losses += 1;
        let lost = self.is_lacking();
        if lost {
            self.fails = true;
            if !planted.is(Mutation::ForgetsFailedFlush) {
                let once = planted.is(Mutation::TellsFailedFlushTooEarly);
                let acknowledged = if once { 0 } else { self.acknowledged };
                let untold = || Some(Untold { error: error.clone(), acknowledged });
                (self.client_error, self.command_error) = (untold(), untold());
            }
        }
        lost
    }

    /// The commands that waited for a failed flush have heard of it; the last of them had asked when so many requests had been
    /// acknowledged.
    pub(crate) fn commands_told(&mut self, asked: u64) {
        self.command_error.take_if(|untold| asked >= untold.acknowledged);
    }

    /// The error of a client's flush that was asked for when so many requests had been acknowledged.
    pub(crate) fn take_client_error(&mut self, asked: u64) -> Option<IoError> {
        Untold::tell(&mut self.client_error, asked)
    }

    /// The same of a command that promises a complete backing.
    pub(crate) fn take_command_error(&mut self, asked: u64) -> Option<IoError> {
        Untold::tell(&mut self.command_error, asked)
    }
}

/// The error of an operation whose data a failed flush may have lost.
pub(crate) fn flush_failed_error() -> IoError {
    IoError::new(ErrorKind::Io, "a flush of the backing failed")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happens, in turn, and what somebody is told then.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// A volatile bypass ends.
        Ends,
        /// Its request is acknowledged.
        Acknowledged,
        /// A flush for those who asked begins, if one is due.
        Begins(bool),
        /// It ends well; or not, which is a failed flush.
        EndsWell,
        Fails,
        /// A flush for somebody else fails: of destaging, or of a group.
        AnotherFails,
        /// The command that waits hears of the failure at once; it asked when so many were acknowledged.
        CommandHears(u64),
        /// A client's flush looks whether something was lost; it asked when so many were acknowledged.
        Client(u64, bool),
        /// The same of a command.
        Command(u64, bool),
        /// Whether volatile bypasses are left that no flush has covered.
        Lacks(bool),
    }
    use Step::{
        Acknowledged, AnotherFails, Begins, Client, Command, CommandHears, Ends, EndsWell, Fails, Lacks,
    };

    fn run(steps: &[Step]) {
        let mut flushes = Flushes::new(true);
        for (at, step) in steps.iter().enumerate() {
            let error = IoError::new(ErrorKind::Io, "a test");
            let none = Planted::default();
            match *step {
                Ends => flushes.bypass_ended(),
                Acknowledged => flushes.acknowledge(),
                Begins(does) => assert_eq!(flushes.begin(), does, "{at} of {steps:?}"),
                EndsWell => flushes.ended(true),
                Fails => {
                    flushes.ended(false);
                    flushes.failed(&error, none);
                }
                AnotherFails => {
                    let lacks = flushes.is_lacking();
                    assert_eq!(flushes.failed(&error, none), lacks, "{at} of {steps:?}");
                }
                CommandHears(asked) => flushes.commands_told(asked),
                Client(asked, told) => {
                    assert_eq!(flushes.take_client_error(asked).is_some(), told, "{at} of {steps:?}");
                }
                Command(asked, told) => {
                    assert_eq!(flushes.take_command_error(asked).is_some(), told, "{at} of {steps:?}");
                }
                Lacks(lacks) => assert_eq!(flushes.is_lacking(), lacks, "{at} of {steps:?}"),
            }
            assert!(flushes.epoch_done() <= flushes.epoch_wanted(), "{at} of {steps:?}");
        }
    }

    #[test]
    fn who_hears_of_a_failed_flush() {
        let cases: &[&[Step]] = &[
            // Where nothing was volatile nobody hears.
            &[AnotherFails, Client(0, false), Command(0, false)],
            // Once each, whatever succeeds in between.
            &[
                Ends,
                Acknowledged,
                Begins(true),
                Fails,
                Begins(true),
                EndsWell,
                Client(1, true),
                Client(1, false),
            ],
            &[Ends, Acknowledged, Begins(true), Fails, Client(1, true), Command(1, true), Command(1, false)],
            // Whose flush it was does not matter.
            &[Ends, Acknowledged, AnotherFails, Client(1, true), Command(1, true)],
            // Who asked before the last bypass was acknowledged hears of it, and does not settle it.
            &[
                Ends,
                Acknowledged,
                Ends,
                Acknowledged,
                AnotherFails,
                Client(1, true),
                Client(1, true),
                Client(2, true),
                Client(2, false),
            ],
            &[
                Ends,
                Acknowledged,
                Ends,
                Acknowledged,
                AnotherFails,
                Command(0, true),
                Command(3, true),
                Command(3, false),
            ],
            // A command that waits hears at once; the next one only if that had asked too early. Clients hear all the same.
            &[Ends, Acknowledged, AnotherFails, CommandHears(1), Command(1, false), Client(1, true)],
            &[Ends, Acknowledged, AnotherFails, CommandHears(0), Command(1, true), Client(1, true)],
            // What a flush has covered is not lost by the next.
            &[Ends, Acknowledged, Begins(true), EndsWell, AnotherFails, Client(1, false), Command(1, false)],
            // A second failure that finds nothing to lose does not take the first one's news away.
            &[
                Ends,
                Acknowledged,
                AnotherFails,
                Begins(true),
                EndsWell,
                Lacks(false),
                AnotherFails,
                Client(1, true),
            ],
        ];
        cases.iter().for_each(|steps| run(steps));
    }

    #[test]
    fn a_flush_covers_what_had_ended_when_it_began() {
        let cases: &[&[Step]] = &[
            &[Lacks(false), Begins(false)],
            &[Ends, Lacks(true), Begins(true), Begins(false), EndsWell, Lacks(false), Begins(false)],
            // What ends meanwhile needs one of its own.
            &[Ends, Begins(true), Ends, EndsWell, Lacks(true), Begins(true), EndsWell, Lacks(false)],
            // Its success counts for nothing where another has failed meanwhile.
            &[Ends, Begins(true), AnotherFails, EndsWell, Lacks(true), Begins(true), EndsWell, Lacks(false)],
            &[Ends, Begins(true), Fails, Lacks(true), Begins(true), EndsWell, Lacks(false)],
        ];
        cases.iter().for_each(|steps| run(steps));
    }

    #[test]
    fn who_has_just_failed_is_not_worth_trying_until_it_succeeds() {
        let mut flushes = Flushes::new(false);
        assert!(flushes.is_lacking(), "the last run was killed");
        assert!(flushes.begin() && !flushes.is_idle() && flushes.is_worth_trying());
        flushes.ended(false);
        flushes.failed(&IoError::new(ErrorKind::Io, "a test"), Planted::default());
        assert!(flushes.is_idle() && !flushes.is_worth_trying() && flushes.losses() == 1);
        assert!(flushes.begin());
        flushes.ended(true);
        assert!(flushes.is_worth_trying() && !flushes.is_lacking());
    }
}
