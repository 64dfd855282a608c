//! What a user can choose of a volume, all changeable while it runs. Spellings are those of the command line.

use std::fmt;
use std::str::FromStr;

use crate::{Admission, MaxStaleness, SchedulerKind};

/// Longest time that a setting can have, in milliseconds: a year, 8760h.
pub(crate) const TIME_MS_MAX: u64 = 365 * 24 * 3_600_000;

/// A setting's name or value that is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownSetting {
    /// What was given.
    pub given: String,
    /// What would have been understood.
    pub allowed: Allowed,
}

/// What would have been understood instead of a setting's name or value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// One of these words.
    OneOf(Vec<&'static str>),
    /// What this says of it: "is not within 4K to 128M".
    But(String),
}

impl UnknownSetting {
    /// None of these words.
    pub fn none_of(given: &str, words: impl IntoIterator<Item = &'static str>) -> Self {
        Self { given: given.to_owned(), allowed: Allowed::OneOf(words.into_iter().collect()) }
    }

    /// What `why` says of it, as in "is no time".
    pub fn because(given: &str, why: impl Into<String>) -> Self {
        Self { given: given.to_owned(), allowed: Allowed::But(why.into()) }
    }

    /// The words of which it should have been one.
    pub fn words(&self) -> &[&'static str] {
        match &self.allowed {
            Allowed::OneOf(words) => words,
            Allowed::But(_) => &[],
        }
    }
}

impl fmt::Display for UnknownSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.allowed {
            Allowed::OneOf(words) => write!(f, "'{}' is not one of {}", self.given, words.join(", ")),
            Allowed::But(why) => write!(f, "'{}' {why}", self.given),
        }
    }
}

impl std::error::Error for UnknownSetting {}

macro_rules! spelled_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vmeta])* $variant),+ }

        impl $name {
            /// Every value, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The spelling on the command line, in the configuration and in JSON.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::UnknownSetting;
            fn from_str(s: &str) -> Result<Self, Self::Err> {
                match s {
                    $($text => Ok(Self::$variant),)+
                    _ => Err($crate::UnknownSetting::none_of(s, [$($text),+])),
                }
            }
        }
    };
}
pub(crate) use spelled_enum;

spelled_enum! {
    /// In which order and when acknowledged writes reach the backing (`docs/design/promises.md`, Write policies).
    WritePolicy {
        /// Acknowledged when on the backing, then cached: the backing alone is always complete.
        WriteThrough = "write-through",
        /// Acknowledged in the log, destaged in any order: the backing alone is inconsistent until destaged.
        WriteBack = "write-back",
        /// Acknowledged in the log, destaged in the order of the writes: the backing alone is consistent, though stale (P4;
        /// FAST'13, section 3.1).
        Ordered = "ordered",
        /// Acknowledged in the log, destaged in groups that reach the backing wholly or not at all, by a journal on its side:
        /// the backing alone is consistent, stale by at most a group (P4; FAST'13, section 3.2).
        Journaled = "journaled",
    }
}

spelled_enum! {
    /// Which writes come after which under the policy `ordered` (`docs/design/promises.md`, Write policies).
    Order {
        /// A write comes after all that were acknowledged before it was issued (FAST'13, section 3.1).
        Completion = "completion",
        /// A write comes after all that a flush covers which was acknowledged before it was issued, or that were written with
        /// forced unit access: what file systems and databases rely on.
        Barrier = "barrier",
    }
}

spelled_enum! {
    /// Where groups of `journaled` may end, and with that in which states the backing rests (`docs/design/promises.md`,
    /// Write policies).
    #[derive(Default)]
    GroupEnds {
        /// Wherever size or age say so, and at each consistency point that is declared.
        #[default]
        Anywhere = "anywhere",
        /// At flushes alone: each flush is a consistency point.
        Flushes = "flushes",
        /// At declared consistency points alone.
        Points = "points",
        /// At points that a consistency group's members share.
        Common = "common",
    }
}

spelled_enum! {
    /// What an acknowledgement of a plain write promises (P1).
    Durability {
        /// Survives a power cut.
        Write = "write",
        /// Survives the death of the process; a power cut only after a later flush, as with any disk.
        Flush = "flush",
    }
}

