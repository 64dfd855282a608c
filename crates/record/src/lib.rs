//! A record of everything that the devices of a volume were told to change, and what of it a crash could have left.
//!
//! ```text
//!   volume ──► decorator of the cache ────┐
//!         └──► decorator of the backing ──┴──► Recorder ──► file ──► Replay ──► Disk ──► Survivor ──► image
//!                                             one order             instant N   settled   kept, dropped,
//!                                                                               pending   halved, torn
//! ```
//!
//! A [`Recorder`] is shared by the devices of one process and writes the beginnings and ends of their writes, zeroes and
//! flushes into one file, in one order, with the time of the monotonic clock. A [`Replay`] walks that file and knows at
//! each instant what of each device is settled and what is pending; a [`Survivor`] is one of the states in which a kill
//! or a power cut at that instant could have left a device. The format is in `docs/design/recorder.md`.
//!
//! The crate uses none of the others: who judges a volume by its record must not share the volume's mistakes.
#![forbid(unsafe_code)]

mod disk;
mod entry;
mod reader;
mod recorder;
mod replay;
mod survivor;

pub use disk::{Disk, SECTOR_BYTES};
pub use entry::{Action, Entry, Role};
pub use reader::Reader;
pub use recorder::Recorder;
pub use replay::{Bases, Replay};
pub use survivor::{Cause, Crash, Fate, Survivor};

/// Nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
