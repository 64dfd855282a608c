//! Pure choosers: they look at state and choose; the engine carries the choice out. Adding a policy touches one file.
#![forbid(unsafe_code)]

mod admission;
mod allowance;
mod demand;
mod destaging;
mod endurance;
mod groups;
mod overtaking;
mod priority;
mod ranges;
mod replacement;
mod settings;
mod staleness;

pub use forebay_block::{size, time};

pub use admission::{Admission, AdmissionReason, Decision, ReasonCounts, WriteContext};
pub use allowance::Allowance;
pub use demand::Demand;
pub use destaging::{
    DESTAGE_RUNS_MAX, DIRTY_AGE_S_MAX, Exchange, PLAN_BLOCKS_LEAST, PLAN_BLOCKS_MAX, Pressure, Roominess,
};
pub use endurance::Endurance;
pub use groups::{GroupEnd, OpenGroup};
pub use overtaking::{
    HOLD_NS_MAX, HOLDS_MAX, OVERTAKEN_MAX, OVERTAKEN_NS_MIN, Overtaking, QUIET_NS_MAX, Standing,
};
pub use priority::{
    BACKING_SLOTS_MAX, Background, BackingPriority, NONCRITICAL_BESIDE_CRITICAL, NONCRITICAL_BYTES_EACH,
    NONCRITICAL_BYTES_MAX, NONCRITICAL_ONE_IN, NONCRITICAL_SLOTS_MAX, Priority, Waiting,
};
pub use ranges::{RANGES_MAX, Ranges};
pub use replacement::{List, Replacement, Verdict};
pub use settings::{Allowed, Durability, GroupEnds, OnFull, Order, Settings, UnknownSetting, WritePolicy};
pub use staleness::{EDGE_PERCENT, HARDER_PERCENT, HOLD_MS_MAX, MaxStaleness, Staleness};
