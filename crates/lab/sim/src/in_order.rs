//! Work for many threads whose outcome does not depend on how many there are: it is taken in the order of its numbers, and what lies behind
//! the end that the taker chooses is thrown away.
//!
//! ```text
//!  threads:   claim 7 ── work ──┐
//!             claim 8 ── work ──┼──► outcomes, as they come ──► put in order ──► taker: 5, 6, 7, ... until it has enough
//!             claim 9 ── work ──┘
//! ```

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Most threads.
pub const THREADS_MAX: usize = 256;
/// Numbers for each thread that may be claimed ahead of the first that is not done.
const AHEAD_MAX: u64 = 64;
/// The taker looks up this often while no outcome comes.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Numbers that are to be worked on.
struct Claims {
    next: u64,
    /// The first that has not been taken.
    taken: u64,
    end: u64,
}

struct Shared {
    claims: Mutex<Claims>,
    moved: Condvar,
    ahead: u64,
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut Claims)) {
        change(&mut self.claims.lock().unwrap_or_else(PoisonError::into_inner));
        self.moved.notify_all();
    }

    /// The next number, once it is near enough to the first that has not been taken; `None` at the end.
    fn claim(&self) -> Option<u64> {
        let claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        let far = |c: &mut Claims| c.next < c.end && c.next - c.taken >= self.ahead;
        let mut claims = self.moved.wait_while(claims, far).unwrap_or_else(PoisonError::into_inner);
        let number = claims.next;
        (number < claims.end).then(|| {
            claims.next += 1;
            number
        })
    }
}

/// A thread that fails takes the others with it.
struct EndsAll<'a>(&'a Shared);

impl Drop for EndsAll<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.change(|c| c.end = 0);
        }
    }
}

/// Works on `numbers` in at most `threads` threads, at least one and at most [`THREADS_MAX`]; each makes a worker of its own. `take` gets the
/// outcomes in the order of their numbers, until it breaks off; now and then it gets `None`, for time passes.
///
/// # Errors
/// Of the system, if it gives not a single thread.
///
/// # Panics
/// If a worker does.
pub fn in_order<T: Send, W: FnMut(u64) -> T>(
    threads: usize,
    numbers: Range<u64>,
    worker: impl Fn() -> W + Sync,
    mut take: impl FnMut(Option<(u64, T)>) -> ControlFlow<()>,
) -> std::io::Result<()> {
    let threads = threads.clamp(1, THREADS_MAX);
    let shared = Shared {
        claims: Mutex::new(Claims { next: numbers.start, taken: numbers.start, end: numbers.end }),
        moved: Condvar::new(),
        ahead: AHEAD_MAX * threads as u64,
    };
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        for n in 0..threads {
            let (shared, worker, sender) = (&shared, &worker, sender.clone());
            let run = move || {
                let _ends_all = EndsAll(shared);
                let mut work = worker();
                while let Some(number) = shared.claim() {
                    let outcome = (number, work(number));
                    if sender.send(outcome).is_err() {
                        return;
                    }
                }
            };
            match std::thread::Builder::new().spawn_scoped(scope, run) {
                Err(e) if n == 0 => return Err(e),
                // Fewer do as well, and come to the same.
                Err(_) => break,
                Ok(_) => {}
            }
        }
        drop(sender);
        let mut early: BTreeMap<u64, T> = BTreeMap::new();
        let mut due = numbers.start;
        loop {
            let mut flow = match receiver.recv_timeout(LOOK_EVERY) {
                Ok((number, outcome)) => {
                    early.insert(number, outcome);
                    ControlFlow::Continue(())
                }
                Err(RecvTimeoutError::Timeout) => take(None),
                Err(RecvTimeoutError::Disconnected) => break,
            };
            while flow.is_continue()
                && let Some(outcome) = early.remove(&due)
            {
                flow = take(Some((due, outcome)));
                due += 1;
            }
            match flow {
                ControlFlow::Continue(()) => shared.change(|c| c.taken = due),
                ControlFlow::Break(()) => {
                    shared.change(|c| c.end = 0);
                    break;
                }
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum of outcomes up to the first at which it is enough, or which is bad.
    fn until(threads: usize, enough: u64, bad: u64) -> (Vec<u64>, u64) {
        let (mut taken, mut sum) = (Vec::new(), 0);
        let worker = || {
            |number: u64| {
                // Later ones are done earlier.
                if number.is_multiple_of(3) {
                    std::thread::yield_now();
                }
                number * 7 % 11
            }
        };
        in_order(threads, 5..2000, worker, |outcome| {
            let Some((number, outcome)) = outcome else { return ControlFlow::Continue(()) };
            taken.push(number);
            sum += outcome;
            if sum >= enough || number == bad { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        (taken, sum)
    }

    #[test]
    fn the_outcome_is_that_of_one_thread() {
        for (enough, bad) in [(1000, u64::MAX), (u64::MAX, 777), (u64::MAX, u64::MAX), (0, 9)] {
            let alone = until(1, enough, bad);
            assert!((5..).zip(&alone.0).all(|(a, b)| a == *b), "in order, none left out");
            for threads in [2, 3, 8, usize::MAX] {
                assert_eq!(until(threads, enough, bad), alone, "{threads} threads");
            }
        }
    }

    #[test]
    fn nobody_runs_far_ahead() {
        use std::sync::atomic::{AtomicU64, Ordering};
        let (most, first_done) = (AtomicU64::new(0), AtomicU64::new(0));
        let worker = || {
            |number: u64| {
                // The first one ends when the other thread has come as far as it can.
                while number == 0 && most.load(Ordering::SeqCst) + 1 < AHEAD_MAX * 2 {
                    std::thread::yield_now();
                }
                first_done.fetch_add(u64::from(number == 0), Ordering::SeqCst);
                if first_done.load(Ordering::SeqCst) == 0 {
                    most.fetch_max(number, Ordering::SeqCst);
                }
            }
        };
        in_order(2, 0..1000, worker, |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(most.load(Ordering::SeqCst), AHEAD_MAX * 2 - 1);
    }

    #[test]
    fn a_worker_that_fails_ends_everything() {
        let failing = || {
            let worker = || |number: u64| assert!(number != 40, "this one fails");
            in_order(3, 0..u64::MAX, worker, |_| ControlFlow::Continue(()))
        };
        assert!(std::panic::catch_unwind(failing).is_err());
    }
}
