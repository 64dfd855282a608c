//! What each sector may hold.
//!
//! A sector may hold its newest acknowledged version, or one that was issued later and whose outcome is not known: it
//! failed, or the connection was lost before its answer. Whoever has once been read excludes all older ones, for no
//! sector may go back (P3).

use std::collections::BTreeMap;
use std::fmt;

use crate::stamp::{Found, Version};

/// What was read is none of what the sector may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Number of the sector in the volume.
    pub sector: u64,
    /// What was read.
    pub found: Found,
    /// What it may hold.
    pub allowed: Vec<Version>,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allowed: Vec<String> = self.allowed.iter().map(ToString::to_string).collect();
        write!(f, "sector {} holds {}, it may hold {}", self.sector, self.found, allowed.join(" or "))?;
        match (&self.found, self.allowed.first()) {
            (Found::Stamp(s), _) if s.sector != self.sector => write!(f, ": misdirected"),
            (Found::Stamp(s), Some(oldest)) if Version::stamped(s.seq) < *oldest => write!(f, ": stale"),
            (Found::Zeroes, _) => write!(f, ": lost"),
            _ => Ok(()),
        }
    }
}

/// What the sectors of a part of a volume may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    first: u64,
    /// For each sector its newest acknowledged, or read, version.
    settled: Vec<Version>,
    /// Versions that were issued later and whose outcome is not known, in the order of issue.
    open: BTreeMap<u64, Vec<Version>>,
}

impl Expectation {
    /// Sectors that were never written.
    pub fn blank(first: u64, sectors: u64) -> Self {
        Self::of(first, vec![Version::BLANK; sectors as usize], BTreeMap::new())
    }

    pub(crate) fn of(first: u64, settled: Vec<Version>, open: BTreeMap<u64, Vec<Version>>) -> Self {
        Self { first, settled, open }
    }

    /// Number of the first sector.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// How many sectors.
    pub fn sectors(&self) -> u64 {
        self.settled.len() as u64
    }

    pub(crate) fn settled(&self) -> &[Version] {
        &self.settled
    }

    pub(crate) fn open(&self) -> &BTreeMap<u64, Vec<Version>> {
        &self.open
    }

    /// Cuts off what comes from sector `at` on.
    pub(crate) fn split_off(&mut self, at: u64) -> Self {
        Self {
            first: at,
            settled: self.settled.split_off((at - self.first) as usize),
            open: self.open.split_off(&at),
        }
    }

    /// Adds what follows directly.
    pub(crate) fn append(&mut self, mut next: Self) {
        assert_eq!(self.first + self.sectors(), next.first);
        self.settled.append(&mut next.settled);
        self.open.append(&mut next.open);
    }

    /// These sectors were acknowledged to have this version.
    pub fn acknowledged(&mut self, first: u64, sectors: u64, version: Version) {
        for sector in first..first + sectors {
            self.open.remove(&sector);
            *self.slot(sector) = version;
        }
    }

    /// These sectors hold this version or one that was issued later, whatever they may have held.
    pub fn no_older(&mut self, first: u64, sectors: u64, version: Version) {
        for sector in first..first + sectors {
            let slot = self.slot(sector);
            if *slot >= version {
                continue;
            }
            *slot = version;
            if let Some(open) = self.open.get_mut(&sector) {
                open.retain(|v| *v > version);
                if open.is_empty() {
                    self.open.remove(&sector);
                }
            }
        }
    }

    /// These sectors may have this version, now or later.
    pub fn unknown(&mut self, first: u64, sectors: u64, version: Version) {
        for sector in first..first + sectors {
            self.open.entry(sector).or_default().push(version);
        }
    }

    /// Compares what was read, and remembers it: older versions are excluded from now on, and if `quiet`, newer ones
    /// too, because nothing is under way any more.
    ///
    /// # Errors
    /// What is wrong. It is expected from now on, as far as it can be, so that it is told once.
    pub fn read(&mut self, sector: u64, bytes: &[u8], volume: u64, quiet: bool) -> Result<(), Wrong> {
        let found = Found::look(bytes);
        let held = |v: Version| match found {
            Found::Zeroes => v.is_zero(),
            Found::Stamp(s) => s.volume == volume && s.sector == sector && v == Version::stamped(s.seq),
            Found::Torn(_) | Found::Other => false,
        };
        let settled = *self.slot(sector);
        let open = self.open.get(&sector).map(Vec::as_slice).unwrap_or_default();
        let newest = open.iter().rev().copied().find(|v| held(*v));
        let oldest = std::iter::once(settled).chain(open.iter().copied()).find(|v| held(*v));
        // Zeroes look alike: what was read may be any of these, so that only what is older than all is excluded.
        let Some((oldest, newest)) = oldest.map(|o| (o, newest.unwrap_or(o))) else {
            let allowed = std::iter::once(settled).chain(open.iter().copied()).collect();
            if let Found::Stamp(s) = found {
                self.open.remove(&sector);
                *self.slot(sector) = Version::stamped(s.seq);
            }
            return Err(Wrong { sector, found, allowed });
        };
        if let Some(open) = self.open.get_mut(&sector) {
            open.retain(|v| *v > oldest && (!quiet || *v <= newest && held(*v)));
            if open.is_empty() {
                self.open.remove(&sector);
            }
            *self.slot(sector) = oldest;
        }
        Ok(())
    }

