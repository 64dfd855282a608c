//! The threads that carry out requests to an object store, each one at a time. There are as many as there were requests at a time, up to
//! a limit; they end with what they work for.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use forebay_objects::{Answer, Request, StoreError};

use crate::ring::Waker;

/// What the store has answered to the request of this number.
pub(crate) type Ended = (u64, Result<Answer, StoreError>);

/// Carries out a request, once.
pub(crate) trait Store: Send + Sync + 'static {
    /// # Errors
    /// It was not carried out, or it is not known.
    fn carry_out(&self, request: &Request) -> Result<Answer, StoreError>;

    /// Nothing more is wanted: what is under way ends soon.
    fn shut_down(&self);
}

#[derive(Default)]
struct State {
    queue: VecDeque<(u64, Request)>,
    ended: Vec<Ended>,
    /// All there are, and those that wait for work.
    threads: usize,
    idle: usize,
    closing: bool,
}

struct Shared {
    store: Box<dyn Store>,
    state: Mutex<State>,
    /// There is something in the queue, or nothing more is wanted.
    work: Condvar,
    /// Something has ended.
    told: Condvar,
    waker: Waker,
}

/// See the module's documentation.
pub(crate) struct Workers {
    shared: Arc<Shared>,
    threads_max: usize,
}

impl Workers {
    /// None yet. `waker` is used when requests have ended.
    pub(crate) fn new(store: Box<dyn Store>, threads_max: usize, waker: Waker) -> Self {
        let (state, work, told) = (Mutex::default(), Condvar::new(), Condvar::new());
        Self { shared: Arc::new(Shared { store, state, work, told, waker }), threads_max }
    }

    /// Begins a request. What comes beyond the threads waits in their order.
    pub(crate) fn begin(&self, id: u64, request: Request) {
        let mut state = self.shared.state();
        state.queue.push_back((id, request));
        if state.queue.len() <= state.idle || state.threads == self.threads_max {
            drop(state);
            return self.shared.work.notify_one();
        }
        let shared = Arc::clone(&self.shared);
        match thread::Builder::new().name("s3".to_owned()).spawn(move || shared.run()) {
            Ok(_) => state.threads += 1,
            // Those that there are come to it.
            Err(_) if state.threads > 0 => {}
            Err(e) => {
                state.queue.pop_back();
                let why = format!("no thread can be started: {}", forebay_block::words_of(&e));
                state.ended.push((id, Err(StoreError::Busy(why))));
            }
        }
    }

    /// Appends what has ended.
    pub(crate) fn take(&self, into: &mut Vec<Ended>) {
        into.append(&mut self.shared.state().ended);
    }

    /// Waits until something has ended, or for so long.
    pub(crate) fn wait(&self, time: Duration) {
        let none = |state: &mut State| state.ended.is_empty();
        drop(self.shared.told.wait_timeout_while(self.shared.state(), time, none));
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.closing = true;
        state.queue.clear();
        drop(state);
        self.shared.work.notify_all();
        self.shared.store.shut_down();
    }
}

impl Shared {
    /// A thread that panics with the lock held leaves a state that is whole: nothing in it can panic half-way.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.state();
        while !state.closing {
            let Some((id, request)) = state.queue.pop_front() else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            drop(state);
            let result = self.store.carry_out(&request);
            // An object's bytes go before its maker hears of it.
            drop(request);
            state = self.state();
            state.ended.push((id, result));
            let is_first = state.ended.len() == 1;
            drop(state);
            if is_first {
                self.told.notify_one();
                self.waker.wake_always();
            }
            state = self.state();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::ring::Ring;

    /// Ends a request when all of `together` are there.
    struct Meeting {
        together: Barrier,
        ends: Mutex<Sender<()>>,
    }

    impl Store for Meeting {
        fn carry_out(&self, request: &Request) -> Result<Answer, StoreError> {
            self.together.wait();
            Err(StoreError::Refused(request.name().to_owned()))
        }

        fn shut_down(&self) {
            self.ends.lock().unwrap().send(()).unwrap();
        }
    }

    fn workers(together: usize, threads_max: usize) -> (Ring, Receiver<()>, Workers) {
        let (ends, ended) = channel();
        let ring = Ring::new().unwrap();
        let store = Meeting { together: Barrier::new(together), ends: Mutex::new(ends) };
        let workers = Workers::new(Box::new(store), threads_max, ring.waker());
        (ring, ended, workers)
    }

    fn delete(name: &str) -> Request {
        Request::Delete { name: name.to_owned() }
    }

    #[test]
    fn all_are_carried_out_at_a_time_and_wake_the_owner() {
        let (ring, ended, workers) = workers(4, 4);
        for round in 0..3 {
            for id in 0..4 {
                workers.begin(round * 4 + id, delete(&id.to_string()));
            }
            let mut told = Vec::new();
            while told.len() < 4 {
                ring.submit_and_wait(None, || true).unwrap();
                workers.take(&mut told);
            }
            told.sort_by_key(|(id, _)| *id);
            for (n, (id, result)) in told.into_iter().enumerate() {
                assert_eq!((id, result), (round * 4 + n as u64, Err(StoreError::Refused(n.to_string()))));
            }
            assert_eq!(workers.shared.state().threads, 4);
        }
        drop(workers);
        ended.recv().unwrap();
    }

    #[test]
    fn what_comes_beyond_the_threads_waits() {
        let (_ring, _ended, workers) = workers(2, 2);
        for id in 0..6 {
            workers.begin(id, delete(""));
        }
        let mut told = Vec::new();
        while told.len() < 6 {
            workers.wait(Duration::from_secs(60));
            workers.take(&mut told);
        }
        assert_eq!(workers.shared.state().threads, 2);
    }
}
