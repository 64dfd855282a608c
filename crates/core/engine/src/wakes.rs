//! Wake-ups: who sleeps until something changes, and what wakes whom.
//!
//! Parts that wait (for locks, for room, for their turn) and destaging that has found nothing to do are not tried again in each
//! round: they sleep. A change that might let one of them go on wakes it. One that nobody hears of is a hang (P7), so that all of
//! them stand in one table, [`Change::wakes`]. What has to be done at an instant is no wake-up: each part says when
//! ([`crate::Engine::next_wake`]).

/// Who sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleeper {
    /// Parts of requests that could not start.
    Parts,
    /// Destaging that found nothing that may go now.
    Destage,
}

/// Something that may let a sleeper go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Locks were given back. The mark of a lost block may have waited for one of them, if there is such a mark.
    Released { lost: bool },
    /// A version has become current, or no version is.
    Current,
    /// A durable record says more of what is clean, or of where the log begins; somebody may wait for it.
    Claimed { awaited: bool },
    /// A group has been committed, left behind or given up; somebody may wait until none is left.
    Groups { awaited: bool },
    /// More is on the backing in its order.
    Progress,
    /// A bypass waits for its turn, and the order moves in steps that are no progress.
    Turn,
    /// The write policy has changed, and with it what may go when.
    Policy,
    /// A part goes to the log in place of the backing.
    Turned,
    /// The cache has failed.
    CacheFailed,
    /// Its log is void, or can never be.
    CacheEnded,
    /// What was on its way to the backing has ended, well or not.
    Destaged,
    /// What is to go to the backing next is chosen anew.
    Plan,
    /// A block that could not be read may be tried again.
    Readable,
    /// A command waits for the backing.
    Command,
}

impl Change {
    /// Whether waiting parts wake, and whether destaging does.
    const fn wakes(self) -> (bool, bool) {
        match self {
            Self::Released { lost } => (true, lost),
            Self::Claimed { awaited } | Self::Groups { awaited } => (awaited, true),
            Self::Progress | Self::Turn | Self::Turned | Self::CacheEnded => (true, false),
            Self::Current
            | Self::CacheFailed
            | Self::Destaged
            | Self::Plan
            | Self::Readable
            | Self::Command => (false, true),
            Self::Policy => (true, true),
        }
    }
}

/// Who is awake.
pub(crate) struct Wakes {
    parts: bool,
    destage: bool,
}

impl Default for Wakes {
    fn default() -> Self {
        Self { parts: false, destage: true }
    }
}

impl Wakes {
    /// Something has changed.
    pub(crate) fn raise(&mut self, change: Change) {
        let (parts, destage) = change.wakes();
        self.parts |= parts;
        self.destage |= destage;
    }

    /// Whether it is to be tried.
    pub(crate) fn is_awake(&self, who: Sleeper) -> bool {
        match who {
            Sleeper::Parts => self.parts,
            Sleeper::Destage => self.destage,
        }
    }

    /// It has been tried, and sleeps until the next change if it found `nothing`.
    pub(crate) fn tried(&mut self, who: Sleeper, nothing: bool) {
        match who {
            Sleeper::Parts => self.parts = !nothing,
            Sleeper::Destage => self.destage = !nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who is awake after one change, when both slept.
    fn woken(change: Change) -> (bool, bool) {
        let mut wakes = Wakes::default();
        wakes.tried(Sleeper::Parts, true);
        wakes.tried(Sleeper::Destage, true);
        wakes.raise(change);
        (wakes.is_awake(Sleeper::Parts), wakes.is_awake(Sleeper::Destage))
    }

    #[test]
    fn each_change_wakes_whom_it_concerns() {
        for (change, awake) in [
            (Change::Released { lost: false }, (true, false)),
            (Change::Released { lost: true }, (true, true)),
            (Change::Current, (false, true)),
            (Change::Claimed { awaited: false }, (false, true)),
            (Change::Claimed { awaited: true }, (true, true)),
            (Change::Groups { awaited: false }, (false, true)),
            (Change::Groups { awaited: true }, (true, true)),
            (Change::Progress, (true, false)),
            (Change::Turn, (true, false)),
            (Change::Policy, (true, true)),
            (Change::Turned, (true, false)),
            (Change::CacheFailed, (false, true)),
            (Change::CacheEnded, (true, false)),
            (Change::Destaged, (false, true)),
            (Change::Plan, (false, true)),
            (Change::Readable, (false, true)),
            (Change::Command, (false, true)),
        ] {
            assert_eq!(woken(change), awake, "{change:?}");
        }
    }

    #[test]
    fn who_sleeps_stays_asleep_until_a_change() {
        let mut wakes = Wakes::default();
        assert!(!wakes.is_awake(Sleeper::Parts) && wakes.is_awake(Sleeper::Destage));
        wakes.raise(Change::Progress);
        wakes.tried(Sleeper::Destage, true);
        wakes.tried(Sleeper::Destage, true);
        assert!(wakes.is_awake(Sleeper::Parts) && !wakes.is_awake(Sleeper::Destage));
    }
}
