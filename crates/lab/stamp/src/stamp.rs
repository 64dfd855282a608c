//! What a sector holds: 32 bytes that say which write it is from, and 480 bytes that follow from those, so that a
//! sector that is torn, or altered anywhere, is told from a whole one.
//!
//! ```text
//!  0        8       16        24        32                                              512
//!  ├────────┼────────┼─────────┼─────────┼───────────────────────────────────────────────┤
//!  │ magic, │ volume │ sector  │ sequence│ 60 words that follow from the three before    │
//!  │ round  │        │ number  │ number  │                                               │
//!  └────────┴────────┴─────────┴─────────┴───────────────────────────────────────────────┘
//! ```

use std::fmt;

use crate::random::mix;

/// Bytes of a sector.
pub const SECTOR_BYTES: usize = 512;

/// High half of the first word.
const MAGIC: u64 = 0x7354_614d;
const WORDS: usize = SECTOR_BYTES / 8;

/// One write of one sector. Versions are ordered as they were issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// Never written: the sector reads as zeroes.
    pub const BLANK: Self = Self(1);

    /// Stamped by the write with this sequence number (from 1).
    pub const fn stamped(seq: u64) -> Self {
        Self(seq << 1)
    }

    /// Zeroed or discarded by the request with this sequence number (from 1).
    pub const fn zeroed(seq: u64) -> Self {
        Self(seq << 1 | 1)
    }

    /// The sector reads as zeroes.
    pub const fn is_zero(self) -> bool {
        self.0 & 1 == 1
    }

    /// The sequence number; 0 if never written.
    pub const fn seq(self) -> u64 {
        self.0 >> 1
    }

    pub(crate) const fn to_bits(self) -> u64 {
        self.0
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self, self.is_zero()) {
            (Self::BLANK, _) => write!(f, "blank"),
            (_, true) => write!(f, "zeroes of {}", self.seq()),
            (_, false) => write!(f, "write {}", self.seq()),
        }
    }
}

/// What is stamped on a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Which volume: a number drawn when its state was made.
    pub volume: u64,
    /// Which run of the writer, from 1; for reports.
    pub round: u32,
    /// Number of the sector in the volume.
    pub sector: u64,
    /// Sequence number of the write, from 1.
    pub seq: u64,
}

impl Stamp {
    /// Fills a sector.
    pub fn put(&self, sector: &mut [u8]) {
        for (word, bytes) in self.words().zip(sector.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }

    fn words(&self) -> impl Iterator<Item = u64> {
        let head = [MAGIC << 32 | u64::from(self.round), self.volume, self.sector, self.seq];
        let start = head.iter().fold(0, |sum, word| mix(sum ^ word));
        let fill = move |i: usize| start.wrapping_add(i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        head.into_iter().chain((head.len()..WORDS).map(fill))
    }
}

/// What was found in a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Zeroes.
    Zeroes,
    /// A whole stamp.
    Stamp(Stamp),
    /// The beginning of a stamp, but other bytes than belong to it.
    Torn(Stamp),
    /// Bytes that this program never wrote.
    Other,
}

impl Found {
    /// Looks at a sector.
    pub fn look(sector: &[u8]) -> Self {
        let word = |i: usize| {
            let bytes = sector.chunks_exact(8).nth(i).and_then(|b| b.try_into().ok());
            bytes.map_or(0, u64::from_le_bytes)
        };
        if word(0) == 0 {
            let zero = sector.iter().all(|b| *b == 0);
            return if zero { Self::Zeroes } else { Self::Other };
        }
        if word(0) >> 32 != MAGIC {
            return Self::Other;
        }
        let stamp = Stamp { volume: word(1), round: word(0) as u32, sector: word(2), seq: word(3) };
        let whole = sector.len() == SECTOR_BYTES
            && stamp.words().zip(sector.chunks_exact(8)).all(|(word, bytes)| bytes == word.to_le_bytes());
        if whole { Self::Stamp(stamp) } else { Self::Torn(stamp) }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stamp = |f: &mut fmt::Formatter<'_>, what: &str, s: &Stamp| {
            write!(f, "{what} of write {} of sector {} in round {}", s.seq, s.sector, s.round)
        };
        match self {
            Self::Zeroes => write!(f, "zeroes"),
            Self::Stamp(s) => stamp(f, "the stamp", s),
            Self::Torn(s) => stamp(f, "a torn stamp", s),
            Self::Other => write!(f, "bytes that were never written"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { volume: 0x1234_5678_9abc_def0, round: 3, sector: 77, seq: 4711 };

    fn sector() -> Vec<u8> {
        let mut sector = vec![0; SECTOR_BYTES];
        STAMP.put(&mut sector);
        sector
    }

    #[test]
    fn a_stamp_is_recognised_and_every_flipped_bit_in_it_too() {
        let mut sector = sector();
        assert_eq!(Found::look(&sector), Found::Stamp(STAMP));
        for bit in 0..SECTOR_BYTES * 8 {
            sector[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(Found::look(&sector), Found::Stamp(_) | Found::Zeroes), "bit {bit}");
            sector[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_sector_of_two_writes_is_torn() {
        let mut sector = sector();
        let mut other = vec![0; SECTOR_BYTES];
        Stamp { seq: 4712, ..STAMP }.put(&mut other);
        sector[256..].copy_from_slice(&other[256..]);
        assert_eq!(Found::look(&sector), Found::Torn(STAMP));
    }

    #[test]
    fn zeroes_are_zeroes_to_the_end() {
        let mut sector = vec![0; SECTOR_BYTES];
        assert_eq!(Found::look(&sector), Found::Zeroes);
        sector[511] = 1;
        assert_eq!(Found::look(&sector), Found::Other);
    }

    #[test]
    fn versions_are_ordered_as_they_were_issued() {
        let order = [Version::BLANK, Version::stamped(1), Version::zeroed(2), Version::stamped(3)];
        assert!(order.is_sorted());
        assert!(order[0].is_zero() && order[2].is_zero() && !order[3].is_zero());
    }
}
