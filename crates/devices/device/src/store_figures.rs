//! What an object store was asked for and what it holds, which are paid for: told by a device while it is used, on any thread.

use std::sync::{Arc, Mutex, PoisonError};

/// Counts since the device was opened, and what there is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreFigures {
    /// Objects that were to be made.
    pub creates: u64,
    /// Parts of objects that were asked for.
    pub gets: u64,
    /// Pages of listings.
    pub lists: u64,
    /// Objects that were to be deleted.
    pub deletes: u64,
    /// Of all these, requests that were sent again.
    pub retries: u64,
    /// Bytes of objects that were sent.
    pub bytes_sent: u64,
    /// Of these, data of objects that were collected.
    pub bytes_moved: u64,
    /// Of these, checkpoints.
    pub bytes_checkpoints: u64,
    /// Bytes of objects that were received.
    pub bytes_received: u64,
    /// Objects that hold data.
    pub objects: u64,
    /// Bytes of these objects.
    pub stored_bytes: u64,
    /// Data in them that can be read.
    pub live_bytes: u64,
}

/// Where a device puts its figures, and others find them.
#[derive(Clone, Debug, Default)]
pub struct Billed(Arc<Mutex<StoreFigures>>);

impl Billed {
    pub(crate) fn put(&self, figures: StoreFigures) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = figures;
    }

    /// As of a moment ago.
    pub fn figures(&self) -> StoreFigures {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PartialEq for Billed {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Billed {}
