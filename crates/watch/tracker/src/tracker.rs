//! The tracker at work: a thread that follows tasks and waits, and the tags that the volumes' threads ask for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use foldhash::{HashMap, HashMapExt};

use crate::hints::Hints;
use crate::intake::{Cause, Intake, Promoted, Wanted};
use crate::lwlocks::{Lwlocks, Prober};
use crate::program::{Programs, Ring, Rings, TrackerError};
use crate::rates::{Payers, Rate, Rates};
use crate::roles::Roles;
use crate::rules::Rules;
use crate::tags::{Arrival, Promote, Promotion, Tags, Volume};
use crate::tasks::{Name, Tasks, has_cgroups, name_of_task};
use crate::waits::{Wait, Waits};
use crate::wire::RawSignal;

/// How often all processes are looked at, for titles that have changed.
const SCAN_EVERY: Duration = Duration::from_secs(1);
/// How long the thread sleeps at most.
const WAIT_MS: i32 = 100;
/// A task that was just made is looked at again after so long: by then it has its title.
const LOOK_AGAIN: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(200)];
/// Signals that are heard in one go.
const SIGNALS_AT_ONCE: usize = 1024;
/// Most tasks that are to be looked at again; further ones are found by the next scan.
const LOOK_AGAIN_MAX: usize = 4096;
/// Since somebody began to sleep for a slot of a disk's queue, so long is told who has the first one: that costs something for each request.
const TELL_SLOTS_FOR: Duration = Duration::from_secs(60);

/// Writes of each volume that give back their slots of the disk's queue for one who sleeps for a slot: the most that the kernel wants
/// back before it wakes anybody (`SBQ_WAKE_BATCH`). Each is paid for with room in the log.
const SLOTS_AT_ONCE: usize = 8;

/// A block device, `major << 20 | minor` of the whole disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device(u32);

impl Device {
    /// The block device at this path.
    ///
    /// # Errors
    /// If the system does not tell its number.
    pub fn at(path: &Path) -> std::io::Result<Self> {
        let name = path.file_name().unwrap_or_default();
        let numbers = std::fs::read_to_string(Path::new("/sys/class/block").join(name).join("dev"))?;
        let number = |text: &str| text.parse::<u32>().ok();
        let parsed = numbers.trim().split_once(':').and_then(|(a, b)| Some((number(a)?, number(b)?)));
        let (major, minor) = parsed.ok_or_else(|| std::io::Error::other("no device number"))?;
        Ok(Self(major << 20 | minor))
    }
}

/// Whether it is of use to be told who has the first slot of a disk's queue, so long after somebody began to sleep for one; `None`: nobody has.
fn is_of_use(since: Option<Duration>) -> bool {
    since.is_some_and(|since| since < TELL_SLOTS_FOR)
}

/// Slots of a device's queue, and whether `bfq` shares them out: 0 without a scheduler, or if it is not known.
fn slots(device: u32) -> (usize, bool) {
    let queue = format!("/sys/dev/block/{}:{}/queue", device >> 20, device & 0xf_ffff);
    let read = |name: &str| std::fs::read_to_string(format!("{queue}/{name}")).unwrap_or_default();
    let scheduler = read("scheduler");
    // A queue that can have none says `none` alone.
    match scheduler.contains('[') && !scheduler.contains("[none]") {
        true => (read("nr_requests").trim().parse().unwrap_or(0), scheduler.contains("[bfq]")),
        false => (0, false),
    }
}

struct Shared {
    programs: Mutex<Programs>,
    tags: Mutex<Tags>,
    waits: Arc<Mutex<Waits>>,
    rates: Mutex<Rates>,
    began: Instant,
    falls: Arc<Falls>,
    /// See [`Tasks::hidden`].
    hidden: Arc<AtomicBool>,
    /// See [`Prober::start`](crate::lwlocks::Prober::start).
    blind: Arc<AtomicBool>,
    /// Rules ask for cgroups, which this system does not tell of.
    no_cgroups: bool,
    ends: AtomicBool,
}

impl Shared {
    /// See [`Rates::charge`].
    fn allows(&self, own: Rate, payers: Payers, bytes: u64) -> bool {
        if own == 0 && payers == 0 {
            return true;
        }
        let now_ns = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        hold(&self.rates).charge(own, payers, bytes, now_ns)
    }

