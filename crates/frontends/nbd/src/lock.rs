//! Taking a lock whatever happened to an earlier holder.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes the lock. A poisoned one is taken as it is: the state behind this crate's locks is whole after every
/// statement, and one connection's panic must not spread to the volume's thread that answers it.
pub(crate) fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
