//! The devices below a volume: what holds the cache's log and what holds the backing.
//!
//! A [`Device`] belongs to one thread. Operations are submitted with a tag and their ends are polled; nothing blocks but
//! [`Ring::submit_and_wait`], the one place where a volume's thread sleeps. Files and block devices go through
//! io_uring ([`FileDevice`]), persistent memory and tmpfs can be mapped ([`MappedDevice`]), a file can take the time of
//! another device ([`EmulatedDevice`]), a backing may be on another machine ([`RemoteSpec`]), and the decorators in
//! [`decorate`] wrap any of them to delay, throttle, fail or measure it.

mod access;
mod bounds;
mod checkpoints;
mod claim;
mod clock;
pub mod decorate;
mod device;
mod emulated;
mod emulation;
mod entry;
mod file;
pub mod fuzzing;
mod ground;
mod mapped;
mod medium;
mod nbd;
mod open;
mod priority;
mod rbd;
mod remote;
mod ring;
mod room;
mod s3;
mod store_figures;
mod stores;
mod survey;
mod syncs;
mod transfer;

pub use access::{Access, OpenError};
pub use checkpoints::{Checkpoint, CheckpointChange, CheckpointDone, CheckpointError};
pub use clock::Clock;
pub use device::{
    Away, Beside, Device, DeviceInfo, DeviceKind, IsOurs, Sign, Survives, run_alone, shows_in_background,
};
pub use emulated::{EmulatedDevice, Lateness};
pub use emulation::EmulateSpec;
pub use entry::sync_entry;
pub use file::FileDevice;
pub use mapped::MappedDevice;
pub use nbd::{NbdDevice, NbdSpec};
pub use open::{DeviceSpec, UnknownDevice, open, open_side_file};
pub use rbd::{RbdDevice, RbdSpec};
pub use remote::RemoteSpec;
pub use ring::{Ring, Seen, Waker, Watch};
pub use room::{Lack, lacks_room, reserve};
pub use s3::{S3Device, S3Spec};
pub use store_figures::{Billed, StoreFigures};
pub use survey::Survey;
