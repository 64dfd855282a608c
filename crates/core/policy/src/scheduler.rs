//! The scheduler of the backing: of the operations that wait for it, which starts next.
//!
//! ```text
//!              ┌──────────────────────────── the queue keeps the operations ───────────────────────────┐
//!   arrived ──►│ waiting ── begin_round, then next until there is nothing more ──► outstanding ──ended ─┼─►
//!              │    │ promoted: goes before what nobody waits for           │ promoted: keeps its place │
//!              │    └ withdrawn                                             └───────────────────────────┘
//!              └───────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A scheduler knows operations by number and by what is said of them in [`Operation`]. The order in which they start is a matter of
//! speed only: whatever it chooses, no promise depends on it. But each operation that is not withdrawn has to start within a bounded
//! number of rounds (P7).

mod batches;
mod cfq;
mod cfq_idle;
mod deadline;
mod fifo;
mod flushes;
mod qasio;
mod rcp;
mod sorted;
mod split_a;
mod split_d;
#[cfg(test)]
mod tests;
mod turns;

use forebay_block::{OpKind, Origin};

use crate::AdmissionReason;
use crate::priority::{BACKING_SLOTS_MAX, NONCRITICAL_BESIDE_CRITICAL, Priority};
use crate::settings::spelled_enum;

pub use cfq::Cfq;
pub use deadline::Deadline;
pub use fifo::Fifo;
pub use flushes::FlushesFirst;
pub use qasio::Qasio;
pub use rcp::Rcp;
pub use split_a::SplitA;
pub use split_d::SplitD;

spelled_enum! {
    /// Which operation starts next of those that wait for the backing (`docs/design/schedulers.md`).
    #[derive(Default)]
    SchedulerKind {
        /// What clients wait for first (RCP, FAST'17).
        #[default]
        Rcp = "rcp",
        /// In the order in which they come.
        Fifo = "fifo",
        /// By place in batches, each within a time of its own (Linux's `mq-deadline`).
        Deadline = "deadline",
        /// A slice of time for each task (Linux's CFQ).
        Cfq = "cfq",
        /// CFQ with what nobody waits for in its idle class.
        CfqIdle = "cfq-idle",
        /// A share for each task that causes it (Split-AFQ, SOSP'15).
        SplitA = "split-a",
        /// Deadlines for reads and `fsync`, write-back little by little (Split-Deadline, SOSP'15).
        SplitD = "split-d",
        /// CFQ that prefers asynchronous operations that somebody waits for (QASIO, FAST'15).
        Qasio = "qasio",
    }
}

impl SchedulerKind {
    /// A scheduler of this kind, that knows of no operation.
    pub fn build(self) -> Box<dyn Scheduler> {
        match self {
            Self::Rcp => Box::<Rcp>::default(),
            Self::Fifo => Box::<Fifo>::default(),
            Self::Deadline => Box::<FlushesFirst<Deadline>>::default(),
            Self::Cfq => Box::<FlushesFirst<Cfq>>::default(),
            Self::CfqIdle => Box::new(FlushesFirst::before(Cfq::with_idle_background())),
            Self::SplitA => Box::<SplitA>::default(),
            Self::SplitD => Box::<SplitD>::default(),
            Self::Qasio => Box::<FlushesFirst<Qasio>>::default(),
        }
    }
}

/// For whom an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Destaging: it makes room in the log.
    Destage,
    /// A request of a client, or what it takes to answer one.
    Request,
}

/// Linux I/O priority, as `ioprio_set(2)` encodes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct IoPriority(pub u16);

/// Class of an [`IoPriority`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IoClass {
    /// Before all others.
    RealTime,
    /// A share by its level; also whose class is not known.
    BestEffort,
    /// Only when nobody else wants the device.
    Idle,
}

impl IoPriority {
    /// The class; best effort if none is set.
    pub const fn class(self) -> IoClass {
        match self.0 >> 13 {
            1 => IoClass::RealTime,
            3 => IoClass::Idle,
            _ => IoClass::BestEffort,
        }
    }

    /// The level within the class, 0 (first) to 7; 4 if no class is set.
    pub const fn level(self) -> u8 {
        match self.0 >> 13 {
            0 => 4,
            _ => (self.0 & 7) as u8,
        }
    }
}

