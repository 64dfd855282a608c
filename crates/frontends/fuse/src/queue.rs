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
//! What a task dirties in the page cache is written back early ([`crate::background_dirty`]). I/O priorities end at the loop device, as FUSE does not
//! carry them.
//!
//! **Synchronous writes of background tasks** (a checkpointer's fsync) have the same three quarters. `bfq` alone divides them among tasks that write at the
//! same time (`CONFIG_BFQ_GROUP_IOSCHED`): beside a checkpointer a critical task slept for slots 14 us for each pair of its writes, with
//! `mq-deadline` 17 ms (`docs/results/2026-11-28-slots.md`). I/O priorities would divide them otherwise. Forebay changes nobody's:
//! they also decide on other disks, and a task that critical ones wait for would have the wrong one. What somebody critical sleeps for is promoted instead, and
//! told (`forebay waits`, `slot`).
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
//! **Detaching** puts back what was found, and [`crate::knobs`] does after a daemon was killed. `write_cache` alone stays `write back`: before the
//! device is closed other programs may still write to it, and afterwards it may have a new user.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use forebay_block::words_of;

use crate::background_dirty::{BackgroundDirty, Memory, WHOLE, in_units};
use crate::error::FuseError;
use crate::knobs::{self, Knob, Record, THROTTLE, THROTTLE_DEFAULT, chosen};
use crate::loop_device::LoopDevice;

/// What the queue is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Keep slots for synchronous requests (see the module's text). Else there is no scheduler, and the kernel's write-back throttle.
    pub reserve: bool,
    /// Requests that may be under way, 4 to 128. More than 128 is beyond the loop driver's own depth.
    pub requests_max: u32,
    /// Longest request in bytes, a multiple of 4 KiB; at most what the export takes in one piece, 1 MiB.
    pub request_bytes_max: u32,
    /// Millionths of memory that may be dirty before write-back of the device begins; 0: what the system allows.
    pub background_dirty: u32,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self { reserve: true, requests_max: 128, request_bytes_max: 1 << 20, background_dirty: 0 }
    }
}

/// How the queue is set up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSetup {
    /// Whether slots are kept for synchronous requests.
    pub reserved: bool,
    /// What the kernel refused, as `attribute=value: reason`; empty if all went well. It costs speed, not data.
    pub refused: Vec<String>,
    /// What was set, and what was there before.
    pub knobs: Vec<Knob>,
    /// Why what was there is not on record, if it should be.
    pub unrecorded: Option<String>,
}

const SCHEDULER: &str = "queue/scheduler";

/// Scheduler that keeps slots for synchronous requests.
const RESERVING: &str = "bfq";

/// No scheduler at all.
const NONE: &str = "none";

/// What a scheduler can be told lies here, and goes with it.
const OF_SCHEDULER: &str = "queue/iosched";

/// Of the one that keeps slots.
const SCHEDULER_SETTINGS: &[(&str, &str)] =
    &[("queue/iosched/low_latency", "0"), ("queue/iosched/slice_idle", "0")];

const REQUESTS: &str = "queue/nr_requests";

const REQUEST_KIB: &str = "queue/max_sectors_kb";

/// The kernel sends flushes and FUA writes.
const SENDS_FLUSHES: &str = "write back";

/// The device's part of the limit where write-back of all disks begins.
const MAX_RATIO: Ratio = Ratio { millionths: "bdi/max_ratio_fine", percent: "bdi/max_ratio" };

/// What the device is sure to have of it.
const MIN_RATIO: Ratio = Ratio { millionths: "bdi/min_ratio_fine", percent: "bdi/min_ratio" };

/// A part of the limit of dirty memory. Linux has it in percent, since 6.2 in millionths as well.
struct Ratio {
    millionths: &'static str,
    percent: &'static str,
}

impl Ratio {
    /// The finer one that the kernel has, and how many of its units are all.
    fn of(&self, directory: &Path) -> (&'static str, u64) {
        if directory.join(self.millionths).exists() { (self.millionths, WHOLE) } else { (self.percent, 100) }
    }
}

