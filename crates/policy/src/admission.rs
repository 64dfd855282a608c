//! Admission: which writes enter the cache (design, section 6; ATC'15, section 4).

use forebay_block::Origin;

use crate::settings::spelled_enum;

spelled_enum! {
    /// The admission policies.
    Admission {
        /// Every write.
        All = "all",
        /// Writes flagged synchronous.
        Sync = "sync",
    }
}

/// What the chooser may look at.
#[derive(Clone, Copy, Debug)]
pub struct WriteContext {
    /// Who issued the write and why.
    pub origin: Origin,
    /// Force unit access was asked for.
    pub fua: bool,
}

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Into the log.
    Cache(AdmissionReason),
    /// To the backing without entering the cache.
    Bypass(AdmissionReason),
}

/// Why a write went where it went; each can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AdmissionReason {
    /// The policy admits everything.
    All,
    /// The write is flagged synchronous.
    Synchronous,
    /// Nobody is known to wait for it.
    NotSynchronous,
}

impl Admission {
    /// Chooses for one write.
    pub fn decide(self, write: &WriteContext) -> Decision {
        match self {
            Self::All => Decision::Cache(AdmissionReason::All),
            Self::Sync if write.origin.sync || write.fua => Decision::Cache(AdmissionReason::Synchronous),
            Self::Sync => Decision::Bypass(AdmissionReason::NotSynchronous),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sync_admits_only_what_is_waited_for() {
        let plain = WriteContext { origin: Origin::default(), fua: false };
        let sync = WriteContext { origin: Origin { sync: true, ..Origin::default() }, fua: false };
        assert!(matches!(Admission::Sync.decide(&plain), Decision::Bypass(_)));
        assert!(matches!(Admission::Sync.decide(&sync), Decision::Cache(_)));
        assert!(matches!(Admission::All.decide(&plain), Decision::Cache(_)));
    }
}
