//! How those who work for a device tell its owner that something has ended.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::ring::Waker;

/// Wakes the owner once, until it has looked.
pub(crate) struct Bell {
    waker: Waker,
    rung: AtomicBool,
}

impl Bell {
    pub(crate) const fn new(waker: Waker) -> Self {
        Self { waker, rung: AtomicBool::new(false) }
    }

    /// Something has ended that the owner finds where it looks.
    pub(crate) fn ring(&self) {
        if !self.rung.swap(true, Ordering::SeqCst) {
            self.waker.wake_always();
        }
    }

    /// The owner is about to look: what ends from now on wakes it again.
    pub(crate) fn heard(&self) {
        self.rung.store(false, Ordering::SeqCst);
    }
}
