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
//! The share of dirty memory that the device may have (`bdi/max_ratio`, `bdi/strict_limit`) is the kernel's default: it makes *writers* wait, whoever
//! they are, in `balance_dirty_pages`, before there is a request that could be told apart; the volume's acknowledgement is quick
//! enough that memory does not fill. I/O priorities end at the loop device, as FUSE does not carry them.
//!
//! **What a former user left.** A loop device keeps all attributes from one use to the next, by whomever. So each one that a promise or speed
//! rests on is set, whatever it should be by default, and read back.
//!
//! | attribute | what rests on it | if it cannot be set |
//! |---|---|---|
//! | `write_cache` | that flushes and FUA writes arrive at all (P1, `durability=flush`, `order=barrier`): with `write through` the kernel drops both | another device is taken, or none |
//! | all others | speed, and that discards arrive | a warning |
//!
//! A loop device has no FUA of its own (`fua` is 0, and nobody can change that): the kernel makes a flush behind the write of it.
//!
//! **Detaching** puts back what was found, but what Forebay itself sets becomes the kernel's default, since it may be what a killed daemon left. `write_cache`
//! stays `write back`, the kernel's default: before the device is closed other programs may still write to it, and afterwards it may have a new user.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use forebay_block::words_of;

use crate::error::FuseError;

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
    /// What the kernel refused, as `attribute=value: reason`; empty if all went well. It costs speed, not data.
    pub refused: Vec<String>,
}

/// Scheduler that keeps slots for synchronous requests.
const SCHEDULER: &str = "bfq";

/// What a loop device has when nobody sets it.
const SCHEDULER_DEFAULT: &str = "none";

/// Makes the write-back throttle what it is by default.
const THROTTLE_DEFAULT: &str = "-1";

/// The kernel sends flushes and FUA writes.
const SENDS_FLUSHES: &str = "write back";

/// Longest request of a loop device in KiB when nobody sets it.
const REQUEST_KIB_DEFAULT: &str = "1280";

/// Attributes that a volume wants to be as the kernel has them by default, in an order in which none changes another. Some kernels lack
/// some of them.
const DEFAULTS: &[(&str, &str)] = &[
    // The kernel merges requests; their ends are told on the processor that asked.
    ("nomerges", "0"),
    ("rq_affinity", "1"),
    ("add_random", "0"),
    // The payload is copied before its checksum is made: pages may change under a write.
    ("stable_writes", "0"),
    ("rotational", "0"),
    ("../bdi/strict_limit", "0"),
    ("../bdi/max_ratio", "100"),
    // Comes last: a change of the limits above makes the kernel choose it anew.
    ("read_ahead_kb", "128"),
];

/// Limits that users may lower, and where the driver's own stand.
const HIGHEST: &[(&str, &str)] = &[
    ("discard_max_bytes", "discard_max_hw_bytes"),
    ("write_zeroes_unmap_max_bytes", "write_zeroes_unmap_max_hw_bytes"),
];

/// The attributes of a block device's queue, and what they are to be afterwards. A loop device keeps them from one use to the next, by whomever.
pub(crate) struct Queue {
    directory: PathBuf,
    after: Vec<(&'static str, String)>,
    refused: Vec<String>,
    /// A former user has set what only a device that is made anew has right: discards that are forbidden (`discard_max_bytes` 0) leave the device
    /// without a granularity, and then no other number is taken (Linux 6.18).
    pub spoilt: bool,
}

impl Queue {
    /// Sets the queue of the block device `name` (as under `/sys/block`), which is `writable` or not.
    ///
    /// # Errors
    /// [`FuseError::NoFlush`] if the kernel would send no flush; nothing is changed then.
    pub fn set_up(name: &str, limits: &QueueLimits, writable: bool) -> Result<(Self, QueueSetup), FuseError> {
        let directory = Path::new("/sys/block").join(name).join("queue");
        if writable {
            send_flushes(&directory).map_err(|reason| FuseError::NoFlush {
                device: Path::new("/dev").join(name),
                attribute: directory.join("write_cache"),
                reason,
            })?;
        }
        Ok(Self::set_up_in(directory, limits))
    }

