//! Long tests share the machine's processors.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Calls `work` with each of `0..count`, on two threads.
pub fn on_two_threads(count: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    let run = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= count {
                return;
            }
            work(i);
        }
    };
    std::thread::scope(|s| {
        s.spawn(run);
        s.spawn(run);
    });
}
