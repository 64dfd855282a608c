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
//! ```
//! use forebay_record::{Bases, Cause, Crash, Fate, Recorder, Replay, Role, SECTOR_BYTES};
//!
//! # fn main() -> std::io::Result<()> {
//! # let dir = tempfile::tempdir()?;
//! # let at = |name: &str| dir.path().join(name);
//! # std::fs::write(at("backing"), [0; 4096])?;
//! let recorder = Recorder::create(&at("record"), u64::MAX)?;
//! let write = recorder.write(Role::Backing, 512, false, &[&[7; SECTOR_BYTES]]);
//! recorder.end(Role::Backing, write, 0);
//!
//! // Every instant of the record in one walk: what would a power cut leave of the backing that drops what it can?
//! let bases = Bases { cache: None, backing: at("backing"), label: at("backing.forebay"), journal: at("backing.journal") };
//! let mut replay = Replay::open(&at("record"), &bases)?;
//! let crash = Crash { cause: Cause::PowerCut, fate: Fate::Dropped, seed: 1 };
//! while replay.step()? {
//!     let mut sector = [1; SECTOR_BYTES];
//!     replay.disk(Role::Backing).survivor(crash).read(1, &mut sector)?;
//!     assert_eq!(sector, [0; SECTOR_BYTES], "instant {}", replay.instant());
//! }
//! # Ok(())
//! # }
//! ```
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
pub use survivor::{Cause, Crash, Fate, Survivor, VolumeCrash};

/// Nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
