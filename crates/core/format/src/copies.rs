//! Two copies of one structure, of which the newer valid one counts.

use crate::FormatError;

/// The newer of two copies as read, by its `update`; the valid one, if only one is.
///
/// # Errors
/// [`FormatError::Version`] if either copy is from a later release: the other one is older than what that release has done.
/// [`FormatError::Magic`] if there is no copy at all. What is wrong with the damaged copy, if there is no valid one.
pub(crate) fn newest<T>(
    first: Result<T, FormatError>,
    second: Result<T, FormatError>,
    update: impl Fn(&T) -> u64,
) -> Result<T, FormatError> {
    match (first, second) {
        (Err(e @ FormatError::Version(_)), _) | (_, Err(e @ FormatError::Version(_))) => Err(e),
        (Ok(a), Ok(b)) => Ok(if update(&b) > update(&a) { b } else { a }),
        (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
        (Err(FormatError::Magic), Err(e)) | (Err(e), Err(_)) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use crate::FormatError::{self, Checksum, Magic, Version};
    use crate::checksum::crc_with_hole;
    use crate::journal::{Head, JOURNAL_HEAD_BYTES};
    use crate::label::{self, LABEL_COPY_BYTES, Label};
    use crate::superblock::{self, Superblock};

    const VERSION_AT: usize = 8;
    const CRC_AT: usize = 12;
    const LATER: u32 = 99;

    /// A copy, and what is wrong with it.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Copy {
        Older,
        Newer,
        Blank,
        /// Its magic number is damaged.
        Magicless,
        /// Another byte of it is.
        Flipped,
        /// A later release has written it.
        Later,
    }

    const COPIES: [Copy; 6] =
        [Copy::Older, Copy::Newer, Copy::Blank, Copy::Magicless, Copy::Flipped, Copy::Later];

    fn bytes(copy: Copy, older: &[u8], newer: &[u8]) -> Vec<u8> {
        let mut bytes = if copy == Copy::Older { older.to_vec() } else { newer.to_vec() };
        match copy {
            Copy::Older | Copy::Newer => {}
            Copy::Blank => bytes.fill(0),
            Copy::Magicless => bytes[3] ^= 0x20,
            Copy::Flipped => bytes[40] ^= 1,
            Copy::Later => {
                bytes[VERSION_AT..][..4].copy_from_slice(&LATER.to_le_bytes());
                let crc = crc_with_hole(&bytes, CRC_AT);
                bytes[CRC_AT..][..4].copy_from_slice(&crc.to_le_bytes());
            }
        }
        bytes
    }

    /// Reads all pairs of copies; `update` is that of the copy that is taken.
    fn all_pairs(
        (older, newer): (&[u8], &[u8]),
        newest: impl Fn(&[u8], &[u8]) -> Result<u64, FormatError>,
        expected: impl Fn(Copy, Copy) -> Result<u64, FormatError>,
    ) {
        for first in COPIES {
            for second in COPIES {
                let found = newest(&bytes(first, older, newer), &bytes(second, older, newer));
                assert_eq!(found, expected(first, second), "{first:?}, {second:?}");
            }
        }
    }

    fn update(copy: Copy) -> Option<u64> {
        match copy {
            Copy::Older => Some(5),
            Copy::Newer => Some(6),
            _ => None,
        }
    }

    fn one_valid_copy_is_enough(first: Copy, second: Copy) -> Result<u64, FormatError> {
        let pair = [first, second];
        if pair.contains(&Copy::Later) {
            return Err(Version(LATER));
        }
        match pair.into_iter().filter_map(update).max() {
            Some(update) => Ok(update),
            None if pair.contains(&Copy::Flipped) => Err(Checksum),
            None => Err(Magic),
        }
    }

    /// Callers take [`Magic`] for "nothing was ever here" and begin anew: a damaged head that is told so would drop committed groups.
    fn a_damaged_copy_is_never_passed_over(first: Copy, second: Copy) -> Result<u64, FormatError> {
        let error = |copy| match copy {
            Copy::Later => Version(LATER),
            Copy::Flipped => Checksum,
            _ => Magic,
        };
        match (update(first), update(second)) {
            (Some(a), Some(b)) => Ok(a.max(b)),
            (Some(update), None) if second == Copy::Blank => Ok(update),
            (None, Some(update)) if first == Copy::Blank => Ok(update),
            (None, None) => Err(if error(first) == Magic { error(second) } else { error(first) }),
            (valid, _) => match error(if valid.is_some() { second } else { first }) {
                Magic => Err(Checksum),
                error => Err(error),
            },
        }
    }

    #[test]
    fn superblocks() {
        let [older, newer] =
            [5, 6].map(|update| Superblock { update, ..superblock::tests::sample() }.encode());
        let newest = |a: &[u8], b: &[u8]| Superblock::newest(a, b).map(|s| s.update);
        all_pairs((&older, &newer), newest, one_valid_copy_is_enough);
    }

    #[test]
    fn labels() {
        let [older, newer] = [5, 6].map(|update| Label { update, ..label::tests::sample() }.encode());
        let newest = |a: &[u8], b: &[u8]| Label::newest(&[a, b].concat()).map(|label| label.update);
        assert_eq!(older.len(), LABEL_COPY_BYTES);
        all_pairs((&older, &newer), newest, one_valid_copy_is_enough);
    }

    #[test]
    fn heads_of_journals() {
        let head = Head::new([1; 16], [2; 16], 1 << 20, 1 << 16);
        let [older, newer] = [5, 6].map(|update| Head { update, generation: 3, ..head.clone() }.encode());
        let newest = |a: &[u8], b: &[u8]| Head::newest(&[a, b].concat()).map(|head| head.update);
        assert_eq!(older.len() as u64, JOURNAL_HEAD_BYTES);
        all_pairs((&older, &newer), newest, a_damaged_copy_is_never_passed_over);
    }
}
