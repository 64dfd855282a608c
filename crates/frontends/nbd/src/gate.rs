//! The limit of what one connection has in flight: backpressure by not reading.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::budget::{MemoryBudget, Taken};
use crate::lock::hold;

#[derive(Default)]
struct InFlight {
    requests: usize,
    bytes: usize,
    /// Somebody waits for a request to leave.
    awaited: bool,
    /// Bytes of a request among them that went beyond the total of all connections. Of several of this length any may count as that one.
    beyond: Option<usize>,
}

impl InFlight {
    /// The data of one more request.
    fn takes(&mut self, bytes: usize, taken: Taken) {
        self.bytes += bytes;
        if taken == Taken::Beyond {
            self.beyond = Some(bytes);
        }
    }
}

/// Counts the requests of a connection from their arrival until their reply is sent (or dropped because the
/// connection broke). The reader enters, whoever sends the reply leaves.
pub(crate) struct Gate {
    requests_max: usize,
    bytes_max: usize,
    in_flight: Mutex<InFlight>,
    left: Condvar,
    /// What all connections have together.
    memory: Arc<MemoryBudget>,
}

impl Gate {
    pub(crate) fn new(requests_max: usize, bytes_max: usize, memory: Arc<MemoryBudget>) -> Self {
        Self { requests_max, bytes_max, in_flight: Mutex::default(), left: Condvar::new(), memory }
    }

    /// Lets in a request of `bytes`, for the one thread that enters, waiting while the limits do not allow it; calls `pause` before it waits. A request
    /// that alone exceeds the limit of bytes is let in when nothing else is in flight, else it would wait for ever.
    pub(crate) fn enter(&self, bytes: usize, pause: impl FnOnce()) {
        let mut in_flight = hold(&self.in_flight);
        let mut pause = Some(pause);
        while !self.allows(&in_flight, bytes) {
            if let Some(pause) = pause.take() {
                pause();
            }
            in_flight = self.wait(in_flight);
        }
        if bytes > 0 {
            let taken = match self.memory.try_take(in_flight.bytes, bytes) {
                Some(taken) => taken,
                None => {
                    drop(in_flight);
                    if let Some(pause) = pause {
                        pause();
                    }
                    // Only this thread adds to what is in flight.
                    let taken = self.memory.take(|| hold(&self.in_flight).bytes, bytes);
                    in_flight = hold(&self.in_flight);
                    taken
                }
            };
            in_flight.takes(bytes, taken);
        }
        in_flight.requests += 1;
    }

    /// As [`Gate::enter`], unless it would have to wait; says whether the request was let in.
    pub(crate) fn try_enter(&self, bytes: usize) -> bool {
        let mut in_flight = hold(&self.in_flight);
        if !self.allows(&in_flight, bytes) {
            return false;
        }
        if bytes > 0 {
            let Some(taken) = self.memory.try_take(in_flight.bytes, bytes) else {
                return false;
            };
            in_flight.takes(bytes, taken);
        }
        in_flight.requests += 1;
        true
    }

    /// Whether the connection's own limits allow a request of `bytes` now.
    fn allows(&self, in_flight: &InFlight, bytes: usize) -> bool {
        in_flight.requests == 0
            || in_flight.requests < self.requests_max
                && in_flight.bytes.saturating_add(bytes) <= self.bytes_max
    }

    fn wait<'a>(&self, mut in_flight: MutexGuard<'a, InFlight>) -> MutexGuard<'a, InFlight> {
        in_flight.awaited = true;
        in_flight = self.left.wait(in_flight).unwrap_or_else(PoisonError::into_inner);
        in_flight.awaited = false;
        in_flight
    }

    /// The reply of a request of `bytes` is sent or dropped.
    pub(crate) fn leave(&self, bytes: usize) {
        self.leave_together(std::iter::once(bytes));
    }

    /// The same for several, each of so many bytes.
    pub(crate) fn leave_together(&self, requests: impl Iterator<Item = usize>) {
        let mut in_flight = hold(&self.in_flight);
        let (mut shared, mut beyond) = (0, 0);
        for bytes in requests {
            in_flight.requests -= 1;
            in_flight.bytes -= bytes;
            match in_flight.beyond.take_if(|beyond| *beyond == bytes) {
                Some(_) => beyond += bytes,
                None => shared += bytes,
            }
        }
        let awaited = in_flight.awaited;
        drop(in_flight);
        // Also if nobody waits it would be a system call.
        if awaited {
            self.left.notify_one();
        }
        for (bytes, taken) in [(shared, Taken::Shared), (beyond, Taken::Beyond)] {
            if bytes > 0 {
                self.memory.give(bytes, taken);
            }
        }
    }

    /// Waits until nothing is in flight, for the one thread that enters.
    pub(crate) fn wait_empty(&self) {
        let mut in_flight = hold(&self.in_flight);
        while in_flight.requests > 0 {
            in_flight = self.wait(in_flight);
        }
    }

    /// Requests and bytes in flight.
    pub(crate) fn load(&self) -> (usize, usize) {
        let in_flight = hold(&self.in_flight);
        (in_flight.requests, in_flight.bytes)
    }
}