spelled_enum! {
    /// What becomes of blocks of journals that were found by their shape (PDC, SYSTOR'16).
    #[derive(Default)]
    JournalCaching {
        /// They are cached as others are.
        #[default]
        Keep = "keep",
        /// They enter the log as others do, and are not kept as clean copies: nobody reads a journal again.
        Skip = "skip",
        /// They go past the log, as in the paper.
        Bypass = "bypass",
    }
}

spelled_enum! {
    /// What a write does when the log has no room for it.
    OnFull {
        /// Waits until destaging has made room.
        Wait = "wait",
        /// Goes to the backing without entering the cache.
        Bypass = "bypass",
    }
}

/// Everything about a volume that can be changed while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Order of destaging and moment of acknowledgement.
    pub write_policy: WritePolicy,
    /// What `ordered` keeps in order.
    pub order: Order,
    /// Under `journaled`, a group is committed when it has so many bytes, at most 128 MiB.
    pub group_bytes: u64,
    /// Under `journaled`, a group is committed when its oldest write is so old, in milliseconds.
    pub group_age_ms: u64,
    /// Where groups may end under `journaled`.
    pub group_ends: GroupEnds,
    /// How far the backing may lag behind.
    pub max_staleness: MaxStaleness,
    /// Which writes enter the cache.
    pub admission: Admission,
    /// What becomes of blocks of journals.
    pub journal_caching: JournalCaching,
    /// What happens when the log is full.
    pub on_full: OnFull,
    /// What an acknowledgement promises.
    pub durability: Durability,
    /// Which operation of the backing starts next.
    pub scheduler: SchedulerKind,
}

impl Default for Order {
    /// The stronger one: what P4 says.
    fn default() -> Self {
        Self::Completion
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            write_policy: WritePolicy::WriteBack,
            order: Order::default(),
            group_bytes: 16 << 20,
            group_age_ms: 5000,
            group_ends: GroupEnds::Anywhere,
            max_staleness: MaxStaleness::None,
            admission: Admission::All,
            journal_caching: JournalCaching::default(),
            on_full: OnFull::Wait,
            durability: Durability::Write,
            scheduler: SchedulerKind::default(),
        }
    }
}

