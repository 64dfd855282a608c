//! What of a volume can be changed while it runs, by the names of the flags; and what would change nothing.

use clap::Args as _;
use forebay_policy::{
    Admission, GroupEnds, JournalCaching, MaxStaleness, OnFull, Ranges, Settings, UnknownSetting,
    WritePolicy, size,
};

use crate::nearest::nearest;
use crate::serve_args;

/// Keys beside those of [`Settings`].
const OWN_KEYS: [&str; 2] = ["ranges", "endurance"];

/// Changes of a volume's settings.
#[derive(Clone, Debug)]
pub struct Changes {
    /// The settings, with what is changed of them.
    pub settings: Settings,
    /// What the admission policy `range` lets in, if that is changed.
    pub ranges: Option<Ranges>,
    /// Bytes a day that may be written to the cache, if that is changed.
    pub endurance: Option<u64>,
}

impl Changes {
    /// None yet.
    pub fn of(settings: Settings) -> Self {
        Self { settings, ranges: None, endurance: None }
    }

    /// Every key.
    pub fn keys() -> impl Iterator<Item = &'static str> {
        Settings::KEYS.iter().copied().chain(OWN_KEYS)
    }

    /// Changes one setting.
    ///
    /// # Errors
    /// One sentence, with what was probably meant; nothing is changed then.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let done = match key {
            "ranges" => value.parse().map(|ranges| self.ranges = Some(ranges)),
            "endurance" => {
                let bytes = size::parse(value).map_err(|e| format!("{key}: {e}"))?;
                self.endurance = Some(bytes);
                return Ok(());
            }
            _ if key != "admit" && Self::keys().all(|known| known != key) => {
                if let Some(flag) = flag_of_start(key) {
                    return Err(format!("'{key}' is set at the start: restart the daemon with --{flag}"));
                }
                let unknown = UnknownSetting::none_of(key, Self::keys());
                return Err(with_suggestion(&unknown));
            }
            _ => self.settings.set(key, value),
        };
        done.map_err(|e| format!("{key}: {}", with_suggestion(&e)))
    }
}

/// The flag of `forebay serve` of this name.
fn flag_of_start(key: &str) -> Option<String> {
    let key = key.replace('_', "-");
    let serve = serve_args::Args::augment_args(clap::Command::new("serve"));
    let is_flag = serve.get_arguments().any(|arg| !arg.is_hide_set() && arg.get_long() == Some(&key));
    (is_flag && Changes::keys().all(|known| known != key)).then_some(key)
}

/// What is not known, and which of the words was probably meant.
fn with_suggestion(unknown: &UnknownSetting) -> String {
    match nearest(&unknown.given, unknown.words().iter().copied()) {
        Some(meant) => format!("{unknown}; did you mean `{meant}`?"),
        None => unknown.to_string(),
    }
}

/// What a volume is, as far as that decides whether a setting does anything.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances<'a> {
    /// Its settings.
    pub settings: &'a Settings,
    /// It has a cache.
    pub cached: bool,
    /// It refuses writes.
    pub read_only: bool,
}

/// One sentence for each of the `given` settings that has no effect as things are.
pub fn idle<'a>(given: impl IntoIterator<Item = &'a str>, around: Circumstances<'_>) -> Vec<String> {
    let Circumstances { settings, cached, read_only } = around;
    let (policy, admission) = (settings.write_policy, settings.admission);
    let why_all = match (cached, read_only) {
        (false, _) => Some("without a cache"),
        (true, true) => Some("on a read-only volume"),
        (true, false) => None,
    };
    let why = |key: &str| match (why_all, key) {
        // It is for reads, too.
        (_, "scheduler") => None,
        (Some(why), _) => Some(why.to_owned()),
        (None, "order") if policy != WritePolicy::Ordered => {
            Some(format!("under write-policy {policy}; it is for ordered"))
        }
        (None, "group-size" | "group-age" | "group-ends") if policy != WritePolicy::Journaled => {
            Some(format!("under write-policy {policy}; it is for journaled"))
        }
        (None, "max-staleness")
            if policy == WritePolicy::WriteThrough && settings.max_staleness != MaxStaleness::None =>
        {
            Some("under write-policy write-through, with which the backing lacks nothing".to_owned())
        }
        (None, "ranges") if admission != Admission::Range => {
            Some(format!("under admission {admission}; it is for range"))
        }
        (None, "endurance") if admission != Admission::Adaptive => {
            Some(format!("under admission {admission}; it is for adaptive"))
        }
        (None, "journal-caching")
            if admission == Admission::Journal && settings.journal_caching == JournalCaching::Bypass =>
        {
            Some("under admission journal, which lets journals in".to_owned())
        }
        (None, "journal-caching")
            if is_by_points(settings) && settings.journal_caching == JournalCaching::Bypass =>
        {
            Some(format!("under group-ends {}; every write enters the cache", settings.group_ends))
        }
        (None, "admission") if is_by_points(settings) && admission != Admission::All => {
            Some(format!("under group-ends {}; every write enters the cache", settings.group_ends))
        }
        (None, "on-full") if is_by_points(settings) && settings.on_full == OnFull::Bypass => {
            Some(format!("under group-ends {}; every write enters the cache", settings.group_ends))
        }
        _ => None,
    };
    given.into_iter().filter_map(|key| why(key).map(|why| format!("{key} has no effect {why}"))).collect()
}

