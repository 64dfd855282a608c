//! Admission: which writes enter the cache (`docs/design/promises.md`, Admission; ATC'15, section 4).

use forebay_block::{Criticality, Origin};

use crate::settings::spelled_enum;

spelled_enum! {
    /// The admission policies.
    Admission {
        /// Every write.
        All = "all",
        /// Writes flagged synchronous.
        Sync = "sync",
        /// Writes that touch one of the volume's ranges.
        Range = "range",
        /// Writes to journals that were found by their shape ([`crate::Journals`]).
        Journal = "journal",
        /// Synchronous writes of critical tasks (ATC'15, section 4: CP).
        Cp = "cp",
        /// Also those of tasks that inherited criticality (process inheritance: CP+PI).
        CpPi = "cp+pi",
        /// Also outstanding bypasses that a critical task comes to wait for (I/O inheritance: CP+PI+IOI).
        CpPiIoi = "cp+pi+ioi",
        /// Every write while the log is roomy and the endurance budget lasts; else as the one before.
        Adaptive = "adaptive",
    }
}

/// What the chooser may look at.
#[derive(Clone, Copy, Debug)]
pub struct WriteContext {
    /// Who issued the write and why.
    pub origin: Origin,
    /// Force unit access was asked for.
    pub fua: bool,
    /// It touches one of the volume's ranges.
    pub in_range: bool,
    /// It is to a journal that was found.
    pub in_journal: bool,
    /// The log is roomy, and the endurance budget lasts.
    pub roomy: bool,
}

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Into the log.
    Cache(AdmissionReason),
    /// To the backing without entering the cache.
    Bypass(AdmissionReason),
}

spelled_enum! {
    /// Why a write went where it went; each is counted. Those up to `reissued` are in the cache.
    AdmissionReason {
        /// The policy admits everything.
        All = "all",
        /// The write is flagged synchronous.
        Synchronous = "sync",
        /// It touches one of the volume's ranges.
        InRange = "range",
        /// It is to a journal that was found.
        InJournal = "journal",
        /// A critical task issued it and waits for it.
        Direct = "direct",
        /// A task issued it for which a critical task waits.
        Inherited = "inherited",
        /// The log is roomy and the endurance budget lasts.
        Roomy = "roomy",
        /// Under `journaled` the backing moves only from point to point (`group-ends`), and nothing goes past the groups.
        GroupEnds = "group-ends",
        /// It was on its way to the backing when a critical task came to wait for it.
        Reissued = "reissued",
        /// Bypassed: nobody is known to wait for it.
        NotSynchronous = "not-sync",
        /// Bypassed: it touches no range.
        OutOfRange = "out-of-range",
        /// Bypassed: it is to no journal that was found.
        NotInJournal = "not-journal",
        /// Bypassed: it is to a journal that was found, and `journal-caching` is `bypass`.
        PastJournal = "journal-bypass",
        /// Bypassed: no request is known to wait for it.
        NotCritical = "not-critical",
        /// Bypassed: a request waits for it, but its control group or export has used up its rate of critical writes.
        OverRate = "over-rate",
        /// Bypassed: the cache has no room, and `on-full` is `bypass`; or none to spare for what nobody waited for when it was issued.
        NoRoom = "no-room",
        /// Bypassed: under `write-through` everything goes to the backing first.
        WriteThrough = "write-through",
        /// Bypassed: so many zeroes that the backing makes them faster.
        LongZero = "long-zero",
        /// Bypassed: the cache has failed.
        CacheFailed = "cache-failed",
        /// Bypassed: the volume has no cache.
        NoCache = "no-cache",
    }
}

impl AdmissionReason {
    /// What it means, in a few words.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::All => "the policy admits every write",
            Self::Synchronous => "flagged synchronous",
            Self::InRange => "touches one of the volume's ranges",
            Self::InJournal => "to a journal that was found by its shape",
            Self::Direct => "a critical task waits for it",
            Self::Inherited => "its task holds up a critical one",
            Self::Roomy => "the cache is roomy, and the endurance budget lasts",
            Self::GroupEnds => "the backing moves from point to point only (group-ends)",
            Self::Reissued => "was on its way to the backing when a critical task came to wait",
            Self::NotSynchronous => "not flagged synchronous",
            Self::OutOfRange => "touches no range",
            Self::NotInJournal => "to no journal that was found by its shape",
            Self::PastJournal => "to a journal that was found by its shape, and journal-caching is bypass",
            Self::NotCritical => "no request is known to wait for it",
            Self::OverRate => "its rule or export has used up its rate of critical writes",
            Self::NoRoom => {
                "the cache has no room (and on-full is bypass), or none to spare for what would be reissued"
            }
            Self::WriteThrough => "write-through: to the backing first",
            Self::LongZero => "more zeroes than the cache takes in one request",
            Self::CacheFailed => "the cache has failed",
            Self::NoCache => "the volume has no cache",
        }
    }

    /// Whether such a write is in the cache.
    pub const fn is_cached(self) -> bool {
        (self as usize) <= (Self::Reissued as usize)
    }
}

/// How many writes went where they went, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReasonCounts([u64; AdmissionReason::ALL.len()]);

impl ReasonCounts {
    /// Counts one more.
    pub fn count(&mut self, reason: AdmissionReason) {
        self.0[reason as usize] += 1;
    }

    /// How many there were.
    pub fn get(&self, reason: AdmissionReason) -> u64 {
        self.0[reason as usize]
    }
}

