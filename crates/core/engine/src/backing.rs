//! What goes to the backing: destaging, and the queue in front of the device.

pub(crate) mod destage;
pub(crate) mod flushes;
mod plan;
mod planted_scheduler;
mod portions;
pub(crate) mod queue;
mod runs;
mod unreadable;