/// The backing moves from point to point only, and nothing goes past the groups.
fn is_by_points(settings: &Settings) -> bool {
    settings.write_policy == WritePolicy::Journaled && settings.group_ends != GroupEnds::Anywhere
}

/// One sentence if the ranges that decide what enters the cache lie behind the end of the volume.
pub fn out_of_volume(settings: &Settings, ranges: &Ranges, volume_bytes: u64) -> Option<String> {
    let decide = settings.admission == Admission::Range && !is_by_points(settings);
    (decide && !ranges.touch(0, volume_bytes)).then(|| {
        format!(
            "no range lies in the volume, which has {}, so that no write enters the cache; give ranges within it",
            size::show(volume_bytes)
        )
    })
}

/// One sentence if only critical writes enter the cache, and nobody's are: those of NBD clients do not count, and no task's can yet.
pub fn nobody_is_critical(settings: &Settings) -> Option<String> {
    let admission = settings.admission;
    let decides = matches!(admission, Admission::Cp | Admission::CpPi | Admission::CpPiIoi);
    (decides && !is_by_points(settings)).then(|| {
        format!(
            "admission is {admission}, and nobody is critical, so that no write enters the cache; serve with --critical, or attach the volume and say with --rules or hints who is"
        )
    })
}

/// Refuses the admission policy that lets in what `ranges` say, where they say nothing.
pub fn check_ranges(admission: Admission, ranges: &Ranges) -> Result<(), String> {
    match admission == Admission::Range && ranges.is_empty() {
        true => Err("admission is range and there are no ranges, so that nothing would enter the cache; give ranges, such as 0-16M".to_owned()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_that_are_not_known_are_told_with_what_was_meant() {
        let mut changes = Changes::of(Settings::default());
        for (key, value, words) in [
            ("endurence", "1G", "did you mean `endurance`?"),
            ("colour", "red", "'colour' is not one of write-policy, order,"),
            ("colour", "red", "ranges, endurance"),
            ("write_policy", "ordered", "did you mean `write-policy`?"),
            ("write-policy", "orderd", "write-policy: 'orderd' is not one of write-through,"),
            ("write-policy", "orderd", "did you mean `ordered`?"),
            ("group-size", "1G", "4K to 128M"),
            ("endurance", "much", "endurance: 'much' is not a size"),
            ("ranges", "16M", "0-16M"),
        ] {
            let e = changes.set(key, value).unwrap_err();
            assert!(e.contains(words), "{key}={value}: {e}");
        }
        for key in Changes::keys() {
            let e = changes.set(key, "!").unwrap_err();
            assert!(e.starts_with(&format!("{key}: '!'")), "{key} is listed and not known: {e}");
        }
        changes.set("admit", "sync").unwrap();
        changes.set("ranges", "0-16M").unwrap();
        assert!(changes.settings.admission == Admission::Sync && changes.ranges.is_some());
    }

    #[test]
    fn what_has_no_effect_is_told() {
        let settings = |pairs: &[(&str, &str)]| {
            let mut changes = Changes::of(Settings::default());
            pairs.iter().for_each(|(key, value)| changes.set(key, value).unwrap());
            changes.settings
        };
        let told = |pairs: &[(&str, &str)], cached, read_only| {
            let settings = settings(pairs);
            idle(Changes::keys(), Circumstances { settings: &settings, cached, read_only }).join("\n")
        };
        let plain = told(&[("max-staleness", "5s")], true, false);
        for key in ["order", "group-size", "group-age", "group-ends"] {
            assert!(plain.contains(&format!("{key} has no effect under write-policy write-back")), "{plain}");
        }
        assert!(plain.contains("ranges has no effect under admission all"), "{plain}");
        assert!(plain.contains("endurance has no effect under admission all"), "{plain}");
        assert!(!plain.contains("max-staleness"), "{plain}");
        let through = told(&[("max-staleness", "5s"), ("write-policy", "write-through")], true, false);
        assert!(
            through.contains("max-staleness has no effect under write-policy write-through"),
            "{through}"
        );
        for (key, of) in [
            ("write-policy", "ordered"),
            ("write-policy", "journaled"),
            ("admission", "range"),
            ("admission", "adaptive"),
        ] {
            let said = told(&[(key, of)], true, false);
            assert!(!said.contains(&format!("for {of}")), "{said}");
        }
        assert!(told(&[], false, false).contains("durability has no effect without a cache"));
        for (cached, read_only) in [(false, false), (false, true), (true, true)] {
            assert!(!told(&[("scheduler", "fifo")], cached, read_only).contains("scheduler"));
        }
        assert!(told(&[], true, true).contains("on-full has no effect on a read-only volume"));
    }
}