/// Attributes that a volume wants to be as the kernel has them by default, in an order in which none changes another. Some kernels lack
/// some of them.
const DEFAULTS: &[(&str, &str)] = &[
    // The kernel merges requests; their ends are told on the processor that asked.
    ("queue/nomerges", "0"),
    ("queue/rq_affinity", "1"),
    ("queue/add_random", "0"),
    // The payload is copied before its checksum is made: pages may change under a write.
    ("queue/stable_writes", "0"),
    ("queue/rotational", "0"),
    ("bdi/strict_limit", "0"),
    // Comes last: a change of the limits above makes the kernel choose it anew.
    ("queue/read_ahead_kb", "128"),
];

/// Limits that users may lower, and where the driver's own stand.
const HIGHEST: &[(&str, &str)] = &[
    ("queue/discard_max_bytes", "queue/discard_max_hw_bytes"),
    ("queue/write_zeroes_unmap_max_bytes", "queue/write_zeroes_unmap_max_hw_bytes"),
];

/// The attributes of a block device and its queue, and what they were. A loop device keeps them from one use to the next, by whomever.
pub(crate) struct Queue {
    directory: PathBuf,
    knobs: Vec<Knob>,
    refused: Vec<String>,
    record: Option<Record>,
    /// If it has one of its own.
    pub background: Option<BackgroundDirty>,
    /// A former user has set what only a device that is made anew has right: discards that are forbidden (`discard_max_bytes` 0) leave the device
    /// without a granularity, and then no other number is taken (Linux 6.18).
    pub spoilt: bool,
}

impl Queue {
    /// Sets the queue of a loop device, `name` (as under `/sys/block`). What was there is kept in `record` before.
    ///
    /// # Errors
    /// [`FuseError::NoFlush`] if the kernel would send no flush; nothing is changed then.
    pub fn set_up(
        name: &str,
        device: &LoopDevice,
        limits: &QueueLimits,
        record: Option<&Path>,
    ) -> Result<(Self, QueueSetup), FuseError> {
        let directory = Path::new("/sys/block").join(name);
        if device.writable {
            send_flushes(&directory).map_err(|reason| FuseError::NoFlush {
                device: Path::new("/dev").join(name),
                attribute: directory.join("queue/write_cache"),
                reason,
            })?;
        }
        Ok(Self::set_up_in(directory, limits, &device.found, |knobs| {
            record.map(|path| {
                Record::write(path, name, knobs).map_err(|e| format!("{}: {}", path.display(), words_of(&e)))
            })
        }))
    }

    fn set_up_in(
        directory: PathBuf,
        limits: &QueueLimits,
        found: &Found,
        keep: impl FnOnce(&[Knob]) -> Option<Result<Record, String>>,
    ) -> (Self, QueueSetup) {
        let mut queue = Self {
            directory,
            knobs: Vec::new(),
            refused: Vec::new(),
            record: None,
            background: None,
            spoilt: false,
        };
        let ratio = Memory::now().map_or(WHOLE, |memory| memory.ratio(limits.background_dirty));
        queue.plan(limits, found, ratio);
        let unrecorded = match keep(&queue.knobs) {
            Some(Ok(record)) => {
                queue.record = Some(record);
                None
            }
            Some(Err(reason)) => Some(reason),
            None => None,
        };
        let reserved = queue.apply(limits);
        queue.limit_dirty(limits.background_dirty, ratio);
        let setup =
            QueueSetup { reserved, refused: queue.refused.clone(), knobs: queue.turned(), unrecorded };
        (queue, setup)
    }

