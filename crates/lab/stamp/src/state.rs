//! What is known of a volume, kept in a file between runs. The file is for this program alone; a test makes and
//! deletes it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use crate::expectation::Expectation;
use crate::stamp::Version;

const MAGIC: u64 = 0x3161_7453_7354_614d;

/// What is known of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// A number that is in every stamp.
    pub volume: u64,
    /// Runs of the writer so far.
    pub round: u32,
    /// The last sequence number that was used.
    pub seq: u64,
    /// What each sector may hold.
    pub expectation: Expectation,
}

impl State {
    /// Of a volume that was never written.
    pub fn blank(volume: u64, sectors: u64) -> Self {
        Self { volume, round: 0, seq: 0, expectation: Expectation::blank(0, sectors) }
    }

    /// Reads the file; `None` if there is none.
    ///
    /// # Errors
    /// As the system gives them; [`io::ErrorKind::InvalidData`] if it is not whole.
    pub fn load(path: &Path) -> io::Result<Option<Self>> {
        let bytes = match fs::read(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        Self::parse(&bytes).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// `None` if this is no state, or not a whole one.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (words, []) = bytes.as_chunks::<8>() else {
            return None;
        };
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let [MAGIC, volume, round, seq, sectors, open_count, rest @ ..] = &words[..] else {
            return None;
        };
        let (settled, rest) = rest.split_at_checked(usize::try_from(*sectors).ok()?)?;
        let (pairs, []) = rest.as_chunks::<2>() else {
            return None;
        };
        if pairs.len() as u64 != *open_count {
            return None;
        }
        let mut open = BTreeMap::<u64, Vec<Version>>::new();
        for [sector, version] in pairs {
            if sector >= sectors {
                return None;
            }
            open.entry(*sector).or_default().push(Version::from_bits(*version));
        }
        let settled = settled.iter().map(|bits| Version::from_bits(*bits)).collect();
        let expectation = Expectation::of(0, settled, open);
        Some(Self { volume: *volume, round: u32::try_from(*round).ok()?, seq: *seq, expectation })
    }

    /// Writes the file, in one step.
    ///
    /// # Errors
    /// As the system gives them.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let new = path.with_extension("new");
        fs::write(&new, self.to_bytes())?;
        fs::rename(&new, path)
    }

    /// What [`State::parse`] reads.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let settled = self.expectation.settled();
        let open: Vec<u64> = self
            .expectation
            .open()
            .iter()
            .flat_map(|(sector, versions)| versions.iter().flat_map(|v| [*sector, v.to_bits()]))
            .collect();
        let head = [
            MAGIC,
            self.volume,
            u64::from(self.round),
            self.seq,
            settled.len() as u64,
            open.len() as u64 / 2,
        ];
        let words = head.into_iter().chain(settled.iter().map(|v| v.to_bits())).chain(open);
        words.flat_map(u64::to_le_bytes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_survives_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        assert_eq!(State::load(&path).unwrap(), None);
        let mut state = State::blank(5, 100);
        state.round = 2;
        state.seq = 9;
        state.expectation.acknowledged(3, 4, Version::stamped(7));
        state.expectation.unknown(5, 2, Version::zeroed(8));
        state.expectation.unknown(6, 2, Version::stamped(9));
        state.save(&path).unwrap();
        assert_eq!(State::load(&path).unwrap(), Some(state));
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 8]).unwrap();
        assert_eq!(State::load(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
