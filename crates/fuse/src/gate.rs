//! Keeps a write of parts of sectors alone with the volume.
//!
//! Such a write reads the sectors that it covers in part, changes them, and writes them back. What another request
//! wrote to these sectors in between would be undone, although it was acknowledged (P1, P2). So it waits until all other changes are
//! done, and they wait until it is done. It is rare: file systems, loop devices and databases write whole sectors.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
struct State {
    /// Somebody is alone, or waits for it.
    closed: bool,
    /// Ordinary changes under way.
    inside: usize,
}

/// A gate that any number of ordinary changes may pass at a time, or one that must be alone.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

/// An ordinary change under way; it ends when this is dropped, on whatever thread.
#[derive(Debug)]
pub(crate) struct Inside(Arc<Gate>);

/// Being alone, until this is dropped.
#[derive(Debug)]
pub(crate) struct Alone<'a>(&'a Gate);

impl Gate {
    /// Begins an ordinary change, after waiting for whoever is alone.
    pub fn enter(self: &Arc<Self>) -> Inside {
        let mut state = self.wait_while(self.lock(), |s| s.closed);
        state.inside += 1;
        Inside(Arc::clone(self))
    }

    /// Waits until no change is under way, and keeps others from beginning.
    pub fn alone(&self) -> Alone<'_> {
        let mut state = self.wait_while(self.lock(), |s| s.closed);
        state.closed = true;
        drop(self.wait_while(state, |s| s.inside > 0));
        Alone(self)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while<'a>(
        &self,
        state: MutexGuard<'a, State>,
        condition: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        self.changed.wait_while(state, |s| condition(s)).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.inside -= 1;
        if state.closed && state.inside == 0 {
            self.0.changed.notify_all();
        }
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.lock().closed = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::thread;

    #[test]
    fn who_is_alone_sees_no_change_under_way() {
        let gate = Arc::new(Gate::default());
        let ordinary = AtomicUsize::new(0);
        let exclusive = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let inside = gate.enter();
                        ordinary.fetch_add(1, SeqCst);
                        assert_eq!(exclusive.load(SeqCst), 0);
                        thread::yield_now();
                        ordinary.fetch_sub(1, SeqCst);
                        drop(inside);
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let alone = gate.alone();
                        assert_eq!(exclusive.fetch_add(1, SeqCst), 0);
                        assert_eq!(ordinary.load(SeqCst), 0);
                        thread::yield_now();
                        exclusive.fetch_sub(1, SeqCst);
                        drop(alone);
                    }
                });
            }
        });
    }
}