    fn set_up_in(directory: PathBuf, limits: &QueueLimits) -> (Self, QueueSetup) {
        let mut queue = Self { directory, after: Vec::new(), refused: Vec::new(), spoilt: false };
        // What it was is put back first, since a change of the scheduler takes others along.
        let scheduler = if limits.reserve { SCHEDULER } else { SCHEDULER_DEFAULT };
        queue.remember("scheduler", scheduler, SCHEDULER_DEFAULT);
        let request_kib = (limits.request_bytes_max >> 10).to_string();
        queue.remember("max_sectors_kb", &request_kib, REQUEST_KIB_DEFAULT);
        queue.set("max_sectors_kb", &request_kib);
        for (attribute, highest) in HIGHEST {
            queue.set_highest(attribute, highest);
        }
        queue.set_requests_anew(limits.requests_max);
        let reserved = limits.reserve && queue.set("scheduler", SCHEDULER);
        if reserved {
            queue.set("iosched/low_latency", "0");
            queue.set("iosched/slice_idle", "0");
        }
        queue.set_throttle(reserved);
        // A scheduler has slots of its own.
        let _ = queue.write("nr_requests", &limits.requests_max.to_string());
        for (attribute, value) in DEFAULTS {
            queue.remember(attribute, value, value);
            queue.set(attribute, value);
        }
        let setup = QueueSetup { reserved, refused: queue.refused.clone() };
        (queue, setup)
    }

    /// Sets the number of slots of a queue without a scheduler. What a former user has set there goes on counting while another
    /// number is shown, and only a change takes it away.
    fn set_requests_anew(&mut self, requests: u32) {
        self.remember("nr_requests", &requests.to_string(), &requests.to_string());
        if self.directory.join("scheduler").exists() {
            self.set("scheduler", SCHEDULER_DEFAULT);
        }
        let _ = self.write("nr_requests", &(requests / 2).to_string());
        self.set("nr_requests", &requests.to_string());
    }

    /// Takes back what a former user has taken off a limit that the driver has.
    fn set_highest(&mut self, attribute: &'static str, highest: &str) {
        let Some(highest) = self.read(highest) else { return };
        if self.read(attribute).is_some_and(|found| found != highest) {
            // The driver's own need not be a multiple of the granularity; what is written must be one.
            let number = |text: Option<String>| text.and_then(|t| t.parse::<u64>().ok()).unwrap_or_default();
            let unit = number(self.read("discard_granularity")).max(1);
            let value = (number(Some(highest)) / unit * unit).to_string();
            self.remember(attribute, &value, &value);
            self.spoilt |= !self.set(attribute, &value);
        }
    }

    /// Switches the write-back throttle off, or makes it what it is by default, from which a number that is written differs even if it is the same.
    fn set_throttle(&mut self, off: bool) {
        const NAME: &str = "wbt_lat_usec";
        // Absent where the throttle is not compiled in, which is as good as off.
        let Some(found) = self.read(NAME) else { return };
        let default = self.write(NAME, THROTTLE_DEFAULT).ok().and_then(|()| self.read(NAME));
        let after = if found == "0" || Some(&found) == default.as_ref() { THROTTLE_DEFAULT } else { &found };
        self.after.push((NAME, after.to_owned()));
        if off {
            self.set(NAME, "0");
        }
    }

    /// Notes what an attribute is to be afterwards: what it is, unless that is what is going to be set. That may be what a killed daemon
    /// has left; so it becomes the default.
    fn remember(&mut self, attribute: &'static str, set: &str, default: &str) {
        if let Some(found) = self.read(attribute) {
            let after = if found == set { default.to_owned() } else { found };
            self.after.push((attribute, after));
        }
    }

    /// Writes `value`, unless it is there already, and reads it back; false, with the reason noted, if the kernel does not take it. What a kernel does not
    /// have need not be set, except for the scheduler.
    fn set(&mut self, attribute: &'static str, value: &str) -> bool {
        let path = self.directory.join(attribute);
        if attribute != "scheduler" && !path.exists() {
            return true;
        }
        match set_and_verify(&path, value) {
            Ok(()) => true,
            Err(reason) => {
                let name = attribute.trim_start_matches("../");
                self.refused.push(format!("{name}={value}: {reason}"));
                false
            }
        }
    }

    fn read(&self, attribute: &str) -> Option<String> {
        fs::read_to_string(self.directory.join(attribute)).ok().map(|text| chosen(&text).to_owned())
    }

    fn write(&self, attribute: &str, value: &str) -> io::Result<()> {
        fs::write(self.directory.join(attribute), value)
    }

