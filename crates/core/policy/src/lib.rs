//! Pure choosers: they look at state and choose; the engine carries the choice out. Adding a policy touches one file.
#![forbid(unsafe_code)]

mod admission;
mod allowance;
mod backlog;
mod demand;
mod destaging;
mod endurance;
mod groups;
mod journals;
mod overtaking;
mod priority;
mod ranges;
mod replacement;
mod scheduler;
mod settings;
mod staleness;
mod throttle;

pub use forebay_block::{size, time};

pub use admission::{Admission, AdmissionReason, Decision, ReasonCounts, WriteContext};
pub use allowance::Allowance;
pub use demand::Demand;
pub use destaging::{
    DESTAGE_RUNS_MAX, DIRTY_AGE_S_MAX, Exchange, PLAN_BLOCKS_LEAST, PLAN_BLOCKS_MAX, Pressure, Roominess,
};
pub use endurance::Endurance;
pub use groups::{GroupEnd, OpenGroup};
pub use journals::Journals;
pub use priority::{BACKING_SLOTS_MAX, NONCRITICAL_BESIDE_CRITICAL, NONCRITICAL_ONE_IN, Priority};
pub use ranges::{RANGES_MAX, Ranges};
pub use replacement::{List, Replacement, Verdict};
pub use scheduler::{
    Cfq, Deadline, Fifo, FlushesFirst, IoClass, IoPriority, Issuer, Operation, Purpose, Qasio, Rcp, Round,
    Scheduler, SchedulerKind, SplitA, SplitD,
};
pub use settings::{
    Allowed, Durability, GroupEnds, JournalCaching, OnFull, Order, Settings, UnknownSetting, WritePolicy,
};
pub use staleness::{EDGE_PERCENT, HARDER_PERCENT, HOLD_MS_MAX, MaxStaleness, Staleness};
pub use throttle::{HINTED_NS, LogRoom, THROTTLE_NS_MAX, Throttle};