/// Who asked for an operation, and why; all zero for what Forebay does by itself. Hints may be wrong (P8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Issuer {
    /// The task, 0 if unknown.
    pub task: u32,
    /// Its I/O priority.
    pub io_priority: IoPriority,
    /// Whether it waits: a read, a flush, a write that is flagged so or asks for forced unit access.
    pub sync: bool,
    /// Why a write goes past the cache; `None` for what is none.
    pub reason: Option<AdmissionReason>,
}

impl Issuer {
    /// Who asked for a request; `fua`: it asks for forced unit access. The reason is not known yet.
    pub const fn of(origin: &Origin, fua: bool) -> Self {
        let io_priority = IoPriority(origin.ioprio);
        Self { task: origin.pid, io_priority, sync: origin.is_sync(fua), reason: None }
    }

    /// The same, who waits: of a read or a flush.
    #[must_use]
    pub const fn waits(self) -> Self {
        Self { sync: true, ..self }
    }

    /// Of those for whom one operation is carried out the most urgent one, by class and then level of their I/O priorities; of
    /// equals the first. All zero if there is none.
    pub fn most_urgent(issuers: impl IntoIterator<Item = Self>) -> Self {
        let urgency = |issuer: &Self| (issuer.io_priority.class(), issuer.io_priority.level());
        issuers.into_iter().min_by_key(urgency).unwrap_or_default()
    }
}

/// An operation that waits for the backing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its number; they are given in the order in which operations come, and never again.
    pub number: u64,
    /// What it does.
    pub kind: OpKind,
    /// For whom.
    pub purpose: Purpose,
    /// Whether somebody is known to wait for it.
    pub priority: Priority,
    /// Who asked.
    pub issuer: Issuer,
    /// Where in the volume, in bytes; `None` for a flush.
    pub offset: Option<u64>,
    /// How many bytes; 0 for a flush.
    pub len: u64,
    /// A write that is durable when it ends, so that no flush waits for it.
    pub durable: bool,
    /// When it came, in nanoseconds of the monotonic clock.
    pub arrived_ns: u64,
}

/// What a scheduler is to know of the rest in a round of starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Operations that the backing takes at a time. The queue lets no more start, whoever chooses; none if it is 0.
    pub slots: usize,
    /// Non-critical operations that may be outstanding beside critical ones.
    pub beside_critical: usize,
    /// Non-critical operations that are not destaging and may be outstanding, if the log fills: destaging goes before them then.
    pub requests_max: Option<usize>,
}

/// Chooses which of the operations that wait for the backing starts next.
///
/// It may take the place of another one at any time. It is told then of all that wait, in the order in which they came, and of none that has
/// started.
pub trait Scheduler: Send {
    /// An operation comes to wait.
    fn arrived(&mut self, operation: Operation);

    /// Somebody comes to wait for a non-critical operation, for the first time. It may have started, also before this scheduler came.
    fn promoted(&mut self, number: u64);

    /// An operation that has not started will not be carried out.
    fn withdrawn(&mut self, number: u64);

    /// A round of starts begins; whether anything may start in it. If not, nothing does before something ends or
    /// [`Scheduler::next_wake_ns`].
    fn begin_round(&mut self, round: Round, now_ns: u64) -> bool;

    /// Which operation starts now; from here on it is outstanding. `None`: no further one in this round.
    fn next(&mut self, now_ns: u64) -> Option<u64>;

    /// An outstanding operation has ended, which another scheduler may have started.
    fn ended(&mut self, number: u64);

    /// When something may start again at the latest although nothing ends, in nanoseconds, if the last round was refused or ended while something
    /// waits.
    fn next_wake_ns(&self) -> Option<u64>;

    /// How often a round was refused for the sake of one operation, since the beginning.
    fn holds(&self) -> u64;
}

impl Default for Round {
    /// A backing that takes as many as ever may be outstanding, and nothing but the one non-critical operation beside critical ones.
    fn default() -> Self {
        Self { slots: BACKING_SLOTS_MAX, beside_critical: NONCRITICAL_BESIDE_CRITICAL, requests_max: None }
    }
}
