//! Keeps who writes back what he has read alone with a part of a volume.
//!
//! A write of parts of sectors reads the sectors that it covers in part, changes them, and writes them back. What another request
//! wrote to these sectors in between would be undone, although it was acknowledged (P1, P2), through whichever frontend it came. So such a
//! write waits until all other changes there are done, and they wait until it is done. It is rare: file systems, loop devices and
//! databases write whole sectors.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

#[derive(Debug, Default)]
struct State {
    /// Who is alone, or waits for it, and with which bytes; no two with the same.
    holders: Vec<(ThreadId, Range<u64>)>,
    /// Bytes of the changes under way, each at a place of its own; empty where there is none.
    inside: Vec<Range<u64>>,
    free: Vec<usize>,
}

/// A volume's gate: any number of changes may pass at a time, but for those of bytes with which a thread is alone. A volume has every
/// change that is submitted to it pass ([`Gate::pass`]); a frontend that must be alone asks for it ([`crate::BlockService::gate`]).
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

/// A change under way; it ends when this is dropped, on whatever thread.
#[derive(Debug)]
pub struct Inside(Arc<Gate>, usize);

/// Being alone, until this is dropped.
#[derive(Debug)]
pub struct Alone<'a>(&'a Gate, Range<u64>);

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Gate {
    /// Begins a change of these bytes, after waiting for whoever is alone with some of them, but for the calling thread itself.
    pub fn pass(self: &Arc<Self>, bytes: Range<u64>) -> Inside {
        let me = thread::current().id();
        let others =
            |s: &State| s.holders.iter().any(|(thread, held)| *thread != me && overlap(held, &bytes));
        let state = self.wait_while(self.lock(), others);
        self.enter(state, bytes)
    }

    /// As [`Gate::pass`], unless it would have to wait.
    pub fn try_pass(self: &Arc<Self>, bytes: Range<u64>) -> Option<Inside> {
        let state = self.lock();
        let held = state.holders.iter().any(|(_, held)| overlap(held, &bytes));
        (!held).then(|| self.enter(state, bytes))
    }

    fn enter(self: &Arc<Self>, mut state: MutexGuard<'_, State>, bytes: Range<u64>) -> Inside {
        let place = match state.free.pop() {
            Some(place) => place,
            None => {
                state.inside.push(0..0);
                state.inside.len() - 1
            }
        };
        state.inside[place] = bytes;
        Inside(Arc::clone(self), place)
    }

    /// Waits until no change of these bytes is under way, and keeps those of other threads from beginning. Whoever is alone already
    /// must not ask again.
    pub fn alone(&self, bytes: Range<u64>) -> Alone<'_> {
        let held = |s: &State| s.holders.iter().any(|(_, held)| overlap(held, &bytes));
        let mut state = self.wait_while(self.lock(), held);
        state.holders.push((thread::current().id(), bytes.clone()));
        drop(self.wait_while(state, |s| s.inside.iter().any(|inside| overlap(inside, &bytes))));
        Alone(self, bytes)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics between two changes that belong together, so the state is whole even after a panic.
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
        state.inside[self.1] = 0..0;
        state.free.push(self.1);
        if !state.holders.is_empty() {
            self.0.changed.notify_all();
        }
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.lock().holders.retain(|(_, held)| *held != self.1);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    #[test]
    fn who_is_alone_sees_no_change_under_way() {
        let gate = Arc::new(Gate::default());
        let ordinary = AtomicUsize::new(0);
        let exclusive = AtomicUsize::new(0);
        thread::scope(|scope| {
            for n in 0..3 {
                let (gate, ordinary, exclusive) = (&gate, &ordinary, &exclusive);
                scope.spawn(move || {
                    for _ in 0..2000 {
                        let inside = gate.pass(n * 512..4096);
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
                        let alone = gate.alone(2048..8192);
                        // What it does itself passes.
                        drop(gate.pass(2048..8192));
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

    #[test]
    fn changes_elsewhere_keep_nobody_waiting() {
        let gate = Arc::new(Gate::default());
        let elsewhere = gate.pass(0..512);
        let alone = gate.alone(512..1024);
        assert!(gate.try_pass(1023..1025).is_none() && gate.try_pass(1024..2048).is_some());
        thread::scope(|scope| {
            scope.spawn(|| {
                drop(gate.pass(1024..2048));
                drop(gate.alone(4096..4608));
            });
        });
        drop((alone, elsewhere));
        drop(gate.alone(0..4096));
    }
}