    /// What a task is called in reports; `None` if it is not known, or gone.
    fn name(&self, tid: u32) -> Option<Name> {
        if tid == 0 {
            return None;
        }
        let label = hold(&self.tags).labels.get(&tid).copied().unwrap_or_default();
        label.by_rule().or_else(|| name_of_task(tid).map(|thread| label.name(thread)))
    }

    fn tell(&self, promote: &Promote, promoted: Promoted) {
        let Promoted { offset, len, task, cause } = promoted;
        promote(&Promotion { offset, len, task, through: cause.via, waiter: self.name(cause.waiter) });
    }
}

/// How often a mistake of the tracker's own was met.
#[derive(Default)]
pub(crate) struct Falls(AtomicU64);

impl Falls {
    /// Does a piece of the tracker's work. A panic in it costs that piece: requests go on, and so does the tracker (P8).
    pub fn bear<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        // What such a piece leaves behind half done is borne by `hold`.
        let done = catch_unwind(AssertUnwindSafe(work)).ok();
        self.0.fetch_add(u64::from(done.is_none()), Ordering::Relaxed);
        done
    }
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind them are hints: half a change of them is as good as a wrong hint, which does no harm (P8).
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See the module's documentation. It ends soon after it is dropped, for which nobody waits: a volume's thread may be the last to hold it.
pub struct Tracker {
    shared: Arc<Shared>,
}

impl Tracker {
    /// Loads the eBPF programs and begins to follow tasks; what critical ones waited for is added to `waits`.
    ///
    /// # Errors
    /// [`TrackerError`]: there will be no tags. The caller goes on without.
    pub fn start(rules: Rules, hints: Hints, waits: Arc<Mutex<Waits>>) -> Result<Self, TrackerError> {
        let (programs, rings) = Programs::load(rules.ask_for_requests(), hints.are_limited())?;
        let Rings { tags, slots, signals, roles, locks } = rings;
        let rates = Rates::new(rules.rates());
        let no_cgroups = (rules.ask_for_cgroups() || hints.ask_for_cgroups()) && !has_cgroups();
        let tasks = Tasks::new(rules, hints);
        let shared = Arc::new(Shared {
            hidden: tasks.hidden(),
            blind: Arc::default(),
            no_cgroups,
            rates: Mutex::new(rates),
            began: Instant::now(),
            programs: Mutex::new(programs),
            tags: Mutex::new(Tags { ring: tags, slots, volumes: HashMap::new(), labels: HashMap::new() }),
            waits,
            falls: Arc::default(),
            ends: AtomicBool::new(false),
        });
        let system = |source| TrackerError::System { what: "start a thread", source };
        let start = |prober: Prober| prober.start(Arc::clone(&shared.falls), Arc::clone(&shared.blind));
        let locks = locks.map(start).transpose().map_err(system)?;
        let follower = Follower {
            shared: Arc::clone(&shared),
            tasks,
            signals,
            roles,
            locks,
            again: Vec::new(),
            slot_wait: None,
            dropped: 0,
        };
        thread::Builder::new().name("tracker".into()).spawn(move || follower.run()).map_err(system)?;
        Ok(Self { shared })
    }

    /// Tags the writes of this device from now on; `promote` is told of outstanding ones that a critical task comes to wait
    /// for.
    ///
    /// # Errors
    /// [`TrackerError`] if the kernel refuses.
    pub fn watch(&self, device: Device, promote: Promote) -> Result<(), TrackerError> {
        let volume = Volume { intake: Intake::default(), promote: Arc::new(promote) };
        let mut tags = hold(&self.shared.tags);
        // What is left of a device that had this number goes nowhere.
        tags.drain();
        tags.volumes.insert(device.0, volume);
        drop(tags);
        let watched = hold(&self.shared.programs).watch(device.0);
        if watched.is_err() {
            self.forget(device);
        }
        watched
    }

    /// No longer.
    pub fn forget(&self, device: Device) {
        hold(&self.shared.programs).forget(device.0);
        hold(&self.shared.tags).volumes.remove(&device.0);
    }

