//! The named limits of a server (P7).

use std::time::Duration;

/// What one server and each of its connections may take. Memory for data in flight is at most
/// `connections_max * bytes_in_flight_max`, plus one request for each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time; a further one is closed at once. Each takes two threads. From 1.
    pub connections_max: usize,
    /// Requests of one connection that are under way or whose reply is not yet sent. At the limit the server stops
    /// reading from the connection. From 1.
    pub requests_in_flight_max: usize,
    /// Bytes of data of those requests. A single request that is longer is let in alone.
    pub bytes_in_flight_max: usize,
    /// Time that a client has from connecting to the start of transmission, TLS included.
    pub handshake_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 64,
            requests_in_flight_max: 256,
            bytes_in_flight_max: 64 << 20,
            handshake_timeout: Duration::from_secs(15),
        }
    }
}
