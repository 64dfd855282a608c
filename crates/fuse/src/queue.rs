//! The block layer's queue of the loop device: set so that background writes cannot take every slot.
//!
//! On its way to the volume a write passes these limits, each of which is a place where a write that a request waits for can
//! get stuck behind writes that nobody waits for:
//!
//! 1. **Write-back throttle** (`wbt_lat_usec`, on by default). It lets so many buffered writes through (48 of 128 slots were seen) and makes
//!    all others wait in one queue: the pages of an fsync behind the flusher's, in `wbt_wait`. O_DIRECT and the journal are exempt.
//!    It is switched off where there is something better:
//! 2. **Request slots** (`nr_requests`, 128). Without a scheduler they go to whoever comes first, and the flusher, which is never
//!    tired, has all of them. Schedulers differ in what they keep free. With `mq-deadline` the flusher had all 128 as well, with
//!    `kyber` 96, but of the rest nothing was given to a synchronous *write* (Linux 6.18: both keep slots for reads alone). **`bfq`** gives
//!    asynchronous writes at most half of the slots and synchronous ones (fsync, O_DIRECT, the journal) three quarters: with 64 of the
//!    flusher's writes stuck, both an O_DIRECT write and an fsync's went through. What it does beyond that, idling for a process
//!    that might go on, and preferring "interactive" processes, is switched off (`slice_idle`, `low_latency`): the volume knows
//!    better who must wait. Its price lay within the noise of the measurement. The scheduler's slots are made as many
//!    as the device's tags, or else requests that got a slot would queue for a tag.
//! 3. **The loop device's worker** (one for each cgroup) hands requests on in order and does not wait for their end, with
//!    direct I/O. Only a flush or a discard is waited for, and holds up what is behind it.
//! 4. **FUSE's limit of background requests** (`max_background`) would make that worker wait; it is above the number of slots, and a
//!    request of the queue is never cut into several of FUSE (`max_sectors_kb`), so that it is not reached.
//!
//! The share of dirty memory that the device may have (`bdi/max_ratio`, `bdi/strict_limit`) is left alone: it makes *writers* wait, whoever they
//! are, in `balance_dirty_pages`, before there is a request that could be told apart; the volume's acknowledgement is quick
//! enough that memory does not fill. I/O priorities end at the loop device, as FUSE does not carry them.
//!
//! Nothing here can endanger data; so what a kernel does not offer is left as it is and reported.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What the queue is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Keep slots for synchronous requests (see the module's text). Else there is no scheduler, and the kernel's write-back throttle.
    pub reserve: bool,
    /// Requests that may be under way, 4 to 128. More than 128 is beyond the loop driver's own depth.
    pub requests_max: u32,
    /// Longest request in bytes, a multiple of 4 KiB; at most what the export takes in one piece, 1 MiB.
    pub request_bytes_max: u32,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self { reserve: true, requests_max: 128, request_bytes_max: 1 << 20 }
    }
}

/// How the queue is set up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSetup {
    /// Whether slots are kept for synchronous requests.
    pub reserved: bool,
    /// What the kernel refused, as `attribute=value: reason`; empty if all went well.
    pub refused: Vec<String>,
}

/// Scheduler that keeps slots for synchronous requests.
const SCHEDULER: &str = "bfq";

/// What a loop device has when nobody sets it.
const SCHEDULER_DEFAULT: &str = "none";

/// Makes the write-back throttle what it is by default.
const THROTTLE_DEFAULT: &str = "-1";

/// The attributes of a block device's queue, and what they were before. A loop device keeps them from one use to the next, by whomever.
pub(crate) struct Queue {
    directory: PathBuf,
    before: Vec<(&'static str, String)>,
    refused: Vec<String>,
}

impl Queue {
    /// Sets the queue of the block device `name` (as under `/sys/block`).
    pub fn set_up(name: &str, limits: &QueueLimits) -> (Self, QueueSetup) {
        Self::set_up_in(Path::new("/sys/block").join(name).join("queue"), limits)
    }

    fn set_up_in(directory: PathBuf, limits: &QueueLimits) -> (Self, QueueSetup) {
        let mut queue = Self { directory, before: Vec::new(), refused: Vec::new() };
        queue.set("max_sectors_kb", &(limits.request_bytes_max >> 10).to_string());
        queue.set_requests_anew(limits.requests_max);
        let reserved = limits.reserve && queue.set("scheduler", SCHEDULER);
        if reserved {
            queue.set("iosched/low_latency", "0");
            queue.set("iosched/slice_idle", "0");
        } else if !limits.reserve {
            queue.set("scheduler", SCHEDULER_DEFAULT);
        }
        // Absent where the throttle is not compiled in, which is as good as off.
        if queue.directory.join("wbt_lat_usec").exists() {
            queue.set("wbt_lat_usec", if reserved { "0" } else { THROTTLE_DEFAULT });
        }
        // A scheduler has slots of its own.
        let _ = fs::write(queue.directory.join("nr_requests"), limits.requests_max.to_string());
        let setup = QueueSetup { reserved, refused: queue.refused.clone() };
        (queue, setup)
    }