    /// A write of these bytes has arrived from the device and is about to be given to the volume: what is known of it. If it is awaited it
    /// counts for the rate of its task's rule, or of those who wait; if it is not, the volume is told to promote it, from now until it is [`Tracker::done`], should
    /// somebody come to wait for it.
    pub fn arrive(&self, device: Device, offset: u64, len: u64) -> Option<Arrival> {
        let arrival = self.shared.falls.bear(|| {
            let mut tags = hold(&self.shared.tags);
            tags.arrive_charged(device.0, offset, len, |own, payers| self.shared.allows(own, payers, len))
        });
        arrival.flatten()
    }

    /// A write that nobody was known to wait for when it arrived is done.
    pub fn done(&self, device: Device, offset: u64, len: u64) {
        self.shared.falls.bear(|| {
            if let Some(volume) = hold(&self.shared.tags).volumes.get_mut(&device.0) {
                volume.intake.done(offset, len);
            }
        });
    }

    /// What a task is called in reports; `None` if it is not known, or gone.
    pub fn name(&self, tid: u32) -> Option<Name> {
        self.shared.name(tid)
    }

    /// What works only in part, in words.
    pub fn missing(&self) -> Vec<String> {
        let mut missing = hold(&self.shared.programs).missing();
        if self.shared.hidden.load(Ordering::Relaxed) {
            missing.push(
                "programs and ports of others' processes: reading them needs CAP_SYS_PTRACE".to_owned(),
            );
        }
        if self.shared.blind.load(Ordering::Relaxed) {
            missing.push("waits for lightweight locks: there is a PostgreSQL without static probes (its --enable-dtrace), or they cannot be attached".to_owned());
        }
        if self.shared.no_cgroups {
            missing.push(
                "cgroups: rules or hints ask for them, and /proc/self/cgroup has none of version 2 (no line 0::)"
                    .to_owned(),
            );
        }
        let falls = self.shared.falls.0.load(Ordering::Relaxed);
        if falls > 0 {
            missing
                .push(format!("the tracker failed {falls} times and went on (a defect; the log has where)"));
        }
        missing
    }

    /// Tags, first slots and signals that were dropped because they came too fast.
    pub fn dropped(&self) -> u64 {
        hold(&self.shared.programs).dropped()
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
    }
}

/// The thread.
struct Follower {
    shared: Arc<Shared>,
    tasks: Tasks,
    signals: Ring<RawSignal>,
    roles: Roles,
    /// `None`: they cannot be probed here.
    locks: Option<Lwlocks>,
    /// Tasks to be looked at again, and when.
    again: Vec<(Instant, u32, u32)>,
    /// When somebody critical was last known to begin to sleep for a slot of a disk's queue.
    slot_wait: Option<Instant>,
    /// Signals that were dropped, as far as that was made up for.
    dropped: u64,
}

const FORK: u32 = 1;
const EXEC: u32 = 2;
const EXIT: u32 = 3;
const WAIT: u32 = 4;
const WAITED: u32 = 5;
const SEEN: u32 = 6;

