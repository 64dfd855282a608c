//! What is asked of the address of a store on another machine.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::access::{Access, OpenError};
use crate::checkpoints::Checkpoint;
use crate::device::Device;
use crate::ring::Ring;

/// The address of a store on another machine, in which a backing or a journal may lie.
///
/// Nothing of it is on a file system of this machine, and it cannot be a cache. Two addresses are the same if they were given alike.
pub trait RemoteSpec: fmt::Debug + fmt::Display + Send + Sync {
    /// As it was given; a path only so that messages can name every device alike.
    fn as_path(&self) -> &Path;

    /// Opens what is there, see [`open`](crate::open()).
    ///
    /// # Errors
    /// [`OpenError`]; what is missing is never made.
    fn open(&self, ring: &Ring, access: Access) -> Result<Box<dyn Device>, OpenError>;

    /// Makes what the address names, with this size in bytes, where there is nothing; whether it has. What is there stays as it is. A
    /// kind whose stores are made by other means does nothing.
    ///
    /// # Errors
    /// [`OpenError`]; what was made until then is gone again, as far as that can be.
    fn make(&self, size_bytes: u64) -> Result<bool, OpenError> {
        let _ = size_bytes;
        Ok(false)
    }

    /// Whether [`RemoteSpec::make`] makes anything.
    fn is_made(&self) -> bool {
        false
    }

    /// Removes what [`RemoteSpec::make`] has made, with all that it holds.
    ///
    /// # Errors
    /// [`OpenError`].
    fn remove(&self) -> Result<(), OpenError> {
        Ok(())
    }

    /// The named checkpoints of what is there, by name, asked for anew without opening it; `None` of a kind that keeps none.
    ///
    /// # Errors
    /// [`OpenError`]: there is none, or the store cannot be reached or refuses.
    fn checkpoints(&self) -> Result<Option<Vec<Checkpoint>>, OpenError> {
        Ok(None)
    }

    /// Where a backing at this address has a journal of its own, which [`RemoteSpec::make`] makes and later starts find again;
    /// `None` if it has none but in the room behind the volume's end.
    fn journal_beside(&self) -> Option<Arc<dyn RemoteSpec>> {
        None
    }
}

impl PartialEq for dyn RemoteSpec {
    fn eq(&self, other: &Self) -> bool {
        self.as_path() == other.as_path()
    }
}

impl Eq for dyn RemoteSpec {}
