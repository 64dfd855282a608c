//! Tests of the simulator: that it is deterministic, that a correct volume passes, and that wrong ones do not.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "simulation/toy.rs"]
mod toy;

#[path = "simulation/oracle.rs"]
mod oracle;
#[path = "simulation/plan_text.rs"]
mod plan_text;

#[path = "simulation/shrinking.rs"]
mod shrinking;

#[path = "simulation/exploring.rs"]
mod exploring;

#[path = "simulation/hints.rs"]
mod hints;
#[path = "simulation/journals.rs"]
mod journals;

#[path = "simulation/histories.rs"]
mod histories;

#[path = "simulation/engine.rs"]
mod engine;

#[path = "simulation/scheduled.rs"]
mod scheduled;

#[path = "simulation/mutations.rs"]
mod mutations;

#[path = "simulation/small_worlds.rs"]
mod small_worlds;

#[path = "simulation/threads.rs"]
mod threads;

#[path = "simulation/emulated.rs"]
mod emulated;

#[path = "simulation/sweeps.rs"]
mod sweeps;

#[path = "simulation/owners.rs"]
mod owners;

#[path = "simulation/group.rs"]
mod group;

#[path = "simulation/remote.rs"]
mod remote;
