//! Tests of the simulator: that it is deterministic, that a correct volume passes, and that wrong ones do not.

#[path = "simulation/toy.rs"]
mod toy;

#[path = "simulation/oracle.rs"]
mod oracle;

#[path = "simulation/shrinking.rs"]
mod shrinking;

#[path = "simulation/exploring.rs"]
mod exploring;

#[path = "simulation/engine.rs"]
mod engine;

#[path = "simulation/mutations.rs"]
mod mutations;