impl Admission {
    /// Chooses for one write.
    pub fn decide(self, write: &WriteContext) -> Decision {
        use AdmissionReason as Why;
        let sync = write.origin.is_sync(write.fua);
        let inherits = matches!(self, Self::CpPi | Self::CpPiIoi | Self::Adaptive);
        match self {
            Self::All => Decision::Cache(Why::All),
            Self::Sync if sync => Decision::Cache(Why::Synchronous),
            Self::Sync => Decision::Bypass(Why::NotSynchronous),
            Self::Range if write.in_range => Decision::Cache(Why::InRange),
            Self::Range => Decision::Bypass(Why::OutOfRange),
            Self::Journal if write.in_journal => Decision::Cache(Why::InJournal),
            Self::Journal => Decision::Bypass(Why::NotInJournal),
            Self::Adaptive if write.roomy => Decision::Cache(Why::Roomy),
            Self::Cp | Self::CpPi | Self::CpPiIoi | Self::Adaptive => match write.origin.criticality {
                Criticality::Direct if sync => Decision::Cache(Why::Direct),
                Criticality::Inherited if sync && inherits => Decision::Cache(Why::Inherited),
                Criticality::Awaited if self.reissues() => Decision::Cache(Why::Reissued),
                Criticality::Capped => Decision::Bypass(Why::OverRate),
                _ => Decision::Bypass(Why::NotCritical),
            },
        }
    }

    /// Whether an outstanding bypass that a critical task comes to wait for is reissued to the log (I/O inheritance).
    pub fn reissues(self) -> bool {
        matches!(self, Self::CpPiIoi | Self::Adaptive)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn decide(admission: Admission, sync: bool, criticality: Criticality, in_range: bool) -> Decision {
        let origin = Origin { sync, criticality, ..Origin::default() };
        admission.decide(&WriteContext { origin, fua: false, in_range, in_journal: false, roomy: false })
    }

    /// ATC'15, section 4: each policy admits what the one below it does, and more.
    #[test]
    fn each_policy_admits_what_its_name_says() {
        use Criticality::{Awaited, Direct, Inherited, None};
        let capped = decide(Admission::CpPiIoi, true, Criticality::Capped, false);
        assert_eq!(capped, Decision::Bypass(AdmissionReason::OverRate));
        let rows = [
            (Admission::All, [true; 8]),
            (Admission::Sync, [false, true, false, true, false, true, false, true]),
            (Admission::Range, [false; 8]),
            (Admission::Journal, [false; 8]),
            (Admission::Cp, [false, false, false, true, false, false, false, false]),
            (Admission::CpPi, [false, false, false, true, false, true, false, false]),
            (Admission::CpPiIoi, [false, false, false, true, false, true, true, true]),
            (Admission::Adaptive, [false, false, false, true, false, true, true, true]),
        ];
        assert_eq!(rows.len(), Admission::ALL.len());
        for (admission, expected) in rows {
            let cases = [None, Direct, Inherited, Awaited].into_iter().flat_map(|c| [(false, c), (true, c)]);
            for ((sync, criticality), cached) in cases.zip(expected) {
                let decision = decide(admission, sync, criticality, false);
                assert_eq!(
                    matches!(decision, Decision::Cache(_)),
                    cached,
                    "{admission} {sync} {criticality:?}"
                );
            }
        }
        assert_eq!(decide(Admission::Range, false, None, true), Decision::Cache(AdmissionReason::InRange));
    }

    #[test]
    fn a_journal_is_admitted_whoever_waits_for_it() {
        let write = WriteContext {
            origin: Origin::default(),
            fua: false,
            in_range: false,
            in_journal: true,
            roomy: false,
        };
        assert_eq!(Admission::Journal.decide(&write), Decision::Cache(AdmissionReason::InJournal));
        let other = WriteContext { in_journal: false, ..write };
        assert_eq!(Admission::Journal.decide(&other), Decision::Bypass(AdmissionReason::NotInJournal));
    }

    #[test]
    fn forced_unit_access_is_waited_for() {
        let origin = Origin { criticality: Criticality::Direct, ..Origin::default() };
        let write = WriteContext { origin, fua: true, in_range: false, in_journal: false, roomy: false };
        assert_eq!(Admission::Cp.decide(&write), Decision::Cache(AdmissionReason::Direct));
    }

    #[test]
    fn adaptive_takes_everything_while_there_is_room() {
        let write = WriteContext {
            origin: Origin::default(),
            fua: false,
            in_range: false,
            in_journal: false,
            roomy: true,
        };
        assert_eq!(Admission::Adaptive.decide(&write), Decision::Cache(AdmissionReason::Roomy));
        let full = WriteContext { roomy: false, ..write };
        assert_eq!(Admission::Adaptive.decide(&full), Admission::CpPiIoi.decide(&full));
        assert!(matches!(Admission::CpPiIoi.decide(&write), Decision::Bypass(_)));
    }

    #[test]
    fn only_policies_with_io_inheritance_reissue() {
        let reissue: Vec<_> = Admission::ALL.iter().filter(|a| a.reissues()).collect();
        assert_eq!(reissue, [&Admission::CpPiIoi, &Admission::Adaptive]);
    }

    #[test]
    fn reasons_are_counted_apart_and_know_where_the_write_went() {
        let mut counts = ReasonCounts::default();
        for (i, reason) in AdmissionReason::ALL.iter().enumerate() {
            (0..=i).for_each(|_| counts.count(*reason));
            assert_eq!(counts.get(*reason), i as u64 + 1);
        }
        let words: HashSet<_> = AdmissionReason::ALL.iter().map(|reason| reason.describe()).collect();
        assert!(words.len() == AdmissionReason::ALL.len() && !words.contains(""));
        assert!(AdmissionReason::Reissued.is_cached() && AdmissionReason::All.is_cached());
        assert!(!AdmissionReason::NotSynchronous.is_cached() && !AdmissionReason::NoCache.is_cached());
    }
}
