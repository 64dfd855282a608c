//! The two copies of the superblock.

use std::io;

use forebay_format::FormatError;
use forebay_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};

use crate::check::CheckError;
use crate::finding::{Finding, FindingKind, Findings, Severity};
use crate::image::Image;

/// Both copies as they decode.
pub(crate) struct Copies {
    pub(crate) copies: [Result<Superblock, FormatError>; 2],
}

impl Copies {
    pub(crate) fn read(image: &mut Image<'_>) -> io::Result<Self> {
        let mut read = |offset: u64| -> io::Result<_> {
            let mut bytes = [0; SUPERBLOCK_BYTES];
            image.read(offset, &mut bytes)?;
            Ok(Superblock::decode(&bytes))
        };
        let [a, b] = SUPERBLOCK_OFFSETS;
        Ok(Self { copies: [read(a)?, read(b)?] })
    }

    /// The copy to believe.
    pub(crate) fn newest(&self) -> Result<Superblock, CheckError> {
        match &self.copies {
            [Err(FormatError::Version(v)), _] | [_, Err(FormatError::Version(v))] => {
                Err(CheckError::UnknownVersion(*v))
            }
            [Ok(a), Ok(b)] => Ok(if b.update > a.update { b.clone() } else { a.clone() }),
            [Ok(one), Err(_)] | [Err(_), Ok(one)] => Ok(one.clone()),
            [
                Err(FormatError::Magic | FormatError::Truncated),
                Err(FormatError::Magic | FormatError::Truncated),
            ] => Err(CheckError::NoCache),
            [Err(_), Err(_)] => Err(CheckError::SuperblocksDamaged),
        }
    }

    /// What is wrong with the copies, `chosen` being the one that is believed.
    pub(crate) fn judge(&self, findings: &mut Findings) {
        for (i, copy) in self.copies.iter().enumerate() {
            if let Err(e) = copy {
                findings.push(Finding::new(
                    Severity::Recoverable,
                    FindingKind::SuperblockDamaged,
                    SUPERBLOCK_OFFSETS[i],
                    format!(
                        "superblock copy {} is damaged ({e}); the other copy is whole and the next start rewrites it",
                        ["A", "B"][i]
                    ),
                ));
            }
        }
        let [Ok(a), Ok(b)] = &self.copies else { return };
        if a == b {
            return;
        }
        let same_cache = a.layout.cache_id == b.layout.cache_id;
        let (severity, message) = if same_cache && a.update == b.update.wrapping_add(1) {
            (
                Severity::Note,
                "an update of the superblock was interrupted after its first copy; the next start completes it",
            )
        } else if same_cache && b.update > a.update {
            (
                Severity::Recoverable,
                "superblock copy A is older than copy B, which is written after it: a write to copy A was lost",
            )
        } else if same_cache && a.update > b.update {
            (
                Severity::Recoverable,
                "superblock copy B is more than one update behind copy A: a write to copy B was lost",
            )
        } else if same_cache {
            (
                Severity::Recoverable,
                "the copies of the superblock have the same update number but not the same contents",
            )
        } else {
            (
                Severity::Recoverable,
                "the copies of the superblock are of two caches: the device was formatted again and one write was lost",
            )
        };
        findings.push(Finding::new(
            severity,
            FindingKind::SuperblockDisagrees,
            SUPERBLOCK_OFFSETS[1],
            message,
        ));
    }
}
