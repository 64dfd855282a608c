//! A volume in an object store (S3 and its like) as a device: for backings, and for journals beside them.
//!
//! The volume is made of immutable objects; what they are and when they come and go is decided by `forebay-objects`, which does no I/O. Here
//! are the threads that carry out its requests ([`workers`]), each with an HTTP client that blocks ([`client`]), and what drives both
//! ([`drive`]) on the thread of the device's owner.
//!
//! ```text
//!  submit ──► vault ── requests ──► workers ──► store
//!  poll   ◄── vault ◄── answers ─── workers ◄── store
//! ```
//!
//! A volume has one owner at a time, who says so in the store. Another host takes it over only where it is told that the owner is dead; one
//! that is not finds the names taken that its own objects should have, writes and reads nothing more, and says so.

mod client;
mod credentials;
mod device;
mod drive;
mod lending;
mod naming;
mod owner;
mod tls;
mod uri;
mod workers;
mod xml;

pub use device::S3Device;
pub use uri::S3Spec;

use std::path::Path;

use crate::access::{Access, OpenError};
use crate::checkpoints::Checkpoint;
use crate::device::Device;
use crate::remote::RemoteSpec;
use crate::ring::Ring;

impl RemoteSpec for S3Spec {
    fn as_path(&self) -> &Path {
        S3Spec::as_path(self)
    }

    fn open(&self, ring: &Ring, access: Access) -> Result<Box<dyn Device>, OpenError> {
        Ok(Box::new(S3Device::open(self, ring, access)?))
    }

    fn make(&self, size_bytes: u64) -> Result<bool, OpenError> {
        device::make(self, size_bytes)
    }

    fn is_made(&self) -> bool {
        true
    }

    fn remove(&self) -> Result<(), OpenError> {
        device::remove(self)
    }

    fn checkpoints(&self) -> Result<Option<Vec<Checkpoint>>, OpenError> {
        naming::list(self).map(Some)
    }
}
