//! Devices against real files, tmpfs and loop devices.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod claim;
mod decorate;
mod depth;
mod emulated;
mod fuse;
mod harness;
mod medium;
mod nbd;
mod rbd;
mod round_trip;
mod s3;
mod zero;