    /// Notes what was `found`, in the order in which it is put back: a change of the scheduler takes others along.
    fn plan(&mut self, limits: &QueueLimits, found: &Found, ratio: u64) {
        self.intend(found, REQUEST_KIB, &(limits.request_bytes_max >> 10).to_string());
        for (attribute, highest) in HIGHEST {
            let Some(highest) = self.highest(attribute, highest) else { continue };
            self.intend(found, attribute, &highest);
        }
        self.intend(found, SCHEDULER, if limits.reserve { RESERVING } else { NONE });
        let by = found.0.get(SCHEDULER).map(String::as_str);
        for attribute in found.0.keys().filter(|name| name.starts_with(OF_SCHEDULER)) {
            self.intend(found, attribute, "");
        }
        for (attribute, value) in SCHEDULER_SETTINGS.iter().filter(|_| limits.reserve) {
            match self.knobs.iter_mut().find(|knob| knob.name == *attribute && by == Some(RESERVING)) {
                Some(knob) => knob.set = (*value).to_owned(),
                None => self.knobs.push(Knob {
                    name: (*attribute).to_owned(),
                    set: (*value).to_owned(),
                    before: String::new(),
                }),
            }
        }
        // Of one that this scheduler has switched off it is not known what it was; with the scheduler it is off again.
        if !(by == Some(RESERVING) && found.0.get(THROTTLE).is_some_and(|us| us == "0")) {
            self.intend(found, THROTTLE, if limits.reserve { "0" } else { THROTTLE_DEFAULT });
        }
        self.intend(found, REQUESTS, &limits.requests_max.to_string());
        // The least must not be more than the most, before or afterwards.
        let (most, whole) = MAX_RATIO.of(&self.directory);
        self.intend(found, most, &in_units(ratio, whole).to_string());
        self.intend(found, MIN_RATIO.of(&self.directory).0, "0");
        for (attribute, value) in DEFAULTS {
            self.intend(found, attribute, value);
        }
    }

    fn intend(&mut self, found: &Found, attribute: &str, set: &str) {
        let Some(before) = found.0.get(attribute).cloned() else { return };
        self.knobs.push(Knob { name: attribute.to_owned(), set: set.to_owned(), before });
    }

    /// Sets what was planned; whether slots are kept.
    fn apply(&mut self, limits: &QueueLimits) -> bool {
        self.set(REQUEST_KIB, &(limits.request_bytes_max >> 10).to_string());
        for (attribute, highest) in HIGHEST {
            if let Some(highest) = self.highest(attribute, highest) {
                self.spoilt |= !self.set(attribute, &highest);
            }
        }
        self.set_requests_anew(limits.requests_max);
        let reserved = limits.reserve && self.set(SCHEDULER, RESERVING);
        if reserved {
            for (attribute, value) in SCHEDULER_SETTINGS {
                self.set(attribute, value);
            }
        }
        // Absent where it is not compiled in, which is as good as off.
        let _ = self.write(THROTTLE, THROTTLE_DEFAULT);
        if reserved {
            self.set(THROTTLE, "0");
        }
        // A scheduler has slots of its own.
        let _ = self.write(REQUESTS, &limits.requests_max.to_string());
        for (attribute, value) in DEFAULTS {
            self.set(attribute, value);
        }
        reserved
    }

    /// The knobs that were turned, with what the kernel has made of them.
    fn turned(&self) -> Vec<Knob> {
        let intended = self.knobs.iter().filter(|knob| !knob.set.is_empty());
        let turned = intended.filter_map(|knob| Some(Knob { set: self.read(&knob.name)?, ..knob.clone() }));
        turned.filter(|knob| !knob.set.is_empty()).collect()
    }

    /// Gives the device its part of the limit of dirty memory, which moves with memory from then on.
    fn limit_dirty(&mut self, share: u32, ratio: u64) {
        self.set(MIN_RATIO.of(&self.directory).0, "0");
        let (most, whole) = MAX_RATIO.of(&self.directory);
        let (attribute, value) = (self.directory.join(most), in_units(ratio, whole).to_string());
        if share > 0 && !attribute.exists() {
            self.refused.push(format!("{most}={value}: there is none"));
        } else if self.set(most, &value) && share > 0 {
            self.background = Some(BackgroundDirty::new(attribute, whole, share, ratio));
        }
    }

