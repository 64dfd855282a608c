//! The named limits of a server (P7).

use std::time::Duration;

/// What one server and each of its connections may take. What all servers of a process hold for clients has a limit of its own
/// ([`crate::MemoryBudget`]).
///
/// A connection is first a *handshake*, until its negotiation has ended, and then a *client*. They have places apart, so that
/// who only connects takes no client's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Clients at a time. Each takes two threads. From 1.
    pub connections_max: usize,
    /// Of these, clients of one source: a TCP address (of IPv6 the first 64 bits), or a user of a unix socket. From 1.
    pub connections_per_source_max: usize,
    /// Requests of one connection that are under way or whose reply is not yet sent. At the limit the server stops
    /// reading from the connection. From 1.
    pub requests_in_flight_max: usize,
    /// Bytes of data of those requests. A single request that is longer is let in alone.
    pub bytes_in_flight_max: usize,
    /// Time that a client has from its place among the handshakes to the start of transmission, TLS included.
    pub handshake_timeout: Duration,
    /// A client that takes no byte of a reply that waits for it, or sends none of a request that it has begun, for this long is
    /// closed; the latter up to half as much later, if the volume's thread has its requests when it stops.
    pub stall_timeout: Duration,
}

/// Handshakes at a time: so many, whatever the limit of clients is.
const HANDSHAKES_MIN: usize = 2;
const HANDSHAKES_MAX: usize = 64;

impl Limits {
    /// Handshakes at a time; half of [`Limits::connections_max`], from 2 to 64.
    pub fn handshakes_max(&self) -> usize {
        (self.connections_max / 2).clamp(HANDSHAKES_MIN, HANDSHAKES_MAX)
    }

    /// Of these, handshakes of one source: the same share as of the clients, and at least one.
    pub fn handshakes_per_source_max(&self) -> usize {
        let share = self.handshakes_max() * self.connections_per_source_max / self.connections_max.max(1);
        share.clamp(1, self.handshakes_max())
    }

    /// Connections that wait for a place among the handshakes; they have no thread, and nothing is read of them.
    pub fn waiting_max(&self) -> usize {
        self.handshakes_max() * 2
    }

    /// A handshake that does not get on for this long is closed.
    pub fn silence_max(&self) -> Duration {
        self.handshake_timeout / 2
    }

    /// A handshake that has not got on for this long gives its place to one that waits, if its source has the most.
    pub fn displaced_after(&self) -> Duration {
        self.handshake_timeout / 40
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 128,
            connections_per_source_max: 64,
            requests_in_flight_max: 256,
            bytes_in_flight_max: 64 << 20,
            handshake_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(60),
        }
    }
}
