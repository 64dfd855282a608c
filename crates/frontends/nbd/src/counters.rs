//! What is counted of each export and each connection.

use std::sync::atomic::{AtomicU64, Ordering};

/// Defines the counters once: the live ones that threads add to, and the snapshot with its described fields, which
/// status, dashboard and metrics all read.
macro_rules! counters {
    ($($(#[doc = $text:literal])+ $name:ident,)+) => {
        /// Counters that several threads add to.
        #[derive(Debug, Default)]
        pub(crate) struct RequestCounters {
            $(pub(crate) $name: AtomicU64,)+
        }

        /// What was counted of an export or a connection since it began.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct RequestCounts {
            $($(#[doc = $text])+ pub $name: u64,)+
        }

        impl RequestCounters {
            pub(crate) fn snapshot(&self) -> RequestCounts {
                RequestCounts { $($name: self.$name.load(Ordering::Relaxed),)+ }
            }
        }

        impl RequestCounts {
            /// Each counter's name, its description and its value, in a fixed order.
            pub fn fields(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($name), concat!($($text),+).trim_ascii(), self.$name),)+].into_iter()
            }
        }
    };
}

counters! {
    /// Read requests.
    reads,
    /// Write requests.
    writes,
    /// Flush requests.
    flushes,
    /// Trim (discard) requests.
    trims,
    /// Write-zeroes requests.
    zeroes,
    /// Block status requests.
    statuses,
    /// Bytes of data sent to clients.
    bytes_read,
    /// Bytes of data received from clients in requests that were passed on to the volume.
    bytes_written,
    /// Requests answered with an error.
    errors,
    /// Replies that had to wait for the connection's writer, because the socket could not take them at once, or under TLS.
    replies_deferred,
    /// Times that reading from a client was paused at a limit of requests or bytes in flight.
    pauses,
}

/// What was counted of the connections to a server.
#[derive(Debug, Default)]
pub(crate) struct Visits {
    clients: AtomicU64,
    refused: AtomicU64,
    displaced: AtomicU64,
}

impl Visits {
    /// Clients that are there now.
    pub(crate) fn clients(&self) -> u64 {
        self.clients.load(Ordering::Relaxed)
    }

    /// Connections for which there was no place since the start, be it to wait, for a handshake or as a client.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Connections that gave their place among the handshakes for another one since the start, because they did not get on.
    pub(crate) fn displaced(&self) -> u64 {
        self.displaced.load(Ordering::Relaxed)
    }

    pub(crate) fn are_there(&self, clients: usize) {
        self.clients.store(clients as u64, Ordering::Relaxed);
    }

    pub(crate) fn refuse(&self) {
        add(&self.refused, 1);
    }

    pub(crate) fn displace(&self) {
        add(&self.displaced, 1);
    }
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_names_and_describes_what_was_counted() {
        let live = RequestCounters::default();
        add(&live.bytes_read, 7);
        let counts = live.snapshot();
        assert_eq!(counts.bytes_read, 7);
        let fields: Vec<_> = counts.fields().collect();
        assert!(fields.contains(&("bytes_read", "Bytes of data sent to clients.", 7)));
        assert!(fields.iter().all(|(_, text, _)| text.ends_with('.')));
    }
}
