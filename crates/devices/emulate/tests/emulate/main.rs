//! Models against published figures and against what no device can do.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod disks;
mod load;
mod published;
mod rules;
mod ssds;