    fn slot(&mut self, sector: u64) -> &mut Version {
        let index = (sector - self.first) as usize;
        &mut self.settled[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::{SECTOR_BYTES, Stamp};

    const VOLUME: u64 = 9;

    fn bytes(sector: u64, version: Version) -> Vec<u8> {
        let mut bytes = vec![0; SECTOR_BYTES];
        if !version.is_zero() {
            let stamp = Stamp { volume: VOLUME, round: 1, sector, seq: version.seq() };
            stamp.put(&mut bytes);
        }
        bytes
    }

    /// Whether sector 10 may hold this version.
    fn may_hold(expectation: &Expectation, version: Version) -> bool {
        expectation.clone().read(10, &bytes(10, version), VOLUME, false).is_ok()
    }

    fn eight() -> Expectation {
        Expectation::blank(8, 8)
    }

    #[test]
    fn the_newest_acknowledged_version_alone_is_right() {
        let mut e = eight();
        assert!(may_hold(&e, Version::BLANK));
        e.acknowledged(8, 8, Version::stamped(1));
        e.acknowledged(10, 1, Version::stamped(2));
        assert!(may_hold(&e, Version::stamped(2)));
        for wrong in [Version::BLANK, Version::stamped(1), Version::stamped(3)] {
            assert!(!may_hold(&e, wrong), "{wrong}");
        }
        let misdirected = e.read(11, &bytes(10, Version::stamped(2)), VOLUME, false).unwrap_err();
        assert!(misdirected.to_string().ends_with("misdirected"), "{misdirected}");
        let stale = e.read(10, &bytes(10, Version::stamped(1)), VOLUME, false).unwrap_err();
        assert!(stale.to_string().ends_with("stale"), "{stale}");
    }

    #[test]
    fn a_sector_of_another_volume_is_wrong() {
        let mut e = eight();
        e.acknowledged(10, 1, Version::stamped(1));
        let found = e.read(10, &bytes(10, Version::stamped(1)), VOLUME + 1, false);
        assert!(found.is_err());
    }

    #[test]
    fn an_open_write_may_be_there_or_not_until_it_was_seen() {
        let mut e = eight();
        e.acknowledged(10, 1, Version::stamped(1));
        e.unknown(10, 1, Version::stamped(2));
        e.unknown(10, 1, Version::stamped(3));
        for right in 1..=3 {
            assert!(may_hold(&e, Version::stamped(right)), "{right}");
        }
        e.read(10, &bytes(10, Version::stamped(2)), VOLUME, false).unwrap();
        assert!(!may_hold(&e, Version::stamped(1)), "it went back");
        assert!(may_hold(&e, Version::stamped(3)), "it may still land");
        e.acknowledged(10, 1, Version::stamped(4));
        assert!(!may_hold(&e, Version::stamped(3)), "it landed late");
    }

    #[test]
    fn when_nothing_is_under_way_what_was_read_stays() {
        let mut e = eight();
        e.acknowledged(10, 1, Version::stamped(1));
        e.unknown(10, 1, Version::stamped(2));
        e.read(10, &bytes(10, Version::stamped(1)), VOLUME, true).unwrap();
        assert!(!may_hold(&e, Version::stamped(2)));
    }

    #[test]
    fn zeroes_of_different_requests_are_not_told_apart() {
        let mut e = eight();
        e.acknowledged(10, 1, Version::zeroed(1));
        e.unknown(10, 1, Version::stamped(2));
        e.unknown(10, 1, Version::zeroed(3));
        let mut quiet = e.clone();
        for (expectation, calm) in [(&mut e, false), (&mut quiet, true)] {
            expectation.read(10, &bytes(10, Version::BLANK), VOLUME, calm).unwrap();
            assert!(may_hold(expectation, Version::BLANK));
        }
        assert!(may_hold(&e, Version::stamped(2)));
        assert!(!may_hold(&quiet, Version::stamped(2)));
        e.read(10, &bytes(10, Version::stamped(2)), VOLUME, false).unwrap();
        assert!(may_hold(&e, Version::BLANK), "the later zeroes may still land");
    }

    #[test]
    fn parts_come_together_again() {
        let mut e = eight();
        e.acknowledged(9, 3, Version::stamped(1));
        e.unknown(12, 2, Version::stamped(2));
        let whole = e.clone();
        let back = e.split_off(12);
        assert_eq!((e.sectors(), back.sectors()), (4, 4));
        e.append(back);
        assert_eq!(e, whole);
    }
}