impl Follower {
    fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut scanned: Option<Instant> = None;
        while !shared.ends.load(Ordering::Relaxed) {
            let due = scanned.is_none_or(|at| at.elapsed() >= SCAN_EVERY);
            scanned = if due { Some(Instant::now()) } else { scanned };
            if shared.falls.bear(|| self.turn(due)).is_none() {
                thread::sleep(SCAN_EVERY);
            }
        }
    }

    /// Looks at all processes, if that is `due`, and hears what the programs have to tell.
    fn turn(&mut self, due: bool) {
        if due {
            self.make_up_for_losses();
            self.tasks.scan();
            self.tell_changes();
            self.forget_labels();
            self.follow_locks();
            self.look_at_queues();
            // Tags of writes that never come as a request must not fill the ring.
            hold(&self.shared.tags).drain();
        }
        let soon = if self.again.is_empty() { WAIT_MS } else { 10 };
        self.signals.wait(soon);
        // However fast they come, what they change is told, and the end is seen.
        for _ in 0..SIGNALS_AT_ONCE {
            let Some(signal) = self.signals.next() else { break };
            self.hear(&signal);
        }
        self.look_again();
        self.tell_changes();
    }

    /// Signals that were dropped may have told of tasks, and a module of what they sleep in.
    fn make_up_for_losses(&mut self) {
        let mut programs = hold(&self.shared.programs);
        let dropped = programs.signals_dropped();
        if let Err(e) = programs.look_for_journal() {
            tracing::debug!("the eBPF program was not told where the journal's functions lie: {e}");
        }
        drop(programs);
        if std::mem::replace(&mut self.dropped, dropped) != dropped {
            self.tasks.tell_all_again();
        }
    }

    fn hear(&mut self, signal: &RawSignal) {
        match signal.kind {
            FORK => {
                self.tasks.tell_again(signal.other);
                self.look_at(signal.other, signal.tgid);
            }
            EXEC => self.look_at(signal.tid, signal.tgid),
            SEEN => {
                // The program knows nothing of it, or has just lost what it was told.
                self.tasks.tell_again(signal.tid);
                self.look_at(signal.tid, signal.tgid);
            }
            EXIT => {
                let Some(gone) = self.tasks.forget(signal.tid) else { return };
                if let Some(locks) = self.locks.as_ref().filter(|_| gone.role.ruled) {
                    locks.ended(signal.tid);
                }
                if gone.labelled {
                    hold(&self.shared.tags).labels.remove(&signal.tid);
                }
            }
            WAIT => self.waits(signal),
            WAITED => {
                if let Some(wait) = Wait::from_number(signal.wait) {
                    hold(&self.shared.waits).add(wait, Duration::from_nanos(signal.value));
                }
            }
            _ => {}
        }
    }

    fn look_at(&mut self, tid: u32, process: u32) {
        self.tasks.classify(tid, process);
        if self.again.len() < LOOK_AGAIN_MAX {
            let now = Instant::now();
            self.again.extend(LOOK_AGAIN.map(|after| (now + after, tid, process)));
        }
    }

    fn look_again(&mut self) {
        let now = Instant::now();
        let tasks = &mut self.tasks;
        self.again.retain(|(at, tid, process)| {
            if *at <= now {
                tasks.classify(*tid, *process);
            }
            *at > now
        });
    }

    fn tell_changes(&mut self) {
        let changes = self.tasks.take_changes();
        if let Some(locks) = &self.locks {
            changes.ruled.iter().for_each(|(pid, critical)| locks.changed(*pid, *critical));
        }
        if !changes.named.is_empty() {
            hold(&self.shared.tags).labels.extend(changes.named);
        }
        changes.roles.into_iter().for_each(|(tid, role)| self.roles.set(tid, role));
    }

    /// Tasks may have gone without a word, if signals were dropped. Not asked under the lock that every write takes.
    fn forget_labels(&self) {
        let labelled: Vec<u32> = hold(&self.shared.tags).labels.keys().copied().collect();
        let gone: Vec<u32> = labelled.into_iter().filter(|tid| !self.tasks.knows(*tid)).collect();
        let mut tags = hold(&self.shared.tags);
        for tid in gone {
            tags.labels.remove(&tid);
        }
    }

    /// How many slots the disks' queues have may change at any time; and who has the first one is told where somebody sleeps for one.
    fn look_at_queues(&self) {
        let devices: Vec<u32> = hold(&self.shared.tags).volumes.keys().copied().collect();
        let queues: Vec<(u32, (usize, bool))> = devices.into_iter().map(|d| (d, slots(d))).collect();
        let any = queues.iter().any(|(_, (slots, _))| *slots > 0);
        let wanted = any && is_of_use(self.slot_wait.map(|at| at.elapsed()));
        let told = hold(&self.shared.programs).tell_first_slot(wanted);
        let mut tags = hold(&self.shared.tags);
        for (device, (slots, shared)) in queues {
            if let Some(volume) = tags.volumes.get_mut(&device) {
                match told {
                    true => volume.intake.share_slots(if shared { slots } else { 0 }),
                    false => volume.intake.forget_slots(),
                }
            }
        }
    }

    fn follow_locks(&self) {
        if let Some(locks) = &self.locks {
            let processes = self.tasks.ruled();
            locks.follow(processes);
        }
    }

    /// A critical task, or one that inherited, waits: outstanding writes that it waits for are promoted.
    fn waits(&mut self, signal: &RawSignal) {
        let Some(wait) = Wait::from_number(signal.wait) else {
            return;
        };
        let wanted = match wait {
            Wait::Writeback if signal.mapping != 0 => {
                Some(Wanted::Page { mapping: signal.mapping, index: signal.index })
            }
            // Few by construction: what is awaited already is not outstanding.
            Wait::Writeback | Wait::Condition => Some(Wanted::All),
            // A slot of the disk's queue, whoever's write has it.
            Wait::Slot => {
                self.slot_wait = Some(Instant::now());
                None
            }
            // Whoever sleeps while it submits pages, and may hold the lock, is told of by itself.
            Wait::Buffer => return,
            // Whatever is written back, of whichever disk.
            Wait::Dirty => return,
            Wait::Journal => Some(Wanted::Commit(signal.tid)),
            Wait::Mutex | Wait::Rwsem | Wait::Futex | Wait::Lwlock if signal.other != 0 => {
                Some(Wanted::Holder(signal.other))
            }
            // Held by nobody who is known, or by one who is critical.
            Wait::Mutex | Wait::Rwsem | Wait::Futex | Wait::Lwlock => return,
            Wait::Flush => Some(Wanted::Flush),
            Wait::Io => Some(Wanted::Task(signal.tid)),
        };
        let cause = Cause { via: wait, waiter: signal.value as u32, payers: (signal.value >> 32) as Payers };
        let mut tags = hold(&self.shared.tags);
        tags.drain();
        let Tags { volumes, labels, .. } = &mut *tags;
        let rate_of = |tid| labels.get(&tid).map_or(0, |label| label.rate);
        let allows = |tid, payers, bytes| self.shared.allows(rate_of(tid), payers, bytes);
        let promote = |volumes: &mut HashMap<u32, Volume>, wanted: Option<Wanted>| -> Vec<_> {
            let volumes = volumes.values_mut();
            let promote = |intake: &mut Intake| match wanted {
                Some(wanted) => intake.promote(wanted, cause, &allows),
                None => intake.promote_slots(SLOTS_AT_ONCE, cause, &allows),
            };
            volumes.map(|v| (Arc::clone(&v.promote), promote(&mut v.intake))).collect()
        };
        let mut found = promote(volumes, wanted);
        if let Some(page @ Wanted::Page { .. }) = wanted
            && !volumes.values().any(|v| v.intake.has_outstanding(page))
        {
            // It is on its way as critical, or written, and may need the journal to be put on record.
            found = promote(volumes, Some(Wanted::Journal));
        }
        drop(tags);
        for (promote, writes) in found {
            writes.into_iter().for_each(|promoted| self.shared.tell(&promote, promoted));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_of_the_tracker_costs_one_piece_of_its_work() {
        let (falls, tags) = (Falls::default(), Mutex::new(0));
        let work = |n: u32| {
            let mut tags = hold(&tags);
            assert!(!n.is_multiple_of(3), "a mistake");
            *tags += 1;
            *tags
        };
        let done: Vec<_> = (1..=6).map(|n| falls.bear(|| work(n))).collect();
        assert_eq!(done, [Some(1), Some(2), None, Some(3), Some(4), None]);
        assert_eq!(falls.0.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn first_slots_are_told_of_while_somebody_sleeps_for_one_now_and_then() {
        let seconds = [None, Some(0), Some(59), Some(60), Some(3600)];
        let of_use = seconds.map(|s| is_of_use(s.map(Duration::from_secs)));
        assert_eq!(of_use, [false, true, true, false, false]);
    }

    #[test]
    fn kinds_of_signals_are_those_of_the_header() {
        let header = include_str!("../bpf/tracker.h");
        for (name, kind) in [
            ("FORK", FORK),
            ("EXEC", EXEC),
            ("EXIT", EXIT),
            ("WAIT", WAIT),
            ("WAITED", WAITED),
            ("SEEN", SEEN),
        ] {
            let line = format!("#define FB_SIGNAL_{name} {kind}");
            assert!(
                header
                    .lines()
                    .any(|l| l.split("\t\t").next() == Some(&line) || l.split('\t').next() == Some(&line)),
                "{line}"
            );
        }
    }
}
