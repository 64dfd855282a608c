//! Clients whose requests a volume's own thread fetches.
//!
//! A request that crosses from a client's thread to the volume's costs two more wake-ups than the work itself. So who has a socket
//! may leave it with the volume, whose thread waits for sockets and devices at once. What would have to wait goes back to
//! the client's own thread: the volume's never blocks.
//!
//! ```text
//!  client's thread ── adopt ──► volume's thread: socket readable ─► fetch ─► requests
//!        ▲                                                            │
//!        └───────────── the feed is dropped ◄── Fetched::Leaves ◄─────┘
//! ```

use std::os::fd::BorrowedFd;

/// What [`Feed::fetch`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// All there was: it is asked again when its socket has more.
    All,
    /// There may be more, which waits until others had their turn.
    Part,
    /// Its own thread goes on: it is not asked any more, and dropped.
    Leaves,
}

/// A client's requests, fetched on the thread of the volume that they go to.
pub trait Feed: Send {
    /// The socket that they come through.
    fn socket(&self) -> BorrowedFd<'_>;

    /// Fetches what has come, a bounded amount, and submits it by [`crate::BlockService::try_submit`]. Asked at first, because some may
    /// have been read before, and each time that there is more in the socket. Once the client has ended its side it is asked until
    /// it leaves. It must not block. A panic ends the feed and not the volume: it is dropped then.
    fn fetch(&mut self) -> Fetched;
}
