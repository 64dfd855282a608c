//! A plan: everything that decides what happens in a world, spelled out. A seed is turned into a plan before anything
//! runs; shrinking removes parts of a plan; a kept plan is a committed test.

use forebay_block::Criticality;
use forebay_emulate::Settings as Emulation;
use forebay_engine::Role;
use forebay_policy::Settings;

use crate::fault::{Damage, Fault};
use crate::media::Survival;

/// Where the world's volume lies and how large it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Size of the volume in bytes, a multiple of 512.
    pub volume_bytes: u64,
    /// Size of a segment in bytes.
    pub segment_bytes: u32,
    /// Number of segments.
    pub segment_count: u32,
    /// Alignment of the log: 512 or 4096.
    pub align: u32,
    /// The backing holds data when it is adopted; else zeroes.
    pub stamped: bool,
    /// Size of the ring of the journal on the backing's side in bytes; 0 without one.
    pub journal_bytes: u64,
    /// The journal lies on a device of its own, which has its own faults, but loses power with the backing.
    pub journal_apart: bool,
    /// The backing, on which the journal lies then, does several things wholly or not at all: groups are in their places as soon as
    /// they are committed.
    pub commits_in_place: bool,
}

/// A request or command of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read `len` bytes at `offset`.
    Read {
        /// Byte offset.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Write stamps.
    Write {
        /// Byte offset.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Force unit access.
        fua: bool,
        /// Flagged synchronous.
        sync: bool,
        /// What the engine is told of who waits for it, true or not (P8).
        criticality: Criticality,
    },
    /// Write zeroes or discard.
    Zero {
        /// Byte offset.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Force unit access.
        fua: bool,
        /// Discard.
        unmap: bool,
        /// As of a write.
        criticality: Criticality,
    },
    /// Tell the engine that somebody waits for writes of these bytes, true or not (P8).
    Promote {
        /// Byte offset.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Flush.
    Flush,
    /// Ask which parts are allocated.
    Status {
        /// Byte offset.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Change the settings.
    Set(Settings),
    /// Declare a consistency point.
    Mark,
    /// Lead the volume to a point of its consistency group.
    Round(CommonRound),
    /// Destage everything and check the backing alone.
    Destage,
    /// Wait until everything is answered.
    Drain,
    /// Another host takes over what is on the backing's side: what is under way there is carried out now or never.
    Fence {
        /// The backing, or the journal that lies apart.
        role: Role,
        /// The host learns of it without an operation, at once.
        told: bool,
    },
}

/// A round of a consistency group, by a coordinator that may fall silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommonRound {
    /// So many steps are taken.
    pub steps: u8,
    /// Microseconds for which writers are held back; an eighth of that between other steps.
    pub pause_us: u32,
    /// All others have what an earlier round left behind.
    pub keeps_old: bool,
    /// All others have prepared the point.
    pub keeps: bool,
}

/// An action and how long after the one before it is issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Microseconds after the previous action was issued.
    pub delay_us: u64,
    /// What is issued.
    pub action: Action,
}

/// A crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CrashKind {
    /// The process dies (kill -9).
    Kill,
    /// The process dies because power fails.
    Cut {
        /// The cache device loses what is volatile in it.
        cache: bool,
        /// The backing does.
        backing: bool,
        /// How.
        survival: Survival,
    },
}

/// How a round ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A crash when this many steps have passed since the round's start, or when the script is done.
    CrashAfter(u64, CrashKind),
    /// A crash during so manieth of the host's writes at the start, counted from 1; before the log is read if there are
    /// fewer.
    CrashInStart {
        /// Which one.
        write: u64,
        /// How.
        crash: CrashKind,
    },
    /// A stop, and a crash during so manieth of the host's writes after it.
    CrashInLastWords {
        /// Destage first.
        destage: bool,
        /// Which one.
        write: u64,
        /// How.
        crash: CrashKind,
    },
    /// A crash when everything is answered.
    CrashIdle(CrashKind),
    /// A crash when nothing is in flight any more either.
    CrashSettled(CrashKind),
    /// A stop, and a power cut of both devices when it is done.
    Stop {
        /// Destage first.
        destage: bool,
    },
    /// A crash so many steps into a stop.
    CrashInStop {
        /// Destage first.
        destage: bool,
        /// Steps.
        after: u64,
        /// How.
        crash: CrashKind,
    },
}

/// A crash during a write of the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCrash {
    /// During which one, counted from 1.
    pub write: u64,
    /// How.
    pub kind: CrashKind,
}

/// What happens to the devices before a start (P6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// A device comes back as it was when so many rounds had ended, must be refused, and goes again.
    Older {
        /// Which device.
        role: Role,
        /// Rounds.
        rounds: usize,
    },
    /// A device of another volume is tried, must be refused, and goes again.
    Foreign(Role),
    /// Power fails, and the cache is lost for good: a new one is put before the backing.
    Lose {
        /// Nothing of the old log lies on the new cache's device.
        wiped: bool,
        /// The backing is served without a cache first.
        plain: bool,
        /// A crash while the new cache is made.
        crash: Option<HostCrash>,
    },
    /// After a stop that has destaged everything: the cache is removed for good, and a new one is made. A crash may come
    /// in the removal.
    Release(Option<HostCrash>),
}

/// One life of the process: start, recovery, script, end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// What happens to the devices before the start.
    pub between: Vec<Between>,
    /// Settings at the start.
    pub settings: Settings,
    /// Most requests outstanding at once.
    pub depth: usize,
    /// Operations that the backing is said to take at a time, from 1 to [`forebay_policy::BACKING_SLOTS_MAX`].
    pub backing_depth: usize,
    /// Decides latencies, the order of effects and what a crash leaves.
    pub schedule: u64,
    /// Read the whole volume after recovery.
    pub verify: bool,
    /// Faults of the devices.
    pub faults: Vec<Fault>,
    /// Decay.
    pub damages: Vec<Damage>,
    /// The script.
    pub steps: Vec<Step>,
    /// The end.
    pub end: End,
}

/// A world and its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The seed that the plan came from; only a label.
    pub seed: u64,
    /// The volume.
    pub shape: Shape,
    /// What the cache device is, if its operations do not take random times.
    pub cache_model: Option<Emulation>,
    /// The same for the backing.
    pub backing_model: Option<Emulation>,
    /// The lives of the process, one after the other on the same devices.
    pub rounds: Vec<Round>,
}

impl Plan {
    /// The settings of every round, and those that scripts change to.
    pub fn settings(&self) -> impl Iterator<Item = &Settings> {
        self.rounds.iter().flat_map(|r| {
            let changes = r.steps.iter().filter_map(|s| match &s.action {
                Action::Set(settings) => Some(settings),
                _ => None,
            });
            std::iter::once(&r.settings).chain(changes)
        })
    }

    /// As [`Plan::settings`].
    pub fn settings_mut(&mut self) -> impl Iterator<Item = &mut Settings> {
        self.rounds.iter_mut().flat_map(|r| {
            let changes = r.steps.iter_mut().filter_map(|s| match &mut s.action {
                Action::Set(settings) => Some(settings),
                _ => None,
            });
            std::iter::once(&mut r.settings).chain(changes)
        })
    }
}