    /// Sets the number of slots of a queue without a scheduler. What a former user has set there goes on counting while another
    /// number is shown, and only a change takes it away.
    fn set_requests_anew(&mut self, requests: u32) {
        if self.directory.join(SCHEDULER).exists() {
            self.set(SCHEDULER, NONE);
        }
        let _ = self.write(REQUESTS, &(requests / 2).to_string());
        self.set(REQUESTS, &requests.to_string());
    }

    /// The most that an attribute takes, if a former user has taken something off it.
    fn highest(&self, attribute: &str, highest: &str) -> Option<String> {
        let highest = self.read(highest)?;
        self.read(attribute).filter(|found| *found != highest)?;
        // The driver's own need not be a multiple of the granularity; what is written must be one.
        let number = |text: Option<String>| text.and_then(|t| t.parse::<u64>().ok()).unwrap_or_default();
        let unit = number(self.read("queue/discard_granularity")).max(1);
        Some((number(Some(highest)) / unit * unit).to_string())
    }

    /// Writes `value`, unless it is there already, and reads it back; false, with the reason noted, if the kernel does not take it. What a kernel does not
    /// have need not be set, except for the scheduler.
    fn set(&mut self, attribute: &str, value: &str) -> bool {
        let path = self.directory.join(attribute);
        if attribute != SCHEDULER && !path.exists() {
            return true;
        }
        match set_and_verify(&path, value) {
            Ok(()) => true,
            Err(reason) => {
                let name = attribute.trim_start_matches("queue/");
                self.refused.push(format!("{name}={value}: {reason}"));
                false
            }
        }
    }

    fn read(&self, attribute: &str) -> Option<String> {
        knobs::read(&self.directory, attribute)
    }

    fn write(&self, attribute: &str, value: &str) -> io::Result<()> {
        let path = self.directory.join(attribute);
        if path.exists() { fs::write(path, value) } else { Ok(()) }
    }

    /// Makes the queue what it was, as far as that goes: nobody's data depends on it.
    pub fn restore(&self) {
        knobs::restore(&self.directory, &self.knobs);
    }

    /// The device has been closed, after [`Queue::restore`]. The kernel makes some anew when it clears one: if it is `cleared` these are put back as well.
    /// Else somebody has it still, and the record stays for the next attach or detach.
    pub fn finish(self, cleared: bool) {
        if !cleared {
            return;
        }
        if let Some(name) = self.directory.file_name() {
            knobs::restore_free(Path::new(name), &self.directory, &self.knobs);
        }
        self.forget();
    }

    /// All is as it was, or will never be.
    pub fn forget(self) {
        if let Some(record) = self.record {
            record.remove();
        }
    }
}

/// What attributes of a device were at some time, by their names as in a [`Knob`].
pub(crate) struct Found(BTreeMap<String, String>);

impl Found {
    /// Now, of a loop device (as under `/sys/block`).
    pub fn look(name: &str) -> Self {
        Self::look_in(&Path::new("/sys/block").join(name))
    }

    fn look_in(directory: &Path) -> Self {
        let places = ["queue", OF_SCHEDULER, "bdi"].iter();
        let names = places.flat_map(|place| {
            names_in(&directory.join(place)).into_iter().map(move |n| format!("{place}/{n}"))
        });
        Self(
            names
                .filter_map(|name| Some((knobs::read(directory, &name)?, name)))
                .map(|(value, name)| (name, value))
                .collect(),
        )
    }
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Allows flushes to a loop device (as under `/sys/block`) that stands on no file as yet. False if that cannot be done: whether a former user has forbidden
/// them cannot be seen there. A device shows that it sends flushes only when it stands on a file.
pub(crate) fn allow_flushes(name: &str) -> bool {
    fs::write(Path::new("/sys/block").join(name).join("queue/write_cache"), SENDS_FLUSHES).is_ok()
}

/// Makes the kernel send flushes and FUA writes to the device; the reason if it does not.
fn send_flushes(directory: &Path) -> Result<(), String> {
    set_and_verify(&directory.join("queue/write_cache"), SENDS_FLUSHES)
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

#[cfg(test)]
mod tests;
