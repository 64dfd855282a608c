//! Who issues the writes of attached volumes, and who waits for whom (`docs/design/promises.md`, Criticality).
//!
//! An eBPF program tags every write that is queued to an attached device with its task and how it is critical; whoever takes
//! the request in finds the tag ([`Tracker::arrive`]). Rules say who is critical by itself; whom a critical task waits for
//! inherits. Everything here is a hint (P8): without it, or with a wrong one, data is the same.

mod files;
pub mod fuzzing;
mod hints;
mod intake;
mod lwlocks;
mod probes;
mod program;
mod rates;
mod roles;
mod rules;
mod tags;
mod tasks;
mod tracker;
mod waits;
mod wire;

pub use hints::Hints;
pub use intake::Cause;
pub use program::TrackerError;
pub use rules::{Critical, PRESETS, Rule, Rules, RulesError, TaskFacts};
pub use tags::{Arrival, Promote, Promotion};
pub use tasks::{Name, unknown_users};
pub use tracker::{Device, Tracker};
pub use waits::{Wait, WaitFigures, Waits};