    /// Sets the number of slots of a queue without a scheduler. What a former user has set there goes on counting while another
    /// number is shown, and only a change takes it away.
    fn set_requests_anew(&mut self, requests: u32) {
        let path = self.directory.join("nr_requests");
        let before = fs::read_to_string(&path);
        let scheduler = self.directory.join("scheduler");
        if scheduler.exists() {
            let _ = fs::write(scheduler, SCHEDULER_DEFAULT);
        }
        let _ = fs::write(&path, (requests / 2).to_string());
        match fs::write(&path, requests.to_string()).and(before) {
            Ok(before) => self.before.push(("nr_requests", before.trim().to_owned())),
            Err(e) => self.refused.push(format!("nr_requests={requests}: {e}")),
        }
    }

    /// Writes `value`, unless it is there already; false, with the reason noted, if the kernel does not take it.
    fn set(&mut self, attribute: &'static str, value: &str) -> bool {
        let path = self.directory.join(attribute);
        let result: io::Result<()> = fs::read_to_string(&path).and_then(|text| {
            let current = chosen(&text);
            if current != value {
                fs::write(&path, value)?;
            }
            // What is there may have been left by a killed daemon; so go back to the defaults where they are known.
            let before = match attribute {
                "wbt_lat_usec" => THROTTLE_DEFAULT,
                "scheduler" => SCHEDULER_DEFAULT,
                _ => current,
            };
            self.before.push((attribute, before.to_owned()));
            Ok(())
        });
        if let Err(e) = &result {
            self.refused.push(format!("{attribute}={value}: {e}"));
        }
        result.is_ok()
    }

    /// Makes the queue what it was, as far as that goes: nobody's data depends on it.
    pub fn restore(self) {
        // The scheduler's own attributes go with it, and whatever it takes along comes after it in this order.
        for (attribute, value) in self.before.iter().filter(|(a, _)| !a.starts_with("iosched/")) {
            let _ = fs::write(self.directory.join(attribute), value);
        }
    }
}

/// The value of an attribute that shows all that can be chosen, with the chosen one in brackets; others show just their value.
fn chosen(text: &str) -> &str {
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    bracketed.map_or(text.trim(), |(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue_with(attributes: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("iosched")).unwrap();
        for (name, value) in attributes {
            fs::write(dir.path().join(name), value).unwrap();
        }
        dir
    }

    fn read(dir: &tempfile::TempDir, name: &str) -> String {
        fs::read_to_string(dir.path().join(name)).unwrap()
    }

    const ALL: &[(&str, &str)] = &[
        ("max_sectors_kb", "1280\n"),
        ("scheduler", "[none] bfq kyber\n"),
        ("iosched/low_latency", "1\n"),
        ("iosched/slice_idle", "8\n"),
        ("wbt_lat_usec", "2000\n"),
        ("nr_requests", "256\n"),
    ];

    #[test]
    fn slots_are_reserved_and_the_throttle_is_off_and_all_is_restored() {
        let dir = queue_with(ALL);
        let (queue, setup) = Queue::set_up_in(dir.path().to_owned(), &QueueLimits::default());
        assert_eq!(setup, QueueSetup { reserved: true, refused: vec![] });
        assert_eq!(read(&dir, "scheduler"), "bfq");
        assert_eq!(read(&dir, "iosched/slice_idle"), "0");
        assert_eq!(read(&dir, "wbt_lat_usec"), "0");
        assert_eq!(read(&dir, "nr_requests"), "128");
        assert_eq!(read(&dir, "max_sectors_kb"), "1024");
        queue.restore();
        assert_eq!(read(&dir, "scheduler"), "none");
        assert_eq!(read(&dir, "wbt_lat_usec"), "-1");
        assert_eq!(read(&dir, "nr_requests"), "256");
        assert_eq!(read(&dir, "max_sectors_kb"), "1280");
    }

    #[test]
    fn without_the_scheduler_the_throttle_stays() {
        let without: Vec<_> = ALL.iter().copied().filter(|(n, _)| *n != "scheduler").collect();
        let dir = queue_with(&without);
        let (_, setup) = Queue::set_up_in(dir.path().to_owned(), &QueueLimits::default());
        assert!(!setup.reserved);
        assert_eq!(setup.refused.len(), 1, "{setup:?}");
        assert_eq!(read(&dir, "wbt_lat_usec"), "-1");
    }

    #[test]
    fn what_a_former_user_left_is_not_kept() {
        let dir = queue_with(ALL);
        fs::write(dir.path().join("scheduler"), "none bfq [kyber]\n").unwrap();
        let limits = QueueLimits { reserve: false, ..QueueLimits::default() };
        let (_, setup) = Queue::set_up_in(dir.path().to_owned(), &limits);
        assert_eq!(setup, QueueSetup::default());
        assert_eq!(read(&dir, "scheduler"), "none");

        fs::write(dir.path().join("scheduler"), "none [bfq]\n").unwrap();
        let (queue, _) = Queue::set_up_in(dir.path().to_owned(), &QueueLimits::default());
        queue.restore();
        assert_eq!(read(&dir, "scheduler"), "none");
    }
}
