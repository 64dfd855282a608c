//! Where, when and how a benchmark ran: what a reader needs to tell one report from another.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::Options;
use crate::report::Report;

const SECONDS_OF_DAY: u64 = 86_400;

/// What `--quick` means for the figures.
const QUICK: &str = "Noise: with --quick each contender is measured for a moment only. These figures compare nothing; leave --quick out for that.";

/// So many of something: `1 round`, `3 rounds`.
pub(crate) fn counted(number: u64, one: &str) -> String {
    format!("{number} {one}{}", if number == 1 { "" } else { "s" })
}

/// How often and how long each was measured, and what its figure is.
pub(crate) fn rounds_of(rounds: u32, time: Duration) -> String {
    let medians = if rounds > 1 { ", medians" } else { "" };
    format!("{} of {} s{medians}", counted(rounds.into(), "round"), time.as_secs_f64())
}

impl Report {
    /// With where and when it was measured, and `how`: rounds and seconds.
    pub(crate) fn under_conditions(mut self, options: &Options, how: String) -> Self {
        let directory = options.scratch.parent().unwrap_or(&options.scratch);
        let place = match device_below(directory) {
            Some(device) => format!("{} on {device}", directory.display()),
            None => directory.display().to_string(),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.conditions = vec![
            ("version", format!("forebay {}", env!("CARGO_PKG_VERSION"))),
            ("date", utc(now.as_secs())),
            ("host", host()),
            ("directory", place),
            ("measured in", how),
        ];
        if options.quick {
            self.notes.insert(0, QUICK.to_owned());
        }
        self
    }
}

/// The machine: its name, kernel and processors.
fn host() -> String {
    let said = |what: &str| {
        let text = fs::read_to_string(format!("/proc/sys/kernel/{what}"));
        text.map_or_else(|_| format!("unknown {what}"), |text| text.trim().to_owned())
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let (name, kernel) = (said("hostname"), said("osrelease"));
    format!("{name}, Linux {kernel}, {}", counted(processors, "processor"))
}

/// What the file system of a directory lies on, and its kind.
fn device_below(directory: &Path) -> Option<String> {
    mounted_at(&fs::read_to_string("/proc/self/mountinfo").ok()?, directory)
}

/// The same, as `/proc/self/mountinfo` has it: the last mount of the longest path above the directory.
fn mounted_at(mounts: &str, directory: &Path) -> Option<String> {
    let mount = |line: &str| {
        let (before, behind) = line.split_once(" - ")?;
        let place = PathBuf::from(before.split(' ').nth(4)?.replace("\\040", " "));
        let mut behind = behind.split(' ');
        let (kind, device) = (behind.next()?, behind.next()?);
        directory.starts_with(&place).then(|| (place.components().count(), format!("{device} ({kind})")))
    };
    mounts.lines().filter_map(mount).max_by_key(|(depth, _)| *depth).map(|(_, device)| device)
}

/// Seconds since 1970 as a date and a time of UTC.
fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / SECONDS_OF_DAY, seconds % SECONDS_OF_DAY);
    // Years that begin in March, so that a leap day is the last of its year; 400 of them have 146,097 days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", rest / 3600, rest / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let of = [0, 951_782_399, 951_782_400, 1_795_836_960, 4_107_542_400].map(utc);
        assert_eq!(
            of,
            [
                "1970-01-01 00:00 UTC",
                "2000-02-28 23:59 UTC",
                "2000-02-29 00:00 UTC",
                "2026-11-28 03:36 UTC",
                "2100-03-01 00:00 UTC"
            ]
        );
    }

    #[test]
    fn the_last_mount_of_the_longest_path_is_what_a_directory_lies_on() {
        let mounts = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 8:2 / /mnt/a\\040b rw shared:1 - xfs /dev/sdb rw\n\
                      3 1 0:5 / /mnt/a\\040b rw - tmpfs none rw\n4 1 8:3 / /mnt/a rw - ext4 /dev/sdc rw\n";
        let at = |directory: &str| mounted_at(mounts, Path::new(directory)).unwrap();
        assert_eq!(
            ["/mnt/a b/bench", "/mnt/a/bench", "/srv"].map(at),
            ["none (tmpfs)", "/dev/sdc (ext4)", "/dev/sda1 (ext4)"]
        );
    }

    #[test]
    fn one_is_not_many() {
        assert_eq!([1, 2].map(|n| counted(n, "warehouse")), ["1 warehouse", "2 warehouses"]);
        let of = [(1, 2), (3, 40)].map(|(rounds, s)| rounds_of(rounds, Duration::from_secs(s)));
        assert_eq!(of, ["1 round of 2 s", "3 rounds of 40 s, medians"]);
    }
}