impl Settings {
    /// The keys that [`Settings::set`] understands.
    pub const KEYS: &'static [&'static str] = &[
        "write-policy",
        "order",
        "group-size",
        "group-age",
        "group-ends",
        "max-staleness",
        "admission",
        "journal-caching",
        "on-full",
        "durability",
        "scheduler",
    ];

    /// Smallest and largest group, in bytes.
    pub const GROUP_BYTES: (u64, u64) = (4 << 10, 128 << 20);

    /// Longest age of a group, in milliseconds: a year.
    pub const GROUP_AGE_MS_MAX: u64 = TIME_MS_MAX;

    fn group_age(value: &str) -> Result<u64, UnknownSetting> {
        let age_ms = crate::time::parse_ms(value).map_err(|_| {
            UnknownSetting::because(value, "is not a time from 0ms to 8760h, such as 5s (ms, s, m or h)")
        })?;
        match age_ms <= Self::GROUP_AGE_MS_MAX {
            true => Ok(age_ms),
            false => Err(UnknownSetting::because(
                value,
                "is not within the times that a group may have, 0ms to 8760h",
            )),
        }
    }

    fn group_bytes(value: &str) -> Result<u64, UnknownSetting> {
        let bytes = crate::size::parse(value)
            .map_err(|_| UnknownSetting::because(value, "is not a size from 4K to 128M, such as 16M"))?;
        match (Self::GROUP_BYTES.0..=Self::GROUP_BYTES.1).contains(&bytes) {
            true => Ok(bytes),
            false => Err(UnknownSetting::because(
                value,
                "is not within the sizes that a group may have, 4K to 128M",
            )),
        }
    }

    /// Changes one setting by the name and spelling of the command line (`admit` is an alias of `admission`).
    ///
    /// # Errors
    /// [`UnknownSetting`] for an unknown key or value; nothing is changed then.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), UnknownSetting> {
        match key {
            "write-policy" => self.write_policy = WritePolicy::from_str(value)?,
            "order" => self.order = Order::from_str(value)?,
            "group-size" => self.group_bytes = Self::group_bytes(value)?,
            "group-age" => self.group_age_ms = Self::group_age(value)?,
            "group-ends" => self.group_ends = GroupEnds::from_str(value)?,
            "max-staleness" => self.max_staleness = MaxStaleness::from_str(value)?,
            "admission" | "admit" => self.admission = Admission::from_str(value)?,
            "journal-caching" => self.journal_caching = JournalCaching::from_str(value)?,
            "on-full" => self.on_full = OnFull::from_str(value)?,
            "durability" => self.durability = Durability::from_str(value)?,
            "scheduler" => self.scheduler = SchedulerKind::from_str(value)?,
            _ => {
                return Err(UnknownSetting::none_of(key, Self::KEYS.iter().copied()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_changes_its_setting_and_no_other() {
        let default = Settings::default();
        let cases = [
            ("write-policy", "ordered", Settings { write_policy: WritePolicy::Ordered, ..default }),
            ("order", "barrier", Settings { order: Order::Barrier, ..default }),
            ("group-size", "1M", Settings { group_bytes: 1 << 20, ..default }),
            ("group-age", "300ms", Settings { group_age_ms: 300, ..default }),
            ("group-ends", "flushes", Settings { group_ends: GroupEnds::Flushes, ..default }),
            ("max-staleness", "2s", Settings { max_staleness: MaxStaleness::Age(2000), ..default }),
            ("admission", "cp", Settings { admission: Admission::Cp, ..default }),
            ("journal-caching", "skip", Settings { journal_caching: JournalCaching::Skip, ..default }),
            ("on-full", "bypass", Settings { on_full: OnFull::Bypass, ..default }),
            ("durability", "flush", Settings { durability: Durability::Flush, ..default }),
            ("scheduler", "fifo", Settings { scheduler: SchedulerKind::Fifo, ..default }),
        ];
        assert_eq!(cases.map(|case| case.0), Settings::KEYS);
        for (key, value, expected) in cases {
            let mut settings = default;
            settings.set(key, value).unwrap();
            assert_eq!(settings, expected, "{key}={value}");
            assert_ne!(settings, default, "{key}={value} is the default, and shows nothing");
        }
        let mut settings = default;
        settings.set("admit", "cp").unwrap();
        assert_eq!(settings.admission, Admission::Cp);
    }

    #[test]
    fn a_group_has_a_size_within_its_limits() {
        let mut settings = Settings::default();
        for (value, bytes) in [("4K", 4096), ("128M", 128 << 20)] {
            settings.set("group-size", value).unwrap();
            assert_eq!(settings.group_bytes, bytes);
        }
        for (key, value) in [("group-size", "2K"), ("group-size", "129M"), ("group-age", "long")] {
            assert_eq!(settings.set(key, value).unwrap_err().given, value, "{key}");
        }
        assert_eq!(settings, Settings { group_bytes: 128 << 20, ..Settings::default() });
    }

    #[test]
    fn settings_parse_their_own_spelling_and_refuse_others() {
        for p in WritePolicy::ALL {
            assert_eq!(WritePolicy::from_str(p.as_str()), Ok(*p));
        }
        let mut s = Settings::default();
        s.set("write-policy", "write-through").unwrap();
        assert_eq!(s.write_policy, WritePolicy::WriteThrough);
        let before = s;
        let err = s.set("on-full", "explode").unwrap_err();
        assert_eq!(err.to_string(), "'explode' is not one of wait, bypass");
        assert!(s.set("colour", "red").is_err());
        for (key, value, words) in [
            ("group-size", "1G", "'1G' is not within the sizes that a group may have, 4K to 128M"),
            ("group-size", "much", "'much' is not a size from 4K to 128M"),
            ("group-age", "5", "'5' is not a time"),
            ("group-age", "8761h", "'8761h' is not within the times that a group may have, 0ms to 8760h"),
            ("max-staleness", "5ms", "'5ms' is neither a time from 10ms to 8760h"),
            ("max-staleness", "1K", "'1K' is neither a time from 10ms to 8760h, nor a size of at least 64K"),
            ("max-staleness", "some", "'some' is neither a time"),
        ] {
            assert!(s.set(key, value).unwrap_err().to_string().starts_with(words), "{key}={value}");
        }
        for key in Settings::KEYS {
            let e = s.set(key, "!").unwrap_err();
            assert_eq!(e.given, "!", "{key} is listed and not known");
        }
        assert_eq!(s, before);
    }
}
