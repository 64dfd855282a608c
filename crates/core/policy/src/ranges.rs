//! The ranges of a volume that the admission policy `range` lets in (ATC'15, section 5: the policy WAL).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::{UnknownSetting, size};

/// Most ranges of a volume.
pub const RANGES_MAX: usize = 4096;

/// Disjoint ranges of a volume in bytes, sorted; `START-END`, the end excluded, joined by commas. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Arc<[(u64, u64)]>);

impl Ranges {
    /// The ranges, each from its first byte to the one behind its last; those that touch are joined, empty ones dropped.
    ///
    /// # Errors
    /// [`UnknownSetting`] if more than [`RANGES_MAX`] are left.
    pub fn new(mut ranges: Vec<(u64, u64)>) -> Result<Self, UnknownSetting> {
        ranges.retain(|(start, end)| start < end);
        ranges.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
        for (start, end) in ranges {
            match joined.last_mut().filter(|last| start <= last.1) {
                Some(last) => last.1 = last.1.max(end),
                None => joined.push((start, end)),
            }
        }
        if joined.len() > RANGES_MAX {
            let given = format!("{} ranges", joined.len());
            return Err(UnknownSetting::because(&given, format!("are more than {RANGES_MAX}")));
        }
        Ok(Self(joined.into()))
    }

    /// Whether one of them has a byte in common with `len` bytes from `offset` on.
    pub fn touch(&self, offset: u64, len: u64) -> bool {
        let after = self.0.partition_point(|(_, end)| *end <= offset);
        self.0.get(after).is_some_and(|(start, _)| *start < offset.saturating_add(len))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (start, end)) in self.0.iter().enumerate() {
            write!(f, "{}{start}-{end}", if i > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl FromStr for Ranges {
    type Err = UnknownSetting;

    /// Reads the form that is shown; each number is a size as people write it. Nothing is no range.
    fn from_str(text: &str) -> Result<Self, UnknownSetting> {
        let wrong = || {
            UnknownSetting::because(
                text,
                "is not a list of ranges of bytes such as 0-16M,1G-2G (the end excluded)",
            )
        };
        let mut ranges = Vec::new();
        for range in text.split(',').filter(|_| !text.is_empty()) {
            let (start, end) = range.split_once('-').ok_or_else(wrong)?;
            let (start, end) = (bytes(start).ok_or_else(wrong)?, bytes(end).ok_or_else(wrong)?);
            if start >= end {
                return Err(wrong());
            }
            ranges.push((start, end));
        }
        Self::new(ranges)
    }
}

fn bytes(text: &str) -> Option<u64> {
    size::parse(text.trim()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_are_read_and_shown() {
        let ranges: Ranges = "1M-2M,0-4K,4K-8K".parse().unwrap();
        assert_eq!(ranges.to_string(), "0-8192,1048576-2097152");
        assert_eq!(ranges.to_string().parse::<Ranges>().unwrap(), ranges);
        assert!("".parse::<Ranges>().unwrap().is_empty());
        for wrong in ["5", "5-4", "5-5", "a-b", "1-", "1-2,", "1-99999999T"] {
            assert!(wrong.parse::<Ranges>().unwrap_err().to_string().contains("0-16M"), "{wrong}");
        }
        let many = (0..=RANGES_MAX as u64).map(|i| (i * 10, i * 10 + 1)).collect();
        assert!(Ranges::new(many).is_err());
    }

    proptest! {
        #[test]
        fn they_touch_what_one_of_them_touches(
            ranges in proptest::collection::vec((0u64..200, 0u64..20), 0..12),
            offset in 0u64..230,
            len in 1u64..30,
        ) {
            let spelled: Vec<(u64, u64)> = ranges.iter().map(|(start, len)| (*start, start + len)).collect();
            let touches = spelled.iter().any(|(start, end)| start < end && *start < offset + len && offset < *end);
            prop_assert_eq!(Ranges::new(spelled).unwrap().touch(offset, len), touches);
        }
    }
}
