//! How far the backing may lag behind, and what is done so that it does not lag further (staleness:
//! `docs/design/promises.md`, Terms).
//!
//! ```text
//!  0 %                50 %                          90 %      100 %
//!  ├── as always ──────┼── destaged harder and harder ──┼── writers are held back ──►
//! ```

use std::fmt;
use std::str::FromStr;

use crate::UnknownSetting;

/// What the backing lacks, and with it what would be lost with the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Staleness {
    /// Bytes.
    pub bytes: u64,
    /// Age of the oldest of them, in milliseconds.
    pub age_ms: u64,
}

/// The most of it that is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MaxStaleness {
    /// Anything.
    #[default]
    None,
    /// An age in milliseconds, from [`MaxStaleness::AGE_MS_MIN`] to [`MaxStaleness::AGE_MS_MAX`].
    Age(u64),
    /// Bytes, at least [`MaxStaleness::BYTES_MIN`].
    Bytes(u64),
}

/// From here on, in percent of the bound, destaging does not wait for anything to gain.
pub const HARDER_PERCENT: u64 = 50;
/// From here on writers are held back.
pub const EDGE_PERCENT: u64 = 90;
/// Writers that are held back go on after so long without any progress of the backing, in milliseconds: a backing that fails is
/// hidden as long as the cache has room (P9).
pub const HOLD_MS_MAX: u64 = 1000;

impl MaxStaleness {
    /// The shortest age: what a flush of a slow disk takes should be far less.
    pub const AGE_MS_MIN: u64 = 10;
    /// The longest age: a year.
    pub const AGE_MS_MAX: u64 = crate::settings::TIME_MS_MAX;
    /// The fewest bytes: a record on its way.
    pub const BYTES_MIN: u64 = 64 << 10;

    /// How much of the bound is used up, in percent; 0 without a bound.
    pub fn percent(self, now: Staleness) -> u64 {
        match self {
            Self::None => 0,
            Self::Age(bound) => percent_of(now.age_ms, bound),
            Self::Bytes(bound) => percent_of(now.bytes, bound),
        }
    }

    /// So many percent, at most 100, of a bound.
    pub const fn part(bound: u64, percent: u64) -> u64 {
        bound / 100 * percent + bound % 100 * percent / 100
    }
}

fn percent_of(now: u64, bound: u64) -> u64 {
    u64::try_from(u128::from(now) * 100 / u128::from(bound.max(1))).unwrap_or(u64::MAX)
}

impl fmt::Display for MaxStaleness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Age(ms) => f.write_str(&crate::time::show_ms(*ms)),
            Self::Bytes(bytes) => write!(f, "{bytes}"),
        }
    }
}

impl FromStr for MaxStaleness {
    type Err = UnknownSetting;

    /// A time with its unit, a size, or `none`. What could be both (`5m`) is a time.
    fn from_str(text: &str) -> Result<Self, UnknownSetting> {
        match (crate::time::parse_ms(text), crate::size::parse(text)) {
            _ if text == "none" => Ok(Self::None),
            (Ok(ms), _) if (Self::AGE_MS_MIN..=Self::AGE_MS_MAX).contains(&ms) => Ok(Self::Age(ms)),
            (Err(_), Ok(bytes)) if bytes >= Self::BYTES_MIN => Ok(Self::Bytes(bytes)),
            _ => Err(UnknownSetting::because(
                text,
                "is neither a time from 10ms to 8760h, nor a size of at least 64K, nor none",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_and_sizes_are_told_apart() {
        let read = |text: &str| text.parse::<MaxStaleness>();
        assert_eq!(read("5s"), Ok(MaxStaleness::Age(5000)));
        assert_eq!(read("5m"), Ok(MaxStaleness::Age(300_000)));
        assert_eq!(read("5M"), Ok(MaxStaleness::Bytes(5 << 20)));
        assert_eq!(read("none"), Ok(MaxStaleness::None));
        for text in ["", "5", "4K", "1ms", "much", "8761h"] {
            assert!(read(text).unwrap_err().to_string().contains("10ms"), "{text}");
        }
    }

    proptest! {
        /// No bound is too large to be reckoned with.
        #[test]
        fn parts_of_a_bound_use_up_as_much_of_it(low in 0u64..100, bound in 1_000u64.., percent in 0u64..=100) {
            for bound in [bound, u64::MAX - low, u64::MAX / 100 + low] {
                let part = MaxStaleness::part(bound, percent);
                prop_assert!(part <= bound && u128::from(part) == u128::from(bound) * u128::from(percent) / 100);
                let age = |age_ms| MaxStaleness::Age(bound).percent(Staleness { age_ms, bytes: 0 });
                prop_assert!(age(part) <= percent && age(part.saturating_add(1)) >= percent.min(99));
                prop_assert_eq!(age(bound), 100);
            }
        }

        /// What is shown is read again, and more staleness never counts for less.
        #[test]
        fn bounds_are_shown_as_they_are_read(ms in 10u64..=MaxStaleness::AGE_MS_MAX, bytes in 1u64 << 16..1 << 50, a: u64, b: u64) {
            for bound in [MaxStaleness::None, MaxStaleness::Age(ms), MaxStaleness::Bytes(bytes)] {
                prop_assert_eq!(bound.to_string().parse(), Ok(bound));
                let at = |n| bound.percent(Staleness { bytes: n, age_ms: n });
                prop_assert!(at(a.min(b)) <= at(a.max(b)));
                prop_assert_eq!(at(0), 0);
            }
            prop_assert_eq!(MaxStaleness::Age(ms).percent(Staleness { age_ms: ms, bytes: 0 }), 100);
        }
    }
}