    /// Makes the queue what it was, as far as that goes: nobody's data depends on it.
    pub fn restore(self) {
        // A scheduler's own attributes go with it.
        for (attribute, value) in &self.after {
            let _ = self.write(attribute, value);
        }
    }
}

/// Allows flushes to a loop device (as under `/sys/block`) that stands on no file as yet. False if that cannot be done: whether a former user has forbidden
/// them cannot be seen there. A device shows that it sends flushes only when it stands on a file.
pub(crate) fn allow_flushes(name: &str) -> bool {
    fs::write(Path::new("/sys/block").join(name).join("queue/write_cache"), SENDS_FLUSHES).is_ok()
}

/// Makes the kernel send flushes and FUA writes to the device; the reason if it does not.
fn send_flushes(directory: &Path) -> Result<(), String> {
    set_and_verify(&directory.join("write_cache"), SENDS_FLUSHES)
}

/// Writes `value`, unless it is there already, and reads it back; the reason if it is not there then.
fn set_and_verify(path: &Path, value: &str) -> Result<(), String> {
    let read = || fs::read_to_string(path).map_err(|e| words_of(&e));
    if chosen(&read()?) == value {
        return Ok(());
    }
    fs::write(path, value).map_err(|e| words_of(&e))?;
    let text = read()?;
    let kept = chosen(&text);
    if kept == value { Ok(()) } else { Err(format!("the kernel makes it '{kept}'")) }
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
        ("write_cache", "write through\n"),
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
        assert_eq!(read(&dir, "wbt_lat_usec"), "2000");
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
        let (queue, setup) = Queue::set_up_in(dir.path().to_owned(), &limits);
        assert_eq!(setup, QueueSetup::default());
        assert_eq!(read(&dir, "scheduler"), "none");
        queue.restore();
        assert_eq!(read(&dir, "scheduler"), "kyber");

        let attributes = [
            ("nomerges", "2\n", "0"),
            ("rq_affinity", "0\n", "1"),
            ("add_random", "1\n", "0"),
            ("stable_writes", "1\n", "0"),
            ("rotational", "1\n", "0"),
            ("read_ahead_kb", "0\n", "128"),
            ("write_zeroes_unmap_max_bytes", "0\n", "8192"),
        ];
        const HARDWARE: [(&str, &str); 1] = [("write_zeroes_unmap_max_hw_bytes", "8192\n")];
        let found: Vec<_> = attributes.iter().map(|(name, found, _)| (*name, *found)).collect();
        let dir = queue_with(&[ALL, &found, &HARDWARE].concat());
        let (queue, setup) = Queue::set_up_in(dir.path().to_owned(), &QueueLimits::default());
        assert_eq!(setup, QueueSetup { reserved: true, refused: vec![] });
        for (name, _, set) in attributes {
            assert_eq!(read(&dir, name), set, "{name}");
        }
        queue.restore();
        for (name, found, _) in attributes {
            assert_eq!(read(&dir, name), found.trim(), "{name}");
        }
    }

    /// Nobody puts back what a daemon has set that was killed.
    #[test]
    fn what_a_killed_daemon_left_becomes_the_default() {
        let dir = queue_with(ALL);
        drop(Queue::set_up_in(dir.path().to_owned(), &QueueLimits::default()));
        fs::write(dir.path().join("scheduler"), "none [bfq]\n").unwrap();
        let (queue, _) = Queue::set_up_in(dir.path().to_owned(), &QueueLimits::default());
        queue.restore();
        assert_eq!(read(&dir, "scheduler"), "none");
        assert_eq!(read(&dir, "wbt_lat_usec"), "-1");
        assert_eq!(read(&dir, "max_sectors_kb"), "1280");
    }

    #[test]
    fn a_queue_that_sends_no_flush_is_told() {
        let dir = queue_with(ALL);
        send_flushes(dir.path()).unwrap();
        assert_eq!(read(&dir, "write_cache"), "write back");
        let attribute = dir.path().join("write_cache");
        // Takes what is written, and shows something else.
        fs::remove_file(&attribute).unwrap();
        std::os::unix::fs::symlink("/dev/null", &attribute).unwrap();
        assert_eq!(send_flushes(dir.path()).unwrap_err(), "the kernel makes it ''");
        // Has none.
        fs::remove_file(&attribute).unwrap();
        assert_eq!(send_flushes(dir.path()).unwrap_err(), "No such file or directory");
    }

    #[test]
    fn what_the_kernel_does_not_take_is_told_and_the_rest_is_set() {
        let dir = queue_with(ALL);
        let attribute = dir.path().join("nomerges");
        std::os::unix::fs::symlink("/dev/null", &attribute).unwrap();
        let (_, setup) = Queue::set_up_in(dir.path().to_owned(), &QueueLimits::default());
        assert_eq!(setup.refused, ["nomerges=0: the kernel makes it ''"]);
        assert!(setup.reserved);
        assert_eq!(read(&dir, "max_sectors_kb"), "1024");
    }
}
