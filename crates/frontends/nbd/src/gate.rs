//! The limit of what one connection has in flight: backpressure by not reading.

use std::sync::{Arc, Condvar, Mutex};

use crate::budget::{MemoryBudget, Taken};
use crate::lock::hold;

#[derive(Default)]
struct InFlight {
    requests: usize,
    bytes: usize,
    /// Bytes of a request among them that went beyond the total of all connections. Of several of this length any may count as that one.
    beyond: Option<usize>,
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
        while in_flight.requests > 0
            && (in_flight.requests >= self.requests_max
                || in_flight.bytes.saturating_add(bytes) > self.bytes_max)
        {
            if let Some(pause) = pause.take() {
                pause();
            }
            in_flight = self.left.wait(in_flight).unwrap_or_else(std::sync::PoisonError::into_inner);
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
            if taken == Taken::Beyond {
                in_flight.beyond = Some(bytes);
            }
        }
        in_flight.requests += 1;
        in_flight.bytes += bytes;
    }

    /// The reply of a request of `bytes` is sent or dropped.
    pub(crate) fn leave(&self, bytes: usize) {
        let mut in_flight = hold(&self.in_flight);
        in_flight.requests -= 1;
        in_flight.bytes -= bytes;
        let beyond = in_flight.beyond.take_if(|beyond| *beyond == bytes);
        drop(in_flight);
        self.left.notify_one();
        if bytes > 0 {
            self.memory.give(bytes, if beyond.is_some() { Taken::Beyond } else { Taken::Shared });
        }
    }

    /// Waits until nothing is in flight, for the one thread that enters.
    pub(crate) fn wait_empty(&self) {
        let mut in_flight = hold(&self.in_flight);
        while in_flight.requests > 0 {
            in_flight = self.left.wait(in_flight).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// Requests and bytes in flight.
    pub(crate) fn load(&self) -> (usize, usize) {
        let in_flight = hold(&self.in_flight);
        (in_flight.requests, in_flight.bytes)
    }
}
